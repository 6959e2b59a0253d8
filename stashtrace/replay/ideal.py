"""What each piece of work would take if all ranks were alike: the mean or the median of its peers.

Where a run's operations have names (a pipeline), peers are all operations of one name: of all ranks, stages, steps and
micro-batches, as in "Understanding Stragglers in Large Model Training Using What-if Analysis" (Lin et al., OSDI 2025).
Elsewhere they are what the members of a collective do of one kind before they enter it, and transfers of one size.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.graph import EdgeKind, Graph, PipelineGraph, Resource
from stashtrace.analysis.intervals import Int64
from stashtrace.errors import UsageError

Floats = npt.NDArray[np.float64]
#: Of work; transfers always take the median, whose outliers are waits that nobody recorded.
Center = Literal["mean", "median"]


def ideal_work_ns(graph: Graph, center: Center = "mean") -> Int64:
    """Length of each node if all ranks were alike.

    Parameters
    ----------
    graph : Graph
    center : {"mean", "median"}
        Of work: with the mean the same work is shared evenly, with the median a slow rank is left out.

    Returns
    -------
    int array
        ns by node. Nodes without peers keep their length.

    Raises
    ------
    UsageError
        For another center.
    """
    if center not in get_args(Center):
        raise UsageError(f"no center is called {center!r}", hint=f"one of {', '.join(get_args(Center))}")
    work = graph.work_ns.astype(np.float64)
    moves = graph.resource == Resource.TRANSFER
    if isinstance(graph, PipelineGraph):
        named = graph.operation >= 0
        for chosen, center_of in ((named & ~moves, center), (named & moves, "median")):
            rows = np.flatnonzero(chosen)
            _, cell = np.unique(graph.operation[rows], return_inverse=True)
            work[rows] = _center(work[rows], cell, None, center_of)[cell]
    else:
        _threads(graph, work, center)
        rows = np.flatnonzero(graph.resource == Resource.WORKER)
        cell = _place(graph.rank[rows], graph.begin_ns[rows])
        work[rows] = _center(work[rows], cell, None, center)[cell]
        rows = np.flatnonzero(moves)
        keys = np.stack([graph.kind[rows], graph.moved_bytes[rows]])
        _, cell = np.unique(keys, axis=1, return_inverse=True)
        work[rows] = _center(work[rows], cell.ravel(), None, "median")[cell.ravel()]
    return np.rint(work).astype(np.int64)


def _threads(graph: Graph, work: Floats, center: Center) -> None:
    """Scale what each rank did of each kind before each collective to what its members did of it."""
    passive = (Resource.TRANSFER, Resource.WORKER, Resource.MEETING, Resource.CHECKPOINT)
    rows = np.flatnonzero((graph.rank >= 0) & ~np.isin(graph.resource, passive))
    if not len(rows):
        return
    before, members = _next_transfer(graph, rows)
    # After the last one a rank's peers are all ranks in the same step.
    ranks = len(np.unique(graph.rank[rows]))
    alone = before < 0
    steps, step = np.unique(graph.step[rows[alone]], return_inverse=True)
    before[alone] = len(members) + step
    members = np.append(members, np.full(len(steps), ranks)).astype(np.int64)
    unit_keys = np.stack([before, graph.resource[rows], graph.kind[rows], graph.rank[rows]])
    units, unit = np.unique(unit_keys, axis=1, return_inverse=True)
    unit = unit.ravel()
    amount: Floats = np.bincount(unit, weights=work[rows]).astype(np.float64)
    cells, cell = np.unique(units[:3], axis=1, return_inverse=True)
    typical = _center(amount, cell.ravel(), members[cells[0]], center)[cell.ravel()]
    scale = np.divide(typical, amount, out=np.ones_like(amount), where=amount > 0)
    work[rows] *= scale[unit]


def _next_transfer(graph: Graph, rows: Int64) -> tuple[Int64, Int64]:
    """For each of these nodes the transfer that its rank entered next, -1 if none; and how many ranks entered each."""
    edges = np.flatnonzero((graph.edge_kind == EdgeKind.MEMBER) & (graph.rank[graph.source] >= 0))
    source, target = graph.source[edges], graph.target[edges]
    transfers, place = np.unique(target, return_inverse=True)
    pairs = np.unique(np.stack([place, graph.rank[source]]), axis=1)
    members = np.bincount(pairs[0], minlength=len(transfers))
    following = np.full(len(rows), -1, dtype=np.int64)
    for rank in np.unique(graph.rank[rows]).tolist():
        mine = np.flatnonzero(graph.rank[rows] == rank)
        entered = graph.rank[source] == rank
        called, transfer_of = graph.end_ns[source[entered]], place[entered]
        order = np.argsort(called, kind="stable")
        at = np.searchsorted(called[order], graph.end_ns[rows[mine]], side="left")
        known = at < len(order)
        following[mine[known]] = transfer_of[order[at[known]]]
    return following, members


def _place(rank: Int64, begin: Int64) -> Int64:
    """The how-manieth of its rank each node is."""
    order = np.lexsort((begin, rank))
    own = rank[order]
    starts = np.flatnonzero(np.append(True, own[1:] != own[:-1])) if len(own) else np.empty(0, dtype=np.int64)
    length = np.diff(np.append(starts, len(own)))
    place = np.empty(len(rank), dtype=np.int64)
    place[order] = np.arange(len(own)) - np.repeat(starts, length)
    return place


def _center(amount: Floats, cell: Int64, members: Int64 | None, center: str) -> Floats:
    """Mean or median of the amounts of each cell; members that have none count as nothing.

    Parameters
    ----------
    amount : float array
    cell : int array
        Of each amount, from 0 without a gap.
    members : int array, optional
        How many each cell has; by default as many as amounts.
    which : str
        ``mean`` or ``median``.
    """
    present = np.bincount(cell)
    members = present if members is None else np.maximum(members, present)
    if center == "mean":
        return np.bincount(cell, weights=amount) / np.maximum(members, 1)
    order = np.lexsort((amount, cell))
    ordered = np.append(amount[order], 0.0)
    first = np.cumsum(present) - present
    absent = members - present
    middle = [half - absent for half in ((members - 1) // 2, members // 2)]
    low, high = (np.where(at >= 0, ordered[np.where(at >= 0, first + at, -1)], 0.0) for at in middle)
    centers: Floats = (low + high) / 2
    return centers
