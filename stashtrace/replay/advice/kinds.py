"""Repeated kinds of collectives, and sums a step of what was seen of them; the update that follows, rank by rank."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.intervals import Int64, TimeSet, int64
from stashtrace.analysis.steps.steps import counted_steps, host_steps, step_at
from stashtrace.calibration.lines import Floats
from stashtrace.replay.advice.calls import DEVICE, HOST, RankWork, Scene
from stashtrace.schema.kinds import DeviceWork
from stashtrace.schema.table import Table

#: Work of an update on a device: its kernels, and copies and fills that it launches.
_UPDATE_WORK = (DeviceWork.KERNEL, DeviceWork.GRAPH, DeviceWork.COPY, DeviceWork.MEMSET)

#: A kernel is beside a collective if this much of it is; so many places tell something of contention.
_BESIDE, _FEWEST_PAIRS = 0.9, 10


@dataclass(frozen=True, slots=True)
class Kind:
    """Collectives of one operation, size, communicator and position in the step.

    Attributes
    ----------
    number : int
        Place among the kinds.
    group_hash, op, message_bytes, position, element_bytes : int
    entries : int64 array
        Entries of ``Scene.calls``.
    """

    number: int
    group_hash: int
    op: int
    message_bytes: int
    position: int
    element_bytes: int
    entries: Int64

    @property
    def elements_count(self) -> int:
        """Elements of a message, 0 if its size is not known."""
        return max(self.message_bytes, 0) // self.element_bytes


def kinds_of(scene: Scene) -> list[Kind]:
    """All kinds, by communicator, operation, size, position and type."""
    calls = scene.calls
    if not len(calls):
        return []
    columns = (calls.group_hash, calls.op, calls.message_bytes, calls.position, calls.element_bytes)
    places = np.stack([np.unique(column, return_inverse=True)[1].reshape(-1) for column in columns], axis=1)
    known, first, of = np.unique(places, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(of.reshape(-1), kind="stable")
    bounds = np.searchsorted(of.reshape(-1)[order], np.arange(len(known) + 1))
    kinds = []
    for number, entry in enumerate(first.tolist()):
        group, op, size, position, element = (int(column[entry]) for column in columns)
        entries = int64(order[bounds[number] : bounds[number + 1]])
        kinds.append(Kind(number, group, op, size, position, element, entries))
    return kinds


def by_rank(scene: Scene, entries: Int64, values: npt.NDArray[np.generic]) -> dict[int, float]:
    """Sum a step of some calls' values, on each rank that has any.

    The median over the counted steps if every one of them has such a call, else the mean.
    """
    calls = scene.calls
    sums_of = {}
    for rank in np.unique(calls.rank[entries]).tolist():
        own = entries[calls.rank[entries] == rank]
        steps = scene.ranks[rank].step
        at = np.searchsorted(steps, calls.step[own])
        amount = np.asarray(values, dtype=np.float64)[calls.rank[entries] == rank]
        sums = np.bincount(at, amount, len(steps))
        everywhere = (np.bincount(at, minlength=len(steps)) > 0).all()
        sums_of[rank] = float(np.median(sums) if everywhere else sums.mean())
    return sums_of


@dataclass(frozen=True, slots=True)
class Update:
    """The optimizer's work a step of one rank: medians over the counted steps.

    Attributes
    ----------
    work_ns : float
        Time in which its kernels ran; of a host, the phase without waits for collectives.
    gap_ns : float
        Time between its first and last kernel in which the device did nothing; -1 on hosts.
    kernels_count : float
        Pieces of work on the device; -1 on hosts.
    """

    work_ns: float
    gap_ns: float
    kernels_count: float


def updates(scene: Scene) -> dict[int, Update]:
    """Updates of the ranks that have one and whose work was seen."""
    steps = counted_steps(host_steps(scene.trace)).sort_by("rank", "begin_ns")
    of_rank = {}
    for rank, work in scene.ranks.items():
        if not len(work.update) or not work.steps_count:
            continue
        mine = steps.take(steps["rank"] == rank)
        if work.seen == DEVICE:
            of_rank[rank] = _on_device(scene, work, mine)
        elif work.seen == HOST:
            begin, end = mine["begin_ns"], mine["end_ns"]
            of_rank[rank] = Update(float(np.median((work.update & work.computing).within(begin, end))), -1.0, -1.0)
    return {rank: update for rank, update in of_rank.items() if update.work_ns > 0}


def _on_device(scene: Scene, work: RankWork, steps: Table) -> Update:
    """Work that was launched inside the optimizer's phases."""
    kernels = scene.trace.kernels
    rows = np.flatnonzero(
        (kernels["process_id"] == work.process_id)
        & np.isin(kernels["work_code"], (*_UPDATE_WORK, DeviceWork.COMMUNICATION))
    )
    launch, begin, end = (kernels[name][rows] for name in ("launch_ns", "begin_ns", "end_ns"))
    busy = TimeSet.of(begin, end)
    inside = (work.update.within(launch, launch + 1) > 0) & (kernels["work_code"][rows] != DeviceWork.COMMUNICATION)
    inside &= launch >= 0
    step = step_at(steps, np.full(len(launch), work.rank, dtype=np.int64), launch)
    inside &= np.isin(step, work.step)
    if not inside.any():
        return Update(0.0, 0.0, 0.0)
    at = np.searchsorted(work.step, step[inside])
    count = len(work.step)
    first, last = np.full(count, np.iinfo(np.int64).max), np.zeros(count, dtype=np.int64)
    np.minimum.at(first, at, begin[inside])
    np.maximum.at(last, at, end[inside])
    first = np.minimum(first, last)
    ran = TimeSet.of(begin[inside], end[inside]).within(first, last)
    gaps = last - first - busy.within(first, last)
    return Update(float(np.median(ran)), float(np.median(gaps)), float(np.median(np.bincount(at, minlength=count))))


