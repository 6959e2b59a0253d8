"""Set options of a DataLoader: ``persistent_workers=True``, and ``in_order=False`` of torch 2.6 and later.

    again  | workers end | workers start | first batch || batch 1 ...     a new worker's first batch may take longer
    kept   | first batch || batch 1 ...

What torch does then: ``DataLoader.__iter__`` asks each worker to go on and waits until all have answered, so what they
still make of the pass before comes first. Then it asks for as many batches as a new iterator does: none of the next
pass is made before the loop comes to it, so the wait for its first batch stays.

    in turn    w0 [0]   [2]   [4]        the thread takes 0, 1, 2, ...: a slow batch holds up the quick ones behind it
               w1 [== 1 ==][== 3 ==]
    in_order=False
               w0 [0][2][3][4][6]        what is ready is taken, and the worker that made it is asked for the next one
               w1 [== 1 ==][== 5 ==]

Which worker makes which batch then follows from the lengths of the batches, and from when the thread comes for one. The
thread is taken to come as it does where it never waits for a batch; the replay itself uses the times of all ranks.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace

import numpy as np

from stashtrace.analysis.graph import EdgeKind, Graph
from stashtrace.analysis.graph.batch_nodes import PREFETCH
from stashtrace.analysis.graph.work_graph import Facts
from stashtrace.analysis.intervals import Bools, Floats, Int64, is_one_of
from stashtrace.errors import MissingDataError
from stashtrace.replay.changes import Change
from stashtrace.replay.loaders.passes import Edges, Passes, WorkerNodes, median, usual_lags, with_edges
from stashtrace.replay.loaders.worker_count import prefetch_factor, taken_by
from stashtrace.replay.policy import POLICY
from stashtrace.replay.scenario import Scenario
from stashtrace.schema.groupby import GroupBy, RowsBy


def require_new_workers(graph: Graph, change: Change) -> None:
    """Check that a loader of the run starts its workers again.

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
    handed_ns = median(scenario.lag[takes & ~of_head[graph.source]])
    usual_asks = scenario.lag[asks & ~np.isin(graph.target, kept.all_heads) & (scenario.lag < POLICY.asked_ns)]
    asked_ns = median(usual_asks) if len(usual_asks) else luck * handed_ns
    # All are asked at once, also those that took longer to start than the loop to go on, and for several batches each.
    first_edge = np.full(len(graph), -1, dtype=np.int64)
    first_edge[graph.target[asks]] = np.flatnonzero(asks)
    first_of = kept.first_of(prefetch_factor(kept.passes, graph))[graph.target]
    begins = asks & (first_of >= 0)
    leading = np.where(begins, first_edge[first_of], -1)
    asked_by[leading >= 0] = graph.source[leading[leading >= 0]]
    # A worker answers before it is asked for batches: one more message to it, and one from it.
    lag[begins] = np.minimum(lag[begins], asked_ns + luck * max(asked_ns + handed_ns, POLICY.workers_answer_ns))
    first = takes & of_head[graph.source]
    lag[first] -= (1 - luck) * np.maximum(lag[first] - handed_ns, 0.0)

    changed = replace(scenario, graph=replace(graph, source=asked_by), work=work, fetch=fetch, lag=lag)
    return with_edges(changed, kept.after_the_pass_before(work, luck))


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
        similar = GroupBy.runs(*(column[order] for column in of_loader))
        later = np.flatnonzero((similar.position > 0) & is_new[order])
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

    def after_the_pass_before(self, work: Floats, luck: float) -> list[Edges]:
        """Return edges from what workers did last to the first batches: they go on when all of them have answered.

        Of a pass that the loop left early they still make what they were asked for, how much of it is unknown.
        """
        nodes, starts = self.passes.nodes, self.passes.start
        makers = GroupBy(starts, self.worker)
        taken = np.zeros(len(self.graph), dtype=bool)
        taken[self.graph.source[self.graph.edge_kind == EdgeKind.BATCH]] = True
        parts = []
        for kept, before in zip(self.kept.tolist(), self.before.tolist(), strict=True):
            next_to, last_of = (slice(*np.searchsorted(makers.keys[0], [one, one + 1])) for one in (kept, before))
            heads, last = nodes[makers.first[next_to]], nodes[makers.last[last_of]]
            mine = nodes[slice(*np.searchsorted(starts, [before, before + 1]))]
            left = 0.0 if taken[mine].all() else luck * PREFETCH * median(work[mine])
            source, target = np.repeat(last, len(heads)), np.tile(heads, len(last))
            parts.append(Edges.of(source, target, left, EdgeKind.PREFETCH))
        return parts


#: Edges to batches: what their worker did before, and the thread that asked for them.
_ASKS = (EdgeKind.PROGRAM, EdgeKind.PREFETCH)


def require_several_workers(graph: Graph, change: Change) -> None:
    """Check that a rank has several workers, whose batches it takes in turn. Raises MissingDataError if none has."""
    facts = graph.facts
    if facts is None or not graph.is_batch.any():
        raise MissingDataError(
            f"{change}: no worker made batches in this run, so they are in order by themselves",
            hint="record it with at least num_workers=2",
        )
    passes = Passes.of(graph, facts)
    if not (GroupBy(passes.start).max(passes.worker_numbers(graph)) > 0).any():
        raise MissingDataError(
            f"{change}: one worker makes its batches in order", hint="workers=2 predicts what a second one saves"
        )
    taken = taken_by(graph)[passes.nodes]
    begin_ns = np.where(taken >= 0, graph.begin_ns[taken], -1)
    known = np.flatnonzero(taken >= 0)
    runs = GroupBy.runs(passes.start[known])
    later = runs.position > 0
    if (np.diff(begin_ns[known], prepend=begin_ns[known][:1])[later] < 0).any():
        raise MissingDataError(f"{change}: the batches of this run were taken in any order already")


