"""Rings that end early or have pages of zeros: each published row is read or counted, or a loss says "unknown"."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from stash_files import StashWriter, ms

import stashtrace
from stashtrace.analysis.findings.rules.losses import loses_uncounted, lost_count
from stashtrace.errors import DataLossWarning, FormatError
from stashtrace.format.container import ByteFile
from stashtrace.format.ring import PAGE_BYTES, RING_FILE_HEADER, RING_FILE_MAGIC, RING_HEADER, RING_MAGIC, read_ring
from stashtrace.format.stash_file import StashFile
from stashtrace.summary.summary_text import summary

_UNKNOWN = {"damaged_lanes", "unreadable_ring", "damaged_ring_header"}
#: Rings of threads: (tid, rows in segments, rows published, how many of them segments have too, room).
#: Rows of 40 and 24 bytes lie across pages.
_RINGS = {
    "io_op": [(1, 100, 500, 0, 512), (2, 900, 400, 30, 512)],  # the second one has gone round
    "span": [(1, 0, 300, 0, 512), (2, 310, 500, 90, 512)],
    "thread_wait": [(1, 7, 600, 7, 1024)],
    "loss": [(3, 64, 40, 0, 64)],
}
_FIRST_FIELD = {"io_op": "begin_ticks", "span": "begin_ticks", "thread_wait": "begin_ticks", "loss": "ticks"}


class _Written:
    """A process whose rows are numbered from 1 on in their first field."""

    def __init__(self, directory: Path) -> None:
        self.stash = StashWriter(directory)
        self.made = 0
        for record, rings in _RINGS.items():
            for tid, drained, published, in_both, room in rings:
                if drained:
                    self.stash.add(record, self._rows(record, drained), tid=tid)
                self.made -= in_both
                self.stash.add_ring(
                    record, self._rows(record, published), tid=tid, capacity=room, already_drained=in_both
                )
        self.path = self.stash.save()
        self.ring = self.stash.ring_path.read_bytes()
        self.headers = [0]
        while (at := self.headers[-1]) < len(self.ring):
            self.headers.append(at + (RING_HEADER.unpack_from(self.ring, at)[5] if at else PAGE_BYTES))
        assert self.headers.pop() == len(self.ring)
        self.headers = self.headers[1:]

    def _rows(self, record: str, count: int) -> list[tuple[object, ...]]:
        self.made += count
        return [self.stash.row(record, **{_FIRST_FIELD[record]: ms(i)}) for i in range(count)]

    def damaged(self, ring: bytes) -> StashFile:
        """Return the process with this ring."""
        self.stash.ring_path.write_bytes(ring)
        return StashFile(str(self.path))

    def account(self, file: StashFile) -> tuple[int, int, bool]:
        """Return the numbers of rows that are read and counted as lost, and whether more may be missing."""
        read = 0
        for chunk in file.chunks():
            assert (chunk.rows[_FIRST_FIELD[chunk.layout.name]] > 0).all()
            read += len(chunk.rows)
        assert read == sum(file.row_counts().values())
        lost = sum(count for _, reason, _, count, _ in file.losses if reason not in _UNKNOWN)
        return read, lost, any(reason in _UNKNOWN for _, reason, *_ in file.losses)

    def hold(self, ring: bytes, *, known: bool, what: str) -> int:
        """Check that every row is read, counted, or said to be missing in unknown number; return the lost ones."""
        read, lost, more = self.account(self.damaged(ring))
        if known:
            assert (read + lost, more) == (self.made, False), what
        else:
            assert more, what
            assert read + lost <= self.made, what
        return lost


@pytest.fixture
def written(tmp_path: Path) -> _Written:
    """A process with rings of many shapes."""
    return _Written(tmp_path)


def _cuts(written: _Written) -> Iterator[int]:
    """Each place where the meaning of a byte changes, and many between."""
    yield from range(1, len(written.ring), 1021)
    for at in (0, *written.headers):
        for edge in (at, at + RING_FILE_HEADER.size, at + RING_HEADER.size, at + PAGE_BYTES):
            yield from range(max(edge - 2, 1), edge + 3)


def test_a_whole_ring_has_no_losses(written: _Written) -> None:
    assert written.hold(written.ring, known=True, what="whole") == 0
    assert written.damaged(written.ring).losses == []


def test_a_ring_cut_anywhere_loses_no_row_in_silence(written: _Written) -> None:
    exact = 0
    last = written.headers[-1]
    for size in sorted({size for size in _cuts(written) if size < len(written.ring)}):
        known = size >= last + RING_HEADER.size
        lost = written.hold(written.ring[:size], known=known, what=f"cut at {size}")
        exact += lost > 0
    assert exact > 100


def test_a_lost_page_loses_no_row_in_silence(written: _Written) -> None:
    exact = 0
    for at in range(0, len(written.ring), PAGE_BYTES):
        ring = written.ring[:at] + bytes(PAGE_BYTES) + written.ring[at + PAGE_BYTES :]
        known = at != 0 and at not in written.headers
        exact += written.hold(ring, known=known, what=f"page at {at}") > 0
    assert exact > 10


def test_a_ring_that_ends_in_zeros_loses_no_row_in_silence(written: _Written) -> None:
    """Its size came to the disk, its last pages did not."""
    last = written.headers[-1]
    for at in range(0, len(written.ring), PAGE_BYTES):
        ring = written.ring[:at] + bytes(len(written.ring) - at)
        if at == 0:
            assert {r for _, r, *_ in written.damaged(ring).losses} == {"unreadable_ring"}
        else:
            written.hold(ring, known=at > last, what=f"zeros from {at}")


def test_the_rings_of_a_file_without_its_header_are_read(written: _Written) -> None:
    read, lost, more = written.account(written.damaged(bytes(PAGE_BYTES) + written.ring[PAGE_BYTES:]))
    assert (read, lost, more) == (written.made, 0, True)


def test_rows_that_the_file_has_are_not_counted_as_lost(tmp_path: Path) -> None:
    stash = StashWriter(tmp_path)
    rows = [stash.row("io_op", begin_ticks=ms(i)) for i in range(300)]
    stash.add("io_op", rows[:250])
    stash.add_ring("io_op", rows, capacity=512, already_drained=250)
    path = stash.save()
    ring = bytearray(stash.ring_path.read_bytes())
    ring[2 * PAGE_BYTES : 3 * PAGE_BYTES] = bytes(PAGE_BYTES)  # rows 0 to 127
    stash.ring_path.write_bytes(ring)
    assert StashFile(str(path)).losses == []
    ring[3 * PAGE_BYTES : 5 * PAGE_BYTES] = bytes(2 * PAGE_BYTES)  # rows 128 to 299
    stash.ring_path.write_bytes(ring)
    file = StashFile(str(path))
    assert [(reason, count) for _, reason, _, count, _ in file.losses] == [("lost_ring_rows", 50)]
    with pytest.raises(FormatError, match="no longer holds"):
        StashFile(str(path), strict=True)


def test_larger_pages_leave_zeros_before_the_first_ring(tmp_path: Path) -> None:
    stash = StashWriter(tmp_path)
    stash.add_ring("io_op", [stash.row("io_op", begin_ticks=ms(i)) for i in range(5)])
    path = stash.save()
    ring = stash.ring_path.read_bytes()
    header = list(RING_FILE_HEADER.unpack_from(ring))
    for page in (16_384, 65_536):
        header[4] = page + len(ring) - PAGE_BYTES  # used_bytes
        first = bytearray(ring[PAGE_BYTES:])
        first[112:120] = page.to_bytes(8, "little")  # offset_bytes
        stash.ring_path.write_bytes(RING_FILE_HEADER.pack(*header).ljust(page, b"\0") + first)
        file = StashFile(str(path))
        assert (file.row_counts(), file.losses) == ({"io_op": 5}, [])


def test_a_ring_made_while_the_file_is_read_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file grows between the look at its size and the reading of its header, and a ring gets more space."""
    stash = StashWriter(tmp_path)
    stash.add_ring("io_op", [stash.row("io_op", begin_ticks=ms(i)) for i in range(500)], capacity=512)
    stash.save()
    small = PAGE_BYTES

    class Early(ByteFile):
        """Saw the file when it was smaller."""

        def __init__(self, path: str) -> None:
            super().__init__(path)
            self.size = small

    monkeypatch.setattr("stashtrace.format.ring.ByteFile", Early)
    image = read_ring(str(stash.ring_path))
    assert image.damaged_rings == 0
    assert [(ring.row_count, ring.gone) for ring in image.rings] == [(500, None)]


