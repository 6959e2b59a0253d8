"""Which job slowed which on a file system that both used: interference.

Reads of one job during the checkpoints that another job wrote to the same file system are compared with its reads
shortly before and after. Reads vary anyway, so the reads during a checkpoint are ranked among those of all stretches of
the same length without one, and the ranks of several checkpoints are joined to one probability; two jobs are named if
it is small however many pairs of jobs were looked at. A run's own checkpoints are left out of its reads. Runs of a job
that read at the same time see the same storage: then one of them alone has a say in the probability.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from stashtrace.analysis.intervals import Int64, ranges
from stashtrace.calibration.noise import together
from stashtrace.lab.history.gather import History, Series
from stashtrace.lab.history.questions.reads_beside_checkpoints import (
    SUMMED,
    Checkpoints,
    Groups,
    Readings,
    chances,
    compare,
)
from stashtrace.lab.history.run_totals import RunTotals
from stashtrace.schema import columns as col
from stashtrace.schema.columns import schema
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.table import Table

INTERFERENCE = schema(
    "interference",
    "Jobs whose reads were slower while another one wrote checkpoints to the same file system, the costliest first",
    col.word("job", "the job whose reads were slower"),
    col.word("other_job", "the job that wrote; the same one where two of its runs overlapped"),
    col.word("file_system", "type, and server or device"),
    col.real("slower_ratio", "mean read during the checkpoints by that shortly before and after"),
    col.number("steps_count", "steps that the first job made during the checkpoints"),
    col.ns("lost_ns", "by how much sooner it would have made them at its rate beside the checkpoints, runs added"),
    col.number("runs_count", "runs of the first job that read during checkpoints"),
    col.number("checkpoints_count", "checkpoints that were compared, once for each of these runs"),
    col.number("slower_count", "those during which reads were slower"),
    col.ns("read_ns", "mean read during the checkpoints"),
    col.ns("usual_ns", "mean read shortly before and after"),
    col.real("chance_ratio", "probability by chance, times the pairs of jobs that were looked at"),
)
#: A pair is named if its chance is below the first, and its reads were slower by the second.
_BY_CHANCE, _SLOWER = 0.001, 1.2
#: Checkpoints of a pair that are ranked: enough for any certainty; and what is slower by less is no evidence.
_RANKED, _SLOWER_AT_ALL = 24, 1.1
#: Runs whose series are in memory.
_AT_ONCE = 256


#: Runs whose series are in memory.
_AT_ONCE = 256
#: Series that tell what a run read.
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
    systems, system_of = np.unique(checkpoints["name"].astype(str), return_inverse=True)
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
        own = chosen[groups.of]
        keys.append(np.stack([job_of[overlaps.run[own]], groups.job, overlaps.system[own]], axis=1))
        sums.append(groups.sums)
        _rank(ranked, [tuple(key) for key in keys[-1].tolist()], reads, groups)
    pairs = GroupBy(*np.concatenate(keys).T)
    whole = dict(zip(SUMMED, pairs.sum(np.concatenate(sums)).T, strict=True))
    read_ns, usual_ns = (whole[f"{side}_ns"] / whole[f"{side}_count"] for side in ("inside", "around"))
    found = []
    for at, (job, other, system) in enumerate(zip(*(column.tolist() for column in pairs.keys), strict=True)):
        listed = ranked[job, other, system].chances
        odds = min(1.0, together(listed) * len(pairs)) if listed else 1.0
        if odds >= _BY_CHANCE or read_ns[at] < _SLOWER * usual_ns[at]:
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
        of = np.flatnonzero(reads["name"] == name)
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
    chunks = [runs[begin : begin + _AT_ONCE] for begin in range(0, len(runs), _AT_ONCE)]
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
        system = np.array([number.get(name, -1) for name in columns["name"][one.rows].tolist()], dtype=np.int64)
        own = columns["run"][one.rows] * len(systems) + system
        found = np.minimum(np.searchsorted(keys, own), len(keys) - 1)
        kept = (system >= 0) & (keys[found] == own)
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
    return chosen, Readings.of(begin, end, bounds, values, _own(history, overlaps, chosen, system_of))


def _own(history: History, overlaps: _Overlaps, chosen: Int64, system_of: Int64) -> Checkpoints:
    """Return the checkpoints of the runs of some readings on the same file systems."""
    checkpoints = history.section("checkpoint")
    run = overlaps.run[chosen]
    first, last = (np.searchsorted(checkpoints["run"], run, side=side) for side in ("left", "right"))
    rows, of = ranges(first, last), np.repeat(np.arange(len(chosen)), last - first)
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
    is_slower = (groups.slower > np.log(_SLOWER_AT_ALL)).tolist()
    bounds = groups.bounds.tolist()
    asked: list[tuple[int, int]] = []
    places: list[tuple[list[float], int]] = []
    for group, key in enumerate(keys):
        pair = ranked[key]
        if len(pair.chances) == _RANKED:
            continue
        for stretch in range(bounds[group], bounds[group + 1]):
            if len(pair.chances) == _RANKED or begin[stretch] < pair.until_ns:
                continue
            pair.until_ns = end[stretch]
            if is_slower[stretch]:
                asked.append((group, stretch))
                places.append((pair.chances, len(pair.chances)))
            pair.chances.append(1.0)
    numbers = np.array(asked, dtype=np.int64).reshape(-1, 2)
    for (listed, at), chance in zip(places, chances(reads, groups, *numbers.T).tolist(), strict=True):
        listed[at] = chance
