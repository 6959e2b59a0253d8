"""Budget of a replay's step by columns of the summary: work by its kind, waits by what ended them."""

from __future__ import annotations

import numpy as np

from stashtrace._native import intervals
from stashtrace.analysis.graph import EdgeKind, Graph, Replayed, Resource
from stashtrace.analysis.intervals import NEVER, Int64, TimeSet
from stashtrace.schema.groupby import RowsBy
from stashtrace.schema.kinds import StallKind
from stashtrace.schema.stall_kinds import COLUMNS, STALL_KINDS

_COLUMN = {kind.code: kind.column for kind in STALL_KINDS}


def step_budget(graph: Graph, replayed: Replayed, steps: Int64) -> dict[str, float]:
    """Return the mean nanoseconds of a rank's step by column.

    For a rank that its host attributes they add up to the time that its thread was busy or waited. For a rank with
    kernels they add up to its steps: computation counts first, then transfers and copies outside of it, then what the
    rank waited for.

    ``steps``: counted steps.
    """
    budget = dict.fromkeys(COLUMNS, 0.0)
    on_thread = np.isin(graph.resource, (Resource.STEP_THREAD, Resource.DEVICE, Resource.COMPUTE_STREAM))
    threads = np.flatnonzero(on_thread & np.isin(graph.step, steps))
    _add_threads(graph, replayed, threads, budget)
    on_devices = np.unique(graph.rank[graph.resource == Resource.STREAM]).tolist()
    if on_devices:
        places = _Places(graph)
        for rank in on_devices:
            _add_device(graph, replayed, places, rank, steps, budget)
    count = max((len(np.unique(graph.rank[threads])) + len(on_devices)) * len(steps), 1)
    return {name: ns / count for name, ns in budget.items()}


def _add_threads(graph: Graph, replayed: Replayed, nodes: Int64, budget: dict[str, float]) -> None:
    length = replayed.end_ns - replayed.begin_ns
    for kind in np.unique(graph.kind[nodes]).tolist():
        mine = nodes[graph.kind[nodes] == kind]
        budget[_COLUMN[StallKind(kind)]] += float((length[mine] - graph.gap_ns[mine]).sum())
    budget["other"] += float(graph.gap_ns[nodes].sum())

    before = graph.before
    waits = nodes[before[nodes] >= 0]
    waited = replayed.begin_ns[waits] - replayed.end_ns[before[waits]]
    waits, waited = waits[waited > 0], waited[waited > 0]
    edge = replayed.binding[waits]
    kind, source = np.where(edge >= 0, graph.edge_kind[edge], -1), graph.source[edge]
    data = kind == EdgeKind.BATCH
    budget["data"] += float(waited[data].sum())
    link = kind == EdgeKind.RELEASE
    late = np.clip(_last_arrivals(graph, replayed)[source] - replayed.end_ns[before[waits]], 0, waited)
    budget["late"] += float(late[link].sum())
    budget["link"] += float((waited - late)[link].sum())
    save = kind == EdgeKind.JOIN
    budget["save"] += float(waited[save].sum())
    budget["other"] += float(waited[~data & ~link & ~save].sum())


def _last_arrivals(graph: Graph, replayed: Replayed) -> Int64:
    """Return when the last member of each transfer arrived; in its queue the transfer may begin later."""
    member = graph.edge_kind == EdgeKind.MEMBER
    arrived = np.full(len(graph), -NEVER, dtype=np.int64)
    came = replayed.end_ns[graph.source[member]] + graph.lag_ns[member]
    np.maximum.at(arrived, graph.target[member], came)
    return np.where(arrived > -NEVER, arrived, replayed.begin_ns)


class _RanksOf:
    """Nodes or edges of a graph by rank, so that no rank searches those of the others."""

    def __init__(self, rows: Int64, ranks: Int64) -> None:
        self._all, self._by_rank = rows, RowsBy(ranks)

    def rows(self, rank: int) -> Int64:
        """Return the rows of one rank."""
        return self._all[self._by_rank.rows(rank)]


