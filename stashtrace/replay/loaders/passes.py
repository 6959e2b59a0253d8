"""Passes over the data: the batches of each iterator of a rank in order, and the worker that made each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.graph import EdgeKind, Graph
from stashtrace.analysis.graph.batch_nodes import PREFETCH
from stashtrace.analysis.graph.work_graph import Facts
from stashtrace.analysis.intervals import Bools, Floats, Int64, int64
from stashtrace.replay.policy import POLICY
from stashtrace.replay.scenario import Scenario, whole_ns
from stashtrace.schema.groupby import GroupBy, order_by

_Ints = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Passes:
    """Batches by rank, iterator and number."""

    #: Batches in that order.
    nodes: Int64
    #: By batch: where its pass begins in ``nodes``, and its place in the pass.
    start: Int64
    position: Int64
    #: The batch of its pass that was begun first.
    first_node: Int64
    #: Per rank, in the recording.
    workers: int

    @classmethod
    def of(cls, graph: Graph, facts: Facts) -> Passes:
        """Sort the batches of a graph."""
        nodes = np.flatnonzero(graph.is_batch)
        nodes = nodes[np.lexsort((graph.begin_ns[nodes], facts.batch[nodes], facts.loader[nodes], graph.rank[nodes]))]
        passes = GroupBy.runs(graph.rank[nodes], facts.loader[nodes])
        first = nodes[passes.argmin(graph.begin_ns[nodes])]
        workers = max(graph.workers.values())
        start = passes.first[passes.number]
        return cls(nodes, start, passes.position, first[passes.number], workers)

    def before(self, distance: int) -> tuple[Int64, Int64]:
        """Return the batches that have another one this far before them in their pass, and those others."""
        later = np.flatnonzero(self.position >= distance)
        return self.nodes[later], self.nodes[later - distance]

    def worker_numbers(self, graph: Graph) -> Int64:
        """Return for each batch the number of its worker in its pass: 0 made the first batch, 1 the first other one."""
        makers = GroupBy(self.start, graph.process_id[self.nodes])
        order = order_by(makers.first)  # passes follow one another in the rows
        numbers = np.empty(len(makers), dtype=np.int64)
        numbers[order] = GroupBy.runs(self.start[makers.first][order]).position
        return numbers[makers.number]


def not_in_turn(graph: Graph, facts: Facts) -> tuple[int, int] | None:
    """Return the fewest and the most batches of a pass that one worker made, if the workers did not take turns.

    They do by default; each may be ahead of the others by what is asked for in advance. Where the parts of an
    IterableDataset differ, or whoever is free makes the next batch, they do not.
    """
    passes = Passes.of(graph, facts)
    makers = GroupBy(passes.start, graph.process_id[passes.nodes])
    of_pass = GroupBy(makers.keys[0])
    fewest, most = of_pass.min(makers.sizes), of_pass.max(makers.sizes)
    worst = int((most - fewest).argmax())
    return (int(fewest[worst]), int(most[worst])) if most[worst] - fewest[worst] > PREFETCH + 1 else None


@dataclass(frozen=True)
class WorkerNodes:
    """Work of step threads that starts the workers of a pass, or waits for them to end."""

    #: Those of the graph.
    nodes: Int64
    #: The first batch of the pass of each, as a row of the passes.
    of: Int64
    #: Work before the first batch of the pass: it starts workers.
    starts: Bools

    @classmethod
    def find(cls, graph: Graph, facts: Facts, passes: Passes) -> WorkerNodes:
        """Find the work by its iterator."""
        nodes, batches = np.flatnonzero(facts.starts), passes.nodes
        row = GroupBy(graph.rank[batches], facts.loader[batches]).row_of(graph.rank[nodes], facts.loader[nodes])
        nodes, row = nodes[row >= 0], row[row >= 0]
        of = passes.start[row]
        return cls(nodes, of, graph.begin_ns[nodes] < graph.begin_ns[passes.first_node[of]])


class Edges(NamedTuple):
    """Columns of edges."""

    source: _Ints
    target: _Ints
    lag: Floats
    kind: _Ints

    @classmethod
    def of(cls, source: _Ints, target: _Ints, lag: Floats | Int64 | float, kind: EdgeKind) -> Edges:
        """Make edges of one kind."""
        lags = np.broadcast_to(np.asarray(lag, dtype=np.float64), source.shape)
        return cls(source, target, lags, np.full(len(source), int(kind), dtype=np.int64))

    @classmethod
    def joined(cls, parts: Iterable[Edges]) -> Edges:
        """Put edges one after the other."""
        none = cls.of(int64([]), int64([]), 0.0, EdgeKind.PROGRAM)
        return cls(*map(np.concatenate, zip(none, *parts, strict=True)))

    def added_to(self, graph: Graph, kept: Bools | slice = slice(None)) -> Graph:
        """Return the graph with these edges after its own. ``kept``: those of its own that stay."""
        return replace(
            graph,
            source=np.append(graph.source[kept], self.source).astype(np.int32),
            target=np.append(graph.target[kept], self.target).astype(np.int32),
            edge_kind=np.append(graph.edge_kind[kept], self.kind).astype(np.int8),
            lag_ns=np.append(graph.lag_ns[kept], whole_ns(self.lag)),
        )


def with_edges(scenario: Scenario, parts: Iterable[Edges], kept: Bools | slice = slice(None)) -> Scenario:
    """Return the scenario with more edges. ``kept``: those of its own that stay."""
    edges = Edges.joined(parts)
    graph = edges.added_to(scenario.graph, kept)
    return replace(scenario, graph=graph, lag=np.append(scenario.lag[kept], edges.lag))


def usual_lags(scenario: Scenario) -> tuple[float, float]:
    """Return what a worker does between two batches, and how long after a take a batch is begun that was waited for."""
    graph = scenario.graph
    of_batches = graph.is_batch[graph.target]
    chain = of_batches & (graph.edge_kind == EdgeKind.PROGRAM)
    asks = of_batches & (graph.edge_kind == EdgeKind.PREFETCH) & (scenario.lag < POLICY.asked_ns)
    return median(scenario.lag[chain]), median(scenario.lag[asks])


def median(values: Floats) -> float:
    """Return the median of values, 0 of none."""
    return float(np.median(values)) if len(values) else 0.0
