"""kernels: work on the devices by name, per rank or over all ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from stashtrace.analysis.devices.device_tables import KERNEL_DIFF, KERNEL_TIMES
from stashtrace.analysis.devices.work import DeviceRows, Keep, Windows, device_rows, one_of, windows_of
from stashtrace.analysis.intervals import Floats, Int64, int64, window_at
from stashtrace.analysis.steps.steps import steps, steps_if_any
from stashtrace.errors import MissingDataError
from stashtrace.schema.groupby import GroupBy, order_by
from stashtrace.schema.kinds import DeviceWork
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

WORK_NAMES = np.array(["", *(work.name.lower() for work in DeviceWork)])


def kernel_times(
    trace: Trace, *, by: Literal["run", "rank"] = "run", orphans: Keep = "keep", last_step: Keep = "keep"
) -> Table:
    """Sum up what ran on the devices by name, the largest first.

    Times of one name are added, also where kernels ran at once on several streams: shares are those of the work, not of
    the timeline. The time of communication kernels includes waiting for other ranks. Columns: table ``kernel_times`` of
    ``docs/reference/tables.md``.

    Parameters
    ----------
    trace : Trace
        Needs kernels.
    by : {"run", "rank"}
        Over all ranks, or per rank.
    orphans, last_step : {"keep", "drop"}
        As in ``breakdown``.

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
    owner = rank if by == "rank" else np.full(len(rows), -1)
    similar, of_ranks = GroupBy(owner, name, work), GroupBy(owner, name, work, rank)
    total, total_of_rank = similar.sum(lengths), of_ranks.sum(lengths)
    ranks = GroupBy(*of_ranks.keys[:3])  # sums of ranks, numbered as ``similar``; in each the lowest rank comes first
    slowest = ranks.argmax(total_of_rank)
    owner, name, work = similar.keys
    owners = GroupBy(owner)
    columns = {
        "rank": owner,
        "name_code": name,
        "work": WORK_NAMES[np.clip(work, 0, len(WORK_NAMES) - 1)],
        "calls_count": similar.sizes,
        "total_ns": total,
        "share_ratio": total / np.maximum(owners.sum(total)[owners.number], 1),
        "mean_ns": total // similar.sizes,
        "median_ns": similar.median(lengths),
        "min_ns": similar.min(lengths),
        "max_ns": similar.max(lengths),
        "ranks_count": ranks.sizes,
        "slowest_rank": of_ranks.keys[3][slowest],
        "slowest_ns": total_of_rank[slowest],
    }
    order = order_by(owner, -total, name)
    return Table(KERNEL_TIMES, {n: v[order] for n, v in columns.items()})


# kernel_diff: two runs compared kernel by kernel: slower, new and missing kernels. For ``stashtrace diff``.

#: A change counts if it is this many standard errors, and this share of all work.
_SIGNIFICANT, _WORTH_NAMING = 3.0, 0.001
ALL = "all"


@dataclass(frozen=True, slots=True)
class _Run:
    """Sums of each (name, work) in each sample: a step of a rank, or a rank."""

    keys: list[tuple[str, str]]
    #: int64 arrays, samples x keys.
    sums_ns: Int64
    counts: Int64
    #: Device of each sample.
    owner: Int64
    #: Standard error of the mean sum from the spread of single calls; used where no device has several samples.
    alone_ns: Floats


def kernel_diff(before: Trace, after: Trace) -> Table:
    """Compare the work on devices of two runs, name by name.

    Times are means over the steps of all ranks, on the device's clock, without warm-up and validation. If one of the
    runs has no steps, they are means over ranks of the whole recording, which are comparable if both did the same work.
    A change is called slower or faster if it exceeds three standard errors and a thousandth of all work. The columns
    show whether each call takes longer or there are more calls. Steps of one run are not independent runs: the error
    does not include differences from run to run.

    ``before``, ``after``: both need kernels. Raises MissingDataError if one of them has no kernels. Columns: table
    ``kernel_diff`` of ``docs/reference/tables.md``.
    """
    by_step = _has_steps(before) and _has_steps(after)
    old, new = _run(before, by_step), _run(after, by_step)
    keys = sorted(set(old.keys) | set(new.keys))
    first, second = _align_to_keys(old, keys), _align_to_keys(new, keys)
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
    table = steps_if_any(trace)
    return table is not None and len(table) > 0


