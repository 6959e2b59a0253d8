"""Nodes of what other threads and workers do for the step thread: batches, and checkpoints in the background.

    step thread    [ asks ][ forward ... ][ .... waits ....][ asks again ]
                       |start                          ^join
    writer             '->[ save                      ]-'

The work of the step thread just before a save asked for it. A blocking call of the step thread that ends together with
a save waited for it; like all waits it is not a node. A save that begins as soon as the save before it on its thread is
done stood in that thread's queue, and nobody knows when it was asked for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stashtrace.analysis.graph.graph_parts import Parts, ThreadNodes
from stashtrace.analysis.graph.policy import POLICY
from stashtrace.analysis.graph.work_graph import EdgeKind, Resource
from stashtrace.analysis.intervals import NEVER, Bools, Int64, TimeSet, int64, window_at
from stashtrace.analysis.stalls.batch_waits import BatchWaits
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex, checkpoints, kept_per_thread
from stashtrace.analysis.steps.threads import StepThread
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import BatchPhase, PhaseFlag, StallKind, WaitOp
from stashtrace.schema.table import Table

#: Batches that DataLoader asks each worker for in advance, unless it is set otherwise.
PREFETCH = 2


def made_by_workers(loads: BatchWaits, thread: StepThread) -> Bools:
    """Return which waits of a thread are for batches that another process made."""
    made = (loads.made_by >= 0) & (loads.made_by != thread.process_id) & (loads.made_ns < NEVER)
    return np.asarray(made)


def arrived_ns(index: TraceIndex, loads: BatchWaits, handed: Bools) -> Int64:
    """Return when the thread had each batch: from then on it was no longer blocked, but unpacked the batch.

    A worker that holds the interpreter's lock for its next batch hands over the last one when that is done: this is no
    work of the thread. Where it is not known how long the thread ran, all time after the making counts as its work.
    """
    had = loads.end - loads.ran_ns
    blocked = had - np.maximum(loads.made_ns, loads.begin)
    late = handed & (loads.ran_ns > 0) & (blocked > POLICY.idle_ns)
    if not late.any():
        return loads.made_ns
    awaited = loads.begin <= loads.made_ns
    after = had - _next_made_ns(index, loads.made_by, loads.made_ns)
    held = (blocked > POLICY.held_ns) & (after >= 0) & (after <= POLICY.held_ns)
    return np.where(late & (awaited | held), had, loads.made_ns)


def _next_made_ns(index: TraceIndex, process: Int64, made_ns: Int64) -> Int64:
    """Return when the same process had made its next batch, ``NEVER`` if it made none."""
    fetches = index.batches_of_phase(BatchPhase.FETCH)
    next_ns = np.full(len(process), NEVER, dtype=np.int64)
    for maker in np.unique(process[process >= 0]).tolist():
        mine = process == maker
        ends = np.sort(fetches["end_ns"][index.fetches_by_process.rows(maker)])
        next_ns[mine] = np.append(ends, NEVER)[np.searchsorted(ends, made_ns[mine], side="right")]
    return next_ns


def add_batches(
    index: TraceIndex,
    thread: StepThread,
    nodes: ThreadNodes,
    loads: BatchWaits,
    had_ns: Int64,
    life: TimeSet,
    parts: Parts,
) -> None:
    """Add the batches that workers make.

    A worker makes one after the other, each after it was asked for. The thread takes what is made.
    """
    fetches = index.batches_of_phase(BatchPhase.FETCH)
    made = index.fetches.rows(thread.rank)
    begin, end = fetches["begin_ns"][made], fetches["end_ns"][made]
    # A batch that ended before it began has damaged times, and no length.
    made = made[(fetches["process_id"][made] != thread.process_id) & (end > life.begin[0]) & (end >= begin)]
    if not len(made):
        return
    order = made[np.lexsort((fetches["begin_ns"][made], fetches["process_id"][made]))]
    begin, end, process = (fetches[name][order] for name in ("begin_ns", "end_ns", "process_id"))
    same = np.concatenate([[False], process[1:] == process[:-1]])
    before = np.concatenate([[0], end[:-1]])
    batches = parts.add(
        len(order),
        rank=thread.rank,
        resource=Resource.WORKER,
        kind=StallKind.PREP,
        process_id=process,
        begin_ns=begin,
        end_ns=end,
        fetch_ns=storage_ns(index, process, begin, end),
        row=order,
    )
    idle = _idle_before(index, process, before, begin, same)
    waits = index.batches_of_phase(BatchPhase.WAIT)
    mine = index.batch_waits.rows(thread.track_id)
    mine = mine[waits["batch_index"][mine] >= 0]
    loaders = []
    asked_ns = np.full(len(order), NEVER, dtype=np.int64)
    for loader_id in np.unique(fetches["loader_id"][order]).tolist():
        chosen = np.flatnonzero(fetches["loader_id"][order] == loader_id)
        takes = waits.take(mine[waits["loader_id"][mine] == loader_id]).sort_by("begin_ns")
        if not len(takes):
            continue
        at = np.searchsorted(loads.begin, takes["begin_ns"])
        known = np.append(loads.begin, -1)[at] == takes["begin_ns"]
        had = np.where(known, np.append(had_ns, NEVER)[at], NEVER)
        loader = _Loader.of(chosen, fetches.take(order[chosen]), takes, idle[chosen], had)
        loaders.append(loader)
        # The first ones of a pass are asked for together, before any of them is begun.
        asked_ns[chosen] = np.where(loader.asked >= 0, takes["end_ns"][loader.asked], loader.begin.min())
    # A worker that was asked before it was free did not wait: reading an index that is there takes its time as well.
    idle = np.where(asked_ns < before, 0, idle)
    # What a worker waits for between two passes is not recorded.
    idle = np.where(same & (begin - before - idle > POLICY.asked_ns), begin - before, idle)
    parts.edge(np.where(same[1:], batches[:-1], -1), batches[1:], EdgeKind.PROGRAM, (begin - before - idle)[1:])
    for loader in loaders:
        _take(nodes, batches[loader.rows], loader, parts)
        _ask(nodes, batches[loader.rows], loader, idle[loader.rows], ~same[loader.rows], parts)


def storage_ns(index: TraceIndex, process: Int64, begin_ns: Int64, end_ns: Int64) -> Int64:
    """Return how long the process of each interval was blocked in storage within it; 0 for the process -1."""
    blocked_ns = np.zeros(len(process), dtype=np.int64)
    for number in np.unique(process[process >= 0]).tolist():
        mine, io, rows = process == number, index.io, index.io_by_process.rows(number)
        rows = rows[io.is_storage[rows]]
        blocked_ns[mine] = TimeSet.of(io.begin[rows], io.end[rows]).within(begin_ns[mine], end_ns[mine])
    return blocked_ns


@dataclass(frozen=True, slots=True)
class _Loader:
    """Batches that the workers of one iterator made, and the waits of the thread that took them."""

    #: Indices of the batches among those of the rank.
    rows: Int64
    #: Of each batch.
    number: Int64
    begin: Int64
    end: Int64
    #: Waits of the thread in order.
    takes: Table
    #: When the thread had the batch of each wait.
    had: Int64
    #: Batch that each wait got: the last one of its number that had begun by then; -1 if unknown.
    made: Int64
    #: Wait after which the worker of each batch was asked for it, -1 if there is none.
    asked: Int64

    @classmethod
    def of(cls, rows: Int64, fetches: Table, takes: Table, idle: Int64, had: Int64) -> _Loader:
        number, begin, end = (fetches[name] for name in ("batch_index", "begin_ns", "end_ns"))
        made = _latest(takes["batch_index"], takes["end_ns"], number, begin)
        # A batch is asked for when the one ``distance`` before it arrives: no worker is ever further ahead.
        arrived = np.maximum(takes["begin_ns"], np.where(made >= 0, end[made], takes["begin_ns"]))
        highest = np.maximum.accumulate(takes["batch_index"])
        before = np.searchsorted(np.maximum.accumulate(arrived), begin, side="right")
        ahead = number - np.where(before > 0, highest[np.maximum(before - 1, 0)], int(number.min()) - 1)
        distance = max(int(ahead.max()), 1)
        waited = np.count_nonzero(idle > np.maximum(POLICY.waited_ns, (end - begin) // 10))
        if waited / len(idle) < POLICY.often_ratio:
            # Workers that never wait may be allowed to be further ahead than they were.
            distance = max(distance, len(np.unique(fetches["process_id"])) * PREFETCH)
        asked = _latest(number - distance, begin + POLICY.asked_ns, takes["batch_index"], takes["end_ns"])
        return cls(rows, number, begin, end, takes, had, made, asked)


def _idle_before(index: TraceIndex, process: Int64, before: Int64, begin: Int64, same: Bools) -> Int64:
    """Return how long each worker waited for the index of a batch since the batch before."""
    table = index.batches_of_phase(BatchPhase.INDEX_WAIT)
    idle = np.zeros(len(begin), dtype=np.int64)
    for worker in np.unique(process).tolist():
        rows = index.index_waits.rows(worker)
        mine = np.flatnonzero((process == worker) & same)
        if not len(rows):  # its waits were not recorded: it was idle for as long as it made nothing
            idle[mine] = np.maximum(begin[mine] - before[mine], 0)
            continue
        idle[mine] = TimeSet.of_rows(table, rows).within(np.minimum(before[mine], begin[mine]), begin[mine])
    return idle


def _take(nodes: ThreadNodes, batches: Int64, loader: _Loader, parts: Parts) -> None:
    """The thread goes on with a batch when that is made."""
    made = loader.made
    had = np.where(loader.had < NEVER, np.maximum(loader.had, loader.end[made]), loader.end[made])
    goes_on, _ = nodes.next_begun(np.maximum(loader.takes["begin_ns"], had))
    parts.edge(np.where(made >= 0, batches[made], -1), goes_on, EdgeKind.BATCH, had - loader.end[made])


def _ask(nodes: ThreadNodes, batches: Int64, loader: _Loader, idle: Int64, started: Bools, parts: Parts) -> None:
    """A worker begins a batch after it was asked for it; a new worker begins its first after the thread started it."""
    begin, asked = loader.begin, loader.asked
    waiting = (idle > POLICY.idle_ns) | (started & (asked < 0))
    # A pass begins when the thread makes its iterator: what it did last before then is as good as a take.
    moment = np.where(asked >= 0, loader.takes["end_ns"][asked], begin)
    moment = np.where(waiting & (begin - moment > POLICY.asked_ns), begin, moment)
    before, ended_ns = nodes.last_ended(moment)
    # The index goes out before the taken batch is handed to the loop: the lag may be negative.
    lag = np.where(waiting, begin - ended_ns, 0)
    parts.edge(np.where(waiting | (asked >= 0), before, -1), batches, EdgeKind.PREFETCH, lag)


def _latest(number: Int64, until: Int64, numbers: Int64, moments: Int64) -> Int64:
    """Return the last row of ``numbers`` with each number whose moment is not after ``until``, -1 if there is none."""
    order = np.lexsort((moments, numbers))
    low, high = (np.searchsorted(numbers[order], number, side=side) for side in ("left", "right"))
    latest = np.full(len(number), -1, dtype=np.int64)
    for back in range(int((high - low).max(initial=0))):  # as often as there were passes over the data
        at = high - 1 - back
        row = order[np.maximum(at, 0)]
        fits = (latest < 0) & (at >= low) & (moments[row] <= until)
        latest[fits] = row[fits]
    return latest


@kept_per_thread
def own_fetches(index: TraceIndex, thread: StepThread) -> Int64:
    """Return the rows, among the fetches, of the batches that a thread makes itself, in order."""
    fetches, rows = index.batches_of_phase(BatchPhase.FETCH), index.fetches.rows(thread.rank)
    chosen = rows[fetches["track_id"][rows] == thread.track_id]
    return int64(chosen[np.argsort(fetches["begin_ns"][chosen], kind="stable")])


@dataclass(frozen=True, slots=True)
class WorkerStarts:
    """Disjoint times of a step thread in order, each with the iterator whose workers it starts or sees end.

    | workers of the last pass end | iterator made: workers start | indices go out | wait for the first batch
      ============================                   ============ '--- persistent workers do this as well
    """

    begin_ns: Int64
    end_ns: Int64
    loader_id: Int64

    def at(self, moments: Int64) -> Int64:
        """Return the place of the time that each moment lies in, -1 if it lies in none."""
        return window_at(moments, self.begin_ns, self.end_ns)


@kept_per_thread
def worker_starts(index: TraceIndex, thread: StepThread) -> WorkerStarts:
    """Find the times: until the last worker has begun while an iterator is made, and until all have ended."""
    waits, mine = index.batches_of_phase(BatchPhase.WAIT), index.batch_waits.rows(thread.track_id)
    makes = waits.take(mine[waits["batch_index"][mine] < 0])
    ends = index.batches_of_phase(BatchPhase.WORKERS_END)
    ends = ends.take(index.worker_ends.rows(thread.track_id))
    if not len(makes) and not len(ends):
        return WorkerStarts(int64([]), int64([]), int64([]))
    loaders, started_ns = _last_starts(index, thread)
    at = GroupBy(loaders).find(makes["loader_id"]) if len(loaders) else np.full(len(makes), -1)
    until_ns = np.append(started_ns, -NEVER)[at]
    # Workers that begin while the iterator is made are its own; a process may note its begin later than that.
    chosen = (until_ns > makes["begin_ns"]) & (makes["begin_ns"] < np.append(_first_batch_ns(index, loaders), 0)[at])
    begin = np.concatenate([makes["begin_ns"][chosen], ends["begin_ns"]])
    end = np.concatenate([np.minimum(makes["end_ns"], until_ns)[chosen], ends["end_ns"]])
    loader = np.concatenate([makes["loader_id"][chosen], ends["loader_id"]])
    some = np.flatnonzero(end > begin)
    order = some[np.argsort(begin[some], kind="stable")]
    return WorkerStarts(begin[order], end[order], loader[order])


def _last_starts(index: TraceIndex, thread: StepThread) -> tuple[Int64, Int64]:
    """Return the iterators whose batches other processes made for a thread, and when the last of these began."""
    fetches, rows = index.batches_of_phase(BatchPhase.FETCH), index.fetches.rows(thread.rank)
    rows = rows[fetches["process_id"][rows] != thread.process_id]
    began_ns = GroupBy(fetches["process_id"][rows]).map(lambda process: index.began_ns.get(process, -NEVER))
    loaders = GroupBy(fetches["loader_id"][rows])
    return loaders.values, loaders.max(began_ns)


def _first_batch_ns(index: TraceIndex, loaders: Int64) -> Int64:
    fetches = index.batches_of_phase(BatchPhase.FETCH)
    return fetches["begin_ns"][int64([index.fetches_by_loader.rows(loader)[0] for loader in loaders.tolist()])]


#: Calls in which a thread can wait for another one of its process.
_JOINS = (WaitOp.COND_WAIT, WaitOp.MUTEX_LOCK, WaitOp.FUTEX, WaitOp.SEMAPHORE, WaitOp.JOIN)


@dataclass(frozen=True, slots=True)
class Saves:
    """Saves of a rank in the background of its step thread, by begin."""

    #: Of ``phases``.
    row: Int64
    begin_ns: Int64
    end_ns: Int64
    track: Int64
    #: When the step thread waited for a save.
    wait_begin_ns: Int64
    wait_end_ns: Int64
    #: Index of the save that ended each of these waits.
    waited: Int64

    @classmethod
    def of(cls, index: TraceIndex, thread: StepThread, life: TimeSet, explained: TimeSet) -> Saves:
        """Find saves that began in a rank's life, and waits for them outside of time that has another cause."""
        phases, none = index.trace.phases, int64([])
        if not len(life.begin):
            return cls(*(none,) * 7)
        every, by_process = checkpoints(index.origin)
        rows = every[by_process.rows(thread.process_id)]
        flags, begin, end = (phases[name][rows] for name in ("phase_flags", "begin_ns", "end_ns"))
        chosen = (phases["track_id"][rows] != thread.track_id) | ((flags & int(PhaseFlag.BACKGROUND)) != 0)
        chosen &= ((flags & int(PhaseFlag.NESTED)) == 0) & (end > begin)
        rows = rows[chosen & (begin >= life.begin[0]) & (begin < life.end[-1])]
        if not len(rows):
            return cls(*(none,) * 7)
        rows = rows[np.argsort(phases["begin_ns"][rows], kind="stable")]
        begin, end = phases["begin_ns"][rows], phases["end_ns"][rows]

        waits, places = index.trace.waits, index.waits.rows(thread.track_id)
        places = places[np.isin(waits["wait_code"][places], _JOINS)]
        stood_begin, stood_end = waits["begin_ns"][places], waits["end_ns"][places]
        order = np.argsort(end, kind="stable")
        at = np.searchsorted(end[order], stood_end, side="right") - 1  # the last save that was done by then
        save = order[np.maximum(at, 0)]
        soon = np.clip(POLICY.later_ratio * (end[save] - stood_begin), POLICY.lock_changes_ns, POLICY.later_ns)
        waited = (at >= 0) & (stood_begin < end[save]) & (stood_end - end[save] <= soon)
        waited &= explained.within(stood_begin, stood_end) == 0
        tracks = phases["track_id"][rows]
        return cls(rows, begin, end, tracks, stood_begin[waited], stood_end[waited], int64(save[waited]))

    @property
    def waits(self) -> TimeSet:
        """Time in which the step thread waited for any save."""
        return TimeSet.of(self.wait_begin_ns, self.wait_end_ns)

    @property
    def moments_ns(self) -> Int64:
        """Where the step thread's time is to be cut."""
        return np.concatenate([self.begin_ns, self.wait_end_ns])

    def add(self, thread: StepThread, parts: Parts, nodes: ThreadNodes | None = None) -> None:
        """Add nodes, and edges from and to the nodes of the thread that asked for the saves, where these are known."""
        if not len(self.row):
            return
        made = parts.add(
            len(self.row),
            rank=thread.rank,
            resource=Resource.CHECKPOINT,
            kind=StallKind.CHECKPOINT,
            process_id=thread.process_id,
            begin_ns=self.begin_ns,
            end_ns=self.end_ns,
            row=self.row,
        )
        order = np.lexsort((self.begin_ns, self.track))
        same = self.track[order][1:] == self.track[order][:-1]
        before, after = order[:-1][same], order[1:][same]
        idle = self.begin_ns[after] - self.end_ns[before]
        queued = np.zeros(len(made), dtype=bool)
        queued[after] = idle <= POLICY.lock_changes_ns
        parts.edge(made[before], made[after], EdgeKind.PROGRAM, np.where(queued[after], idle, np.minimum(idle, 0)))
        if nodes is None:
            return
        asked, ended_ns = nodes.last_ended(self.begin_ns)
        parts.edge(np.where(queued, -1, asked), made, EdgeKind.START, self.begin_ns - ended_ns)
        goes_on, _ = nodes.next_begun(self.wait_end_ns)
        parts.edge(made[self.waited], goes_on, EdgeKind.JOIN, self.wait_end_ns - self.end_ns[self.waited])
