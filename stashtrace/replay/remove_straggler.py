"""Remove a late rank from a graph: its thread and workers take as long as those of the other ranks.

Two answers bound it. At least: before each collective a rank does everything as fast as the median of the others, so
no rank is ever late. At most: a rank loses only what it takes longer *in general*; delays that hit one rank after the
other stay. Where the batches of ranks differ in samples, work is compared per sample.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from stashtrace.analysis.graph import EdgeKind, Graph, PipelineGraph, Resource
from stashtrace.analysis.intervals import Bools, Floats, Int64
from stashtrace.replay.policy import POLICY
from stashtrace.replay.scenario import Scenario
from stashtrace.replay.sharing import crowded_hosts
from stashtrace.replay.slowdown import next_transfers
from stashtrace.schema.groupby import GroupBy, order_by
from stashtrace.schema.kinds import CollectiveOp


def without_lateness(scenario: Scenario) -> Scenario:
    """Return the scenario without lateness, between both bounds by ``luck``."""
    graph, luck = scenario.graph, scenario.unknowns.luck
    if isinstance(graph, PipelineGraph):
        return scenario.with_work(_without_late_operations(graph, scenario.work))
    batches = graph.is_batch
    work = _without_late_devices(graph, _equal_threads(graph, scenario.work, luck))
    work = np.where(batches, _equal_batches(graph, scenario.work, luck), work)
    fetch = np.where(batches, np.minimum(_equal_batches(graph, scenario.fetch, luck), work), scenario.fetch)
    if crowded_hosts(graph, transfers=True):
        work = work + luck * _woken_ns(graph)
    return replace(scenario, work=work, fetch=fetch)


def _woken_ns(graph: Graph) -> Floats:
    """Return how much longer transfers with a late rank may take when all come together, 0 for other nodes.

    Early ranks have sent their part before the last one comes. Ranks that come together wake up all threads that move
    messages at once, and each waits for its turn on a CPU: in the mean half of the longest such wait. A transfer that
    took that much longer than the quick ones of its size has had such a wait already.
    """
    longer = np.zeros(len(graph))
    members = np.flatnonzero(graph.edge_kind == EdgeKind.MEMBER)
    source, transfers = graph.source[members], GroupBy(graph.target[members])
    entered = graph.end_ns[source] + graph.lag_ns[members]
    is_late = transfers.max(entered) - transfers.min(entered) > POLICY.entered_together_ns
    late, step = transfers.values[is_late], transfers.max(graph.step[source])[is_late]
    # Transfers behind the first late one of a step find the threads awake.
    order = order_by(step, graph.begin_ns[late])
    late = late[order[GroupBy.runs(step[order]).first]]
    for size in np.unique(graph.moved_bytes[late]).tolist():
        similar = late[graph.moved_bytes[late] == size]
        took = graph.work_ns[similar]
        longer[similar] = np.maximum(np.quantile(took, POLICY.unwaited_ratio) + POLICY.thread_turn_ns / 2 - took, 0.0)
    return longer


def _equal_threads(graph: Graph, work: Floats, luck: float) -> Floats:
    """Let no rank's thread work longer before a collective than the others that enter it."""
    threads = np.flatnonzero(np.isin(graph.resource, (Resource.STEP_THREAD, Resource.DEVICE)) & _has_steps(graph))
    out: Floats = work.copy()
    following, transfers = next_transfers(graph, threads)
    ranks = np.unique(graph.rank[threads])
    if len(ranks) < 2 or not len(transfers):
        return out
    # What one rank does before a send the other one has done before an earlier operation: only whole steps compare.
    to_one_rank = np.append(_is_pair(graph)[transfers.values], False)[following]
    out = _equal_steps(graph, out, threads[to_one_rank], luck)
    whole = (following >= 0) & ~to_one_rank
    threads, following = threads[whole], following[whole]
    if not len(threads):
        return out
    row, kinds = np.searchsorted(ranks, graph.rank[threads]), GroupBy(graph.kind[threads])
    cell = kinds.number, row, following
    entered = np.zeros((len(ranks), len(transfers)), dtype=bool)
    entered[row, following] = True
    sums = GroupBy.cells(cell, (len(kinds), *entered.shape)).sum(work[threads])
    spent = np.where(entered, sums, np.nan)
    whole = spent.sum(axis=0)
    samples, ordinal = _of_collectives(graph, ranks, transfers.values)
    typical = samples * _typical(whole / samples, ordinal, luck)
    usual = np.array([of_others(of_kind) for of_kind in spent])
    # Kinds of work that a rank does longer are shortened first; where that is not enough, all of its work is.
    excess = np.maximum(spent - usual, 0.0)
    needed = np.maximum(whole - typical, 0.0)
    share = np.divide(needed, excess.sum(axis=0), out=np.zeros_like(needed), where=excess.sum(axis=0) > 0)
    left = spent - excess * np.minimum(share, 1.0)
    target, reached = np.fmin(whole, typical), left.sum(axis=0)
    left *= np.divide(target, reached, out=np.ones_like(reached), where=reached > target)
    before, after = spent[cell], left[cell]
    out[threads] *= np.divide(after, before, out=np.ones_like(before), where=(before > 0) & (after >= 0))
    return out


