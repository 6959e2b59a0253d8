"""A graph on its way to be replayed with changes: how long its nodes take, and what its edges add."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.graph import Graph, Replayed
from stashtrace.analysis.timeset import Int64
from stashtrace.model.kinds import StallKind

if TYPE_CHECKING:
    from stashtrace.replay.links import Links

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Unknowns:
    """Where in its bounds lies what a run does not tell.

    Attributes
    ----------
    latency : float
        0: transfers have the least latency that fits the run, 1: the most.
    luck : float
        Of all else. 0: whatever makes the step shortest, 1: longest.
    """

    latency: float = 0.5
    luck: float = 0.5


@dataclass(frozen=True)
class Scenario:
    """A graph, and lengths in ns that its changes have given it.

    Attributes
    ----------
    work, fetch : float array
        Of nodes; ``fetch`` is the part of a batch in which its maker was blocked in storage.
    lag : float array
        Of edges.
    unknowns : Unknowns
    run : Graph
        As it was recorded: what it tells of its links does not change with its messages.
    links : Links or None
        Links that transfers of several groups share; their work is then what they take alone. None: nobody shares any.
    fixed : float array or None
        Of transfers that share links, the part of their work that is latency.
    """

    graph: Graph
    work: Floats
    fetch: Floats
    lag: Floats
    unknowns: Unknowns
    run: Graph
    links: Links | None = None
    fixed: Floats | None = None

    @classmethod
    def of(cls, graph: Graph, unknowns: Unknowns, run: Graph | None = None) -> Scenario:
        """A graph as it is; ``run`` if it is not that of the run any more."""
        work = graph.work_ns.astype(np.float64)
        fetch = np.minimum(graph.fetch_ns, graph.work_ns).astype(np.float64)
        if graph.facts is not None:
            # A read that waits for storage runs as well: to ask for it, and to copy what it got, as one from memory
            # does. What reads from memory take stays; where the run does not tell, what ran may stay or go.
            ran = np.maximum(graph.facts.cpu_ns, 0) + np.maximum(graph.facts.queued_ns, 0)
            waited = np.minimum(fetch, np.maximum(graph.work_ns - ran, 0))
            most = np.maximum(fetch - graph.facts.memory_low_ns, waited)
            least = np.maximum(fetch - graph.facts.memory_high_ns, waited)
            fetch = most + unknowns.luck * (least - most)
        return cls(graph, work, fetch, graph.lag_ns.astype(np.float64), unknowns, graph if run is None else run)

    def with_work(self, work: Floats) -> Scenario:
        """Other lengths of nodes."""
        return replace(self, work=work)

    def with_storage(self, factor: float) -> Scenario:
        """Waits for storage so many times as long."""
        graph = self.graph
        on_thread = ~graph.is_batch & (graph.kind == StallKind.FETCH)
        return self.with_work(self.work + (factor - 1) * np.where(on_thread, self.work, self.fetch))

    def replay(self) -> Replayed:
        """Run it."""
        return self.graph.replay(whole_ns(np.maximum(self.work, 0)), whole_ns(self.lag))


def whole_ns(values: Floats) -> Int64:
    """Rounded."""
    return np.rint(values).astype(np.int64)


def counted_span(graph: Graph) -> tuple[int, int]:
    """From the end of the first step that counts to the end of the last one, as measured."""
    chosen = graph.ends_counted if graph.ends_counted.any() else np.ones(len(graph.ends), dtype=bool)
    ends = (graph.end_ns[graph.ends] + graph.ends_lag_ns)[chosen]
    return int(ends.min()), int(ends.max())
