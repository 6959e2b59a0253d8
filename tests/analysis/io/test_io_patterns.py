"""io, io_patterns, io_sizes, io_bandwidth: Darshan's counters by hand, against its logs, in pieces; and ranges."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import pytest
from builders import MS, TraceBuilder
from corpus import corpus
from hypothesis import given, settings
from hypothesis import strategies as st

import stashtrace
from stashtrace.analysis.io.file_counters import overlap_free
from stashtrace.analysis.io.files import io, io_directories, io_patterns, io_sizes
from stashtrace.analysis.io.io_bandwidth import io_bandwidth
from stashtrace.analysis.io.ranges import PAGE_BYTES, DistinctBytes, batch_of, file_reads, loader_passes
from stashtrace.errors import UsageError
from stashtrace.schema.kinds import IoFlag, IoOp
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace


def calls(*rows: tuple[int, int], op: IoOp = IoOp.PREAD, path: str = "/d/a") -> Trace:
    """A trace of calls of 1 ms at (offset, bytes)."""
    build = TraceBuilder()
    rank = build.rank(0)
    for number, (offset, size) in enumerate(rows):
        rank.io(number * MS, (number + 1) * MS, op=op, path=path, offset_bytes=offset, result_bytes=size)
    return build.trace()


class Pieces:
    """Plays calls that were left on disk: pieces of a few rows."""

    def __init__(self, trace: Trace, rows: int) -> None:
        self.table, self.size = trace.io, rows
        self.process_of = dict(zip(trace.tracks["track_id"].tolist(), trace.tracks["process_id"].tolist(), strict=True))
        self.rows_count, self.begin_ns, self.end_ns, self.notable = len(self.table), 0, 0, self.table
        self.counts = np.bincount(self.table["track_id"], minlength=len(self.process_of))

    def whole(self) -> Table:
        raise AssertionError("all calls were loaded at once")

    def pieces(self, process_ids: Collection[int] | None = None) -> Iterator[Table]:
        owners = np.array([self.process_of[t] for t in self.table["track_id"].tolist()])
        for process in sorted(set(owners.tolist()) if process_ids is None else process_ids):
            own = self.table.take(owners == process)
            for begin in range(0, len(own), self.size):
                yield own.take(slice(begin, begin + self.size))


def streamed(trace: Trace, rows: int) -> Trace:
    tables = {name: trace.table(name) for name in ("processes", "tracks", "io_totals")}
    return Trace(trace.strings, tables, io_outline=Pieces(trace, rows))


def test_sequential_and_consecutive_are_darshans() -> None:
    # After the first: right behind, with a gap, back, again behind the last byte.
    row = next(io_patterns(calls((0, 10), (10, 10), (40, 10), (0, 5), (5, 5))).rows())
    assert row["located_reads_count"] == 5
    assert row["sequential_reads_ratio"] == pytest.approx(3 / 5)
    assert row["consecutive_reads_ratio"] == pytest.approx(2 / 5)
    assert row["extent_bytes"] == 50
    assert (row["access1_bytes"], row["access1_count"], row["access2_bytes"], row["access2_count"]) == (10, 3, 5, 2)
    assert (row["access3_bytes"], row["access3_count"]) == (-1, 0)
    assert row["read_ns"] == 5 * MS
    assert row["moved_bytes_per_s"] == pytest.approx(40 / 5e-3)


def test_an_open_begins_again() -> None:
    build = TraceBuilder()
    rank = build.rank(0)
    for number, (op, offset) in enumerate([(IoOp.READ, 100), (IoOp.OPEN, -1), (IoOp.READ, 50), (IoOp.READ, 40)]):
        rank.io(number * MS, (number + 1) * MS, op=op, offset_bytes=offset, result_bytes=0 if op == IoOp.OPEN else 10)
    row = next(io_patterns(build.trace()).rows())
    assert row["sequential_reads_ratio"] == pytest.approx(2 / 3)  # 50 lies before 110, but after 0
    assert row["metadata_ns"] == MS


def test_empty_reads_and_sizes() -> None:
    trace = calls((0, 100), (100, 101), (201, 1024), (1225, 1025), (2250, 1 << 30), (5, (1 << 30) + 1), (9, 0))
    assert io_patterns(trace)["empty_reads_count"].tolist() == [1]
    found = {(r["op"], r["size"]): r["calls_count"] for r in io_sizes(trace).rows()}
    assert found == {
        ("read", "0_100"): 2,
        ("read", "100_1K"): 2,
        ("read", "1K_10K"): 1,
        ("read", "100M_1G"): 1,
        ("read", "1G_PLUS"): 1,
    }


def test_writes_and_flushes() -> None:
    trace = calls((0, 10), (10, 10), op=IoOp.PWRITE)
    row = next(io_patterns(trace).rows())
    assert (row["located_writes_count"], row["consecutive_writes_ratio"]) == (2, 0.5)
    assert row["write_ns"] == 2 * MS


def test_threads_of_a_process_are_one_reader_and_overlap_once() -> None:
    build = TraceBuilder()
    first = build.rank(0)
    second = first.thread("reader")
    first.io(0, 4 * MS, op=IoOp.PREAD, offset_bytes=0, result_bytes=10)
    second.io(2 * MS, 6 * MS, op=IoOp.PREAD, offset_bytes=10, result_bytes=10)
    first.io(7 * MS, 8 * MS, op=IoOp.PREAD, offset_bytes=20, result_bytes=10)
    trace = build.trace()
    row = next(io_patterns(trace).rows())
    assert row["consecutive_reads_ratio"] == pytest.approx(2 / 3)
    assert row["read_ns"] == 7 * MS
    assert io(trace)["call_ns"].tolist() == [9 * MS]
    assert io_bandwidth(trace)["slowest_process_ns"].tolist() == [7 * MS]


def test_hundreds_of_threads_are_one_reader() -> None:
    build = TraceBuilder()
    rank = build.rank(0)
    for number in range(256):
        rank.thread(f"reader {number}").io(
            number * MS, (number + 1) * MS, op=IoOp.PREAD, offset_bytes=number * 10, result_bytes=10
        )
    assert io_patterns(build.trace())["consecutive_reads_ratio"].tolist() == [255 / 256]


def test_sockets_are_no_files() -> None:
    build = TraceBuilder()
    build.rank(0).io(0, MS, path="tcp:1", flags=IoFlag.SOCKET).io(MS, 2 * MS, path="/d/a", offset_bytes=0)
    assert io_bandwidth(build.trace())["files_count"].tolist() == [1]
    assert set(io(build.trace())["path"].tolist()) == {"tcp:1", "/d/a"}


def test_rows_per_directory_and_run() -> None:
    build = TraceBuilder()
    rank = build.rank(0)
    for number, path in enumerate(["/d/a", "/d/b", "/e/c", "/top"]):
        rank.io(number * MS, (number + 1) * MS, path=path, offset_bytes=0)
    trace = build.trace()
    assert sorted(io_patterns(trace, per="directory")["path"].tolist()) == ["/", "/d", "/e"]
    assert io_patterns(trace, per="run")["located_reads_count"].tolist() == [4]
    assert dict(zip(*(io_directories(trace)[c].tolist() for c in ("path", "read_bytes")), strict=True))["/d"] == 8192
    with pytest.raises(UsageError):
        io_patterns(trace, per="rank")  # type: ignore[arg-type]


READ = st.tuples(
    st.integers(0, 1),
    st.integers(0, 1),
    st.integers(0, 2),
    st.sampled_from([0, 10, 20, 30]),
    st.sampled_from([0, 10, 20]),
    st.sampled_from([IoOp.PREAD, IoOp.OPEN, IoOp.PWRITE]),
)


def drawn(rows: list[Any]) -> Trace:
    build = TraceBuilder()
    makers = [build.rank(0), build.rank(1)]
    makers += [maker.thread("more") for maker in makers]
    for number, (rank, thread, path, offset, size, op) in enumerate(rows):
        makers[rank + 2 * thread].io(
            number * MS, number * MS + 3 * MS, op=op, path=f"/d/{path}", offset_bytes=offset, result_bytes=size
        )
    return build.trace()


@settings(deadline=None, max_examples=60)
@given(rows=st.lists(READ, min_size=1, max_size=40), size=st.integers(1, 7))
def test_pieces_make_no_difference(rows: list[Any], size: int) -> None:
    trace = drawn(rows)
    for analysis in (io, io_directories, io_patterns, io_sizes, io_bandwidth):
        whole, pieces = analysis(trace), analysis(streamed(trace, size))
        assert list(whole.rows()) == list(pieces.rows()), analysis.__name__


@settings(deadline=None, max_examples=60)
@given(rows=st.lists(READ, min_size=1, max_size=40))
def test_order_is_that_of_a_plain_loop(rows: list[Any]) -> None:
    last: dict[tuple[int, int], int] = {}
    expected: Counter[str] = Counter()
    for rank, _, path, offset, size, op in rows:
        if op == IoOp.OPEN:
            last[rank, path] = 0
        elif op == IoOp.PREAD:
            before = last.get((rank, path), 0)
            expected["located"] += 1
            expected["sequential"] += offset > before
            expected["consecutive"] += offset == before + 1
            last[rank, path] = offset + size - 1
    row = next(io_patterns(drawn(rows), per="run").rows())
    assert row["located_reads_count"] == expected["located"]
    if expected["located"]:
        assert row["sequential_reads_ratio"] * expected["located"] == pytest.approx(expected["sequential"])
        assert row["consecutive_reads_ratio"] * expected["located"] == pytest.approx(expected["consecutive"])


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 9)), max_size=30))
def test_overlap_counts_once(rows: list[tuple[int, int, int]]) -> None:
    rows = sorted(rows)
    path, begin, length = (np.array([row[i] for row in rows], dtype=np.int64) for i in range(3))
    found = overlap_free(path, begin, begin + length)
    covered = {(p, t) for p, b, n in rows for t in range(b, b + n)}
    assert found.sum() == len(covered)


def test_bandwidth_by_slowest_process() -> None:
    build = TraceBuilder()
    build.rank(0).io(0, 2 * MS, path="/own0", result_bytes=100).io(2 * MS, 3 * MS, path="/both", result_bytes=50)
    build.rank(1).io(0, 5 * MS, path="/own1", result_bytes=100).io(5 * MS, 9 * MS, path="/both", result_bytes=50)
    row = next(io_bandwidth(build.trace()).rows())
    assert (row["processes_count"], row["files_count"], row["shared_count"]) == (2, 3, 1)
    assert (row["slowest_process_ns"], row["shared_ns"], row["wall_ns"]) == (5 * MS, 4 * MS, 9 * MS)
    assert row["darshan_bytes_per_s"] == pytest.approx(300 / 9e-3)


#: agg_perf_by_slowest in MiB/s, as PyDarshan 3.5.0's accumulate_records gives it.
DARSHAN_MIB_PER_S = {
    ("dxt.darshan", "posix"): 0.0030212488,
    ("dxt.darshan", "stdio"): 24.1286174,
    ("example.darshan", "posix"): 24535.281934,
    ("noposix.darshan", "stdio"): 283.82987,
    ("sample-dxt-simple.darshan", "posix"): 0.19848428,
    ("sample-goodost.darshan", "posix"): 13078.74856,
    ("sample-goodost.darshan", "stdio"): 0.42338789,
    ("unet3d_a100.darshan", "posix"): 26.26143897,
    ("unet3d_a100.darshan", "stdio"): 99.1549297,
}
#: Sums of Darshan's counters (SEQ_READS, CONSEC_READS, SEQ_WRITES, CONSEC_WRITES) and of its bins of reads from 0_100.
ORDERS = {
    "dxt.darshan": ((4696, 3166, 1363, 1356), (2289, 1193, 2470, 173, 1)),
    "unet3d_a100.darshan": ((976, 976, 0, 0), (976, 80, 504, 392)),
}


def loaded(name: str) -> Trace:
    pytest.importorskip("darshan")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return stashtrace.load(str(corpus("darshan") / name))


@pytest.mark.parametrize("name", sorted({name for name, _ in DARSHAN_MIB_PER_S}))
def test_bandwidth_is_darshans(name: str) -> None:
    rows = {row["layer"]: row for row in io_bandwidth(loaded(name)).rows()}
    for (log, layer), expected in DARSHAN_MIB_PER_S.items():
        if log == name:
            # Darshan's clock ticks in floats; a time of 34 us is known to 2e-5 of it.
            assert rows[layer]["darshan_bytes_per_s"] / 2**20 == pytest.approx(expected, rel=3e-5)


@pytest.mark.parametrize("name", sorted(ORDERS))
def test_orders_and_bins_are_darshans(name: str) -> None:
    trace = loaded(name)
    row = next(io_patterns(trace, per="run").rows())
    found = [
        round(row[f"{order}_{word}_ratio"] * row[f"located_{word}_count"])
        for word in ("reads", "writes")
        for order in ("sequential", "consecutive")
    ]
    expected, bins = ORDERS[name]
    # DXT records no opens, after which Darshan begins again: four reads and a write of that log lie behind one.
    apart = [abs(a - b) for a, b in zip(found, expected, strict=True)]
    assert apart == ([4, 0, 0, 1] if name == "dxt.darshan" else [0, 0, 0, 0])
    sizes = io_sizes(trace, per="run")
    assert sizes["calls_count"][sizes["op"] == "read"].tolist() == list(bins)


READS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60_000), st.integers(1, 9_000)), min_size=1, max_size=60)


def pages_of(reads: list[tuple[int, int, int]]) -> dict[int, int]:
    """Bytes of each file by a set of its pages; the last page ends with the last byte."""
    found = {}
    for file in {file for file, _, _ in reads}:
        own = [(offset, length) for key, offset, length in reads if key == file]
        pages = {
            page for offset, length in own for page in range(offset // PAGE_BYTES, -(-(offset + length) // PAGE_BYTES))
        }
        end = max(offset + length for offset, length in own)
        found[file] = len(pages) * PAGE_BYTES - ((max(pages) + 1) * PAGE_BYTES - end)
    return found


@given(reads=READS, parts=st.integers(1, 5), limit=st.sampled_from([1, 7, 1 << 21]))
def test_distinct_bytes_are_those_of_a_set_of_pages(reads: list[tuple[int, int, int]], parts: int, limit: int) -> None:
    union = DistinctBytes(limit)
    for part in np.array_split(np.array(reads, dtype=np.int64), parts):
        union.add(part[:, 0], part[:, 1], part[:, 2])
    keys, totals = union.totals()
    truth = pages_of(reads)
    assert keys.tolist() == sorted(truth)
    found = dict(zip(keys.tolist(), totals.tolist(), strict=True))
    if limit > len(reads):
        assert found == truth
    for file, size in found.items():  # coarser pages only ever count more, and not beyond the last byte
        assert truth[file] <= size <= max(offset + length for key, offset, length in reads if key == file)


def test_damaged_offsets_do_no_harm() -> None:
    union = DistinctBytes()
    union.add(np.array([1, 1]), np.array([2**62, 0]), np.array([2**61, 10]))
    keys, totals = union.totals()
    assert (keys.tolist(), totals.tolist()) == ([1], [10])
    build = TraceBuilder()
    build.rank(0).io(0, MS, op=IoOp.PREAD, path="/d/a", offset_bytes=2**62, result_bytes=4096)
    assert file_reads(build.trace()).read_bytes.sum() == 0


def test_passes_count_iterations_also_those_under_way() -> None:
    build = TraceBuilder()
    worker = build.rank(0).worker(0)
    numbers = [(0, 5), (0, 6), (1, 0), (1, 1), (1, 0), (2, 0)]  # the second loader begins again without a new iterator
    for place, (loader, index) in enumerate(numbers):
        worker.fetch(index, place * MS, (place + 1) * MS, loader=loader)
    build.rank(1).worker(0).fetch(3, 0, MS)
    assert loader_passes(build.trace()) == {0: 4, 1: 1}


def test_calls_belong_to_the_batch_that_the_same_thread_makes() -> None:
    build = TraceBuilder()
    first, second = build.rank(0).worker(0), build.rank(0).worker(1)
    first.fetch(0, 10, 20)
    first.fetch(2, 30, 40)
    second.fetch(1, 15, 35)
    made = build.trace().batches.sort_by("track_id", "begin_ns")
    track = np.array([first.track_id] * 4 + [second.track_id, 99])
    begin = np.array([9, 10, 20, 39, 34, 34])
    found = batch_of(made, track, begin)
    assert [int(made["batch_index"][row]) if row >= 0 else -1 for row in found] == [-1, 0, -1, 2, 1, -1]


def test_what_each_rank_needs_is_added() -> None:
    build = TraceBuilder()
    for number in (0, 1):
        worker = build.rank(number).worker(0)
        for epoch in range(2):
            at = epoch * 10 * MS
            worker.fetch(0, at, at + 4 * MS, loader=epoch)
            for time in range(3):
                worker.io(at + time * MS, at + (time + 1) * MS, path="/d/a", offset_bytes=0, result_bytes=8192)
    trace = build.trace()
    code = trace.strings.find("/d/a")
    reads = file_reads(trace)
    assert reads.read_bytes[code] == 2 * 2 * 3 * 8192
    assert reads.distinct_bytes[code] == 8192
    assert reads.needed_bytes[code] == 2 * 2 * 8192
