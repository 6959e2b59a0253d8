"""A graph that is to be replayed with changes: lengths of its nodes, lags of its edges, links that are shared."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from stashtrace._native import graph as native
from stashtrace.analysis.graph import EdgeKind, Graph, Replayed
from stashtrace.analysis.intervals import Bools, Floats, Int64
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import StallKind

Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Unknowns:
    """Values between 0 and 1 for what a run leaves open."""

    #: 0: transfers have the least latency that fits the run, 1: the most.
    latency: float = 0.5
    #: For all else. 0: what makes the step shortest, 1: what makes it longest.
    luck: float = 0.5
    #: Where workers of a rank differ. 0: it is their batches that differ; 1 and 2: it is the workers, and further ones
    #: are as quick as the quickest, or as slow as the slowest.
    speed: int = 0


@dataclass(frozen=True)
class Scenario:
    """A graph with lengths in ns that changes have given it."""

    graph: Graph
    #: By node; ``fetch`` is the part of a batch in which its worker was blocked in storage.
    work: Floats
    fetch: Floats
    #: By edge.
    lag: Floats
    unknowns: Unknowns
    #: As recorded. The latency of its links is fitted to this, whatever messages the changed graph has.
    run: Graph
    #: Links that transfers of several groups share; the work of these transfers is then the time they take alone. None
    #: if no link is shared.
    links: Links | None = None
    #: float array or None; Latency of transfers that share links.
    fixed: Floats | None = None

    @classmethod
    def of(cls, graph: Graph, unknowns: Unknowns, run: Graph | None = None) -> Scenario:
        """Make the scenario of a graph without changes; ``run`` if the graph is not that of the run any more."""
        work_ns = graph.work_ns
        fetch = np.minimum(graph.fetch_ns, work_ns).astype(np.float64)
        if graph.facts is not None and fetch.any():
            # A read that waits for storage also runs on a CPU, to ask and to copy, as a read from memory does. The time
            # of a read from memory stays. Where it is unknown, the time on a CPU may stay or go.
            ran = np.maximum(graph.facts.cpu_ns, 0) + np.maximum(graph.facts.queued_ns, 0)
            waited = np.minimum(fetch, np.maximum(work_ns - ran, 0))
            most = np.maximum(fetch - graph.facts.memory_low_ns, waited)
            least = np.maximum(fetch - graph.facts.memory_high_ns, waited)
            fetch = most + unknowns.luck * (least - most)
        lag, run = graph.lag_ns.astype(np.float64), graph if run is None else run
        return cls(graph, work_ns.astype(np.float64), fetch, lag, unknowns, run)

    def with_work(self, work: Floats) -> Scenario:
        """Return the scenario with other lengths of nodes."""
        return replace(self, work=work)

    def with_storage(self, factor: float) -> Scenario:
        """Return the scenario with waits for storage multiplied."""
        graph = self.graph
        on_thread = ~graph.is_batch & (graph.kind == StallKind.FETCH)
        return self.with_work(self.work + (factor - 1) * np.where(on_thread, self.work, self.fetch))

    @property
    def tendency(self) -> int:
        """-1 if this is the recorded run with some work or delays shorter and nothing longer, 1 if longer, else 0."""
        run = self.run
        if self.graph is not run or self.links is not None:
            return 0
        longer = self.work - run.work_ns, self.lag - run.lag_ns
        return -1 if all((more <= 0).all() for more in longer) else int(all((more >= 0).all() for more in longer))

    def replay(self) -> Replayed:
        """Replay without shared CPUs and links."""
        return self.graph.replay(whole_ns(np.maximum(self.work, 0)), whole_ns(self.lag))


def whole_ns(values: Floats) -> Int64:
    """Round to whole nanoseconds."""
    return np.rint(values).astype(np.int64)


def counted_span(graph: Graph) -> tuple[int, int]:
    """Return the end of the first and of the last counted step, as measured."""
    chosen = graph.ends_counted if graph.ends_counted.any() else np.ones(len(graph.ends), dtype=bool)
    ends = (graph.end_ns[graph.ends] + graph.ends_lag_ns)[chosen]
    return int(ends.min()), int(ends.max())


@dataclass(frozen=True)
class Links:
    """Links that transfers of several groups use."""

    #: Links of node n are ``ids[first[n]:first[n + 1]]``.
    first: Int32
    ids: Int32
    #: Kinds of links that are shared.
    kinds: frozenset[StallKind]

    @classmethod
    def of(cls, graph: Graph, kinds: frozenset[StallKind]) -> Links | None:
        """Find the ports of these kinds that transfers of several groups use; None if there is none.

        A transfer uses the port of each member that was recorded.
        """
        if graph.facts is None or not kinds:
            return None
        member = graph.edge_kind == EdgeKind.MEMBER
        node, rank = graph.target[member].astype(np.int64), graph.rank[graph.source[member]]
        chosen = np.isin(graph.kind[node], list(kinds)) & (graph.work_ns[node] > 0) & (rank >= 0)
        node, rank = node[chosen], rank[chosen]
        queue = graph.facts.queue[node]
        if not len(node) or (queue == queue[0]).all():
            return None
        ports = int(rank.max() + 1) * (max(StallKind) + 1)
        node, port = np.divmod(np.unique(node * ports + rank * (max(StallKind) + 1) + graph.kind[node]), ports)
        queue, by_port = graph.facts.queue[node], GroupBy(port)
        several = (by_port.min(queue) < by_port.max(queue))[by_port.number]
        if not several.any():
            return None
        node, port = _merge_equal(node[several], port[several])
        order = np.lexsort((port, node))
        count = np.bincount(node, minlength=len(graph))
        first = np.concatenate([[0], np.cumsum(count)]).astype(np.int32)
        return cls(first, port[order].astype(np.int32), kinds)

    @property
    def users(self) -> Bools:
        """Mask of the nodes that use a link."""
        return np.asarray(self.first[1:] > self.first[:-1])

    @property
    def owner(self) -> Int64:
        """Node of each entry of ``ids``."""
        return np.repeat(np.arange(len(self.first) - 1), np.diff(self.first))

    def alone_ns(self, begin_ns: Int64, end_ns: Int64) -> Int64:
        """Return how long each transfer, which moved from begin to end during others, would have taken alone."""
        return native.alone(begin_ns, end_ns, self.first, self.ids)

    def met(self, begin_ns: Int64, end_ns: Int64) -> bool:
        """Return True if any two transfers moved over one link at once."""
        length = np.where(self.users, np.maximum(end_ns - begin_ns, 0), 0)
        return bool((self.alone_ns(begin_ns, begin_ns + length) != length).any())


def _merge_equal(node: Int64, port: Int64) -> tuple[Int64, Int64]:
    """Drop ports that serve the same nodes as another port: together they are one link."""
    mixed = np.random.default_rng(0).integers(1, 1 << 62, int(node.max()) + 1)
    signature = np.zeros(int(port.max()) + 1, dtype=np.int64)
    np.add.at(signature, port, mixed[node])  # sums wrap; equal ones stand for equal sets
    used = np.unique(port)
    _, first = np.unique(signature[used], return_index=True)
    number = np.full(len(signature), -1, dtype=np.int64)
    number[used[first]] = np.arange(len(first))
    kept = number[port] >= 0
    return node[kept], number[port[kept]]