def with_any_order(scenario: Scenario) -> Scenario:
    """Let the step threads take the batches of their workers as these become ready.

    A batch takes as long as the one of its number, or (``speed`` other than 0, or an iterable data set, of which each
    worker has a part) as the next one of its worker.
    """
    graph, facts = scenario.graph, scenario.graph.facts
    assert facts is not None
    passes = Passes.of(graph, facts)
    factor, taken, numbers = prefetch_factor(passes, graph), taken_by(graph), passes.worker_numbers(graph)
    between, late = usual_lags(scenario)
    pace = graph.replay(np.where(graph.is_batch, 0, graph.work_ns)).begin_ns
    work, fetch, begin = scenario.work.copy(), scenario.fetch.copy(), graph.begin_ns.copy()
    changed = np.zeros(len(graph), dtype=bool)
    asking = np.flatnonzero(graph.is_batch[graph.target] & is_one_of(graph.edge_kind, _ASKS))
    asks_of = RowsBy(graph.target[asking])
    parts = list[Edges]()
    for rows in GroupBy.runs(passes.start):
        nodes, makers = passes.nodes[rows], numbers[rows]
        goes = taken[nodes] >= 0
        takes = nodes[goes]
        if makers.max() < 1 or not len(takes):
            continue
        came_ns = pace[taken[takes]]
        gaps_ns = np.diff(came_ns, prepend=came_ns[:1])
        is_parted = bool(facts.is_parted[facts.loader[nodes[0]]])
        own_speed, ends = is_parted or scenario.unknowns.speed > 0, bool(goes.all())
        how = {"own_speed": own_speed, "is_parted": is_parted, "ends": ends}
        plan = _plan(scenario.work[nodes], makers, gaps_ns, factor, between, **how)
        # The node of the batch that was taken n-th stands for the one that is taken n-th now.
        like = nodes[plan.like]
        work[takes], fetch[takes] = scenario.work[like], scenario.fetch[like]
        changed[nodes] = True
        parts += _edges(plan, takes, taken, factor, between, late)
        for place in np.flatnonzero(plan.position == 0).tolist():
            head = nodes[np.flatnonzero(makers == plan.worker[place])[0]]
            begin[takes[place]] = graph.begin_ns[head]
            asks = asking[asks_of.rows(int(head))]
            first = np.full(len(asks), takes[place])
            parts.append(Edges(graph.source[asks], first, scenario.lag[asks], graph.edge_kind[asks]))
    gone = changed[graph.target] & is_one_of(graph.edge_kind, _ASKS)
    gap = np.where(changed, 0, graph.gap_ns)
    new = replace(graph, begin_ns=begin, end_ns=begin + graph.work_ns, gap_ns=gap)
    return with_edges(replace(scenario, graph=new, work=work, fetch=fetch), parts, ~gone)


@dataclass(frozen=True)
class _Plan:
    """Batches of a pass in the order in which they are taken."""

    #: Number of the worker of each, and its place among the batches of that worker.
    worker: Int64
    position: Int64
    #: Batch of the recorded pass, by its number there, that each takes as long as.
    like: Int64


def _plan(
    work: Floats,
    makers: Int64,
    gaps_ns: Int64,
    factor: int,
    between: float,
    *,
    own_speed: bool,
    is_parted: bool,
    ends: bool,
) -> _Plan:
    """Play a pass: who makes which batch, and in which order the thread takes them.

    ``work``, ``makers``: length and worker of each recorded batch. ``gaps_ns``: time from each take to the next where
    no batch is waited for. ``factor``: batches that each worker is asked for in advance. ``own_speed``: whether slow is
    the worker, not the batch. ``is_parted``: whether each worker can make its batches alone. ``ends``: whether these
    are all batches of the pass.
    """
    count = int(makers.max()) + 1
    rows = [np.flatnonzero(makers == worker).tolist() for worker in range(count)]
    lengths = work.tolist()
    free, made = [0.0] * count, [0] * count
    ready: list[tuple[float, int, int, int]] = []

    def ask(worker: int, since: float) -> None:
        """Have a worker make the next batch, which is the one of this number."""
        number, place = sum(made), made[worker]
        if ends and (place >= len(rows[worker]) if is_parted else number >= len(lengths)):
            return
        like = rows[worker][place % len(rows[worker])] if own_speed else number % len(lengths)
        free[worker] = max(free[worker] + (between if place else 0.0), since) + lengths[like]
        made[worker] += 1
        heapq.heappush(ready, (free[worker], worker, place, like))

    for _ in range(factor):
        for worker in range(count):
            ask(worker, 0.0)
    now, taken = 0.0, list[tuple[int, int, int]]()
    for gap in gaps_ns.tolist():
        done, worker, place, like = heapq.heappop(ready)
        now = max(now + gap, done)
        taken.append((worker, place, like))
        ask(worker, now)
    columns = np.array(taken, dtype=np.int64).reshape(-1, 3)
    return _Plan(columns[:, 0], columns[:, 1], columns[:, 2])


def _edges(plan: _Plan, takes: Int64, taken: Int64, factor: int, between: float, late: float) -> list[Edges]:
    """Return the edges of a pass: within a worker, and from the take after which a worker is asked for a batch."""
    parts = []
    for worker in np.unique(plan.worker).tolist():
        mine = takes[plan.worker == worker]
        parts.append(Edges.of(mine[:-1], mine[1:], between, EdgeKind.PROGRAM))
        parts.append(Edges.of(taken[mine[: max(len(mine) - factor, 0)]], mine[factor:], late, EdgeKind.PREFETCH))
    return parts
