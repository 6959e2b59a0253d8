"""Layers of a rank whose critical resource is the step thread (method ``host``), in the order of ``stalls.md``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stashtrace._native import intervals
from stashtrace.analysis.collectives.matching import is_imported
from stashtrace.analysis.intervals import Bools, Int64, TimeSet, int64, is_one_of, rows_of
from stashtrace.analysis.stalls import collective_blocking
from stashtrace.analysis.stalls.batch_waits import BatchWaits, batch_layers, batch_waits, next_to_workers
from stashtrace.analysis.stalls.rows_by_thread import (
    READ_OPS,
    LabelledIntervals,
    Layer,
    RankLayers,
    TraceIndex,
    blocked_by_guess,
    kept_per_thread,
)
from stashtrace.analysis.steps.threads import StepThread
from stashtrace.analysis.steps.training_loop import runs_closure
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import (
    OPENS,
    OPERATORS,
    WRITES,
    CollectiveSource,
    Phase,
    PhaseFlag,
    SpanKind,
    StallKind,
    WaitOp,
)
from stashtrace.schema.trace import DEVICE_WORK_NOT_READ, OPERATORS_RECORDED, Trace, cached_on_trace

_COMPUTE_PHASES = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.UPDATE_SKIPPED)
CHECKPOINT_PHASES = (Phase.CHECKPOINT, Phase.CHECKPOINT_LOAD)
#: Waits that the parallel loops of a phase do not make: their cause is foreign in any phase. CPython's locks wait on
#: POSIX semaphores (`Python/thread_pthread.h`), OpenMP's loops on futexes, and torch's pool on conditions.
_FOREIGN_WAITS = (WaitOp.SLEEP, WaitOp.POLL, WaitOp.JOIN, WaitOp.GIL, WaitOp.SEMAPHORE)


@dataclass(frozen=True, slots=True)
class Standing:
    """Time of the step thread in and between its work, from its records."""

    #: Inside forward, backward or optimizer; inside annotations.
    busy: TimeSet
    annotated: TimeSet
    #: Inside a checkpoint, or blocked in a later call on a file that a checkpoint wrote.
    saving: TimeSet
    #: Blocked in reads of files.
    reading: TimeSet
    #: Blocked for a cause without a separate kind: by a foreign one anywhere, else outside phases and annotations.
    blocked: TimeSet
    #: Inside calls that wait for the device.
    on_device: TimeSet


def standing_of(index: TraceIndex, thread: StepThread) -> Standing:
    """Return when the step thread stood still for reasons of its own."""
    trace = index.trace
    rows = index.phases.rows(thread.track_id)
    rows = rows[(trace.phases["phase_flags"][rows] & int(PhaseFlag.BACKGROUND)) == 0]
    code, begin, end = (trace.phases[n][rows] for n in ("phase_code", "begin_ns", "end_ns"))
    saves, works = is_one_of(code, CHECKPOINT_PHASES), is_one_of(code, _COMPUTE_PHASES)
    saving = TimeSet.of(begin[saves], end[saves])

    io, at = index.io, index.io_by_track.rows(thread.track_id)
    saved, outputs = _paths_written(index, thread, saving)
    # Who opens a file to write it reads nothing: that the old one is cut to nothing may take as long as a write.
    opens_output = io.is_open[at] & _is_among(io.path[at], outputs)
    reads = io.is_storage[at] & io.is_read[at] & ~opens_output
    commits = io.is_storage[at] & ~reads & _is_among(io.path[at], saved)
    foreign = io.is_blocked[at] & ~reads & ~commits
    busy = TimeSet.of(begin[works], end[works])
    spans, named = trace.spans, index.spans.rows(thread.track_id)
    named = named[spans["kind_code"][named] == int(SpanKind.USER)]
    annotated = TimeSet.of(*_within_steps(index, thread, spans["begin_ns"][named], spans["end_ns"][named]))
    waits, held = trace.waits, index.waits.rows(thread.track_id)
    alien = is_one_of(waits["wait_code"][held], _FOREIGN_WAITS)
    on_device = collective_blocking.device_waits(index, thread)
    return Standing(
        busy,
        annotated,
        saving | TimeSet.of(io.begin[at[commits]], io.end[at[commits]]),
        TimeSet.of(io.begin[at[reads]], io.end[at[reads]]),
        TimeSet.united(
            TimeSet.of_rows(waits, held[alien]),
            TimeSet.of(io.begin[at[foreign]], io.end[at[foreign]]),
            TimeSet.of_rows(waits, held[~alien]) - busy - annotated,
        )
        - on_device,
        on_device,
    )


def _is_among(paths: npt.NDArray[np.int32], some: Int64) -> Bools:
    """Return the mask of the paths that are among some; most ranks have no file."""
    return np.isin(paths, some) if len(paths) and len(some) else np.zeros(len(paths), dtype=bool)


def time_of_spans(index: TraceIndex, thread: StepThread, *kinds: SpanKind) -> TimeSet:
    """Return when the step thread was inside spans of these kinds."""
    spans, rows = index.trace.spans, index.spans.rows(thread.track_id)
    return TimeSet.of_rows(spans, rows[is_one_of(spans["kind_code"][rows], kinds)])


def _within_steps(index: TraceIndex, thread: StepThread, begin: Int64, end: Int64) -> tuple[Int64, Int64]:
    """Return annotations that do not reach from one step into another; one around the loop describes no step."""
    ends = index.steps["end_ns"][index.steps_by_rank.rows(thread.rank)]
    within = np.append(ends, np.iinfo(np.int64).max)[np.searchsorted(ends, begin, side="right")] >= end
    return begin[within], end[within]


@kept_per_thread
def host_blocked(index: TraceIndex, thread: StepThread) -> collective_blocking.Blocked:
    """Return the pieces of time outside batch waits in which the step thread is blocked on collectives."""
    return collective_blocking.blocked_on_collectives(index, thread, batch_waits(index, thread).time)


def host_layers(index: TraceIndex, thread: StepThread) -> RankLayers:
    """Return layers of every cause for which the step thread may stand still, of compute, and of the remaining gaps."""
    loads, blocked = batch_waits(index, thread), host_blocked(index, thread)
    layers, late, estimated = collective_blocking.collective_layers(index, blocked)
    layers += batch_layers(index, thread, loads)
    stood = standing_of(index, thread)
    layers.append(Layer(StallKind.CHECKPOINT, stood.saving))
    # Whatever torch.compile does: a compilation is no part of what is compiled.
    compiling = time_of_spans(index, thread, SpanKind.COMPILE)
    layers.append(Layer(StallKind.PYTHON, compiling))
    guessed = thread.process_id in blocked_by_guess(index.origin)
    layers.append(Layer(StallKind.FETCH, stood.reading, (StallKind.COMPUTE,) if guessed else ()))
    layers.append(Layer(StallKind.OTHER, stood.blocked))
    layers.append(Layer(StallKind.COMPUTE, stood.on_device, (StallKind.H2D,)))  # its work was not recorded
    all_operators = index.has_fact(OPERATORS_RECORDED, thread.process_id)
    works = _operators(index, thread)
    works = works if all_operators else works | stood.busy | stood.annotated
    explained = TimeSet.united(*(layer.time for layer in layers))
    more, waited_for = _outside_collectives(index, thread, works, explained)
    late = late if not len(waited_for.begin) else waited_for
    explained, layers = _with_layers(explained, layers, more)
    more = next_to_workers(index, thread, loads, works, explained)
    explained, layers = _with_layers(explained, layers, more)
    if all_operators:
        layers += operator_layers(index, thread)
    else:
        layers += phase_layers(index, thread, stood.busy, explained, compiling)
        gaps = gaps_between_phases(index, thread, loads, compiling)
        has_phases = bool(len(stood.busy))
        # A tool that records no phases, or the benchmark that it recorded, names its compute so.
        are_compute = is_imported(index.trace) and not has_phases
        layers += gap_layers(
            gaps, explained, stood.annotated - stood.busy, has_phases=has_phases, are_compute=are_compute
        )
    if index.has_fact(DEVICE_WORK_NOT_READ, thread.process_id):
        layers = [_with_unread_device(layer) for layer in layers]
    return RankLayers("host", layers, late, marked={"estimated": estimated})


def _with_layers(explained: TimeSet, layers: list[Layer], more: list[Layer]) -> tuple[TimeSet, list[Layer]]:
    """Return the time of all layers, and these, with some more."""
    if not more:
        return explained, layers
    return TimeSet.united(explained, *(layer.time for layer in more)), layers + more


def _with_unread_device(layer: Layer) -> Layer:
    """Return a layer of a rank whose device is not seen: the host does not show whether the device worked or waited."""
    return Layer(layer.kind, layer.time, (*layer.alternatives, _OTHER if layer.kind == _COMPUTE else _COMPUTE))


def operator_layers(index: TraceIndex, thread: StepThread) -> list[Layer]:
    """Return layers of a thread whose operators were all recorded: it computes in these and nowhere else.

    While only other threads ran operators, it may have waited for them or for something else. While nothing ran, it was
    blocked or in Python: the recording does not show which.
    """
    own = _operators(index, thread, only_own=True)
    life = TimeSet.of([thread.begin_ns], [thread.end_ns])
    return [
        Layer(_COMPUTE, own),
        Layer(_COMPUTE, _operators(index, thread), (_PYTHON, _OTHER)),
        Layer(_OTHER, life, (_PYTHON,)),
    ]


def _outside_collectives(
    index: TraceIndex, thread: StepThread, works: TimeSet, explained: TimeSet
) -> tuple[list[Layer], LabelledIntervals]:
    """Return layers of time in which only a host collective ran, in a process whose waits were not recorded.

    It is unknown whether the thread was blocked on it. Nothing shows that it worked, so the point is the link, or the
    late rank, and any part may be ``python`` or ``other``, or ``compute`` where operators were not recorded. Also
    return the ranks that it would have waited for.
    """
    nobody = LabelledIntervals(int64([]), int64([]), int64([]))
    rows, call, end = collective_blocking.own_collectives(index, thread)
    host = (index.trace.collectives["source_code"][rows] == int(CollectiveSource.HOST)) & ~index.timed_on_device[rows]
    if not host.any() or not is_imported(index.trace) or _waits_recorded(index, thread):
        return [], nobody
    rows, call, end = rows[host], call[host], end[host]
    begin, until, position = collective_blocking.in_flight_heads(call, end)
    free = TimeSet.of(begin, until) - explained - works
    since, stop, head = free.pieces(begin, until)
    row = rows[position[head]]
    blocked = collective_blocking.Blocked.on(row, since, stop, index.in_flight.link[row])
    layers, late, _ = collective_blocking.collective_layers(index, blocked)
    all_operators = index.has_fact(OPERATORS_RECORDED, thread.process_id)
    unsure = (_PYTHON, _OTHER) if all_operators else (_COMPUTE, _PYTHON, _OTHER)
    return [Layer(x.kind, x.time, (*x.alternatives, *unsure)) for x in layers], late


def _waits_recorded(index: TraceIndex, thread: StepThread) -> bool:
    """Return True if the thread's waits were recorded: then the thread did not wait at other times."""
    return bool(len(index.waits.rows(thread.track_id)) or len(index.collective_waits.rows(thread.track_id)))


