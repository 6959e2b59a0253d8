"""Replay a run's graph with some of its work shorter or longer, and return how long its steps would be.

An answer is an interval where the run leaves something open. How much of a transfer is latency, for example, is known
only where the run moved messages of several sizes.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from stashtrace.analysis.graph import EdgeKind, Graph, PipelineGraph, Replayed, Resource
from stashtrace.analysis.intervals import Bools, Floats, Int64
from stashtrace.errors import MissingDataError, UsageError, guarded
from stashtrace.replay import change_lengths
from stashtrace.replay.changes import BUCKET, IN_ORDER, KEPT, TIMES, Change
from stashtrace.replay.changes import LINKS as LINK_QUANTITIES
from stashtrace.replay.communication.buckets import Buckets, regrouped
from stashtrace.replay.loaders import loader_options
from stashtrace.replay.loaders.slow_worker import require_slow_worker, without_slow_workers, workers_differ
from stashtrace.replay.loaders.worker_count import known_loaders, with_own_batches_apart, with_workers, workers_to_try
from stashtrace.replay.policy import POLICY
from stashtrace.replay.prediction_intervals import BETWEEN_RUNS, Contention, noise_ns, period_of
from stashtrace.replay.remove_straggler import without_lateness
from stashtrace.replay.replayed_budget import step_budget
from stashtrace.replay.scenario import Links, Scenario, Unknowns
from stashtrace.replay.sharing import (
    cpus_left,
    crowded_hosts,
    measured_alone,
    replayed,
    shared,
    shared_kinds,
    sharing_links,
)
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import StallKind
from stashtrace.schema.stall_kinds import words_of

#: Single changes that are tried, besides those of links and of the size of buckets.
_SINGLE = (
    "compute=x0.5",
    "straggler=0",
    "launch=x0.5",
    "h2d=x0.5",
    "prep=x0.5",
    "fetch=0",
    "other=0",
    "python=x0.5",
    "compile=0",
    "objects=0",
    "checkpoint=0",
    "persistent_workers=1",
    "slow_worker=0",
    "in_order=false",
)
#: Columns of the budget in which a rank waits for others; its own work is known better.
_WAITS = ("data", "link", "late", "copy", "host")
#: Longest sum of all work, a hundred years: it fits 64 bits with what it is added to.
_LONGEST_NS = 3.2e18


@dataclass(frozen=True, slots=True)
class Answer:
    """Mean step time over all ranks and their steps without warm-up, in ns."""

    changes: tuple[Change, ...]
    measured_ns: float
    #: By a replay of the unchanged graph. The answer has the same error.
    replayed_ns: float
    #: With the changes, for the best and the worst case of what the run leaves open.
    low_ns: float
    high_ns: float
    #: By how much the mean of another recording of the changed job may differ on either side: the error of the mean by
    #: the scatter of the steps (95 %), the difference of long recordings, and that of storage.
    noise_ns: float
    #: Part of the step time that no edge explains; it is taken to stay as it was.
    gap_ratio: float
    #: Mean time of a step by column of the summary, in the replay of the run and with the changes. They add up to
    #: ``replayed_ns`` and to ``high_ns``. Both come from the same kind of replay, so that a change without effect
    #: changes no column.
    before_ns: dict[str, float]
    after_ns: dict[str, float]
    #: Steps in the mean. The scatter of fewer than four is unknown, which makes ``noise_ns`` wider.
    steps_count: int = 0
    #: By how much another recording may save more or less: the difference of long recordings, and the scatter of what
    #: steps save. Rare long steps come more or less often in another recording.
    saving_noise_ns: float = 0.0

    @property
    def is_reliable(self) -> bool:
        """Whether the replay of the unchanged run is good enough to predict changes from it."""
        return self.error_ratio <= POLICY.most_error_ratio and self.gap_ratio <= POLICY.most_gap_ratio

    @property
    def middle_ns(self) -> float:
        """Middle of the interval: the answer as one number."""
        return (self.low_ns + self.high_ns) / 2

    @property
    def interval_ns(self) -> tuple[float, float]:
        """Interval of the mean step of the changed job, with noise."""
        return self.low_ns - self.noise_ns, self.high_ns + self.noise_ns

    @property
    def saved_ns(self) -> tuple[float, float]:
        """Interval of what a recorded step saves, with noise."""
        low, high = self.replayed_ns - self.high_ns, self.replayed_ns - self.low_ns
        return low - self.saving_noise_ns, high + self.saving_noise_ns

    @property
    def bottleneck(self) -> str:
        """Largest stall with the changes, or ``compute``."""
        stalls = {name: ns for name, ns in self.after_ns.items() if name != "compute" and ns > 0}
        worst = max(stalls, key=stalls.__getitem__, default="compute")
        return worst if stalls.get(worst, 0.0) > POLICY.bottleneck_ratio * self.high_ns else "compute"

    @property
    def error_ratio(self) -> float:
        """Error of the replay of the unchanged run, relative to the measured step time."""
        return abs(self.replayed_ns - self.measured_ns) / max(self.measured_ns, 1.0)


def what_if(graph: Graph, changes: Iterable[Change], *, buckets: Buckets | None = None) -> Answer:
    """Predict the step time with some changes, all at once.

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
        If no rank has two steps, the recording has nothing of what a change is about, or the buckets that are to change
        are unknown.
    UsageError
        If a change makes the job take more than a hundred years.
    """
    return ReplayedRun(graph).what_if(changes, buckets)


def single_changes(graph: Graph, *, buckets: Buckets | None = None, unsaid: list[str] | None = None) -> list[Answer]:
    """Predict single changes of what the run has; those that save most come first.

    ``buckets``: of the gradients, to rank sizes too. ``unsaid``: gets a line for each change of which the prediction
    fails, by a fault of ours; without it the first one is raised.
    """
    return ReplayedRun(graph).single_changes(buckets, unsaid)


def known_changes(graph: Graph, together: Sequence[Change]) -> list[Change]:
    """Return those of several changes that one word stands for of which the run has something.

    Raises MissingDataError if the run has nothing of any.
    """
    known = [change for change in together if _is_known(graph, change)]
    if not known:
        _require_known(graph, together[0])
    return known


def _is_known(graph: Graph, change: Change) -> bool:
    try:
        _require_known(graph, change)
    except MissingDataError:
        return False
    return True


def _require_known(graph: Graph, change: Change) -> None:
    """Raise MissingDataError for a change of something that was not recorded."""
    on_hosts = change.quantity not in ("compute", "straggler") and "." not in change.quantity
    if isinstance(graph, PipelineGraph) and on_hosts:
        raise MissingDataError(
            f"{change}: only operations of the devices were recorded, nothing of their hosts",
            hint="compute, late and the links of its transfers can be changed",
        )
    link = change.quantity.partition(".")[0]
    if link in change_lengths.LINKS and not change_lengths.over_link(graph, link).any():
        words = [words_of(name) for name in change_lengths.LINKS if change_lengths.over_link(graph, name).any()]
        raise MissingDataError(
            f"{change}: no transfer of this run is known to count as {words_of(link)}",
            hint=f"its transfers count as {' and '.join(words)}" if words else "it has no transfers",
        )
    if change.quantity == "straggler":
        _require_peers(graph, change)
    elif change.quantity == "slow_worker":
        require_slow_worker(graph, change)
    elif change.quantity == KEPT:
        loader_options.require_new_workers(graph, change)
    elif change.quantity == IN_ORDER:
        loader_options.require_several_workers(graph, change)
    elif change.quantity in TIMES:
        change_lengths.require_time(graph, change)
    elif change.quantity == "workers":
        known_loaders(graph, change)


def _require_peers(graph: Graph, change: Change) -> None:
    """Raise MissingDataError if no recorded rank can have waited for another."""
    if len(np.unique(graph.ends_rank)) < 2:
        raise MissingDataError(
            f"{change}: only one rank was recorded, so no rank is known to have waited for it",
            hint="give the files of all ranks, or record the job with at least two ranks",
        )
    if not (graph.edge_kind == EdgeKind.MEMBER).any():
        raise MissingDataError(
            f"{change}: no collective was recorded, so no rank is known to have waited for another",
            hint="ranks that do not wait for each other cannot be late",
        )


def best_buckets(graph: Graph, buckets: Buckets) -> Answer | None:
    """Return the size of buckets with the shortest steps by the replay; None if none is better than those of the run.

    Sizes are compared by the middle of their intervals.
    """
    return ReplayedRun(graph).best_buckets(buckets)


def best_workers(graph: Graph) -> Answer | None:
    """Return the least number of workers whose steps are as short as those of any larger number, by the replay.

    None if the run made no batches, or its passes have no batches for more workers.
    """
    return ReplayedRun(graph).best_workers()


class ReplayedRun:
    """A run that is replayed with changes; what several answers need of the unchanged run is computed once.

    ``budgets``: whether answers say where the time of a step goes. ``noise``: whether they say by how much the mean of
    another recording may differ; without it ``noise_ns`` is 0.
    """

    def __init__(self, graph: Graph, *, budgets: bool = True, noise: bool = True) -> None:
        self.graph, self._budgets, self._noise = graph, budgets, noise
        measured = graph.measured_step_ns
        counted = (measured >= 0) & graph.ends_counted
        self.counted: Bools = counted if counted.any() else measured >= 0
        if not self.counted.any():
            raise MissingDataError("no rank has two steps", hint="a step lasts from the end of the step before")
        self._by_step = GroupBy(graph.ends_step[self.counted])
        self.measured_ns = self._mean_of(measured[self.counted])
        if self.measured_ns <= 0:
            raise MissingDataError("the counted steps took no time", hint="see `stashtrace analyze steps`")
        self.steps: Int64 = np.unique(graph.ends_step[self.counted])
        #: Length of each counted step, mean of its ranks.
        self.steps_ns: Floats = self._means_of(measured[self.counted])
        self._quick_ns = min(self.measured_ns, float(np.quantile(self.steps_ns, POLICY.quick_steps_quantile)))
        self.unchanged = graph.replay()
        self._shared: dict[frozenset[str], tuple[Replayed, Contention]] = {}
        self._alone: dict[tuple[frozenset[StallKind], float], Graph] = {}
        #: Scenarios of the run without changes; the luck of their unknowns is all that their lengths depend on.
        self._of_luck: dict[float, Scenario] = {}
        self._missed: dict[tuple[frozenset[StallKind], float], float] = {}

    def what_if(self, changes: Iterable[Change], buckets: Buckets | None = None) -> Answer:
        """Return the answer of :func:`what_if`."""
        changes = tuple(changes)
        for change in changes:
            _require_known(self.graph, change)
        return self.answer(changes, buckets)

    def single_changes(
        self,
        buckets: Buckets | None = None,
        unsaid: list[str] | None = None,
        *,
        only: Collection[str] | None = None,
        most_workers: float = math.inf,
    ) -> list[Answer]:
        """Return the answers of :func:`single_changes`.

        ``only``: those of these quantities. ``most_workers``: no larger number of loader workers is asked about.
        """
        asked = [Change.parse(text) for text in _SINGLE]
        asked += [
            Change(f"{link}.{quantity}", factor)
            for link in change_lengths.LINKS
            for quantity, factor in (("bandwidth", 2.0), ("latency", 0.5))
        ]
        predictions: dict[str, Callable[[], Answer | None]] = {
            str(change): partial(self._answer_if_known, change) for change in asked
        }
        if buckets is not None:
            predictions[BUCKET] = partial(self.best_buckets, buckets)
        predictions["workers"] = partial(self.best_workers, most_workers)
        if only is not None:
            predictions = {name: make for name, make in predictions.items() if name.partition("=")[0] in only}
        answers = [
            make() if unsaid is None else guarded(f"what {change} would save", make, unsaid.append)
            for change, make in predictions.items()
        ]
        worth = [a for a in answers if a is not None and a.low_ns <= (1 - POLICY.worth_saving_ratio) * a.replayed_ns]
        return sorted(worth, key=lambda a: a.low_ns + a.high_ns)

    def _answer_if_known(self, change: Change) -> Answer | None:
        known = change.quantity not in self.absent_times and _is_known(self.graph, change)
        return self.answer((change,)) if known else None

    def best_buckets(self, buckets: Buckets) -> Answer | None:
        """Return the answer of :func:`best_buckets`."""
        answers = []
        for size in buckets.candidates_mib:
            with contextlib.suppress(MissingDataError):  # it would divide messages whose gradients are unknown
                answers.append(self.answer((Change(BUCKET, size),), buckets))
        best = min(answers, key=lambda a: a.low_ns + a.high_ns, default=None)
        worth = (
            best is not None and best.low_ns + best.high_ns <= 2 * (1 - POLICY.worth_saving_ratio) * best.replayed_ns
        )
        return best if worth else None

    def best_workers(self, most: float = math.inf) -> Answer | None:
        """Return the answer of :func:`best_workers`. ``most``: no larger number is asked about."""
        best = None
        for change in workers_to_try(self.graph, most):
            with contextlib.suppress(MissingDataError):
                answer = self.answer((change,))
                if (
                    best is not None
                    and answer.middle_ns > best.middle_ns - POLICY.workers_suffice_ratio * answer.replayed_ns
                ):
                    break  # still more workers do what these do
                best = answer
        return best

    def answer(self, changes: tuple[Change, ...], buckets: Buckets | None = None) -> Answer:
        """Replay each scenario of the changes and combine them."""
        return self._combined(self._scenarios(changes, buckets), changes, changed=bool(changes))[0]

    def shorter(self, removed: Sequence[Floats]) -> Answer:
        """Predict the step with less work.

        ``removed``: ns by node that go, once or for both bounds of what is in doubt.
        """
        return self._combined(list(map(self._without, removed)), (), changed=True)[0]

    def shorter_by_step(self, removed: tuple[Floats, Floats]) -> tuple[Answer, Floats, float]:
        """Return what :meth:`shorter` predicts, :meth:`saved_ns` of the middle of both bounds, and the least saving.

        The last is a mean of the counted steps, by the replays alone. Bounds that are the same array are replayed
        once.
        """
        low, high = removed
        scenarios = [self._without(low)] if low is high else [self._without(low), self._without(high)]
        answer, before, runs = self._combined(scenarios, (), changed=True)
        saved = [self.saved_by_step(before, after) for _, after in runs]
        of_steps = saved[0] if low is high else self.saved_ns((low + high) / 2)
        return answer, of_steps, min(float(ns.mean()) for ns in saved)

    def replayed_without(self, removed: Floats) -> Replayed:
        """Replay the run with less work, as if its threads had a CPU each. ``removed``: ns by node that go."""
        return replayed(self._without(removed))

    def saved_ns(self, removed: Floats) -> Floats:
        """Return by how much each counted step is shorter with less work. ``removed``: ns by node that go."""
        hosts, scenario = self._crowded(()), self._without(removed)
        if hosts:
            return self.saved_by_step(self._contention(frozenset(hosts))[0], shared(scenario, hosts))
        return self.saved_by_step(self.unchanged, replayed(scenario))

    def _without(self, removed: Floats) -> Scenario:
        """Return the scenario of less work. ``removed``: ns by node that go."""
        base = self._unchanged(Unknowns())
        return base.with_work(np.maximum(base.work - removed, 0.0))

    def saved_by_step(self, before: Replayed, after: Replayed) -> Floats:
        """Return by how much each counted step is shorter in one replay than in another."""
        lengths = [np.maximum(self.graph.step_ns(one)[self.counted], 0) for one in (before, after)]
        return self._means_of(lengths[0]) - self._means_of(lengths[1])

    def _combined(
        self, scenarios: Sequence[Scenario], changes: tuple[Change, ...], *, changed: bool
    ) -> tuple[Answer, Replayed, list[tuple[Graph, Replayed]]]:
        """Replay scenarios and combine them; also return the replay of the run as it was, and those of the scenarios.

        ``changes``: what made the scenarios, if they are not just shorter work.
        """
        graph = self.graph
        runs = [(scenario.graph, replayed(scenario)) for scenario in scenarios]
        unchanged = self.unchanged
        alone = [self._mean(*run) for run in runs]
        missed = [self._missed_ns(scenario) for scenario in scenarios]
        times = [ns + more for ns, more in zip(alone, missed, strict=True)]
        company = [self._company_doubt_ns(scenario, ns) for scenario, ns in zip(scenarios, times, strict=True)]
        low, high = _ends([(ns, ns) for ns in times], company)
        cpus = self._crowded(changes) if changed else {}
        if cpus:
            crowd = self._with_cpus(scenarios, cpus, missed, company)
            unchanged, runs, times = crowd.unchanged, crowd.runs, crowd.times
            low, high = crowd.low_ns, crowd.high_ns
        # Shorter steps have the job do all else more often, too: messages, hand-overs, the interpreter's own threads.
        # What that costs at the pace of the run's own quick steps is in the recording.
        pace = 2 * self._quick_ns / max(low + high, 1.0)
        fewer = self._crowded(changes, pace) if changed and pace > 1 else {}
        if fewer and fewer != cpus:
            high = max(high, self._with_cpus(scenarios, fewer, missed, company).high_ns)
        # Less work delays nothing, and more of it hurries nothing. A mean over the counted steps may say otherwise:
        # what the warm-up hid in the run, such as batches made ahead, a shorter warm-up does not hide.
        tendencies = {scenario.tendency for scenario in scenarios}
        replayed_ns = self._unchanged_ns
        if changed and (tendencies == {-1} or {change.quantity for change in changes} == {"straggler"}):
            low, high = min(low, replayed_ns), min(high, replayed_ns)
        elif changed and tendencies == {1}:
            low, high = max(low, replayed_ns), max(high, replayed_ns)
        noise_ns = math.hypot(self._noise_ns(runs), self._storage_ns(scenarios, alone)) if self._noise else 0.0
        present = len(np.unique(graph.ends_rank))
        if changes and all(
            c.quantity == "ranks" and change_lengths.ranks_wanted(c, present) >= present for c in changes
        ):
            low, high = max(low, self.measured_ns), max(high, self.measured_ns)  # the same work, and more waiting
        answer = Answer(
            changes,
            self.measured_ns,
            replayed_ns,
            low,
            high,
            noise_ns,
            self._gap_ratio,
            self._now_ns if self._budgets else {},
            self._then(unchanged, *runs[times.index(max(times))], high) if self._budgets else {},
            len(self.steps),
            self._saving_noise_ns(unchanged, runs) if changed else 0.0,
        )
        return answer, unchanged, runs

    def _crowded(self, changes: Sequence[Change], pace: float = 1.0) -> dict[str, float]:
        """Return the CPUs of hosts on which threads compete for them, with changes, at this multiple of the pace."""
        return crowded_hosts(self.graph, lambda present: _workers(changes, present), pace=pace, apart=self._apart_ratio)

    @cached_property
    def _apart_ratio(self) -> float:
        """Part of what the job does outside its nodes that none of these waits for.

        How much of it runs at the same time is not recorded. With too few CPUs a replay of the unchanged run takes
        longer than the run: it is the least part with which it does not, to an eighth.
        """
        unchanged, longest_ns = Scenario.of(self.graph, Unknowns()), (1 + BETWEEN_RUNS) * self.measured_ns

        def takes_too_long(apart: float) -> bool:
            cpus = crowded_hosts(self.graph, apart=apart)
            return bool(cpus) and self._mean(self.graph, shared(unchanged, cpus)) > longest_ns

        if not takes_too_long(0.0):
            return 0.0
        low, high = 0.0, 1.0
        if takes_too_long(high):
            return high
        while high - low > POLICY.apart_precision_ratio:
            middle = (low + high) / 2
            low, high = (middle, high) if takes_too_long(middle) else (low, middle)
        return high

    def _with_cpus(
        self, scenarios: Sequence[Scenario], cpus: dict[str, float], missed: Sequence[float], company: Sequence[float]
    ) -> _Crowd:
        """Replay scenarios whose work shares these CPUs."""
        unchanged, contention = self._contention(frozenset(cpus))
        runs = [(scenario.graph, shared(scenario, cpus)) for scenario in scenarios]
        times = [self._mean(*run) + ns for run, ns in zip(runs, missed, strict=True)]
        free = [self._mean(scenario.graph, shared(scenario, _endless(cpus))) for scenario in scenarios]
        free = [ns + more for ns, more in zip(free, missed, strict=True)]
        bounds = [contention.bounds_ns(*pair) for pair in zip(times, free, strict=True)]
        return _Crowd(unchanged, runs, times, *_ends(bounds, company))

    @cached_property
    def _unchanged_ns(self) -> float:
        """Mean step in the replay without changes."""
        return self._mean(self.graph, self.unchanged)

    @cached_property
    def _gap_ratio(self) -> float:
        """Part of the run's steps that no edge explains."""
        return _gap_ratio(self.graph, self.unchanged, self.counted)

    @cached_property
    def _columns_ns(self) -> dict[str, float]:
        """Budget of a step in the replay without changes."""
        return step_budget(self.graph, self.unchanged, self.steps)

    @cached_property
    def _now_ns(self) -> dict[str, float]:
        """Budget of the mean step without changes."""
        scale = self._unchanged_ns / max(sum(self._columns_ns.values()), 1.0)
        return {name: scale * ns for name, ns in self._columns_ns.items()}

    def _then(self, unchanged: Replayed, graph: Graph, replayed: Replayed, step_ns: float) -> dict[str, float]:
        """Return the budget with changes: each column grows as it does from a replay without them to one with them.

        By how much these replays miss the step is taken for waiting, not for work.
        """
        as_recorded = unchanged is self.unchanged
        before = self._columns_ns if as_recorded else step_budget(self.graph, unchanged, self.steps)
        after = step_budget(graph, replayed, self.steps)
        columns = {
            name: now * after[name] / before[name] if before[name] > 0 else after[name]
            for name, now in self._now_ns.items()
        }
        waited = sum(columns[name] for name in _WAITS)
        left = step_ns - (sum(columns.values()) - waited)
        if left < 0:
            scale = step_ns / max(sum(columns.values()), 1.0)
            return {name: scale * ns for name, ns in columns.items()}
        if waited <= 0:
            return columns | {"other": columns["other"] + left}
        return {name: ns * (left / waited if name in _WAITS else 1.0) for name, ns in columns.items()}

    def _scenarios(self, changes: tuple[Change, ...], buckets: Buckets | None) -> list[Scenario]:
        """Make a scenario for each extreme of what the run leaves open and these changes depend on."""
        asked = {change.quantity for change in changes}
        latencies = (0.0, 1.0) if asked & {*LINK_QUANTITIES, "compression", "ranks", BUCKET} else (0.5,)
        unsure = {"fetch", "straggler", KEPT, "compression", "ranks", "network.bandwidth", "interconnect.bandwidth"}
        if (self.graph.resource == Resource.DEVICE).any():
            unsure |= {*TIMES}
        if self.graph.facts is not None and self.graph.facts.starts.any():
            unsure.add("workers")
        lucks = (0.0, 1.0) if asked & unsure else (0.5,)
        speeds: tuple[int, ...] = (0,)
        if asked & {"workers", IN_ORDER} and self._workers_differ:
            speeds = (0, 1, 2) if "workers" in asked else (0, 1)
        scenarios = []
        # The latency of a transfer does not grow where others share its link.
        corners = [(kinds, (0.0, 1.0) if kinds else latencies) for kinds in self._shared_kinds]
        all_corners = [(kinds, latency) for kinds, latencies in corners for latency in latencies]
        for (kinds, latency), luck, speed in itertools.product(all_corners, lucks, speeds):
            unknowns = Unknowns(latency, luck, speed)
            run = self._alone_on(kinds, unknowns)
            graph = _with_buckets(run, changes, buckets, latency=latency > 0)
            if "workers" in asked:
                graph = with_own_batches_apart(graph)
            base = self._unchanged(unknowns) if graph is self.graph else Scenario.of(graph, unknowns, run)
            scenario = sharing_links(base, kinds)
            scenarios.append(_apply(scenario, changes))
            _require_possible(scenarios[-1], changes)
            _require_possible(scenario, changes)
        return scenarios

    def _unchanged(self, unknowns: Unknowns) -> Scenario:
        """Return the scenario of the run without changes; most changes begin with it."""
        if unknowns.luck not in self._of_luck:
            self._of_luck[unknowns.luck] = Scenario.of(self.graph, unknowns)
        return replace(self._of_luck[unknowns.luck], unknowns=unknowns)

    @cached_property
    def absent_times(self) -> frozenset[str]:
        """Times that the run has none of."""
        return change_lengths.absent_times(self.graph)

    @cached_property
    def _workers_differ(self) -> bool:
        return workers_differ(self.graph)

    @cached_property
    def _shared_kinds(self) -> tuple[frozenset[StallKind], ...]:
        return shared_kinds(self.graph)

    def _company_doubt_ns(self, scenario: Scenario, mean_ns: float) -> float:
        """Return the doubt about how much time transfers lose to others on their links."""
        if scenario.links is None:
            return 0.0
        lost = self._unchanged_ns - self._mean(self.graph, scenario.run.replay())
        loses = mean_ns - self._mean(scenario.graph, scenario.replay())
        return min(POLICY.company_doubt_ratio * abs(loses - lost), POLICY.most_doubt_ratio * mean_ns)

    def _missed_ns(self, scenario: Scenario) -> float:
        """Return by how much the unchanged run is longer than its replay with these links."""
        if scenario.links is None:
            return 0.0
        key = scenario.links.kinds, scenario.unknowns.latency
        if key not in self._missed:
            run = sharing_links(Scenario.of(scenario.run, Unknowns(scenario.unknowns.latency)), scenario.links.kinds)
            self._missed[key] = self._unchanged_ns - self._mean(run.graph, replayed(run))
        return self._missed[key]

    def _alone_on(self, kinds: frozenset[StallKind], unknowns: Unknowns) -> Graph:
        """Return the run with transfers over links of these kinds as long as they would have been alone."""
        key = kinds, unknowns.latency
        if key not in self._alone:
            links = Links.of(self.graph, kinds)
            self._alone[key] = self.graph if links is None else measured_alone(self.graph, links, unknowns)
        return self._alone[key]

    def _contention(self, hosts: frozenset[str]) -> tuple[Replayed, Contention]:
        """Replay the unchanged run with the shared CPUs of hosts; return that, and how long its work waits for them."""
        if hosts not in self._shared:
            left = cpus_left(self.graph, self._apart_ratio)
            cpus = {host: cpus for host, cpus in left.items() if host in hosts}
            unchanged = Scenario.of(self.graph, Unknowns())
            replayed, free = shared(unchanged, cpus), shared(unchanged, _endless(cpus))
            means = self._mean(self.graph, replayed), self._mean(self.graph, free)
            self._shared[hosts] = replayed, Contention(self.measured_ns, *means)
        return self._shared[hosts]

    def _mean(self, graph: Graph, replayed: Replayed) -> float:
        # By damaged times a step may end before the one that it follows.
        return self._mean_of(np.maximum(graph.step_ns(replayed)[self.counted], 0))

    def _mean_of(self, lengths: Int64) -> float:
        """Return the mean over steps of the mean over ranks, as the step time of the run is made."""
        return float(self._means_of(lengths).mean())

    def _means_of(self, lengths: Int64) -> Floats:
        """Return the mean over ranks of each counted step."""
        return np.asarray(self._by_step.sum(lengths) / self._by_step.sizes)

    def _noise_ns(self, runs: Sequence[tuple[Graph, Replayed]]) -> float:
        """Return by how much another recording may differ, by the scatter of the replayed steps."""
        lengths = [graph.step_ns(replayed)[self.counted] for graph, replayed in runs]
        return float(np.mean([noise_ns(self._means_of(step_ns)) for step_ns in lengths]))

    def _saving_noise_ns(self, unchanged: Replayed, runs: Sequence[tuple[Graph, Replayed]]) -> float:
        """Return by how much another recording may save more or less, by the scatter of what the steps save."""
        before = self.graph.step_ns(unchanged)[self.counted]
        saved = [self._means_of(before - graph.step_ns(replayed)[self.counted]) for graph, replayed in runs]
        scatter_ns = np.mean([noise_ns(means, period_of(means)) for means in saved])
        return math.hypot(BETWEEN_RUNS * self.measured_ns, float(scatter_ns))

    def _storage_ns(self, scenarios: Sequence[Scenario], step_ns: Sequence[float]) -> float:
        """Return how much longer steps are if storage is slower in another recording."""
        longest = 0.0
        for scenario, now_ns in zip(scenarios, step_ns, strict=True):
            slower = scenario.with_storage(1 + POLICY.storage_between_ratio)
            if (slower.work != scenario.work).any():
                longest = max(longest, self._mean(scenario.graph, replayed(slower)) - now_ns)
        return longest


