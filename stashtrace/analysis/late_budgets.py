"""Time of ranks by kind inside given windows: the stall kinds, with what hides in them taken out by name.

    compute = compute + gc + cpu_contention        other = other + sleep        launch = launch + gc + sleep

Used by ``late``: the late rank's window beside those of the others.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stashtrace._native import intervals
from stashtrace.analysis.gap_layers import outer_phase_rows
from stashtrace.analysis.methods import rank_layers
from stashtrace.analysis.step_threads import StepThread
from stashtrace.analysis.timeset import Int64, TimeSet, int64
from stashtrace.analysis.trace_index import TraceIndex
from stashtrace.model.kinds import SpanKind, StallKind, WaitOp

_STALLS = tuple(StallKind)
#: Kinds of a late rank's time; the first ones are stall kinds. ``before``: its window began later than those of others.
CAUSES = (*(k.name.lower() for k in _STALLS), "gc", "sleep", "cpu_contention", "before")
COMPUTE, OTHER, LAUNCH = (CAUSES.index(name) for name in ("compute", "other", "launch"))
GC, SLEEP, CONTENTION, BEFORE = range(len(_STALLS), len(CAUSES))


@dataclass(frozen=True, slots=True)
class RankTimes:
    """Disjoint times of one rank by cause, and its run-queue time as a curve."""

    thread: StepThread
    sets: tuple[TimeSet, ...]
    queue_at_ns: Int64
    queue_ns: Int64

    def within(self, begin: Int64, end: Int64) -> Int64:
        """Windows x causes."""
        out = np.zeros((len(begin), len(CAUSES)), dtype=np.int64)
        for column, time in enumerate(self.sets):
            if len(time):
                out[:, column] = time.within(begin, end)
        if len(self.queue_at_ns):
            origin = self.queue_at_ns[0]
            edges = [np.interp(x - origin, self.queue_at_ns - origin, self.queue_ns) for x in (begin, end)]
            queued = np.rint(edges[1] - edges[0]).astype(np.int64)
            out[:, CONTENTION] = np.clip(queued, 0, out[:, COMPUTE])
            out[:, COMPUTE] -= out[:, CONTENTION]
        return out


def rank_times(index: TraceIndex, thread: StepThread) -> RankTimes:
    """Times of a rank by cause, over its whole life."""
    made = rank_layers(index, thread)
    begin, end, layer = intervals.paint([(x.time.begin, x.time.end) for x in made.layers])
    kind = np.array([x.kind for x in made.layers], dtype=np.int64)[layer]
    sets = [TimeSet.of(begin[kind == k], end[kind == k]) for k in _STALLS]
    life = TimeSet.of([thread.begin_ns], [thread.end_ns])
    sets[OTHER] = sets[OTHER] | (life - TimeSet.of(begin, end))

    spans, own = index.trace.spans, index.spans.rows(thread.track_id)
    own = own[spans["kind_code"][own] == SpanKind.GC]
    collecting = TimeSet.of(spans["begin_ns"][own], spans["end_ns"][own])
    waits, held = index.trace.waits, index.waits.rows(thread.track_id)
    held = held[waits["wait_code"][held] == WaitOp.SLEEP]
    asleep = TimeSet.of(waits["begin_ns"][held], waits["end_ns"][held])
    on_host = life - TimeSet.united(TimeSet.empty(), *(t for method, t in made.segments if method != "host"))
    # A device computes on while its host collects or sleeps; only where it has run dry is the host to blame.
    of_compute, of_launch = sets[COMPUTE] & on_host & collecting, sets[LAUNCH] & collecting
    slept = (sets[OTHER] & asleep) | ((sets[LAUNCH] & asleep) - collecting)
    sets[COMPUTE], sets[OTHER] = sets[COMPUTE] - of_compute, sets[OTHER] - asleep
    sets[LAUNCH] = sets[LAUNCH] - collecting - asleep

    at, queued = (int64([]), int64([])) if made.segments else _queue(index, thread)
    return RankTimes(thread, (*sets, of_compute | of_launch, slept), at, queued)


def _queue(index: TraceIndex, thread: StepThread) -> tuple[Int64, Int64]:
    """Moments at which the run-queue time of the step thread is known, and that time."""
    phases = index.trace.phases
    rows = outer_phase_rows(index, thread)
    rows = rows[(phases["begin_runqueue_ns"][rows] >= 0) & (phases["end_runqueue_ns"][rows] >= 0)]
    if not len(rows):
        return int64([]), int64([])
    at = np.stack([phases["begin_ns"][rows], phases["end_ns"][rows]], axis=1).ravel()
    queued = np.stack([phases["begin_runqueue_ns"][rows], phases["end_runqueue_ns"][rows]], axis=1).ravel()
    return int64(at), int64(np.maximum.accumulate(queued))


def medians(values: Int64, group: Int64, count: int) -> Int64:
    """Median row by column of the rows of each group; rows of a group stand together. 0 where a group has none."""
    out = np.zeros((count, values.shape[1]), dtype=np.int64)
    if not len(group):
        return out
    starts = np.flatnonzero(np.append(True, group[1:] != group[:-1]))
    sizes = np.diff(np.append(starts, len(group)))
    for column in range(values.shape[1]):
        if values[:, column].any():
            ordered = values[np.lexsort((values[:, column], group)), column]
            low, high = ordered[starts + (sizes - 1) // 2], ordered[starts + sizes // 2]
            out[group[starts], column] = low + (high - low) // 2
    return out