@cached_on_trace
def _operator_rows(trace: Trace) -> Int64:
    """Return the rows of ``spans`` in which a thread ran operators."""
    spans = trace.spans
    named = spans["name_code"] == trace.strings.find(OPERATORS)
    return np.flatnonzero(named & (spans["kind_code"] == SpanKind.USER))


def _operators(index: TraceIndex, thread: StepThread, *, only_own: bool = False) -> TimeSet:
    """Return when any thread of the process ran operators, or only this one; it may wait for the other threads."""
    spans, tracks, rows = index.trace.spans, index.trace.tracks, _operator_rows(index.origin)
    if not len(rows):
        return TimeSet.empty()
    chosen = [thread.track_id] if only_own else tracks["track_id"][tracks["process_id"] == thread.process_id]
    return TimeSet.of_rows(spans, rows[np.isin(spans["track_id"][rows], chosen)])


def _paths_written(index: TraceIndex, thread: StepThread, saving: TimeSet) -> tuple[Int64, Int64]:
    """Return codes of files that the thread's checkpoints wrote, and of those that it writes and does not read.

    An fsync or rename of the former belongs to the checkpoint, as their opens do if they are among the latter.
    """
    io = index.trace.notable_io
    rows = rows_of(io["track_id"], thread.track_id)
    if rows.start == rows.stop:
        return int64([]), int64([])
    op, path, begin = (io[name][rows] for name in ("op_code", "path_code", "begin_ns"))
    writes = is_one_of(op, WRITES) & (path != index.trace.strings.find(""))
    inside = intervals.locate(saving.begin, saving.end, begin[writes]) >= 0
    fetches = is_one_of(op, READ_OPS) & ~is_one_of(op, OPENS)
    written = np.unique(int64(path[writes]))
    return np.unique(int64(path[writes][inside])), np.setdiff1d(written, path[fetches])


