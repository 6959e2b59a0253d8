"""Reads a .ring file: the rows that a process had recorded but not yet written to its .stash.

The writer may still be running, so the file is copied before its .stash is opened. A row that is drained in between is
in both, and ``stash_file`` drops one of the two by its sequence. A row that is overwritten while it is copied was
drained before, so the .stash has it.

A lost power supply, a full quota or an interrupted copy leaves a file that ends early or has pages of zeros. A ring's
header says which rows were published: those that are not there are distinguished, so that they can be counted.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from stashtrace.errors import FormatError
from stashtrace.format.container import ByteFile, refuse_newer
from stashtrace.schema.groupby import Bools

RING_FILE_MAGIC = b"STASHRG\n"
RING_MAGIC = 0x454E414C
PAGE_BYTES = 4096
RING_FILE_HEADER = struct.Struct("<8sHHIQQII")
RING_HEADER = struct.Struct("<IHHIIQII32xQQQ24xQ8xQ")  # up to and including consumed
assert RING_HEADER.size == 136

#: A process gives its rings no more than that (csrc/core/ring_file.h): a header that says more is damaged.
_MOST_BYTES = 256 << 20
#: Pages of machines on which the first ring does not begin right behind the file's header.
_LARGE_PAGES = (16 * 1024, 64 * 1024)


@dataclass(frozen=True, slots=True)
class Ring:
    """Content of one ring: ``rows`` are the bytes of rows [first_sequence, first_sequence + row_count).

    ``gone`` marks the rows that the file does not hold, None if it holds all.
    """

    ring_id: int
    record_id: int
    row_bytes: int
    tid: int
    first_sequence: int
    row_count: int
    dropped: int
    rows: bytes
    gone: Bools | None = None

    def kept_runs(self, begin: int) -> list[tuple[int, int]]:
        """Ranges of rows from number ``begin`` on that the file holds: (first, number behind the last)."""
        end = self.first_sequence + self.row_count
        if self.gone is None:
            return [(begin, end)] if begin < end else []
        kept = np.concatenate(([False], ~self.gone[begin - self.first_sequence :], [False]))
        edges = np.flatnonzero(kept[1:] != kept[:-1]) + begin
        return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class RingImage:
    """All rings of a ring file, and the number of places where others must have been.

    Without ``has_header`` the count of ``lost_rows`` is gone. The errors (errno, 0 for none) show why rows were lost
    that no loss row counts.
    """

    pid: int
    lost_rows: int
    grow_error: int
    write_error: int
    rings: list[Ring]
    damaged_rings: int
    has_header: bool = True


def read_ring(path: str) -> RingImage | None:
    """Copy the content of a .ring file; None if there is none.

    Raises FormatError if it is no .ring file or its header is damaged.
    """
    if not os.path.exists(path):
        return None
    with ByteFile(path) as source:
        raw = source.read(0, PAGE_BYTES)
        header = _ring_header(path, raw)
        source.look_again()  # rings that the header counts may have been made since the file was opened
        rings, damaged = _rings(source, None if header is None else header.used_bytes)
    if header is None and not rings:
        raise FormatError(f"{path} is not a stashtrace ring")
    counts = header or _RingHeader(0, 0, 0, 0, 0)
    # An empty ring still shows how many rows the .stash must have.
    known = [ring for ring in rings if ring.first_sequence or ring.row_count or ring.dropped]
    errors = (counts.grow_error, counts.write_error)
    return RingImage(counts.pid, counts.lost_rows, *errors, known, damaged, header is not None)


class _RingHeader(NamedTuple):
    pid: int
    used_bytes: int
    lost_rows: int
    grow_error: int
    write_error: int


def _ring_header(path: str, raw: bytes) -> _RingHeader | None:
    """Header of a .ring file; None if its page was lost: rings describe themselves."""
    if len(raw) == PAGE_BYTES and not raw.strip(b"\0"):
        return None
    if len(raw) < RING_FILE_HEADER.size or not raw.startswith(RING_FILE_MAGIC):
        raise FormatError(f"{path} is not a stashtrace ring")
    _, major, minor, *fields = RING_FILE_HEADER.unpack_from(raw)
    refuse_newer(path, major, minor)
    return _RingHeader(*fields)


def _rings(source: ByteFile, used_bytes: int | None) -> tuple[list[Ring], int]:
    """Rings up to ``used_bytes``, None if unknown, and the number of stretches in which there must have been others."""
    rings: list[Ring] = []
    damaged = 0
    offset = expected = PAGE_BYTES
    while offset < source.size and (used_bytes is None or offset < used_bytes):
        found = _ring_at(source, offset)
        if found is None:  # the length of a damaged ring is unknown: look for the next page that starts one
            offset += PAGE_BYTES
            continue
        ring, ring_bytes = found
        damaged += offset > expected and not _is_padding(source, expected, offset)
        damaged += ring is None
        if ring is not None:
            rings.append(ring)
        offset = expected = offset + ring_bytes
    if used_bytes is None:  # the last ring's rows may have no space in the file yet
        used_bytes = max(expected, source.size)
    if expected != used_bytes:
        damaged += expected > used_bytes or not _is_padding(source, expected, used_bytes)
    return rings, damaged


def _is_padding(source: ByteFile, begin: int, end: int) -> bool:
    """Whether these bytes lie between the file's header and the first ring on a machine with larger pages."""
    if begin != PAGE_BYTES or end not in _LARGE_PAGES:
        return False
    data = source.read(begin, end - begin)
    return len(data) == end - begin and not data.strip(b"\0")


