"""Nobody is late: what each rank's thread and workers do takes as long as with the other ranks.

Two answers bound it. At least, each rank does everything as fast as the others do it in the median, collective by
collective, so that nobody is ever late. At most, only what a rank takes longer *in general* is taken away: what hits
one rank after the other stays. Where the batches of ranks differ in samples, work is compared per sample.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace

import numpy as np

from stashtrace.analysis.graph import EdgeKind, Graph, PipelineGraph, Resource
from stashtrace.analysis.timeset import NEVER, Int64
from stashtrace.replay.peers import of_others, without_late_devices, without_late_operations
from stashtrace.replay.scenario import Floats, Scenario
from stashtrace.replay.sharing import crowded_hosts

#: A transfer whose members come within this time was entered together.
_LATE_NS = 1_000_000
#: A thread that wakes up waits no longer for its turn.
_TURN_NS = 3_000_000
#: So many transfers of a size waited for no thread.
_QUICK_RATIO = 0.1


def without_lateness(scenario: Scenario) -> Scenario:
    """Nobody is late, between both bounds as ``luck`` has it."""
    graph, luck = scenario.graph, scenario.unknowns.luck
    if isinstance(graph, PipelineGraph):
        return scenario.with_work(without_late_operations(graph, scenario.work))
    batches = graph.is_batch
    work = without_late_devices(graph, _threads_alike(graph, scenario.work, luck))
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
    found = np.zeros(len(graph))
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
        found[alike] = np.maximum(np.quantile(took, _QUICK_RATIO) + _TURN_NS / 2 - took, 0.0)
    return found


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
        called, which = graph.end_ns[graph.source[member[entered]]], place[entered]
        order = np.argsort(called, kind="stable")
        at = np.searchsorted(called[order], graph.end_ns[mine], side="left")
        known = at < len(order)
        mine, kind, next_one = mine[known], kind[known], which[order[at[known]]]
        parts.append((row, mine, kind, next_one))
        spent[:, row, np.unique(next_one)] = 0.0
        np.add.at(spent, (kind, row, next_one), work[mine])
    whole = spent.sum(axis=0)
    samples, ordinal = _of_collectives(graph, ranks, transfers)
    typical = samples * _typical(whole / samples, ordinal, luck)
    usual = np.array([of_others(of_kind) for of_kind in spent])
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
    told = ~np.isnan(samples).any(axis=0)
    samples[:, ~told] = 1.0
    return samples / samples.mean(axis=0), ordinal


def _batches_alike(graph: Graph, amount: Floats, luck: float) -> Floats:
    """No rank's n-th batch takes longer than those of the others do."""
    out: Floats = amount.copy()
    batches = np.flatnonzero(graph.resource == Resource.WORKER)
    ranks = np.unique(graph.rank[batches]).tolist()
    if len(ranks) < 2:
        return out
    ordered = [mine[np.argsort(graph.begin_ns[mine], kind="stable")] for mine in
               (batches[graph.rank[batches] == rank] for rank in ranks)]  # fmt: skip
    count = min(len(mine) for mine in ordered)
    amounts = np.array([amount[mine[:count]] for mine in ordered])
    typical = _typical(amounts, np.zeros(count, dtype=np.int64), luck)
    for row, mine in enumerate(ordered):
        out[mine[:count]] = np.minimum(amount[mine[:count]], typical[row])
    return out


def _typical(amounts: Floats, kind: Int64, luck: float) -> Floats:
    """What is typical of the other rows: in the same column, and, as ``luck`` grows, among all columns of its kind."""
    at_least = of_others(amounts)
    if luck == 0:
        return at_least
    at_most = np.full(amounts.shape, np.nan)
    for one in np.unique(kind).tolist():
        columns = np.flatnonzero((kind == one) & ~np.isnan(amounts).any(axis=0))
        order = np.argsort(amounts[:, columns], axis=1, kind="stable")
        in_order = of_others(np.take_along_axis(amounts[:, columns], order, axis=1))
        found = np.empty_like(in_order)
        np.put_along_axis(found, order, in_order, axis=1)
        at_most[:, columns] = found
    at_most = np.where(np.isnan(at_most), at_least, at_most)
    return (1 - luck) * at_least + luck * at_most
