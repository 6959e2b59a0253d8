"""Nodes of checkpoints that other threads of a rank write while its steps go on.

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
from stashtrace.analysis.graph.work_graph import EdgeKind, Resource
from stashtrace.analysis.intervals import Int64, TimeSet, int64
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.analysis.steps.threads import StepThread
from stashtrace.schema.groupby import RowsBy
from stashtrace.schema.kinds import Phase, PhaseFlag, StallKind, WaitOp
from stashtrace.schema.trace import Trace, cached_on_trace

#: Calls in which a thread can wait for another one of its process.
_JOINS = (WaitOp.COND_WAIT, WaitOp.MUTEX_LOCK, WaitOp.FUTEX, WaitOp.SEMAPHORE, WaitOp.JOIN)
#: A thread goes on this soon after the end of a save that it waited for: the interpreter's lock changes hands.
_TOGETHER_NS = 5_000_000
#: On a busy machine it goes on later: after this part of the time for which it stood, and no later than this.
_LATER_RATIO, _LATER_NS = 0.1, 50_000_000


@cached_on_trace
def _checkpoints(trace: Trace) -> tuple[Int64, RowsBy]:
    """Return the rows of ``phases`` that are checkpoints, and where those of each process are among them."""
    rows = np.flatnonzero(trace.phases["phase_code"] == Phase.CHECKPOINT)
    return rows, RowsBy(trace.phases["process_id"][rows])


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
        every, by_process = _checkpoints(index.origin)
        rows = every[by_process.rows(thread.process_id)]
        flags, begin, end = (phases[name][rows] for name in ("phase_flags", "begin_ns", "end_ns"))
        chosen = (phases["track_id"][rows] != thread.track_id) | ((flags & int(PhaseFlag.BACKGROUND)) != 0)
        chosen &= ((flags & int(PhaseFlag.NESTED)) == 0) & (end > begin)
        rows = rows[chosen & (begin >= life.begin[0]) & (begin < life.end[-1])]
        if not len(rows):
            return cls(*(none,) * 7)
        rows = rows[np.argsort(phases["begin_ns"][rows], kind="stable")]
        begin, end = phases["begin_ns"][rows], phases["end_ns"][rows]

        waits, own = index.trace.waits, index.waits.rows(thread.track_id)
        own = own[np.isin(waits["wait_code"][own], _JOINS)]
        stood_begin, stood_end = waits["begin_ns"][own], waits["end_ns"][own]
        order = np.argsort(end, kind="stable")
        at = np.searchsorted(end[order], stood_end, side="right") - 1  # the last save that was done by then
        save = order[np.maximum(at, 0)]
        soon = np.clip(_LATER_RATIO * (end[save] - stood_begin), _TOGETHER_NS, _LATER_NS)
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
        queued[after] = idle <= _TOGETHER_NS
        parts.edge(made[before], made[after], EdgeKind.PROGRAM, np.where(queued[after], idle, np.minimum(idle, 0)))
        if nodes is None:
            return
        asked, ended_ns = nodes.last_ended(self.begin_ns)
        parts.edge(np.where(queued, -1, asked), made, EdgeKind.START, self.begin_ns - ended_ns)
        goes_on, _ = nodes.next_begun(self.wait_end_ns)
        parts.edge(made[self.waited], goes_on, EdgeKind.JOIN, self.wait_end_ns - self.end_ns[self.waited])
