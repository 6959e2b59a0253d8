"""Where the steps of a rank lie on its device: the host runs ahead, so its own times would cut the wrong work.

    host     | step 0 | step 1 | step 2 |                     boundaries, as for a rank without a device
    mark     m0       m1       m2       m3                    an event on the compute stream, numbered
    device   ..m0===========m1==========m2=========m3         step i = [GPU time of mark i, of mark i + 1)

Of the marks with one number the last counts. A boundary without a mark (validation, a mark that was lost) lies where
the host's lead of the marks around it says. Without marks but with kernels whose launches are known, a boundary lies
where the work launched before it ends.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stashtrace.analysis.intervals import Int64, int64, window_at
from stashtrace.analysis.steps.training_loop import StepColumns
from stashtrace.schema.groupby import GroupBy, RowsBy
from stashtrace.schema.kinds import Bracket, BracketFlag, DeviceClock, DeviceWork
from stashtrace.schema.trace import Trace

_UNTIMED = int(BracketFlag.UNTIMED | BracketFlag.FAILED)
_NEVER_TIMED = int(BracketFlag.CAPTURED | BracketFlag.FAILED)
#: Brackets that have their events whatever the budget is; all others go without in the steps that it leaves out.
_ALWAYS_TIMED = (Bracket.STEP, Bracket.BATCH_WAIT, Bracket.MARK)
_BUDGET_LOSS = "event_budget"


@dataclass(frozen=True, slots=True)
class Marks:
    """Step marks of one process in order: when the host recorded each, when the device reached it."""

    call_ns: Int64
    device_ns: Int64


class DeviceSteps:
    """Marks and kernels of all processes, grouped once."""

    def __init__(self, trace: Trace) -> None:
        brackets = trace.device_brackets
        timed = (brackets["begin_ns"] >= 0) & ((brackets["bracket_flags"] & _UNTIMED) == 0)
        self._marks = brackets.take((brackets["bracket_code"] == Bracket.STEP) & timed)
        self._marks_by = RowsBy(self._marks["process_id"])
        kernels = trace.kernels
        launched = (kernels["launch_ns"] >= 0) & (kernels["work_code"] != DeviceWork.SYNCHRONIZATION)
        self._kernels = kernels.take(launched).sort_by("launch_ns")
        self._kernels_by = RowsBy(self._kernels["process_id"])
        losses = trace.losses
        over = np.unique(losses["process_id"][losses["name_code"] == trace.strings.find(_BUDGET_LOSS)])
        optional = np.isin(brackets["process_id"], over) & ~np.isin(brackets["bracket_code"], _ALWAYS_TIMED)
        self._optional = brackets.take(optional & ((brackets["bracket_flags"] & _NEVER_TIMED) == 0))
        self._optional_by = RowsBy(self._optional["process_id"])

    def marks(self, process_id: int) -> Marks:
        """Marks of a process, the last of each number."""
        table = self._marks.take(self._marks_by.rows(process_id)).sort_by("correlation_id", "call_ns", "begin_ns")
        table = table.take(GroupBy.runs(table["correlation_id"]).last).sort_by("call_ns", "begin_ns")
        return Marks(table["call_ns"], int64(np.maximum.accumulate(table["begin_ns"])))

    def unaided(self, process_id: int) -> StepColumns:
        """Steps by marks alone, in the host's time, for a process that recorded no phases."""
        call = self.marks(process_id).call_ns
        return StepColumns(call[:-1], call[1:], np.full(max(len(call) - 1, 0), "marked"))

    def thinned(self, process_id: int, begin: Int64, end: Int64) -> Int64:
        """1 for each step that the event budget left without events; steps are given as :meth:`on_device` does."""
        table, marks = self._optional.take(self._optional_by.rows(process_id)), self.marks(process_id)
        if not len(table) or not len(marks.call_ns):
            return np.zeros(len(begin), dtype=np.int64)
        # The host decides at a mark; so what it calls behind that mark belongs to the step that begins there.
        before = np.searchsorted(marks.call_ns, table["call_ns"], side="right") - 1
        at = np.where(before >= 0, window_at(marks.device_ns[before], begin, end), -1)
        by_step = GroupBy.numbered(at, len(begin))
        untimed = (table["bracket_flags"] & int(BracketFlag.UNTIMED)) != 0
        return int64(by_step.any(untimed) & ~by_step.any(~untimed))

    def on_device(self, process_id: int, host: StepColumns) -> tuple[Int64, Int64, int]:
        """Begin and end of each step, and the clock they are from: that of the device, or 0 for the host's."""
        if len(host.begin) == 0:
            return host.begin, host.end, 0
        boundary = int64(np.append(host.begin[:1], host.end))
        marks = self.marks(process_id)
        at = _by_marks(boundary, marks)
        if at is not None:
            at = np.maximum.accumulate(at)
            return int64(at[:-1]), int64(at[1:]), int(DeviceClock.EVENT)
        # Recordings of some steps have time between them that belongs to none.
        edges = self._by_kernels(process_id, int64(np.stack([host.begin, host.end], axis=1).reshape(-1)))
        if edges is None:
            return host.begin, host.end, 0
        edges = np.maximum.accumulate(edges)
        return int64(edges[::2]), int64(edges[1::2]), int(DeviceClock.CUPTI)

    def _by_kernels(self, process_id: int, boundary: Int64) -> Int64 | None:
        rows = self._kernels_by.rows(process_id)
        if len(rows) == 0:
            return None
        launch = self._kernels["launch_ns"][rows]
        done = np.maximum.accumulate(self._kernels["end_ns"][rows])
        before = np.searchsorted(launch, boundary) - 1
        return int64(np.where(before >= 0, np.maximum(boundary, done[np.maximum(before, 0)]), boundary))


def _by_marks(boundary: Int64, marks: Marks) -> Int64 | None:
    """Device time of each boundary from the mark nearest to it on the host; None if too few have one."""
    if len(marks.call_ns) < 2:
        return None
    middle = boundary[:-1] + (boundary[1:] - boundary[:-1]) // 2
    nearest = np.searchsorted(middle, marks.call_ns, side="right")
    reach = max(int(np.diff(boundary).max()) // 2, 1)
    near = np.abs(marks.call_ns - boundary[nearest]) <= reach
    at = np.full(len(boundary), -1, dtype=np.int64)
    # Marks inside a step (an iteration of several updates) are farther from its ends than those of the ends.
    rows = np.flatnonzero(near)
    rows = rows[np.argsort(-np.abs(marks.call_ns - boundary[nearest])[rows], kind="stable")]
    at[nearest[rows]] = marks.device_ns[rows]
    known = np.flatnonzero(at >= 0)
    if len(known) < 2 or 2 * len(known) < len(boundary):
        return None
    lead = np.interp(np.arange(len(boundary)), known, (at[known] - boundary[known]).astype(np.float64))
    return np.where(at >= 0, at, boundary + int64(np.rint(lead)))
