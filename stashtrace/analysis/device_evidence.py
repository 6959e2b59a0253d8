"""Rows of ``evidence`` about a rank's device: copies, calls that blocked on it, functions on the host, collectives."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.matching import INSIDE, group_table
from stashtrace.analysis.step_threads import StepThread
from stashtrace.analysis.timeset import NEVER, Int64, TimeSet
from stashtrace.analysis.trace_index import TraceIndex
from stashtrace.model.kinds import (
    BLOCKING_CALLS,
    Bracket,
    BracketFlag,
    CollectiveOp,
    CopyDirection,
    DeviceCall,
    DeviceWork,
)
from stashtrace.models.alpha_beta import bus_bytes

Row = tuple[int, str, str, str, int, int, float, float]
_Names = npt.NDArray[np.str_]
#: Copies that the budget counts as the device's own work, or as its talk with another one.
_NOT_HOST = (CopyDirection.DEVICE_TO_DEVICE, CopyDirection.PEER)


def device_evidence(index: TraceIndex, thread: StepThread, window: TimeSet) -> Iterator[Row]:
    """Rows of one rank inside its counted steps; none for a rank without a device."""
    yield from _copies(index, thread, window)
    yield from _blocking_calls(index, thread, window)
    yield from _host_functions(index, thread, window)
    yield from _collectives(index, thread, window)


def _summed(
    rank: int, kind: str, detail: str, names: _Names, spent: Int64, moved: npt.NDArray[np.float64]
) -> list[Row]:
    """One row per name, longest first."""
    if not len(names):
        return []
    each, at = np.unique(names, return_inverse=True)
    total, size = np.bincount(at, spent), np.bincount(at, moved)
    whole = max(float(total.sum()), 1.0)
    return [
        (rank, kind, detail, str(each[i]), -1, int(total[i]), float(total[i]) / whole,
         float(size[i]) * 1e9 / max(float(total[i]), 1.0))
        for i in np.lexsort((each, -total)).tolist()
    ]  # fmt: skip


def _copies(index: TraceIndex, thread: StepThread, window: TimeSet) -> list[Row]:
    """Copies between host and device by memory and direction: brackets, else what was recorded of every kernel."""
    table, rows = index.trace.device_brackets, index.brackets.rows(thread.process_id)
    rows = rows[(table["bracket_code"][rows] == Bracket.COPY) & (table["begin_ns"][rows] >= 0)]
    flags = table["bracket_flags"][rows]
    memory = np.select(
        [(flags & BracketFlag.PINNED) != 0, (flags & BracketFlag.PAGEABLE) != 0], ["pinned ", "pageable "], ""
    )
    if not len(rows):
        table, rows = index.trace.kernels, index.kernels.rows(thread.process_id)
        rows = rows[table["work_code"][rows] == DeviceWork.COPY]
        memory = np.full(len(rows), "")
    inside = window.within(table["begin_ns"][rows], table["end_ns"][rows])
    chosen = (inside > 0) & ~np.isin(table["copy_code"][rows], _NOT_HOST)
    names = _names(CopyDirection)[table["copy_code"][rows][chosen]]
    sizes = table["size_bytes"][rows][chosen].astype(np.float64)
    return _summed(thread.rank, "h2d", "copy", np.char.add(memory[chosen], names), inside[chosen], sizes)


def _blocking_calls(index: TraceIndex, thread: StepThread, window: TimeSet) -> list[Row]:
    """Calls that blocked or drained, by what they are and the thread that made them."""
    trace, calls, rows = index.trace, index.trace.device_calls, index.device_calls.rows(thread.process_id)
    rows = rows[np.isin(calls["call_code"][rows], BLOCKING_CALLS)]
    inside = window.within(calls["begin_ns"][rows], calls["end_ns"][rows])
    rows, inside = rows[inside > 0], inside[inside > 0]
    tracks = trace.tracks
    named = dict(zip(tracks["track_id"].tolist(), tracks["name_code"].tolist(), strict=True))
    threads = [trace.text(named[t]) if t in named else "" for t in calls["track_id"][rows].tolist()]
    what = _names(DeviceCall)[calls["call_code"][rows]].tolist()
    names = [f"{call} on {who or 'an unnamed thread'}" for call, who in zip(what, threads, strict=True)]
    return _summed(thread.rank, "sync", "blocking_call", np.array(names, dtype=np.str_), inside, np.zeros(len(rows)))


def _host_functions(index: TraceIndex, thread: StepThread, window: TimeSet) -> list[Row]:
    """Functions of the job's that streams ran on the host, by the stream that they held up."""
    trace, table, rows = index.trace, index.trace.device_brackets, index.brackets.rows(thread.process_id)
    rows = rows[(table["bracket_code"][rows] == Bracket.HOST_FUNCTION) & (table["begin_ns"][rows] >= 0)]
    inside = window.within(table["begin_ns"][rows], table["end_ns"][rows])
    rows, inside = rows[inside > 0], inside[inside > 0]
    named = dict(zip(trace.tracks["track_id"].tolist(), trace.tracks["name_code"].tolist(), strict=True))
    names = [trace.text(named[t]) if t in named else "an unnamed stream" for t in table["track_id"][rows].tolist()]
    return _summed(thread.rank, "other", "host_function", np.array(names, dtype=np.str_), inside, np.zeros(len(rows)))


def _collectives(index: TraceIndex, thread: StepThread, window: TimeSet) -> Iterator[Row]:
    """Transfers once all ranks were in, by operation and communicator, with their bus bandwidth."""
    trace, found = index.trace, index.on_devices
    table, rows = trace.collectives, index.collectives.rows(thread.process_id)
    rows = rows[found.timed[rows] & (found.matched.last_enter_ns[rows] < NEVER)]
    begin, end = np.maximum(found.matched.last_enter_ns[rows], found.enter_ns[rows]), found.end_ns[rows]
    inside = window.within(begin, end)
    rows, inside = rows[inside > 0], inside[inside > 0]
    groups = group_table(trace)
    titles = {int(h): trace.text(c) for h, c in zip(trace.groups["group_hash"], trace.groups["name_code"], strict=True)}
    known = np.isin(table["op_code"][rows], list(CollectiveOp))
    rows, inside = rows[known], inside[known]
    hashes, ops = table["group_hash"][rows].tolist(), _names(CollectiveOp)[table["op_code"][rows]].tolist()
    names = np.array(
        [f"{op}, {titles.get(h) or f'group {h:x}'}" for op, h in zip(ops, hashes, strict=True)], dtype=np.str_
    )
    sizes = table["message_bytes"][rows].tolist()
    moved = np.array(
        [bus_bytes(op, len(groups[h].members), size) for op, h, size in zip(ops, hashes, sizes, strict=True)]
    )
    stays = found.matched.link[rows] == INSIDE
    for kind, chosen in (("interconnect", stays), ("network", ~stays)):
        yield from _summed(thread.rank, kind, "collective", names[chosen], inside[chosen], moved[chosen])


def _names(codes: type[CopyDirection] | type[DeviceCall] | type[CollectiveOp]) -> _Names:
    """Name of each code, by the code."""
    texts = np.full(max(codes) + 1, "unknown", dtype="U32")
    for code in codes:
        texts[code] = code.name.lower()
    return texts
