"""Follow waits to the work that made them: the rank at which a chain of waits ends, and what it did longer there.

    rank 2   |-- work --|...... waits for 1 ......|     rank 1 works as long as rank 2 and waited longer: its waits are
    rank 1   |. waits for 0 ..|-- work --|              followed. Rank 0 did something longer: the wait of rank 2 ends
    rank 0   |-- reads -------|                         there, with that kind of time

A wait is as long as what the late rank did longer than the waiting one since both were level, kind by kind: kinds that
it did shorter cancel others. So equal work of the ranks in between is no cause, whenever they do it.

    rank 1   |-- work --|......... waits for 0 .........|     rank 0 relays what it receives and works little itself.
    rank 0   . waits 1 .|.. waits for 2 ..|-- relays --|      Its waits stand for what the awaited rank did: rank 2
    rank 2   |-- work --|-- reads --------|                   did not work longer than rank 0 waited for rank 1
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.intervals import Int64, int64
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.analysis.steps.threads import StepThread
from stashtrace.analysis.stragglers.causes import BEFORE, CAUSES, Floats, RankTimes, queue_as_work, rank_times
from stashtrace.analysis.stragglers.waits_for_late import Waits, waits_of
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.trace import Trace, cached_on_trace

WAITED = CAUSES.index("straggler")
#: Kind of a root of which nothing is known to have taken longer.
UNKNOWN = len(CAUSES)
#: So many of the longest waits are followed; the others end at the rank that was waited for.
_FOLLOWED = 200_000
#: A chain of waits is followed over so many ranks.
_LINKS = 64
#: Parts of a wait below this are not followed further.
_SMALL_RATIO = 0.01


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
    """Follow the waits of all ranks.

    Raises MissingDataError if no rank has steps.
    """
    index = TraceIndex(trace)
    waits, threads = waits_of(trace)
    followed = np.ones(len(waits), dtype=bool)
    if len(waits) > _FOLLOWED:
        followed[np.argsort(-waits.length, kind="stable")[_FOLLOWED:]] = False
    longer = _longer(index, waits, threads, followed)
    return Roots(waits, longer, *follow(waits, longer))


def _longer(index: TraceIndex, waits: Waits, threads: dict[int, StepThread], followed: npt.NDArray[np.bool_]) -> Floats:
    """Return by how much the late rank of each wait did each kind of time longer, 0 where less or unknown."""
    rows = np.flatnonzero(followed & np.isin(waits.late, list(threads)))
    times: dict[int, RankTimes] = {}

    def spent(whom: Int64, since: Int64, until: Int64) -> Int64:
        """Return the ns of each kind that each rank spent in its window."""
        out = np.zeros((len(whom), len(CAUSES)), dtype=np.int64)
        for rank, own in GroupBy(whom).items():
            if rank not in threads:
                continue
            if rank not in times:
                times[rank] = rank_times(index, threads[rank])
            out[own] = times[rank].within(since[own], until[own])
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

    A late rank that waited longer itself passes on the share that this has in all that it did longer, to its own waits
    since both ranks were level.
    """
    count = len(waits)
    whole = longer_ns.sum(axis=1)
    passes = np.divide(longer_ns[:, WAITED], whole, out=np.zeros(count), where=whole > 0)
    first, last = _ranges(waits, waits.late, waits.late_level, waits.end)
    passes = np.where(last > first, passes, 0.0)
    source, current, part = np.arange(count), np.arange(count), waits.length.astype(np.float64)
    done: list[tuple[Int64, Int64, Floats]] = []
    for _ in range(_LINKS):
        stays = part * (1.0 - passes[current])
        done.append((source, current, stays))
        passed = part - stays
        small = passed <= _SMALL_RATIO * waits.length[source]
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
    many = last - first
    of = np.repeat(np.arange(len(first)), many)
    return of, first[of] + np.arange(len(of)) - np.repeat(np.cumsum(many) - many, many)
