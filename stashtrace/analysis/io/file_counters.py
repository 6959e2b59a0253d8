"""Counters of every file, summed in one pass over the calls; ``io``, ``io_patterns`` and ``io_advice`` share them.

Memory is bounded by files and processes, not by calls, except for files that several threads of one process use: their
calls are sorted, one process at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.intervals import Bools, Int64
from stashtrace.analysis.io.calls import (
    METADATA,
    READING,
    WRITING,
    Followed,
    Follower,
    Pieces,
    moves,
    process_pieces,
    time_class,
)
from stashtrace.errors import MissingDataError
from stashtrace.schema.groupby import GroupBy, order_by
from stashtrace.schema.kinds import IO_WAITED, OPENS
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

#: Largest size of each of Darshan's bins; the last bin has no limit.
BIN_ENDS = (100, 1 << 10, 10 << 10, 100 << 10, 1 << 20, 4 << 20, 10 << 20, 100 << 20, 1 << 30)
BIN_NAMES = ("0_100", "100_1K", "1K_10K", "10K_100K", "100K_1M", "1M_4M", "4M_10M", "10M_100M", "100M_1G", "1G_PLUS")
SIZE_BITS = 36  # of a key of path and size
_MERGED_AT = 1 << 22
_SUMS = (
    "opens_count",
    "reads_count",
    "writes_count",
    "read_bytes",
    "write_bytes",
    "call_ns",
    "blocked_ns",
    "read_call_ns",
    "blocked_count",
    "blocked_reads_count",
    "blocked_read_bytes",
    "blocked_read_ns",
    "followers_count",
    "followed_count",
    "located_reads_count",
    "sequential_reads_count",
    "consecutive_reads_count",
    "empty_reads_count",
    "located_writes_count",
    "sequential_writes_count",
    "consecutive_writes_count",
    "consecutive_blocked_count",
    "read_ns",
    "write_ns",
    "metadata_ns",
    "extent_bytes",
)


@dataclass(slots=True)
class FileCounters:
    """Sums by path code."""

    count: int
    #: See ``_SUMS``; ``*_ns`` of reads, writes and metadata count time once in which threads of a process overlap.
    sums: dict[str, Int64] = field(default_factory=dict)
    #: Calls by path code and Darshan's bin.
    read_bins: Int64 = field(init=False)
    write_bins: Int64 = field(init=False)
    #: True for files with any call.
    seen: Bools = field(init=False)
    _sizes: list[tuple[Int64, Int64]] = field(default_factory=list)
    _sizes_count: int = 0

    def __post_init__(self) -> None:
        self.sums = {name: np.zeros(self.count, dtype=np.int64) for name in _SUMS}
        self.read_bins, self.write_bins = (np.zeros(self.count * len(BIN_NAMES), dtype=np.int64) for _ in range(2))
        self.seen = np.zeros(self.count, dtype=bool)

    def add(self, name: str, path: npt.NDArray[np.integer], values: npt.NDArray[np.integer] | None = None) -> None:
        """Add 1, or a value, for each call."""
        if not len(path):
            return
        np.add.at(self.sums[name], path, 1 if values is None else values)

    def add_sizes(self, path: Int64, size: Int64) -> None:
        """Count the calls of each size for each file."""
        size = np.minimum(size, (1 << SIZE_BITS) - 1)
        by_key = GroupBy((path << SIZE_BITS) | size)
        self._sizes.append((by_key.values, by_key.sizes))
        self._sizes_count += len(by_key)
        if self._sizes_count > _MERGED_AT and len(self._sizes) > 1:
            self.sizes()

    def sizes(self) -> tuple[Int64, Int64, Int64]:
        """Return (path, size, calls) of every size that a file had, without size 0."""
        if not self._sizes:
            return (np.empty(0, dtype=np.int64),) * 3
        key, times = (np.concatenate(column) for column in zip(*self._sizes, strict=True))
        by_key = GroupBy(key)
        keys, times = by_key.values, by_key.sum(times)
        self._sizes, self._sizes_count = [(keys, times)], 0
        return keys >> SIZE_BITS, keys & ((1 << SIZE_BITS) - 1), times


def count_files(trace: Trace) -> FileCounters:
    """Return the counters of every file. Raises MissingDataError if no call was recorded."""
    counters = FileCounters(len(trace.strings))
    for _, pieces in process_pieces(trace):
        _count_process(counters, pieces)
    _add_totals(trace, counters)
    if not counters.seen.any():
        raise MissingDataError("no I/O call was recorded", hint="run with the collector posix_io on")
    return counters


def threads_share(pieces: Pieces, count: int) -> Bools:
    """Return a mask of the files that more than one thread of a process uses, by path code."""
    users = np.zeros(count, dtype=np.int32)
    last_track, last_paths = -1, np.empty(0, dtype=np.int64)
    for piece in pieces():
        keys = np.unique(piece["track_id"].astype(np.int64) * count + piece["path_code"])
        track, path = keys // count, keys % count
        again = (track == last_track) & np.isin(path, last_paths)
        np.add.at(users, path[~again], 1)
        users = np.minimum(users, 2)
        newest = int(track[-1])
        last_paths = np.union1d(path[track == newest], last_paths if newest == last_track else path[:0])
        last_track = newest
    shared: Bools = users > 1
    return shared


def overlap_free(path: Int64, begin: Int64, end: Int64) -> Int64:
    """Return the ns of each call during which no earlier one on the same file ran; calls by path, then begin."""
    if not len(path):
        return np.empty(0, dtype=np.int64)
    group = np.cumsum(np.append(False, path[1:] != path[:-1]))
    by_end = np.argsort(end, kind="stable")  # their places, unlike the times, fit next to the number of a file
    place = np.empty(len(end), dtype=np.int64)
    place[by_end] = np.arange(len(end))
    before = end[by_end[np.maximum.accumulate(place + group * len(end)) - group * len(end)]]
    latest = np.empty_like(end)
    latest[0] = begin[0]
    latest[1:] = np.where(group[1:] == group[:-1], before[:-1], begin[1:])
    free: Int64 = np.maximum(end - np.maximum(begin, latest), 0)
    return free


def _count_process(counters: FileCounters, pieces: Pieces) -> None:
    shared = threads_share(pieces, counters.count)
    by_thread, kept = (Follower(counters.count), Follower(counters.count)), list[Table]()
    for piece in pieces():
        path, length = piece["path_code"], piece["end_ns"] - piece["begin_ns"]
        move, kind = moves(piece), time_class(piece)
        result = np.maximum(piece["result_bytes"], 0)
        waited = (piece["io_flags"] & IO_WAITED) != 0
        counters.seen[path] = True
        opened = np.isin(piece["op_code"], OPENS) & (piece["result_bytes"] >= 0)
        counters.add("opens_count", path[opened])
        counters.add("call_ns", path, length)
        counters.add("blocked_ns", path[waited], length[waited])
        for code, name in ((READING, "read"), (WRITING, "write")):
            chosen = move == code
            counters.add(f"{name}s_count", path[chosen])
            counters.add(f"{name}_bytes", path[chosen], result[chosen])
        counters.add("read_call_ns", path[move == READING], length[move == READING])
        stored = waited & (kind != 0)
        counters.add("blocked_count", path[stored & (kind != WRITING)])
        reads = stored & (move == READING)
        counters.add("blocked_reads_count", path[reads])
        counters.add("blocked_read_bytes", path[reads], result[reads])
        counters.add("blocked_read_ns", path[stored & (kind != WRITING)], length[stored & (kind != WRITING)])
        _add_shapes(counters, piece, move, kind)
        _follow(counters, piece, by_thread, move, shared)
        alone = ~shared[path]
        for code, name in ((READING, "read_ns"), (WRITING, "write_ns"), (METADATA, "metadata_ns")):
            chosen = alone & (kind == code)
            counters.add(name, path[chosen], length[chosen])
        common = np.flatnonzero(~alone & (kind != 0))
        if len(common):
            kept.append(piece.take(common))
    if kept:
        _count_shared(counters, kept)


def _add_shapes(counters: FileCounters, piece: Table, move: npt.NDArray[np.int8], kind: npt.NDArray[np.int8]) -> None:
    """Add the sizes of calls, and the offset of the last byte."""
    path, result, offset = piece["path_code"].astype(np.int64), piece["result_bytes"], piece["offset_bytes"]
    good = (move != 0) & (result >= 0) & (kind != 0)
    for code, bins in ((READING, counters.read_bins), (WRITING, counters.write_bins)):
        chosen = good & (move == code)
        cell = path[chosen] * len(BIN_NAMES) + np.searchsorted(np.array(BIN_ENDS), result[chosen], side="left")
        np.add.at(bins, cell, 1)
    counters.add("empty_reads_count", path[good & (move == READING) & (result == 0)])
    some = good & (result > 0)
    counters.add_sizes(path[some], result[some])
    located = some & (offset >= 0)
    np.maximum.at(counters.sums["extent_bytes"], path[located], (offset + result)[located])


def _follow(
    counters: FileCounters,
    piece: Table,
    by_thread: tuple[Follower, Follower],
    move: npt.NDArray[np.int8],
    shared: Bools,
) -> None:
    """Compare calls with the thread's previous one; if one thread of the process uses a file, as Darshan does."""
    followed = _followed(piece, by_thread[0], move == READING)
    counters.add("followers_count", followed.path[~followed.first])
    counters.add("followed_count", followed.path[~followed.first & followed.consecutive])
    waited = (piece["io_flags"][followed.rows] & IO_WAITED) != 0
    counters.add("consecutive_blocked_count", followed.path[~followed.first & followed.consecutive & waited])
    _add_order(counters, "reads", followed, ~shared[followed.path])
    followed = _followed(piece, by_thread[1], move == WRITING)
    _add_order(counters, "writes", followed, ~shared[followed.path])


