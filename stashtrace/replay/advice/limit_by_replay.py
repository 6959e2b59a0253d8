"""Limit advice by the replay: shortening what nothing waits for saves nothing."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.graph import Graph, Resource
from stashtrace.analysis.intervals import Int64
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.analysis.steps.updates import update_times
from stashtrace.replay.advice.choose_remedies import Advice
from stashtrace.replay.scenario import Floats
from stashtrace.schema.kinds import CollectiveOp, Phase
from stashtrace.schema.trace import Trace

Bools = npt.NDArray[np.bool_]
#: A limit is mentioned if the replay saves less than this part of the row's saving.
_MUCH_LESS = 0.95
_THREADS = (Resource.STEP_THREAD, Resource.HOST)


class ReplayedAdvice:
    """A graph, and the nodes that a remedy could make shorter.

    Parameters
    ----------
    graph : Graph
        Of this trace.
    trace : Trace
    """

    def __init__(self, graph: Graph, trace: Trace) -> None:
        self._graph = graph
        # In the order by which rows of transfers are numbered.
        self._collectives = TraceIndex(trace).trace.collectives
        self._in_update = _in_update(graph, trace)
        measured = graph.measured_step_ns
        counted = (measured >= 0) & graph.ends_counted
        self._counted = counted if counted.any() else measured >= 0
        self._step_ns = self._mean_step(None)

    def limited(self, advice: Advice) -> Advice:
        """Return advice that saves no more than the replay does with the best possible effect of the remedy.

        Then overlapped and sliced messages take no time, a sharded update takes one N-th, on the host as well, and a
        fused update takes none. Where that saves much less, ``limits`` has ``pace``.
        """
        work = self._graph.work_ns
        if advice.transformation in ("overlap", "sliced_p2p"):
            goes = np.where(self._transfers(advice), work, 0.0)
        else:
            stays = 1 / advice.ranks_count if advice.transformation == "split_reorder" else 0.0
            goes = (1 - stays) * self._in_update * work
        shorter = np.rint(work - goes).astype(np.int64)
        most = max(self._step_ns - self._mean_step(shorter), 0.0)
        if most >= advice.saving_high_ns:
            return advice
        return replace(
            advice,
            saving_high_ns=most,
            saving_low_ns=min(advice.saving_low_ns, most),
            share_ratio=advice.share_ratio * most / advice.saving_high_ns,
            limits=(*advice.limits, "pace") if most < _MUCH_LESS * advice.saving_high_ns else advice.limits,
        )

    def _transfers(self, advice: Advice) -> Bools:
        """Return the transfers of the advice's operation and sizes, of all communicators: they act at the same time."""
        table = self._collectives
        rows = np.isin(table["message_bytes"], advice.message_bytes)
        rows &= table["op_code"] == CollectiveOp[advice.op.upper()]
        chosen = np.zeros(len(self._graph), dtype=bool)
        moves = np.flatnonzero((self._graph.resource == Resource.TRANSFER) & (self._graph.row >= 0))
        chosen[moves] = rows[self._graph.row[moves]]
        return chosen

    def _mean_step(self, work_ns: Int64 | None) -> float:
        graph = self._graph
        if not self._counted.any():
            return 0.0
        return float(graph.step_ns(graph.replay(work_ns=work_ns))[self._counted].mean())


def _in_update(graph: Graph, trace: Trace) -> Floats:
    """Return the part of each node that is an update: time of threads, and work on devices that was launched there."""
    inside = np.zeros(len(graph))
    phases, kernels = trace.phases, trace.kernels
    ran = (graph.resource == Resource.STREAM) & (graph.row >= 0)
    for process in np.unique(phases["process_id"][phases["phase_code"] == Phase.OPTIMIZER]).tolist():
        time = update_times(trace, process)
        mine = graph.process_id == process
        threads = np.flatnonzero(mine & np.isin(graph.resource, _THREADS))
        begin, end = graph.begin_ns[threads], graph.end_ns[threads]
        inside[threads] = time.within(begin, end) / np.maximum(end - begin, 1)
        device = np.flatnonzero(mine & ran)
        launch = kernels["launch_ns"][graph.row[device]]
        inside[device] = (launch >= 0) & (time.within(launch, launch + 1) > 0)
    return inside
