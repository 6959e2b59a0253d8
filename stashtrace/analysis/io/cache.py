"""io_cache, io_reuse: the share of reads that a cache would have served, from exact reuse distances."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.intervals import Bools, Floats, Int64, ranges
from stashtrace.analysis.io.calls import READING, Follower, moves, process_pieces, time_class
from stashtrace.analysis.io.data_files import FILES_HINT, Files, data_files
from stashtrace.analysis.io.files import below
from stashtrace.analysis.io.io_tables import IO_CACHE, IO_REUSE
from stashtrace.analysis.io.policy import POLICY
from stashtrace.errors import MissingDataError, UsageError, say_why
from stashtrace.schema.groupby import GroupBy, order_by
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace
from stashtrace.text.units import bytes_of


@dataclass(frozen=True, slots=True)
class HostUses:
    """Accesses of the processes of one host, in order of time."""

    #: Its name.
    host: str
    #: Bytes of each access.
    moved_bytes: Int64
    #: Size of the blocks used since the last access to this block, itself included; -1 for the first.
    distance_bytes: Int64
    #: Size of the blocks first read up to this block's first access, itself included.
    kept_bytes: Int64
    #: int64 array or None; Size of the block and of all more important ones.
    important_bytes: Int64 | None
    #: Size of all blocks.
    data_bytes: int
    #: Share of blocks in the sample; sizes here are those of the sample.
    sampled_ratio: float


def io_cache(
    trace: Trace,
    *,
    cache_size: str | int | None = None,
    block: str | int = "1MiB",
    under: str | None = None,
    files: Files = "data",
    importance: Importance | None = None,
) -> Table:
    """Return what share of the bytes read a cache of each size would have served, beginning empty.

    Two caches: LRU drops the least recently used block, as a page cache roughly does; the other keeps the first blocks
    and drops none, as MinIO of CoorDL does. Both are computed from the order in which the processes of a host read
    blocks. Reads that each begin where the last one ended are one access to each block they touch, so that small reads
    do not look like hits. If the importance of samples is given, a third cache keeps the most important ones (SHADE's
    order, with constant weights); other hits until it is full are not counted. Beyond 4,000,000 accesses, a share of
    blocks, chosen by hash, represents all. Columns: table ``io_cache`` of ``docs/reference/tables.md``.

    Parameters
    ----------
    trace : Trace
        Needs reads with offsets.
    cache_size : str or int, optional
        One size, as ``"100G"``; by default steps of 5 % of the data read.
    block : str or int
        Unit of the cache; ``"file"`` for whole files.
    under : str, optional
        Only files below this directory.
    files : {"data", "all"}
        By default files of the kernel, the system, Python and its packages, and programs are left out.
    importance : mapping or path, optional
        Weight of each sample by its path, or a file with a line ``path,weight`` for each.

    Raises
    ------
    MissingDataError
        If no read with an offset was recorded.
    """
    stated = None if cache_size is None else bytes_of(cache_size, "--cache-size")
    tables = []
    weights = None if importance is None else ranks_of(trace, importance)
    for uses in _uses(trace, block, under, files, weights):
        data = round(uses.data_bytes / uses.sampled_ratio)
        steps = np.arange(1, POLICY.curve_points_count + 1, dtype=np.int64)
        sizes = (
            np.array([stated], dtype=np.int64) if stated is not None else -(-data * steps // POLICY.curve_points_count)
        )
        read = int(uses.moved_bytes.sum())
        again = uses.distance_bytes >= 0
        reread = float(uses.moved_bytes[again].sum()) / read
        cached = np.minimum(sizes / max(data, 1), 1.0).astype(np.float64)
        inside = (sizes * uses.sampled_ratio).astype(np.float64)
        tables.append(
            Table(
                IO_CACHE,
                {
                    "host": np.full(len(sizes), uses.host),
                    "cache_bytes": sizes,
                    "cached_ratio": cached,
                    "data_bytes": np.full(len(sizes), data),
                    "read_bytes": np.full(len(sizes), round(read / uses.sampled_ratio)),
                    "reread_ratio": np.full(len(sizes), reread),
                    "lru_hit_ratio": _bytes_served(uses.distance_bytes[again], uses.moved_bytes[again], inside) / read,
                    "kept_hit_ratio": _bytes_served(uses.kept_bytes[again], uses.moved_bytes[again], inside) / read,
                    "important_hit_ratio": np.full(len(sizes), np.nan)
                    if uses.important_bytes is None
                    else _bytes_served(uses.important_bytes[again], uses.moved_bytes[again], inside) / read,
                    "shuffled_lru_hit_ratio": reread * shuffled_lru_hits(cached),
                    "sampled_ratio": np.full(len(sizes), uses.sampled_ratio),
                },
            )
        )
    return Table.concat(IO_CACHE, tables)


def io_reuse(trace: Trace, *, block: str | int = "1MiB", under: str | None = None, files: Files = "data") -> Table:
    """Count reads by how much other data was read since the last read of the same, in powers of two.

    Columns: table ``io_reuse`` of ``docs/reference/tables.md``.

    Parameters
    ----------
    trace : Trace
        Needs reads with offsets.
    block : str or int
        As of ``io_cache``.
    under : str, optional
        Only files below this directory.
    files : {"data", "all"}
        As of ``io_cache``.

    Raises
    ------
    MissingDataError
        If no read with an offset was recorded.
    """
    rows: list[tuple[str | int | float, ...]] = []
    for uses in _uses(trace, block, under, files):
        scaled = np.where(uses.distance_bytes < 0, -1.0, uses.distance_bytes / uses.sampled_ratio)
        power = np.where(scaled < 0, -1, np.ceil(np.log2(np.maximum(scaled, 1)))).astype(np.int64)
        for exponent in np.unique(power).tolist():
            chosen = power == exponent
            rows.append(
                (
                    uses.host,
                    -1 if exponent < 0 else (1 << exponent >> 1) + 1 if exponent else 1,
                    -1 if exponent < 0 else 1 << exponent,
                    round(np.count_nonzero(chosen) / uses.sampled_ratio),
                    round(int(uses.moved_bytes[chosen].sum()) / uses.sampled_ratio),
                    uses.sampled_ratio,
                )
            )
    return Table.from_rows(IO_REUSE, rows)


def shuffled_lru_hits(cached: Floats) -> Floats:
    """Return the share of reads that LRU serves if each epoch reads all in new random order: x + (1-x) ln(1-x).

    >>> shuffled_lru_hits(np.array([0.35, 0.5, 0.9, 1.0])).round(3).tolist()
    [0.07, 0.153, 0.67, 1.0]
    """
    rest = 1.0 - cached
    hits: Floats = cached + rest * np.log(np.where(rest > 0, rest, 1.0))
    return hits


def _bytes_served(needed: Int64, moved: Int64, sizes: Floats) -> Floats:
    """Return, for each size of the cache, the bytes of the accesses that need at most this size."""
    order = np.argsort(needed, kind="stable")
    sums = np.append(0, np.cumsum(moved[order]))
    served: Floats = sums[np.searchsorted(needed[order], sizes, side="right")].astype(np.float64)
    return served


def _uses(
    trace: Trace, block: str | int, under: str | None, files: Files, weights: Floats | None = None
) -> list[HostUses]:
    block_bytes = 1 << 62 if block == "file" else bytes_of(block, "--block")
    wanted = data_files(trace, files, under)
    if under is not None:
        wanted &= below(trace, np.arange(len(trace.strings)), under)
    accesses = collect_accesses(trace, block_bytes, wanted=wanted)
    if not len(accesses.key):
        raise MissingDataError(
            "no read with a known offset was recorded" + (f" below {under}" if under else ""),
            hint="run with the collector posix_io on; mapped files have no reads" + FILES_HINT * (files == "data"),
        )
    hosts = np.unique(accesses.host_code)
    return [_host_uses(trace.text(host), accesses, accesses.host_code == host, weights) for host in hosts.tolist()]


def _host_uses(host: str, accesses: Accesses, own: Bools, weights: Floats | None) -> HostUses:
    rows = np.flatnonzero(own)
    rows = rows[np.argsort(accesses.begin_ns[rows], kind="stable")]
    blocks = GroupBy(accesses.key[rows])
    first, block = blocks.first, blocks.number
    size = blocks.max(accesses.high_bytes[rows]) - blocks.min(accesses.low_bytes[rows])
    in_order = np.argsort(first)
    kept = np.empty(len(first), dtype=np.int64)
    kept[in_order] = np.cumsum(size[in_order])
    important = None if weights is None else most_important_first(weights[blocks.values >> _BLOCK_BITS], first, size)
    return HostUses(
        host,
        accesses.moved_bytes[rows],
        stack_distances(previous_uses(block), size[block]),
        kept[block],
        None if important is None else important[block],
        int(size.sum()),
        accesses.sampled_ratio,
    )


# Reads as accesses to blocks of files, in bounded number.

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
    """One row per access."""

    #: Time and host of the access.
    begin_ns: Int64
    host_code: Int64
    #: File and block.
    key: Int64
    #: Touched part of the block.
    low_bytes: Int64
    high_bytes: Int64
    #: Bytes read.
    moved_bytes: Int64
    #: Share of blocks in the sample.
    sampled_ratio: float = 1.0


_COLUMNS = ("begin_ns", "host_code", "key", "low_bytes", "high_bytes", "moved_bytes")


def collect_accesses(
    trace: Trace, block_bytes: int, *, wanted: Bools | None = None, limit: int = POLICY.sampled_from_count
) -> Accesses:
    """Return all accesses if there are at most ``limit``, else those of a share of the blocks, chosen by hash.

    ``wanted`` is a mask of the files that count, by path code; all if None.

    A sample of blocks keeps the pattern of reuse of each, and distances shrink by the share: see Waldspurger et al.,
    SHARDS, FAST 2015.
    """
    kept: list[Accesses] = []
    rows_count, threshold = 0, _FULL
    host_of = trace.processes.lookup("process_id", "host_code")
    for process, pieces in process_pieces(trace):
        follower = Follower(len(trace.strings))
        for whole in pieces():
            piece = whole if wanted is None else whole.take(wanted[whole["path_code"]])
            for accesses in _of_piece(piece, follower, block_bytes, int(host_of.get(process, 0))):
                kept.append(_chosen(accesses, threshold))
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
    own = (_mix_bits(accesses.key) >> np.uint64(32)) < threshold
    return Accesses(**{name: getattr(accesses, name)[own] for name in _COLUMNS})


def _mix_bits(key: Int64) -> npt.NDArray[np.uint64]:
    """Mix the bits (the finaliser of splitmix64)."""
    mixed = key.astype(np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    hashes: npt.NDArray[np.uint64] = mixed ^ (mixed >> np.uint64(31))
    return hashes


def _of_piece(piece: Table, follower: Follower, block_bytes: int, host: int) -> Iterator[Accesses]:
    wanted = (moves(piece) == READING) & (time_class(piece) != 0)
    rows = np.flatnonzero(wanted & (piece["offset_bytes"] >= 0) & (piece["result_bytes"] > 0))
    track, path, offset, length = (
        piece[name][rows].astype(np.int64) for name in ("track_id", "path_code", "offset_bytes", "result_bytes")
    )
    calls = follower.follow(rows, track, path, offset, length)
    begin, offset, track = (piece[name][calls.rows] for name in ("begin_ns", "offset_bytes", "track_id"))
    end = offset + piece["result_bytes"][calls.rows]
    low_block, high_block = offset // block_bytes, (end - 1) // block_bytes
    # A read that continues in the block where the last one ended is the same access.
    same = np.zeros(len(end), dtype=bool)
    same[1:] = (calls.path[1:] == calls.path[:-1]) & (track[1:] == track[:-1])
    goes_on = same & ~calls.first & calls.consecutive
    goes_on[1:] &= low_block[1:] == high_block[:-1]
    each = high_block - low_block + 1
    # Long reads of small blocks become many accesses, so they are divided in parts.
    borders = [0, *(np.flatnonzero(np.diff(np.cumsum(each) // _AT_ONCE)) + 1).tolist(), len(each)]
    for first, last in itertools.pairwise(borders):
        own = slice(first, last)
        if first < last:
            yield _divide_into_blocks(
                _Reads(begin[own], calls.path[own], offset[own], end[own], low_block[own], each[own], goes_on[own]),
                block_bytes,
                host,
            )


def _divide_into_blocks(reads: _Reads, block_bytes: int, host: int) -> Accesses:
    call = np.repeat(np.arange(len(reads.each)), reads.each)
    block = ranges(reads.low_block, reads.low_block + reads.each)
    low = np.maximum(reads.offset[call] - block * block_bytes, 0)
    high = np.minimum(reads.end[call] - block * block_bytes, block_bytes)
    new = ~(reads.goes_on[call] & (block == reads.low_block[call]))
    new[0] = True
    accesses = GroupBy.runs(np.cumsum(new))
    starts = accesses.first
    return Accesses(
        begin_ns=reads.begin[call][starts],
        host_code=np.full(len(starts), host, dtype=np.int64),
        key=(reads.path[call][starts] << _BLOCK_BITS) | block[starts],
        low_bytes=accesses.min(low),
        high_bytes=accesses.max(high),
        moved_bytes=accesses.sum(high - low),
    )


# Weights of samples, given by the user: a cache that knows them keeps the highest first (SHADE's order).

Importance = Mapping[str, float] | str | os.PathLike[str]


def weights_of(importance: Importance) -> dict[str, float]:
    """Return the weights by absolute path, from a mapping or from a file with a line ``path,weight`` per sample.

    Raises UsageError if the file cannot be read, or a line has another form.
    """
    if isinstance(importance, Mapping):
        return {os.path.abspath(path): float(weight) for path, weight in importance.items()}
    try:
        lines = Path(importance).read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError as error:
        why = say_why(error)
        raise UsageError(
            f"cannot read {importance}: {why}", hint="--importance FILE: a line `path,weight` each"
        ) from error
    weights: dict[str, float] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        path, comma, text = line.rpartition(",")
        try:
            weight = float(text)
        except ValueError:
            weight = math.nan
        if not comma or math.isnan(weight):
            raise UsageError(
                f"line {number} of {importance} is no `path,weight`: {line[:80]}", hint="as in /data/a.jpg,3.2"
            )
        weights[os.path.abspath(path.strip())] = weight
    if not weights:
        raise UsageError(f"{importance} is empty", hint="a line `path,weight` for each sample")
    return weights


def ranks_of(trace: Trace, importance: Importance) -> Floats:
    """Return the weights by string code of the path; minus infinity for paths without a weight.

    Raises MissingDataError if no path of the run has a weight.
    """
    weights = weights_of(importance)
    weight_of = np.full(len(trace.strings), -np.inf)
    for path, weight in weights.items():
        code = trace.strings.find(path)
        if code >= 0:
            weight_of[code] = weight
    if np.isneginf(weight_of).all():
        raise MissingDataError(
            "none of the samples with an importance was read", hint="its paths are those that `analyze io` shows"
        )
    return weight_of


def most_important_first(weight: Floats, first: Int64, size: Int64) -> Int64:
    """Return the bytes to hold each block and all more important ones; of equals, the block read first goes first."""
    order = order_by(-weight, first)
    needed = np.empty(len(size), dtype=np.int64)
    needed[order] = np.cumsum(size[order])
    return needed


# Reuse distances: the size of other items used between two uses of an item, exactly, in O(n log n).


def previous_uses(item: Int64) -> Int64:
    """Return the place of the last use of the same item before each use; -1 if there is none.

    >>> previous_uses(np.array([7, 8, 7, 7])).tolist()
    [-1, -1, 0, 2]
    """
    order = np.argsort(item, kind="stable")
    same = item[order][1:] == item[order][:-1]
    previous = np.full(len(item), -1, dtype=np.int64)
    previous[order[1:][same]] = order[:-1][same]
    return previous


def stack_distances(previous: Int64, size: Int64) -> Int64:
    """Return the size of all items used since the last use of each item, itself included; -1 for first uses.

    An LRU cache serves a use if and only if it has this size: it evicts the least recently used item, so its contents
    are always the longest run of most recently used items that fits.

    ``previous``: as :func:`previous_uses` returns it. ``size``: size of the item of each use; the same for all uses of
    an item.

    Notes
    -----
    An item counts once between uses p and i: at its first use there, the one whose own last use is not after p. So the
    distance is the size of the uses j < i with ``previous[j] <= p``, minus that of all uses up to p. Sorted by
    ``previous``, uses are divided by the bits of their place, highest first: a use with the bit set adds the uses
    before it in its block that do not have the bit. That takes one pass over the data for each bit.

    >>> uses = np.array([1, 2, 3, 2, 1])
    >>> stack_distances(previous_uses(uses), uses * 100).tolist()
    [-1, -1, -1, 500, 600]
    """
    count = len(previous)
    if not count:
        return np.empty(0, dtype=np.int64)
    seen = np.zeros(count, dtype=np.int64)
    order = np.argsort(previous, kind="stable")
    for bit in reversed(range(max(count - 1, 1).bit_length())):
        high = (order >> bit) & 1 == 1
        # Rows of one block are adjacent and blocks are in order, so the number of a block gives its begin.
        start = (order >> (bit + 1)) << (bit + 1)
        low_sums = np.append(0, np.cumsum(np.where(high, 0, size[order])))
        rows = np.flatnonzero(high)
        seen[order[rows]] += low_sums[rows] - low_sums[start[rows]]
        lows = np.append(0, np.cumsum(~high))
        ahead = lows[np.arange(count)] - lows[start]  # without the bit, before it in its block
        place = np.where(high, start + (1 << bit) + (np.arange(count) - start - ahead), start + ahead)
        divided = np.empty_like(order)
        divided[place] = order
        order = divided
    until = np.cumsum(size)
    again = previous >= 0
    distance = np.full(count, -1, dtype=np.int64)
    distance[again] = seen[again] - until[previous[again]] + size[again]
    return distance
