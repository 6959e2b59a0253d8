"""The merge's rewrite: the same rows in less room, whatever interrupts it."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from stash_files import BOOT_ID, StashWriter, ms

from stashtrace.format import compact
from stashtrace.format.compact import compact_file, compact_run
from stashtrace.format.container import FLAG_MERGED, pack_segment
from stashtrace.format.liveness import LiveRings
from stashtrace.format.reader import open_run
from stashtrace.format.stash_file import StashFile

NOBODY = LiveRings(BOOT_ID, {})


def write_run(directory: Path) -> StashWriter:
    """Two threads, texts, rows in the ring of which some are in a segment too, drops, a gap."""
    stash = StashWriter(directory)
    path_ids = [stash.intern(f"/data/{'x' * 60}/{i:05}.jpg") for i in range(50)]
    for round_ in range(3):
        for tid in (100, 101):
            stash.add(
                "io_op",
                [
                    stash.row(
                        "io_op",
                        begin_ticks=ms(round_ * 100 + i / 10),
                        duration_ticks=900 + i % 7,
                        result_bytes=4096,
                        offset_bytes=-1,
                        path_id=path_ids[i % 50],
                        op_code=(9, 1, 10)[i % 3],
                    )
                    for i in range(400)
                ],
                tid=tid,
            )
    stash.add("io_op", [stash.row("io_op", begin_ticks=ms(900))], tid=101, gap=5)
    stash.sync(0, 1000)
    stash.add_ring(
        "io_op",
        [stash.row("io_op", begin_ticks=ms(950 + i), op_code=2) for i in range(9)],
        tid=100,
        already_drained=4,
        dropped=3,
    )
    stash.add_ring("loss", [stash.row("loss", lost_count=2)], tid=100)
    stash.save()
    return stash


def content(directory: Path) -> dict[str, tuple[list[object], list[int]]]:
    [process] = open_run(directory).processes
    raw = process.load()
    return {
        "strings": (sorted(raw.strings.items()), []),
        "losses": (sorted(process.losses), []),
        **{name: (r.rows.tolist(), r.tid.tolist()) for name, r in raw.records.items()},
    }


def test_same_rows_in_less_room_and_again_nothing(tmp_path: Path) -> None:
    stash = write_run(tmp_path)
    before, size = content(tmp_path), stash.path.stat().st_size
    report = compact_run(open_run(tmp_path), live=NOBODY)
    assert (report.merged, report.problems) == ([stash.stem], [])
    assert not stash.ring_path.exists()
    assert os.listdir(tmp_path) == [stash.path.name]
    assert report.bytes_after == stash.path.stat().st_size < size / 2
    assert content(tmp_path) == before
    bytes_then = stash.path.read_bytes()
    assert compact_run(open_run(tmp_path), live=NOBODY).already == [stash.stem]
    assert stash.path.read_bytes() == bytes_then


def test_progress_reaches_the_end(tmp_path: Path) -> None:
    write_run(tmp_path)
    seen: list[tuple[int, int]] = []
    compact_run(open_run(tmp_path), progress=lambda done, total: seen.append((done, total)), live=NOBODY)
    assert seen[-1][0] == seen[-1][1] > 0


def test_small_segments_keep_rings_apart_and_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compact, "_SEGMENT_ROWS", 64)
    monkeypatch.setattr(compact, "_BUFFER_BYTES", 1000)
    write_run(tmp_path)
    before = content(tmp_path)
    assert compact_run(open_run(tmp_path), live=NOBODY).merged
    assert content(tmp_path) == before


def test_damage_is_remembered(tmp_path: Path) -> None:
    stash = write_run(tmp_path)
    data = bytearray(stash.path.read_bytes())
    data[-30] ^= 1
    stash.path.write_bytes(bytes(data[:-3]))
    stash.ring_path.unlink()
    before = content(tmp_path)
    assert any(loss[1] == "damaged_bytes" for loss in before["losses"][0])  # type: ignore[index]
    assert compact_run(open_run(tmp_path), live=NOBODY).merged
    assert content(tmp_path) == before


def test_many_losses_find_room_in_the_head(tmp_path: Path) -> None:
    stash = StashWriter(tmp_path)
    for tid in range(60):
        stash.add("io_op", [stash.row("io_op", begin_ticks=ms(tid))], tid=tid)
    path = stash.save()
    data = bytearray(path.read_bytes())
    row = 48 + 32
    for n in range(0, 60, 2):
        data[len(data) - n * row - 5] ^= 1
    path.write_bytes(bytes(data))
    before = content(tmp_path)
    assert compact_run(open_run(tmp_path), live=NOBODY).merged
    assert content(tmp_path) == before


def test_rows_of_unknown_records_are_carried_along(tmp_path: Path) -> None:
    stash = StashWriter(tmp_path)
    stash.sync(0)
    stash.segments.append(
        pack_segment(b"12345678" * 3, record_id=0x777, codec=9, tid=1, ring_id=3, row_count=3, first_sequence=0)
    )
    stash.save()
    assert compact_run(open_run(tmp_path), live=NOBODY).merged
    [process] = open_run(tmp_path).processes
    assert process.row_counts() == {"clock_sync": 1, "record_0x777": 3}


@pytest.mark.parametrize("named", [True, False], ids=["named in the file", "not named"])
def test_rows_of_unknown_records_are_counted_once(tmp_path: Path, named: bool) -> None:
    """They stay in the file, for a reader who knows them: each reader counts them, and the merge must not."""
    stash = StashWriter(tmp_path)
    stash.add("io_op", [stash.row("io_op", begin_ticks=ms(i)) for i in range(3)])
    stash.add_ring("loss", [stash.row("loss", lost_count=2)], dropped=4)
    entry = next(record for record in stash.schema_records if record["name"] == "io_op")
    if named:
        entry["name"] = "quantum_io"
    else:
        stash.schema_records.remove(entry)
    stash.save()
    [raw] = open_run(tmp_path).processes
    assert sorted(row[1::2] for row in raw.losses) == [("lane_full_rows", 4), ("unknown_record_rows", 3)]
    for _ in range(2):
        compact_file(open_run(tmp_path).processes[0], again=True)
        [merged] = open_run(tmp_path).processes
        assert merged.losses == raw.losses
        assert [row[1] for row in merged.metadata["losses"]] == ["lane_full_rows"], "true whoever reads it"


def test_what_an_earlier_merge_counted_twice_is_counted_once(tmp_path: Path) -> None:
    stash = StashWriter(tmp_path)
    stash.add("io_op", [stash.row("io_op", begin_ticks=ms(i)) for i in range(3)])
    next(record for record in stash.schema_records if record["name"] == "io_op")["name"] = "quantum_io"
    stash.save()
    [raw] = open_run(tmp_path).processes
    stash.flags, stash.metadata["losses"] = FLAG_MERGED, raw.losses
    stash.save()
    assert open_run(tmp_path).processes[0].losses == raw.losses


def test_crash_between_rename_and_unlink(tmp_path: Path) -> None:
    stash = write_run(tmp_path)
    before = content(tmp_path)
    ring = stash.ring_path.read_bytes()
    compact_run(open_run(tmp_path), live=NOBODY)
    stash.ring_path.write_bytes(ring)
    assert content(tmp_path) == before
    compact_run(open_run(tmp_path), live=NOBODY)
    assert not stash.ring_path.exists()


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_failure_on_the_way_leaves_the_raw_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    stash = write_run(tmp_path)
    before = (stash.path.read_bytes(), stash.ring_path.read_bytes())

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, failing, full)
    report = compact_run(open_run(tmp_path), live=NOBODY)
    assert report.problems == [(stash.stem, "No space left on device; the raw file is kept")]
    assert (stash.path.read_bytes(), stash.ring_path.read_bytes()) == before
    assert sorted(os.listdir(tmp_path)) == sorted([stash.path.name, stash.ring_path.name])


@pytest.mark.root
def test_full_disk(tmp_path: Path) -> None:
    source = tmp_path / "run"
    stash = write_run(source)
    stash.path.write_bytes(stash.path.read_bytes())
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=320k", "tmpfs", str(disk)], check=False, capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a small tmpfs: {mounted.stderr.strip()}")
    try:
        for file in (stash.path, stash.ring_path):
            shutil.copy(file, disk)
        os.posix_fallocate(
            os.open(disk / "ballast", os.O_CREAT | os.O_RDWR),
            0,
            os.statvfs(disk).f_bavail * os.statvfs(disk).f_bsize - 4096,
        )
        before = content(disk)
        report = compact_run(open_run(disk), live=NOBODY)
        assert "No space left" in report.problems[0][1]
        assert content(disk) == before
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_rows_that_do_not_survive_packing_are_kept_raw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stash = write_run(tmp_path)
    before = stash.path.read_bytes()
    monkeypatch.setattr(compact, "decode", lambda _c, _p, count, dtype: np.zeros(count, dtype=dtype))
    report = compact_run(open_run(tmp_path), live=NOBODY)
    assert "do not survive packing" in report.problems[0][1]
    assert stash.path.read_bytes() == before


def test_a_living_writer_is_left_alone(tmp_path: Path) -> None:
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    stash = StashWriter(tmp_path, boot_id=boot_id)
    stash.add_ring("clock_sync", [stash.row("clock_sync", ticks=ms(1))])
    stash.save()
    program = (
        "import mmap, sys; f = open(sys.argv[1], 'r+b'); m = mmap.mmap(f.fileno(), 0); "
        "print('mapped', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(stash.ring_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout.readline() == "mapped\n"
        assert compact_run(open_run(tmp_path)).alive == [stash.stem]
        assert stash.ring_path.exists()
        writer.communicate()
    assert compact_run(open_run(tmp_path)).merged == [stash.stem]


def test_fresh_files_of_another_host_may_be_alive(tmp_path: Path) -> None:
    stash = write_run(tmp_path)
    assert LiveRings("another boot", {}).holds(StashFile(str(stash.path)))
    for path in (stash.path, stash.ring_path):
        os.utime(path, (1, 1))
    assert not LiveRings("another boot", {}).holds(StashFile(str(stash.path)))


def test_a_file_that_another_merge_has_rewritten_is_left_alone(tmp_path: Path) -> None:
    """Launchers of one host may merge at the same time; the segments that the later one knows are of the old file."""
    write_run(tmp_path)
    before = content(tmp_path)
    late = open_run(tmp_path)
    assert compact_run(open_run(tmp_path), live=NOBODY).merged
    report = compact_run(late, live=NOBODY)
    assert (report.merged, report.problems, len(report.alive)) == ([], [], 1)
    assert content(tmp_path) == before
    assert [path.suffix for path in tmp_path.iterdir()] == [".stash"]


def test_a_merge_that_ends_between_opening_and_locking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was opened as the temporary file is the merged file by then, and must not be written to."""
    stash = write_run(tmp_path)
    before = content(tmp_path)
    lock = compact.fcntl.flock

    def others_first(file: object, flags: int) -> None:
        monkeypatch.setattr(compact.fcntl, "flock", lock)
        assert compact_run(open_run(tmp_path), live=NOBODY).merged
        lock(file, flags)  # type: ignore[arg-type]

    late = open_run(tmp_path)
    os.close(os.open(f"{stash.path}.tmp", os.O_CREAT))
    monkeypatch.setattr(compact.fcntl, "flock", others_first)
    assert compact_run(late, live=NOBODY).merged == []
    assert content(tmp_path) == before
