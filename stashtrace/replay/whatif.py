"""Replay a run's graph with some of its work shorter or longer, and say how long its steps would be.

What a run does not tell about itself makes the answer an interval: how much of a transfer is latency is known only
where the run moved messages of several sizes.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stashtrace.analysis.graph import EdgeKind, Graph, PipelineGraph, Replayed, Resource
from stashtrace.analysis.timeset import Int64
from stashtrace.errors import MissingDataError
from stashtrace.model.kinds import StallKind
from stashtrace.replay.buckets import Buckets, regrouped
from stashtrace.replay.budget import step_budget
from stashtrace.replay.changes import BUCKET, TIMES, Change
from stashtrace.replay.changes import LINKS as LINK_QUANTITIES
from stashtrace.replay.loaders import with_workers
from stashtrace.replay.scenario import Bools, Floats, Scenario, Unknowns
from stashtrace.replay.sharing import crowded_hosts, shared
from stashtrace.replay.straggler import without_lateness
from stashtrace.replay.transfers import LINKS, compressed, with_link, with_ranks

#: A single change that saves less is not listed.
_WORTH_SAVING = 0.005
#: Threads of a rank that drive its steps.
_HOSTS = (Resource.STEP_THREAD, Resource.HOST)
#: Work that is multiplied as it is: where it runs, and its kind.
_WORK = {
    "compute": (
        (Resource.STEP_THREAD, Resource.STREAM, Resource.DEVICE, Resource.COMPUTE_STREAM),
        StallKind.COMPUTE,
    ),
    "launch": ((Resource.HOST,), StallKind.LAUNCH),
    "h2d": ((Resource.STREAM,), StallKind.H2D),
}
#: What a device that events timed was seen to wait for, by the quantity that makes it wait.
_WAITED_FOR = {"h2d": (StallKind.H2D,), "prep": (StallKind.PREP, StallKind.HANDOFF), "fetch": (StallKind.FETCH,)}
#: A batch that a waiting thread has no sooner was held back by its maker.
_HANDED_NS = 1_000_000
#: Stalls below this part of the step are no bottleneck.
_WORTH_NAMING = 0.03
#: Steps in a row that one mean of a mean is made of: neighbours are alike.
_BLOCK_STEPS = 5
#: Of what shared CPUs make of a prediction, so much may be wrong on either side.
_SHARING_DOUBT = 0.25
#: ... but no more of the step: predictions of jobs on too few CPUs were seldom off by more.
_MOST_DOUBT = 0.08
#: Recordings of one job differ by so much, however many steps they have (`benchmarks/results/whatif.md`).
_BETWEEN_RUNS = 0.02
#: Two standard errors on each side.
_ERRORS = 2.0


@dataclass(frozen=True, slots=True)
class Answer:
    """Mean step time over all ranks and their steps without warm-up, in ns.

    Attributes
    ----------
    measured_ns : float
    replayed_ns : float
        Of the unchanged graph: what the replay is wrong by, the answer is wrong by as well.
    low_ns, high_ns : float
        With the changes, for the best and the worst of what the run does not tell.
    noise_ns : float
        What the mean of another recording of the same job may differ by on either side: two standard errors by how the
        steps of this one scatter, and what recordings differ by however long they are.
    gap_ratio : float
        Part of the step time that no edge explains; it is taken to stay as it was.
    before_ns, after_ns : dict of str to float
        Mean time of a step by column of the summary, in the replay of the run, and with the changes (``high_ns``).
    """

    changes: tuple[Change, ...]
    measured_ns: float
    replayed_ns: float
    low_ns: float
    high_ns: float
    noise_ns: float
    gap_ratio: float
    before_ns: dict[str, float]
    after_ns: dict[str, float]

    @property
    def middle_ns(self) -> float:
        """The middle of the interval: the answer as one number."""
        return (self.low_ns + self.high_ns) / 2

    @property
    def interval_ns(self) -> tuple[float, float]:
        """Where the mean step of the changed job lies, noise included."""
        return self.low_ns - self.noise_ns, self.high_ns + self.noise_ns

    @property
    def bottleneck(self) -> str:
        """The stall that is largest with the changes, or ``compute``."""
        stalls = {name: ns for name, ns in self.after_ns.items() if name != "compute" and ns > 0}
        worst = max(stalls, key=stalls.__getitem__, default="compute")
        return worst if stalls.get(worst, 0.0) > _WORTH_NAMING * self.high_ns else "compute"

    def missed_ratio(self, measured_ns: float) -> float:
        """By how much the prediction misses what was measured; below 0: too short, 0 inside of the interval."""
        nearest = min(max(measured_ns, self.low_ns), self.high_ns)
        return nearest / max(measured_ns, 1.0) - 1

    @property
    def error_ratio(self) -> float:
        """By how much the replay of the unchanged run misses the measured step time."""
        return abs(self.replayed_ns - self.measured_ns) / max(self.measured_ns, 1.0)


def what_if(graph: Graph, changes: Iterable[Change], *, buckets: Buckets | None = None) -> Answer:
    """Answer one question; several changes hold together.

    Parameters
    ----------
    graph : Graph
    changes : iterable of Change
        Applied in their order, but ``bucket_mb`` first.
    buckets : Buckets, optional
        Of the graph; needed for ``bucket_mb``.

    Raises
    ------
    MissingDataError
        If no rank has two steps, a change is one of something that the recording says nothing of, or nothing is known
        of the buckets that are to change.
    """
    changes = tuple(changes)
    for change in changes:
        _require_known(graph, change)
    return _Run(graph, buckets).answer(changes)


def single_changes(graph: Graph, *, buckets: Buckets | None = None) -> list[Answer]:
    """What single changes would save, the largest first; of those that touch something that the run has."""
    run, kinds = _Run(graph, buckets), set(graph.kind.tolist())
    asked = ["compute=x0.5", "straggler=0"]
    if not isinstance(graph, PipelineGraph):
        asked += ["launch=x0.5", "h2d=x0.5", "prep=x0.5", "fetch=0"]
    asked += ["workers=x2"] if graph.is_batch.any() and graph.facts is not None else []
    for link, kind in LINKS.items():
        asked += [f"{link}.bandwidth=x2", f"{link}.latency=x0.5"] if kind in kinds else []
    answers = [run.answer((Change.parse(text),)) for text in asked]
    best = best_buckets(graph, buckets) if buckets is not None else None
    answers += [best] if best is not None else []
    worth = [a for a in answers if a.low_ns <= (1 - _WORTH_SAVING) * a.replayed_ns]
    return sorted(worth, key=lambda a: a.low_ns + a.high_ns)


def _require_known(graph: Graph, change: Change) -> None:
    """Refuse what a recording says nothing of."""
    at_hosts = change.quantity not in ("compute", "straggler") and "." not in change.quantity
    if isinstance(graph, PipelineGraph) and at_hosts:
        raise MissingDataError(
            f"{change}: the recording has the operations of the devices alone, nothing of their hosts",
            hint="compute, straggler and the links of its transfers can be changed",
        )
    link = change.quantity.partition(".")[0]
    if link in LINKS and not (graph.kind == LINKS[link]).any():
        known = [name for name, kind in LINKS.items() if (graph.kind == kind).any()]
        raise MissingDataError(
            f"{change}: no transfer of this run is known to have gone over the {link}",
            hint=f"its transfers count as {' and '.join(known)}" if known else "it has no transfers",
        )


def best_buckets(graph: Graph, buckets: Buckets) -> Answer | None:
    """The size of buckets whose steps are shortest by the replay; None if none is better than those of the run.

    Where the run leaves open how long its messages would take, the middle of the interval counts.
    """
    run, answers = _Run(graph, buckets), []
    for size in buckets.candidates_mib:
        with contextlib.suppress(MissingDataError):  # it would divide messages that nobody knows the inside of
            answers.append(run.answer((Change(BUCKET, size),)))
    best = min(answers, key=lambda a: a.low_ns + a.high_ns, default=None)
    worth = best is not None and best.low_ns + best.high_ns <= 2 * (1 - _WORTH_SAVING) * best.replayed_ns
    return best if worth else None


class _Run:
    """A run, replayed as it was, that questions are asked about."""

    def __init__(self, graph: Graph, buckets: Buckets | None) -> None:
        self.graph, self.buckets = graph, buckets
        measured = graph.measured_step_ns
        counted = (measured >= 0) & graph.ends_counted
        self.counted: Bools = counted if counted.any() else measured >= 0
        if not self.counted.any():
            raise MissingDataError("no rank has two steps", hint="the length of a step is that between the ends of two")
        self.measured_ns = float(measured[self.counted].mean())
        self.steps: Int64 = np.unique(graph.ends_step[self.counted])
        self.unchanged = graph.replay()
        self.noise_ns = _noise_ns(graph.ends_step[self.counted], measured[self.counted].astype(np.float64))
        self._sharing: dict[tuple[str, ...], float] = {}

    def answer(self, changes: tuple[Change, ...]) -> Answer:
        graph = self.graph
        scenarios = self._scenarios(changes)
        runs = [(one.graph, one.replay()) for one in scenarios]
        times = [self._mean(*run) for run in runs]
        low, high = min(times), max(times)
        cpus = crowded_hosts(graph, lambda present: _workers(changes, present)) if changes else {}
        if cpus:
            alone = (low + high) / 2
            runs = [(one.graph, shared(one, cpus)) for one in scenarios]
            # What such a replay misses the unchanged run by may grow with the step, or stay.
            times = [self._mean(*run) for run in runs]
            base_ns = self._shared_ns(cpus)
            found = [self.measured_ns * ns / base_ns for ns in times]
            found += [max(self.measured_ns + ns - base_ns, 0.0) for ns in times]
            low, high = min(found), max(found)
            middle = (low + high) / 2
            doubt = min(_SHARING_DOUBT * abs(alone - middle), _MOST_DOUBT * middle)
            low, high = low - doubt, high + doubt
        return Answer(
            changes,
            self.measured_ns,
            self._mean(graph, self.unchanged),
            low,
            high,
            self.noise_ns * (low + high) / 2 / max(self.measured_ns, 1.0),
            _gap_ratio(graph, self.unchanged, self.counted),
            step_budget(graph, self.unchanged, self.steps),
            step_budget(*runs[times.index(max(times))], self.steps),
        )

    def _scenarios(self, changes: tuple[Change, ...]) -> list[Scenario]:
        """One for each corner of what the run does not tell and these changes depend on."""
        asked = {change.quantity for change in changes}
        latencies = (0.0, 1.0) if asked & {*LINK_QUANTITIES, "compression", "ranks", BUCKET} else (0.5,)
        unsure = {"fetch", "straggler", "compression", "ranks", "network.bandwidth", "interconnect.bandwidth"}
        if (self.graph.resource == Resource.DEVICE).any():
            unsure |= {*TIMES}
        lucks = (0.0, 1.0) if asked & unsure else (0.5,)
        found = []
        for latency, luck in itertools.product(latencies, lucks):
            graph = self._with_buckets(changes, latency=latency > 0)
            found.append(_changed(Scenario.of(graph, Unknowns(latency, luck), self.graph), changes))
        return found

    def _with_buckets(self, changes: tuple[Change, ...], *, latency: bool) -> Graph:
        """The graph with the last size of buckets that was asked for: each end of the interval is one of its own."""
        sizes = [change.factor for change in changes if change.quantity == BUCKET and change.factor is not None]
        if not sizes:
            return self.graph
        if self.buckets is None:
            raise MissingDataError(f"{BUCKET} needs the buckets of the run", hint="gradient_buckets(trace, graph)")
        return regrouped(self.graph, self.buckets, sizes[-1], latency=latency)

    def _shared_ns(self, cpus: dict[str, float]) -> float:
        """Mean step of the unchanged run by a replay with shared CPUs."""
        hosts = tuple(sorted(cpus))
        if hosts not in self._sharing:
            replayed = shared(Scenario.of(self.graph, Unknowns()), cpus)
            self._sharing[hosts] = max(self._mean(self.graph, replayed), 1.0)
        return self._sharing[hosts]

    def _mean(self, graph: Graph, replayed: Replayed) -> float:
        return float(graph.step_ns(replayed)[self.counted].mean())


def _gap_ratio(graph: Graph, replayed: Replayed, counted: Bools) -> float:
    """Part of the steps that no edge explains, along what each rank's last step waited for; mean over ranks."""
    length = graph.step_ns(replayed)
    end = replayed.end_ns[graph.ends] + graph.ends_lag_ns
    since = int((end - length)[counted].min())
    gaps = np.append(np.where(replayed.begin_ns >= since, graph.gap_ns, 0), 0)
    none = len(graph)
    edge = replayed.binding
    before = np.append(np.where(edge >= 0, np.append(graph.source, none)[edge], none), none)
    while (before != none).any():  # each round doubles how far back the sums reach
        gaps, before = gaps + gaps[before], before[before]
    ranks = np.unique(graph.ends_rank[counted])
    last = np.array([np.flatnonzero(counted & (graph.ends_rank == rank))[-1] for rank in ranks.tolist()])
    return float(gaps[graph.ends[last]].sum()) / max(float((end[last] - since).sum()), 1.0)


