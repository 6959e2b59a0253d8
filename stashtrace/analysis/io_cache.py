"""io_cache, io_reuse: how much a cache would have served of what was read, from exact reuse distances."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.data_files import FILES_HINT, Files, data_files
from stashtrace.analysis.importance import Importance, most_important_first, ranks_of
from stashtrace.analysis.io import below
from stashtrace.analysis.io_accesses import Accesses, collect_accesses, path_codes
from stashtrace.analysis.quantities import bytes_of
from stashtrace.analysis.stack_distances import previous_uses, stack_distances
from stashtrace.analysis.timeset import Int64
from stashtrace.errors import MissingDataError
from stashtrace.model.schemas import IO_CACHE, IO_REUSE
from stashtrace.model.table import Table
from stashtrace.model.trace import Trace

Floats = npt.NDArray[np.float64]
#: Without a size the curve has this many points.
_POINTS = 20


@dataclass(frozen=True, slots=True)
class HostUses:
    """Accesses of the processes of one host, in order of time.

    Attributes
    ----------
    host : str
        Its name.
    moved_bytes : int64 array
        Bytes of each access.
    distance_bytes : int64 array
        What was used since the last access to the block, itself included; -1 for the first.
    kept_bytes : int64 array
        What was read for the first time up to the block's first access, itself included.
    important_bytes : int64 array or None
        The block, and all that are more important.
    data_bytes : int
        Of all blocks.
    sampled_ratio : float
        Share of blocks that are in; sizes here are of these alone.
    """

    host: str
    moved_bytes: Int64
    distance_bytes: Int64
    kept_bytes: Int64
    important_bytes: Int64 | None
    data_bytes: int
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
    """Tell what share of the bytes read a cache would have served, for each size, beginning empty.

    Two caches: LRU drops what was not used for longest, as a page cache roughly does; the other keeps what came first
    and drops nothing, as MinIO of CoorDL. Both are computed from the order in which the processes of a host read
    blocks. A run of reads that each begin where the last one ended is one access to each block it touches, so that
    small reads do not look like hits. A third, if the importance of the samples is given, keeps the most important
    ones (SHADE's order, with weights that stay); what it serves of others until it is full is not counted. Beyond
    4,000,000 accesses a share of blocks, chosen by hash, stands for all.

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

    Columns
    -------
    host, cache_bytes, cached_ratio, data_bytes, read_bytes, reread_ratio, lru_hit_ratio, kept_hit_ratio,
    important_hit_ratio, shuffled_lru_hit_ratio, sampled_ratio

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
        steps = np.arange(1, _POINTS + 1, dtype=np.int64)
        sizes = np.array([stated], dtype=np.int64) if stated is not None else -(-data * steps // _POINTS)
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
                    "lru_hit_ratio": _served(uses.distance_bytes[again], uses.moved_bytes[again], inside) / read,
                    "kept_hit_ratio": _served(uses.kept_bytes[again], uses.moved_bytes[again], inside) / read,
                    "important_hit_ratio": np.full(len(sizes), np.nan)
                    if uses.important_bytes is None
                    else _served(uses.important_bytes[again], uses.moved_bytes[again], inside) / read,
                    "shuffled_lru_hit_ratio": reread * shuffled_lru_hits(cached),
                    "sampled_ratio": np.full(len(sizes), uses.sampled_ratio),
                },
            )
        )
    return Table.concat(IO_CACHE, tables)


def io_reuse(trace: Trace, *, block: str | int = "1MiB", under: str | None = None, files: Files = "data") -> Table:
    """Count reads by how much other data was read since the last read of the same, in powers of two.

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

    Columns
    -------
    host, low_bytes, high_bytes, accesses_count, read_bytes, sampled_ratio

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
            own = power == exponent
            rows.append(
                (
                    uses.host,
                    -1 if exponent < 0 else (1 << exponent >> 1) + 1 if exponent else 1,
                    -1 if exponent < 0 else 1 << exponent,
                    round(np.count_nonzero(own) / uses.sampled_ratio),
                    round(int(uses.moved_bytes[own].sum()) / uses.sampled_ratio),
                    uses.sampled_ratio,
                )
            )
    return Table.from_rows(IO_REUSE, rows)


def shuffled_lru_hits(cached: Floats) -> Floats:
    """Share of reads that LRU serves if every epoch reads all once in a new random order: x + (1-x) ln(1-x).

    Examples
    --------
    >>> shuffled_lru_hits(np.array([0.35, 0.5, 0.9, 1.0])).round(3).tolist()
    [0.07, 0.153, 0.67, 1.0]
    """
    rest = 1.0 - cached
    found: Floats = cached + rest * np.log(np.where(rest > 0, rest, 1.0))
    return found


def _served(needed: Int64, moved: Int64, sizes: Floats) -> Floats:
    """Bytes of the accesses that need no more than each size."""
    order = np.argsort(needed, kind="stable")
    sums = np.append(0, np.cumsum(moved[order]))
    found: Floats = sums[np.searchsorted(needed[order], sizes, side="right")].astype(np.float64)
    return found


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


def _host_uses(host: str, accesses: Accesses, own: npt.NDArray[np.bool_], weights: Floats | None) -> HostUses:
    rows = np.flatnonzero(own)
    rows = rows[np.argsort(accesses.begin_ns[rows], kind="stable")]
    keys, first, item = np.unique(accesses.key[rows], return_index=True, return_inverse=True)
    low, high = np.full(len(first), np.iinfo(np.int64).max), np.zeros(len(first), dtype=np.int64)
    np.minimum.at(low, item, accesses.low_bytes[rows])
    np.maximum.at(high, item, accesses.high_bytes[rows])
    size = high - low
    in_order = np.argsort(first)
    kept = np.empty(len(first), dtype=np.int64)
    kept[in_order] = np.cumsum(size[in_order])
    important = None if weights is None else most_important_first(weights[path_codes(keys)], first, size)
    return HostUses(
        host,
        accesses.moved_bytes[rows],
        stack_distances(previous_uses(item), size[item]),
        kept[item],
        None if important is None else important[item],
        int(size.sum()),
        accesses.sampled_ratio,
    )