def _followed(piece: Table, follower: Follower, chosen: Bools, *, one_reader: bool = False) -> Followed:
    opened = np.isin(piece["op_code"], OPENS) & (piece["result_bytes"] >= 0)
    rows = np.flatnonzero((chosen & (piece["offset_bytes"] >= 0) & (piece["result_bytes"] >= 0)) | opened)
    columns = ("track_id", "path_code", "offset_bytes", "result_bytes")
    track, path, offset, length = (piece[name][rows].astype(np.int64) for name in columns)
    return follower.follow(rows, track * 0 if one_reader else track, path, offset, length, opened[rows])


def _add_order(counters: FileCounters, name: str, followed: Followed, chosen: Bools) -> None:
    counters.add(f"located_{name}_count", followed.path[chosen])
    counters.add(f"sequential_{name}_count", followed.path[chosen & followed.sequential])
    counters.add(f"consecutive_{name}_count", followed.path[chosen & followed.consecutive])


def _count_shared(counters: FileCounters, kept: list[Table]) -> None:
    """Count files with several threads: order and time as of one reader."""
    table = Table.concat(kept[0].schema, kept)
    table = table.take(order_by(table["path_code"], table["begin_ns"]))
    move, kind, path = moves(table), time_class(table), table["path_code"].astype(np.int64)
    for code, name in ((READING, "read_ns"), (WRITING, "write_ns"), (METADATA, "metadata_ns")):
        chosen = kind == code
        counters.add(name, path[chosen], overlap_free(path[chosen], table["begin_ns"][chosen], table["end_ns"][chosen]))
    for code, name in ((READING, "reads"), (WRITING, "writes")):
        followed = _followed(table, Follower(counters.count), move == code, one_reader=True)
        _add_order(counters, name, followed, np.ones(len(followed.path), dtype=bool))


def _add_totals(trace: Trace, counters: FileCounters) -> None:
    """Add calls of which an imported log has only sums."""
    summed = trace.io_totals
    if not len(summed):
        return
    path, sums = summed["path_code"], counters.sums
    counters.seen[path] = True

    def more(name: str, *columns: str) -> None:
        for column in columns:
            np.add.at(sums[name], path, np.maximum(summed[column], 0))

    for name in ("opens_count", "reads_count", "writes_count", "read_bytes", "write_bytes", "read_ns", "write_ns"):
        more(name, name)
    more("metadata_ns", "other_ns")
    more("call_ns", "read_ns", "write_ns", "other_ns")
    more("read_call_ns", "read_ns")
    known = summed["consecutive_reads_count"] >= 0
    np.add.at(sums["followed_count"], path[known], summed["consecutive_reads_count"][known])
    np.add.at(sums["followers_count"], path[known], np.maximum(summed["reads_count"][known] - 1, 0))
