"""Distinct bytes against a set of pages; passes of a loader; which batch a call belongs to."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
from builders import MS, TraceBuilder
from hypothesis import given
from hypothesis import strategies as st

from stashtrace.analysis.io.ranges import PAGE_BYTES, DistinctBytes, batch_of, file_reads, loader_passes
from stashtrace.schema.kinds import IoOp

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
    numbers = [(0, 5), (0, 6), (1, 0), (1, 1), (1, 0), (2, 0)]  # the second loader begins anew without a new iterator
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
    assert reads.passes_count[code] == 2
