"""Repeated kinds of collectives with their sums per step, and the update that follows, rank by rank."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.intervals import Int64, TimeSet, int64
from stashtrace.analysis.steps.steps import counted_steps, host_steps, step_at
from stashtrace.calibration.robust_line import Floats
from stashtrace.replay.advice.counted_collectives import DEVICE, HOST, RankWork, Scene
from stashtrace.replay.advice.policy import POLICY
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import DeviceWork
from stashtrace.schema.table import Table

#: Work of an update on a device: its kernels, and copies and fills that it launches.
_UPDATE_WORK = (DeviceWork.KERNEL, DeviceWork.GRAPH, DeviceWork.COPY, DeviceWork.MEMSET)


@dataclass(frozen=True, slots=True)
class Kind:
    """Collectives of one operation, size, communicator and position in the step."""

    #: Place among the kinds.
    number: int
    group_hash: int
    op: int
    message_bytes: int
    position: int
    element_bytes: int
    #: Entries of ``Scene.calls``.
    entries: Int64

    @property
    def elements_count(self) -> int:
        """Elements of a message, 0 if its size is not known."""
        return max(self.message_bytes, 0) // self.element_bytes


def kinds_of(scene: Scene) -> list[Kind]:
    """Group calls by communicator, operation, size, position and type."""
    calls = scene.calls
    if not len(calls):
        return []
    groups = GroupBy(calls.group_hash, calls.op, calls.message_bytes, calls.position, calls.element_bytes)
    kinds = []
    for number, entries in enumerate(groups):
        group, op, size, position, element = (int(column[number]) for column in groups.keys)
        kinds.append(Kind(number, group, op, size, position, element, int64(entries)))
    return kinds


def by_rank(scene: Scene, entries: Int64, values: npt.NDArray[np.generic]) -> dict[int, float]:
    """Return the sum per step of some calls' values, for each rank that has any.

    It is the median over the counted steps if every step has such a call, else the mean.
    """
    calls = scene.calls
    sums_of = {}
    for rank, rows in GroupBy(calls.rank[entries]).items():
        numbers = scene.ranks[rank].step
        steps = GroupBy.numbered(np.searchsorted(numbers, calls.step[entries[rows]]), len(numbers))
        sums = steps.sum(np.asarray(values, dtype=np.float64)[rows])
        sums_of[rank] = float(np.median(sums) if steps.sizes.all() else sums.mean())
    return sums_of


@dataclass(frozen=True, slots=True)
class Update:
    """The optimizer's work per step of one rank: medians over the counted steps."""

    #: Time in which its kernels ran; for a host, the phase without waits for collectives.
    work_ns: float
    #: Time between its first and last kernel in which the device did nothing; -1 on hosts.
    gap_ns: float
    #: Pieces of work on the device; -1 on hosts.
    kernels_count: float


def updates(scene: Scene) -> dict[int, Update]:
    """Measure the updates of the ranks that have one and whose work was recorded."""
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
    """Measure the work that was launched inside the optimizer's phases."""
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
    by_step = GroupBy.numbered(np.searchsorted(work.step, step[inside]), len(work.step))
    last = by_step.max(end[inside], empty=0)
    first = np.minimum(by_step.min(begin[inside], empty=0), last)
    ran = TimeSet.of(begin[inside], end[inside]).within(first, last)
    gaps = last - first - busy.within(first, last)
    return Update(float(np.median(ran)), float(np.median(gaps)), float(np.median(by_step.sizes)))


def spread(values: dict[int, float]) -> tuple[float, float]:
    """Return the least and the most over ranks; zeros if there is no rank."""
    return (min(values.values()), max(values.values())) if values else (0.0, 0.0)


def typical(values: dict[int, float]) -> float:
    """Return the median over ranks, 0 if there is no rank."""
    return float(np.median(list(values.values()))) if values else 0.0


def contention_ratio(scene: Scene) -> float:
    """Return how many times longer kernels take during a collective than alone; -1 if too few pairs were recorded.

    It compares kernels of one place in their steps (the n-th of a name that every step has equally often) that ran
    during collectives in some steps and during none in others. The result is the median over places, weighted by
    time.
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
        talking = TimeSet.of_rows(kernels, talks)
        rows = work.kernels[inside]
        begin, length = kernels["begin_ns"][rows], kernels["end_ns"][rows] - kernels["begin_ns"][rows]
        place = _places(kernels["name_code"][rows], step[inside])
        during = talking.within(begin, begin + length)
        known = (place >= 0) & (length > 0)
        slow = _means(place, length, known & (during >= POLICY.during_ratio * length))
        alone = _means(place, length, known & (during == 0))
        both = np.isfinite(slow) & np.isfinite(alone)
        ratios.append(np.maximum(slow[both] / alone[both], 1.0))
        weights.append(alone[both])
    ratio, weight = np.concatenate(ratios), np.concatenate(weights)
    return _weighted_median(ratio, weight) if len(ratio) >= POLICY.fewest_pairs_count else -1.0


def _places(name: Int64, step: Int64) -> Int64:
    """Number each kernel's place: its name, and its position among those of its step; -1 if steps differ in number."""
    in_step = GroupBy(name, step)
    names = GroupBy(in_step.keys[0])
    regular = names.min(in_step.sizes) == names.max(in_step.sizes)
    places = GroupBy(name, in_step.position)
    return np.where(regular[names.number][in_step.number], places.number, -1)


def _means(place: Int64, length: Int64, chosen: npt.NDArray[np.bool_]) -> Floats:
    """Return the mean length by place; NaN where none was chosen."""
    places = GroupBy.numbered(place, int(place.max(initial=-1)) + 1)
    count = places.count(where=chosen)
    means: Floats = np.full(len(count), np.nan)
    np.divide(places.sum(length, where=chosen), count, out=means, where=count > 0)
    return means


def _weighted_median(values: Floats, weights: Floats) -> float:
    order = np.argsort(values)
    summed = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(summed, summed[-1] / 2)])
