"""Parts of a graph while it is built: nodes and edges so far, and how a thread's time is cut into nodes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stashtrace._native import intervals
from stashtrace.analysis.graph.work_graph import EdgeKind, Graph, Int8
from stashtrace.analysis.intervals import NEVER, Int64, TimeSet, distinct, int64, window_at
from stashtrace.analysis.stalls.rows_by_thread import Layer
from stashtrace.analysis.steps.step_time import kinds_that_count
from stashtrace.analysis.steps.steps import is_counted
from stashtrace.errors import MissingDataError
from stashtrace.schema.table import Table

#: Of nodes, with the value where a column is not given.
_NODE_COLUMNS = {
    **dict.fromkeys(("rank", "step", "resource", "kind", "process_id", "begin_ns", "end_ns", "moved_bytes", "row"), -1),
    **dict.fromkeys(("fetch_ns", "doubtful"), 0),
}
_END_COLUMNS = ("ends", "ends_rank", "ends_step", "ends_lag_ns", "ends_counted", "ends_begin_ns", "ends_before")


@dataclass
class Parts:
    """Nodes and edges so far; a column of a part is one value or as many as the part has rows.

    Arrays are kept as they are given, so nobody may change them any more.
    """

    count: int = 0
    #: How many there are, and their columns.
    nodes: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    ends: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    #: Source, target, kind and lag; with edges from or to -1.
    edges: list[tuple[Int64, Int64, EdgeKind, Int64 | int]] = field(default_factory=list)

    def add(self, count: int, **columns: Any) -> Int64:
        """Append nodes and return their numbers.

        Columns that are not given are -1; ``fetch_ns`` and ``doubtful`` are 0.
        """
        self.nodes.append((count, columns))
        first, self.count = self.count, self.count + count
        return np.arange(first, first + count, dtype=np.int64)

    def edge(self, source: Int64, target: Int64, kind: EdgeKind, lag_ns: Int64 | int = 0) -> None:
        """Append edges between known nodes. Edges from or to -1 are left out."""
        self.edges.append((source, target, kind, lag_ns))

    def end_steps(self, nodes: Int64, rank: int, steps: Table, lag_ns: Int64 | int = 0, before: int = -1) -> None:
        """Note which node ends each of a rank's steps.

        ``nodes``: by step; -1 where no node ends the step. ``lag_ns``: time from the end of the node to the end of the
        step. ``before``: node whose end is the begin of the first step.
        """
        counted = is_counted(steps, kinds=kinds_that_count(steps))
        self.add_ends(nodes, rank, steps["step"], lag_ns, counted, steps["begin_ns"], before)

    def add_ends(self, nodes: Int64, *columns: Any) -> None:
        """Append ends of steps; the columns are those of ``Graph.ends_*`` in their order."""
        known = nodes >= 0
        given = zip(_END_COLUMNS, (nodes, *columns), strict=True)
        columns_known = {name: values[known] if isinstance(values, np.ndarray) else values for name, values in given}
        self.ends.append((int(np.count_nonzero(known)), columns_known))

    def graph(self) -> Graph:
        """Return the graph. Time before a node that no edge explains is its gap.

        Raises MissingDataError if no step of any rank ends with a node.
        """
        if not self.ends:
            raise MissingDataError("no step of a rank holds work", hint="see `stashtrace analyze steps`")
        columns: dict[str, Any] = {name: _column(self.nodes, name, other) for name, other in _NODE_COLUMNS.items()}
        columns |= {name: _column(self.ends, name, 0) for name in _END_COLUMNS}
        source, target, kind, lag = self._known_edges()
        ready = np.full(self.count, -NEVER, dtype=np.int64)
        np.maximum.at(ready, target, columns["end_ns"][source] + lag)
        gap = np.where(ready > -NEVER, np.maximum(columns["begin_ns"] - ready, 0), 0)
        for name in ("ends", "ends_before"):
            columns[name] = columns[name].astype(np.int32)
        for name in ("ends_counted", "doubtful"):
            columns[name] = columns[name] > 0
        return Graph(
            gap_ns=gap,
            source=source.astype(np.int32),
            target=target.astype(np.int32),
            edge_kind=kind,
            lag_ns=lag,
            **columns,
        )

    def _known_edges(self) -> tuple[Int64, Int64, Int8, Int64]:
        """Return source, target, kind and lag of the edges between known nodes."""
        ends = [np.concatenate([int64([]), *(edges[side] for edges in self.edges)]) for side in (0, 1)]
        sizes = [len(edges[0]) for edges in self.edges]
        kind = np.repeat(np.array([edges[2] for edges in self.edges], dtype=np.int8), sizes)
        lag = _column(
            [(size, {"lag_ns": edges[3]}) for size, edges in zip(sizes, self.edges, strict=True)], "lag_ns", 0
        )
        known = np.flatnonzero((ends[0] >= 0) & (ends[1] >= 0) & (ends[0] != ends[1]))
        return ends[0][known], ends[1][known], kind[known], lag[known]


def _column(parts: Sequence[tuple[int, dict[str, Any]]], name: str, otherwise: int) -> Int64:
    """Join a column of parts; those without it have another value."""
    column = np.full(sum(count for count, _ in parts), otherwise, dtype=np.int64)
    first = 0
    for count, columns in parts:
        if name in columns:
            column[first : first + count] = columns[name]
        first += count
    return column


@dataclass(frozen=True, slots=True)
class Painted:
    """Layers of a rank's time painted over one another: at each moment the uppermost layer counts."""

    layers: Sequence[Layer]
    begin: Int64
    end: Int64
    layer: Int64

    @classmethod
    def of(cls, layers: Sequence[Layer]) -> Painted:
        """Paint layers, the uppermost one first."""
        return cls(layers, *intervals.paint([(layer.time.begin, layer.time.end) for layer in layers]))

    @property
    def time(self) -> TimeSet:
        """Time that any layer covers."""
        return TimeSet.of(self.begin, self.end)

    def time_of(self, kinds: Collection[int]) -> TimeSet:
        """Time in which a layer of these kinds is uppermost."""
        chosen = np.array([layer.kind in kinds for layer in self.layers], dtype=bool)[self.layer]
        return TimeSet.of(self.begin[chosen], self.end[chosen])

    def layer_at(self, moments: Int64) -> Int64:
        """Return the number of the layer at each moment, -1 where there is none."""
        return np.append(self.layer, -1)[window_at(moments, self.begin, self.end)]

    def kind_at(self, moments: Int64, otherwise: int) -> Int64:
        """Return the kind of the layer at each moment."""
        kinds = [*(int(layer.kind) for layer in self.layers), int(otherwise)]
        return int64(kinds)[self.layer_at(moments)]