class _Places:
    """Where the parts of each rank are in a graph.

    ``nodes`` are those of streams and hosts, ``members`` edges into transfers by the rank that enters, ``releases``
    edges out of transfers by the rank that goes on. ``before`` is the node before each node on its thread, or -1.
    """

    def __init__(self, graph: Graph) -> None:
        nodes = np.flatnonzero(np.isin(graph.resource, (Resource.STREAM, Resource.HOST)))
        members, releases = (np.flatnonzero(graph.edge_kind == kind) for kind in (EdgeKind.MEMBER, EdgeKind.RELEASE))
        self.nodes = _RanksOf(nodes, graph.rank[nodes])
        self.members = _RanksOf(members, graph.rank[graph.source[members]])
        self.releases = _RanksOf(releases, graph.rank[graph.target[releases]])
        self.before = graph.before


def _add_device(
    graph: Graph, replayed: Replayed, places: _Places, rank: int, steps: Int64, budget: dict[str, float]
) -> None:
    """Paint a rank's streams, then the waits of its host, over its steps."""
    rows = places.nodes.rows(rank)
    rows = rows[replayed.end_ns[rows] > replayed.begin_ns[rows] + graph.gap_ns[rows]]
    streams, host = (rows[graph.resource[rows] == resource] for resource in (Resource.STREAM, Resource.HOST))

    def ran(nodes: Int64, *kinds: StallKind) -> tuple[Int64, Int64]:
        chosen = nodes[np.isin(graph.kind[nodes], kinds)]
        time = TimeSet.of(replayed.begin_ns[chosen] + graph.gap_ns[chosen], replayed.end_ns[chosen])
        return time.begin, time.end

    late, link = _in_collectives(graph, replayed, places, rank)
    # When a rank's host waited for batches of its workers
    waits, edge = places.nodes.rows(rank), replayed.binding
    waits = waits[(graph.resource[waits] == Resource.HOST) & (edge[waits] >= 0) & (places.before[waits] >= 0)]
    waits = waits[graph.edge_kind[edge[waits]] == EdgeKind.BATCH]
    data = TimeSet.of(replayed.end_ns[places.before[waits]], replayed.begin_ns[waits])
    layers: list[tuple[str, tuple[Int64, Int64]]] = [
        ("compute", ran(streams, StallKind.COMPUTE)),
        ("late", (late.begin, late.end)),
        ("link", (link.begin, link.end)),
        ("link", ran(streams, StallKind.NETWORK, StallKind.INTERCONNECT)),
        ("copy", ran(streams, StallKind.H2D)),
        ("data", (data.begin, data.end)),
        *((_COLUMN[kind], ran(host, kind)) for kind in StallKind if kind is not StallKind.COMPUTE),
    ]
    length = graph.step_ns(replayed)
    ends = (graph.ends_rank == rank) & np.isin(graph.ends_step, steps) & (length > 0)
    if not ends.any():
        return
    until = (replayed.end_ns[graph.ends] + graph.ends_lag_ns)[ends]
    since = until - length[ends]
    # By damaged times a step may end before the one that it follows.
    order = np.argsort(until, kind="stable")
    since, until = since[order], until[order]
    since = np.maximum(since, np.append(since[:1], until[:-1]))
    since, until = since[until > since], until[until > since]
    spent = intervals.attribute([times for _, times in layers], since, until)
    total = np.asarray(spent).reshape(len(until), -1).sum(axis=0)
    for (column, _), ns in zip(layers, total.tolist(), strict=False):
        budget[column] += float(ns)
    # What is left is time in which the host waited, or work was on its way to the device.
    budget["host"] += float((until - since).sum() - total[: len(layers)].sum())


def _in_collectives(graph: Graph, replayed: Replayed, places: _Places, rank: int) -> tuple[TimeSet, TimeSet]:
    """Return when a rank's streams were in collectives before the last member arrived, and after."""
    member, release = places.members.rows(rank), places.releases.rows(rank)
    shared, joins, leaves = np.intersect1d(graph.target[member], graph.source[release], return_indices=True)
    joined = replayed.end_ns[graph.source[member[joins]]]
    left = replayed.begin_ns[graph.target[release[leaves]]]
    all_there = np.clip(replayed.begin_ns[shared], joined, left)
    return TimeSet.of(joined, all_there), TimeSet.of(all_there, left)
