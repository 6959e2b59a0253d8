"""Reads of many runs at once, compared between the checkpoints of other jobs and the time beside them.

A reading is what one run read on one file system. All readings stand in one array, one after the other, so that
thousands of runs take a few operations. Checkpoints of one job that touch are one stretch; the stretches of one job in
one reading are a group.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.intervals import Int64, ranges
from stashtrace.lab.history.run_totals import Floats

#: Reads before and after a checkpoint that are its measure: so many times its own length on either side.
_AROUND = 3
#: Fewer reads than this say nothing of a stretch.
_FEWEST_READS = 5
#: Places at which a stretch could be that are compared in one go: their arrays fit a processor's cache.
_AT_ONCE = 1 << 15
#: Figures of a group that are added up over runs.
SUMMED = (
    *("inside_count", "inside_ns", "around_count", "around_ns"),
    *("steps_count", "lost_ns", "checkpoints_count", "slower_count"),
)


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Checkpoints beside readings: the number of the reading, the job that wrote, and when."""

    of: Int64
    job: Int64
    begin_ns: Int64
    end_ns: Int64


@dataclass(frozen=True, slots=True)
class Readings:
    """Reads over the time of runs, which is cut into equal parts, the first of each reading at ``first``.

    ``counts``, ``spent_ns``, ``steps``: sums up to each part, over all readings: only differences of them mean
    anything.
    """

    begin_ns: Int64
    part_ns: Floats
    parts_count: Int64
    first: Int64
    counts: Int64
    spent_ns: Int64
    steps: Int64

    @classmethod
    def of(cls, begin_ns: Int64, end_ns: Int64, bounds: Int64, series: dict[str, Int64], own: Checkpoints) -> Readings:
        """Take readings from what was counted in each part, without the reads during checkpoints of the same run.

        ``bounds``: of each reading's parts in the series ``reads_count``, ``reads_ns`` and ``steps_count``. ``own``:
        checkpoints of the runs themselves on the same file system.
        """
        count, first = np.diff(bounds), bounds[:-1]
        part_ns = (end_ns - begin_ns) / count
        since, length, last = begin_ns[own.of], part_ns[own.of], count[own.of]
        low = np.clip(np.floor_divide(own.begin_ns - since, length).astype(np.int64), 0, last)
        high = np.clip(-np.floor_divide(since - own.end_ns, length).astype(np.int64), low, last)
        kept = ~_covered(first[own.of] + low, first[own.of] + high, int(bounds[-1]))
        counted = series["reads_count"] * kept, series["reads_ns"] * kept, series["steps_count"]
        return cls(begin_ns, part_ns, count, first, *map(_sums_before, counted))

    def parts(self, checkpoints: Checkpoints) -> tuple[Int64, Int64]:
        """Return the parts that checkpoints cover: those of which they cover half, one at least."""
        of = checkpoints.of
        count, part_ns = self.parts_count[of], self.part_ns[of]
        begin, end = checkpoints.begin_ns - self.begin_ns[of], checkpoints.end_ns - self.begin_ns[of]
        low, high = (np.clip(np.floor(moment / part_ns + 0.5).astype(np.int64), 0, count) for moment in (begin, end))
        middle = np.clip(np.floor((begin + end) / 2 / part_ns), 0, count - 1).astype(np.int64)
        low = np.where(high <= low, middle, low)
        return low, np.maximum(high, low + 1)

    def inside_and_around(self, of: Int64, low: Int64, high: Int64, first: Int64, last: Int64) -> tuple[Int64, ...]:
        """Return count and time of the reads from ``low`` to ``high``, and of those around, from ``first`` to ``last``.

        Times are 0 where there are too few reads to tell.
        """
        place = self.first[of]
        low, high, first, last = low + place, high + place, first + place, last + place
        found = []
        for sums in (self.counts, self.spent_ns):
            inside = sums[high] - sums[low]
            found.append((inside, sums[last] - sums[first] - inside))
        (inside_count, around_count), (inside_ns, around_ns) = found
        return inside_count, inside_ns, around_count, around_ns