def _workers(changes: Sequence[Change], present: int) -> float:
    """The most workers of a rank that has so many now, before or after changes."""
    counts = [change for change in changes if change.quantity == "workers"]
    return max([present, *(change.amount or (change.factor or 1.0) * present for change in counts)])


def _noise_ns(step: Int64, length: Floats) -> float:
    """By how much the mean of another recording may differ: that of few steps is not well known, and days differ."""
    steps, place = np.unique(step, return_inverse=True)
    means = np.bincount(place, weights=length) / np.bincount(place)
    blocks = len(steps) // _BLOCK_STEPS
    between = _BETWEEN_RUNS * float(means.mean())
    if blocks < 2:
        return between
    of_blocks = means[: blocks * _BLOCK_STEPS].reshape(blocks, _BLOCK_STEPS).mean(axis=1)
    return math.hypot(between, _ERRORS * float(of_blocks.std(ddof=1)) / math.sqrt(blocks))


def _changed(scenario: Scenario, changes: Sequence[Change]) -> Scenario:
    """A scenario with changes, one after the other."""
    for change in changes:
        if change.quantity == BUCKET:
            continue
        if change.quantity in LINK_QUANTITIES:
            scenario = with_link(scenario, change)
        elif change.quantity == "straggler":
            scenario = without_lateness(scenario)
        elif change.quantity == "workers":
            scenario = with_workers(scenario, change)
        elif change.quantity == "ranks":
            scenario = with_ranks(scenario, change)
        elif change.quantity == "compression":
            scenario = compressed(scenario)
        else:
            factor, other = _timed(scenario, change)
            scenario = replace(other, work=_of_timed_devices(scenario, change, factor, other.work))
    return scenario


