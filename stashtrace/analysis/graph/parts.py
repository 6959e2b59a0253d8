"""What a graph is collected in while it is built, and the pieces that a thread's time is cut into."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stashtrace.analysis.graph.model import EdgeKind, Graph
from stashtrace.analysis.intervals import NEVER, Int64, TimeSet, int64
from stashtrace.analysis.steps.steps import counted_steps
from stashtrace.errors import MissingDataError
from stashtrace.schema.table import Table

_NODE_COLUMNS = (
    "rank",
    "step",
    "resource",
    "kind",
    "process_id",
    "begin_ns",
    "end_ns",
    "fetch_ns",
    "moved_bytes",
    "row",
    "doubtful",
)


@dataclass
class Parts:
    """Nodes and edges so far."""

    count: int = 0
    nodes: dict[str, list[Int64]] = field(default_factory=lambda: {name: [] for name in _NODE_COLUMNS})
    edges: list[tuple[Int64, Int64, int, Int64]] = field(default_factory=list)
    ends: list[tuple[Int64, ...]] = field(default_factory=list)

    def add(self, count: int, **columns: Any) -> Int64:
        """Append nodes; columns that are not given are -1, but for ``fetch_ns`` and ``doubtful``, which are 0."""
        for name, made in self.nodes.items():
            default = 0 if name in ("fetch_ns", "doubtful") else -1
            made.append(np.broadcast_to(int64(columns.get(name, default)), (count,)))
        first, self.count = self.count, self.count + count
        return np.arange(first, first + count, dtype=np.int64)

    def edge(self, source: Int64, target: Int64, kind: EdgeKind, lag_ns: Int64 | int = 0) -> None:
        """Append edges between known nodes; those from or to -1 are left out."""
        lag = np.broadcast_to(int64(lag_ns), source.shape)
        known = (source >= 0) & (target >= 0) & (source != target)
        self.edges.append((source[known], target[known], int(kind), lag[known]))

    def end_steps(self, nodes: Int64, rank: int, steps: Table, lag_ns: Int64, before: int = -1) -> None:
        """Say which node ends each of a rank's steps, how much before its end, and which ends as the first begins."""
        counted = int64(np.isin(steps["step"], counted_steps(steps)["step"]))
        same = np.full(len(steps), rank, dtype=np.int64)
        columns = (nodes, same, steps["step"], lag_ns, counted, steps["begin_ns"], np.full_like(same, before))
        self.ends.append(tuple(column[nodes >= 0] for column in columns))

    def graph(self) -> Graph:
        """Everything as columns; what no edge explains is a gap before its node.

        Raises
        ------
        MissingDataError
            If no step of any rank ends with a node.
        """
        if not self.ends:
            raise MissingDataError("no step of a rank holds work", hint="see `stashtrace analyze steps`")
        columns: dict[str, Any] = {name: np.concatenate([int64([]), *made]) for name, made in self.nodes.items()}
        source, target, lag = (
            np.concatenate([edge[i] for edge in self.edges]) if self.edges else int64([]) for i in (0, 1, 3)
        )
        kind = np.concatenate([np.full(len(edge[0]), edge[2], dtype=np.int64) for edge in self.edges] or [int64([])])
        ready = np.full(self.count, -NEVER, dtype=np.int64)
        np.maximum.at(ready, target, columns["end_ns"][source] + lag)
        gap = np.where(ready > -NEVER, np.maximum(columns["begin_ns"] - ready, 0), 0)
        ends = [np.concatenate([part[i] for part in self.ends]) for i in range(7)]
        return Graph(
            gap_ns=gap,
            source=source.astype(np.int32),
            target=target.astype(np.int32),
            edge_kind=kind.astype(np.int8),
            lag_ns=int64(lag),
            ends=ends[0].astype(np.int32),
            ends_rank=ends[1],
            ends_step=ends[2],
            ends_lag_ns=ends[3],
            ends_counted=ends[4] > 0,
            ends_begin_ns=ends[5],
            ends_before=ends[6].astype(np.int32),
            doubtful=columns.pop("doubtful") > 0,
            **columns,
        )


@dataclass(frozen=True, slots=True)
class Cells:
    """What a step thread did, in order, cut wherever something else may begin; some are moments."""

    begin: Int64
    end: Int64

    @classmethod
    def of(
        cls, time: TimeSet, begin: Int64, end: Int64, points: Int64, moments: Int64, *, until_ns: int | None = None
    ) -> Cells:
        """A set cut at the begins and ends of other intervals and at points.

        Moments at which no cell ends, from the begin of the set to its end or to ``until_ns``, are cells too.
        """
        if not len(time.begin):  # damaged times: nothing is left of the thread's life
            return cls(time.begin, time.end)
        cuts = np.unique(np.concatenate([begin, end, points, time.begin[:1], time.end[-1:]]))
        cut_begin, cut_end, _ = time.pieces(cuts[:-1], cuts[1:])
        moments = np.unique(moments)
        last = int(time.end[-1]) if until_ns is None else until_ns
        inside = (moments >= time.begin[0]) & (moments <= last) & ~np.isin(moments, cut_end)
        bare = moments[inside]
        begins, ends = np.concatenate([cut_begin, bare]), np.concatenate([cut_end, bare])
        order = np.lexsort((ends, begins))
        return cls(begins[order], ends[order])

    def __len__(self) -> int:
        return len(self.begin)
