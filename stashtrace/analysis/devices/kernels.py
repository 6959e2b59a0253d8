"""kernels: what ran on the devices, by name, per rank or over all ranks."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.devices.tables import KERNEL_DIFF, KERNEL_TIMES
from stashtrace.analysis.devices.work import DeviceRows, Keep, Windows, device_rows, one_of, windows_of
from stashtrace.analysis.intervals import Int64, int64
from stashtrace.analysis.steps.steps import steps
from stashtrace.errors import MissingDataError
from stashtrace.groupby import order_by
from stashtrace.schema.kinds import DeviceWork
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

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
    return order_by(code, lengths)


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
    order = order_by(owner, -found.total_ns, name[found.first])
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
    order = order_by(group, -apart.total_ns, owner)
    slowest = order[starts]  # groups keep their places in the order
    return np.diff(np.append(starts, len(whose))), owner[slowest], apart.total_ns[slowest]


# kernel_diff: two runs kernel by kernel: what became slower, what appeared, what vanished. For ``stashtrace diff``.

Floats = npt.NDArray[np.float64]
#: A change counts if it is this many standard errors, and this share of all work.
_SIGNIFICANT, _WORTH_NAMING = 3.0, 0.001
ALL = "all"


@dataclass(frozen=True, slots=True)
class _Run:
    """Sums of each (name, work) in each sample: a step of a rank, or a rank.

    Attributes
    ----------
    keys : list of (str, str)
    sums_ns, counts : int64 arrays, samples x keys
    owner : int64 array
        Device of each sample.
    alone_ns : float array
        Standard error of the mean sum by the spread of single calls: where no device has several samples.
    """

    keys: list[tuple[str, str]]
    sums_ns: Int64
    counts: Int64
    owner: Int64
    alone_ns: Floats


def kernel_diff(before: Trace, after: Trace) -> Table:
    """Compare the work on devices of two runs, name by name.

    Times are means over the steps of all ranks, on the device's clock, without warm-up and validation; where one of the
    runs has no steps, means over ranks of the whole recording, which says something if both did the same work. A change
    is called slower or faster if it exceeds three standard errors and a thousandth of all work: slower because each
    call takes longer, or because there are more calls, which the columns tell apart. Steps of one run are not
    independent runs: what differs from run to run is not in the error.

    Parameters
    ----------
    before, after : Trace
        Both need kernels.

    Columns
    -------
    name, work, before_ns, after_ns, change_ns, before_calls_count, after_calls_count, before_mean_ns, after_mean_ns,
    noise_ns, verdict

    Raises
    ------
    MissingDataError
        If one of them has no kernels.
    """
    by_step = _has_steps(before) and _has_steps(after)
    old, new = _run(before, by_step), _run(after, by_step)
    keys = sorted(set(old.keys) | set(new.keys))
    first, second = _aligned(old, keys), _aligned(new, keys)
    floor = _WORTH_NAMING * float(first.sums_ns.sum(axis=1).mean())
    rows = [_compare(key, first, second, [at], floor) for at, key in enumerate(keys)]
    kinds = sorted({work for _, work in keys})
    sums = [(ALL, "")] + [(ALL, kind) for kind in kinds if len(kinds) > 1]
    total = []
    for name, kind in sums:
        chosen = [at for at, (_, work) in enumerate(keys) if not kind or work == kind]
        total.append(_compare((name, kind), first, second, chosen, floor))
    table = Table.from_rows(KERNEL_DIFF, rows)
    order = order_by(-np.abs(table["change_ns"]), table["name"], table["work"])
    return Table.concat(KERNEL_DIFF, [Table.from_rows(KERNEL_DIFF, total), table.take(order)])


def _has_steps(trace: Trace) -> bool:
    try:
        return len(steps(trace)) > 0
    except MissingDataError:
        return False


def _run(trace: Trace, by_step: bool) -> _Run:
    devices = device_rows(trace)
    windows = [_counted(trace, w) for w in windows_of(devices, "step")] if by_step else windows_of(devices, "rank")
    rows, sample, owner = _samples(devices, windows)
    samples = len(owner)
    kernels = trace.kernels
    name, work = kernels["name_code"][rows], kernels["work_code"][rows]
    lengths = kernels["end_ns"][rows] - kernels["begin_ns"][rows]
    distinct, place = np.unique(name * len(WORK_NAMES) + np.clip(work, 0, len(WORK_NAMES) - 1), return_inverse=True)
    shape = samples, len(distinct)
    sums, counts = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    np.add.at(sums, (sample, place), lengths)
    np.add.at(counts, (sample, place), 1)
    total = np.maximum(counts.sum(axis=0), 1)
    off = (lengths - (sums.sum(axis=0) / total)[place]) ** 2
    spread = np.bincount(place, off, minlength=len(distinct)) / np.maximum(total - 1, 1)
    keys = [(trace.text(k // len(WORK_NAMES)), str(WORK_NAMES[k % len(WORK_NAMES)])) for k in distinct.tolist()]
    return _Run(keys, sums, counts, owner, np.sqrt(spread * total) / max(samples, 1))


def _counted(trace: Trace, windows: Windows) -> Windows:
    """Without warm-up and validation, unless nothing else is there."""
    found = steps(trace)
    left_out = found["step"][(found["warmup"] != 0) | (found["kind"] == "validation")]
    kept = ~np.isin(windows.step, left_out)
    if not kept.any():
        return windows
    return Windows(windows.step[kept], windows.begin[kept], windows.end[kept])


def _samples(devices: list[DeviceRows], windows: list[Windows]) -> tuple[Int64, Int64, Int64]:
    """(row, its sample) of the work that begins in a window, and the device of each sample."""
    rows, sample, owner, first = [], [], [], 0
    for number, (device, own) in enumerate(zip(devices, windows, strict=True)):
        if not len(own.begin):
            continue
        begin = device["begin_ns"]
        at = np.searchsorted(own.begin, begin, side="right") - 1
        inside = (at >= 0) & (begin < own.end[np.maximum(at, 0)])
        rows.append(device.rows[inside])
        sample.append(first + at[inside])
        owner.append(np.full(len(own.begin), number))
        first += len(own.begin)
    if not first:
        raise MissingDataError("no step of the run holds work on a device")
    return np.concatenate(rows), int64(np.concatenate(sample)), int64(np.concatenate(owner))


def _aligned(run: _Run, keys: list[tuple[str, str]]) -> _Run:
    """The columns of these keys; several codes of one text are summed."""
    place = {key: at for at, key in enumerate(keys)}
    to = np.array([place[key] for key in run.keys], dtype=np.int64)
    sums = np.zeros((len(run.sums_ns), len(keys)), dtype=np.int64)
    counts = np.zeros_like(sums)
    alone = np.zeros(len(keys))
    np.add.at(sums.T, to, run.sums_ns.T)
    np.add.at(counts.T, to, run.counts.T)
    np.add.at(alone, to, run.alone_ns**2)
    return _Run(keys, sums, counts, run.owner, np.sqrt(alone))


def _compare(key: tuple[str, str], old: _Run, new: _Run, chosen: list[int], floor: float) -> tuple[object, ...]:
    (first, calls, mean, error), (second, new_calls, new_mean, new_error) = (_summary(r, chosen) for r in (old, new))
    change = second - first
    noise = int(max(_SIGNIFICANT * float(np.hypot(error, new_error)), floor))
    if not calls or not new_calls:
        verdict = "no difference" if not calls and not new_calls else "vanished" if calls else "appeared"
    else:
        verdict = "no difference" if abs(change) <= noise else "slower" if change > 0 else "faster"
    return (*key, first, second, change, calls, new_calls, mean, new_mean, noise, verdict)


def _summary(run: _Run, chosen: list[int]) -> tuple[int, float, int, float]:
    """Mean over samples of the time and of the calls, mean of one call, standard error of the time."""
    sums, counts = run.sums_ns[:, chosen].sum(axis=1), run.counts[:, chosen].sum(axis=1)
    samples, calls = len(sums), int(counts.sum())
    sizes = np.bincount(run.owner)
    free = samples - int(np.count_nonzero(sizes))
    if free > 0:  # ranks differ from one another in both runs alike, so that is no noise
        means = np.bincount(run.owner, sums) / np.maximum(sizes, 1)
        error = float(np.sqrt(((sums - means[run.owner]) ** 2).sum() / free / samples))
    else:
        error = float(np.sqrt((run.alone_ns[chosen] ** 2).sum()))
    return round(sums.sum() / samples), calls / samples, int(sums.sum()) // calls if calls else -1, error
