"""Reads as accesses to blocks of files, a bounded number of them. Used by ``io_cache``."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.io_calls import READING, Bools, Follower, moves, process_pieces, time_class
from stashtrace.analysis.timeset import Int64
from stashtrace.model.table import Table
from stashtrace.model.trace import Trace

#: Beyond this a smaller share of the blocks is looked at.
LIMIT = 4_000_000
_BLOCK_BITS = 38  # of a key of path and block
_FULL = 1 << 32
_AT_ONCE = 1 << 21


class _Reads(NamedTuple):
    """Columns of reads, by reader and file."""

    begin: Int64
    path: Int64
    offset: Int64
    end: Int64
    low_block: Int64
    each: Int64
    goes_on: Bools


@dataclass(slots=True)
class Accesses:
    """One row per access.

    Attributes
    ----------
    begin_ns, host_code : int64 array
        When, on which host.
    key : int64 array
        File and block.
    low_bytes, high_bytes : int64 array
        Touched part of the block.
    moved_bytes : int64 array
        Bytes read.
    sampled_ratio : float
        Share of blocks that are in.
    """

    begin_ns: Int64
    host_code: Int64
    key: Int64
    low_bytes: Int64
    high_bytes: Int64
    moved_bytes: Int64
    sampled_ratio: float = 1.0


_COLUMNS = ("begin_ns", "host_code", "key", "low_bytes", "high_bytes", "moved_bytes")


def collect_accesses(trace: Trace, block_bytes: int, *, wanted: Bools | None = None, limit: int = LIMIT) -> Accesses:
    """All accesses if there are at most ``limit``, else those of a share of the blocks, chosen by hash.

    ``wanted`` says by path code which files count; all if None.

    A sample of blocks keeps the pattern of reuse of each, and distances shrink by the share: see Waldspurger et al.,
    SHARDS, FAST 2015.
    """
    kept: list[Accesses] = []
    rows_count, threshold = 0, _FULL
    host_of = dict(zip(trace.processes["process_id"].tolist(), trace.processes["host_code"].tolist(), strict=True))
    for process, pieces in process_pieces(trace):
        follower = Follower(len(trace.strings))
        for whole in pieces():
            piece = whole if wanted is None else whole.take(wanted[whole["path_code"]])
            for found in _of_piece(piece, follower, block_bytes, int(host_of.get(process, 0))):
                kept.append(_chosen(found, threshold))
                rows_count += len(kept[-1].key)
            while rows_count > limit and threshold > 1:
                threshold //= 2
                kept = [_chosen(part, threshold) for part in kept]
                rows_count = sum(len(part.key) for part in kept)
    nothing = [np.empty(0, dtype=np.int64)]
    columns = {name: np.concatenate([getattr(part, name) for part in kept] or nothing) for name in _COLUMNS}
    return Accesses(sampled_ratio=threshold / _FULL, **columns)


def _chosen(accesses: Accesses, threshold: int) -> Accesses:
    if threshold == _FULL:
        return accesses
    own = (_hashed(accesses.key) >> np.uint64(32)) < threshold
    return Accesses(**{name: getattr(accesses, name)[own] for name in _COLUMNS})


def path_codes(key: Int64) -> Int64:
    """String codes of the files of keys."""
    return key >> _BLOCK_BITS


def _hashed(key: Int64) -> npt.NDArray[np.uint64]:
    """Mix the bits (the finaliser of splitmix64)."""
    mixed = key.astype(np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    found: npt.NDArray[np.uint64] = mixed ^ (mixed >> np.uint64(31))
    return found


def _of_piece(piece: Table, follower: Follower, block_bytes: int, host: int) -> Iterator[Accesses]:
    wanted = (moves(piece) == READING) & (time_class(piece) != 0)
    rows = np.flatnonzero(wanted & (piece["offset_bytes"] >= 0) & (piece["result_bytes"] > 0))
    track, path, offset, length = (
        piece[name][rows].astype(np.int64) for name in ("track_id", "path_code", "offset_bytes", "result_bytes")
    )
    found = follower.follow(rows, track, path, offset, length)
    begin, offset, track = (piece[name][found.rows] for name in ("begin_ns", "offset_bytes", "track_id"))
    end = offset + piece["result_bytes"][found.rows]
    low_block, high_block = offset // block_bytes, (end - 1) // block_bytes
    # A read that goes on in the block where the last one ended is the same access.
    same = np.zeros(len(end), dtype=bool)
    same[1:] = (found.path[1:] == found.path[:-1]) & (track[1:] == track[:-1])
    goes_on = same & ~found.first & found.consecutive
    goes_on[1:] &= low_block[1:] == high_block[:-1]
    each = high_block - low_block + 1
    # Long reads of small blocks become many accesses: not all at once.
    borders = [0, *(np.flatnonzero(np.diff(np.cumsum(each) // _AT_ONCE)) + 1).tolist(), len(each)]
    for first, last in itertools.pairwise(borders):
        own = slice(first, last)
        if first < last:
            yield _divided(
                _Reads(begin[own], found.path[own], offset[own], end[own], low_block[own], each[own], goes_on[own]),
                block_bytes,
                host,
            )


def _divided(reads: _Reads, block_bytes: int, host: int) -> Accesses:
    """The blocks that reads touch."""
    call = np.repeat(np.arange(len(reads.each)), reads.each)
    inside = np.arange(len(call)) - np.repeat(np.cumsum(reads.each) - reads.each, reads.each)
    block = reads.low_block[call] + inside
    low = np.maximum(reads.offset[call] - block * block_bytes, 0)
    high = np.minimum(reads.end[call] - block * block_bytes, block_bytes)
    new = ~(reads.goes_on[call] & (inside == 0))
    new[0] = True
    starts = np.flatnonzero(new)
    return Accesses(
        begin_ns=reads.begin[call][starts],
        host_code=np.full(len(starts), host, dtype=np.int64),
        key=(reads.path[call][starts] << _BLOCK_BITS) | block[starts],
        low_bytes=np.minimum.reduceat(low, starts),
        high_bytes=np.maximum.reduceat(high, starts),
        moved_bytes=np.add.reduceat(high - low, starts),
    )