def _timed(scenario: Scenario, change: Change) -> tuple[float, Scenario]:
    """What a time is multiplied by, and the scenario with it."""
    graph, work, fetch = scenario.graph, scenario.work, scenario.fetch
    on_host = np.isin(graph.resource, _HOSTS)
    if change.quantity == "fetch":
        spent = np.where(on_host & (graph.kind == StallKind.FETCH), work, fetch)
        factor = _factor(scenario, change, spent)
        return factor, replace(scenario, work=work + (factor - 1) * spent, fetch=factor * fetch)
    if change.quantity == "prep":
        made = on_host & (graph.kind == StallKind.PREP)
        spent = np.where(graph.is_batch, work - fetch, np.where(made, work, 0.0))
        factor = _factor(scenario, change, spent)
        # A batch that is handed over late waits for its maker, which is busy with the next one.
        handed = (graph.edge_kind == EdgeKind.BATCH) & (scenario.lag > _HANDED_NS)
        lag = np.where(handed, factor * scenario.lag, scenario.lag)
        return factor, replace(scenario, work=work + (factor - 1) * spent, lag=lag)
    resources, kind = _WORK[change.quantity]
    spent = np.where(np.isin(graph.resource, resources) & (graph.kind == kind), work, 0.0)
    factor = _factor(scenario, change, spent)
    return factor, scenario.with_work(work + (factor - 1) * spent)


