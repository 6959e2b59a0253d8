"""Each batch wait of a rank, divided into fetch, prep and hand-off by the state of the worker that makes the batch.

    main process   |------------ waits for batch i ------------|
    its worker     [ batch i-2 ][ batch i: io blocked ][ .. ]  put, unpickle, pin
                    state decides   fetch               prep   hand-off

Without workers, the main process is the worker. Where only the sum of a worker's state is known (time off the CPU in
this batch: page faults of a mapped file, threads that read for it), the amount is placed at the begin of the pieces
that must contain it, and these pieces have an alternative.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from stashtrace.analysis.collectives.matching import is_imported
from stashtrace.analysis.intervals import NEVER, Bools, Int64, TimeSet, value_at
from stashtrace.analysis.stalls.collective_blocking import disjoint_rows
from stashtrace.analysis.stalls.rows_by_thread import IoRows, Layer, TraceIndex, blocked_by_guess, kept_per_thread
from stashtrace.analysis.steps.threads import StepThread
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import LOADING_KINDS, MAIN_PROCESS, BatchPhase, SpanKind, StallKind, WaitOp
from stashtrace.schema.trace import EMULATED

_FETCH, _PREP, _HANDOFF = StallKind.FETCH, StallKind.PREP, StallKind.HANDOFF
#: A worker's main thread is taken to have waited for other threads that were blocked in storage if, for this share of
#: their time, it was off the CPU without another reason.
_COVERED_NUMERATOR, _COVERED_DENOMINATOR = 9, 10


@dataclass(frozen=True, slots=True)
class BatchWaits:
    """Waits of the step thread, sorted and disjoint, with the facts about each awaited batch."""

    begin: Int64
    end: Int64
    worker_id: Int64
    #: Process that makes the batch, -1 if unknown.
    made_by: Int64
    #: When the batch was complete; ``NEVER`` if that was not recorded.
    made_ns: Int64
    #: CPU and run-queue time of the step thread inside, 0 if unknown.
    ran_ns: Int64
    #: Run-queue time of it alone.
    queued_ns: Int64

    @property
    def time(self) -> TimeSet:
        """The waits as a set."""
        return TimeSet.of(self.begin, self.end)


@kept_per_thread
def batch_waits(index: TraceIndex, thread: StepThread) -> BatchWaits:
    """Return the waits of a step thread, each joined with the making of its batch by (rank, loader_id, batch_index).

    A wait without a batch (creation or end of the iterator) is the step thread's work on the loader.
    """
    waits = index.batches_of_phase(BatchPhase.WAIT)
    rows = index.batch_waits.rows(thread.track_id)
    rows = disjoint_rows(waits, rows, "loader_id", "batch_index", "cpu_ns", "runqueue_ns")
    fetches = index.batches_of_phase(BatchPhase.FETCH)
    loader, number, worker = (waits[name][rows] for name in ("loader_id", "batch_index", "worker_id"))
    none = number < 0
    by_batch = index.last_fetch(thread.rank, loader, number)
    by_batch[none] = -1
    maker = by_batch
    if ((by_batch < 0) & ~none).any():  # the making of a batch was not recorded: use another batch of its worker
        made = index.fetches.rows(thread.rank)
        by_worker = GroupBy(fetches["loader_id"][made], fetches["worker_id"][made])
        last = value_at(by_worker.last, by_worker.find(loader, worker), -1)
        maker = np.where(by_batch >= 0, by_batch, value_at(made, last, -1))
    process = value_at(fetches["process_id"], maker, -1)
    queued = np.maximum(waits["runqueue_ns"][rows], 0)
    return BatchWaits(
        begin=waits["begin_ns"][rows],
        end=waits["end_ns"][rows],
        worker_id=worker,
        made_by=np.where(none, thread.process_id, process),
        made_ns=np.where(none, waits["end_ns"][rows], value_at(fetches["end_ns"], by_batch, NEVER)),
        ran_ns=np.maximum(waits["cpu_ns"][rows], 0) + queued,
        queued_ns=queued,
    )


@dataclass(slots=True)
class _Parts:
    """Pieces of waits before their batch was made, by kind and alternative."""

    fetch: list[TimeSet] = field(default_factory=list)
    likely_fetch: list[TimeSet] = field(default_factory=list)
    perhaps_fetch: list[TimeSet] = field(default_factory=list)


def batch_layers(index: TraceIndex, thread: StepThread, waits: BatchWaits) -> list[Layer]:
    """Return layers fetch, prep and hand-off of the waits, and hand-off of waits for workers to end."""
    ready = np.clip(waits.made_ns, waits.begin, waits.end)
    unknown = waits.made_by < 0
    alone = unknown & (waits.worker_id == MAIN_PROCESS)  # imported: it made the batch itself, without a record of how
    unmade = ~unknown & (waits.made_by != thread.process_id) & (waits.made_ns == NEVER)
    # A batch that the step thread made itself has no hand-off: the rest of the wait (pinning) prepares it as well.
    handed = ~unknown & (waits.made_by != thread.process_id)
    chosen = ~unknown & ~handed
    before = TimeSet.of(waits.begin[~unknown], np.where(chosen, waits.end, ready)[~unknown])
    parts = _Parts()
    for process in np.unique(waits.made_by[~unknown]).tolist():  # few: its workers, or itself
        made = waits.made_by == process
        main_track = thread.track_id if process == thread.process_id else _main_track(index, process)
        _divide(index, process, main_track, TimeSet.of(waits.begin[made], ready[made]), parts)
    return [
        Layer(_HANDOFF, index.workers_end(thread.track_id)),
        Layer(_FETCH, TimeSet.united(*parts.fetch)),
        Layer(_FETCH, TimeSet.united(*parts.likely_fetch), (_PREP,)),
        Layer(_PREP, TimeSet.united(*parts.perhaps_fetch), (_FETCH,)),
        Layer(_PREP, TimeSet.of(waits.begin[unmade], ready[unmade]), (_HANDOFF,)),
        Layer(_PREP, before),
        Layer(_HANDOFF, TimeSet.of(ready[handed], waits.end[handed])),
        Layer(_PREP, TimeSet.of(waits.begin[alone], waits.end[alone]), (_FETCH,)),
        Layer(_PREP, TimeSet.of(waits.begin[unknown], waits.end[unknown]), (_FETCH, _HANDOFF)),
    ]


def _main_track(index: TraceIndex, process: int) -> int:
    """Return the track of a worker's thread that makes batches; -1 if unknown."""
    rows = index.fetches_by_process.rows(process)
    return int(index.batches_of_phase(BatchPhase.FETCH)["track_id"][rows[0]]) if len(rows) else -1


