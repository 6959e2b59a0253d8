"""Cuts the graph of a run by ranks: the work and the communication of each rank, and their dependencies there.

    graph    rank 0 [a][b]--.             .-->[c]      one transfer waits for its members, then lets them go
             rank 1 [d]-----'--[transfer]-'-->[e]
    files    rank 0 [a b]-->[its part]-->[c]           the simulator matches the parts of the ranks
             rank 1 [d]---->[its part]-->[e]

:func:`rank_work` has the rules.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TypeVar

import numpy as np

from stashtrace._native import graph as native
from stashtrace.analysis.collectives.matching import blocks
from stashtrace.analysis.graph import Graph, Resource
from stashtrace.analysis.intervals import Bools, Int64, equal_pairs, int64
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.table import Table

#: Chakra counts microseconds; durations that round to 0 are left out.
SHORTEST_NS = 500
_EARLIEST, _LATEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max
#: Largest difference of clocks and records of one moment.
_TOGETHER_NS = 50_000
#: ``RankWork.row`` of nodes that are not part of a collective, and ``RankWork.kind`` of a node of idle time.
NO_ROW = -1
IDLE = -1


@dataclass(frozen=True, slots=True)
class Dropped:
    """Counts of what the files leave out of a run."""

    #: Collectives before the first or after the last step.
    outside_count: int = 0
    #: Collectives that never ended.
    unended_count: int = 0
    #: Batches that workers made for the written steps; the waits for them are kept as measured.
    batches_count: int = 0
    #: Edges cut because they closed a cycle, as errors of clocks make them.
    cycle_edges_count: int = 0
    #: Edges between ranks that are not those of a collective.
    foreign_edges_count: int = 0


@dataclass(frozen=True, slots=True)
class _Nodes:
    """Columns of nodes, in any order."""

    rank: Int64
    #: Row of the sorted ``collectives`` for a part of a collective; else ``NO_ROW``.
    row: Int64
    #: Node of the graph of which it is a part, -1 if none.
    transfer: Int64
    #: :class:`Resource`.
    resource: Int64
    #: ``StallKind`` with most of the time; ``IDLE`` for nodes of idle time and parts of collectives.
    kind: Int64
    #: -1 for parts of collectives.
    step: Int64
    process_id: Int64
    #: As measured. The duration of a part of a collective is that of the transfer: from the last entry to the first
    #: end. ``idle_ns`` is the part of a duration in which nothing known ran.
    begin_ns: Int64
    duration_ns: Int64
    idle_ns: Int64

    def __len__(self) -> int:
        return len(self.rank)


@dataclass(frozen=True, slots=True)
class RankWork(_Nodes):
    """Nodes of all ranks, by rank; within a rank every node comes after the nodes that it waits for."""

    #: Places of the nodes that node ``i`` waits for: ``needs[needs_first[i]:needs_first[i + 1]]``, ascending.
    needs: Int64
    needs_first: Int64
    #: What was left out.
    dropped: Dropped


def rank_work(
    graph: Graph, collectives: Table, *, steps: tuple[int, int] | None = None, workers: bool = False
) -> RankWork:
    """Cut a graph by ranks.

    A trace of Chakra has durations but no moments, and dependencies between nodes of the same rank only. Therefore:

    - Consecutive nodes of one thread become one node where this changes no dependency: each but the first waits only
      for its predecessor, and only its successor waits for it.
    - The time from the end of the last node that a node waits for to its begin is part of its duration: its
      ``idle_ns``, with lags of edges and unexplained time. A part of a collective has none; a node of idle time stands
      before it, unless that is shorter than half a microsecond.
    - A node that began before the recorded end of a node that it waited for is shorter by the overlap, so that its
      end stays.
    - A node without dependencies in the files begins as late as it did: after the rank's last work before it, or after
      the first node of all files.
    - Where the target of an edge may begin before the source ends, by more than clocks and records may differ, it waits
      for an earlier node of the source's thread.
    - Edges between different ranks, other than those through a transfer, cannot be expressed; they are counted.

    ``graph``: of all ranks. ``collectives``: sorted as ``TraceIndex`` does, so that ``graph.row`` are rows of it.
    ``steps``: only steps with ``first <= step < last``. Earlier work that these wait for counts as done. ``workers``:
    whether batches that workers make are nodes; else the waits for them are idle time.
    """
    transfer_of_row = _transfers_of_rows(graph, collectives)
    kept, dropped = _choose_nodes(graph, steps, workers)
    unended = np.unique(_block_of_row(collectives)[transfer_of_row < 0])
    chosen, cut, foreign = _edges(graph, kept)
    edges, idle = _with_idle(graph, kept, _not_before(graph, chosen))
    chains = _chains(graph, kept, edges, idle)
    nodes, edges = _parts(graph, kept, transfer_of_row, collectives["rank"], chains, idle)
    dropped = replace(dropped, unended_count=len(unended), cycle_edges_count=cut, foreign_edges_count=foreign)
    return _order_by_rank(nodes, edges, dropped)


@dataclass(frozen=True, slots=True)
class _Edges:
    """Edges between nodes."""

    source: Int64
    target: Int64

    def take(self, chosen: Bools | Int64) -> _Edges:
        return _Edges(self.source[chosen], self.target[chosen])


_Columns = TypeVar("_Columns", "_OrderedNodes", _Edges)


def _joined(*parts: _Columns) -> _Columns:
    first = parts[0]
    return type(first)(*(int64(np.concatenate([getattr(p, f.name) for p in parts])) for f in fields(first)))


def _block_of_row(collectives: Table) -> Int64:
    order, block = blocks(collectives)
    block_of_row = np.empty(len(order), dtype=np.int64)
    block_of_row[order] = block
    return block_of_row


def _transfers_of_rows(graph: Graph, collectives: Table) -> Int64:
    """Return the node of each row's transfer, -1 if none; rows of one group and number are parts of one transfer."""
    of_row = _block_of_row(collectives)
    nodes = np.flatnonzero((graph.resource == Resource.TRANSFER) & (graph.row >= 0))
    node_of = np.full(int(of_row.max(initial=-1)) + 1, -1, dtype=np.int64)
    node_of[of_row[graph.row[nodes]]] = nodes
    return int64(node_of[of_row])


