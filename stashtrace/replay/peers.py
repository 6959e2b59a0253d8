"""What the other ranks needed for the same: the measure of a rank that was late."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import warnings

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.graph import EdgeKind, Graph, PipelineGraph, Resource

Floats = npt.NDArray[np.float64]

#: Of more ranks, the median of all is that of all others.
_MANY_RANKS = 32


def of_others(amounts: Floats) -> Floats:
    """Median of the other rows for each row, column by column; of many rows, of all. NaN where no other has any."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # columns of nothing but NaN
        if len(amounts) > _MANY_RANKS:
            return np.broadcast_to(np.nanmedian(amounts, axis=0), amounts.shape)
        rows = [np.nanmedian(np.delete(amounts, row, axis=0), axis=0) for row in range(len(amounts))]
    return np.array(rows)


def without_late_devices(graph: Graph, work: Floats) -> Floats:
    """Lengths of nodes if no rank with a device let the others wait.

    A host runs ahead of its device, so what made a rank late may lie steps of the loop before. Of each kind of work of
    a rank and step, what exceeds the others' median is taken away, but no more than the rank was late in the step.
    The time by which a rank began its first step later than the others is taken away too.
    """
    chosen = np.flatnonzero(np.isin(graph.resource, (Resource.STREAM, Resource.HOST)))
    out: Floats = work.copy()
    ranks, row = np.unique(graph.rank[chosen], return_inverse=True)
    if len(ranks) < 2:
        return out
    steps, column = np.unique(graph.step[chosen], return_inverse=True)
    kinds, layer = np.unique(graph.resource[chosen] << 32 | graph.kind[chosen], return_inverse=True)
    spent = np.zeros((len(kinds), len(ranks), len(steps)))
    np.add.at(spent, (layer, row, column), work[chosen])
    excess = np.maximum(spent - np.array([of_others(of_kind) for of_kind in spent]), 0.0)
    late = _late_ns(graph, ranks, steps)
    late[:, steps < 0] = np.inf  # before the first step
    left = spent - np.minimum(excess, late)
    before, after = spent[layer, row, column], left[layer, row, column]
    out[chosen] = work[chosen] * np.divide(after, before, out=np.ones_like(before), where=before > 0)
    return out


def without_late_operations(graph: PipelineGraph, work: Floats) -> Floats:
    """Lengths of nodes if in no step a rank took longer for an operation than the others of its stage in the median."""
    out: Floats = work.copy()
    rows = np.flatnonzero((graph.operation >= 0) & (graph.resource == Resource.COMPUTE_STREAM))
    ranks, row = np.unique(graph.rank[rows], return_inverse=True)
    stage = np.array([graph.stage_of.get(rank, -1) for rank in ranks.tolist()], dtype=np.int64)
    cells, cell = np.unique(np.stack([graph.operation[rows], graph.step[rows]]), axis=1, return_inverse=True)
    cell = cell.ravel()
    spent = np.full((len(ranks), cells.shape[1]), np.nan)
    spent[row, cell] = 0.0
    np.add.at(spent, (row, cell), work[rows])
    usual = np.full_like(spent, np.nan)
    for number in np.unique(stage).tolist():
        members = np.flatnonzero(stage == number)
        if len(members) > 1:
            usual[members] = of_others(spent[members])
    scale = np.divide(np.fmin(spent, usual), spent, out=np.ones_like(spent), where=spent > 0)
    out[rows] *= scale[row, cell]
    return out


def _late_ns(graph: Graph, ranks: npt.NDArray[np.int64], steps: npt.NDArray[np.int64]) -> Floats:
    """By how much each rank entered the collectives of each step later than the median of the others, added."""
    member = np.flatnonzero(graph.edge_kind == EdgeKind.MEMBER)
    source = graph.source[member]
    known = np.isin(graph.rank[source], ranks)
    member, source = member[known], source[known]
    transfers, place = np.unique(graph.target[member], return_inverse=True)
    late = np.zeros((len(ranks), len(steps)))
    if not len(transfers):
        return late
    entered = np.full((len(ranks), len(transfers)), np.nan)
    row = np.searchsorted(ranks, graph.rank[source])
    entered[row, place] = graph.end_ns[source] - graph.begin_ns.min()
    behind = np.nan_to_num(np.maximum(entered - of_others(entered), 0.0))
    np.add.at(late, (row, np.searchsorted(steps, graph.step[source])), behind[row, place])
    return late
