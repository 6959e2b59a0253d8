"""Distinct bytes of files that were read, and the number of passes of a rank over its data.

Bytes are counted in pages, as in a cache; the last page of a file ends at the last byte that was read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from stashtrace.analysis.intervals import Int64, TimeSet, int64, window_at
from stashtrace.analysis.io.calls import READING, moves, process_pieces
from stashtrace.analysis.io.data_files import data_files
from stashtrace.analysis.io.policy import POLICY
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import NOT_FILES, OPENS, BatchPhase
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

PAGE_BYTES = 4096


class DistinctBytes:
    """The union of ranges of files, in bounded memory.

    ``limit``: number of ranges that are kept separate.

    >>> found = DistinctBytes()
    >>> found.add(np.array([7, 7, 9]), np.array([0, 2048, 8192]), np.array([4096, 4096, 10]))
    >>> [column.tolist() for column in found.totals()]
    [[7, 9], [6144, 10]]
    """

    def __init__(self, limit: int = POLICY.kept_ranges_count) -> None:
        self._limit = limit
        self._page = PAGE_BYTES
        self._key, self._low, self._high, self._end = (np.empty(0, dtype=np.int64) for _ in range(4))
        self._waiting: list[tuple[Int64, Int64, Int64]] = []
        self._waiting_count = 0

    def add(self, key: Int64, offset: Int64, length: Int64) -> None:
        """Add ranges of files; ranges with unknown offsets must be left out."""
        begin = np.clip(offset, 0, POLICY.largest_file_bytes)
        self._waiting.append(
            (int64(key), int64(begin), int64(np.clip(begin + length, begin, POLICY.largest_file_bytes)))
        )
        self._waiting_count += len(key)
        if self._waiting_count > self._limit:
            self._merge()

    def totals(self) -> tuple[Int64, Int64]:
        """Return (keys of files, distinct bytes of each), by key."""
        self._merge()
        files = GroupBy(self._key)
        pages, last, end = files.sum(self._high - self._low), files.max(self._high), files.max(self._end)
        return files.values, (pages - last) * self._page + np.minimum(end, last * self._page)

    def renamed(self, keys: Callable[[Int64], Int64]) -> DistinctBytes:
        """Return the union with other keys of files; files that get the same key are united."""
        self._merge()
        union = DistinctBytes(self._limit)
        union._page = self._page
        union._unite(keys(self._key), self._low, self._high, self._end)
        return union

    def _merge(self) -> None:
        """Unite overlapping ranges; merge pages in pairs while there are too many ranges."""
        if self._waiting:
            key, begin, end = (np.concatenate(part) for part in zip(*self._waiting, strict=True))
            some = end > begin
            key, begin, end = key[some], begin[some], end[some]
            self._waiting, self._waiting_count = [], 0
            self._unite(
                np.append(self._key, key),
                np.append(self._low, begin // self._page),
                np.append(self._high, -(-end // self._page)),
                np.append(self._end, end),
            )
        while len(self._key) > self._limit and self._page < POLICY.largest_file_bytes:
            self._page *= 2
            self._unite(self._key, self._low // 2, -(-self._high // 2), self._end)

    def _unite(self, key: Int64, low: Int64, high: Int64, end: Int64) -> None:
        # Place all files on one line, with a gap after each.
        files = GroupBy(key)
        room = int(high.max(initial=0)) + 1
        line = TimeSet.of(files.number * room + low, files.number * room + high)
        of_range = line.begin // room
        self._key, self._end = files.values[of_range], files.max(end)[of_range]
        self._low, self._high = line.begin - of_range * room, line.end - of_range * room


@dataclass(frozen=True, slots=True)
class FileReads:
    """Reads of each file, by path code; reads with unknown offsets are left out."""

    #: Bytes of the reads.
    read_bytes: Int64
    #: Bytes of the file that were read, each counted once.
    distinct_bytes: Int64
    #: Bytes of the reads if each rank had read each of its bytes once in each of its passes over the data.
    needed_bytes: Int64


def file_reads(trace: Trace) -> FileReads:
    """Sum the reads of each file of the data set, by distinct bytes and passes.

    A pass of a rank over its data is an iteration of a DataLoader. If its processes open a file more often, with the
    openings within one batch counted once, each opening counts as a pass over that file.
    """
    count = len(trace.strings)
    wanted = data_files(trace)
    owner = trace.processes.lookup("process_id", "rank")
    passes = loader_passes(trace)
    fetches = trace.batches.take(trace.batches["phase_code"] == BatchPhase.FETCH).sort_by("track_id", "begin_ns")
    readers: dict[int, int] = {}
    by_reader = DistinctBytes()
    keys, sums, opened = list[Int64](), list[Int64](), list[Int64]()
    for process, pieces in process_pieces(trace):
        rank = owner.get(process, -1)
        reader = readers.setdefault(rank if rank >= 0 else -2 - process, len(readers))
        for piece in pieces():
            rows = np.flatnonzero(wanted[piece["path_code"]] & ((piece["io_flags"] & NOT_FILES) == 0))
            op, result = piece["op_code"][rows], piece["result_bytes"][rows]
            path = int64(piece["path_code"][rows])
            read = (moves(piece)[rows] == READING) & (result > 0) & (piece["offset_bytes"][rows] >= 0)
            read &= piece["offset_bytes"][rows] < POLICY.largest_file_bytes
            key, offset, length = reader * count + path[read], piece["offset_bytes"][rows[read]], result[read]
            by_reader.add(key, offset, length)
            files = GroupBy(key)
            keys.append(files.values)
            sums.append(files.sum(length))
            new = rows[np.isin(op, OPENS) & (result >= 0)]
            batch = batch_of(fetches, piece["track_id"][new], piece["begin_ns"][new])
            opened.append(reader * count + _once_a_batch(int64(piece["path_code"][new]), batch))
    by_key = GroupBy(np.concatenate([_NONE, *keys]))
    key, read_bytes = by_key.values, by_key.sum(np.concatenate([_NONE, *sums]))
    _, distinct = by_reader.totals()  # the same keys: empty reads are in neither
    opens = GroupBy.numbered(by_key.find(np.concatenate([_NONE, *opened])), len(by_key)).sizes
    of_reader = np.array([passes.get(rank, 1) for rank in readers], dtype=np.int64)
    times = np.maximum(of_reader[key // count], opens) if len(key) else _NONE
    all_distinct = np.zeros(count, dtype=np.int64)
    paths, total = by_reader.renamed(lambda keys: keys % count).totals()
    all_distinct[paths] = total
    needed = np.minimum(read_bytes.astype(np.float64), distinct.astype(np.float64) * times).astype(np.int64)
    by_path = GroupBy.numbered(key % count, count)
    return FileReads(by_path.sum(read_bytes), all_distinct, by_path.sum(needed))


_NONE: Int64 = np.empty(0, dtype=np.int64)


def loader_passes(trace: Trace) -> dict[int, int]:
    """Return the number of iterations of DataLoaders that were at least partly recorded, by rank; at least 1."""
    fetches = trace.batches.take(trace.batches["phase_code"] == BatchPhase.FETCH)
    passes: dict[int, int] = {}
    for rank in np.unique(fetches["rank"]).tolist():
        part = fetches.take(fetches["rank"] == rank).sort_by("begin_ns")
        first = GroupBy(part["loader_id"]).first
        # An iteration that was under way when the recording began does not begin with batch 0.
        passes[rank] = max(int((part["batch_index"] == 0).sum() + (part["batch_index"][first] > 0).sum()), 1)
    return passes


def batch_of(made: Table, track: Int64, begin: Int64) -> Int64:
    """Return for each call the row of the batch that its thread was making when the call began; -1 if none.

    ``made``: ``batches`` by ``track_id``, then ``begin_ns``.
    """
    batch = np.full(len(track), -1, dtype=np.int64)
    for thread in np.intersect1d(made["track_id"], track).tolist():  # threads that make batches, never many
        calls = np.flatnonzero(track == thread)
        low, high = np.searchsorted(made["track_id"], [thread, thread + 1])
        at = window_at(begin[calls], made["begin_ns"][low:high], made["end_ns"][low:high])
        batch[calls] = np.where(at >= 0, low + at, -1)
    return batch


def _once_a_batch(path: Int64, batch: Int64) -> Int64:
    """Return the paths that were opened; several openings within the making of one batch count once."""
    if not len(path):
        return path
    within = batch >= 0
    return np.concatenate([path[~within], GroupBy(path[within], batch[within]).keys[0]])
