"""Lengths of work if all ranks were alike: the mean or the median of each piece's peers.

In a pipeline, whose operations have names, peers are all operations of one name, of all ranks, stages, steps and
micro-batches, as in "Understanding Stragglers in Large Model Training Using What-if Analysis" (Lin et al., OSDI 2025).
In other runs, peers are the work of one kind that the members of a collective do before they enter it, and transfers
of one size. Stages of a pipeline without such names never do the same at once: their peers are the work of one kind of
all ranks in a step.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.graph import EdgeKind, Graph, PipelineGraph, Resource
from stashtrace.analysis.intervals import Int64
from stashtrace.errors import UsageError
from stashtrace.schema.groupby import GroupBy, RowsBy, order_by

Floats = npt.NDArray[np.float64]
#: For work. Transfers always take the median, since their outliers are waits that were not recorded.
Center = Literal["mean", "median"]


def ideal_work_ns(graph: Graph, center: Center = "mean") -> Int64:
    """Return the length of each node if all ranks were alike.

    ``center``: with the mean, the same work is shared evenly; with the median, a slow rank is left out. Returns ns by
    node. Nodes without peers keep their length. Raises UsageError for another center.
    """
    if center not in get_args(Center):
        raise UsageError(f"no center is called {center!r}", hint=f"one of {', '.join(get_args(Center))}")
    work = graph.work_ns.astype(np.float64)
    moves = graph.resource == Resource.TRANSFER
    if isinstance(graph, PipelineGraph):
        named = graph.operation >= 0
        for chosen, center_of in ((named & ~moves, center), (named & moves, "median")):
            rows = np.flatnonzero(chosen)
            peers = GroupBy(graph.operation[rows])
            work[rows] = _center(work[rows], peers, center_of)[peers.number]
    else:
        _threads(graph, work, center)
        rows = np.flatnonzero(graph.resource == Resource.WORKER)
        by_begin = np.argsort(graph.begin_ns[rows], kind="stable")
        nth = np.empty(len(rows), dtype=np.int64)  # batch of its rank
        nth[by_begin] = GroupBy(graph.rank[rows[by_begin]]).position
        peers = GroupBy(nth)
        work[rows] = _center(work[rows], peers, center)[peers.number]
        rows = np.flatnonzero(moves)
        peers = GroupBy(graph.kind[rows], graph.moved_bytes[rows])
        work[rows] = _center(work[rows], peers, "median")[peers.number]
    return np.rint(work).astype(np.int64)


def _threads(graph: Graph, work: Floats, center: Center) -> None:
    """Scale the work of each kind that a rank did before each collective to that of the collective's members."""
    passive = (Resource.TRANSFER, Resource.WORKER, Resource.MEETING, Resource.CHECKPOINT)
    rows = np.flatnonzero((graph.rank >= 0) & ~np.isin(graph.resource, passive))
    if not len(rows):
        return
    before, members = _collectives_ahead(graph, rows)
    # After the last collective a rank's peers are all ranks in the same step.
    ranks = len(np.unique(graph.rank[rows]))
    alone = before < 0
    steps = GroupBy(graph.step[rows[alone]])
    before[alone] = len(members) + steps.number
    members = np.append(members, np.full(len(steps), ranks))
    by_rank = GroupBy(before, graph.resource[rows], graph.kind[rows], graph.rank[rows])
    amount = by_rank.sum(work[rows])
    peers = GroupBy(*by_rank.keys[:3])
    typical = _center(amount, peers, center, members[peers.keys[0]])[peers.number]
    scale = np.divide(typical, amount, out=np.ones_like(amount), where=amount > 0)
    work[rows] *= scale[by_rank.number]


def _collectives_ahead(graph: Graph, rows: Int64) -> tuple[Int64, Int64]:
    """Return the collective that the rank of each of these nodes entered next, -1 if none, and the members of each."""
    if graph.stage_of:
        return np.full(len(rows), -1, dtype=np.int64), np.zeros(0, dtype=np.int64)
    before, transfers = next_transfers(graph, rows)
    source_ranks = graph.rank[graph.source[_entries(graph)]]
    return before, GroupBy(GroupBy(transfers.number, source_ranks).keys[0]).sizes


def _entries(graph: Graph) -> Int64:
    """Return the edges by which ranks enter transfers."""
    return np.flatnonzero((graph.edge_kind == EdgeKind.MEMBER) & (graph.rank[graph.source] >= 0))


def next_transfers(graph: Graph, rows: Int64) -> tuple[Int64, GroupBy]:
    """Find the transfer that the rank of each of these nodes entered next.

    Returns the index of the transfer, -1 if there is none, and the entries by their transfer.
    """
    edges = _entries(graph)
    source, transfers = graph.source[edges], GroupBy(graph.target[edges])
    following, by_rank = np.full(len(rows), -1, dtype=np.int64), RowsBy(graph.rank[source])
    for rank, mine in GroupBy(graph.rank[rows]).items():
        entered = by_rank.rows(rank)
        called, transfer_of = graph.end_ns[source[entered]], transfers.number[entered]
        order = np.argsort(called, kind="stable")
        at = np.searchsorted(called[order], graph.end_ns[rows[mine]], side="left")
        known = at < len(order)
        following[mine[known]] = transfer_of[order[at[known]]]
    return following, transfers


def _center(amount: Floats, peers: GroupBy, center: str, members: Int64 | None = None) -> Floats:
    """Return the mean or median of the amounts of each group of peers; absent members count as 0.

    ``peers``: of the amounts. ``center``: ``mean`` or ``median``. ``members``: members of each group; by default as
    many as amounts.
    """
    present = peers.sizes
    members = present if members is None else np.maximum(members, present)
    if center == "mean":
        return np.asarray(peers.sum(amount) / np.maximum(members, 1))
    ordered = np.append(amount[order_by(peers.number, amount)], 0.0)
    first, absent = peers.bounds[:-1], members - present
    middle = [half - absent for half in ((members - 1) // 2, members // 2)]
    low, high = (np.where(at >= 0, ordered[np.where(at >= 0, first + at, -1)], 0.0) for at in middle)
    centers: Floats = (low + high) / 2
    return centers
