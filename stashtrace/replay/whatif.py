"""Replay a run's graph with some of its work shorter or longer, and say how long its steps would be.

What a run does not tell about itself makes the answer an interval: how much of a transfer is latency is known only
where the run moved messages of several sizes.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.graph import EdgeKind, Graph, PipelineGraph, Replayed, Resource
from stashtrace.analysis.timeset import Int64
from stashtrace.errors import MissingDataError
from stashtrace.model.kinds import StallKind
from stashtrace.replay.buckets import Buckets, message_line, regrouped
from stashtrace.replay.budget import step_budget
from stashtrace.replay.changes import BUCKET, Change
from stashtrace.replay.peers import of_others, without_late_devices, without_late_operations

Floats = npt.NDArray[np.float64]

#: A single change that saves less is not listed.
_WORTH_SAVING = 0.005
#: Stalls below this part of the step are no bottleneck.
_WORTH_NAMING = 0.03
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
_LINKS = {"network": StallKind.NETWORK, "interconnect": StallKind.INTERCONNECT}


@dataclass(frozen=True, slots=True)
class Answer:
    """Mean step time over all ranks and their steps without warm-up, in ns.

    Attributes
    ----------
    measured_ns : float
    replayed_ns : float
        Of the unchanged graph: what the replay is wrong by, the answer is wrong by as well.
    low_ns, high_ns : float
        With the changes.
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
    gap_ratio: float
    before_ns: dict[str, float]
    after_ns: dict[str, float]

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
    measured = graph.measured_step_ns
    counted = (measured >= 0) & graph.ends_counted
    counted = counted if counted.any() else measured >= 0
    if not counted.any():
        raise MissingDataError("no rank has two steps", hint="the length of a step is that between the ends of two")
    unchanged = graph.replay()
    # Buckets are nodes of their own, so that each end of the interval is a graph of its own.
    graphs = [_with_buckets(graph, changes, buckets, latency=latency) for latency in (False, True)]
    runs = [
        other.replay(work_ns=_changed(other, changes, latency=latency))
        for other, latency in zip(graphs, (0.0, 1.0), strict=True)
    ]
    times = [float(other.step_ns(run)[counted].mean()) for other, run in zip(graphs, runs, strict=True)]
    longest = times.index(max(times))
    steps = np.unique(graph.ends_step[counted])
    return Answer(
        changes,
        float(measured[counted].mean()),
        float(graph.step_ns(unchanged)[counted].mean()),
        min(times),
        max(times),
        _gap_ratio(graph, unchanged, counted),
        step_budget(graph, unchanged, steps),
        step_budget(graphs[longest], runs[longest], steps),
    )


def _gap_ratio(graph: Graph, replayed: Replayed, counted: npt.NDArray[np.bool_]) -> float:
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


def single_changes(graph: Graph, *, buckets: Buckets | None = None) -> list[Answer]:
    """What single changes would save, the largest first; of those that touch something that the run has."""
    kinds = set(graph.kind.tolist())
    asked = ["compute=x0.5", "straggler=0"]
    if not isinstance(graph, PipelineGraph):
        asked += ["launch=x0.5", "h2d=x0.5", "prep=x0.5", "fetch=0"]
    for link, kind in _LINKS.items():
        asked += [f"{link}.bandwidth=x2", f"{link}.latency=x0.5"] if kind in kinds else []
    answers = [what_if(graph, [Change.parse(text)]) for text in asked]
    best = best_buckets(graph, buckets) if buckets is not None else None
    answers += [best] if best is not None else []
    worth = [a for a in answers if a.low_ns <= (1 - _WORTH_SAVING) * a.replayed_ns]
    return sorted(worth, key=lambda a: a.low_ns + a.high_ns)


def _require_known(graph: Graph, change: Change) -> None:
    """Refuse what a recording of operations alone says nothing of."""
    if not isinstance(graph, PipelineGraph):
        return
    if change.quantity not in ("compute", "straggler") and "." not in change.quantity:
        raise MissingDataError(
            f"{change}: the recording has the operations of the devices alone, nothing of their hosts",
            hint="compute, straggler and the links of its transfers can be changed",
        )
    link = change.quantity.partition(".")[0]
    if link in _LINKS and not (graph.kind == _LINKS[link]).any():
        known = [name for name, kind in _LINKS.items() if (graph.kind == kind).any()]
        raise MissingDataError(
            f"{change}: no transfer of this run is known to have gone over the {link}",
            hint=f"its transfers count as {' and '.join(known)}" if known else "it has no transfers",
        )