@pytest.mark.parametrize(
    ("capacity", "row_bytes", "is_possible"),
    [(1 << 31, 65_528, False), (1 << 13, 65_528, False), (1 << 17, 1024, True)],
)
def test_a_header_takes_no_memory_for_rows_that_no_file_holds(
    capacity: int, row_bytes: int, is_possible: bool, tmp_path: Path
) -> None:
    """A file of two pages, whose ring says that terabytes were published; at most 256 MiB are a ring."""
    ring = tmp_path / "x.ring"
    ring_bytes = PAGE_BYTES + capacity * row_bytes
    header = RING_FILE_HEADER.pack(RING_FILE_MAGIC, 1, 0, 7, PAGE_BYTES + ring_bytes, 0, 0, 0)
    first = RING_HEADER.pack(RING_MAGIC, 1, row_bytes, 1, capacity, ring_bytes, 7, 0, capacity, capacity, 0, 0, 0)
    ring.write_bytes(header.ljust(PAGE_BYTES, b"\0") + first.ljust(PAGE_BYTES, b"\0"))
    tracemalloc.start()
    image = read_ring(str(ring))
    most_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most_bytes < 4 << 20
    assert (len(image.rings), image.damaged_rings > 0) == (int(is_possible), not is_possible)
    if is_possible:
        assert image.rings[0].gone.all()


def test_info_and_the_summary_say_that_the_number_is_unknown(tmp_path: Path) -> None:
    written = _Written(tmp_path)
    written.stash.ring_path.write_bytes(written.ring[: written.headers[1]])
    with pytest.warns(DataLossWarning):
        trace = stashtrace.load(tmp_path)
    assert loses_uncounted(trace)
    assert lost_count(trace) == 0
    text = " ".join(summary(trace).split())
    assert "lost records 0 and an unknown number more" in text
    assert "an unknown number of rows is missing" in text
