"""kernels: what ran on the devices, by name, per rank or over all ranks."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.device_work import Keep, device_rows, one_of
from stashtrace.analysis.timeset import Int64
from stashtrace.model.kinds import DeviceWork
from stashtrace.model.schemas import KERNEL_TIMES
from stashtrace.model.table import Table
from stashtrace.model.trace import Trace

#: Products of numbers below this fit into an int64.
_CODES_AT_MOST = 2**62
WORK_NAMES = np.array(["", *(work.name.lower() for work in DeviceWork)])


@dataclass(frozen=True, slots=True)
class Grouped:
    """Durations of work in groups of equal keys.

    Attributes
    ----------
    first : int64 array
        A row of each group.
    counts, total_ns, min_ns, max_ns, median_ns : int64 array
    mean_square_ns2 : float array
        Variance of one duration, 0 for a group of one.
    """

    first: Int64
    counts: Int64
    total_ns: Int64
    min_ns: Int64
    max_ns: Int64
    median_ns: Int64
    mean_square_ns2: npt.NDArray[np.float64]


def grouped(lengths: Int64, *keys: Int64) -> Grouped:
    """Durations by equal keys, in the order of the keys."""
    code = one_key(*keys)
    order = _by_code_and_length(code, lengths)
    code, lengths = code[order], lengths[order]
    new = np.ones(len(order), dtype=bool)
    new[1:] = code[1:] != code[:-1]
    starts = np.flatnonzero(new)
    counts = np.diff(np.append(starts, len(order)))
    total = np.add.reduceat(lengths, starts) if len(starts) else starts
    mean = total / np.maximum(counts, 1)
    off = (lengths - np.repeat(mean, counts)) ** 2
    spread = np.add.reduceat(off, starts) if len(starts) else off
    return Grouped(
        first=order[starts],
        counts=counts,
        total_ns=total,
        min_ns=lengths[starts],
        max_ns=lengths[starts + counts - 1],
        median_ns=(lengths[starts + (counts - 1) // 2] + lengths[starts + counts // 2]) // 2,
        mean_square_ns2=spread / np.maximum(counts - 1, 1),
    )


def one_key(*keys: Int64) -> Int64:
    """A number of each row: equal for equal keys, and in their order, the first key first."""
    code = np.zeros(len(keys[0]), dtype=np.int64)
    if not len(code):
        return code
    spans = 1
    for key in keys:
        least, most = int(key.min()), int(key.max())
        if spans * (most - least + 1) > _CODES_AT_MOST:
            _, code = np.unique(code, return_inverse=True)
            _, key = np.unique(key, return_inverse=True)
            spans, least, most = int(code.max()) + 1, 0, int(key.max())
        spans *= most - least + 1
        code = code * (most - least + 1) + (key - least)
    return code


def _by_code_and_length(code: Int64, lengths: Int64) -> Int64:
    """Order of the rows by code, then length."""
    longest = int(lengths.max(initial=0)) + 1
    if int(code.max(initial=0)) < _CODES_AT_MOST // longest and int(lengths.min(initial=0)) >= 0:
        return np.argsort(code * longest + lengths)
    return np.lexsort((lengths, code))


def kernel_times(
    trace: Trace, *, by: Literal["run", "rank"] = "run", orphans: Keep = "keep", last_step: Keep = "keep"
) -> Table:
    """Sum up what ran on the devices by name, the largest first.

    Times of one name are added, also where they ran at once on several streams: shares are those of the work, not of
    the time line. The time of communication kernels includes waiting for other ranks.

    Parameters
    ----------
    trace : Trace
        Needs kernels.
    by : {"run", "rank"}
        Over all ranks, or per rank.
    orphans, last_step : {"keep", "drop"}
        As in ``breakdown``.

    Columns
    -------
    rank, name_code, work, calls_count, total_ns, share_ratio, mean_ns, median_ns, min_ns, max_ns, ranks_count,
    slowest_rank, slowest_ns

    Raises
    ------
    MissingDataError
        If no kernel was recorded.
    """
    one_of("by", by, "run", "rank")
    rows = np.concatenate([device.rows for device in device_rows(trace, orphans=orphans, last_step=last_step)])
    kernels = trace.kernels
    name, work, rank = (kernels[c][rows] for c in ("name_code", "work_code", "rank"))
    lengths = kernels["end_ns"][rows] - kernels["begin_ns"][rows]
    apart = grouped(lengths, name, work, rank)
    if by == "rank":
        found, owner = apart, rank[apart.first]
        ranks_count, slowest, slowest_ns = np.ones_like(owner), owner, apart.total_ns
    else:
        found = grouped(lengths, name, work)
        owner = np.full(len(found.first), -1, dtype=np.int64)
        ranks_count, slowest, slowest_ns = _over_ranks(name, work, rank, apart)
    order = np.lexsort((name[found.first], -found.total_ns, owner))
    whole = dict(zip(*_sums(owner, found.total_ns), strict=True))
    everything = np.array([whole[int(o)] for o in owner], dtype=np.int64)
    columns = {
        "rank": owner,
        "name_code": name[found.first],
        "work": WORK_NAMES[np.clip(work[found.first], 0, len(WORK_NAMES) - 1)],
        "calls_count": found.counts,
        "total_ns": found.total_ns,
        "share_ratio": found.total_ns / np.maximum(everything, 1),
        "mean_ns": found.total_ns // found.counts,
        "median_ns": found.median_ns,
        "min_ns": found.min_ns,
        "max_ns": found.max_ns,
        "ranks_count": ranks_count,
        "slowest_rank": slowest,
        "slowest_ns": slowest_ns,
    }
    return Table(KERNEL_TIMES, {n: v[order] for n, v in columns.items()})


def _sums(keys: Int64, values: Int64) -> tuple[list[int], list[int]]:
    distinct, place = np.unique(keys, return_inverse=True)
    total = np.zeros(len(distinct), dtype=np.int64)
    np.add.at(total, place, values)
    return distinct.tolist(), total.tolist()


def _over_ranks(name: Int64, work: Int64, rank: Int64, apart: Grouped) -> tuple[Int64, Int64, Int64]:
    """Of each name and work: number of ranks, the rank with the largest sum (the lowest of equals), and that sum.

    ``apart`` is in the order of name, work, rank, so the groups come out in the order of name and work.
    """
    whose, kind, owner = name[apart.first], work[apart.first], rank[apart.first]
    new = np.zeros(len(whose), dtype=bool)
    new[:1] = True
    new[1:] = (whose[1:] != whose[:-1]) | (kind[1:] != kind[:-1])
    starts = np.flatnonzero(new)
    group = np.cumsum(new) - 1
    order = np.lexsort((owner, -apart.total_ns, group))
    slowest = order[starts]  # groups keep their places in the order
    return np.diff(np.append(starts, len(whose))), owner[slowest], apart.total_ns[slowest]
