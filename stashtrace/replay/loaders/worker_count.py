"""Change the number of loader workers: the same batches, handed out in turn, one after the other within a worker.

    2 workers   w0 [ 0 ][ 2 ][ 4 ]      3 workers   w0 [ 0 ][ 3 ]      asked for: batch i + workers * prefetch_factor
                w1 [ 1 ][ 3 ][ 5 ]                  w1 [ 1 ][ 4 ]      when batch i has been taken, as DataLoader does
                                                    w2 [ 2 ][ 5 ]

The length of a batch is kept here; ``sharing`` makes it longer where processes share CPUs. Batches that a step thread
made itself (num_workers=0) move to workers: what their hand-over would cost is not known and left out.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from stashtrace.analysis.graph import EdgeKind, Graph, Resource
from stashtrace.analysis.graph.batch_nodes import PREFETCH
from stashtrace.analysis.graph.policy import POLICY
from stashtrace.analysis.graph.work_graph import Facts
from stashtrace.analysis.intervals import NEVER, Bools, Floats, Int64
from stashtrace.errors import MissingDataError
from stashtrace.replay.changes import Change
from stashtrace.replay.loaders.passes import Edges, Passes, WorkerNodes, not_in_turn, usual_lags, with_edges
from stashtrace.replay.loaders.slow_worker import batches_by_worker
from stashtrace.replay.scenario import Scenario
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import StallKind


def known_loaders(graph: Graph, change: Change) -> Facts:
    """Return the facts of a graph with batches, if a number of workers can be changed as asked.

    Raises MissingDataError if no batches were recorded, or their numbers are unknown, or a multiple of no workers is
    asked for.
    """
    if graph.facts is None or not (graph.facts.batch >= 0).any():
        raise MissingDataError(
            "no worker made batches in this run, so the effect of another number of workers is unknown",
            hint="record it with at least num_workers=1",
        )
    if change.factor is not None and not graph.is_batch.any():
        raise MissingDataError(
            f"{change}: the step threads make their batches themselves (num_workers=0)",
            hint=f"give the number itself, as in {change.quantity}=2",
        )
    uneven = not_in_turn(graph, graph.facts) if graph.is_batch.any() else None
    if uneven is not None:
        raise MissingDataError(
            f"{change}: the workers did not take turns, one made {uneven[0]} batches and another {uneven[1]}, so the"
            " batches of another number of workers are unknown",
            hint="workers whose part of an IterableDataset is small or empty have nothing to make",
        )
    return graph.facts


def workers_to_try(graph: Graph, most: float = math.inf) -> list[Change]:
    """Return numbers of workers that are worth a replay, ascending; empty for a run without batches.

    All of them are more than the run had, and none is more than ``most`` or the batches of the longest pass over the
    data.
    """
    facts = graph.facts
    if facts is None or not (facts.batch >= 0).any() or (graph.is_batch.any() and not_in_turn(graph, facts)):
        return []
    present = Passes.of(graph, facts).workers if graph.is_batch.any() else 0
    most = min(most, int(facts.batch.max()) + 1)
    counts = sorted({present + 1, present + 2, *(factor * max(present, 1) for factor in (2, 3, 4, 8))})
    return [Change.parse(f"workers={count}") for count in counts if present < count <= most]


def with_own_batches_apart(graph: Graph) -> Graph:
    """Return the graph with a node behind the others for each batch that a step thread made itself.

    Each is as long as what the thread did for the batch, and the thread waits for it; ``with_workers`` takes that time
    away from the thread. Where any batch was made by a worker, the graph is returned as it is.
    """
    pieces = _own_pieces(graph)
    if not len(pieces) or graph.is_batch.any():
        return graph
    assert graph.facts is not None
    facts, count = graph.facts, len(graph)
    batches = GroupBy(graph.rank[pieces], facts.loader[pieces], facts.batch[pieces])
    begin_ns, work_ns = graph.begin_ns[pieces], graph.work_ns[pieces]
    first = pieces[batches.argmin(begin_ns)]
    made = count + np.arange(len(batches))
    columns: dict[str, Any] = {n: np.concatenate([c, c[first]]) for n, c in graph.node_columns().items()}
    columns["end_ns"][count:] = columns["begin_ns"][count:] + batches.sum(work_ns)
    columns["fetch_ns"][count:] = batches.sum(np.where(graph.kind[pieces] == StallKind.FETCH, work_ns, 0))
    columns["resource"][count:], columns["kind"][count:] = Resource.WORKER, StallKind.PREP
    columns["gap_ns"][count:] = 0
    longer = facts.with_copies(first)
    for column in (longer.cpu_ns, longer.queued_ns):
        spent = column[pieces]
        column[count:] = np.where(batches.min(spent) >= 0, batches.sum(spent), -1)
    # The first batch of a pass begins when the thread comes to it: ``with_workers`` hands its edges to the others.
    passes = GroupBy(graph.rank[first], facts.loader[first])
    heads = passes.argmin(graph.begin_ns[first])
    leading = np.flatnonzero((graph.edge_kind == EdgeKind.PROGRAM) & np.isin(graph.target, first[heads]))
    head_of = np.full(count, -1, dtype=np.int64)
    head_of[first[heads]] = made[heads]
    takes = Edges.of(made, first, 0.0, EdgeKind.BATCH)
    leads = Edges.of(graph.source[leading], head_of[graph.target[leading]], graph.lag_ns[leading], EdgeKind.PREFETCH)
    return Edges.joined([takes, leads]).added_to(replace(graph, **columns, facts=longer))


def _own_pieces(graph: Graph) -> Int64:
    """Return the nodes in which step threads make batches themselves."""
    if graph.facts is None:
        return np.empty(0, dtype=np.int64)
    return np.flatnonzero((graph.facts.batch >= 0) & ~graph.is_batch)


def with_workers(scenario: Scenario, change: Change) -> Scenario:
    """Give each rank another number of workers. Raises MissingDataError: see :func:`known_loaders`."""
    graph, facts = scenario.graph, known_loaders(scenario.graph, change)
    passes = Passes.of(graph, facts)
    count = change.factor_from(1.0) if change.factor is None else change.factor * passes.workers
    wanted = max(round(count), 1)
    mine = _own_pieces(graph)
    mine = mine[np.isin(graph.process_id[mine], graph.process_id[passes.nodes])]  # moved by with_own_batches_apart
    if wanted == passes.workers and not len(mine):
        return scenario
    scenario = _made_by(scenario, wanted)
    graph, work = scenario.graph, scenario.work.copy()
    work[mine] = 0.0
    _start_and_end(scenario, passes, wanted, work)
    kept = ~(graph.is_batch[graph.target] & np.isin(graph.edge_kind, (EdgeKind.PROGRAM, EdgeKind.PREFETCH)))
    between, late = usual_lags(scenario)
    next_one, made = passes.before(wanted)
    # A batch is asked for when the one a fixed number before it has been taken.
    asked, before = passes.before(wanted * prefetch_factor(passes, graph))
    taken = taken_by(graph)[before]
    known = taken >= 0
    edges = [
        Edges.of(made, next_one, between, EdgeKind.PROGRAM),
        Edges.of(taken[known], asked[known], late, EdgeKind.PREFETCH),
        *_begun(passes, wanted, scenario),
    ]
    begin = graph.begin_ns.copy()
    heads = passes.nodes[passes.position < wanted]
    # Batches without an edge to them begin when the pass does.
    begin[heads] = begin[passes.first_node[passes.position < wanted]]
    gap = graph.gap_ns.copy()
    gap[passes.nodes] = 0
    changed = replace(graph, begin_ns=begin, end_ns=begin + graph.work_ns, gap_ns=gap)
    return with_edges(replace(scenario, graph=changed, work=work), edges, kept)


def _start_and_end(scenario: Scenario, passes: Passes, wanted: int, work: Floats) -> None:
    """Start and end another number of workers: one after the other, but they may end side by side (``luck`` 0)."""
    graph, facts = scenario.graph, scenario.graph.facts
    if facts is None or not facts.starts.any():
        return
    found = WorkerNodes.find(graph, facts, passes)
    ratio, side_by_side = wanted / max(passes.workers, 1), 1 - scenario.unknowns.luck
    work[found.nodes] *= np.where(found.starts, ratio, ratio + side_by_side * (1 - ratio))


def _start_of_each_ns(scenario: Scenario, passes: Passes) -> Floats:
    """Return for each batch how long it takes to start one of the workers of its pass."""
    graph, facts = scenario.graph, scenario.graph.facts
    each_ns = np.zeros(len(passes.nodes))
    if facts is not None and facts.starts.any():
        found = WorkerNodes.find(graph, facts, passes)
        np.add.at(each_ns, found.of[found.starts], scenario.work[found.nodes[found.starts]] / max(passes.workers, 1))
    return each_ns[passes.start]


def _made_by(scenario: Scenario, wanted: int) -> Scenario:
    """Return the scenario with batches as long as the workers that then make them take, if that is theirs."""
    speed, graph = scenario.unknowns.speed, scenario.graph
    if not speed or graph.facts is None:
        return scenario
    like = batches_by_worker(scenario, wanted, quick=speed == 1)
    changed = replace(graph, end_ns=graph.begin_ns + graph.work_ns[like], facts=graph.facts.with_times_of(like))
    return replace(scenario, graph=changed, work=scenario.work[like], fetch=scenario.fetch[like])


def taken_by(graph: Graph) -> Int64:
    """Return the node that goes on with each batch, -1 of batches that were not taken and of other nodes."""
    taken, takes = np.full(len(graph), -1, dtype=np.int64), graph.edge_kind == EdgeKind.BATCH
    taken[graph.source[takes]] = graph.target[takes]
    return taken


def prefetch_factor(passes: Passes, graph: Graph) -> int:
    """Return how many batches each worker is asked for in advance."""
    taken = taken_by(graph)
    ready = np.full(len(graph), NEVER, dtype=np.int64)
    chain = graph.is_batch[graph.target] & (graph.edge_kind == EdgeKind.PROGRAM)
    ready[graph.target[chain]] = (graph.end_ns[graph.source] + graph.lag_ns)[chain]
    waited = graph.begin_ns[passes.nodes] - ready[passes.nodes] > POLICY.waited_ns
    taken_ns = np.where(taken >= 0, graph.begin_ns[taken], NEVER)
    return _prefetch_factor(passes, graph.begin_ns[passes.nodes], taken_ns[passes.nodes], waited)


def _prefetch_factor(passes: Passes, begin_ns: Int64, taken_ns: Int64, waited: Bools) -> int:
    """Return how many batches ahead of the last taken one the workers were at most, divided by their number.

    Workers that never had to wait may be allowed to be further ahead: at least as far as DataLoader lets them.

    ``begin_ns``, ``taken_ns``: when each batch was begun and taken, in the order of ``passes.nodes``; ``NEVER`` if it
    was not taken. ``waited``: batches before which their worker waited.
    """
    count = len(begin_ns)
    order = np.lexsort((np.repeat((0, 1), count), np.concatenate([taken_ns, begin_ns]), np.tile(passes.start, 2)))
    begins = order >= count
    batch = order[begins] - count
    # Passes follow one another in this order, so all batches of earlier passes have been counted as taken.
    taken_in_pass = np.cumsum(~begins)[begins] - passes.start[batch]
    ahead = max(int((passes.position[batch] - taken_in_pass).max()) + 1, 0)
    factor = max(round(ahead / passes.workers), 1)
    return factor if np.mean(waited) >= POLICY.often_ratio else max(factor, PREFETCH)


def _begun(passes: Passes, wanted: int, scenario: Scenario) -> list[Edges]:
    """The first batch of each worker in a pass waits for what the first batch of the pass waited for.

    New workers start one after the other, and each has until the last one has been started to get ready.
    """
    graph, each_ns = scenario.graph, _start_of_each_ns(scenario, passes)
    leading = graph.is_batch[graph.target] & np.isin(graph.edge_kind, (EdgeKind.PROGRAM, EdgeKind.PREFETCH))
    rows = np.flatnonzero(leading)
    rows = rows[np.argsort(graph.target[rows], kind="stable")]
    heads = np.flatnonzero(passes.position < wanted)
    low, high = (np.searchsorted(graph.target[rows], passes.first_node[heads], side=side) for side in ("left", "right"))
    parts = []
    for more in range(int((high - low).max(initial=0))):
        chosen = np.flatnonzero(low + more < high)
        row = rows[low[chosen] + more]
        head, lag = heads[chosen], scenario.lag[row]
        later_ns = each_ns[head] * (passes.workers - wanted + passes.position[head])
        late_ns = np.maximum(lag + later_ns, np.minimum(lag, 0.0))
        parts.append(Edges.of(graph.source[row], passes.nodes[head], late_ns, EdgeKind.PREFETCH))
    return parts