def best_buckets(graph: Graph, buckets: Buckets) -> Answer | None:
    """The size of buckets whose steps are shortest by the replay; None if none is better than those of the run.

    Where the run leaves open how long its messages would take, the middle of the interval counts.
    """
    answers = []
    for size in buckets.candidates_mib:
        with contextlib.suppress(MissingDataError):  # it would divide messages that nobody knows the inside of
            answers.append(what_if(graph, [Change(BUCKET, size)], buckets=buckets))
    best = min(answers, key=lambda a: a.low_ns + a.high_ns, default=None)
    worth = best is not None and best.low_ns + best.high_ns <= 2 * (1 - _WORTH_SAVING) * best.replayed_ns
    return best if worth else None


def _with_buckets(graph: Graph, changes: Sequence[Change], buckets: Buckets | None, *, latency: bool) -> Graph:
    """The graph with the last size of buckets that was asked for."""
    sizes = [change.factor for change in changes if change.quantity == BUCKET]
    if not sizes:
        return graph
    if buckets is None:
        raise MissingDataError(f"{BUCKET} needs the buckets of the run", hint="gradient_buckets(trace, graph)")
    return regrouped(graph, buckets, sizes[-1], latency=latency)


def _changed(graph: Graph, changes: Sequence[Change], *, latency: float) -> Int64:
    """Lengths of all nodes; ``latency``: where it is not known, this part of the most it can be."""
    work = graph.work_ns.astype(np.float64)
    fetch = np.minimum(graph.fetch_ns, graph.work_ns).astype(np.float64)
    for change in changes:
        if change.quantity == BUCKET:
            continue
        link, _, what = change.quantity.partition(".")
        before = work
        if what:
            carries = np.isin(graph.resource, (Resource.TRANSFER, Resource.STREAM))
            chosen = carries & (graph.kind == _LINKS[link]) & (graph.work_ns > 0)
            work = np.where(chosen, _transfers(graph, chosen, work, change.factor, what, latency), work)
        elif change.quantity == "straggler" and isinstance(graph, PipelineGraph):
            work = without_late_operations(graph, work)
        elif change.quantity == "straggler":
            work = without_late_devices(graph, _alike(graph, work))
            fetch = _batches_alike(graph, fetch)
            batches = graph.resource == Resource.WORKER
            work = np.where(batches, _batches_alike(graph, work), work)
        elif change.quantity == "fetch":
            work, fetch = work + (change.factor - 1) * fetch, change.factor * fetch
            read = np.isin(graph.resource, _HOSTS) & (graph.kind == StallKind.FETCH)
            work = np.where(read, change.factor * work, work)
        elif change.quantity == "prep":
            work = np.where(graph.resource == Resource.WORKER, fetch + change.factor * (work - fetch), work)
            made = np.isin(graph.resource, _HOSTS) & (graph.kind == StallKind.PREP)
            work = np.where(made, change.factor * work, work)
        else:
            resources, kind = _WORK[change.quantity]
            chosen = np.isin(graph.resource, resources) & (graph.kind == kind)
            work = np.where(chosen, change.factor * work, work)
        if not what and change.quantity != "straggler":
            work = _of_timed_devices(graph, change, work, before, latency)
    return np.rint(np.maximum(work, 0)).astype(np.int64)


def _of_timed_devices(graph: Graph, change: Change, work: Floats, before: Floats, unsure: float) -> Floats:
    """Lengths on devices that events timed: of what they do not tell, ``unsure`` 0 is the best and 1 the worst.

    Where the host may have paced a device, it may have computed, or waited for launches. A wait for copies or batches
    is what was left of the work behind it, which may be longer: made faster, it may leave no wait.
    """
    on_device = graph.resource == Resource.DEVICE
    if not on_device.any():
        return work
    if change.factor > 1 and change.quantity != "compute":
        raise MissingDataError(
            f"{change} cannot be told of devices timed by events: they show waits, not the work behind them",
            hint="record a few steps with `stashtrace run --kernels`",
        )
    found = work
    if change.quantity in _WAITED_FOR:
        waits = on_device & np.isin(graph.kind, _WAITED_FOR[change.quantity])
        found = np.where(waits, change.factor * before * unsure, work)
    elif len(graph.doubtful):
        paced = on_device & graph.doubtful
        factor = change.factor if (unsure == 0.0) == (change.factor < 1) else 1.0
        found = np.where(paced, factor * before, work)
    return found