def spread(values: dict[int, float]) -> tuple[float, float]:
    """Least and most over ranks; zeros if there is none."""
    return (min(values.values()), max(values.values())) if values else (0.0, 0.0)


def typical(values: dict[int, float]) -> float:
    """Median over ranks, 0 if there is none."""
    return float(np.median(list(values.values()))) if values else 0.0


def contention_ratio(scene: Scene) -> float:
    """How much longer kernels take beside a collective than alone, 1 or more; -1 if too few pairs were seen.

    Compared are the kernels of one place in their steps (the n-th of a name, of a name that each step has as often)
    that lay inside collectives in some steps and outside of all in others. The median over places, weighted by time.
    """
    kernels = scene.trace.kernels
    ratios: list[Floats] = [np.empty(0)]
    weights: list[Floats] = [np.empty(0)]
    steps = counted_steps(host_steps(scene.trace)).sort_by("rank", "begin_ns")
    for work in scene.ranks.values():
        talks = (kernels["process_id"] == work.process_id) & (kernels["work_code"] == DeviceWork.COMMUNICATION)
        launch = kernels["launch_ns"][work.kernels]
        mine = steps.take(steps["rank"] == work.rank)
        step = step_at(mine, np.full(len(launch), work.rank, dtype=np.int64), launch)
        inside = (launch >= 0) & np.isin(step, work.step)
        if work.seen != DEVICE or not talks.any() or not inside.any():
            continue
        talking = TimeSet.of(kernels["begin_ns"][talks], kernels["end_ns"][talks])
        rows = work.kernels[inside]
        begin, length = kernels["begin_ns"][rows], kernels["end_ns"][rows] - kernels["begin_ns"][rows]
        place = _places(kernels["name_code"][rows], step[inside])
        beside = talking.within(begin, begin + length)
        known = (place >= 0) & (length > 0)
        slow = _means(place, length, known & (beside >= _BESIDE * length))
        alone = _means(place, length, known & (beside == 0))
        both = np.isfinite(slow) & np.isfinite(alone)
        ratios.append(np.maximum(slow[both] / alone[both], 1.0))
        weights.append(alone[both])
    ratio, weight = np.concatenate(ratios), np.concatenate(weights)
    return _weighted_median(ratio, weight) if len(ratio) >= _FEWEST_PAIRS else -1.0


def _places(name: Int64, step: Int64) -> Int64:
    """Number of each kernel's place: that of its name and of how many of them its step had before; -1 without one."""
    order = np.lexsort((step, name))  # stable: of one name and step by begin
    name, step = name[order], step[order]
    first = np.ones(len(order), dtype=bool)
    first[1:] = (name[1:] != name[:-1]) | (step[1:] != step[:-1])
    starts = np.flatnonzero(first)
    counts = np.diff(np.append(starts, len(order)))
    nth = np.arange(len(order)) - np.repeat(starts, counts)
    names, of = np.unique(name[starts], return_inverse=True)
    least, most = np.full(len(names), np.iinfo(np.int64).max), np.zeros(len(names), dtype=np.int64)
    np.minimum.at(least, of, counts)
    np.maximum.at(most, of, counts)
    regular = np.repeat((least == most)[of], counts)
    numbers = np.unique(np.stack([name, nth], axis=1), axis=0, return_inverse=True)[1].reshape(-1)
    out = np.full(len(order), -1, dtype=np.int64)
    out[order] = np.where(regular, numbers, -1)
    return out


def _means(place: Int64, length: Int64, chosen: npt.NDArray[np.bool_]) -> Floats:
    """Mean length by place; NaN where none was chosen."""
    count = int(place.max(initial=-1)) + 1
    times = np.bincount(place[chosen], minlength=count)
    means: Floats = np.full(count, np.nan)
    np.divide(np.bincount(place[chosen], length[chosen], count), times, out=means, where=times > 0)
    return means


def _weighted_median(values: Floats, weights: Floats) -> float:
    order = np.argsort(values)
    summed = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(summed, summed[-1] / 2)])