def _run(trace: Trace, by_step: bool) -> _Run:
    devices = device_rows(trace)
    windows = (
        [_counted_windows(trace, w) for w in windows_of(devices, "step")] if by_step else windows_of(devices, "rank")
    )
    rows, sample, owner = _samples(devices, windows)
    kernels = trace.kernels
    name, work = kernels["name_code"][rows], kernels["work_code"][rows]
    lengths = kernels["end_ns"][rows] - kernels["begin_ns"][rows]
    similar = GroupBy(name, np.clip(work, 0, len(WORK_NAMES) - 1))
    cells = GroupBy.cells((sample, similar.number), (len(owner), len(similar)))
    off = (lengths - (similar.sum(lengths) / similar.sizes)[similar.number]) ** 2
    spread = similar.sum(off) / np.maximum(similar.sizes - 1, 1)
    keys = [(trace.text(n), str(WORK_NAMES[w])) for n, w in zip(*(k.tolist() for k in similar.keys), strict=True)]
    return _Run(keys, cells.sum(lengths), cells.sizes, owner, np.sqrt(spread * similar.sizes) / max(len(owner), 1))


def _counted_windows(trace: Trace, windows: Windows) -> Windows:
    """Return the windows without warm-up and validation, unless there are no others."""
    every_step = steps(trace)
    left_out = every_step["step"][(every_step["warmup"] != 0) | (every_step["kind"] == "validation")]
    kept = ~np.isin(windows.step, left_out)
    if not kept.any():
        return windows
    return Windows(windows.step[kept], windows.begin[kept], windows.end[kept])


def _samples(devices: list[DeviceRows], windows: list[Windows]) -> tuple[Int64, Int64, Int64]:
    """Return rows and samples of the work that begins in a window, and the device of each sample."""
    rows, sample, owner, first = [], [], [], 0
    for number, (device, own) in enumerate(zip(devices, windows, strict=True)):
        if not len(own.begin):
            continue
        at = window_at(device["begin_ns"], own.begin, own.end)
        rows.append(device.rows[at >= 0])
        sample.append(first + at[at >= 0])
        owner.append(np.full(len(own.begin), number))
        first += len(own.begin)
    if not first:
        raise MissingDataError("no step of the run holds work on a device")
    return np.concatenate(rows), int64(np.concatenate(sample)), int64(np.concatenate(owner))


def _align_to_keys(run: _Run, keys: list[tuple[str, str]]) -> _Run:
    """Return the run with the columns of these keys; several codes of one text are summed."""
    place = {key: at for at, key in enumerate(keys)}
    to = GroupBy.numbered([place[key] for key in run.keys], len(keys))
    return _Run(keys, to.sum(run.sums_ns.T).T, to.sum(run.counts.T).T, run.owner, np.sqrt(to.sum(run.alone_ns**2)))


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
    """Return time and calls as means over samples, mean time of one call (-1: none), standard error of the time."""
    sums, counts = run.sums_ns[:, chosen].sum(axis=1), run.counts[:, chosen].sum(axis=1)
    samples, calls = len(sums), int(counts.sum())
    by_device = GroupBy(run.owner)
    free = samples - len(by_device)
    if free > 0:  # ranks differ from one another in the same way in both runs, so that is not noise
        means = by_device.sum(sums) / by_device.sizes
        error = float(np.sqrt(((sums - means[by_device.number]) ** 2).sum() / free / samples))
    else:
        error = float(np.sqrt((run.alone_ns[chosen] ** 2).sum()))
    return round(sums.sum() / samples), calls / samples, int(sums.sum()) // calls if calls else -1, error