@dataclass(frozen=True, slots=True)
class ThreadNodes:
    """Nodes of one thread in order."""

    begin_ns: Int64
    end_ns: Int64
    node: Int64

    def last_ended(self, moments: Int64) -> tuple[Int64, Int64]:
        """Return the last node that had ended by each moment, and its end; -1 and the moment where none had."""
        at = np.searchsorted(self.end_ns, moments, side="right") - 1
        return np.where(at >= 0, self.node[at], -1), np.where(at >= 0, self.end_ns[at], moments)

    def next_begun(self, moments: Int64) -> tuple[Int64, Int64]:
        """Return the first node that begins at each moment or later, and its begin; -1 and ``NEVER`` if none does."""
        at = np.searchsorted(self.begin_ns, moments, side="left")
        return np.append(self.node, -1)[at], np.append(self.begin_ns, NEVER)[at]


@dataclass(frozen=True, slots=True)
class Cells:
    """What a thread did, in order, cut wherever something else may begin. Some cells are moments."""

    begin: Int64
    end: Int64

    @classmethod
    def of(
        cls, time: TimeSet, painted: Painted, points: Int64, moments: Int64, *, until_ns: int | None = None
    ) -> Cells:
        """Cut a set of intervals at the begins and ends of painted layers and at points.

        Moments at which no cell ends, from the begin of the set to its end or to ``until_ns``, are cells too.
        """
        if not len(time):  # damaged times: nothing is left of the thread's life
            return cls(time.begin, time.end)
        cuts = distinct(np.concatenate([painted.begin, painted.end, points, time.begin[:1], time.end[-1:]]))
        cut_begin, cut_end, _ = time.pieces(cuts[:-1], cuts[1:])
        moments = distinct(moments)
        last = int(time.end[-1]) if until_ns is None else until_ns
        at = np.searchsorted(cut_end, moments)  # pieces are in order
        inside = (moments >= time.begin[0]) & (moments <= last) & (np.append(cut_end, -NEVER)[at] != moments)
        bare = moments[inside]
        begins, ends = np.concatenate([cut_begin, bare]), np.concatenate([cut_end, bare])
        order = np.lexsort((ends, begins))
        return cls(begins[order], ends[order])

    def __len__(self) -> int:
        return len(self.begin)

    def add_to(self, parts: Parts, *, before: Int64 | None = None, **columns: Any) -> ThreadNodes:
        """Add a node for each cell, one after the other, the first one after ``before``."""
        nodes = parts.add(len(self), begin_ns=self.begin, end_ns=self.end, **columns)
        chain = nodes if before is None else np.append(before, nodes)
        parts.edge(chain[:-1], chain[1:], EdgeKind.PROGRAM)
        return ThreadNodes(self.begin, self.end, nodes)


def step_of(steps: Table, moments: Int64) -> Int64:
    """Return the number of the step that each moment belongs to or follows; -1 before the first step."""
    place = np.searchsorted(steps["begin_ns"], moments, side="right") - 1
    return int64(np.append(steps["step"], -1)[place])