def _has_steps(graph: Graph) -> Bools:
    """Return the mask of nodes of ranks with steps: one that only serves others has other work than they."""
    return np.isin(graph.rank, np.unique(graph.ends_rank))


def _is_pair(graph: Graph) -> Bools:
    """Return the mask of transfers that are a send and its receive."""
    if graph.facts is None:
        return np.zeros(len(graph), dtype=bool)
    return graph.is_transfer & np.isin(graph.facts.op, (CollectiveOp.SEND, CollectiveOp.RECEIVE))


def _of_collectives(graph: Graph, ranks: Int64, transfers: Int64) -> tuple[Floats, Int64]:
    """Return for each collective the samples of each rank's step, relative to the mean, and its place in the step."""
    facts, count = graph.facts, len(transfers)
    members = np.flatnonzero(graph.edge_kind == EdgeKind.MEMBER)
    members = members[np.isin(graph.rank[graph.source[members]], ranks)]  # others have kernels
    column = np.searchsorted(transfers, graph.target[members])
    step = np.full((len(ranks), count), -1, dtype=np.int64)
    row = np.searchsorted(ranks, graph.rank[graph.source[members]])
    step[row, column] = graph.step[graph.source[members]]
    order = order_by(step.max(axis=0), graph.begin_ns[transfers])
    ordinal = np.empty(count, dtype=np.int64)
    ordinal[order] = GroupBy.runs(step.max(axis=0)[order]).position
    samples = np.ones((len(ranks), count))
    if facts is None or not (facts.samples > 0).any():
        return samples, ordinal
    for number, rank in enumerate(ranks):
        rows = np.flatnonzero((graph.ends_rank == rank) & (facts.samples > 0))
        at = GroupBy(graph.ends_step[rows]).row_of(step[number])
        samples[number] = np.where(at >= 0, np.append(facts.samples[rows], np.nan)[at], np.nan)
    known_samples = ~np.isnan(samples).any(axis=0)
    samples[:, ~known_samples] = 1.0
    return samples / samples.mean(axis=0), ordinal


def _equal_batches(graph: Graph, amount: Floats, luck: float) -> Floats:
    """Let no rank's n-th batch take longer than those of the others."""
    out: Floats = amount.copy()
    batches = np.flatnonzero(graph.resource == Resource.WORKER)
    ranks = GroupBy(graph.rank[batches])
    if len(ranks) < 2:
        return out
    batches = batches[order_by(ranks.number, graph.begin_ns[batches])]
    ordered = np.split(batches, ranks.bounds[1:-1])
    count = min(len(mine) for mine in ordered)
    amounts = np.array([amount[mine[:count]] for mine in ordered])
    typical = _typical(amounts, np.zeros(count, dtype=np.int64), luck)
    for row, mine in enumerate(ordered):
        out[mine[:count]] = np.minimum(amount[mine[:count]], typical[row])
    return out