def _choose_nodes(graph: Graph, steps: tuple[int, int] | None, workers: bool) -> tuple[Bools, Dropped]:
    """Return which nodes are written: work of the wanted steps, and the collectives that were called in it."""
    transfer = graph.resource == Resource.TRANSFER
    batch = graph.resource == Resource.WORKER
    first, last = steps or (int(graph.step.min(initial=0)), int(graph.step.max(initial=0)) + 1)
    kept = ~transfer & ~batch & (graph.resource != Resource.CHECKPOINT)  # nothing waits for saves in the background
    if steps is not None:
        kept &= (graph.step >= first) & (graph.step < last)
    taken = batch
    if steps is not None:
        into_kept = np.zeros(len(graph), dtype=bool)
        into_kept[graph.source[kept[graph.target]]] = True
        taken = batch & into_kept
    if workers:
        kept |= taken

    ends = GroupBy.numbered(graph.ends_rank, int(graph.rank.max(initial=-1)) + 1)
    end_of_rank = ends.max(graph.end_ns[graph.ends] + graph.ends_lag_ns, empty=_EARLIEST)
    enters = ~transfer[graph.source] & transfer[graph.target]
    source, target = graph.source[enters], graph.target[enters]
    called = graph.end_ns[source] + graph.lag_ns[enters]
    within = called <= end_of_rank[graph.rank[source]]
    inside, entered = np.zeros(len(graph), dtype=bool), np.zeros(len(graph), dtype=bool)
    inside[target[within]] = True
    entered[target[within & kept[source]]] = True
    kept |= transfer & entered
    outside = int((transfer & ~inside).sum())
    return kept, Dropped(outside_count=outside, batches_count=0 if workers else int(taken.sum()))


def _edges(graph: Graph, kept: Bools) -> tuple[Int64, int, int]:
    """Return the places of edges between written nodes; the counts of those cut in cycles, and between ranks."""
    source, target = graph.source, graph.target
    chosen = kept[source] & kept[target]
    cycles = np.zeros(len(source), dtype=bool)
    cycles[graph.plan.cut()] = True
    work = graph.resource != Resource.TRANSFER
    foreign = work[source] & work[target] & (graph.rank[source] != graph.rank[target])
    taken = chosen & ~cycles & ~foreign
    return np.flatnonzero(taken), int((chosen & cycles).sum()), int((chosen & foreign).sum())


def _not_before(graph: Graph, chosen: Int64) -> _Edges:
    """Return the edges; if the target may begin before the source ends, from an earlier node of the source's thread.

    A transfer that a member leaves before its recorded end stays the source.
    """
    before = graph.before
    source, target = int64(graph.source[chosen]), int64(graph.target[chosen])
    moment = graph.end_ns[source] + graph.lag_ns[chosen]
    early = (graph.lag_ns[chosen] < -_TOGETHER_NS) & (graph.resource[source] != Resource.TRANSFER)
    unsettled = np.flatnonzero(early)
    while len(unsettled):  # one node back each time: as often as nodes of a thread fit into the longest lag
        earlier = before[source[unsettled]]
        unsettled, earlier = unsettled[earlier >= 0], earlier[earlier >= 0]
        source[unsettled] = earlier
        unsettled = unsettled[graph.end_ns[earlier] > moment[unsettled]]
    return _Edges(source, target)


