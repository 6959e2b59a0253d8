"""Layers of a rank whose critical resource is the step thread (method ``host``), in the order of ``stalls.md``.

Called by ``stalls`` through its table of methods. A method for GPU ranks is another function with the same result.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stashtrace._native import intervals
from stashtrace.analysis.batch_layers import batch_layers, batch_waits
from stashtrace.analysis.collective_layers import (
    Blocked,
    blocked_on_collectives,
    collective_layers,
    device_waits,
    in_flight_heads,
    own_collectives,
)
from stashtrace.analysis.gap_layers import gap_layers, gaps_between_phases, phase_layers
from stashtrace.analysis.matching import is_imported
from stashtrace.analysis.step_threads import StepThread
from stashtrace.analysis.timeset import Int64, TimeSet, int64, rows_of
from stashtrace.analysis.trace_index import Layer, RankLayers, Tagged, TraceIndex, kept_per_thread
from stashtrace.analysis.worker_layers import beside_workers
from stashtrace.model.kinds import (
    OPERATORS,
    CollectiveSource,
    IoOp,
    Phase,
    PhaseFlag,
    SpanKind,
    StallKind,
    WaitOp,
)

_COMPUTE_PHASES = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.UPDATE_SKIPPED)
CHECKPOINT_PHASES = (Phase.CHECKPOINT, Phase.CHECKPOINT_LOAD)
#: Waits that no parallel loop of a phase makes: their cause is foreign wherever they stand.
_FOREIGN_WAITS = (WaitOp.SLEEP, WaitOp.POLL, WaitOp.JOIN, WaitOp.GIL)
_WRITE_OPS = (IoOp.WRITE, IoOp.WRITEV, IoOp.PWRITE, IoOp.PWRITEV, IoOp.FWRITE)


@dataclass(frozen=True, slots=True)
class Standing:
    """What the step thread itself did between its work, by its own records.

    Attributes
    ----------
    busy, annotated
        Inside forward, backward or optimizer; inside annotations.
    saving
        Inside a checkpoint, or blocked in a later call on a file that one wrote.
    reading
        Blocked in reads of files.
    foreign, local
        Blocked with no cause that has a kind: whatever it is in, and where it is in no phase or annotation.
    on_device
        Inside calls that wait for the device.
    """

    busy: TimeSet
    annotated: TimeSet
    saving: TimeSet
    reading: TimeSet
    foreign: TimeSet
    local: TimeSet
    on_device: TimeSet


def standing_of(index: TraceIndex, thread: StepThread) -> Standing:
    """Where the step thread stood still for reasons of its own."""
    trace = index.trace
    rows = index.phases.rows(thread.track_id)
    rows = rows[(trace.phases["phase_flags"][rows] & PhaseFlag.BACKGROUND) == 0]
    code, begin, end = (trace.phases[n][rows] for n in ("phase_code", "begin_ns", "end_ns"))
    saves, works = np.isin(code, CHECKPOINT_PHASES), np.isin(code, _COMPUTE_PHASES)
    saving = TimeSet.of(begin[saves], end[saves])

    io, own = index.io, index.io_by_track.rows(thread.track_id)
    reads = io.is_storage[own] & io.is_read[own]
    commits = io.is_storage[own] & ~reads & np.isin(io.path[own], _paths_written(index, thread, saving))
    foreign = io.is_blocked[own] & ~reads & ~commits
    busy = TimeSet.of(begin[works], end[works])
    spans, named = trace.spans, index.spans.rows(thread.track_id)
    named = named[spans["kind_code"][named] == SpanKind.USER]
    annotated = TimeSet.of(*_within_steps(index, thread, spans["begin_ns"][named], spans["end_ns"][named]))
    waits, held = trace.waits, index.waits.rows(thread.track_id)
    alien = np.isin(waits["wait_code"][held], _FOREIGN_WAITS)
    on_device = device_waits(index, thread)
    return Standing(
        busy,
        annotated,
        saving | TimeSet.of(io.begin[own[commits]], io.end[own[commits]]),
        TimeSet.of(io.begin[own[reads]], io.end[own[reads]]),
        TimeSet.of(
            np.concatenate([waits["begin_ns"][held[alien]], io.begin[own[foreign]]]),
            np.concatenate([waits["end_ns"][held[alien]], io.end[own[foreign]]]),
        )
        - on_device,
        TimeSet.of(waits["begin_ns"][held[~alien]], waits["end_ns"][held[~alien]]) - busy - annotated - on_device,
        on_device,
    )


def _within_steps(index: TraceIndex, thread: StepThread, begin: Int64, end: Int64) -> tuple[Int64, Int64]:
    """Annotations that do not reach from one step into another: one around the loop does not say what a step did."""
    ends = index.steps["end_ns"][index.steps_by_rank.rows(thread.rank)]
    within = np.append(ends, np.iinfo(np.int64).max)[np.searchsorted(ends, begin, side="right")] >= end
    return begin[within], end[within]


@kept_per_thread
def host_blocked(index: TraceIndex, thread: StepThread) -> Blocked:
    """Pieces of the step thread's time outside batch waits that it spends blocked on collectives."""
    return blocked_on_collectives(index, thread, batch_waits(index, thread).time)


