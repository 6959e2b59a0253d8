"""Time of the step thread between its phases: how much of it ran, by the thread's own clocks at the boundaries.

    ... optimizer ]                gap                 [ forward ...
           end_cpu, end_runqueue         begin_cpu, begin_runqueue
    ran = growth of CPU and run-queue time - what ran inside batch waits;   the rest of the gap was blocked: other

Used by ``host_layers``. Where in the gap it ran is not known: pieces are filled in order, first compute, then other.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.batch_layers import BatchWaits
from stashtrace.analysis.collective_layers import disjoint_rows
from stashtrace.analysis.step_threads import StepThread
from stashtrace.analysis.timeset import Int64, TimeSet, running_before
from stashtrace.analysis.trace_index import Layer, TraceIndex
from stashtrace.model.kinds import PhaseFlag, StallKind

_COMPUTE, _OTHER = StallKind.COMPUTE, StallKind.OTHER


@dataclass(frozen=True, slots=True)
class Gaps:
    """Stretches of the step thread between outermost phases, in order.

    Attributes
    ----------
    ran_ns
        Time on a CPU or waiting for one, at most the length; meaningless where not ``timed``.
    timed, queue_timed
        Whether CPU time, and run-queue time, were known on both sides.
    """

    begin: Int64
    end: Int64
    ran_ns: Int64
    timed: npt.NDArray[np.bool_]
    queue_timed: npt.NDArray[np.bool_]


def outer_phase_rows(index: TraceIndex, thread: StepThread) -> Int64:
    """Rows of the thread's outermost phases, in order."""
    phases = index.trace.phases
    rows = index.phases.rows(thread.track_id)
    rows = rows[(phases["phase_flags"][rows] & (PhaseFlag.BACKGROUND | PhaseFlag.NESTED)) == 0]
    columns = ("begin_ns", "end_ns", "begin_cpu_ns", "end_cpu_ns", "begin_runqueue_ns", "end_runqueue_ns")
    outer: Int64 = rows[disjoint_rows(*(phases[c][rows] for c in columns))]
    return outer


def gaps_between_phases(index: TraceIndex, thread: StepThread, waits: BatchWaits) -> Gaps:
    """Gaps of the thread's life. It began with no CPU time, so the first gap is timed too; the last is not."""
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
    inside = gap >= 0
    loaded = np.zeros(len(begin), dtype=np.int64)
    np.add.at(loaded, gap[inside], waits.ran_ns[inside])
    keep = end > begin
    return Gaps(begin[keep], end[keep], np.maximum(ran - loaded, 0)[keep], timed[keep], queue_timed[keep])


def gap_layers(gaps: Gaps, explained: TimeSet, annotated: TimeSet) -> list[Layer]:
    """Layers compute and other of the gaps; blocked time goes to pieces outside annotations first."""
    every = TimeSet(gaps.begin, gaps.end) - explained
    plain, named = (every - annotated).pieces(gaps.begin, gaps.end), (every & annotated).pieces(gaps.begin, gaps.end)
    plain_ns, named_ns = _per_gap(plain, len(gaps.begin)), _per_gap(named, len(gaps.begin))
    blocked = np.maximum(plain_ns + named_ns - gaps.ran_ns, 0)
    other_ns = np.minimum(blocked, plain_ns)
    cut, _ = _split(plain, plain_ns - other_ns)
    timed, sure = gaps.timed[plain[2]], gaps.queue_timed[plain[2]]
    named_cut, _ = _split(named, named_ns - (blocked - other_ns))
    named_timed = gaps.timed[named[2]]
    named_cut = np.where(named_timed, named_cut, named[1])
    return [
        Layer(_COMPUTE, TimeSet.of(plain[0][timed], cut[timed])),
        Layer(_OTHER, TimeSet.of(cut[timed & sure], plain[1][timed & sure])),
        Layer(_OTHER, TimeSet.of(cut[timed & ~sure], plain[1][timed & ~sure]), (_COMPUTE,)),
        Layer(_COMPUTE, TimeSet.of(plain[0][~timed], plain[1][~timed]), (_OTHER,)),
        Layer(_COMPUTE, TimeSet.of(named[0], named_cut)),
        Layer(_COMPUTE, TimeSet.of(named_cut, named[1]), (_OTHER,)),
    ]


def phase_layers(index: TraceIndex, thread: StepThread, busy: TimeSet, explained: TimeSet) -> list[Layer]:
    """Layers of the phases that compute: what their thread's clocks do not show to have run may be ``other``.

    Off the CPU in a phase, the thread waits for threads that compute with it (OpenMP's, the library's), or for a lock
    that somebody holds: nothing recorded tells which. Without clocks of the thread nothing is known against compute.
    """
    phases, rows = index.trace.phases, outer_phase_rows(index, thread)
    cpu_begin, cpu_end, queue_begin, queue_end = (
        phases[name][rows] for name in ("begin_cpu_ns", "end_cpu_ns", "begin_runqueue_ns", "end_runqueue_ns")
    )
    timed, queue_timed = (cpu_begin >= 0) & (cpu_end >= 0), (queue_begin >= 0) & (queue_end >= 0)
    ran = (cpu_end - cpu_begin + np.where(queue_timed, queue_end - queue_begin, 0))[timed]
    begin, end = phases["begin_ns"][rows[timed]], phases["end_ns"][rows[timed]]
    free = (busy - explained).pieces(begin, end)
    cut, _ = _split(free, np.maximum(ran, 0))
    doubtful = TimeSet.of(cut, free[1])
    return [Layer(_COMPUTE, busy - doubtful), Layer(_COMPUTE, doubtful, (_OTHER,))]


Pieces = tuple[Int64, Int64, Int64]


def _per_gap(pieces: Pieces, count: int) -> Int64:
    total = np.zeros(count, dtype=np.int64)
    np.add.at(total, pieces[2], pieces[1] - pieces[0])
    return total


def _split(pieces: Pieces, budget: Int64) -> tuple[Int64, Int64]:
    """Where each piece changes sides when its gap's budget is spent on the pieces in order, and what was spent."""
    begin, end, gap = pieces
    before = running_before(end - begin, gap)
    spent = np.clip(budget[gap] - before, 0, end - begin)
    return begin + spent, spent