# Time of the step thread between its phases: how much of it the thread ran, by its own clocks at the boundaries.
#
#     ... optimizer ]                gap                 [ forward ...
#            end_cpu, end_runqueue         begin_cpu, begin_runqueue
#     ran = growth of CPU and run-queue time - what ran inside batch waits;   the rest of the gap was blocked: other
#
# What ran there is the loop's code: Python, or operators that no module calls. It is unknown where in the gap the
# thread ran: pieces are filled in order, first with that, then with other.

_COMPUTE, _OTHER, _PYTHON = StallKind.COMPUTE, StallKind.OTHER, StallKind.PYTHON


@dataclass(frozen=True, slots=True)
class Gaps:
    """Stretches of the step thread between outermost phases, in order."""

    begin: Int64
    end: Int64
    #: Time on a CPU or waiting for one, at most the length; meaningless where not ``timed``.
    ran_ns: Int64
    #: True where CPU time, or run-queue time, is known on both sides.
    timed: Bools
    queue_timed: Bools


@kept_per_thread
def outer_phase_rows(index: TraceIndex, thread: StepThread) -> Int64:
    """Return the rows of the thread's outermost phases, in order.

    An optimizer that runs the whole step as its closure stands aside: what runs inside belongs to itself, and the
    update that follows is time of the loop.
    """
    phases = index.trace.phases
    rows = index.phases.rows(thread.track_id)
    rows = rows[(phases["phase_flags"][rows] & int(PhaseFlag.BACKGROUND | PhaseFlag.NESTED)) == 0]
    rows = rows[~runs_closure(phases, rows)]
    return collective_blocking.disjoint_rows(
        phases, rows, "begin_cpu_ns", "end_cpu_ns", "begin_runqueue_ns", "end_runqueue_ns"
    )


