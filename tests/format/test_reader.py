"""Files written row by row, read back: segments, ring leftovers, projection, damage."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stash_files import RUN_ID, StashWriter, ms, sizes_check, write_run_json

import stashtrace
from stashtrace.errors import DataLossWarning, FormatError, UnsupportedVersionError
from stashtrace.format.reader import open_run
from stashtrace.format.stash_file import StashFile, pieces
from stashtrace.schema.kinds import Severity
from stashtrace.summary.summary_text import summary


def io_rows(stash: StashWriter, count: int, first: int = 0, path: str = "/data/a.bin") -> list[tuple[Any, ...]]:
    path_id = stash.intern(path)
    return [
        stash.row(
            "io_op",
            begin_ticks=ms(first + i),
            duration_ticks=1000 + i,
            result_bytes=4096,
            offset_bytes=(first + i) * 4096,
            path_id=path_id,
            op_code=3,
        )
        for i in range(count)
    ]


def begins(stash_file: StashFile) -> list[int]:
    records = stash_file.load(["io_op"]).records.get("io_op")
    return [] if records is None else [(t - ms(0)) // 10**6 for t in records.rows["begin_ticks"].tolist()]


def reasons(stash_file: StashFile) -> dict[str, int]:
    return {reason: count for _, reason, _, count, _ in stash_file.losses}


def test_rows_come_back_grouped_by_thread_with_their_texts(tmp_path: Path) -> None:
    assert sizes_check()
    stash = StashWriter(tmp_path)
    long = "/data/" + "x" * 200 + "/é.bin"
    stash.add("io_op", io_rows(stash, 3, path=long), tid=7)
    stash.add("io_op", io_rows(stash, 2, first=10), tid=5)
    stash.add("io_op", io_rows(stash, 2, first=3), tid=7, packed=True)
    stash.save()
    write_run_json(tmp_path)
    run = open_run(tmp_path, strict=True)
    raw = run.processes[0].load()
    assert raw.records["io_op"].tid.tolist() == [5, 5, 7, 7, 7, 7, 7]
    assert begins(run.processes[0]) == [10, 11, 0, 1, 2, 3, 4]
    assert set(raw.strings.values()) == {long, "/data/a.bin"}
    assert run.processes[0].row_counts()["io_op"] == 7
    assert run.run_id == RUN_ID
    assert not run.losses
    assert not raw.losses


def test_processes_come_in_the_order_in_which_they_started(tmp_path: Path) -> None:
    begin = StashWriter(tmp_path).metadata["start_realtime_ns"]
    for pid, after_s in ((32_760, 0), (9_999, 1), (10_000, 2), (7, 3)):  # the system began again with low pids
        StashWriter(tmp_path, pid=pid, metadata={"start_realtime_ns": begin + after_s * 10**9}).save()
    StashWriter(tmp_path, pid=8, metadata={"start_realtime_ns": "damaged"}).save()
    assert [p.metadata["pid"] for p in open_run(tmp_path).processes] == [8, 32_760, 9_999, 10_000, 7]


@pytest.mark.parametrize("already_drained", [0, 2, 5])
def test_ring_rows_continue_where_the_last_segment_ends(tmp_path: Path, already_drained: int) -> None:
    stash = StashWriter(tmp_path)
    stash.add("io_op", io_rows(stash, 13))
    stash.add_ring("io_op", io_rows(stash, 5, first=13 - already_drained), capacity=8, already_drained=already_drained)
    stash.save()
    [process] = open_run(tmp_path).processes
    assert begins(process) == list(range(13 + 5 - already_drained))
    assert process.row_counts()["io_op"] == 18 - already_drained
    assert not process.losses


def test_dropped_and_lost_rows_are_losses(tmp_path: Path) -> None:
    stash = StashWriter(tmp_path)
    stash.add_ring("io_op", io_rows(stash, 2), dropped=11)
    stash.lost_rows = 4
    stash.save()
    [process] = open_run(tmp_path).processes
    assert begins(process) == [0, 1]
    assert reasons(process) == {"lane_full_rows": 11, "lost_lane_rows": 4}


@pytest.mark.parametrize(
    ("error", "reason", "text"),
    [
        (errno.ENOSPC, "no_space_rows", "no space"),
        (errno.EDQUOT, "no_space_rows", "no space"),
        (errno.EIO, "not_written_rows", os.strerror(errno.EIO)),
    ],
)
def test_rows_that_a_full_disk_cost_are_not_laid_to_threads(tmp_path: Path, error: int, reason: str, text: str) -> None:
    stash = StashWriter(tmp_path)
    stash.add_ring("io_op", io_rows(stash, 2), dropped=11)
    stash.lost_rows, stash.grow_error, stash.write_error = 4, error, error
    stash.save()
    [process] = open_run(tmp_path).processes
    assert {loss[1]: loss[3] for loss in process.losses if loss[0] == "core"} == {reason: 4}
    assert sum(loss[3] for loss in process.losses) == 15
    assert set(reasons(process)) == {reason}
    assert all(text in loss[4] for loss in process.losses), process.losses


def test_a_ring_next_to_a_merged_file_is_stale(tmp_path: Path) -> None:
    stash = StashWriter(tmp_path, metadata={"losses": [["posix_io", "lane_full_rows", 2, 9, "why"]]})
    stash.add("io_op", io_rows(stash, 2))
    stash.add_ring("io_op", io_rows(stash, 2, first=2), dropped=11)
    stash.flags = 1
    stash.save()
    [process] = open_run(tmp_path).processes
    assert begins(process) == [0, 1]
    assert process.losses == [("posix_io", "lane_full_rows", 2, 9, "why")]


def test_a_gap_in_a_ring_is_counted(tmp_path: Path) -> None:
    stash = StashWriter(tmp_path)
    stash.add("io_op", io_rows(stash, 2))
    stash.add("io_op", io_rows(stash, 2), gap=7)
    stash.save()
    assert reasons(open_run(tmp_path).processes[0]) == {"missing_rows": 7}


def test_torn_tail_keeps_what_is_whole(tmp_path: Path) -> None:
    stash = StashWriter(tmp_path)
    stash.add("io_op", io_rows(stash, 4))
    stash.add("io_op", io_rows(stash, 4, first=4))
    path = stash.save()
    path.write_bytes(path.read_bytes()[:-40])
    [process] = open_run(tmp_path).processes
    assert begins(process) == [0, 1, 2, 3]
    assert reasons(process)["damaged_bytes"] == 4 * 32 + 48 - 40
    with pytest.raises(FormatError):
        open_run(tmp_path, strict=True)


def test_torn_tail_next_to_a_ring_is_no_loss(tmp_path: Path) -> None:
    """The writer was killed, or is still, between the two halves of a segment: its rows have not left the ring."""
    stash = StashWriter(tmp_path)
    stash.add("io_op", io_rows(stash, 4))
    stash.add("io_op", io_rows(stash, 4, first=4))
    stash.add_ring("io_op", io_rows(stash, 6, first=4), already_drained=4)
    path = stash.save()
    path.write_bytes(path.read_bytes()[:-40])
    [process] = open_run(tmp_path, strict=True).processes
    assert begins(process) == list(range(10))
    assert not process.losses


@pytest.mark.parametrize("left", [0, 2])
def test_rows_the_ring_gave_up_but_the_file_lacks_are_counted(tmp_path: Path, left: int) -> None:
    stash = StashWriter(tmp_path)
    stash.add("io_op", io_rows(stash, 4))
    stash.add("io_op", io_rows(stash, 4, first=4))
    stash.add_ring("io_op", io_rows(stash, left, first=8))
    path = stash.save()
    path.write_bytes(path.read_bytes()[:-40])
    [process] = open_run(tmp_path).processes
    assert begins(process) == [0, 1, 2, 3, 8, 9][: 4 + left]
    assert reasons(process) == {"missing_rows": 4}


def test_resync_at_the_next_segment_and_count_the_gap(tmp_path: Path) -> None:
    stash = StashWriter(tmp_path)
    stash.add("io_op", io_rows(stash, 4))
    stash.add("io_op", io_rows(stash, 4, first=4))
    stash.add("io_op", io_rows(stash, 4, first=8))
    path = stash.save()
    data = bytearray(path.read_bytes())
    data[len(data) - 2 * (48 + 4 * 32) + 10] ^= 0xFF  # in the header of the second
    path.write_bytes(bytes(data))
    [process] = open_run(tmp_path).processes
    assert begins(process) == [0, 1, 2, 3, 8, 9, 10, 11]
    assert reasons(process) == {"damaged_bytes": 48 + 4 * 32, "missing_rows": 4}


def test_damaged_payload_loses_its_rows_alone_and_is_counted_once(tmp_path: Path) -> None:
    stash = StashWriter(tmp_path)
    stash.add("io_op", io_rows(stash, 4))
    stash.add("io_op", io_rows(stash, 4, first=4))
    path = stash.save()
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(bytes(data))
    [process] = open_run(tmp_path).processes
    assert begins(process) == [0, 1, 2, 3]
    process.load()
    assert reasons(process) == {"damaged_rows": 4}


def test_older_and_newer_fields_are_matched_by_name(tmp_path: Path) -> None:
    stash = StashWriter(tmp_path)
    now = next(r for r in stash.schema_records if r["name"] == "io_op")
    fields = [
        {"name": n, "type": t, "offset": o}
        for n, t, o in (
            ("from_the_future", "u64", 0),
            ("begin_ticks", "u64", 8),
            ("op_code", "u16", 16),
            ("odd", "u256", 18),
        )
    ]
    stash.schema_records = [
        *(r for r in stash.schema_records if r is not now),
        {**now, "version": 9, "row_bytes": 24, "fields": fields},
    ]
    from stashtrace.format.container import pack_segment

    payload = struct.pack("<QQHHI", 1, ms(5), 3, 0, 0)
    stash.segments.append(
        pack_segment(payload, record_id=now["id"], codec=0, tid=1, ring_id=0, row_count=1, first_sequence=0)
    )
    stash.save()
    [row] = open_run(tmp_path, strict=True).processes[0].load().records["io_op"].rows
    assert (row["begin_ticks"], row["op_code"], row["duration_ticks"], row["offset_bytes"]) == (ms(5), 3, 0, 0)


def test_unknown_records_are_skipped_and_counted(tmp_path: Path) -> None:
    stash = StashWriter(tmp_path)
    stash.add("io_op", io_rows(stash, 3))
    for record in stash.schema_records:
        if record["name"] == "io_op":
            record["name"] = "quantum_io"
    stash.save()
    [process] = open_run(tmp_path, strict=True).processes
    assert "io_op" not in process.load().records
    assert reasons(process) == {"unknown_record_rows": 3}


def test_threads_are_found_without_a_search_of_the_whole_file(tmp_path: Path) -> None:
    """Pieces of a file with many small threads look at each segment a few times, whatever their number."""
    stash = StashWriter(tmp_path)
    for tid in range(1, 301):
        for begin in (0, 5):
            stash.add("io_op", [stash.row("io_op", begin_ticks=ms(begin + k)) for k in range(5)], tid=tid)
    stash.save()
    [process] = open_run(tmp_path).processes
    seen = 0

    class Watched(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            nonlocal seen
            for each in super().__iter__():
                seen += 1
                yield each

    process.segments = Watched(process.segments)
    found = list(pieces(process, ("io_op",), rows=20))
    assert [rows for piece in found for rows in np.unique(piece.records["io_op"].tid).tolist()] == list(range(1, 301))
    assert sum(len(piece.records["io_op"].rows) for piece in found) == 3000
    assert len(found) == 150
    assert seen <= 4 * 600


def test_impossible_counts_of_losses_are_bounded(tmp_path: Path) -> None:
    """A damaged row may hold any 64 bits; the file is read all the same, and its losses are added up."""
    stash = StashWriter(tmp_path)
    stash.add(
        "loss",
        [stash.row("loss", lost_count=count, severity_code=Severity.DATA_LOSS) for count in (2**64 - 1, 2**63 - 1)],
    )
    stash.add("io_op", [stash.row("io_op", begin_ticks=ms(1), path_id=0, result_bytes=1)])
    stash.sync(0, 10)
    stash.save()
    with pytest.warns(DataLossWarning, match="something is missing"):
        trace = stashtrace.load(tmp_path)
    assert 2**48 in trace.losses["lost_count"].tolist()
    assert "RECORDS LOST" in summary(trace)


def test_missing_part_of_a_text_shows(tmp_path: Path) -> None:
    stash = StashWriter(tmp_path)
    stash.intern("a" * 150)
    stash.add("string_part", [(9, 0, 150, b"b" * 56), (9, 2, 150, b"b" * 38)])
    stash.save()
    [process] = open_run(tmp_path).processes
    assert process.load().strings == {1: "a" * 150, 9: "b" * 56 + "…"}
    assert reasons(process) == {"incomplete_strings": 1}


def test_a_forked_child_uses_the_texts_of_its_ancestors(tmp_path: Path) -> None:
    grandparent = StashWriter(tmp_path, pid=10)
    for text in ("one", "two", "three"):
        grandparent.intern(text)
    grandparent.save()
    parent = StashWriter(tmp_path, pid=11, ppid=10, metadata={"parent_incarnation": 0})
    parent.add("string_part", [(3, 0, 3, b"III")])
    parent.save()
    StashWriter(tmp_path, pid=12, ppid=11, metadata={"parent_incarnation": 0}).save()
    StashWriter(tmp_path, pid=13, ppid=13, metadata={"parent_incarnation": 0}).save()
    texts = {p.metadata["pid"]: p.load().strings for p in open_run(tmp_path).processes}
    assert texts[12] == {1: "one", 2: "two", 3: "III"}
    assert texts[13] == {}


class TestBadInput:
    def test_nothing_there(self, tmp_path: Path) -> None:
        with pytest.raises(FormatError, match="does not exist"):
            open_run(tmp_path / "no")

    def test_directory_without_trace(self, tmp_path: Path) -> None:
        (tmp_path / "notes.txt").write_text("hello")
        with pytest.raises(FormatError, match="holds no trace") as caught:
            open_run(tmp_path)
        assert caught.value.hint is not None
        assert "stashtrace run" in caught.value.hint

    @pytest.mark.parametrize("content", [b"", b"hello world, I am no trace", b"STASHTR\n", b"STASHTR\n" + bytes(32)])
    def test_other_files(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "x.stash"
        path.write_bytes(content)
        with pytest.raises(FormatError):
            open_run(path)
        with pytest.raises(FormatError, match="no readable trace"):
            open_run(tmp_path)

    def test_newer_major(self, tmp_path: Path) -> None:
        path = StashWriter(tmp_path).save()
        data = bytearray(path.read_bytes())
        data[8] = 2
        path.write_bytes(bytes(data))
        for target in (path, tmp_path):
            with pytest.raises(UnsupportedVersionError, match=r"format 2\.0") as caught:
                open_run(target)
            assert caught.value.exit_code == 4

    def test_newer_minor_is_read(self, tmp_path: Path) -> None:
        stash = StashWriter(tmp_path)
        stash.add("io_op", io_rows(stash, 1))
        path = stash.save()
        data = bytearray(path.read_bytes())
        data[10] = 7
        path.write_bytes(bytes(data))
        assert begins(open_run(tmp_path).processes[0]) == [0]

    def test_one_bad_file_next_to_a_good_one_is_a_loss(self, tmp_path: Path) -> None:
        stash = StashWriter(tmp_path)
        stash.add("io_op", io_rows(stash, 1))
        stash.save()
        (tmp_path / "node01.7.0.stash").write_bytes(b"garbage")
        run = open_run(tmp_path)
        assert len(run.processes) == 1
        assert "unreadable_file" in [loss[1] for loss in run.losses]
        with pytest.raises(FormatError):
            open_run(tmp_path, strict=True)

    def test_ring_alone(self, tmp_path: Path) -> None:
        stash = StashWriter(tmp_path)
        stash.add_ring("io_op", io_rows(stash, 1))
        stash.save().unlink()
        with pytest.raises(FormatError, match="no readable trace"):
            open_run(tmp_path)

    def test_two_runs_in_one_directory(self, tmp_path: Path) -> None:
        StashWriter(tmp_path, pid=1, run_id="aaaa1111bbbb").save()
        StashWriter(tmp_path, pid=2, run_id="cccc2222dddd").save()
        with pytest.raises(FormatError, match="holds 2 runs") as caught:
            open_run(tmp_path)
        assert "--run" in str(caught.value.hint)
        assert [p.metadata["pid"] for p in open_run(tmp_path, run_id="cccc").processes] == [2]
        with pytest.raises(FormatError, match="no single run"):
            open_run(tmp_path, run_id="eeee")

    def test_parts_brought_together_on_purpose_are_one_run(self, tmp_path: Path) -> None:
        StashWriter(tmp_path, pid=1, run_id="aaaa1111bbbb").save()
        StashWriter(tmp_path, pid=2, run_id="cccc2222dddd", host="node02").save()
        write_run_json(tmp_path, run_id="aaaa1111bbbb", parts=[{"run_id": "cccc2222dddd"}, "odd"])
        assert len(open_run(tmp_path).processes) == 2
        assert len(open_run(tmp_path, run_id="aaaa").processes) == 2
        StashWriter(tmp_path, pid=3, run_id="eeee").save()
        with pytest.raises(FormatError, match="holds 2 runs"):
            open_run(tmp_path)

    def test_damaged_run_json(self, tmp_path: Path) -> None:
        StashWriter(tmp_path).save()
        (tmp_path / "run.json").write_text('{"format": 1, "run')
        run = open_run(tmp_path)
        assert "damaged_run_json" in [loss[1] for loss in run.losses]


def _outcome(path: Path) -> tuple[int, int] | None:
    """(rows, rows reported lost) of a file, None if it was refused."""
    try:
        [process] = open_run(path).processes
        raw = process.load()
    except FormatError:
        return None
    return sum(len(r.rows) for r in raw.records.values()), sum(loss[3] for loss in process.losses)


def test_fuzz_each_byte_of_a_file(tmp_path: Path) -> None:
    """Any flipped byte: the same rows, fewer rows and a loss, or a FormatError; never a crash or a hang."""
    stash = StashWriter(tmp_path)
    stash.schema_records = [r for r in stash.schema_records if r["name"] in ("io_op", "string_part")]
    stash.add("io_op", io_rows(stash, 20), packed=True)
    stash.add("io_op", io_rows(stash, 3, first=20))
    path = stash.save()
    good = path.read_bytes()
    want, _ = _outcome(path) or (0, 0)
    refused = fewer = 0
    for position in range(len(good)):
        data = bytearray(good)
        data[position] ^= 1 << (position % 8)
        path.write_bytes(bytes(data))
        outcome = _outcome(path)
        if outcome is None:
            refused += 1
        elif outcome[0] < want:
            assert outcome[1] > 0, f"byte {position}: {want - outcome[0]} rows lost in silence"
            fewer += 1
        else:
            assert outcome[0] == want
    assert refused > 100
    assert fewer > 100


def test_fuzz_each_byte_of_a_ring(tmp_path: Path) -> None:
    """A damaged ring never takes the .stash with it. A counter of a live mapping has no checksum."""
    stash = StashWriter(tmp_path)
    stash.add("io_op", io_rows(stash, 3))
    stash.add_ring("io_op", io_rows(stash, 5, first=3))
    path = stash.save()
    good = stash.ring_path.read_bytes()
    for position in [*range(32), *range(4096, 4096 + 192)]:
        data = bytearray(good)
        data[position] ^= 1 << (position % 8)
        stash.ring_path.write_bytes(bytes(data))
        outcome = _outcome(path)
        assert outcome[0] >= 3, position
