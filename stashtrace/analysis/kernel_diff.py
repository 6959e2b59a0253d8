"""kernel_diff: two runs kernel by kernel: what became slower, what appeared, what vanished. For ``stashtrace diff``."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.device_work import DeviceRows, Windows, device_rows, windows_of
from stashtrace.analysis.kernel_times import WORK_NAMES
from stashtrace.analysis.steps import steps
from stashtrace.analysis.timeset import Int64, int64
from stashtrace.errors import MissingDataError
from stashtrace.model.schemas import KERNEL_DIFF
from stashtrace.model.table import Table
from stashtrace.model.trace import Trace

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
    order = np.lexsort((table["work"], table["name"], -np.abs(table["change_ns"])))
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