def _transfers(
    graph: Graph, chosen: npt.NDArray[np.bool_], work: Floats, factor: float, what: str, latency: float
) -> Floats:
    """Transfers as ``latency + bytes / bandwidth``, one of both multiplied."""
    mine, sizes = graph.work_ns[chosen].astype(np.float64), graph.moved_bytes[chosen].astype(np.float64)
    fixed = np.zeros(len(work))
    if not len(mine):
        return work
    shortest = float(mine.min())
    line = message_line(sizes, mine)
    fixed[chosen] = min(max(line[0], 0.0), shortest) if line is not None else latency * shortest
    if len(graph.doubtful) and latency > 0:  # what a transfer takes longer than another of its size may be a wait
        of_each = np.full(len(np.unique(sizes)), np.inf)
        of_size = np.unique(sizes, return_inverse=True)[1]
        np.minimum.at(of_each, of_size, mine)
        fixed[chosen] += np.where(graph.doubtful[chosen], latency * (mine - of_each[of_size]), 0.0)
    fixed = np.minimum(fixed, work)
    found: Floats = fixed + (work - fixed) / factor if what == "bandwidth" else factor * fixed + (work - fixed)
    return found


def _alike(graph: Graph, work: Floats) -> Floats:
    """Before each collective no rank's thread works longer than the others that enter it do in the median."""
    threads = np.flatnonzero(np.isin(graph.resource, (Resource.STEP_THREAD, Resource.DEVICE)))
    member = np.flatnonzero(graph.edge_kind == EdgeKind.MEMBER)
    out: Floats = work.copy()
    ranks = np.unique(graph.rank[threads]).tolist()
    transfers, place = np.unique(graph.target[member], return_inverse=True)
    if len(ranks) < 2 or not len(transfers):
        return out
    kinds, kind_of = np.unique(graph.kind[threads], return_inverse=True)
    spent = np.full((len(kinds), len(ranks), len(transfers)), np.nan)
    parts = []
    for row, rank in enumerate(ranks):
        chosen = graph.rank[threads] == rank
        mine, kind = threads[chosen], kind_of[chosen]
        entered = np.isin(graph.source[member], mine)
        called, which = graph.end_ns[graph.source[member[entered]]], place[entered]
        order = np.argsort(called, kind="stable")
        at = np.searchsorted(called[order], graph.end_ns[mine], side="left")
        known = at < len(order)
        mine, kind, next_one = mine[known], kind[known], which[order[at[known]]]
        parts.append((row, mine, kind, next_one))
        spent[:, row, np.unique(next_one)] = 0.0
        np.add.at(spent, (kind, row, next_one), work[mine])
    whole = spent.sum(axis=0)
    typical = of_others(whole)
    usual = np.array([of_others(of_kind) for of_kind in spent])
    # What a rank does longer goes first, kind by kind; where that is not all, everything it does is shortened alike.
    excess = np.maximum(spent - usual, 0.0)
    needed = np.maximum(whole - typical, 0.0)
    share = np.divide(needed, excess.sum(axis=0), out=np.zeros_like(needed), where=excess.sum(axis=0) > 0)
    left = spent - excess * np.minimum(share, 1.0)
    target, reached = np.fmin(whole, typical), left.sum(axis=0)
    left *= np.divide(target, reached, out=np.ones_like(reached), where=reached > target)
    for row, mine, kind, next_one in parts:
        before, after = spent[kind, row, next_one], left[kind, row, next_one]
        out[mine] = work[mine] * np.divide(after, before, out=np.ones_like(before), where=(before > 0) & (after >= 0))
    return out


def _batches_alike(graph: Graph, amount: Floats) -> Floats:
    """No rank's n-th batch takes longer than those of the others do in the median."""
    out: Floats = amount.copy()
    batches = np.flatnonzero(graph.resource == Resource.WORKER)
    ranks = np.unique(graph.rank[batches]).tolist()
    if len(ranks) < 2:
        return out
    ordered = [mine[np.argsort(graph.begin_ns[mine], kind="stable")] for mine in
               (batches[graph.rank[batches] == rank] for rank in ranks)]  # fmt: skip
    count = min(len(mine) for mine in ordered)
    typical = of_others(np.array([amount[mine[:count]] for mine in ordered]))
    for row, mine in enumerate(ordered):
        out[mine[:count]] = np.minimum(amount[mine[:count]], typical[row])
    return out