@dataclass(frozen=True, slots=True)
class _Crowd:
    """Replays of scenarios whose work shares CPUs, that of the unchanged run, and the bounds of both."""

    unchanged: Replayed
    runs: list[tuple[Graph, Replayed]]
    times: list[float]
    low_ns: float
    high_ns: float


def _with_buckets(run: Graph, changes: tuple[Change, ...], buckets: Buckets | None, *, latency: bool) -> Graph:
    """Return the graph with the last size of buckets that was asked for; each end of the interval has another."""
    sizes = [change.factor for change in changes if change.quantity == BUCKET and change.factor is not None]
    if not sizes:
        return run
    if buckets is None:
        raise MissingDataError(f"{BUCKET} needs the buckets of the run", hint="gradient_buckets(trace, graph)")
    return regrouped(run, buckets, sizes[-1], latency=latency)


def _endless(cpus: dict[str, float]) -> dict[str, float]:
    """Return the same hosts with any number of CPUs."""
    return dict.fromkeys(cpus, math.inf)


def _ends(bounds: Sequence[tuple[float, float]], doubts: Sequence[float]) -> tuple[float, float]:
    """Return the bounds of all of these bounds with their doubts."""
    pairs = list(zip(bounds, doubts, strict=True))
    return min(low - doubt for (low, _), doubt in pairs), max(high + doubt for (_, high), doubt in pairs)


