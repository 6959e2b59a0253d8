"""Where in code a thread was: in long calls exactly, else as samples say.

    step thread    [ fetch, a long call ] x   x  [ waits for the GIL   ] x
    other thread                                  x holds it     x holds it

A wait for the GIL is spent in the code of the thread that holds it, as far as samples of that thread say, and a wait
for a lock in that of the thread that ends it.

    step thread    [ Future.result, a long wait            ]     x       x: samples
    pool thread        x pack      x pack     x pack   ends it

A lock of Python is given back by a thread that holds the GIL, so the thread that held it last when a wait ended has
ended it. Its samples say what it ran meanwhile; where that is the user's code, the wait is spent there. Other waits, as
in a selector or in C++, may end for another reason while some thread runs: there only a thread counts that runs less
than half as often while the step does not wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stashtrace._native import intervals
from stashtrace.analysis.intervals import NEVER, Bools, Int64, TimeSet, int64, is_one_of
from stashtrace.analysis.lines.user_frames import Places
from stashtrace.analysis.stalls.rows_by_thread import LabelledIntervals, TraceIndex
from stashtrace.schema.groupby import GroupBy, RowsBy, order_by
from stashtrace.schema.kinds import StackCause, StackFlag, WaitOp
from stashtrace.schema.table import Table

#: Waits that another thread may end.
_ENDED_BY_THREADS = (WaitOp.COND_WAIT, WaitOp.MUTEX_LOCK, WaitOp.FUTEX, WaitOp.SEMAPHORE, WaitOp.POLL, WaitOp.JOIN)
#: Shorter ones have no stack, and who ended them is not recorded.
_LONG_NS = 1_000_000
#: Waits at one place of which samples show less than this in other threads stay exact.
_LEAST_COUNT, _LEAST_RATIO = 2, 0.1
#: Of the waits at one place: a thread that happens to run ends fewer.
_OFTEN_RATIO = 0.2
#: With fewer looks while the step does not wait, none shows that a thread does not run all the time.
_LEAST_COMPARED = 3


@dataclass(frozen=True, slots=True)
class SharedWaits:
    """Waits that are spent in other threads, and samples that divide their time: where these threads were."""

    time: TimeSet
    moment_ns: Int64
    place: Int64


@dataclass(frozen=True, slots=True)
class _Active:
    """Samples of other threads that ran, or were in a call, when a thread was sampled: columns of equal length."""

    #: Place of the thread's sample among its samples.
    look: Int64
    track: Int64
    place: Int64
    #: In the user's code.
    is_users: Bools


class OtherThreads:
    """Finds out what other threads ran while one waited. ``sample_place``: of each row of ``stack_samples``."""

    def __init__(self, index: TraceIndex, found: Places, sample_place: Int64) -> None:
        self._index, self._found, self._sample_place = index, found, sample_place

    def of(self, track: int, calls: LabelledIntervals) -> SharedWaits:
        """Return the waits of a thread that other threads had. ``calls``: its long calls, with the place of each."""
        samples = self._index.trace.stack_samples
        sampled = self._index.stack_samples.rows(track)
        sampled = sampled[np.argsort(samples["ts_ns"][sampled], kind="stable")]
        waits = self._waits(track)
        looked = self._flags(sampled, StackFlag.AROUND)
        if not len(waits) or not looked.any():
            return SharedWaits(TimeSet.empty(), sampled[:0], sampled[:0])
        moment = samples["ts_ns"][sampled]
        wait = intervals.locate(waits["begin_ns"], waits["end_ns"], moment)
        at = intervals.locate(calls.begin, calls.end, (waits["begin_ns"] + waits["end_ns"]) // 2)
        place_of_wait = np.append(calls.tag, -1)[at]
        active = self._active(track, sampled, looked)
        compared = looked & (wait < 0) & ~self._flags(sampled, StackFlag.BLOCKED)
        charged = active.is_users & _ended_the_wait(waits, wait, compared, looked, active, place_of_wait)
        spent = np.append(place_of_wait, -1)[wait]
        spent[active.look[charged]] = active.place[charged]
        has = np.zeros(len(sampled), dtype=bool)
        has[active.look[charged]] = True
        kept = np.isin(place_of_wait, _places_with_enough(np.append(place_of_wait, -2)[wait], has & (wait >= 0)))
        inside = np.append(kept, False)[wait]
        return SharedWaits(TimeSet.of_rows(waits.take(kept)), moment[inside], spent[inside])

    def _waits(self, track: int) -> Table:
        """Return the long waits of a thread that another one may end."""
        waits, rows = self._index.trace.waits, self._index.waits.rows(track)
        is_long = waits["end_ns"][rows] - waits["begin_ns"][rows] >= _LONG_NS
        return waits.take(rows[is_long & is_one_of(waits["wait_code"][rows], _ENDED_BY_THREADS)]).sort_by("begin_ns")

    def _active(self, track: int, sampled: Int64, looked: Bools) -> _Active:
        """Return what other threads of the process were in, by the sample of the thread that was taken after theirs."""
        samples = self._index.trace.stack_samples
        rows = self._of_others.rows(int(samples["process_id"][sampled[0]]))
        rows = rows[samples["track_id"][rows] != track]
        look = np.searchsorted(samples["ts_ns"][sampled], samples["ts_ns"][rows])
        rows, look = rows[np.append(looked, False)[look]], look[np.append(looked, False)[look]]
        place = self._sample_place[rows]
        is_users = np.append(self._found.is_users, False)[place]
        return _Active(look, samples["track_id"][rows], place, is_users)

    def _flags(self, rows: Int64, flag: StackFlag) -> Bools:
        return np.asarray((self._index.trace.stack_samples["sample_flags"][rows] & int(flag)) != 0)

    @cached_property
    def _of_others(self) -> RowsBy:
        """Rows of samples by process, -1 for those that do not show what a thread did while another one waited."""
        samples = self._index.trace.stack_samples
        both = int(StackFlag.AROUND | StackFlag.BLOCKED)
        return RowsBy(np.where((samples["sample_flags"] & both) == int(StackFlag.AROUND), samples["process_id"], -1))


def _ended_the_wait(
    waits: Table,
    wait: Int64,
    compared: Bools,
    looked: Bools,
    active: _Active,
    place_of_wait: Int64,
) -> Bools:
    """Return which samples are of a thread that ended the wait in which they were taken.

    ``wait``: of each sample of the thread that waits, -1 in none.
    """
    wait_of_look = wait[active.look]
    ender, place = np.append(waits["gil_track_id"], -1)[wait], np.append(place_of_wait, -1)[wait_of_look]
    locks = waits["wait_code"] == WaitOp.SEMAPHORE
    of_lock = (wait_of_look >= 0) & np.append(locks, False)[wait_of_look]
    ended = (wait_of_look >= 0) & (ender[active.look] == active.track)
    # Another thread may have held the GIL for a moment after the one that gave the lock back.
    often = _often(place_of_wait[locks], waits["gil_track_id"][locks])
    is_often = often.find(place, active.track) >= 0
    stops = _stops(active, ended, ender[looked], compared)
    result = ended & (stops | (of_lock & is_often))
    # A wait that went on after a time limit is of the only thread that ran of those that end waits there.
    went_on = of_lock & (ender[active.look] < 0) & is_often
    alone = np.bincount(active.look[went_on], minlength=len(wait)) == 1
    return np.asarray(result | (went_on & alone[active.look]))


def _often(place: Int64, ender: Int64) -> GroupBy:
    """Return the pairs of a place and a thread that ended many of the waits there."""
    pairs, places = GroupBy(place[ender >= 0], ender[ender >= 0]), GroupBy(place[ender >= 0])
    kept = pairs.sizes >= _OFTEN_RATIO * places.sizes[places.find(pairs.keys[0])]
    return GroupBy(*(key[kept] for key in pairs.keys))


def _stops(active: _Active, ended: Bools, ender: Int64, compared: Bools) -> Bools:
    """Return which samples are of threads that run less than half as often while none waits for them.

    ``ender``: of the wait of each sample of the thread that waits.
    """
    threads, looks = GroupBy(active.track), GroupBy(ender)
    runs = threads.sum(int64(ended)) / np.maximum(np.append(looks.sizes, 0)[looks.find(threads.values)], 1)
    always = threads.sum(int64(compared[active.look])) / max(int(compared.sum()), 1)
    stops = (2 * always <= runs) & (compared.sum() >= _LEAST_COMPARED)
    return np.asarray(stops[threads.number])


def _places_with_enough(place: Int64, charged: Bools) -> Int64:
    """Return the places at which samples show enough in other threads; ``place``: of the wait of each sample."""
    places = GroupBy(place)
    count = places.sum(int64(charged))
    return int64(places.values[(count >= _LEAST_COUNT) & (count >= _LEAST_RATIO * places.sizes)])


#: Calls whose whole time is theirs; phases and batches hold others.
_EXACT = (StackCause.WAIT, StackCause.IO, StackCause.GARBAGE, StackCause.COLLECTIVE, StackCause.AWAITED)
_AWAITED = StackCause.AWAITED


@dataclass(frozen=True, slots=True)
class Stays:
    """Where one thread was; -1 stands for an unknown place."""

    #: Long calls: disjoint, with the number of the place of each.
    calls: LabelledIntervals
    #: Samples that are not in long calls, in order of time.
    moment_ns: Int64
    place: Int64
    #: Where the thread itself waited, if its place is that of another thread it waited for; else -1.
    waiting_place: Int64
    #: Whether the thread that was sampled held the GIL: it ran Python, or C code that keeps it.
    holds_gil: Bools
    #: Moments of all samples of the thread itself.
    sampled_ns: Int64


class ThreadPlaces:
    """Finds where threads were."""

    def __init__(self, index: TraceIndex, found: Places) -> None:
        self._index = index
        # All at once: a search among the frames of all ranks costs more than what it finds for one.
        self._sample_place, self._span_place = (
            found.of(table["process_id"], table["frame_key"])
            for table in (index.trace.stack_samples, index.trace.stack_spans)
        )
        self._others = OtherThreads(index, found, self._sample_place)

    def of(self, track: int) -> Stays:
        """Return where a thread was."""
        index, samples = self._index, self._index.trace.stack_samples
        rows, sampled = index.stack_spans.rows(track), index.stack_samples.rows(track)
        calls, call_row = exact_calls(index.trace.stack_spans.take(rows))
        place = self._span_place[rows[call_row[calls.tag]]]
        calls = whole_calls = LabelledIntervals(calls.begin, calls.end, place)
        moment = samples["ts_ns"][sampled]
        alone = sampled[intervals.locate(calls.begin, calls.end, moment) < 0]
        waits = self._waits_for_gil(track) & TimeSet(calls.begin, calls.end)
        holders = self._holders(track, sampled, waits)
        if len(holders):
            begin, end, call = (TimeSet(calls.begin, calls.end) - waits).pieces(calls.begin, calls.end)
            calls = LabelledIntervals(begin, end, calls.tag[call])
            alone = np.append(alone, holders)
        shared = self._others.of(track, calls)
        if len(shared.time):
            begin, end, call = (TimeSet(calls.begin, calls.end) - shared.time).pieces(calls.begin, calls.end)
            calls = LabelledIntervals(begin, end, calls.tag[call])
            alone = alone[intervals.locate(shared.time.begin, shared.time.end, samples["ts_ns"][alone]) < 0]
        holds = (samples["sample_flags"][alone] & StackFlag.HOLDS_GIL) != 0
        at, place, holds = (
            np.concatenate(both)
            for both in (
                (samples["ts_ns"][alone], shared.moment_ns),
                (self._sample_place[alone], shared.place),
                (holds, np.ones(len(shared.place), dtype=bool)),
            )
        )
        order = np.argsort(at, kind="stable")
        at, place, holds = at[order], place[order], holds[order]
        thread_place = np.append(whole_calls.tag, -1)[intervals.locate(whole_calls.begin, whole_calls.end, at)]
        waiting_place = np.where(thread_place == place, -1, thread_place)
        return Stays(calls, at, place, waiting_place, holds, moment)

    def _holders(self, track: int, sampled: Int64, waits: TimeSet) -> Int64:
        """Return the samples of other threads of the process that held the GIL while a thread waited for it."""
        samples = self._index.trace.stack_samples
        if not len(sampled) or not len(waits):
            return sampled[:0]
        rows = self._of_holders.rows(int(samples["process_id"][sampled[0]]))
        others = rows[samples["track_id"][rows] != track]
        return int64(others[intervals.locate(waits.begin, waits.end, samples["ts_ns"][others]) >= 0])

    def _waits_for_gil(self, track: int) -> TimeSet:
        waits, rows = self._index.trace.waits, self._index.waits.rows(track)
        return TimeSet.of_rows(waits, rows[waits["wait_code"][rows] == WaitOp.GIL])

    @cached_property
    def _of_holders(self) -> RowsBy:
        """Rows of samples by process, -1 of threads that did not hold the GIL."""
        samples = self._index.trace.stack_samples
        holds = (samples["sample_flags"] & StackFlag.HOLDS_GIL) != 0
        return RowsBy(np.where(holds, samples["process_id"], -1))


def exact_calls(spans: Table) -> tuple[LabelledIntervals, Int64]:
    """Return the long calls of a thread, of nested ones the innermost, and the row of ``stack_spans`` of each.

    What a coroutine awaits stands for the calls by which its event loop waits.
    """
    rows = np.flatnonzero(is_one_of(spans["cause_code"], _EXACT) & (spans["end_ns"] > spans["begin_ns"]))
    begin, end, is_awaited = spans["begin_ns"][rows], spans["end_ns"][rows], spans["cause_code"][rows] == _AWAITED
    if is_awaited.any():
        awaited = TimeSet.of(begin[is_awaited], end[is_awaited])
        rows = rows[is_awaited | (awaited.within(begin, end) < end - begin)]
    rows = rows[order_by(spans["begin_ns"][rows], -spans["end_ns"][rows])]
    return innermost(spans["begin_ns"][rows], spans["end_ns"][rows]), rows


def innermost(begin: Int64, end: Int64) -> LabelledIntervals:
    """Return the innermost of nested intervals at each instant, as its row; they are sorted, the outer one first.

    >>> found = innermost(int64([0, 2, 20]), int64([10, 5, 30]))
    >>> found.begin.tolist(), found.end.tolist(), found.tag.tolist()
    ([0, 2, 5, 20], [2, 5, 10, 30], [0, 1, 0, 2])
    """
    depth = np.arange(len(begin)) - np.searchsorted(np.sort(end), begin, side="right")
    none = int64([])
    taken, parts = TimeSet.empty(), [(none, none, none)]
    for level in range(int(depth.max(initial=-1)), -1, -1):
        rows = np.flatnonzero(depth == level)
        # Of two that overlap against the rule, the later one has the time of both.
        stop = np.minimum(end[rows], np.append(begin[rows][1:], NEVER))
        rows, stop = rows[stop > begin[rows]], stop[stop > begin[rows]]
        times = TimeSet(begin[rows], stop)
        first, last, row = (times - taken).pieces(times.begin, times.end)
        parts.append((first, last, rows[row]))
        taken = taken | times
    first, last, row = (int64(np.concatenate(column)) for column in zip(*parts, strict=True))
    order = np.argsort(first, kind="stable")
    return LabelledIntervals(first[order], last[order], row[order])
