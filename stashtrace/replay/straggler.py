"""Nobody is late: what each rank's thread and workers do takes as long as with the other ranks.

Two answers bound it. At least, each rank does everything as fast as the others do it in the median, collective by
collective, so that nobody is ever late. At most, only what a rank takes longer *in general* is taken away: what hits
one rank after the other stays. Where the batches of ranks differ in samples, work is compared per sample.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.graph import EdgeKind, Graph, PipelineGraph, Resource
from stashtrace.analysis.intervals import NEVER, Int64
from stashtrace.replay.scenario import Floats, Scenario
from stashtrace.replay.sharing import crowded_hosts

#: A transfer whose members come within this time was entered together.
_LATE_NS = 1_000_000
#: A thread that wakes up waits no longer for its turn.
_TURN_NS = 3_000_000
#: Of more ranks, the median of all is that of all others.
_MANY_RANKS = 32
#: So many transfers of a size waited for no thread.
_QUICK_RATIO = 0.1


def without_lateness(scenario: Scenario) -> Scenario:
    """Nobody is late, between both bounds as ``luck`` has it."""
    graph, luck = scenario.graph, scenario.unknowns.luck
    if isinstance(graph, PipelineGraph):
        return scenario.with_work(_without_late_operations(graph, scenario.work))
    batches = graph.is_batch
    work = _without_late_devices(graph, _threads_alike(graph, scenario.work, luck))
    work = np.where(batches, _batches_alike(graph, scenario.work, luck), work)
    fetch = np.where(batches, np.minimum(_batches_alike(graph, scenario.fetch, luck), work), scenario.fetch)
    if crowded_hosts(graph, transfers=True):
        work = work + luck * _woken_ns(graph)
    return replace(scenario, work=work, fetch=fetch)


def _woken_ns(graph: Graph) -> Floats:
    """What transfers that a late rank began may take longer when all come together, 0 of other nodes.

    Who is early has sent its part before the last one comes. Who comes together wakes up all threads that move messages
    at once, and each waits for its turn on a CPU: for half of the longest such wait in the mean. A transfer that took
    so much longer than the quick ones of its size has had such a wait, and has none twice.
    """
    longer = np.zeros(len(graph))
    members = np.flatnonzero(graph.edge_kind == EdgeKind.MEMBER)
    transfers, place = np.unique(graph.target[members].astype(np.int64), return_inverse=True)
    entered = graph.end_ns[graph.source[members]] + graph.lag_ns[members]
    first, last = np.full(len(transfers), NEVER), np.full(len(transfers), -NEVER)
    np.minimum.at(first, place, entered)
    np.maximum.at(last, place, entered)
    late = last - first > _LATE_NS
    step = np.full(len(transfers), -1, dtype=np.int64)
    np.maximum.at(step, place, graph.step[graph.source[members]])
    # Those behind it in the step find the threads awake.
    order = np.flatnonzero(late)[np.lexsort((graph.begin_ns[transfers[late]], step[late]))]
    late = transfers[order[np.append(True, step[order][1:] != step[order][:-1])[: len(order)]]]
    for size in np.unique(graph.moved_bytes[late]).tolist():
        alike = late[graph.moved_bytes[late] == size]
        took = graph.work_ns[alike]
        longer[alike] = np.maximum(np.quantile(took, _QUICK_RATIO) + _TURN_NS / 2 - took, 0.0)
    return longer


def _threads_alike(graph: Graph, work: Floats, luck: float) -> Floats:
    """Before each collective no rank's thread works longer than the others that enter it do."""
    threads = np.flatnonzero(np.isin(graph.resource, (Resource.STEP_THREAD, Resource.DEVICE)))
    member = np.flatnonzero(graph.edge_kind == EdgeKind.MEMBER)
    out: Floats = work.copy()
    ranks = np.unique(graph.rank[threads]).tolist()
    transfers, place = np.unique(graph.target[member].astype(np.int64), return_inverse=True)
    if len(ranks) < 2 or not len(transfers):
        return out
    kinds, kind_of = np.unique(graph.kind[threads], return_inverse=True)
    spent = np.full((len(kinds), len(ranks), len(transfers)), np.nan)
    parts = []
    for row, rank in enumerate(ranks):
        chosen = graph.rank[threads] == rank
        mine, kind = threads[chosen], kind_of[chosen]
        entered = np.isin(graph.source[member], mine)
        called, transfer_of = graph.end_ns[graph.source[member[entered]]], place[entered]
        order = np.argsort(called, kind="stable")
        at = np.searchsorted(called[order], graph.end_ns[mine], side="left")
        known = at < len(order)
        mine, kind, next_one = mine[known], kind[known], transfer_of[order[at[known]]]
        parts.append((row, mine, kind, next_one))
        spent[:, row, np.unique(next_one)] = 0.0
        np.add.at(spent, (kind, row, next_one), work[mine])
    whole = spent.sum(axis=0)
    samples, ordinal = _of_collectives(graph, ranks, transfers)
    typical = samples * _typical(whole / samples, ordinal, luck)
    usual = np.array([_of_others(of_kind) for of_kind in spent])
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