def blocked_in_storage(index: TraceIndex, process: int, track: int, making: TimeSet) -> TimeSet:
    """Return when a thread was blocked in storage itself; receives count while it made batches."""
    io, rows = index.io, index.io_by_process.rows(process)
    return _blocked_by(io, rows[io.track[rows] == track], making)


def _blocked_by(io: IoRows, own: Int64, making: TimeSet) -> TimeSet:
    """Return when some calls were blocked in storage; receives count while batches were made."""
    stored, received = own[io.is_storage[own]], own[io.is_receive[own]]
    return TimeSet.of(io.begin[stored], io.end[stored]) | (TimeSet.of(io.begin[received], io.end[received]) & making)


def _divide(index: TraceIndex, process: int, main_track: int, before: TimeSet, parts: _Parts) -> None:
    """Cut the time before the batch was made by the state of one worker process."""
    fetches = index.batches_of_phase(BatchPhase.FETCH)
    rows = index.fetches_by_process.rows(process)
    making = TimeSet.of_rows(fetches, rows)

    io, at = index.io, index.io_by_process.rows(process)
    of_main = io.track[at] == main_track
    main, side = (_blocked_by(io, at[of], making) for of in (of_main, ~of_main))
    thread_waits, wait_rows = index.trace.waits, index.waits.rows(main_track)
    wait_begin, wait_end = (thread_waits[name][wait_rows] for name in ("begin_ns", "end_ns"))
    asleep = main | TimeSet.of(wait_begin, wait_end)
    # A thread that reads has released the GIL, so a wait for the GIL is a wait for a thread that computes.
    for_gil = thread_waits["wait_code"][wait_rows] == int(WaitOp.GIL)
    sure = main
    if len(side):
        sure = main | (side & (asleep - TimeSet.of(wait_begin[for_gil], wait_end[for_gil])))
    if process in blocked_by_guess(index.origin):
        parts.likely_fetch.append(before & sure)
        parts.perhaps_fetch.append(before & index.reads_by_guess(process))
    else:
        parts.fetch.append(before & sure)

    rows = disjoint_rows(fetches, rows, "cpu_ns", "runqueue_ns", "major_faults_count", "block_inputs_count")
    begin, end = fetches["begin_ns"][rows], fetches["end_ns"][rows]
    cpu, queued = fetches["cpu_ns"][rows], fetches["runqueue_ns"][rows]
    timed = cpu >= 0
    known = asleep.within(begin, end)
    # Off the CPU without a known reason, per batch.
    hidden = np.where(timed, np.maximum(end - begin - cpu - np.maximum(queued, 0) - known, 0), 0)
    side = side - sure
    helped = side.within(begin, end)
    believed = timed & (helped > 0) & (hidden * _COVERED_DENOMINATOR >= helped * _COVERED_NUMERATOR)
    _reads_of_threads(before, side, begin, end, believed, parts)

    faulted = (fetches["major_faults_count"][rows] > 0) | (fetches["block_inputs_count"][rows] > 0)
    estimate = np.where(faulted, hidden - np.where(believed, helped, 0), 0)
    _page_faults(before - sure - side, begin, end, np.maximum(estimate, 0), end - begin - known - helped, parts)