def _factor(scenario: Scenario, change: Change, spent: Floats) -> float:
    """By what a time is multiplied: ``spent`` has how much of it each node took, a batch's is that of its step."""
    if change.factor is not None:
        return change.factor
    graph = scenario.graph
    counted = graph.ends_counted if graph.ends_counted.any() else np.ones(len(graph.ends), dtype=bool)
    steps = np.isin(graph.step, graph.ends_step[counted]) & ~graph.is_batch
    batches = graph.is_batch & (spent > 0)
    present = float(spent[steps].sum()) / max(int(counted.sum()), 1)
    present += float(spent[batches].mean()) if batches.any() else 0.0
    if present <= 0:
        raise MissingDataError(
            f"this run has no {change.quantity}: it cannot be {change.text}", hint="only what a run has can be changed"
        )
    return change.factor_from(present)


def _of_timed_devices(scenario: Scenario, change: Change, factor: float, work: Floats) -> Floats:
    """Lengths on devices that events timed: of what they do not tell, ``luck`` 0 is the best and 1 the worst.

    Where the host may have paced a device, it may have computed, or waited for launches. A wait for copies or batches
    is what was left of the work behind it, which may be longer: made faster, it may leave no wait.
    """
    graph, luck = scenario.graph, scenario.unknowns.luck
    on_device = graph.resource == Resource.DEVICE
    if not on_device.any():
        return work
    if factor > 1 and change.quantity != "compute":
        raise MissingDataError(
            f"{change} cannot be told of devices timed by events: they show waits, not the work behind them",
            hint="record a few steps with `stashtrace run --kernels`",
        )
    if change.quantity in _WAITED_FOR:
        waits = on_device & np.isin(graph.kind, _WAITED_FOR[change.quantity])
        return np.where(waits, factor * scenario.work * luck, work)
    if not len(graph.doubtful):
        return work
    paced = on_device & graph.doubtful
    return np.where(paced, (factor if (luck == 0.0) == (factor < 1) else 1.0) * scenario.work, work)