def _typical(amounts: Floats, kind: Int64, luck: float) -> Floats:
    """Return what is typical of the other rows in the same column and, as ``luck`` grows, in all columns of a kind."""
    at_least = of_others(amounts)
    if luck == 0:
        return at_least
    at_most = np.full(amounts.shape, np.nan)
    for number in np.unique(kind).tolist():
        columns = np.flatnonzero((kind == number) & ~np.isnan(amounts).any(axis=0))
        order = np.argsort(amounts[:, columns], axis=1, kind="stable")
        in_order = of_others(np.take_along_axis(amounts[:, columns], order, axis=1))
        in_place = np.empty_like(in_order)
        np.put_along_axis(in_place, order, in_order, axis=1)
        at_most[:, columns] = in_place
    at_most = np.where(np.isnan(at_most), at_least, at_most)
    return (1 - luck) * at_least + luck * at_most


def of_others(amounts: Floats, median: Callable[..., Floats] = np.nanmedian) -> Floats:
    """Return the median of the other rows for each row and column (of many rows, of all); NaN where there is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # columns of nothing but NaN
        if len(amounts) > POLICY.many_ranks_count:
            return np.broadcast_to(median(amounts, axis=0), amounts.shape)
        rows = [median(np.delete(amounts, row, axis=0), axis=0) for row in range(len(amounts))]
    return np.array(rows)


def _without_late_devices(graph: Graph, work: Floats) -> Floats:
    """Return lengths of nodes if no rank with a device made the others wait.

    A host runs ahead of its device, so the cause of a late rank may lie steps earlier. For each kind of work of a rank
    and step, the excess over the others' median is taken away, but no more than the rank was late in the step. The time
    by which a rank began its first step later than the others is taken away too.
    """
    chosen = np.flatnonzero(np.isin(graph.resource, (Resource.STREAM, Resource.HOST)))
    return _equal_steps(graph, work, chosen, places=places_in_step(graph, chosen))


def places_in_step(graph: Graph, chosen: Int64) -> Int64:
    """Return for each node how many collectives of its step its rank had entered; 0 in steps in which ranks differ.

    Where a rank waits in several collectives of a step, it matters before which of them another one works longer.
    """
    source = graph.source[graph.edge_kind == EdgeKind.MEMBER]
    source = source[np.isin(graph.rank[source], graph.rank[chosen])]
    each = GroupBy(graph.step[source], graph.rank[source])
    steps = GroupBy(each.keys[0])
    similar = steps.values[steps.min(each.sizes) == steps.max(each.sizes)]
    source = source[np.isin(graph.step[source], similar)]
    entries = GroupBy(graph.rank[source], graph.step[source])
    at, first = entries.find(graph.rank[chosen], graph.step[chosen]), graph.begin_ns.min()
    span = int(graph.end_ns.max() - first) + 1
    # One ascending series of all ranks and steps, each in a separate span.
    entered = np.sort(entries.number * span + graph.end_ns[source] - first)
    before = np.searchsorted(entered, at * span + graph.end_ns[chosen] - first, side="left")
    return np.where(at >= 0, before - np.append(entries.bounds, 0)[at], 0)


def _equal_steps(
    graph: Graph, work: Floats, chosen: Int64, luck: float = 0.0, *, places: Int64 | None = None
) -> Floats:
    """Take the excess of a rank's steps over the others' median away from some nodes, as far as it was late in them.

    As ``luck`` grows, what a rank does longer in single steps stays, and only what it does longer on average goes. With
    ``places`` it goes where in a step the rank works longer than the others, else from all of its work equally long.
    """
    out: Floats = work.copy()
    ranks, steps = GroupBy(graph.rank[chosen]), GroupBy(graph.step[chosen])
    if len(ranks) < 2:
        return out
    kinds = GroupBy(graph.resource[chosen], graph.kind[chosen])
    cell: tuple[Int64, ...] = (kinds.number, ranks.number, steps.number)
    spent = GroupBy.cells(cell, (len(kinds), len(ranks), len(steps))).sum(work[chosen])
    excess = np.maximum(spent - np.array([of_others(of_kind) for of_kind in spent]), 0.0)
    if luck > 0:
        mean = spent.mean(axis=2, keepdims=True)
        general = np.maximum(mean - np.array([of_others(of_kind) for of_kind in mean]), 0.0)
        # The part of its excess in all steps beyond what the others have, each in other steps.
        part = np.divide(general, excess.mean(axis=2, keepdims=True), out=np.zeros_like(general), where=general > 0)
        excess = (1 - luck) * excess + luck * np.minimum(part, 1.0) * excess
    late = _late_ns(graph, ranks.values, steps.values)
    late[:, steps.values < 0] = np.inf  # before the first step
    left = spent - np.minimum(excess, late)
    if places is not None and (places.max() + 1) * spent.size <= POLICY.most_cells_count:
        placed = (*cell, places)
        spent = GroupBy.cells(placed, (*spent.shape, int(places.max()) + 1)).sum(work[chosen])
        before, after = spent[placed], _taken_in_places(spent, left)[placed]
    else:
        before, after = spent[cell], left[cell]
    out[chosen] = work[chosen] * np.divide(after, before, out=np.ones_like(before), where=before > 0)
    return out


def _taken_in_places(spent: Floats, left: Floats) -> Floats:
    """Return what is left in each place of steps, given what was ``spent`` there and what is ``left`` of whole steps.

    It is taken from what a rank does longer there than the others, and only then from the rest.
    """
    longer = np.maximum(spent - np.array([of_others(of_kind) for of_kind in spent]), 0.0)
    whole, goes = longer.sum(axis=-1), spent.sum(axis=-1) - left
    share = np.divide(goes, whole, out=np.zeros_like(whole), where=whole > 0)
    kept = spent - longer * np.minimum(share, 1.0)[..., None]
    of_all = kept.sum(axis=-1)
    scale = np.divide(left, of_all, out=np.ones_like(of_all), where=of_all > np.maximum(left, 0.0))
    return np.asarray(kept * np.maximum(scale, 0.0)[..., None])


def _without_late_operations(graph: PipelineGraph, work: Floats) -> Floats:
    """Return lengths of nodes if in no step a rank took longer for an operation than the median of its stage."""
    out: Floats = work.copy()
    rows = np.flatnonzero((graph.operation >= 0) & (graph.resource == Resource.COMPUTE_STREAM))
    ranks, operations = GroupBy(graph.rank[rows]), GroupBy(graph.operation[rows], graph.step[rows])
    stage = np.array([graph.stage_of.get(rank, -1) for rank in ranks.values.tolist()], dtype=np.int64)
    cell = ranks.number, operations.number
    cells = GroupBy.cells(cell, (len(ranks), len(operations)))
    spent = np.where(cells.sizes > 0, cells.sum(work[rows]), np.nan)
    usual = np.full_like(spent, np.nan)
    for members in GroupBy(stage):
        if len(members) > 1:
            usual[members] = of_others(spent[members])
    scale = np.divide(np.fmin(spent, usual), spent, out=np.ones_like(spent), where=spent > 0)
    out[rows] *= scale[cell]
    return out


def _late_ns(graph: Graph, ranks: Int64, steps: Int64) -> Floats:
    """Return by how much each rank entered the collectives of each step later than the others' median, in sum."""
    member = np.flatnonzero(graph.edge_kind == EdgeKind.MEMBER)
    source = graph.source[member]
    is_own = np.isin(graph.rank, ranks)
    known = is_own[source] | ~_has_steps(graph)[source]
    member, source = member[known], source[known]
    transfers, entering = GroupBy(graph.target[member]), GroupBy(graph.rank[source])
    if not len(transfers):
        return np.zeros((len(ranks), len(steps)))
    entered = np.full((len(entering), len(transfers)), np.nan)
    entered[entering.number, transfers.number] = graph.end_ns[source] - graph.begin_ns.min()
    behind = np.nan_to_num(np.maximum(entered - of_others(entered), 0.0))[entering.number, transfers.number]
    rows = np.flatnonzero(is_own[source])
    step, rank = np.searchsorted(steps, graph.step[source[rows]]), np.searchsorted(ranks, graph.rank[source[rows]])
    return GroupBy.cells((rank, step), (len(ranks), len(steps))).sum(behind[rows])
