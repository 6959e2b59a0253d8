"""Keep the workers of a loader from one pass over the data to the next: ``persistent_workers=True``.

    anew   | workers end | workers start | first batch || batch 1 ...     a new worker's first batch may take longer
    kept   | first batch || batch 1 ...

What torch does then: ``DataLoader.__iter__`` tells each worker to go on and waits until all have answered, so what they
still make of the pass before comes first. Then it asks for as many batches as a new iterator does: none of the next
pass is made before the loop comes to it, so the wait for its first batch stays.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from stashtrace.analysis.graph import EdgeKind, Graph
from stashtrace.analysis.graph.work_graph import Facts
from stashtrace.analysis.intervals import Int64
from stashtrace.errors import MissingDataError
from stashtrace.replay.changes import Change
from stashtrace.replay.loaders.passes import ASKED_NS, PREFETCH, Edges, Passes, WorkerNodes, edges_of
from stashtrace.replay.loaders.worker_count import prefetch_factor
from stashtrace.replay.scenario import Bools, Floats, Scenario
from stashtrace.schema.groupby import GroupBy

#: Kept workers are told to go on, and answer. Two ranks on two CPUs waited 0.7 to 5.6 ms for that. At worst it is taken
#: to be this long, or as long as the run's messages between these processes if they take longer.
_ANSWERED_NS = 1_000_000


def require_new_workers(graph: Graph, change: Change) -> None:
    """Check that a loader of the run starts its workers anew.

    Raises MissingDataError if none does, or no worker made batches.
    """
    if graph.facts is None or not graph.is_batch.any():
        raise MissingDataError(
            f"{change}: no worker made batches in this run, so there are none to keep",
            hint="record it with at least num_workers=1",
        )
    if not len(_Kept.of(graph, graph.facts)):
        raise MissingDataError(
            f"{change}: no loader of this run starts its workers a second time",
            hint="record two passes over the data or more; workers that stay are kept already",
        )


def with_kept_workers(scenario: Scenario) -> Scenario:
    """Let no pass but the first one of a loader start workers, and none end them.

    How long a new worker's first batch takes is known, not how long that of a kept worker does: as long, or as its
    other batches (``luck`` 0).
    """
    graph, facts, luck = scenario.graph, scenario.graph.facts, scenario.unknowns.luck
    assert facts is not None
    kept = _Kept.of(graph, facts)
    work = np.where(kept.goes, 0.0, scenario.work)
    heads, usual = kept.heads, kept.usual_ns(work)
    quicker = work[heads] - (1 - luck) * np.maximum(work[heads] - usual, 0.0)
    fetch = scenario.fetch.copy()
    fetch[heads] *= np.divide(quicker, work[heads], out=np.ones_like(quicker), where=work[heads] > 0)
    work[heads] = quicker

    asked_by = graph.source.copy()
    lag, of_head = scenario.lag.copy(), np.zeros(len(graph), dtype=bool)
    of_head[heads] = True
    asks = graph.is_batch[graph.target] & (graph.edge_kind == EdgeKind.PREFETCH)
    takes = graph.edge_kind == EdgeKind.BATCH
    handed_ns = _median(scenario.lag[takes & ~of_head[graph.source]])
    usual_asks = scenario.lag[asks & ~np.isin(graph.target, kept.all_heads) & (scenario.lag < ASKED_NS)]
    asked_ns = _median(usual_asks) if len(usual_asks) else luck * handed_ns
    # All are asked at once, also those that took longer to start than the loop to go on, and for several batches each.
    first_edge = np.full(len(graph), -1, dtype=np.int64)
    first_edge[graph.target[asks]] = np.flatnonzero(asks)
    first_of = kept.first_of(prefetch_factor(kept.passes, graph))[graph.target]
    begins = asks & (first_of >= 0)
    leading = np.where(begins, first_edge[first_of], -1)
    asked_by[leading >= 0] = graph.source[leading[leading >= 0]]
    # A worker answers before it is asked for batches: one more message to it, and one from it.
    lag[begins] = np.minimum(lag[begins], asked_ns + luck * max(asked_ns + handed_ns, _ANSWERED_NS))
    first = takes & of_head[graph.source]
    lag[first] -= (1 - luck) * np.maximum(lag[first] - handed_ns, 0.0)

    source, target, more, kind = kept.after_the_pass_before(work, luck)
    changed = replace(
        graph,
        source=np.concatenate([asked_by, source]).astype(np.int32),
        target=np.concatenate([graph.target, target]).astype(np.int32),
        edge_kind=np.concatenate([graph.edge_kind, kind]).astype(np.int8),
        lag_ns=np.concatenate([graph.lag_ns, np.rint(more).astype(np.int64)]),
    )
    return replace(scenario, graph=changed, work=work, fetch=fetch, lag=np.concatenate([lag, more]))


@dataclass(frozen=True)
class _Kept:
    """Passes whose workers would be those of an earlier pass."""

    graph: Graph
    passes: Passes
    #: By batch of ``passes``: number of its worker.
    worker: Int64
    #: Rows of ``passes.nodes`` at which these passes begin.
    kept: Int64
    #: The same of the pass before each, of the same loader.
    before: Int64
    #: By node: work of step threads that is not done any more.
    goes: Bools

    @classmethod
    def of(cls, graph: Graph, facts: Facts) -> _Kept:
        """Find these passes: they serve what an earlier one serves, with as many workers, and all of these are new."""
        passes = Passes.of(graph, facts)
        worker, runs = passes.worker_numbers(graph), GroupBy.runs(passes.start)
        first = passes.first_node[runs.first]
        rank, loader, begun_ns = graph.rank[first], facts.loader[first], graph.begin_ns[first]
        makers = GroupBy(graph.process_id[passes.nodes])
        since_ns = makers.min(graph.begin_ns[passes.nodes])[makers.number]
        is_new = runs.all(since_ns >= begun_ns[runs.number])
        of_loader = runs.max(worker), facts.serves[loader], rank
        order = np.lexsort((begun_ns, *of_loader))
        alike = GroupBy.runs(*(column[order] for column in of_loader))
        later = np.flatnonzero((alike.position > 0) & is_new[order])
        kept, before = order[later], order[later - 1]
        is_kept, is_before = (np.isin(np.arange(len(runs)), some) for some in (kept, before))
        # Such a pass starts no workers, and neither it nor the one before it ends any.
        found, goes = WorkerNodes.find(graph, facts, passes), np.zeros(len(graph), dtype=bool)
        of = runs.number[found.of]
        goes[found.nodes] = is_kept[of] | (is_before[of] & ~found.starts)
        return cls(graph, passes, worker, runs.first[kept], runs.first[before], goes)

    def __len__(self) -> int:
        return len(self.kept)

    @property
    def heads(self) -> Int64:
        """First batch of each worker in these passes."""
        return self.passes.nodes[self._is_first & np.isin(self.passes.start, self.kept)]

    @property
    def all_heads(self) -> Int64:
        """First batch of each worker in all passes."""
        return self.passes.nodes[self._is_first]

    def first_of(self, factor: int) -> Int64:
        """Return for batches of these passes that are asked for at their begin the one that was begun first, else -1.

        ``factor``: batches that each worker is asked for in advance.
        """
        first = np.full(len(self.graph), -1, dtype=np.int64)
        mine = np.isin(self.passes.start, self.kept) & (self.passes.position < factor * self.passes.workers)
        first[self.passes.nodes[mine]] = self.passes.first_node[mine]
        return first

    @property
    def _is_first(self) -> Bools:
        makers, is_first = GroupBy(self.passes.start, self.worker), np.zeros(len(self.worker), dtype=bool)
        is_first[makers.first] = True
        return is_first

    def usual_ns(self, work: Floats) -> Floats:
        """Return how long the batches of the worker that makes each head take that are not its first in a pass."""
        nodes, is_first = self.passes.nodes, self._is_first
        makers = GroupBy(self.graph.rank[nodes], self.worker)
        numbers = np.where(is_first, -1, makers.number)
        later = GroupBy.numbered(numbers, len(makers)).median(work[nodes], empty=np.inf)
        return later[makers.number[is_first & np.isin(self.passes.start, self.kept)]]

    def after_the_pass_before(self, work: Floats, luck: float) -> Edges:
        """Return edges from what workers did last to the first batches: they go on when all of them have answered.

        Of a pass that the loop left early they still make what they were asked for, how much of it is unknown.
        """
        nodes, starts = self.passes.nodes, self.passes.start
        makers = GroupBy(starts, self.worker)
        taken = np.zeros(len(self.graph), dtype=bool)
        taken[self.graph.source[self.graph.edge_kind == EdgeKind.BATCH]] = True
        parts = [edges_of(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), 0.0, EdgeKind.PREFETCH)]
        for kept, before in zip(self.kept.tolist(), self.before.tolist(), strict=True):
            next_to, last_of = (slice(*np.searchsorted(makers.keys[0], [one, one + 1])) for one in (kept, before))
            heads, last = nodes[makers.first[next_to]], nodes[makers.last[last_of]]
            mine = nodes[slice(*np.searchsorted(starts, [before, before + 1]))]
            left = 0.0 if taken[mine].all() else luck * PREFETCH * _median(work[mine])
            source, target = np.repeat(last, len(heads)), np.tile(heads, len(last))
            parts.append(edges_of(source, target, left, EdgeKind.PREFETCH))
        source, target, lag, kind = (np.concatenate([part[i] for part in parts]) for i in range(4))
        return source, target, lag, kind


def _median(values: Floats) -> float:
    return float(np.median(values)) if len(values) else 0.0
