"""Where in code a thread was: in long calls exactly, else as samples say.

    step thread    [ fetch, a long call ] x   x  [ waits for the GIL   ] x
    other thread                                  x holds it     x holds it

A wait for the GIL is spent in the code of the thread that holds it, as far as samples of that thread say, and a wait
for a lock in that of the thread that ends it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from stashtrace._native import intervals
from stashtrace.analysis.intervals import NEVER, Int64, TimeSet, int64, is_one_of
from stashtrace.analysis.lines.other_threads import OtherThreads
from stashtrace.analysis.lines.user_frames import Places
from stashtrace.analysis.stalls.rows_by_thread import LabelledIntervals, TraceIndex
from stashtrace.schema.groupby import RowsBy, order_by
from stashtrace.schema.kinds import StackCause, StackFlag, WaitOp
from stashtrace.schema.table import Table

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
    holds_gil: npt.NDArray[np.bool_]
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
        rows, own = index.stack_spans.rows(track), index.stack_samples.rows(track)
        calls, call_row = exact_calls(index.trace.stack_spans.take(rows))
        place = self._span_place[rows[call_row[calls.tag]]]
        calls = whole_calls = LabelledIntervals(calls.begin, calls.end, place)
        moment = samples["ts_ns"][own]
        alone = own[intervals.locate(calls.begin, calls.end, moment) < 0]
        waits = self._waits_for_gil(track) & TimeSet(calls.begin, calls.end)
        holders = self._holders(track, own, waits)
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
        own_place = np.append(whole_calls.tag, -1)[intervals.locate(whole_calls.begin, whole_calls.end, at)]
        waiting_place = np.where(own_place == place, -1, own_place)
        return Stays(calls, at, place, waiting_place, holds, moment)

    def _holders(self, track: int, own: Int64, waits: TimeSet) -> Int64:
        """Return the samples of other threads of the process that held the GIL while a thread waited for it."""
        samples = self._index.trace.stack_samples
        if not len(own) or not len(waits):
            return own[:0]
        rows = self._of_holders.rows(int(samples["process_id"][own[0]]))
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
    What a coroutine awaits stands for the calls by which its event loop waits."""
    rows = np.flatnonzero(is_one_of(spans["cause_code"], _EXACT) & (spans["end_ns"] > spans["begin_ns"]))
    begin, end, is_awaited = spans["begin_ns"][rows], spans["end_ns"][rows], spans["cause_code"][rows] == _AWAITED
    if is_awaited.any():
        awaited = TimeSet.of(begin[is_awaited], end[is_awaited])
        rows = rows[is_awaited | (awaited.within(begin, end) < end - begin)]
    rows = rows[order_by(spans["begin_ns"][rows], -spans["end_ns"][rows])]
    return innermost(spans["begin_ns"][rows], spans["end_ns"][rows]), rows


def innermost(begin: Int64, end: Int64) -> LabelledIntervals:
    """Return the innermost of nested intervals at each instant, as its row; they are sorted, the outer one first.

    Examples
    --------
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
        own = TimeSet(begin[rows], stop)
        first, last, row = (own - taken).pieces(own.begin, own.end)
        parts.append((first, last, rows[row]))
        taken = taken | own
    first, last, row = (int64(np.concatenate(column)) for column in zip(*parts, strict=True))
    order = np.argsort(first, kind="stable")
    return LabelledIntervals(first[order], last[order], row[order])
