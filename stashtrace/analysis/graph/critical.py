"""The critical path of a run: from the last node back along the edges that each one waited for last."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np

from stashtrace.analysis.graph.model import NO_SLACK, Graph, Replayed
from stashtrace.analysis.timeset import Int64


def critical_nodes(graph: Graph, replayed: Replayed) -> Int64:
    """Nodes of the path that ends with the last node, first one first.

    None of them could be shorter, or begin earlier, without the run being shorter, as far as the edges tell.
    """
    if not len(graph):
        return np.empty(0, dtype=np.int64)
    node = int(replayed.end_ns.argmax())
    binding, source = replayed.binding, graph.source
    path = [node]
    while binding[node] >= 0:
        node = int(source[binding[node]])
        path.append(node)
    return np.array(path[::-1], dtype=np.int64)


def critical_time(graph: Graph, replayed: Replayed) -> tuple[Int64, Int64]:
    """Nodes of the critical path, and how long each one holds it: to the begin of the next one's own time.

    The lags of edges belong to their source, gaps to the node behind them. The times add up to the length of the path.
    """
    path = critical_nodes(graph, replayed)
    begin = replayed.begin_ns[path]
    until = np.append(begin[1:], replayed.end_ns[path[-1:]])
    return path, until - begin


def slack_ns(graph: Graph, replayed: Replayed) -> Int64:
    """By how much each node could end later before the end of a step of any rank does; -1 where none waits for it."""
    duration = replayed.end_ns - replayed.begin_ns
    sinks = np.unique(graph.ends)
    found: Int64 = graph.plan.slack(replayed.begin_ns, duration, graph.lag_ns, sinks, NO_SLACK)
    return found