def _with_idle(graph: Graph, kept: Bools, edges: _Edges) -> tuple[_Edges, Int64]:
    """Return distinct edges, and the idle time of each node: from the end of the last node it waits for to its begin.

    The time is negative where a node began before the recorded end. Work without a predecessor follows the last work of
    its rank before it, if there is any.
    """
    led = np.zeros(len(graph), dtype=bool)
    led[edges.target] = True
    work = kept & (graph.resource != Resource.TRANSFER)
    roots = np.flatnonzero(work & ~led)
    start = int(graph.begin_ns[roots].min(initial=_LATEST))
    threads = np.flatnonzero(work & (graph.step >= 0) & (graph.work_ns > 0))
    for rank in np.unique(graph.rank[roots]).tolist():
        own_roots = roots[graph.rank[roots] == rank]
        chosen = threads[graph.rank[threads] == rank]
        chosen = chosen[np.argsort(graph.end_ns[chosen], kind="stable")]
        last = np.searchsorted(graph.end_ns[chosen], graph.begin_ns[own_roots], side="right") - 1
        edges = _joined(edges, _Edges(chosen[last[last >= 0]], own_roots[last >= 0]))
    target, source = GroupBy(edges.target, edges.source).keys
    edges = _Edges(int64(source), int64(target))
    ready = GroupBy.numbered(target, len(graph)).max(graph.end_ns[source], empty=start)
    return edges, int64(np.where(kept, graph.begin_ns - ready, 0))


@dataclass(frozen=True, slots=True)
class _OrderedNodes(_Nodes):
    """Nodes with the time at which each began in the replay of the run."""

    order_ns: Int64

    @classmethod
    def of(cls, count: int, **columns: Int64 | int) -> _OrderedNodes:
        """Return nodes; a column that is one number is repeated."""
        return cls(**{name: np.broadcast_to(int64(values), (count,)) for name, values in columns.items()})

    def take(self, chosen: Int64) -> _OrderedNodes:
        return _OrderedNodes(*(getattr(self, f.name)[chosen] for f in fields(self)))


@dataclass(frozen=True, slots=True)
class _Work:
    """Nodes of work, the new node of each node of the graph (-1 if none), and edges between nodes of the graph."""

    nodes: _OrderedNodes
    place: Int64
    edges: _Edges


def _chains(graph: Graph, kept: Bools, edges: _Edges, idle: Int64) -> _Work:
    """Return work as nodes, with chains merged."""
    work = kept & (graph.resource != Resource.TRANSFER)
    leads = np.bincount(edges.source, minlength=len(graph))
    waits = np.bincount(edges.target, minlength=len(graph))
    merged = work[edges.source] & work[edges.target] & (waits[edges.target] == 1) & (leads[edges.source] == 1)
    for column in (graph.rank, graph.process_id, graph.resource, graph.step):
        merged &= column[edges.source] == column[edges.target]

    head = np.arange(len(graph), dtype=np.int64)
    head[edges.target[merged]] = edges.source[merged]
    while (head != head[head]).any():  # each time twice as far
        head = head[head]
    members = np.flatnonzero(work)
    chains = GroupBy(head[members])
    heads = chains.values
    place = np.full(len(graph), -1, dtype=np.int64)
    place[members] = chains.number
    duration = np.maximum(chains.sum((graph.work_ns + idle)[members]), 0)
    nodes = _OrderedNodes.of(
        len(heads),
        rank=graph.rank[heads],
        row=NO_ROW,
        transfer=-1,
        resource=graph.resource[heads],
        kind=_longest_kind(chains.number, graph.kind[members], graph.work_ns[members]),
        step=graph.step[heads],
        process_id=graph.process_id[heads],
        begin_ns=graph.begin_ns[heads] - idle[heads],
        duration_ns=duration,
        idle_ns=np.minimum(chains.sum(np.maximum(idle[members], 0)), duration),
        order_ns=graph.replay().begin_ns[heads],
    )
    return _Work(nodes, place, edges.take(~merged))


def _longest_kind(place: Int64, kind: Int64, length: Int64) -> Int64:
    """Return the kind with the most time in each node, the lowest of several."""
    pairs = GroupBy(place, kind)
    places, kinds = pairs.keys
    return int64(kinds[GroupBy(places).argmax(pairs.sum(length))])