@dataclass(frozen=True, slots=True)
class Groups:
    """Stretches of each group, between ``bounds``, that can be compared.

    ``of``, ``job``, ``sums``: reading, job that wrote, and :data:`SUMMED`, by group. ``low``, ``high``, ``slower``:
    parts of a stretch, and by how much reads were slower in it than around, as a logarithm.
    """

    of: Int64
    job: Int64
    sums: Floats
    bounds: Int64
    low: Int64
    high: Int64
    slower: Floats


def compare(reads: Readings, checkpoints: Checkpoints) -> Groups:
    """Compare the reads during the checkpoints of each other job with those around."""
    of, job, low, high = _stretches(reads, checkpoints)
    count = reads.parts_count[of]
    reach = _AROUND * (high - low)
    # Beside a checkpoint may be another one of the same job, which is no measure of it.
    new = _changes(of, job)
    first = np.maximum(low - reach, np.where(new, 0, np.append(0, high[:-1])))
    last = np.minimum(high + reach, np.where(np.append(new[1:], True), count, np.append(low[1:], count[-1:])))
    figures = reads.inside_and_around(of, low, high, first, last)
    known = _known(*figures)
    of, job, low, high = of[known], job[known], low[known], high[known]
    inside_count, inside_ns, around_count, around_ns = (one[known] for one in figures)
    slower = np.log(inside_ns / inside_count) - np.log(around_ns / around_count)
    steps = reads.steps[reads.first[of] + high] - reads.steps[reads.first[of] + low]
    begins = np.flatnonzero(_changes(of, job))
    added = inside_count, inside_ns, around_count, around_ns, steps, np.ones_like(low), slower > 0
    columns = [np.add.reduceat(one.astype(np.float64), begins) for one in (*added, high - low)]
    covered = columns.pop()
    columns.insert(SUMMED.index("lost_ns"), _lost_ns(reads, of[begins], columns[SUMMED.index("steps_count")], covered))
    bounds = np.append(begins, len(of))
    return Groups(of[begins], job[begins], np.stack(columns, axis=1), bounds, low, high, slower)


def _stretches(reads: Readings, checkpoints: Checkpoints) -> tuple[Int64, Int64, Int64, Int64]:
    """Return (reading, job, begin, end) of stretches by group; checkpoints of a group that touch are joined."""
    low, high = reads.parts(checkpoints)
    order = np.lexsort((low, checkpoints.job, checkpoints.of))
    of, job, low, high = checkpoints.of[order], checkpoints.job[order], low[order], high[order]
    # Groups are moved apart, so that the stretches of one end before those of the next begin.
    apart = np.cumsum(_changes(of, job)) * (int(reads.parts_count.max(initial=0)) + 2)
    until = np.maximum.accumulate(high + apart)
    first = np.flatnonzero(np.append(True, (low + apart)[1:] > until[:-1])[: len(low)])
    return of[first], job[first], low[first], np.maximum.reduceat(high, first) if len(first) else high


def _lost_ns(reads: Readings, of: Int64, made: Floats, covered: Floats) -> Floats:
    """Return by how much sooner the steps of covered parts would have been made at the rate of the other parts."""
    count = reads.parts_count[of]
    whole = reads.steps[reads.first[of] + count] - reads.steps[reads.first[of]]
    rate = (whole - made) / np.maximum(count - covered, 1.0)
    sooner = np.maximum(covered - made / np.where(rate > 0, rate, np.inf), 0.0)
    lost: Floats = np.where(rate > 0, sooner * reads.part_ns[of], 0.0)
    return lost