def gaps_between_phases(index: TraceIndex, thread: StepThread, waits: BatchWaits, compiling: TimeSet) -> Gaps:
    """Return the thread's gaps. Its CPU time began at 0, so the first gap is timed as well; the last is not.

    What batch waits and compilations ran has separate kinds.
    """
    phases = index.trace.phases
    rows = outer_phase_rows(index, thread)
    begin = np.concatenate([[thread.begin_ns], phases["end_ns"][rows]])
    end = np.concatenate([phases["begin_ns"][rows], [thread.end_ns]])
    cpu_begin = np.concatenate([[0], phases["end_cpu_ns"][rows]])
    cpu_end = np.concatenate([phases["begin_cpu_ns"][rows], [-1]])
    queue_begin = np.concatenate([[0], phases["end_runqueue_ns"][rows]])
    queue_end = np.concatenate([phases["begin_runqueue_ns"][rows], [-1]])
    timed = (cpu_begin >= 0) & (cpu_end >= 0)
    queue_timed = (queue_begin >= 0) & (queue_end >= 0)
    ran = np.where(timed, cpu_end - cpu_begin, 0) + np.where(queue_timed, queue_end - queue_begin, 0)
    gap = np.searchsorted(begin, waits.begin, side="right") - 1
    apart = GroupBy.numbered(gap, len(begin)).sum(waits.ran_ns) + compiling.within(begin, np.maximum(begin, end))
    keep = end > begin
    return Gaps(begin[keep], end[keep], np.maximum(ran - apart, 0)[keep], timed[keep], queue_timed[keep])