def _parts(
    graph: Graph, kept: Bools, transfer_of_row: Int64, rank_of_row: Int64, work: _Work, idle: Int64
) -> tuple[_OrderedNodes, _Edges]:
    """Return work and each rank's parts of the collectives, with edges between these nodes inside each rank."""
    rows = np.flatnonzero((transfer_of_row >= 0) & kept[transfer_of_row])
    rows = rows[np.lexsort((rank_of_row[rows], transfer_of_row[rows]))]
    transfer, rank = transfer_of_row[rows], rank_of_row[rows]
    parts = np.arange(len(work.nodes), len(work.nodes) + len(rows), dtype=np.int64)
    part_nodes = _OrderedNodes.of(
        len(rows),
        rank=rank,
        row=rows,
        transfer=transfer,
        resource=Resource.TRANSFER,
        kind=IDLE,
        step=-1,
        process_id=-1,
        begin_ns=graph.begin_ns[transfer],
        duration_ns=np.maximum(graph.work_ns[transfer] + np.minimum(idle[transfer], 0), 0),
        idle_ns=0,
        order_ns=graph.replay().begin_ns[transfer],
    )
    ranks = int(max(rank.max(initial=0), graph.rank.max(initial=0))) + 1
    key = transfer * ranks + rank
    is_transfer = graph.resource == Resource.TRANSFER
    leaves, enters = is_transfer[work.edges.source], is_transfer[work.edges.target]
    inside, enter = work.edges.take(~leaves & ~enters), work.edges.take(~leaves & enters)
    leave, queue = work.edges.take(leaves & ~enters), work.edges.take(leaves & enters)
    within = _Edges(work.place[inside.source], work.place[inside.target])
    at, part = equal_pairs(leave.source * ranks + graph.rank[leave.target], key)
    after = _Edges(parts[part], work.place[leave.target[at]])
    at, part = equal_pairs(queue.source, transfer)
    queued_at, next_part = equal_pairs(queue.target[at] * ranks + rank[part], key)
    queued = _Edges(parts[part[queued_at]], parts[next_part])
    at, part = equal_pairs(enter.target * ranks + graph.rank[enter.source], key)
    source, target = work.place[enter.source[at]], parts[part]

    # The last member's call came later than its work ended, or the transfer began later than its call.
    late = idle[enter.target[at]]
    slow = np.flatnonzero(late >= SHORTEST_NS)
    delays = np.arange(len(slow), dtype=np.int64) + len(work.nodes) + len(rows)
    before = work.nodes.take(source[slow])
    idled = replace(
        before,
        kind=np.full(len(slow), IDLE, dtype=np.int64),
        begin_ns=before.begin_ns + before.duration_ns,
        duration_ns=late[slow],
        idle_ns=late[slow],
    )
    direct = np.delete(np.arange(len(at)), slow)
    entered = _Edges(source[direct], target[direct])
    delayed = _joined(_Edges(source[slow], delays), _Edges(delays, target[slow]))
    return _joined(work.nodes, part_nodes, idled), _joined(within, after, queued, entered, delayed)


def _order_by_rank(nodes: _OrderedNodes, edges: _Edges, dropped: Dropped) -> RankWork:
    """Return the nodes rank by rank, as they began in the replay of the run, each after what it waits for."""
    count = len(nodes)
    source, target = edges.source.astype(np.int32), edges.target.astype(np.int32)
    plan = native.Plan(source, target, nodes.order_ns, np.zeros(len(source), dtype=np.int8))
    zero, none = np.zeros(count, dtype=np.int64), np.zeros(len(source), dtype=np.int64)
    begin, _ = plan.replay(nodes.order_ns, zero, none)
    depth, _ = plan.replay(zero, zero + 1, none)
    order = np.lexsort((depth, begin, nodes.rank))
    place = np.empty(count, dtype=np.int64)
    place[order] = np.arange(count, dtype=np.int64)
    uncut = np.ones(len(source), dtype=bool)
    uncut[plan.cut()] = False
    pairs = np.unique(place[target[uncut]] * count + place[source[uncut]])
    first = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(np.bincount(pairs // max(count, 1), minlength=count), out=first[1:])
    cycles = dropped.cycle_edges_count + int((~uncut).sum())
    columns = {f.name: getattr(nodes, f.name)[order] for f in fields(_Nodes)}
    dropped = replace(dropped, cycle_edges_count=cycles)
    return RankWork(needs=pairs % max(count, 1), needs_first=first, dropped=dropped, **columns)