def _require_possible(scenario: Scenario, changes: Sequence[Change]) -> None:
    """Raise UsageError for times that do not fit the nanoseconds of a replay."""
    longest_ns = float(np.abs(scenario.work).sum() + np.abs(scenario.lag).sum())
    if not longest_ns < _LONGEST_NS:
        raise UsageError(
            f"{', '.join(map(str, changes))}: the work of all ranks would take more than a hundred years",
            hint="ask for less",
        )


def _gap_ratio(graph: Graph, replayed: Replayed, counted: Bools) -> float:
    """Return the part of the steps that no edge explains, along the path to each rank's last step; mean over ranks."""
    length = graph.step_ns(replayed)
    end = replayed.end_ns[graph.ends] + graph.ends_lag_ns
    since = int((end - length)[counted].min())
    gaps = np.append(np.where(replayed.begin_ns >= since, graph.gap_ns, 0), 0)
    none = len(graph)
    edge = replayed.binding
    before = np.append(np.where(edge >= 0, np.append(graph.source, none)[edge], none), none)
    while (before != none).any():  # each round doubles how far back the sums reach
        gaps, before = gaps + gaps[before], before[before]
    rows = np.flatnonzero(counted)
    last = rows[GroupBy(graph.ends_rank[rows]).last]
    return float(gaps[graph.ends[last]].sum()) / max(float((end[last] - since).sum()), 1.0)


