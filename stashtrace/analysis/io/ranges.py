"""Which bytes of files were read, each counted once, and how often a rank went through its data.

Bytes are counted in pages, as a cache holds them; the last page of a file ends at the last byte that was read.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from stashtrace.analysis.intervals import Int64, TimeSet, int64
from stashtrace.analysis.io.calls import NOT_FILES, OPENS, READING, moves, process_pieces
from stashtrace.analysis.io.data_files import data_files
from stashtrace.schema.kinds import BatchPhase
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

PAGE_BYTES = 4096
#: Ranges that are kept; beyond, pages are taken together two by two, which counts more distinct bytes, never fewer.
_LIMIT = 1 << 20
#: No file is larger; a damaged offset may be any number.
_LARGEST_BYTES = 1 << 50
#: A table of so many keys costs less than sorting.
_SMALL_KEY = 1 << 16


class DistinctBytes:
    """The union of ranges of files, in bounded memory.

    Parameters
    ----------
    limit : int
        Ranges that are kept apart.

    Examples
    --------
    >>> found = DistinctBytes()
    >>> found.add(np.array([7, 7, 9]), np.array([0, 2048, 8192]), np.array([4096, 4096, 10]))
    >>> [column.tolist() for column in found.totals()]
    [[7, 9], [6144, 10]]
    """

    def __init__(self, limit: int = _LIMIT) -> None:
        self._limit = limit
        self._page = PAGE_BYTES
        self._key, self._low, self._high, self._end = (np.empty(0, dtype=np.int64) for _ in range(4))
        self._waiting: list[tuple[Int64, Int64, Int64]] = []
        self._waiting_count = 0

    def add(self, key: Int64, offset: Int64, length: Int64) -> None:
        """Add ranges of files; offsets that are not known must have been left out."""
        begin = np.clip(offset, 0, _LARGEST_BYTES)
        self._waiting.append((int64(key), int64(begin), int64(np.clip(begin + length, begin, _LARGEST_BYTES))))
        self._waiting_count += len(key)
        if self._waiting_count > self._limit:
            self._merge()

    def totals(self) -> tuple[Int64, Int64]:
        """(keys of files, distinct bytes of each), by key."""
        self._merge()
        keys, place = distinct_keys(self._key)
        pages = np.zeros(len(keys), dtype=np.int64)
        np.add.at(pages, place, self._high - self._low)
        last, end = np.zeros(len(keys), dtype=np.int64), np.zeros(len(keys), dtype=np.int64)
        np.maximum.at(last, place, self._high)
        np.maximum.at(end, place, self._end)
        return keys, (pages - last) * self._page + np.minimum(end, last * self._page)

    def renamed(self, keys: Callable[[Int64], Int64]) -> DistinctBytes:
        """The union in which files have other keys; of those that get the same one."""
        self._merge()
        found = DistinctBytes(self._limit)
        found._page = self._page
        found._unite(keys(self._key), self._low, self._high, self._end)
        return found

    def _merge(self) -> None:
        """Unite what overlaps; take pages together while there are too many ranges."""
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
        while len(self._key) > self._limit and self._page < _LARGEST_BYTES:
            self._page *= 2
            self._unite(self._key, self._low // 2, -(-self._high // 2), self._end)

    def _unite(self, key: Int64, low: Int64, high: Int64, end: Int64) -> None:
        # All files on one line, with a gap behind each.
        keys, place = distinct_keys(key)
        room = int(high.max(initial=0)) + 1
        line = TimeSet.of(place * room + low, place * room + high)
        of_range = line.begin // room
        last = np.zeros(len(keys), dtype=np.int64)
        np.maximum.at(last, place, end)
        self._key, self._end = keys[of_range], last[of_range]
        self._low, self._high = line.begin - of_range * room, line.end - of_range * room


@dataclass(frozen=True, slots=True)
class FileReads:
    """What was read of each file, by path code; reads whose offset is not known are left out.

    Attributes
    ----------
    read_bytes : int64 array
        Bytes of the reads.
    distinct_bytes : int64 array
        Bytes of which they are, each counted once.
    needed_bytes : int64 array
        What they would have been, had each rank read each of its bytes once in each of its passes over the data.
    passes_count : int64 array
        The most passes of a rank.
    """

    read_bytes: Int64
    distinct_bytes: Int64
    needed_bytes: Int64
    passes_count: Int64


def file_reads(trace: Trace) -> FileReads:
    """Sum the reads of each file of the data set, by distinct bytes and passes.

    A pass of a rank over its data is an iteration of a DataLoader. A file that its processes open more often than that,
    openings within one batch counted once, may have been read as often: so many passes are granted.
    """
    count = len(trace.strings)
    wanted = data_files(trace)
    owner = dict(zip(trace.processes["process_id"].tolist(), trace.processes["rank"].tolist(), strict=True))
    passes = loader_passes(trace)
    fetches = _fetches(trace)
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
            read &= piece["offset_bytes"][rows] < _LARGEST_BYTES
            key, offset, length = reader * count + path[read], piece["offset_bytes"][rows[read]], result[read]
            by_reader.add(key, offset, length)
            unique, place = distinct_keys(key)
            keys.append(unique)
            sums.append(np.rint(np.bincount(place, length, len(unique))).astype(np.int64))
            new = rows[np.isin(op, OPENS) & (result >= 0)]
            batch = batch_of(fetches, piece["track_id"][new], piece["begin_ns"][new])
            opened.append(reader * count + _once_a_batch(int64(piece["path_code"][new]), batch))
    key, place = np.unique(np.concatenate(keys or [_NONE]), return_inverse=True)
    read_bytes = np.zeros(len(key), dtype=np.int64)
    np.add.at(read_bytes, place, np.concatenate(sums or [_NONE]))
    _, distinct = by_reader.totals()  # the same keys: reads of no byte are in neither
    opens_key, opens = np.unique(np.concatenate(opened or [_NONE]), return_counts=True)
    at = np.minimum(np.searchsorted(opens_key, key), max(len(opens_key) - 1, 0))
    own_opens = np.where(opens_key[at] == key, opens[at], 0) if len(opens_key) else np.zeros(len(key), dtype=np.int64)
    of_reader = np.array([passes.get(rank, 1) for rank in readers], dtype=np.int64)
    times = np.maximum(of_reader[key // count], own_opens) if len(key) else _NONE

    def by_path(values: Int64) -> Int64:
        found = np.zeros(count, dtype=np.int64)
        np.add.at(found, key % count, values)
        return found

    most = np.zeros(count, dtype=np.int64)
    np.maximum.at(most, key % count, times)
    all_distinct = np.zeros(count, dtype=np.int64)
    paths, total = by_reader.renamed(lambda keys: keys % count).totals()
    all_distinct[paths] = total
    needed = np.minimum(read_bytes.astype(np.float64), distinct.astype(np.float64) * times).astype(np.int64)
    return FileReads(by_path(read_bytes), all_distinct, by_path(needed), most)


_NONE: Int64 = np.empty(0, dtype=np.int64)


def distinct_keys(key: Int64) -> tuple[Int64, Int64]:
    """Ascending distinct keys, none negative, and the place of each key among them; without sorting if they are small.

    Examples
    --------
    >>> [part.tolist() for part in distinct_keys(np.array([7, 2, 7]))]
    [[2, 7], [1, 0, 1]]
    """
    largest = int(key.max(initial=0))
    if largest > _SMALL_KEY + 4 * len(key):
        found, inverse = np.unique(key, return_inverse=True)
        return found, int64(inverse)
    seen = np.zeros(largest + 1, dtype=bool)
    seen[key] = True
    return np.flatnonzero(seen), (np.cumsum(seen) - 1)[key]


def loader_passes(trace: Trace) -> dict[int, int]:
    """Iterations of DataLoaders of each rank that were recorded, in part or whole; at least 1."""
    fetches = trace.batches.take(trace.batches["phase_code"] == BatchPhase.FETCH)
    found: dict[int, int] = {}
    for rank in np.unique(fetches["rank"]).tolist():
        own = fetches.take(fetches["rank"] == rank).sort_by("begin_ns")
        _, first = np.unique(own["loader_id"], return_index=True)
        # One that was under way when the recording began does not begin with batch 0.
        found[rank] = max(int((own["batch_index"] == 0).sum() + (own["batch_index"][first] > 0).sum()), 1)
    return found


def batch_of(made: Table, track: Int64, begin: Int64) -> Int64:
    """Row of the batch, by thread and begin, within whose making each call of the same thread begins; -1 if none.

    Parameters
    ----------
    made : Table
        ``batches`` by ``track_id``, then ``begin_ns``.
    track, begin : int64 array
        Of the calls.
    """
    found = np.full(len(track), -1, dtype=np.int64)
    for one in np.intersect1d(made["track_id"], track).tolist():  # threads that make batches, never many
        calls = np.flatnonzero(track == one)
        low, high = np.searchsorted(made["track_id"], [one, one + 1])
        at = np.searchsorted(made["begin_ns"][low:high], begin[calls], side="right") - 1
        inside = (at >= 0) & (begin[calls] < made["end_ns"][low:high][np.maximum(at, 0)])
        found[calls] = np.where(inside, low + at, -1)
    return found


def _fetches(trace: Trace) -> Table:
    return trace.batches.take(trace.batches["phase_code"] == BatchPhase.FETCH).sort_by("track_id", "begin_ns")


def _once_a_batch(path: Int64, batch: Int64) -> Int64:
    """Paths that were opened; several openings within the making of one batch are one."""
    if not len(path):
        return path
    within = batch >= 0
    pairs = np.unique(np.stack([path[within], batch[within]]), axis=1)
    return np.concatenate([path[~within], int64(pairs[0])])