def _reads_of_threads(before: TimeSet, side: TimeSet, begin: Int64, end: Int64, believed: Bools, parts: _Parts) -> None:
    """Add times when other threads of the worker were blocked in storage; that its main thread waited is a guess."""
    if len(side) == 0:
        return
    piece_begin, piece_end, row = (before & side).pieces(begin, end)
    yes = believed[row]
    parts.likely_fetch.append(TimeSet.of(piece_begin[yes], piece_end[yes]))
    parts.perhaps_fetch.append(TimeSet.of(piece_begin[~yes], piece_end[~yes]))


def _page_faults(free: TimeSet, begin: Int64, end: Int64, estimate: Int64, room: Int64, parts: _Parts) -> None:
    """Divide each batch's estimated time in page faults among the free pieces of its making, in proportion."""
    if not (estimate > 0).any():
        return
    piece_begin, piece_end, row = free.pieces(begin, end)
    length = piece_end - piece_begin
    # float64 would round; lengths and estimates stay below 2**31 us each, so microseconds keep the product exact.
    share = np.minimum(length, (length // 1000) * (estimate[row] // 1000) // np.maximum(room[row] // 1000, 1) * 1000)
    most = np.minimum(length, estimate[row])
    share = np.where(room[row] <= estimate[row], most, share)
    parts.likely_fetch.append(TimeSet.of(piece_begin, piece_begin + share))
    parts.perhaps_fetch.append(TimeSet.of(piece_begin + share, piece_begin + most))


# Time of a step thread with workers that make batches, in traces of other tools that do not show all its waits.
#
#     workers      [ batch ][ batch ][ batch ]....[ batch ]
#     step thread  [ compute ]       [ compute ]       [ compute ]         no wait for a batch was recorded
#                             |-prep-|         |--|                        it may have waited in either
#
# If the trace shows the compute of that thread, time between it while a worker was at work was most likely a wait
# for that worker. If it shows nothing of the thread, no cause is likely.

_COMPUTE, _OTHER = StallKind.COMPUTE, StallKind.OTHER


def next_to_workers(
    index: TraceIndex, thread: StepThread, waits: BatchWaits, working: TimeSet, explained: TimeSet
) -> list[Layer]:
    """Return layers of the gaps of a thread whose waits were not recorded, and of a sleep in the place of compute.

    ``working`` is the time in its phases and annotations. No layers for native traces and without recorded workers.
    """
    making = index.making_meanwhile(thread)
    if not len(making) or not is_imported(index.trace):
        return []
    # A sleep does not prove compute; during loading, it only proves that the thread did not wait for the loading then.
    emulated = (_emulated_compute(index, thread) & making) - explained
    layers = [Layer(_COMPUTE, emulated, (_OTHER,))]
    if len(waits.begin):
        return layers
    steps = index.steps_of(thread.rank)
    inside = TimeSet.of_rows(steps)
    gaps = inside - explained - working
    during_making = gaps & making
    if len(working & inside):
        likely = Layer(StallKind.PREP, during_making, (StallKind.FETCH, StallKind.HANDOFF, _COMPUTE, _OTHER))
    else:
        likely = Layer(_COMPUTE, during_making, (_OTHER, *LOADING_KINDS))
    return [*layers, likely, Layer(_COMPUTE, gaps - making, (_OTHER, *LOADING_KINDS))]


def _emulated_compute(index: TraceIndex, thread: StepThread) -> TimeSet:
    """Return the annotations of the step thread in which it slept instead of computing."""
    trace, facts = index.trace, index.trace.metadata
    known = (facts["key_code"] == trace.strings.find(EMULATED)) & (facts["process_id"] == thread.process_id)
    spans, rows = trace.spans, index.spans.rows(thread.track_id)
    chosen = np.isin(spans["name_code"][rows], facts["value_code"][known]) & (spans["kind_code"][rows] == SpanKind.USER)
    return TimeSet.of_rows(spans, rows[chosen])