def _workers(changes: Sequence[Change], present: int) -> float:
    """Return the larger number of workers of a rank, before or after changes."""
    counts = [change for change in changes if change.quantity == "workers"]
    return max([present, *(change.amount or (change.factor or 1.0) * present for change in counts)])


def _apply(scenario: Scenario, changes: Sequence[Change]) -> Scenario:
    """Apply changes to a scenario, one after the other.

    Those that ask which process made a batch come first, and last the one for which the lengths of all batches
    matter.
    """
    places = {KEPT: 0, "slow_worker": 0, IN_ORDER: 2}
    for change in sorted(changes, key=lambda change: places.get(change.quantity, 1)):
        if change.quantity == BUCKET:
            continue
        if change.quantity in LINK_QUANTITIES:
            scenario = change_lengths.with_link(scenario, change)
        elif change.quantity == "straggler":
            scenario = without_lateness(scenario)
        elif change.quantity == KEPT:
            scenario = loader_options.with_kept_workers(scenario)
        elif change.quantity == "slow_worker":
            scenario = without_slow_workers(scenario)
        elif change.quantity == IN_ORDER:
            scenario = loader_options.with_any_order(scenario)
        elif change.quantity == "workers":
            scenario = with_workers(scenario, change)
        elif change.quantity == "ranks":
            scenario = change_lengths.with_ranks(scenario, change)
        elif change.quantity == "compression":
            scenario = change_lengths.compressed(scenario)
        else:
            scenario = change_lengths.with_time(scenario, change)
    return scenario
