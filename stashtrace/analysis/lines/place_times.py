"""What is known of where threads spent each kind of time: exactly for long calls, by samples for the rest.

    kind of the budget   |---- compute ----|-------- other --------|-- python --|
    long calls                                 [ hook, exact ]
    samples                         x       x    (x)            x      x
    unseen               [ before ]                                    [ after the last ]

A sample inside a long call says nothing that the call does not. Before a thread's first sample, as before torch was
imported, and after its last one, only long calls are known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stashtrace._native import intervals
from stashtrace.analysis.intervals import Bools, Int64, TimeSet, int64, is_one_of, window_at
from stashtrace.analysis.lines.thread_places import ThreadPlaces
from stashtrace.analysis.lines.user_frames import Places, places
from stashtrace.analysis.stalls.batch_waits import blocked_in_storage
from stashtrace.analysis.stalls.budget import rank_layers
from stashtrace.analysis.stalls.collective_blocking import disjoint_rows
from stashtrace.analysis.stalls.rows_by_thread import LabelledIntervals, TraceIndex
from stashtrace.analysis.steps.steps import counted_steps, ranks_and_steps, steps
from stashtrace.analysis.steps.threads import StepThread
from stashtrace.analysis.steps.window import window_of
from stashtrace.schema.groupby import GroupBy, RowsBy
from stashtrace.schema.kinds import IN_COLLECTIVES, LOADING_KINDS, BatchPhase, ProcessRole, StallKind
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace, cached_on_trace

#: Whose time it is, as places in this tuple: a step thread in counted steps, workers that make batches, a step thread
#: before its first counted step.
WHERES = STEP, WORKER, START = ("step", "worker", "start")
#: Time in these is the work of other ranks, or of the link; in those of the second line of workers, if there are any.


@dataclass(frozen=True, slots=True)
class PlaceTimes:
    """Amounts of time, one for each combination of the keys that occurs; all columns are of equal length."""

    #: What the numbers of kinds of steps and of places stand for.
    step_kinds: tuple[str, ...]
    places: Places
    rank: Int64
    #: Place in ``WHERES``.
    where: Int64
    #: Place in ``step_kinds``.
    step_kind: Int64
    #: A number of :class:`StallKind`.
    kind: Int64
    #: Number of the step; of workers that of the batch among those of the rank.
    step: Int64
    #: Number of the place; -1 where it is unknown.
    place: Int64
    #: Number of the place where the thread waited for another one that was at ``place``; -1 if it was there itself.
    waiting_place: Int64
    #: The whole time of rank, kind and step: known without a place, so with place -1 alone.
    whole_ns: Int64
    #: Of it, in long calls from this place.
    exact_ns: Int64
    #: Of it, neither in long calls nor while the thread was sampled; with place -1 alone.
    unseen_ns: Int64
    #: Samples of the rest that were at this place.
    samples_count: Int64
    #: First three keys of each step, of each batch, and of the start of each rank.
    window_rank: Int64
    window_where: Int64
    window_step_kind: Int64


def is_of_others(times: PlaceTimes, rank: Int64, kind: Int64) -> Bools:
    """Return which times of step threads are waits for what others do: other ranks, the link, workers of their rank.

    Rank -1, all together, has workers if any rank has.
    """
    with_workers = np.unique(times.window_rank[times.window_where == WHERES.index(WORKER)])
    with_workers = np.append(with_workers, -1) if len(with_workers) else with_workers
    return is_one_of(kind, IN_COLLECTIVES) | (is_one_of(kind, LOADING_KINDS) & np.isin(rank, with_workers))


@cached_on_trace
def place_times(trace: Trace) -> PlaceTimes | None:
    """Divide the time of step threads and workers among places in code; None if no stack was recorded.

    Raises MissingDataError if no rank has steps.
    """
    steps(trace)  # raises where there are none, also without stacks
    if not len(trace.stack_samples) and not len(trace.stack_spans):
        return None
    return times_at(trace, places(trace), with_start=window_of(trace) is None)


def times_at(trace: Trace, found_places: Places, *, with_start: bool) -> PlaceTimes:
    """Divide the time of counted steps, of their batches and, if asked for, of the start among some places."""
    index = TraceIndex(trace)
    counted = counted_steps(index.steps)
    by_rank, found = RowsBy(counted["rank"]), PlaceParts(index, counted, found_places)
    for thread, _ in ranks_and_steps(trace, index.steps):
        of_rank = counted.take(by_rank.rows(thread.rank)).sort_by("begin_ns")
        of_rank = of_rank.take(of_rank["end_ns"] > of_rank["begin_ns"])
        if not len(of_rank):
            continue
        found.add_steps(thread, of_rank)
        found.add_batches(thread, of_rank)
        if with_start:
            found.add_start(thread, int(of_rank["begin_ns"][0]))
    return found.joined()


@dataclass(frozen=True, slots=True)
class _Windows:
    """Steps, batches or the start of a rank: sorted, disjoint, not empty."""

    rank: int
    where: str
    time: TimeSet
    step: Int64
    step_kind: Int64

    def owner(self, count: int) -> tuple[Int64, Int64]:
        """Return columns of the rank and of whose time it is."""
        return np.full(count, self.rank), np.full(count, WHERES.index(self.where))


class PlaceParts:
    """Amounts of one thread after the other, divided among ``found``: lines, or stacks."""

    def __init__(self, index: TraceIndex, counted: Table, found: Places) -> None:
        self._index, self._places = index, found
        self._of_threads = ThreadPlaces(index, found)
        self._step_kinds = np.append("", np.unique(counted["kind"]))
        processes = index.trace.processes
        self._workers = set(processes["process_id"][processes["role_code"] == ProcessRole.WORKER].tolist())
        self._amounts: list[tuple[Int64, ...]] = []
        self._windows: list[tuple[Int64, ...]] = []

    def add_steps(self, thread: StepThread, rows: Table) -> None:
        """Add the counted steps of a rank."""
        windows, kind = TimeSet(rows["begin_ns"], rows["end_ns"]), np.searchsorted(self._step_kinds, rows["kind"])
        steps = _Windows(thread.rank, STEP, windows, rows["step"], int64(kind))
        self._add(thread.track_id, _budget_of(self._index, thread), steps)

    def add_start(self, thread: StepThread, first_ns: int) -> None:
        """Add the time of a rank before its first counted step."""
        if thread.begin_ns < first_ns:
            life = TimeSet.of([thread.begin_ns], [first_ns])
            whole = _Windows(thread.rank, START, life, int64([-1]), int64([0]))
            self._add(thread.track_id, _budget_of(self._index, thread), whole)

    def add_batches(self, thread: StepThread, steps: Table) -> None:
        """Add the batches that workers made for the counted steps of a rank."""
        fetches, rows = self._index.batches_of_phase(BatchPhase.FETCH), self._fetches(thread, steps)
        made = 0
        for process, of_process in GroupBy(fetches["process_id"][rows]).items():
            if process in self._workers:
                mine = fetches.take(disjoint_rows(fetches, rows[of_process]))
                self._add_batches_of(thread.rank, process, mine, made)
                made += len(mine)

    def _fetches(self, thread: StepThread, steps: Table) -> Int64:
        """Return the rows of fetches of loaders that the steps wait for, during these."""
        index = self._index
        waits = index.batches_of_phase(BatchPhase.WAIT).take(index.batch_waits.rows(thread.track_id))
        waited = window_at(waits["begin_ns"], steps["begin_ns"], steps["end_ns"]) >= 0
        fetches, rows = index.batches_of_phase(BatchPhase.FETCH), index.fetches.rows(thread.rank)
        during = (fetches["end_ns"][rows] > steps["begin_ns"][0]) & (fetches["begin_ns"][rows] < steps["end_ns"][-1])
        return int64(rows[during & np.isin(fetches["loader_id"][rows], waits["loader_id"][waited])])

    def _add_batches_of(self, rank: int, process: int, mine: Table, made: int) -> None:
        """Add the batches of one worker. ``made``: how many of the rank were added before."""
        if not len(mine):
            return
        windows, number = TimeSet(mine["begin_ns"], mine["end_ns"]), np.arange(len(mine))
        track = int(mine["track_id"][0])
        blocked = blocked_in_storage(self._index, process, track, windows)
        begin, end, tag = intervals.paint([(blocked.begin, blocked.end), (windows.begin, windows.end)])
        time = LabelledIntervals(begin, end, int64([StallKind.FETCH, StallKind.PREP])[tag])
        self._add(track, time, _Windows(rank, WORKER, windows, made + number, 0 * number))

    def _add(self, track: int, time: LabelledIntervals, of: _Windows) -> None:
        begin, end, row, window = intervals.join(time.begin, time.end, of.time.begin, of.time.end)
        stays = self._of_threads.of(track)
        exact = stays.calls
        cut_begin, cut_end, call, cut_piece = intervals.join(exact.begin, exact.end, begin, end)
        sample_piece = intervals.locate(begin, end, stays.moment_ns)
        alone = sample_piece >= 0
        parts = (len(begin), len(call), int(alone.sum()))
        piece = np.concatenate([np.arange(len(begin)), cut_piece, sample_piece[alone]])
        place = np.concatenate([np.full(len(begin), -1), exact.tag[call], stays.place[alone]])
        waiting_place = np.concatenate([np.full(len(begin) + len(call), -1), stays.waiting_place[alone]])
        amounts = np.zeros((len(piece), 4), dtype=np.int64)
        amounts[: parts[0], 0] = end - begin
        amounts[parts[0] : parts[0] + parts[1], 1] = cut_end - cut_begin
        rest = TimeSet(begin, end) - TimeSet(exact.begin, exact.end) - _sampled(stays.sampled_ns)
        amounts[: parts[0], 2] = rest.within(begin, end)
        amounts[parts[0] + parts[1] :, 3] = 1
        distinct = GroupBy(window[piece], time.tag[row][piece], place, waiting_place)
        of_window, kind, *of_places = distinct.keys
        sums = distinct.sum(amounts)
        keys = (*of.owner(len(kind)), of.step_kind[of_window], kind, of.step[of_window], *of_places)
        self._amounts.append((*keys, *sums.T))
        self._windows.append((*of.owner(len(of.step)), of.step_kind))

    def joined(self) -> PlaceTimes:
        """Return the amounts of all threads."""
        columns = _columns(self._amounts, 11) + _columns(self._windows, 3)
        return PlaceTimes(tuple(self._step_kinds.tolist()), self._places, *columns)


def _columns(parts: Sequence[Sequence[Int64]], count: int) -> list[Int64]:
    return [int64(np.concatenate([part[n] for part in parts])) if parts else int64([]) for n in range(count)]


def _sampled(moment: Int64) -> TimeSet:
    """Return the time for which samples stand: from the first to the last, and a mean distance around these."""
    if not len(moment):
        return TimeSet.empty()
    first, last = int(moment.min()), int(moment.max())
    distance = (last - first) // max(len(moment) - 1, 1)
    return TimeSet.of([first - distance], [last + distance + 1])


def _budget_of(index: TraceIndex, thread: StepThread) -> LabelledIntervals:
    """Return the time of a rank by kind, without a gap."""
    layers = rank_layers(index, thread).layers
    life = (int64([thread.begin_ns]), int64([thread.end_ns]))
    begin, end, tag = intervals.paint([*((x.time.begin, x.time.end) for x in layers), life])
    return LabelledIntervals(begin, end, int64([*(x.kind for x in layers), StallKind.OTHER])[tag])
