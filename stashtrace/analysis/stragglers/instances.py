"""Collectives as instances over all ranks: entries, last rank, cost of its lateness, and when all ranks were level.

    rank 0   ... k ...|-- k --|-- work --| enter i ....... wait ......|       anchor of i: the last earlier operation k
    rank 1            |--- k ---|---------------- work ------| enter i        of the group that all had entered before
                      ^ all have entered k: nobody can have left it before.   anybody entered i
                        The window that explains i begins here, on each rank

Buckets that are in flight together have one anchor, so that one cause explains them all. The anchor does not require
that all had *left* k: one rank may leave k after another enters i, and the window would then reach back a step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.collectives.matching import process_values
from stashtrace.analysis.intervals import NEVER, Bools, Int64, TimeSet, int64
from stashtrace.analysis.stalls.collective_blocking import in_flight_heads
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.schema.groupby import GroupBy, order_by
from stashtrace.schema.kinds import SYNCHRONISING_OPS, DeviceWork

#: How the last rank is known, by code.
METHODS = ("clock", "duration", "unordered", "partial", "hung")
CLOCK, DURATION, UNORDERED, PARTIAL, HUNG = range(len(METHODS))


@dataclass(frozen=True, slots=True)
class Instances:
    """Rows by instance, then rank; and one entry per instance, by group, then sequence."""

    #: Row of ``index.trace.collectives``.
    row: Int64
    #: The rows grouped by instance.
    each: GroupBy
    #: Of each row. If a rank waits in several operations at a moment, the cost counts it only for the oldest.
    rank: Int64
    enter_ns: Int64
    end_ns: Int64
    wait_ns: Int64
    cost_ns: Int64
    #: Of each row: when all had entered, on this rank's clock; ``NEVER`` if a rank never did.
    level_ns: Int64
    group_hash: npt.NDArray[np.uint64]
    #: -1 if no late rank is known.
    late_rank: Int64
    #: Row (of these) of the late rank, -1 if it has none.
    late_row: Int64
    last_enter_ns: Int64
    longest_wait_ns: Int64
    total_wait_ns: Int64
    method: Int64
    #: Last earlier instance of the same group that all had entered before any rank entered this one, -1 if none.
    anchor: Int64
    #: True if moments of its ranks can be compared; else only lengths of time can.
    by_clock: Bools

    def __len__(self) -> int:
        return len(self.each)

    @property
    def starts(self) -> Int64:
        """First row of each instance."""
        return self.each.first

    def rows_of(self, instance: Int64, rank: Int64) -> Int64:
        """Return the row of each pair; -1 if the rank has no row in the instance."""
        row = GroupBy(self.each.number, self.rank).row_of(instance, rank)
        return np.where(rank >= 0, row, -1)


def instances(index: TraceIndex) -> Instances | None:
    """Return the instances of operations in which no rank can end before all have entered; None if there are none."""
    table, matched = index.trace.collectives, index.in_flight
    rows = np.flatnonzero(np.isin(table["op_code"], SYNCHRONISING_OPS))
    if not len(rows):
        return None
    rows = rows[order_by(table["group_hash"][rows], table["sequence"][rows], table["rank"][rows])]
    group, sequence, rank = (table[n][rows] for n in ("group_hash", "sequence", "rank"))
    each = GroupBy.runs(group, sequence)
    enter, last = index.entered_ns[rows], matched.last_enter_ns[rows]
    alive = process_values(index.trace, table["process_id"][rows], "end_ns")
    end = np.where(matched.end_ns[rows] == NEVER, np.maximum(alive, enter), matched.end_ns[rows])
    entered = np.clip(last, enter, end)
    hung = last == NEVER
    ordered, who = matched.ordered[rows], matched.last_rank[rows]
    waited = ((entered > enter) | hung) & (who != rank)
    wait = np.where(waited, entered - enter, 0)

    late = each.max(np.where(waited & ordered, who, -1))
    by_clock = each.all(matched.by_clock[rows])
    method = np.where(by_clock, CLOCK, DURATION)
    method[each.any(matched.partial[rows])] = PARTIAL
    method[(late < 0) & each.any(waited)] = UNORDERED
    method[each.any(hung)] = HUNG
    cost = _cost(rank, enter, enter + wait)
    level = np.where(hung, NEVER, entered)
    operations = Instances(
        row=rows,
        each=each,
        rank=int64(rank),
        enter_ns=int64(enter),
        end_ns=int64(end),
        wait_ns=int64(wait),
        cost_ns=cost,
        level_ns=int64(level),
        group_hash=each.keys[0],
        late_rank=late,
        late_row=np.full(len(each), -1, dtype=np.int64),
        last_enter_ns=each.max(enter),
        longest_wait_ns=each.max(wait),
        total_wait_ns=each.sum(cost),
        method=method,
        anchor=_anchors(group, rank, each, enter, level),
        by_clock=by_clock,
    )
    operations.late_row[:] = operations.rows_of(np.arange(len(operations)), operations.late_rank)
    known = operations.late_row >= 0
    operations.last_enter_ns[known] = operations.enter_ns[operations.late_row[known]]
    return operations


def _cost(rank: Int64, begin: Int64, end: Int64) -> Int64:
    """Return the wait of each row; a moment of a rank counts once, for the operation that it entered first."""
    out = np.zeros(len(rank), dtype=np.int64)
    waits = np.flatnonzero(end > begin)
    for rows in GroupBy(rank[waits]):
        chosen = waits[rows]
        head_begin, head_end, row = in_flight_heads(begin[chosen], end[chosen])
        out[chosen[row]] = head_end - head_begin  # an operation is the oldest one once
    return out


def _anchors(group: npt.NDArray[np.uint64], rank: Int64, each: GroupBy, enter: Int64, level: Int64) -> Int64:
    """Return the anchor of each instance: the earliest of those found for each rank by its own clock."""
    latest = np.full(len(rank), -1, dtype=np.int64)
    for rows in GroupBy(group, rank):
        at = np.searchsorted(np.maximum.accumulate(level[rows]), enter[rows], side="right") - 1
        at = np.minimum(at, np.arange(len(rows)) - 1)
        latest[rows] = np.where(at >= 0, each.number[rows[at]], -1)
    return each.min(latest)


def launch_skews(index: TraceIndex, operations: Instances) -> Int64:
    """Return the time between the late rank's call and its entry in which its device was idle: the launch delay.

    0 where no device ran the operation, -1 where the other work of the device was not recorded.
    """
    out = np.zeros(len(operations), dtype=np.int64)
    table, kernels = index.trace.collectives, index.trace.kernels
    timed = np.flatnonzero(operations.late_row >= 0)
    rows = operations.row[operations.late_row[timed]]
    timed, rows = timed[index.timed_on_device[rows]], rows[index.timed_on_device[rows]]
    for process, members in GroupBy(table["process_id"][rows]).items():
        work = index.kernels.rows(process)
        work = work[kernels["work_code"][work] != DeviceWork.SYNCHRONIZATION]
        if not len(work):
            out[timed[members]] = -1
            continue
        busy = TimeSet.of_rows(kernels, work)
        enter = index.entered_ns[rows[members]]
        # Before the first rank entered, no rank waited.
        called = np.maximum(table["call_ns"][rows[members]], enter - operations.longest_wait_ns[timed[members]])
        called = np.minimum(called, enter)
        out[timed[members]] = enter - called - busy.within(called, enter)
    return out
