"""Waits of all ranks for late ranks: whom each waited for, in which operation, and since when both had been level.

rank 1 (waits)   | level |-- work --|........ wait ........|      both did the same until ``level``, so what the late
rank 0 (late)    | level |-- work --|-- reads a file ------|      rank did longer since then made it late
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from stashtrace._native import intervals
from stashtrace.analysis.intervals import NEVER, Int64, TimeSet, int64
from stashtrace.analysis.stalls.budget import OUTSIDE_STEPS, rank_layers
from stashtrace.analysis.stalls.collective_blocking import in_flight_heads, own_collectives
from stashtrace.analysis.stalls.device_links import only_within
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.analysis.steps.steps import ranks_and_steps
from stashtrace.analysis.steps.threads import StepThread, threads_without_steps
from stashtrace.schema.groupby import GroupBy, RowsBy
from stashtrace.schema.kinds import SYNCHRONISING_OPS, StallKind
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

#: Of the waits of a rank that the oldest operation in flight does not explain, so many of the longest are looked up.
_SEARCHED = 2_000


@dataclass(frozen=True, slots=True)
class Waits:
    """Straggler time, one entry for each step, awaited rank and moment since when it was late; by rank, then begin."""

    #: Who waited, and for whom; ``late`` is -1 if unknown.
    rank: Int64
    late: Int64
    #: First and last moment; ``length`` is the straggler time between them.
    begin: Int64
    end: Int64
    length: Int64
    #: -1 outside of steps.
    step: Int64
    #: Row of ``index.trace.collectives`` that the rank waited in for longest, -1 if unknown.
    row: Int64
    #: Last moment before the rank entered the operation at which neither was ahead of the other. If there is none, the
    #: begins of their first steps, which may differ.
    level: Int64
    late_level: Int64

    def __len__(self) -> int:
        return len(self.rank)

    def take(self, rows: npt.NDArray[np.integer] | npt.NDArray[np.bool_]) -> Waits:
        """Return some of the waits."""
        return Waits(*(getattr(self, column.name)[rows] for column in fields(self)))


def waits_of(trace: Trace) -> tuple[Waits, dict[int, StepThread]]:
    """Return the waits of all ranks, and the thread of each rank that steps or calls collectives.

    Raises MissingDataError if no rank has steps.
    """
    index = TraceIndex(trace)
    threads: dict[int, StepThread] = {}
    first: dict[int, int] = {}
    parts: list[tuple[Int64, ...]] = []
    for thread, steps in ranks_and_steps(trace, index.steps):
        threads[thread.rank] = thread
        first[thread.rank] = int(steps["begin_ns"].min()) if len(steps) else thread.begin_ns
        parts.append(_of_rank(index, thread, steps))
    if threads:
        for thread in threads_without_steps(trace):
            threads[thread.rank], first[thread.rank] = thread, thread.begin_ns
            parts.append(_of_rank(index, thread, index.steps.take(slice(0))))
    columns = [int64(np.concatenate(column)) for column in zip(*parts, strict=True)] if parts else [int64([])] * 6
    rank, late, begin, end, length, step, row = _join_moments(*columns)
    # What a rank entered before it waited, as the buckets of DDP, it had worked for before: then both were not level.
    entered = np.where(row >= 0, np.append(index.entered_ns, 0)[row], begin)
    before = np.minimum(begin, entered)
    level = np.maximum(_level_by_groups(index, rank, late, before), _level_by_waits(rank, late, before, end))
    began = np.minimum(int64([first[one] for one in rank.tolist()]), begin)
    late_began = int64([first.get(one, -1) for one in late.tolist()])
    late_began = np.where(late_began < 0, began, np.minimum(late_began, end))
    late_level = np.where(level < 0, late_began, level)
    level = np.where(level < 0, began, level)
    waits = Waits(rank, late, begin, end, length, step, row, int64(level), int64(late_level))
    return _join(waits), threads


def _join_moments(rank: Int64, late: Int64, begin: Int64, end: Int64, step: Int64, row: Int64) -> tuple[Int64, ...]:
    """Join the waits of a rank in one operation; return rank, late, begin, end, length, step and row.

    Waits of a moment each, as of a thread that is woken again and again, are one wait of their operation.
    """
    alone = np.where(row >= 0, -1, np.arange(len(row)))
    by_rank = GroupBy.runs(rank).number
    each = GroupBy(by_rank, row, alone, late, step)
    first, since = each.first, each.min(begin)
    order = np.lexsort((since, each.keys[0]))
    columns = (rank[first], late[first], since, each.max(end), each.sum(end - begin), step[first], row[first])
    return tuple(int64(column[order]) for column in columns)


def _join(waits: Waits) -> Waits:
    """Join the waits for one rank since one moment, as in operations that were in flight together: one cause has them.

    The operation is the one in which most time was lost.
    """
    alone = np.where(waits.row >= 0, -1, np.arange(len(waits)))
    each = GroupBy(waits.rank, waits.late, waits.step, waits.level, alone)
    longest = each.argmax(waits.length)
    joined = Waits(
        waits.rank[longest],
        waits.late[longest],
        each.min(waits.begin),
        each.max(waits.end),
        each.sum(waits.length),
        waits.step[longest],
        waits.row[longest],
        waits.level[longest],
        waits.late_level[longest],
    )
    return joined.take(np.lexsort((joined.begin, joined.rank)))


def _of_rank(index: TraceIndex, thread: StepThread, steps: Table) -> tuple[Int64, ...]:
    """Return rank, late, begin, end, step and row of the waits of one rank."""
    made = rank_layers(index, thread)
    waited = made.time_of(StallKind.STRAGGLER)
    known = only_within(made.late, waited)
    bare = waited - TimeSet.of(known.begin, known.end)
    begin, end = np.concatenate([known.begin, bare.begin]), np.concatenate([known.end, bare.end])
    late = np.concatenate([known.tag, np.full(len(bare), -1)])
    order = np.argsort(begin, kind="stable")
    begin, end, late = begin[order], end[order], late[order]

    steps = steps.take(steps["end_ns"] > steps["begin_ns"]).sort_by("begin_ns")
    windows = TimeSet.of(steps["begin_ns"], steps["end_ns"])
    outside = windows.gaps(thread.begin_ns, thread.end_ns)
    edges = np.concatenate([steps["begin_ns"], outside.begin])
    number = np.concatenate([steps["step"], np.full(len(outside), OUTSIDE_STEPS)])
    by_begin = np.argsort(edges, kind="stable")
    stops = np.concatenate([steps["end_ns"], outside.end])[by_begin]
    begin, end, of, window = intervals.join(int64(begin), int64(end), int64(edges[by_begin]), int64(stops))
    late, step = int64(late[of]), int64(number[by_begin][window])

    row = _operations(index, thread, begin, end, late)
    return np.full(len(begin), thread.rank), late, begin, end, step, row


def _operations(index: TraceIndex, thread: StepThread, begin: Int64, end: Int64, late: Int64) -> Int64:
    """Return the row of the operation of each wait: the oldest that the rank had entered and the late rank had not."""
    rows, enter, stop = own_collectives(index, thread)
    matched = index.in_flight
    waited = np.flatnonzero((matched.last_rank[rows] >= 0) & (matched.last_enter_ns[rows] > enter))
    if not len(waited) or not len(begin):
        return np.full(len(begin), -1, dtype=np.int64)
    rows, enter = rows[waited], enter[waited]
    until = np.minimum(matched.last_enter_ns[rows], np.maximum(stop[waited], enter))
    who = matched.last_rank[rows]
    head_begin, head_end, head = in_flight_heads(enter, until)
    at = intervals.locate(head_begin, head_end, begin)
    found = np.where(at >= 0, head[at], -1)
    right = (found >= 0) & (who[found] == late)
    # Where several are awaited at once, another stream's may be the one: it ends with the late rank's arrival.
    other = np.flatnonzero(~right & (late >= 0))
    found[~right] = -1
    for wait in other[np.argsort(begin[other] - end[other], kind="stable")[:_SEARCHED]].tolist():
        fits = np.flatnonzero((who == late[wait]) & (enter <= begin[wait]) & (until >= end[wait]))
        found[wait] = fits[0] if len(fits) else -1
    return np.where(found >= 0, rows[found], -1)


def _level_by_groups(index: TraceIndex, rank: Int64, late: Int64, begin: Int64) -> Int64:
    """Return when both ranks had last entered an operation in which nobody can be done before all have; -1: never."""
    level = np.full(len(rank), -1, dtype=np.int64)
    table, matched = index.trace.collectives, index.in_flight
    rows = np.flatnonzero(np.isin(table["op_code"], SYNCHRONISING_OPS) & (matched.last_enter_ns < NEVER))
    if not len(rows):
        return level
    each = GroupBy(table["group_hash"][rows], table["sequence"][rows])
    entered = each.max(index.entered_ns[rows])[each.number]
    by_group = GroupBy(table["group_hash"][rows])
    levels = {int(value): np.unique(entered[own]) for value, own in by_group.items()}
    members = {int(value): np.unique(table["rank"][rows[own]]) for value, own in by_group.items()}
    pairs = GroupBy(table["rank"][rows], table["group_hash"][rows])
    groups = RowsBy(pairs.keys[0])
    for value, own in GroupBy(rank).items():
        for group in pairs.keys[1][groups.rows(value)].tolist():
            both = own[np.isin(late[own], members[group])]
            at = np.searchsorted(levels[group], begin[both], side="right") - 1
            level[both] = np.maximum(level[both], np.append(levels[group], -1)[at])
    return level


def _level_by_waits(rank: Int64, late: Int64, begin: Int64, end: Int64) -> Int64:
    """Return when one of both ranks had last waited for the other until that came; -1: never."""
    count = len(rank)
    pair = GroupBy(np.minimum(rank, late), np.maximum(rank, late)).number
    pairs, asks = np.tile(pair, 2), np.repeat([False, True], count)
    order = np.lexsort((asks, np.concatenate([end, begin]), pairs))
    ended = np.where(asks[order], -1, np.arange(2 * count))
    latest = np.maximum.accumulate(ended) if count else ended
    known = (latest >= 0) & (pairs[order][latest] == pairs[order])
    moment = np.append(end, -1)[np.where(known, order[latest], count)]
    level = np.full(count, -1, dtype=np.int64)
    level[order[asks[order]] - count] = moment[asks[order]]
    level[late < 0] = -1
    return level
