"""Where the step time of a replay went, by columns of the summary: work by what it is, waits by what ended them."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np

from stashtrace.analysis.findings.facts import GROUPS
from stashtrace.analysis.graph import EdgeKind, Graph, Replayed, Resource
from stashtrace.analysis.timeset import Int64
from stashtrace.model.kinds import StallKind

_COLUMN = {StallKind[kind.upper()]: name for name, kinds in GROUPS.items() for kind in kinds}


def step_budget(graph: Graph, replayed: Replayed, steps: Int64) -> dict[str, float]:
    """Mean nanoseconds of a step of a rank by column; they add up to the time that its thread was busy or waited.

    Parameters
    ----------
    graph : Graph
    replayed : Replayed
    steps : int array
        Steps that count.
    """
    chosen = (graph.resource == Resource.STEP_THREAD) & np.isin(graph.step, steps)
    nodes = np.flatnonzero(chosen)
    count = max(len(np.unique(graph.rank[nodes])) * len(steps), 1)
    found = dict.fromkeys(GROUPS, 0.0)
    length = replayed.end_ns - replayed.begin_ns
    for kind in np.unique(graph.kind[nodes]).tolist():
        mine = nodes[graph.kind[nodes] == kind]
        found[_COLUMN[StallKind(kind)]] += float((length[mine] - graph.gap_ns[mine]).sum())
    found["other"] += float(graph.gap_ns[nodes].sum())

    before = np.full(len(graph), -1, dtype=np.int64)
    program = graph.edge_kind == EdgeKind.PROGRAM
    before[graph.target[program]] = graph.source[program]
    waits = nodes[before[nodes] >= 0]
    waited = replayed.begin_ns[waits] - replayed.end_ns[before[waits]]
    waits, waited = waits[waited > 0], waited[waited > 0]
    edge = replayed.binding[waits]
    kind, source = np.where(edge >= 0, graph.edge_kind[edge], -1), graph.source[edge]
    data = kind == EdgeKind.BATCH
    found["data"] += float(waited[data].sum())
    link = kind == EdgeKind.RELEASE
    late = np.clip(replayed.begin_ns[source] - replayed.end_ns[before[waits]], 0, waited)
    found["late"] += float(late[link].sum())
    found["link"] += float((waited - late)[link].sum())
    found["other"] += float(waited[~data & ~link].sum())
    return {name: ns / count for name, ns in found.items()}