def _of_collectives(graph: Graph, ranks: list[int], transfers: Int64) -> tuple[Floats, Int64]:
    """Samples of each rank's step around each collective, relative to the mean, and its place in the step."""
    facts, count = graph.facts, len(transfers)
    members = np.flatnonzero(graph.edge_kind == EdgeKind.MEMBER)
    members = members[np.isin(graph.rank[graph.source[members]], ranks)]  # others have kernels
    column = np.searchsorted(transfers, graph.target[members])
    step = np.full((len(ranks), count), -1, dtype=np.int64)
    row = np.searchsorted(ranks, graph.rank[graph.source[members]])
    step[row, column] = graph.step[graph.source[members]]
    order = np.lexsort((graph.begin_ns[transfers], step.max(axis=0)))
    in_order = step.max(axis=0)[order]
    first = np.searchsorted(in_order, in_order, side="left")
    ordinal = np.empty(count, dtype=np.int64)
    ordinal[order] = np.arange(count) - first
    samples = np.ones((len(ranks), count))
    if facts is None or not (facts.samples > 0).any():
        return samples, ordinal
    for number, rank in enumerate(ranks):
        own = np.flatnonzero((graph.ends_rank == rank) & (facts.samples > 0))
        own = own[np.argsort(graph.ends_step[own], kind="stable")]
        at = np.searchsorted(graph.ends_step[own], step[number])
        known = (at < len(own)) & (np.append(graph.ends_step[own], -1)[np.minimum(at, len(own))] == step[number])
        samples[number, known] = facts.samples[own[at[known]]]
        samples[number, ~known] = np.nan
    known_samples = ~np.isnan(samples).any(axis=0)
    samples[:, ~known_samples] = 1.0
    return samples / samples.mean(axis=0), ordinal


def _batches_alike(graph: Graph, amount: Floats, luck: float) -> Floats:
    """No rank's n-th batch takes longer than those of the others do."""
    out: Floats = amount.copy()
    batches = np.flatnonzero(graph.resource == Resource.WORKER)
    ranks = np.unique(graph.rank[batches]).tolist()
    if len(ranks) < 2:
        return out
    ordered = [
        mine[np.argsort(graph.begin_ns[mine], kind="stable")]
        for mine in (batches[graph.rank[batches] == rank] for rank in ranks)
    ]
    count = min(len(mine) for mine in ordered)
    amounts = np.array([amount[mine[:count]] for mine in ordered])
    typical = _typical(amounts, np.zeros(count, dtype=np.int64), luck)
    for row, mine in enumerate(ordered):
        out[mine[:count]] = np.minimum(amount[mine[:count]], typical[row])
    return out


def _typical(amounts: Floats, kind: Int64, luck: float) -> Floats:
    """What is typical of the other rows: in the same column, and, as ``luck`` grows, among all columns of its kind."""
    at_least = _of_others(amounts)
    if luck == 0:
        return at_least
    at_most = np.full(amounts.shape, np.nan)
    for number in np.unique(kind).tolist():
        columns = np.flatnonzero((kind == number) & ~np.isnan(amounts).any(axis=0))
        order = np.argsort(amounts[:, columns], axis=1, kind="stable")
        in_order = _of_others(np.take_along_axis(amounts[:, columns], order, axis=1))
        in_place = np.empty_like(in_order)
        np.put_along_axis(in_place, order, in_order, axis=1)
        at_most[:, columns] = in_place
    at_most = np.where(np.isnan(at_most), at_least, at_most)
    return (1 - luck) * at_least + luck * at_most


def _of_others(amounts: Floats) -> Floats:
    """Median of the other rows for each row, column by column; of many rows, of all. NaN where no other has any."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # columns of nothing but NaN
        if len(amounts) > _MANY_RANKS:
            return np.broadcast_to(np.nanmedian(amounts, axis=0), amounts.shape)
        rows = [np.nanmedian(np.delete(amounts, row, axis=0), axis=0) for row in range(len(amounts))]
    return np.array(rows)


def _without_late_devices(graph: Graph, work: Floats) -> Floats:
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
    excess = np.maximum(spent - np.array([_of_others(of_kind) for of_kind in spent]), 0.0)
    late = _late_ns(graph, ranks, steps)
    late[:, steps < 0] = np.inf  # before the first step
    left = spent - np.minimum(excess, late)
    before, after = spent[layer, row, column], left[layer, row, column]
    out[chosen] = work[chosen] * np.divide(after, before, out=np.ones_like(before), where=before > 0)
    return out


def _without_late_operations(graph: PipelineGraph, work: Floats) -> Floats:
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
            usual[members] = _of_others(spent[members])
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
    behind = np.nan_to_num(np.maximum(entered - _of_others(entered), 0.0))
    np.add.at(late, (row, np.searchsorted(steps, graph.step[source])), behind[row, place])
    return late
