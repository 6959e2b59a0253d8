"""straggler_roots: the rank at which a chain of waits for late ranks ends, and what it did longer there.

    rank 2   |-- work --|...... waits for 1 ......|     rank 1 works as long as rank 2 and waited longer: its waits are
    rank 1   |. waits for 0 ..|-- work --|              followed. Rank 0 did something longer: the wait of rank 2 ends
    rank 0   |-- reads -------|                         there, with that kind of time

A wait is as long as what the late rank did longer than the waiting one since both were level, that is, since the last
operation that both had entered or since one had waited for the other. Kinds that it did shorter cancel others. So
equal work of the ranks in between is no cause, whenever they do it. Each wait is divided among the roots of its chain.

    rank 1   |-- work --|......... waits for 0 .........|     rank 0 relays what it receives and works little itself.
    rank 0   . waits 1 .|.. waits for 2 ..|-- relays --|      Its waits stand for what the awaited rank did: rank 2
    rank 2   |-- work --|-- reads --------|                   did not work longer than rank 0 waited for rank 1
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from stashtrace._native import intervals
from stashtrace.analysis.intervals import NEVER, Bools, Floats, Int64, TimeSet, int64, ranges
from stashtrace.analysis.stalls.budget import rank_layers, step_windows
from stashtrace.analysis.stalls.collective_blocking import in_flight_heads, own_collectives
from stashtrace.analysis.stalls.device_links import only_within
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.analysis.steps.steps import counted_steps, in_steps, ranks_and_steps, steps
from stashtrace.analysis.steps.threads import StepThread, threads_without_steps
from stashtrace.analysis.stragglers.causes import BEFORE, CAUSES, RankTimes, queue_as_work, rank_times
from stashtrace.analysis.stragglers.policy import POLICY
from stashtrace.schema import columns as col
from stashtrace.schema.groupby import GroupBy, RowsBy
from stashtrace.schema.kinds import SYNCHRONISING_OPS, StallKind
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace, cached_on_trace


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

    def take(self, rows: npt.NDArray[np.integer] | Bools) -> Waits:
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
    for thread, made in ranks_and_steps(trace, index.steps):
        threads[thread.rank] = thread
        first[thread.rank] = int(made["begin_ns"].min()) if len(made) else thread.begin_ns
        parts.append(_of_rank(index, thread, made))
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

    windows, number = step_windows(thread, steps)
    begin, end, of, window = intervals.join(int64(begin), int64(end), windows.begin, windows.end)
    late, step = int64(late[of]), number[window]

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
    for wait in other[np.argsort(begin[other] - end[other], kind="stable")[: POLICY.searched_waits_count]].tolist():
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
    levels = {int(value): np.unique(entered[at_rows]) for value, at_rows in by_group.items()}
    members = {int(value): np.unique(table["rank"][rows[at_rows]]) for value, at_rows in by_group.items()}
    pairs = GroupBy(table["rank"][rows], table["group_hash"][rows])
    groups = RowsBy(pairs.keys[0])
    for value, at_rows in GroupBy(rank).items():
        for group in pairs.keys[1][groups.rows(value)].tolist():
            both = at_rows[np.isin(late[at_rows], members[group])]
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


WAITED = CAUSES.index("straggler")
#: Kind of a root of which nothing is known to have taken longer.
UNKNOWN = len(CAUSES)


@dataclass(frozen=True, slots=True)
class Roots:
    """Waits, and the parts that they fall into by the wait at which their chain ends."""

    waits: Waits
    #: By wait and kind of time (``CAUSES``): what its late rank did longer than the waiting rank since both were level;
    #: 0 where it did less. ``before`` is how much later its records begin.
    longer_ns: Floats
    #: Of each part: the wait that it is part of, and the wait whose late rank passes nothing on.
    source: Int64
    root: Int64
    #: The parts of a wait add up to it.
    part_ns: Floats

    @property
    def root_rank(self) -> Int64:
        """Rank at which the chain of each part ends; -1 if unknown."""
        return self.waits.late[self.root]

    def kinds_ns(self) -> Floats:
        """Divide each part among the kinds of time that the root did longer; the last column is unknown."""
        longer = np.zeros((len(self.waits), len(CAUSES) + 1))
        longer[:, : len(CAUSES)] = self.longer_ns
        longer[:, WAITED] = 0
        whole = longer.sum(axis=1)
        longer[:, UNKNOWN] = np.where(whole > 0, 0.0, 1.0)
        longer /= np.where(whole > 0, whole, 1.0)[:, None]
        return np.asarray(longer[self.root] * self.part_ns[:, None])


@cached_on_trace
def roots_of(trace: Trace) -> Roots:
    """Follow the waits of all ranks. Raises MissingDataError if no rank has steps."""
    index = TraceIndex(trace)
    waits, threads = waits_of(trace)
    followed = np.ones(len(waits), dtype=bool)
    if len(waits) > POLICY.followed_waits_count:
        followed[np.argsort(-waits.length, kind="stable")[POLICY.followed_waits_count :]] = False
    longer = _longer(index, waits, threads, followed)
    return Roots(waits, longer, *follow(waits, longer))


def _longer(index: TraceIndex, waits: Waits, threads: dict[int, StepThread], followed: Bools) -> Floats:
    """Return by how much the late rank of each wait did each kind of time longer, 0 where less or unknown."""
    rows = np.flatnonzero(followed & np.isin(waits.late, list(threads)))
    times: dict[int, RankTimes] = {}

    def spent(whom: Int64, since: Int64, until: Int64) -> Int64:
        """Return the ns of each kind that each rank spent in its window."""
        out = np.zeros((len(whom), len(CAUSES)), dtype=np.int64)
        for rank, members in GroupBy(whom).items():
            if rank not in threads:
                continue
            if rank not in times:
                times[rank] = rank_times(index, threads[rank])
            out[members] = times[rank].within(since[members], until[members])
        return out

    chosen = waits.take(rows)
    late = spent(chosen.late, chosen.late_level, chosen.end).astype(np.float64)
    waiting = spent(chosen.rank, chosen.level, chosen.begin).astype(np.float64)

    # What the waiting rank had waited more stands for what it waited for.
    more = waiting[:, WAITED] - late[:, WAITED]
    asked, at = _each(*_ranges(waits, chosen.rank, chosen.level, chosen.begin))
    kept = (more[asked] > 0) & (waits.late[at] != chosen.late[asked])
    asked, at = asked[kept], at[kept]
    begin = np.maximum(waits.begin[at], chosen.level[asked])
    end = np.maximum(np.minimum(waits.end[at], chosen.begin[asked]), begin)
    awaited = spent(waits.late[at], begin, end)
    instead = np.stack([np.bincount(asked, awaited[:, kind], len(rows)) for kind in range(len(CAUSES))], axis=1)
    whole = instead.sum(axis=1)
    known = whole > 0
    waiting[known, WAITED] -= more[known]
    waiting[known] += instead[known] * (more[known] / whole[known])[:, None]

    longer = np.zeros((len(waits), len(CAUSES)))
    rates = {rank: of.queue_rate for rank, of in times.items()}
    usual = GroupBy(chosen.rank).map(lambda rank: rates.get(rank, 0.0), np.float64)
    longer[rows] = queue_as_work(late - waiting, waiting, usual)
    longer[rows, BEFORE] = (waits.late_level - waits.level)[rows]
    return np.maximum(longer, 0)


def follow(waits: Waits, longer_ns: Floats) -> tuple[Int64, Int64, Floats]:
    """Return source, root and length of the parts of all waits, one link of every chain at a time.

    A late rank that waited longer itself passes on the share that this has in all that it did longer, to its waits
    since both ranks were level.
    """
    count = len(waits)
    whole = longer_ns.sum(axis=1)
    passes = np.divide(longer_ns[:, WAITED], whole, out=np.zeros(count), where=whole > 0)
    first, last = _ranges(waits, waits.late, waits.late_level, waits.end)
    passes = np.where(last > first, passes, 0.0)
    source, current, part = np.arange(count), np.arange(count), waits.length.astype(np.float64)
    done: list[tuple[Int64, Int64, Floats]] = []
    for _ in range(POLICY.links_of_chain_count):
        stays = part * (1.0 - passes[current])
        done.append((source, current, stays))
        passed = part - stays
        small = passed <= POLICY.followed_ratio * waits.length[source]
        done.append((source[small], current[small], passed[small]))
        source, current, passed = source[~small], current[~small], passed[~small]
        if not len(source):
            break
        of, at = _each(first[current], last[current])
        asked = current[of]
        shared = np.minimum(waits.end[at], waits.end[asked]) - np.maximum(waits.begin[at], waits.late_level[asked])
        shared = np.clip(shared, 0, waits.length[at]).astype(np.float64)
        # Errors of clocks can make two ranks seem to wait for each other at once: neither passes that on.
        shared[(waits.late[at] == waits.rank[asked]) & (waits.end[at] > waits.begin[asked])] = 0.0
        total = np.bincount(of, weights=shared, minlength=len(source))
        lost = total <= 0
        done.append((source[lost], current[lost], passed[lost]))
        weight = np.where(total[of] > 0, passed[of] * shared / np.where(total[of] > 0, total[of], 1.0), 0.0)
        kept = weight > 0
        each = GroupBy(source[of][kept], at[kept])
        source, current = (int64(key) for key in each.keys) if len(each) else (int64([]), int64([]))
        part = np.asarray(each.sum(weight[kept]), dtype=np.float64)
    else:
        done.append((source, current, part))
    sources, roots, parts = (np.concatenate(column) for column in zip(*done, strict=True))
    each = GroupBy(sources, roots)
    lengths = each.sum(parts)
    kept = lengths > 0
    return int64(each.keys[0][kept]), int64(each.keys[1][kept]), np.asarray(lengths[kept], dtype=np.float64)


def _ranges(waits: Waits, whom: Int64, since: Int64, until: Int64) -> tuple[Int64, Int64]:
    """Return the first and last row, as a range, of the waits of each rank in its window."""
    first, last = np.zeros(len(whom), dtype=np.int64), np.zeros(len(whom), dtype=np.int64)
    mine = GroupBy.runs(waits.rank)
    bounds = dict(
        zip(mine.values.tolist(), zip(mine.bounds[:-1].tolist(), mine.bounds[1:].tolist(), strict=True), strict=True)
    )
    for rank, rows in GroupBy(whom).items():
        if rank not in bounds:
            continue
        begin, end = bounds[rank]
        ended = np.maximum.accumulate(waits.end[begin:end])
        first[rows] = begin + np.searchsorted(ended, since[rows], side="right")
        last[rows] = begin + np.searchsorted(waits.begin[begin:end], until[rows], side="left")
    return first, np.maximum(first, last)


def _each(first: Int64, last: Int64) -> tuple[Int64, Int64]:
    """Return, for each row of each range, the number of the range and the row."""
    return np.repeat(np.arange(len(first)), last - first), ranges(first, last)


STRAGGLER_ROOTS = col.schema(
    "straggler_roots",
    "Straggler time by the rank at which the chain of waits ends; those of a rank and step sum to its straggler time",
    col.rank("rank", "global rank that waited"),
    col.number("step", "ordinal, -1 outside the steps", missing=-1),
    col.rank("root_rank", "rank whose work made the wait, -1 if unknown", missing=-1),
    col.ns("stall_ns", "straggler time whose chain ends at root_rank"),
    col.ns("direct_ns", "straggler time that root_rank was waited for directly"),
    col.word("cause_kind", "what root_rank did longer in most of it, as in late; unknown if nothing was longer"),
)


def straggler_roots(trace: Trace, *, warmup: bool = False) -> Table:
    """Follow each wait to the rank whose work made it, by rank and step.

    A rank that is late in an operation may have waited for another rank before: ``cause_rank`` of ``stalls`` names the
    first, ``root_rank`` the last of such a chain. A wait is as long as what the late rank did longer than the waiting
    one since both were level: since the last operation that both had entered, or since one of them had waited for the
    other. What it waited longer is followed to its waits, the rest ends at it; so equal work in between is no cause.
    The rows of a rank and step sum to its ``straggler`` time. Columns: table ``straggler_roots`` of
    ``docs/reference/tables.md``.

    Parameters
    ----------
    trace : Trace
        Needs steps and collectives.
    warmup : bool
        Whether all that was recorded has rows, not only the counted steps: the warm-up too, and step -1, the time
        outside of steps.

    Raises
    ------
    MissingDataError
        If no rank has steps.
    """
    found = roots_of(trace)
    waits = found.waits
    if not len(waits):
        return Table.empty(STRAGGLER_ROOTS)
    source = found.source
    count = len(source)
    each = GroupBy(
        np.concatenate([waits.rank[source], waits.rank]),
        np.concatenate([waits.step[source], waits.step]),
        np.concatenate([found.root_rank, waits.late]),
    )
    followed = GroupBy.numbered(each.number[:count], len(each))
    spent = np.asarray(followed.sum(found.part_ns), dtype=np.float64)
    kinds = found.kinds_ns()
    by_kind = np.stack([followed.sum(kinds[:, kind]) for kind in range(kinds.shape[1])], axis=1)
    whole = GroupBy(*each.keys[:2])
    table = Table(
        STRAGGLER_ROOTS,
        {
            **dict(zip(("rank", "step", "root_rank"), each.keys, strict=True)),
            "stall_ns": _whole_ns(spent, whole),
            "direct_ns": GroupBy.numbered(each.number[count:], len(each)).sum(waits.length),
            "cause_kind": np.array([*CAUSES, "unknown"])[np.where(spent > 0, by_kind.argmax(axis=1), UNKNOWN)],
        },
    )
    return table if warmup else table.take(in_steps(table, counted_steps(steps(trace))))


def _whole_ns(spent: Floats, of: GroupBy) -> Int64:
    """Round times so that those of each group sum to their rounded sum: the largest takes the difference."""
    rounded = int64(np.rint(spent))
    largest = of.argmax(spent)
    rounded[largest] += int64(np.rint(of.sum(spent))) - int64(of.sum(rounded))
    return rounded
