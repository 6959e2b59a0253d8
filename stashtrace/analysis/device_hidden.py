"""What a rank's device did beside its stalls, per window: hidden work, what no bracket saw. For ``hidden``."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stashtrace._native import intervals
from stashtrace.analysis.device_links import LINK_KINDS
from stashtrace.analysis.methods import device_windows, rank_layers
from stashtrace.analysis.step_threads import StepThread
from stashtrace.analysis.timeset import Int64, TimeSet, int64
from stashtrace.analysis.trace_index import RankLayers, TraceIndex
from stashtrace.model.kinds import Bracket, CopyDirection, DeviceWork, StallKind

#: Copies that do not leave the device: its own work.
_INSIDE = (CopyDirection.DEVICE_TO_DEVICE,)


@dataclass(frozen=True, slots=True)
class DeviceHidden:
    """Columns of ``hidden``; ``present`` is False for a rank that its host attributes."""

    present: bool
    hidden_communication_ns: Int64
    hidden_copy_ns: Int64
    host_paced_ns: Int64
    graph_opaque_ns: Int64
    untimed_count: Int64
    queued_ns: Int64


def device_hidden(index: TraceIndex, thread: StepThread, begin: Int64, end: Int64) -> DeviceHidden:
    """Measure windows of one rank."""
    untimed = _untimed(index, thread, begin, end)
    if not device_windows(index, thread):
        nothing = np.zeros(len(begin), dtype=np.int64)
        return DeviceHidden(False, nothing, nothing, nothing, nothing, untimed, nothing)
    made = rank_layers(index, thread)
    found, rows = index.on_devices, index.collectives.rows(thread.process_id)
    rows = rows[found.timed[rows]]
    blocked = painted(made, LINK_KINDS)
    talking = TimeSet.of(found.begin_ns[rows], found.end_ns[rows]) - blocked
    copying = _copying(index, thread) - painted(made, (StallKind.H2D,))
    return DeviceHidden(
        True,
        talking.within(begin, end),
        copying.within(begin, end),
        made.beside.get("host_paced", TimeSet.empty()).within(begin, end),
        made.beside.get("graph_opaque", TimeSet.empty()).within(begin, end),
        untimed,
        (made.beside.get("queued", TimeSet.empty()) & blocked).within(begin, end),
    )


def painted(made: RankLayers, kinds: tuple[StallKind, ...]) -> TimeSet:
    """Time that the budget gives to some kinds."""
    begin, end, layer = intervals.paint([(x.time.begin, x.time.end) for x in made.layers])
    chosen = np.isin(np.array([x.kind for x in made.layers], dtype=np.int64)[layer], kinds)
    return TimeSet.of(begin[chosen], end[chosen])


def _copying(index: TraceIndex, thread: StepThread) -> TimeSet:
    """Copies between host and device, by brackets and by kernels."""
    brackets, rows = index.trace.device_brackets, index.brackets.rows(thread.process_id)
    rows = rows[(brackets["bracket_code"][rows] == Bracket.COPY) & (brackets["begin_ns"][rows] >= 0)]
    rows = rows[~np.isin(brackets["copy_code"][rows], _INSIDE)]
    kernels, own = index.trace.kernels, index.kernels.rows(thread.process_id)
    own = own[(kernels["work_code"][own] == DeviceWork.COPY) & ~np.isin(kernels["copy_code"][own], _INSIDE)]
    return TimeSet.of(
        np.concatenate([brackets["begin_ns"][rows], kernels["begin_ns"][own]]),
        np.concatenate([brackets["end_ns"][rows], kernels["end_ns"][own]]),
    )


def _untimed(index: TraceIndex, thread: StepThread, begin: Int64, end: Int64) -> Int64:
    """Collectives given to a device without a time of it, by the window of their call."""
    found, rows = index.on_devices, index.collectives.rows(thread.process_id)
    rows = rows[found.given[rows] & ~found.timed[rows]]
    call = index.trace.collectives["call_ns"][rows]
    if not len(begin):
        return int64([])
    at = np.searchsorted(begin, call, side="right") - 1
    inside = (at >= 0) & (call < end[np.maximum(at, 0)])
    return int64(np.bincount(at[inside], minlength=len(begin)))