def gap_layers(
    gaps: Gaps, explained: TimeSet, annotated: TimeSet, *, has_phases: bool, are_compute: bool = False
) -> list[Layer]:
    """Return layers of what ran in the gaps, and other; blocked time goes to pieces outside annotations first.

    What ran between phases is the loop's code, ``python``. Where no phase was seen, nothing distinguishes such code
    from the operators of the step: it is ``compute``, with ``python`` as its alternative, unless annotations
    ``are_compute``.
    """
    ran, unsure = (_PYTHON, _COMPUTE) if has_phases else (_COMPUTE, _PYTHON)
    every = TimeSet(gaps.begin, gaps.end) - explained
    plain, named = (every - annotated).pieces(gaps.begin, gaps.end), (every & annotated).pieces(gaps.begin, gaps.end)
    plain_ns, named_ns = (GroupBy.numbered(row, len(gaps.begin)).sum(end - begin) for begin, end, row in (plain, named))
    blocked = np.maximum(plain_ns + named_ns - gaps.ran_ns, 0)
    other_ns = np.minimum(blocked, plain_ns)
    cut = _cut_pieces(plain, plain_ns - other_ns)
    timed, sure = gaps.timed[plain[2]], gaps.queue_timed[plain[2]]
    named_cut = np.where(gaps.timed[named[2]], _cut_pieces(named, named_ns - (blocked - other_ns)), named[1])
    return [
        Layer(ran, TimeSet.of(plain[0][timed], cut[timed]), (unsure,)),
        Layer(_OTHER, TimeSet.of(cut[timed & sure], plain[1][timed & sure])),
        Layer(_OTHER, TimeSet.of(cut[timed & ~sure], plain[1][timed & ~sure]), (ran, unsure)),
        Layer(ran, TimeSet.of(plain[0][~timed], plain[1][~timed]), (unsure, _OTHER)),
        Layer(ran, TimeSet.of(named[0], named_cut), () if are_compute else (unsure,)),
        Layer(ran, TimeSet.of(named_cut, named[1]), (_OTHER,) if are_compute else (unsure, _OTHER)),
    ]


def phase_layers(
    index: TraceIndex, thread: StepThread, busy: TimeSet, explained: TimeSet, compiling: TimeSet
) -> list[Layer]:
    """Return layers of the phases that compute: time that the thread's clocks do not show as run may be ``other``.

    Off the CPU in a phase, the thread waits for threads that compute with it (of OpenMP or the library), or for a lock;
    no record shows which. Without clocks of the thread, nothing speaks against compute.
    """
    phases, rows = index.trace.phases, outer_phase_rows(index, thread)
    cpu_begin, cpu_end, queue_begin, queue_end = (
        phases[name][rows] for name in ("begin_cpu_ns", "end_cpu_ns", "begin_runqueue_ns", "end_runqueue_ns")
    )
    timed, queue_timed = (cpu_begin >= 0) & (cpu_end >= 0), (queue_begin >= 0) & (queue_end >= 0)
    ran = (cpu_end - cpu_begin + np.where(queue_timed, queue_end - queue_begin, 0))[timed]
    begin, end = phases["begin_ns"][rows[timed]], phases["end_ns"][rows[timed]]
    ran -= compiling.within(begin, np.maximum(begin, end))
    free = (busy - explained).pieces(begin, end)
    doubtful = TimeSet.of(_cut_pieces(free, np.maximum(ran, 0)), free[1])
    return [Layer(_COMPUTE, busy - doubtful), Layer(_COMPUTE, doubtful, (_OTHER,))]


Pieces = tuple[Int64, Int64, Int64]


def _cut_pieces(pieces: Pieces, budget: Int64) -> Int64:
    """Return where each piece is cut when the budget of its gap is spent on the pieces in order."""
    begin, end, gap = pieces
    if not len(begin):
        return begin
    before = GroupBy.runs(gap).sum_before(end - begin)
    return int64(begin + np.clip(budget[gap] - before, 0, end - begin))