def chances(reads: Readings, groups: Groups, group: Int64, stretch: Int64) -> Floats:
    """Return how often reads are as much slower, in stretches of the same length without a checkpoint of the group.

    ``group``, ``stretch``: numbers of the stretches to rank, by group.
    """
    chosen, place = np.unique(group, return_inverse=True)
    length = groups.high[stretch] - groups.low[stretch]
    longest = int(length.max(initial=0)) + 1
    kinds, kind = np.unique(place * longest + length, return_inverse=True)
    place, length = np.divmod(kinds, longest)
    of = groups.of[chosen]
    first = np.cumsum(reads.parts_count[of]) - reads.parts_count[of]
    covered = _covered_before(groups, chosen, first, int(reads.parts_count[of].sum()))
    of, first = of[place], first[place]
    found = np.empty(len(stretch))
    order = np.argsort(kind, kind="stable")
    for few in _split(np.maximum(reads.parts_count[of] - length + 1, 0)):
        which, slower = _elsewhere(reads, of[few], covered, first[few], length[few])
        bounds = np.searchsorted(which, np.arange(few.stop - few.start + 1))
        own = order[slice(*np.searchsorted(kind[order], (few.start, few.stop)))]
        low, high = bounds[kind[own] - few.start], bounds[kind[own] - few.start + 1]
        above = slower[ranges(low, high)] >= np.repeat(groups.slower[stretch[own]], high - low)
        hits = np.bincount(np.repeat(np.arange(len(own)), high - low)[above], minlength=len(own))
        found[own] = (1 + hits) / (1 + high - low)
    return found


def _covered_before(groups: Groups, chosen: Int64, first: Int64, count: int) -> Int64:
    """Return how many parts have a checkpoint, up to each part; the parts of each chosen group are at ``first``."""
    begins, ends = groups.bounds[chosen], groups.bounds[chosen + 1]
    rows, place = ranges(begins, ends), np.repeat(first, ends - begins)
    return _sums_before(_covered(groups.low[rows] + place, groups.high[rows] + place, count))


def _split(sizes: Int64) -> Iterator[slice]:
    """Yield slices of things whose sizes add up to little."""
    part = np.cumsum(sizes) // _AT_ONCE
    bounds = np.flatnonzero(_changes(part)).tolist()
    for begin, end in zip(bounds, [*bounds[1:], len(sizes)][: len(bounds)], strict=True):
        yield slice(begin, end)


def _elsewhere(reads: Readings, of: Int64, covered: Int64, first: Int64, length: Int64) -> tuple[Int64, Floats]:
    """Return by how much reads were slower in each stretch without a checkpoint than around it, and of what kind it is.

    A kind is a reading, a length and the parts with a checkpoint: ``covered`` up to each, from ``first`` on.
    """
    sizes = np.maximum(reads.parts_count[of] - length + 1, 0)
    low, kind = ranges(np.zeros_like(sizes), sizes), np.repeat(np.arange(len(sizes)), sizes)
    place = first[kind] + low
    free = covered[place + length[kind]] == covered[place]
    low, kind = low[free], kind[free]
    high, reach = low + length[kind], _AROUND * length[kind]
    around = np.maximum(low - reach, 0), np.minimum(high + reach, reads.parts_count[of[kind]])
    figures = reads.inside_and_around(of[kind], low, high, *around)
    known = _known(*figures)
    inside_count, inside_ns, around_count, around_ns = (one[known] for one in figures)
    return kind[known], np.log(inside_ns / inside_count) - np.log(around_ns / around_count)


def _known(inside_count: Int64, inside_ns: Int64, around_count: Int64, around_ns: Int64) -> npt.NDArray[np.bool_]:
    """Return where there are enough reads to compare."""
    enough = (inside_count >= _FEWEST_READS) & (around_count >= _FEWEST_READS)
    known: npt.NDArray[np.bool_] = enough & (inside_ns > 0) & (around_ns > 0)
    return known


def _covered(low: Int64, high: Int64, count: int) -> npt.NDArray[np.bool_]:
    """Return which of so many parts lie in a stretch from low to high."""
    change = np.bincount(low, minlength=count + 1) - np.bincount(high, minlength=count + 1)
    covered: npt.NDArray[np.bool_] = np.cumsum(change[:-1]) > 0
    return covered


def _sums_before(values: npt.NDArray[np.integer] | npt.NDArray[np.bool_]) -> Int64:
    """Return the sum of the values before each one, and of all."""
    sums = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum(values, out=sums[1:])
    return sums


def _changes(*columns: Int64) -> npt.NDArray[np.bool_]:
    """Return which rows are not as the one before; the first is none."""
    new = np.ones(len(columns[0]), dtype=bool)
    new[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    return new
