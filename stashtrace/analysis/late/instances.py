"""Collectives as instances over all ranks: who entered when, who was last, what that cost, since when all were level.

    rank 0   ... k ...|-- k --|-- work --| enter i ....... wait ......|       anchor of i: the last earlier operation k
    rank 1            |--- k ---|---------------- work ------| enter i        of the group that all had entered before
                      ^ all have entered k: nobody can have left it before.   anybody entered i
                        The window that explains i begins here, on each rank

Buckets that are in flight together have one anchor, so that one cause explains them all. That all had *left* k would
ask too much: a rank leaves it later than another one enters i, and the window would reach back a step.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.intervals import NEVER, Int64, TimeSet, int64
from stashtrace.analysis.stalls.collectives import in_flight_heads
from stashtrace.analysis.stalls.index import TraceIndex
from stashtrace.groupby import RowsBy, order_by
from stashtrace.schema.kinds import SYNCHRONISING_OPS, DeviceWork

#: How the last rank is known, by code.
METHODS = ("clock", "duration", "unordered", "partial", "hung")
CLOCK, DURATION, UNORDERED, PARTIAL, HUNG = range(len(METHODS))


@dataclass(frozen=True, slots=True)
class Instances:
    """Rows by instance, then rank; and one entry per instance, by group, then sequence.

    Attributes
    ----------
    row, of
        Row of ``index.trace.collectives``, and its instance.
    rank, enter_ns, end_ns, wait_ns, cost_ns
        Of each row; the cost counts a moment in which the rank waits in several operations for the oldest alone.
    starts
        First row of each instance.
    late_row
        Row (of these) of the late rank, -1 if it has none.
    late_rank
        -1 if nobody is known to have been late.
    level_ns
        Of each row: when all had entered, on this rank's clock; ``NEVER`` if somebody never did.
    anchor
        Last earlier instance of the same group that all had entered before anybody entered this one, -1 if none.
    by_clock
        Whether times of its ranks can be compared; else only lengths can.
    """

    row: Int64
    of: Int64
    rank: Int64
    enter_ns: Int64
    end_ns: Int64
    wait_ns: Int64
    cost_ns: Int64
    level_ns: Int64
    starts: Int64
    group_hash: npt.NDArray[np.uint64]
    late_rank: Int64
    late_row: Int64
    last_enter_ns: Int64
    longest_wait_ns: Int64
    total_wait_ns: Int64
    method: Int64
    anchor: Int64
    by_clock: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.starts)

    def rows_of(self, instance: Int64, rank: Int64) -> Int64:
        """Row of each pair, -1 if the rank has none there."""
        width = np.int64(self.rank.max(initial=0)) + 2
        key = self.of * width + self.rank
        wanted = instance * width + np.minimum(rank, width - 1)
        at = np.minimum(np.searchsorted(key, wanted), max(len(key) - 1, 0))
        return int64(np.where((instance >= 0) & (rank >= 0) & (key[at] == wanted), at, -1))


def instances(index: TraceIndex) -> Instances | None:
    """Instances of all operations in which nobody can end before everybody has entered; None if there are none."""
    table, matched = index.trace.collectives, index.in_flight
    rows = np.flatnonzero(np.isin(table["op_code"], SYNCHRONISING_OPS))
    if not len(rows):
        return None
    rows = rows[order_by(table["group_hash"][rows], table["sequence"][rows], table["rank"][rows])]
    group, sequence, rank = (table[n][rows] for n in ("group_hash", "sequence", "rank"))
    new = np.ones(len(rows), dtype=bool)
    new[1:] = (group[1:] != group[:-1]) | (sequence[1:] != sequence[:-1])
    starts, of = np.flatnonzero(new), np.cumsum(new) - 1

    enter, last = index.entered_ns[rows], matched.last_enter_ns[rows]
    lives = dict(zip(*(index.trace.processes[n].tolist() for n in ("process_id", "end_ns")), strict=True))
    owners, inverse = np.unique(table["process_id"][rows], return_inverse=True)
    alive = int64([lives[p] for p in owners.tolist()])[inverse]
    end = np.where(matched.end_ns[rows] == NEVER, np.maximum(alive, enter), matched.end_ns[rows])
    entered = np.clip(last, enter, end)
    hung = last == NEVER
    ordered, who = matched.ordered[rows], matched.last_rank[rows]
    waited = ((entered > enter) | hung) & (who != rank)
    wait = np.where(waited, entered - enter, 0)

    late = np.maximum.reduceat(np.where(waited & ordered, who, -1), starts)
    method = np.full(len(starts), CLOCK, dtype=np.int64)
    by_clock = np.logical_and.reduceat(matched.by_clock[rows], starts)
    method[~by_clock] = DURATION
    method[np.logical_or.reduceat(matched.partial[rows], starts)] = PARTIAL
    method[(late < 0) & np.logical_or.reduceat(waited, starts)] = UNORDERED
    method[np.logical_or.reduceat(hung, starts)] = HUNG
    cost = _cost(rank, enter, enter + wait)
    level = np.where(hung, NEVER, entered)
    found = Instances(
        row=int64(rows),
        of=int64(of),
        rank=int64(rank),
        enter_ns=int64(enter),
        end_ns=int64(end),
        wait_ns=int64(wait),
        cost_ns=cost,
        level_ns=int64(level),
        starts=int64(starts),
        group_hash=group[starts],
        late_rank=int64(late),
        late_row=np.full(len(starts), -1, dtype=np.int64),
        last_enter_ns=int64(np.maximum.reduceat(enter, starts)),
        longest_wait_ns=np.maximum.reduceat(wait, starts),
        total_wait_ns=np.add.reduceat(cost, starts),
        method=method,
        anchor=_anchors(group, rank, int64(of), int64(enter), int64(level)),
        by_clock=by_clock,
    )
    found.late_row[:] = found.rows_of(np.arange(len(found)), found.late_rank)
    known = found.late_row >= 0
    found.last_enter_ns[known] = found.enter_ns[found.late_row[known]]
    return found


def _cost(rank: Int64, begin: Int64, end: Int64) -> Int64:
    """Wait of each row, each moment of a rank counted once, for the operation that it had entered first."""
    out = np.zeros(len(rank), dtype=np.int64)
    waits = np.flatnonzero(end > begin)
    by_rank = RowsBy(rank[waits])
    for value in by_rank.values.tolist():
        own = waits[by_rank.rows(value)]
        head_begin, head_end, row = in_flight_heads(begin[own], end[own])
        np.add.at(out, own[row], head_end - head_begin)
    return out


def _anchors(group: npt.NDArray[np.uint64], rank: Int64, of: Int64, enter: Int64, level: Int64) -> Int64:
    """Anchor of each instance; each rank is asked by its own clock, and the earliest answer holds for all."""
    latest = np.full(len(of), -1, dtype=np.int64)
    order = order_by(group, rank, of)
    new = (group[order][1:] != group[order][:-1]) | (rank[order][1:] != rank[order][:-1])
    bounds = np.append(np.flatnonzero(np.append(True, new)), len(order))
    for begin, stop in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        rows = order[begin:stop]
        at = np.searchsorted(np.maximum.accumulate(level[rows]), enter[rows], side="right") - 1
        at = np.minimum(at, np.arange(len(rows)) - 1)
        latest[rows] = np.where(at >= 0, of[rows[at]], -1)
    starts = np.flatnonzero(np.append(True, of[1:] != of[:-1]))
    return int64(np.minimum.reduceat(latest, starts))


def launch_skews(index: TraceIndex, found: Instances) -> Int64:
    """Time between the late rank's call and its entry in which its device did nothing: the launch was on its way.

    0 where no device ran the operation, -1 where nobody saw what else the device did.
    """
    out = np.zeros(len(found), dtype=np.int64)
    table, kernels = index.trace.collectives, index.trace.kernels
    timed = np.flatnonzero(found.late_row >= 0)
    rows = found.row[found.late_row[timed]]
    timed, rows = timed[index.timed_on_device[rows]], rows[index.timed_on_device[rows]]
    by_process = RowsBy(table["process_id"][rows])
    for process in by_process.values.tolist():
        own = by_process.rows(process)
        work = index.kernels.rows(process)
        work = work[kernels["work_code"][work] != DeviceWork.SYNCHRONIZATION]
        if not len(work):
            out[timed[own]] = -1
            continue
        busy = TimeSet.of_rows(kernels, work)
        enter = index.entered_ns[rows[own]]
        # The part before the first rank entered made nobody wait.
        called = np.maximum(table["call_ns"][rows[own]], enter - found.longest_wait_ns[timed[own]])
        called = np.minimum(called, enter)
        out[timed[own]] = enter - called - busy.within(called, enter)
    return out