def host_layers(index: TraceIndex, thread: StepThread) -> RankLayers:
    """Every cause that the step thread may have to stand still, then compute, then what is left of the gaps."""
    loads, blocked = batch_waits(index, thread), host_blocked(index, thread)
    layers, late, estimated = collective_layers(index, blocked)
    layers += batch_layers(index, thread, loads)
    stood = standing_of(index, thread)
    layers.append(Layer(StallKind.CHECKPOINT, stood.saving))
    guessed = thread.process_id in index.blocked_by_guess
    layers.append(Layer(StallKind.FETCH, stood.reading, (StallKind.COMPUTE,) if guessed else ()))
    layers.append(Layer(StallKind.OTHER, stood.foreign | stood.local))
    layers.append(Layer(StallKind.COMPUTE, stood.on_device, (StallKind.H2D,)))  # it did something, nobody saw what
    beside, waited_for = _beside_collectives(index, thread, stood, TimeSet.united(*(x.time for x in layers)))
    layers += beside
    late = late if not len(waited_for.begin) else waited_for

    explained = TimeSet.united(*(layer.time for layer in layers))
    beside = beside_workers(index, thread, loads, stood.busy | stood.annotated, explained)
    explained = TimeSet.united(explained, *(layer.time for layer in beside))
    layers += beside
    layers += phase_layers(index, thread, stood.busy, explained)
    layers += gap_layers(gaps_between_phases(index, thread, loads), explained, stood.annotated - stood.busy)
    return RankLayers("host", layers, late, beside={"estimated": estimated})


def _beside_collectives(
    index: TraceIndex, thread: StepThread, stood: Standing, explained: TimeSet
) -> tuple[list[Layer], Tagged]:
    """Time in which a collective of the host's was all that ran, of a process whose waits nobody recorded.

    Whether the thread was blocked on it is not known. Nothing shows that it computed, so the point is the link, or the
    rank that was late, and each of it may be ``compute`` or ``other``. Also whom it would have waited for.
    """
    nobody = Tagged(int64([]), int64([]), int64([]))
    rows, call, end = own_collectives(index, thread)
    host = (index.trace.collectives["source_code"][rows] == CollectiveSource.HOST) & ~index.timed_on_device[rows]
    if not host.any() or not is_imported(index.trace) or _waits_recorded(index, thread):
        return [], nobody
    rows, call, end = rows[host], call[host], end[host]
    begin, until, position = in_flight_heads(call, end)
    free = TimeSet.of(begin, until) - explained - stood.busy - stood.annotated - _operators(index, thread)
    since, stop, head = free.pieces(begin, until)
    row, no = rows[position[head]], np.zeros(len(head), dtype=bool)
    link = index.in_flight.link[row]
    blocked = Blocked(since, stop, row, np.full(len(row), -1, dtype=np.int64), link, no, no, no)
    layers, late, _ = collective_layers(index, blocked)
    unsure = (StallKind.COMPUTE, StallKind.OTHER)
    return [Layer(x.kind, x.time, (*x.doubts, *unsure)) for x in layers], late


def _waits_recorded(index: TraceIndex, thread: StepThread) -> bool:
    """Whether the recording shows when the thread was blocked: then what it does not show was no wait."""
    return bool(len(index.waits.rows(thread.track_id)) or len(index.collective_waits.rows(thread.track_id)))


def _operators(index: TraceIndex, thread: StepThread) -> TimeSet:
    """Stretches in which any thread of the process ran operators: the step thread may wait for that one."""
    spans, tracks = index.trace.spans, index.trace.tracks
    own = tracks["track_id"][tracks["process_id"] == thread.process_id]
    chosen = (spans["name_code"] == index.trace.strings.find(OPERATORS)) & (spans["kind_code"] == SpanKind.USER)
    chosen &= np.isin(spans["track_id"], own)
    return TimeSet.of(spans["begin_ns"][chosen], spans["end_ns"][chosen])


def _paths_written(index: TraceIndex, thread: StepThread, saving: TimeSet) -> Int64:
    """Codes of the files that the thread's checkpoints wrote: an fsync or a rename of one afterwards belongs to it."""
    io = index.trace.notable_io
    own = rows_of(io["track_id"], thread.track_id)
    writes = np.isin(io["op_code"][own], _WRITE_OPS) & (io["path_code"][own] != index.trace.strings.find(""))
    begin = io["begin_ns"][own][writes]
    inside = intervals.locate(saving.begin, saving.end, begin) >= 0
    return np.unique(int64(io["path_code"][own][writes][inside]))
