"""Replay a run's graph with some of its work shorter or longer, and say how long its steps would be.

What a run does not tell about itself makes the answer an interval: how much of a transfer is latency is known only
where the run moved messages of several sizes.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.graph import EdgeKind, Graph, Resource
from stashtrace.analysis.timeset import Int64
from stashtrace.model.kinds import StallKind
from stashtrace.models.robust_line import least_absolute
from stashtrace.replay.changes import Change

Floats = npt.NDArray[np.float64]

#: Sizes tell latency from bandwidth if the largest message is so many times the smallest one.
_SPREAD = 4.0
_LINKS = {"network": StallKind.NETWORK, "interconnect": StallKind.INTERCONNECT}


@dataclass(frozen=True, slots=True)
class Answer:
    """Mean step time over all ranks and steps but each rank's first, in ns.

    Attributes
    ----------
    measured_ns : float
    replayed_ns : float
        Of the unchanged graph: what the replay is wrong by, the answer is wrong by as well.
    low_ns, high_ns : float
        With the changes.
    gap_ratio : float
        Part of the step time that no edge explains; it is taken to stay as it was.
    """

    changes: tuple[Change, ...]
    measured_ns: float
    replayed_ns: float
    low_ns: float
    high_ns: float
    gap_ratio: float

    @property
    def error_ratio(self) -> float:
        """By how much the replay of the unchanged run misses the measured step time."""
        return abs(self.replayed_ns - self.measured_ns) / max(self.measured_ns, 1.0)


def what_if(graph: Graph, changes: Iterable[Change]) -> Answer:
    """Answer one question; several changes hold together.

    Parameters
    ----------
    graph : Graph
    changes : iterable of Change
        Applied in their order.
    """
    changes = tuple(changes)
    measured = graph.measured_step_ns
    counted = measured >= 0
    replayed = graph.step_ns(graph.replay())[counted]
    times = [
        float(graph.step_ns(graph.replay(work_ns=_changed(graph, changes, latency=latency)))[counted].mean())
        for latency in (0.0, 1.0)
    ]
    spent = max(float(measured[counted].sum()), 1.0)
    return Answer(
        changes,
        float(measured[counted].mean()),
        float(replayed.mean()),
        min(times),
        max(times),
        float(graph.gap_ns[graph.step > graph.ends_step.min()].sum()) / spent,
    )


def _changed(graph: Graph, changes: Sequence[Change], *, latency: float) -> Int64:
    """Lengths of all nodes; ``latency``: where it is not known, this part of the most it can be."""
    work = graph.work_ns.astype(np.float64)
    fetch = np.minimum(graph.fetch_ns, graph.work_ns).astype(np.float64)
    for change in changes:
        link, _, what = change.quantity.partition(".")
        if what:
            chosen = (graph.resource == Resource.TRANSFER) & (graph.kind == _LINKS[link])
            work = np.where(chosen, _transfers(graph, chosen, work, change.factor, what, latency), work)
        elif change.quantity == "straggler":
            work, fetch = _alike(graph, work), _batches_alike(graph, fetch)
            batches = graph.resource == Resource.WORKER
            work = np.where(batches, _batches_alike(graph, work), work)
        elif change.quantity == "fetch":
            work, fetch = work + (change.factor - 1) * fetch, change.factor * fetch
            read = (graph.resource == Resource.STEP_THREAD) & (graph.kind == StallKind.FETCH)
            work = np.where(read, change.factor * work, work)
        elif change.quantity == "prep":
            work = np.where(graph.resource == Resource.WORKER, fetch + change.factor * (work - fetch), work)
            made = (graph.resource == Resource.STEP_THREAD) & (graph.kind == StallKind.PREP)
            work = np.where(made, change.factor * work, work)
        else:
            computed = (graph.resource == Resource.STEP_THREAD) & (graph.kind == StallKind.COMPUTE)
            work = np.where(computed, change.factor * work, work)
    return np.rint(np.maximum(work, 0)).astype(np.int64)


def _transfers(
    graph: Graph, chosen: npt.NDArray[np.bool_], work: Floats, factor: float, what: str, latency: float
) -> Floats:
    """Transfers as ``latency + bytes / bandwidth``, one of both multiplied."""
    mine, sizes = graph.work_ns[chosen].astype(np.float64), graph.moved_bytes[chosen].astype(np.float64)
    fixed = np.zeros(len(work))
    if not len(mine):
        return work
    sized = sizes > 0
    if sized.any() and sizes[sized].max() >= _SPREAD * sizes[sized].min():
        alpha = least_absolute(sizes[sized], mine[sized], np.maximum(mine[sized], 1.0))[0]
        fixed[chosen] = min(max(alpha, 0.0), float(mine.min()))
    else:
        fixed[chosen] = latency * float(mine.min())
    fixed = np.minimum(fixed, work)
    found: Floats = fixed + (work - fixed) / factor if what == "bandwidth" else factor * fixed + (work - fixed)
    return found


def _alike(graph: Graph, work: Floats) -> Floats:
    """Before each collective a rank's thread works as long as the median of the ranks that enter it does."""
    threads = np.flatnonzero(graph.resource == Resource.STEP_THREAD)
    member = np.flatnonzero(graph.edge_kind == EdgeKind.MEMBER)
    out: Floats = work.copy()
    ranks = np.unique(graph.rank[threads]).tolist()
    transfers, place = np.unique(graph.target[member], return_inverse=True)
    spent = np.full((len(ranks), len(transfers)), np.nan)
    parts = []
    for row, rank in enumerate(ranks):
        mine = threads[graph.rank[threads] == rank]
        entered = np.isin(graph.source[member], mine)
        called, which = graph.end_ns[graph.source[member[entered]]], place[entered]
        order = np.argsort(called, kind="stable")
        at = np.searchsorted(called[order], graph.end_ns[mine], side="left")
        known = at < len(order)
        mine, next_one = mine[known], which[order[at[known]]]
        parts.append((row, mine, next_one))
        spent[row, np.unique(next_one)] = np.bincount(next_one, work[mine])[np.unique(next_one)]
    if len(ranks) < 2 or not len(transfers):
        return out
    typical = np.nanmedian(np.where(np.isnan(spent).all(axis=0), 0.0, spent), axis=0)
    for row, mine, next_one in parts:
        scale = np.divide(typical, spent[row], out=np.ones_like(typical), where=spent[row] > 0)
        out[mine] = work[mine] * scale[next_one]
    return out


def _batches_alike(graph: Graph, amount: Floats) -> Floats:
    """The n-th batch of each rank takes as long as the median of the n-th ones."""
    out: Floats = amount.copy()
    batches = np.flatnonzero(graph.resource == Resource.WORKER)
    ranks = np.unique(graph.rank[batches]).tolist()
    if len(ranks) < 2:
        return out
    ordered = [mine[np.argsort(graph.begin_ns[mine], kind="stable")] for mine in
               (batches[graph.rank[batches] == rank] for rank in ranks)]  # fmt: skip
    count = min(len(mine) for mine in ordered)
    typical = np.median([amount[mine[:count]] for mine in ordered], axis=0)
    for mine in ordered:
        out[mine[:count]] = typical
    return out
