"""Which job slowed which on a file system that both used: interference.

Reads of one job during the checkpoints that another job wrote to the same file system are compared with its reads
shortly before and after. Reads vary anyway, so the reads during a checkpoint are ranked among those of all stretches of
the same length without one, and the ranks of several checkpoints are joined to one probability; two jobs are named if
it is small however many pairs of jobs were examined. The checkpoints of a run are left out of its reads. Runs of a job
that read at the same time see the same storage: then one of them alone has a say in the probability.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.intervals import Floats, Int64, equal_pairs, ranges
from stashtrace.calibration.noise import together
from stashtrace.lab.history.gather import History, Series
from stashtrace.lab.history.policy import POLICY
from stashtrace.lab.history.run_totals import RunTotals
from stashtrace.schema import columns as col
from stashtrace.schema.columns import schema
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.table import Table

INTERFERENCE = schema(
    "interference",
    "Jobs whose reads were slower while another one wrote checkpoints to the same file system, the costliest first",
    col.word("job", "the job whose reads were slower", role="command"),
    col.word("other_job", "the job that wrote; the same one where two of its runs overlapped", role="command"),
    col.word("file_system", "type, and server or device"),
    col.real(
        "slower_ratio",
        "mean read during the checkpoints by that shortly before and after",
        title="times slower",
        role="factor",
    ),
    col.number("steps_count", "steps that the first job made during the checkpoints"),
    col.ns(
        "lost_ns",
        "by how much sooner it would have made them at its rate outside the checkpoints, runs added",
        title="time lost",
    ),
    col.number("runs_count", "runs of the first job that read during checkpoints"),
    col.number("checkpoints_count", "checkpoints that were compared, once for each of these runs"),
    col.number("slower_count", "those during which reads were slower", title="slower during"),
    col.ns("read_ns", "mean read during the checkpoints", title="mean read"),
    col.ns("usual_ns", "mean read shortly before and after", title="mean read before and after"),
    col.real("chance_ratio", "probability by chance, times the pairs of jobs that were examined", detail=2),
)
#: Series that say what a run read.
_SERIES = ("reads_count", "reads_ns", "steps_count")


@dataclass(frozen=True, slots=True)
class _Overlaps:
    """Readings, by run and file system, during which other runs wrote checkpoints.

    ``rows``: of these checkpoints in the history, between ``bounds`` those of each reading.
    """

    run: Int64
    system: Int64
    bounds: Int64
    rows: Int64


@dataclass(slots=True)
class _Ranked:
    """Checkpoints of two jobs on a file system that were ranked: the chance of each, and when the last one ended."""

    chances: list[float] = field(default_factory=list)
    until_ns: float = 0.0


def interference(totals: RunTotals) -> Table:
    """Return the jobs that interfered, the costliest first."""
    history = totals.history
    names, job_of = np.unique(np.array(totals.jobs, dtype=np.str_), return_inverse=True)
    job_of = job_of.reshape(-1).astype(np.int64)
    checkpoints = history.section("checkpoint")
    systems, system_of = np.unique(checkpoints["file_system"].astype(str), return_inverse=True)
    systems, system_of = systems.tolist(), system_of.reshape(-1)
    overlaps = _overlapping(history, systems, system_of)
    keys: list[Int64] = [np.empty((0, 3), dtype=np.int64)]
    sums = [np.empty((0, len(SUMMED)))]
    ranked: dict[tuple[int, ...], _Ranked] = defaultdict(_Ranked)
    for some, series in _read_ahead(history, overlaps):
        chosen, reads = _readings(history, overlaps, some, series, systems, system_of)
        rows = ranges(overlaps.bounds[chosen], overlaps.bounds[chosen + 1])
        of = np.repeat(np.arange(len(chosen)), np.diff(overlaps.bounds)[chosen])
        written = overlaps.rows[rows]
        moments = checkpoints["begin_ns"][written], checkpoints["end_ns"][written]
        groups = compare(reads, Checkpoints(of, job_of[checkpoints["run"][written]], *moments))
        writing = chosen[groups.of]
        keys.append(np.stack([job_of[overlaps.run[writing]], groups.job, overlaps.system[writing]], axis=1))
        sums.append(groups.sums)
        _rank(ranked, [tuple(key) for key in keys[-1].tolist()], reads, groups)
    pairs = GroupBy(*np.concatenate(keys).T)
    whole = dict(zip(SUMMED, pairs.sum(np.concatenate(sums)).T, strict=True))
    read_ns, usual_ns = (whole[f"{side}_ns"] / whole[f"{side}_count"] for side in ("inside", "around"))
    found = []
    for at, (job, other, system) in enumerate(zip(*(column.tolist() for column in pairs.keys), strict=True)):
        listed = ranked[job, other, system].chances
        odds = min(1.0, together(listed) * len(pairs)) if listed else 1.0
        if odds >= POLICY.pair_chance_ratio or read_ns[at] < POLICY.slower_times * usual_ns[at]:
            continue
        pair = str(names[job]), str(names[other]), systems[system]
        cost = round(whole["steps_count"][at]), round(whole["lost_ns"][at])
        counts = int(pairs.sizes[at]), round(whole["checkpoints_count"][at]), round(whole["slower_count"][at])
        slower = float(read_ns[at] / usual_ns[at])
        found.append((*pair, slower, *cost, *counts, round(read_ns[at]), round(usual_ns[at]), odds))
    found.sort(key=lambda row: (-row[5], -row[3]))
    return Table.from_rows(INTERFERENCE, found)


def _overlapping(history: History, systems: Sequence[str], system_of: Int64) -> _Overlaps:
    """Return the readings during which others wrote.

    ``systems``: names of file systems that checkpoints went to, ``system_of``: the number of each checkpoint's.
    """
    reads, checkpoints = history.section("reads_count"), history.section("checkpoint")
    found = []
    for system, name in enumerate(systems):
        rows = np.flatnonzero(system_of == system)
        rows = rows[np.argsort(checkpoints["begin_ns"][rows], kind="stable")]
        begins, ends = checkpoints["begin_ns"][rows], checkpoints["end_ns"][rows]
        of = np.flatnonzero(reads["file_system"] == name)
        first = np.searchsorted(begins, reads["begin_ns"][of] - (ends - begins).max())
        last = np.searchsorted(begins, reads["end_ns"][of])
        last = np.maximum(first, last)
        near, of = ranges(first, last), np.repeat(of, last - first)
        kept = (checkpoints["run"][rows[near]] != reads["run"][of]) & (ends[near] > reads["begin_ns"][of])
        of = of[kept]
        found.append(np.stack([reads["run"][of], np.full(len(of), system), of, rows[near[kept]]]))
    run, system, of, rows = np.concatenate([np.empty((4, 0), dtype=np.int64), *found], axis=1)
    order = np.lexsort((of, system, run))
    readings = GroupBy(run[order], system[order])
    return _Overlaps(readings.keys[0], readings.keys[1], readings.bounds, rows[order])


def _read_ahead(history: History, overlaps: _Overlaps) -> Iterator[tuple[Int64, dict[str, Series]]]:
    """Yield some readings and the series of their runs after the others; the next ones are read meanwhile."""
    runs = np.unique(overlaps.run)
    chunks = [
        runs[begin : begin + POLICY.runs_in_memory_count] for begin in range(0, len(runs), POLICY.runs_in_memory_count)
    ]
    read = partial(history.series, sections=_SERIES)
    with ThreadPoolExecutor(1) as pool:
        ahead = [pool.submit(read, chunk.tolist()) for chunk in chunks[:1]]
        for at, chunk in enumerate(chunks):
            series = ahead.pop().result()
            ahead += [pool.submit(read, following.tolist()) for following in chunks[at + 1 : at + 2]]
            first = np.searchsorted(overlaps.run, chunk[0])
            yield np.arange(first, np.searchsorted(overlaps.run, chunk[-1], side="right")), series


def _readings(
    history: History,
    overlaps: _Overlaps,
    some: Int64,
    series: dict[str, Series],
    systems: Sequence[str],
    system_of: Int64,
) -> tuple[Int64, Readings]:
    """Return those of some readings whose series are whole, and what they hold.

    ``systems``, ``system_of``: as for :func:`_overlapping`.
    """
    number = {name: at for at, name in enumerate(systems)}
    keys = overlaps.run[some] * len(systems) + overlaps.system[some]
    at = np.full((len(series), len(some)), -1)
    for place, (section, one) in zip(at, series.items(), strict=True):
        columns = history.section(section)
        system = np.array([number.get(name, -1) for name in columns["file_system"][one.rows].tolist()], dtype=np.int64)
        key = columns["run"][one.rows] * len(systems) + system
        found = np.minimum(np.searchsorted(keys, key), len(keys) - 1)
        kept = (system >= 0) & (keys[found] == key)
        place[found[kept]] = np.flatnonzero(kept)
    sizes = np.stack([np.diff(one.bounds)[place] for place, one in zip(at, series.values(), strict=True)])
    reads = history.section("reads_count")
    row = series["reads_count"].rows[at[0]]
    begin, end = reads["begin_ns"][row], reads["end_ns"][row]
    whole = np.flatnonzero((at >= 0).all(axis=0) & (sizes == sizes[0]).all(axis=0) & (sizes[0] > 1) & (end > begin))
    chosen, begin, end, at = some[whole], begin[whole], end[whole], at[:, whole]
    values = {
        name: one.values[ranges(one.bounds[place], one.bounds[place + 1])]
        for place, (name, one) in zip(at, series.items(), strict=True)
    }
    bounds = np.cumsum([0, *sizes[0][whole].tolist()])
    return chosen, Readings.counted(begin, end, bounds, values, _own(history, overlaps, chosen, system_of))


def _own(history: History, overlaps: _Overlaps, chosen: Int64, system_of: Int64) -> Checkpoints:
    """Return the checkpoints of the runs of some readings on the same file systems."""
    checkpoints = history.section("checkpoint")
    run = overlaps.run[chosen]
    of, rows = equal_pairs(run, checkpoints["run"])
    kept = system_of[rows] == overlaps.system[chosen[of]]
    rows, of = rows[kept], of[kept]
    return Checkpoints(of, checkpoints["run"][rows], checkpoints["begin_ns"][rows], checkpoints["end_ns"][rows])


def _rank(
    ranked: dict[tuple[int, ...], _Ranked], keys: Sequence[tuple[int, ...]], reads: Readings, groups: Groups
) -> None:
    """Rank the checkpoints of each group, until there are enough of its pair of jobs.

    ``keys``: of the pair of each group in ``ranked``.
    """
    of = np.repeat(groups.of, np.diff(groups.bounds))
    begin, end = ((reads.begin_ns[of] + one * reads.part_ns[of]).tolist() for one in (groups.low, groups.high))
    is_slower = (groups.slower > np.log(POLICY.slower_at_all_times)).tolist()
    bounds = groups.bounds.tolist()
    asked: list[tuple[int, int]] = []
    places: list[tuple[list[float], int]] = []
    for group, key in enumerate(keys):
        pair = ranked[key]
        if len(pair.chances) == POLICY.ranked_checkpoints_count:
            continue
        for stretch in range(bounds[group], bounds[group + 1]):
            if len(pair.chances) == POLICY.ranked_checkpoints_count or begin[stretch] < pair.until_ns:
                continue
            pair.until_ns = end[stretch]
            if is_slower[stretch]:
                asked.append((group, stretch))
                places.append((pair.chances, len(pair.chances)))
            pair.chances.append(1.0)
    numbers = np.array(asked, dtype=np.int64).reshape(-1, 2)
    for (listed, at), chance in zip(places, chances(reads, groups, *numbers.T).tolist(), strict=True):
        listed[at] = chance


#: Figures of a group that are added up over runs.
SUMMED = (
    *("inside_count", "inside_ns", "around_count", "around_ns"),
    *("steps_count", "lost_ns", "checkpoints_count", "slower_count"),
)


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Checkpoints during readings: the number of the reading, the job that wrote, and when."""

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
    def counted(
        cls, begin_ns: Int64, end_ns: Int64, bounds: Int64, series: dict[str, Int64], saves: Checkpoints
    ) -> Readings:
        """Take readings from what was counted in each part, without the reads during checkpoints of the same run.

        ``bounds``: of each reading's parts in the series ``reads_count``, ``reads_ns`` and ``steps_count``. ``saves``:
        checkpoints of the runs themselves on the same file system.
        """
        count, first = np.diff(bounds), bounds[:-1]
        part_ns = (end_ns - begin_ns) / count
        since, length, last = begin_ns[saves.of], part_ns[saves.of], count[saves.of]
        low = np.clip(np.floor_divide(saves.begin_ns - since, length).astype(np.int64), 0, last)
        high = np.clip(-np.floor_divide(since - saves.end_ns, length).astype(np.int64), low, last)
        kept = ~_covered(first[saves.of] + low, first[saves.of] + high, int(bounds[-1]))
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

        Times are 0 where there are too few reads to compare.
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
    reach = POLICY.around_times * (high - low)
    # Next to a checkpoint may be another one of the same job, which is no measure of it.
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
    """Return how often reads are that much slower in stretches of equal length without a checkpoint of the group.

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
        members = order[slice(*np.searchsorted(kind[order], (few.start, few.stop)))]
        low, high = bounds[kind[members] - few.start], bounds[kind[members] - few.start + 1]
        above = slower[ranges(low, high)] >= np.repeat(groups.slower[stretch[members]], high - low)
        hits = np.bincount(np.repeat(np.arange(len(members)), high - low)[above], minlength=len(members))
        found[members] = (1 + hits) / (1 + high - low)
    return found


def _covered_before(groups: Groups, chosen: Int64, first: Int64, count: int) -> Int64:
    """Return how many parts have a checkpoint, up to each part; the parts of each chosen group are at ``first``."""
    begins, ends = groups.bounds[chosen], groups.bounds[chosen + 1]
    rows, place = ranges(begins, ends), np.repeat(first, ends - begins)
    return _sums_before(_covered(groups.low[rows] + place, groups.high[rows] + place, count))


def _split(sizes: Int64) -> Iterator[slice]:
    """Yield slices of things whose sizes add up to little."""
    part = np.cumsum(sizes) // POLICY.places_at_once_count
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
    high, reach = low + length[kind], POLICY.around_times * length[kind]
    around = np.maximum(low - reach, 0), np.minimum(high + reach, reads.parts_count[of[kind]])
    figures = reads.inside_and_around(of[kind], low, high, *around)
    known = _known(*figures)
    inside_count, inside_ns, around_count, around_ns = (one[known] for one in figures)
    return kind[known], np.log(inside_ns / inside_count) - np.log(around_ns / around_count)


def _known(inside_count: Int64, inside_ns: Int64, around_count: Int64, around_ns: Int64) -> npt.NDArray[np.bool_]:
    """Return where there are enough reads to compare."""
    enough = (inside_count >= POLICY.fewest_reads_count) & (around_count >= POLICY.fewest_reads_count)
    known: npt.NDArray[np.bool_] = enough & (inside_ns > 0) & (around_ns > 0)
    return known


def _covered(low: Int64, high: Int64, count: int) -> npt.NDArray[np.bool_]:
    """Return which of this number of parts lie in a stretch from low to high."""
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
