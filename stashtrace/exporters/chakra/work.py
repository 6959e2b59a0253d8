"""The graph of a run cut by ranks: what each rank computes and communicates, and what each piece waits for there.

    graph    rank 0 [a][b]--.             .-->[c]      one transfer, fed by its members, lets them go
             rank 1 [d]-----'--[transfer]-'-->[e]
    files    rank 0 [a b]-->[its part]-->[c]           who else takes part is for the simulator to bring together
             rank 1 [d]---->[its part]-->[e]

:func:`rank_work` says by which rules.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from stashtrace._native import graph as native
from stashtrace.analysis.collectives.matching import blocks
from stashtrace.analysis.graph import EdgeKind, Graph, Resource
from stashtrace.analysis.intervals import Int64, int64
from stashtrace.schema.table import Table

Bools = npt.NDArray[np.bool_]

#: Chakra counts microseconds; what rounds to none of them is left out.
SHORTEST_NS = 500
_EARLIEST, _LATEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max
#: By so much clocks and records of one moment may differ.
_TOGETHER_NS = 50_000
#: ``RankWork.row`` of what is no part of a collective, and ``RankWork.kind`` of a node of idle time.
NO_ROW = -1
IDLE = -1


@dataclass(frozen=True, slots=True)
class Dropped:
    """What of a run the files do not say, as counts.

    Attributes
    ----------
    outside_count : int
        Collectives before the first or after the last step.
    unended_count : int
        Collectives that never ended.
    batches_count : int
        Batches made by workers for the steps that are written, the waits for which are kept as measured.
    cycle_edges_count : int
        Edges cut because they closed a cycle, as errors of clocks make them.
    foreign_edges_count : int
        Edges between ranks that are not those of a collective.
    """

    outside_count: int = 0
    unended_count: int = 0
    batches_count: int = 0
    cycle_edges_count: int = 0
    foreign_edges_count: int = 0


@dataclass(frozen=True, slots=True)
class RankWork:
    """Nodes of all ranks, rank by rank and in each rank in an order in which every node comes after what it waits for.

    Attributes
    ----------
    rank : int array
        Ascending.
    row : int array
        Of a part of a collective, its row of the sorted ``collectives``; else ``NO_ROW``.
    transfer : int array
        Node of the graph of which it is a part, -1 if none.
    resource : int array
        :class:`Resource`.
    process_id : int array
        -1 for parts of collectives.
    kind, step : int array
        ``StallKind`` in which most of it was spent, ``IDLE`` for nodes of idle time and parts of collectives.
    begin_ns, duration_ns, idle_ns : int array
        As measured. Of a part of a collective, the duration is that of the transfer: from the last entry to the first
        end. ``idle_ns`` is the part of a duration in which nothing that is known ran.
    needs, needs_first : int array
        Places of the nodes that node ``i`` waits for: ``needs[needs_first[i]:needs_first[i + 1]]``, ascending.
    dropped : Dropped
        What was left out.
    """

    rank: Int64
    row: Int64
    transfer: Int64
    resource: Int64
    kind: Int64
    step: Int64
    process_id: Int64
    begin_ns: Int64
    duration_ns: Int64
    idle_ns: Int64
    needs: Int64
    needs_first: Int64
    dropped: Dropped

    def __len__(self) -> int:
        return len(self.rank)


def rank_work(
    graph: Graph, collectives: Table, *, steps: tuple[int, int] | None = None, workers: bool = False
) -> RankWork:
    """Cut a graph by ranks.

    A trace of Chakra knows no moments but durations, and no wait but for nodes of the same rank. Therefore:

    - A run of nodes of one thread becomes one node where this changes no dependency: each but the first waits for
      nothing but the one before, and nothing but the one after waits for it.
    - What passed between the end of the last node that a node waits for and its begin is part of its duration: its
      ``idle_ns``. Lags of edges and what no edge explains are in it. A part of a collective has no such time; a node of
      idle time stands before it, unless it is shorter than half a microsecond, the unit of Chakra.
    - A node that began before an end that it waited for was noted is shorter by as much, so that it ends when it did.
    - A node that nothing in the files leads to begins as late as it did: after the rank's last work before it, or after
      the first node of all files.
    - Where the target of an edge may begin before the source ends, it waits for an earlier node of the source's thread,
      if the difference is more than clocks and records may make.
    - Edges between different ranks, other than those through a transfer, cannot be said; they are counted.

    Parameters
    ----------
    graph : Graph
        Of all ranks.
    collectives : Table
        Sorted as ``TraceIndex`` does, so that ``graph.row`` are rows of it.
    steps : (int, int), optional
        Only steps with ``first <= step < last``. What is waited for of earlier steps is taken to be done.
    workers : bool
        Whether batches that workers make are nodes; else what was waited for them is idle time of who took them.
    """
    transfer_of_row = _transfers_of_rows(graph, collectives)
    kept, dropped = _kept(graph, steps, workers)
    unended = np.unique(_block_of_row(collectives)[transfer_of_row < 0])
    chosen, cut, foreign = _edges(graph, kept)
    edges, idle = _with_idle(graph, kept, _not_before(graph, chosen))
    nodes = _parts(graph, kept, transfer_of_row, collectives["rank"], _chains(graph, kept, edges, idle), idle)
    dropped = replace(dropped, unended_count=len(unended), cycle_edges_count=cut, foreign_edges_count=foreign)
    return _ordered(nodes, dropped)


@dataclass(frozen=True, slots=True)
class _Edges:
    """Edges between nodes."""

    source: Int64
    target: Int64

    def take(self, which: Bools | Int64) -> _Edges:
        return _Edges(self.source[which], self.target[which])

    def and_these(self, *others: _Edges) -> _Edges:
        listed = (self, *others)
        return _Edges(*(int64(np.concatenate([getattr(e, n) for e in listed])) for n in ("source", "target")))


def _block_of_row(collectives: Table) -> Int64:
    """Number of the operation of each row."""
    order, block = blocks(collectives)
    found = np.empty(len(order), dtype=np.int64)
    found[order] = block
    return found


def _transfers_of_rows(graph: Graph, collectives: Table) -> Int64:
    """Node of the transfer of each row, -1 if it has none; rows of one group and number are parts of one transfer."""
    of_row = _block_of_row(collectives)
    nodes = np.flatnonzero((graph.resource == Resource.TRANSFER) & (graph.row >= 0))
    node_of = np.full(int(of_row.max(initial=-1)) + 1, -1, dtype=np.int64)
    node_of[of_row[graph.row[nodes]]] = nodes
    return int64(node_of[of_row])


def _kept(graph: Graph, steps: tuple[int, int] | None, workers: bool) -> tuple[Bools, Dropped]:
    """Which nodes are written: work of the steps asked for, and the collectives that were called in it."""
    transfer = graph.resource == Resource.TRANSFER
    batch = graph.resource == Resource.WORKER
    first, last = steps or (int(graph.step.min(initial=0)), int(graph.step.max(initial=0)) + 1)
    stepped = ~transfer & ~batch & (graph.resource != Resource.CHECKPOINT)  # saves in the background hold nobody up
    kept = stepped & (graph.step >= first) & (graph.step < last)
    if steps is None:
        kept = stepped
    taken = batch
    if steps is not None:
        into_kept = np.zeros(len(graph), dtype=bool)
        into_kept[graph.source[kept[graph.target]]] = True
        taken = batch & into_kept
    if workers:
        kept |= taken

    end_of_rank = np.full(int(graph.rank.max(initial=-1)) + 1, _EARLIEST, dtype=np.int64)
    np.maximum.at(end_of_rank, graph.ends_rank, graph.end_ns[graph.ends] + graph.ends_lag_ns)
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
    """Places of edges between written nodes; how many were cut in cycles, and how many lead to another rank."""
    source, target = graph.source, graph.target
    chosen = kept[source] & kept[target]
    cycles = np.zeros(len(source), dtype=bool)
    cycles[graph.plan.cut()] = True
    work = graph.resource != Resource.TRANSFER
    foreign = work[source] & work[target] & (graph.rank[source] != graph.rank[target])
    taken = chosen & ~cycles & ~foreign
    return np.flatnonzero(taken), int((chosen & cycles).sum()), int((chosen & foreign).sum())


def _not_before(graph: Graph, chosen: Int64) -> _Edges:
    """Edges whose target may begin before their source ends, from an earlier node of the source's thread instead.

    Of a transfer, what a member goes on earlier than the end that was noted is not said.
    """
    before = np.full(len(graph), -1, dtype=np.int64)
    program = graph.edge_kind == EdgeKind.PROGRAM
    before[graph.target[program]] = graph.source[program]
    source, target = int64(graph.source[chosen]), int64(graph.target[chosen])
    moment = graph.end_ns[source] + graph.lag_ns[chosen]
    early = (graph.lag_ns[chosen] < -_TOGETHER_NS) & (graph.resource[source] != Resource.TRANSFER)
    open_ = np.flatnonzero(early)
    while len(open_):  # a step back each time: as often as nodes of a thread fit into the longest lag
        earlier = before[source[open_]]
        open_, earlier = open_[earlier >= 0], earlier[earlier >= 0]
        source[open_] = earlier
        open_ = open_[graph.end_ns[earlier] > moment[open_]]
    return _Edges(source, target)


def _with_idle(graph: Graph, kept: Bools, edges: _Edges) -> tuple[_Edges, Int64]:
    """Each pair of nodes once, and the time between the end of the last one that each node waits for and its begin.

    It is negative where a node began before that end was noted.

    What nothing leads to follows the last work of its rank before it, if there is any.
    """
    led = np.zeros(len(graph), dtype=bool)
    led[edges.target] = True
    work = kept & (graph.resource != Resource.TRANSFER)
    roots = np.flatnonzero(work & ~led)
    start = int(graph.begin_ns[roots].min(initial=_LATEST))
    threads = np.flatnonzero(work & (graph.step >= 0) & (graph.work_ns > 0))
    for rank in np.unique(graph.rank[roots]).tolist():
        mine = roots[graph.rank[roots] == rank]
        own = threads[graph.rank[threads] == rank]
        own = own[np.argsort(graph.end_ns[own], kind="stable")]
        last = np.searchsorted(graph.end_ns[own], graph.begin_ns[mine], side="right") - 1
        edges = edges.and_these(_Edges(own[last[last >= 0]], mine[last >= 0]))
    order = np.lexsort((edges.source, edges.target))
    edges = edges.take(order)
    new = np.ones(len(order), dtype=bool)
    new[1:] = (edges.source[1:] != edges.source[:-1]) | (edges.target[1:] != edges.target[:-1])
    edges = edges.take(new)
    ready = np.full(len(graph), start, dtype=np.int64)
    ready[edges.target] = _EARLIEST
    np.maximum.at(ready, edges.target, graph.end_ns[edges.source])
    return edges, int64(np.where(kept, graph.begin_ns - ready, 0))


@dataclass(frozen=True, slots=True)
class _Nodes:
    """Columns of nodes and their edges, in any order; ``order_ns`` is when they began in the replay of the run."""

    rank: Int64
    row: Int64
    transfer: Int64
    resource: Int64
    kind: Int64
    step: Int64
    process_id: Int64
    begin_ns: Int64
    duration_ns: Int64
    idle_ns: Int64
    order_ns: Int64

    @classmethod
    def of(cls, count: int, **columns: Int64 | int) -> _Nodes:
        """Columns that are one number are that number throughout."""
        return cls(**{name: np.broadcast_to(int64(values), (count,)) for name, values in columns.items()})

    def __len__(self) -> int:
        return len(self.rank)

    def and_these(self, *others: _Nodes) -> _Nodes:
        listed = (self, *others)
        return _Nodes(*(int64(np.concatenate([getattr(n, name) for n in listed])) for name in _Nodes.__slots__))

    def take(self, which: Int64) -> _Nodes:
        return _Nodes(*(getattr(self, name)[which] for name in _Nodes.__slots__))


@dataclass(frozen=True, slots=True)
class _Work:
    """Nodes of work, the new node of each node of the graph (-1 if none), and edges between nodes of the graph."""

    nodes: _Nodes
    place: Int64
    edges: _Edges


def _chains(graph: Graph, kept: Bools, edges: _Edges, idle: Int64) -> _Work:
    """Work as nodes, runs of it merged."""
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
    mine = np.flatnonzero(work)
    heads, place_of = np.unique(head[mine], return_inverse=True)
    place = np.full(len(graph), -1, dtype=np.int64)
    place[mine] = place_of
    duration, still = (np.zeros(len(heads), dtype=np.int64) for _ in range(2))
    np.add.at(duration, place_of, (graph.work_ns + idle)[mine])
    np.add.at(still, place_of, np.maximum(idle[mine], 0))
    nodes = _Nodes.of(
        len(heads),
        rank=graph.rank[heads],
        row=NO_ROW,
        transfer=-1,
        resource=graph.resource[heads],
        kind=_longest_kind(place_of, graph.kind[mine], graph.work_ns[mine]),
        step=graph.step[heads],
        process_id=graph.process_id[heads],
        begin_ns=graph.begin_ns[heads] - idle[heads],
        duration_ns=np.maximum(duration, 0),
        idle_ns=np.minimum(still, np.maximum(duration, 0)),
        order_ns=graph.replay().begin_ns[heads],
    )
    return _Work(nodes, place, edges.take(~merged))


def _longest_kind(place: Int64, kind: Int64, length: Int64) -> Int64:
    """The kind with the most time in each node."""
    order = np.lexsort((kind, place))
    place, kind, length = place[order], kind[order], length[order]
    if not len(place):
        return place
    new = np.ones(len(place), dtype=bool)
    new[1:] = (place[1:] != place[:-1]) | (kind[1:] != kind[:-1])
    starts = np.flatnonzero(new)
    total = np.add.reduceat(length, starts)
    by_length = np.lexsort((-total, place[starts]))
    first = np.unique(place[starts][by_length], return_index=True)[1]
    return int64(kind[starts][by_length][first])


def _parts(
    graph: Graph, kept: Bools, transfer_of_row: Int64, rank_of_row: Int64, work: _Work, idle: Int64
) -> tuple[_Nodes, _Edges]:
    """Work and each rank's parts of the collectives, with edges between these nodes inside each rank."""
    rows = np.flatnonzero((transfer_of_row >= 0) & kept[transfer_of_row])
    rows = rows[np.lexsort((rank_of_row[rows], transfer_of_row[rows]))]
    transfer, rank = transfer_of_row[rows], rank_of_row[rows]
    parts = np.arange(len(work.nodes), len(work.nodes) + len(rows), dtype=np.int64)
    made = _Nodes.of(
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
    at, part = _join(leave.source * ranks + graph.rank[leave.target], key)
    after = _Edges(parts[part], work.place[leave.target[at]])
    at, part = _join(queue.source, transfer)
    which, there = _join(queue.target[at] * ranks + rank[part], key)
    queued = _Edges(parts[part[which]], parts[there])
    at, part = _join(enter.target * ranks + graph.rank[enter.source], key)
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
    delayed = _Edges(source[slow], delays).and_these(_Edges(delays, target[slow]))
    return work.nodes.and_these(made, idled), within.and_these(after, queued, entered, delayed)


def _join(left: Int64, right: Int64) -> tuple[Int64, Int64]:
    """Places of all pairs of equal values; ``right`` is ascending."""
    low, high = (np.searchsorted(right, left, side=side) for side in ("left", "right"))
    count = high - low
    at = np.repeat(np.arange(len(left), dtype=np.int64), count)
    within = np.arange(len(at), dtype=np.int64) - np.repeat(np.cumsum(count) - count, count)
    return at, int64(low[at] + within)


def _ordered(made: tuple[_Nodes, _Edges], dropped: Dropped) -> RankWork:
    """Nodes rank by rank, as they began in the replay of the run, each after what it waits for."""
    nodes, edges = made
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
    columns = {n: getattr(nodes, n)[order] for n in _Nodes.__slots__ if n != "order_ns"}
    dropped = replace(dropped, cycle_edges_count=cycles)
    return RankWork(needs=pairs % max(count, 1), needs_first=first, dropped=dropped, **columns)