def _ring_at(source: ByteFile, offset: int) -> tuple[Ring | None, int] | None:
    """The ring whose header lies here, None if its counters make no sense, and its length; None if there is none."""
    raw = source.read(offset, RING_HEADER.size)
    if len(raw) < RING_HEADER.size:
        return None
    (
        magic,
        record_id,
        row_bytes,
        ring_id,
        capacity,
        ring_bytes,
        tid,
        _state,
        _claimed,
        committed,
        dropped,
        own_offset,
        consumed,
    ) = RING_HEADER.unpack(raw)
    plausible = (
        magic == RING_MAGIC
        and row_bytes > 0
        and capacity > 0
        and capacity & (capacity - 1) == 0
        and ring_bytes % PAGE_BYTES == 0
        and ring_bytes >= PAGE_BYTES + capacity * row_bytes
        and offset + ring_bytes <= _MOST_BYTES
        and own_offset in (0, offset)  # 0: not known
    )
    if not plausible:
        return None
    count = committed - consumed
    if count < 0 or count > capacity:
        return None, ring_bytes
    source.look_again()  # the ring may have got more space since
    rows, gone = _copy(source, offset + PAGE_BYTES, capacity, row_bytes, consumed, count)
    return Ring(ring_id, record_id, row_bytes, tid, consumed, count, dropped, rows, gone), ring_bytes


def _copy(
    source: ByteFile, rows_offset: int, capacity: int, row_bytes: int, consumed: int, count: int
) -> tuple[bytes, Bools | None]:
    """Bytes of ``count`` rows from number ``consumed`` on, unwrapped, and which of them are gone."""
    begin = consumed & (capacity - 1)
    head = min(count, capacity - begin)
    first, first_gone = _piece(source, rows_offset + begin * row_bytes, head, row_bytes)
    second, second_gone = _piece(source, rows_offset, count - head, row_bytes)
    gone = np.concatenate((first_gone, second_gone))
    return (first.ljust(head * row_bytes, b"\0") + second if second else first), gone if gone.any() else None


def _piece(source: ByteFile, offset: int, count: int, row_bytes: int) -> tuple[bytes, Bools]:
    """Rows that lie side by side, and which of them are gone: cut off, all zeros, or with a part on a page of zeros.

    No row is all zeros, and the rows before a published one on its page were written before it. So a page of zeros on
    which one begins was lost. One on which a row only ends says nothing: its last fields may be zeros. The bytes are
    those of the rows that end inside the file: a header may promise far more.
    """
    published = count
    count = min(count, max(source.size - offset, 0) // row_bytes)
    if count == 0:
        return b"", np.ones(published, dtype=np.bool_)
    end = offset + count * row_bytes
    first_page = offset // PAGE_BYTES
    pages = -(-end // PAGE_BYTES) - first_page
    data = source.read(first_page * PAGE_BYTES, pages * PAGE_BYTES)
    held_bytes = first_page * PAGE_BYTES + len(data)
    data = data.ljust(pages * PAGE_BYTES, b"\0")
    begins = offset + np.arange(count, dtype=np.int64) * row_bytes
    begin_page = begins // PAGE_BYTES - first_page
    end_page = (begins + row_bytes - 1) // PAGE_BYTES - first_page
    lost_page = np.zeros(pages, dtype=np.bool_)
    lost_page[begin_page] = True
    lost_page &= ~np.frombuffer(data, dtype=np.uint8).reshape(pages, PAGE_BYTES).any(axis=1)
    lost_before = np.concatenate(([0], np.cumsum(lost_page)))
    start = offset - first_page * PAGE_BYTES
    rows = data[start : start + count * row_bytes]
    gone = lost_before[end_page + 1] > lost_before[begin_page]
    gone |= begins + row_bytes > held_bytes
    gone |= ~np.frombuffer(rows, dtype=np.uint8).reshape(count, row_bytes).any(axis=1)
    return rows, np.concatenate((gone, np.ones(published - count, dtype=np.bool_)))
