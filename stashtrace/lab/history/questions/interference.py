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
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from stashtrace.analysis.intervals import Int64
from stashtrace.lab.history.chances import together
from stashtrace.lab.history.run_totals import Floats, RunTotals
from stashtrace.schema import columns as col
from stashtrace.schema.columns import schema
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
#: Reads before and after a checkpoint that are its measure: so many times its own length on either side.
_AROUND = 3
#: Fewer reads than this say nothing of a stretch.
_FEWEST_READS = 5
#: Checkpoints of a pair that are ranked: enough for any certainty; and what is slower by less is no evidence.
_RANKED, _SLOWER_AT_ALL = 24, 1.1
#: Runs whose series are in memory.
_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class _Reads:
    """Reads of one run on one file system; sums up to each part of its time, from 0."""

    begin_ns: int
    part_ns: float
    counts: Floats
    spent_ns: Floats
    steps: Floats

    @property
    def parts_count(self) -> int:
        """Number of parts."""
        return len(self.counts) - 1


#: Figures of a pair that are added up over runs.
_SUMMED = (
    *("inside_count", "inside_ns", "around_count", "around_ns"),
    *("steps_count", "lost_ns", "checkpoints_count", "slower_count"),
)


@dataclass(slots=True)
class _Pair:
    """What is known of two jobs on a file system, added up over runs."""

    sums: Floats = field(default_factory=lambda: np.zeros(len(_SUMMED)))
    runs_count: int = 0
    chances: list[float] = field(default_factory=list)
    #: The last checkpoint that was ranked ended then.
    ranked_until_ns: float = 0.0

    def add(self, sums: Floats, reads: _Reads, low: Int64, high: Int64, excess: Floats) -> None:
        """Add the figures of a run; its checkpoints are ranked until there are enough."""
        self.sums += sums
        self.runs_count += 1
        if len(self.chances) < _RANKED:
            _rank(self, reads, low, high, excess)

    def figures(self) -> dict[str, float]:
        """Return the sums by name."""
        return dict(zip(_SUMMED, self.sums.tolist(), strict=True))


def interference(totals: RunTotals) -> Table:
    """Return the jobs that interfered, the costliest first."""
    history = totals.history
    checkpoints = history.section("checkpoint")
    candidates = _overlapping(history.section("reads_count"), checkpoints)
    jobs = totals.jobs
    job_of = np.unique(np.array(jobs, dtype=np.str_), return_inverse=True)[1].reshape(-1).astype(np.int64)
    own = np.searchsorted(checkpoints["run"], np.arange(len(history) + 1))
    names = dict(zip(job_of.tolist(), jobs, strict=True))
    pairs: dict[tuple[int, int, str], _Pair] = defaultdict(_Pair)
    for read in _read_ahead(totals, sorted(candidates)):
        for run, series in read.items():
            for system, rows in candidates[run].items():
                mine = np.arange(own[run], own[run + 1])
                reads = _reads_of(series, system, checkpoints, mine[checkpoints["name"][mine] == system])
                if reads is None:
                    continue
                others = job_of[checkpoints["run"][rows]]
                for other, sums, ranked in _compared(reads, *_stretches(reads, others, checkpoints, rows)):
                    pairs[int(job_of[run]), other, system].add(sums, reads, *ranked)
    found = []
    for (job, other, system), pair in pairs.items():
        figures = pair.figures()
        read_ns = figures["inside_ns"] / figures["inside_count"]
        usual_ns = figures["around_ns"] / figures["around_count"]
        odds = min(1.0, together(pair.chances) * len(pairs)) if pair.chances else 1.0
        if odds >= _BY_CHANCE or read_ns < _SLOWER * usual_ns:
            continue
        cost = round(figures["steps_count"]), round(figures["lost_ns"])
        counts = pair.runs_count, round(figures["checkpoints_count"]), round(figures["slower_count"])
        row = (
            names[job],
            names[other],
            system,
            read_ns / usual_ns,
            *cost,
            *counts,
            round(read_ns),
            round(usual_ns),
            odds,
        )
        found.append(row)
    found.sort(key=lambda row: (-row[5], -row[3]))
    return Table.from_rows(INTERFERENCE, found)


def _read_ahead(totals: RunTotals, numbers: list[int]) -> Iterator[dict[int, list[dict[str, Any]]]]:
    """Yield the series of some runs after the others; the next ones are read by a thread meanwhile."""
    chunks = [numbers[begin : begin + _AT_ONCE] for begin in range(0, len(numbers), _AT_ONCE)]
    read = partial(totals.history.series, sections=("reads_count", "reads_ns", "steps_count"))
    with ThreadPoolExecutor(1) as pool:
        ahead = [pool.submit(read, chunk) for chunk in chunks[:1]]
        for chunk in [*chunks[1:], []]:
            found = ahead.pop().result() if ahead else {}
            if chunk:
                ahead.append(pool.submit(read, chunk))
            yield found


def _overlapping(reads: dict[str, Any], checkpoints: dict[str, Any]) -> dict[int, dict[str, Int64]]:
    """Return run -> file system -> rows of the checkpoints of other runs there, while the first run read there."""
    found: dict[int, dict[str, Int64]] = {}
    for name in np.unique(checkpoints["name"].astype(str)).tolist():
        rows = np.flatnonzero(checkpoints["name"] == name)
        rows = rows[np.argsort(checkpoints["begin_ns"][rows], kind="stable")]
        begins, runs = checkpoints["begin_ns"][rows], checkpoints["run"][rows]
        longest = int((checkpoints["end_ns"][rows] - begins).max())
        for at in np.flatnonzero(reads["name"] == name).tolist():
            run = int(reads["run"][at])
            first = int(np.searchsorted(begins, reads["begin_ns"][at] - longest))
            last = int(np.searchsorted(begins, reads["end_ns"][at]))
            near = rows[first:last][runs[first:last] != run]
            near = near[checkpoints["end_ns"][near] > reads["begin_ns"][at]]
            if len(near):
                found.setdefault(run, {})[name] = near
    return found


def _reads_of(rows: list[dict[str, Any]], system: str, checkpoints: dict[str, Any], own: Int64) -> _Reads | None:
    """Return the reads of a run on a file system, without those during its own checkpoints; None if they are damaged.

    ``own``: rows of its checkpoints there.
    """
    of_system = {row["section"]: row for row in rows if row["name"] == system}
    if len(of_system) < 3:
        return None
    series = {name: row["values"].astype(np.float64) for name, row in of_system.items()}
    lengths = {len(values) for values in series.values()}
    first = of_system["reads_count"]
    count = lengths.pop()
    if lengths or count < 2 or first["end_ns"] <= first["begin_ns"]:
        return None
    begin, part = int(first["begin_ns"]), (first["end_ns"] - first["begin_ns"]) / count
    kept = np.ones(count)
    for row in own.tolist():
        low, high = (checkpoints[name][row] - begin for name in ("begin_ns", "end_ns"))
        kept[max(int(low // part), 0) : max(int(-(-high // part)), 0)] = 0.0
    parts = series["reads_count"] * kept, series["reads_ns"] * kept, series["steps_count"]
    counts, spent, steps = (np.concatenate([[0.0], np.cumsum(values)]) for values in parts)
    return _Reads(begin, part, counts, spent, steps)


def _stretches(reads: _Reads, others: Int64, checkpoints: dict[str, Any], rows: Int64) -> tuple[Int64, Int64, Int64]:
    """Return (job, begin, end) of the checkpoints in parts of the run's time, by job; those that touch are joined."""
    low, high = _parts(reads, checkpoints["begin_ns"][rows], checkpoints["end_ns"][rows])
    order = np.lexsort((low, others))
    job, low, high = others[order], low[order], high[order]
    apart = job * (reads.parts_count + 2)  # so that the stretches of one job end before those of the next begin
    until = np.maximum.accumulate(high + apart)
    first = np.flatnonzero(np.append(True, (low + apart)[1:] > until[:-1]))
    return job[first], low[first], np.maximum.reduceat(high, first)


def _parts(reads: _Reads, begin_ns: Int64, end_ns: Int64) -> tuple[Int64, Int64]:
    """Return the parts of a run's time that checkpoints cover: those of which they cover half, one at least."""
    count = reads.parts_count
    low, high = (
        np.clip(np.floor((moment - reads.begin_ns) / reads.part_ns + 0.5).astype(np.int64), 0, count)
        for moment in (begin_ns, end_ns)
    )
    middle = np.floor(((begin_ns - reads.begin_ns) + (end_ns - reads.begin_ns)) / 2 / reads.part_ns)
    low = np.where(high <= low, np.clip(middle, 0, count - 1).astype(np.int64), low)
    return low, np.maximum(high, low + 1)


def _compared(
    reads: _Reads, job: Int64, low: Int64, high: Int64
) -> Iterator[tuple[int, Floats, tuple[Int64, Int64, Floats]]]:
    """Yield, for each other job, the sums of :class:`_Pair`, and what is to be ranked: begin, end, how much slower.

    ``job``, ``low``, ``high``: stretches with its checkpoints.
    """
    count = reads.parts_count
    reach = _AROUND * (high - low)
    # Beside a checkpoint may be another one of the same job, which is no measure of it.
    new = np.append(True, job[1:] != job[:-1])
    first = np.maximum(low - reach, np.where(new, 0, np.append(0, high[:-1])))
    last = np.minimum(high + reach, np.where(np.append(new[1:], True), count, np.append(low[1:], count)))
    inside_count, inside_ns, steps = (sums[high] - sums[low] for sums in (reads.counts, reads.spent_ns, reads.steps))
    around_count, around_ns = (
        sums[low] - sums[first] + sums[last] - sums[high] for sums in (reads.counts, reads.spent_ns)
    )
    known = (inside_count >= _FEWEST_READS) & (around_count >= _FEWEST_READS) & (inside_ns > 0) & (around_ns > 0)
    if not known.any():
        return
    job, low, high = job[known], low[known], high[known]
    inside_count, inside_ns, steps = inside_count[known], inside_ns[known], steps[known]
    around_count, around_ns = around_count[known], around_ns[known]
    excess = np.log(inside_ns / inside_count) - np.log(around_ns / around_count)
    begins = np.flatnonzero(np.append(True, job[1:] != job[:-1]))
    covered, made = (np.add.reduceat(one.astype(np.float64), begins) for one in (high - low, steps))
    rate = (reads.steps[-1] - made) / np.maximum(count - covered, 1.0)  # steps in a part without a checkpoint
    sooner = np.maximum(covered - made / np.where(rate > 0, rate, np.inf), 0.0)
    lost_ns = np.where(rate > 0, sooner * reads.part_ns, 0.0)
    ones = np.ones(len(low))
    added = (inside_count, inside_ns, around_count, around_ns, steps, ones, (excess > 0).astype(np.float64))
    sums = [np.add.reduceat(one, begins) for one in added]
    table = np.stack([*sums[:5], lost_ns, *sums[5:]], axis=1)
    ends = np.append(begins[1:], len(low))
    for at, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
        yield int(job[begin]), table[at], (low[begin:end], high[begin:end], excess[begin:end])


def _rank(pair: _Pair, reads: _Reads, low: Int64, high: Int64, excess: Floats) -> None:
    """Rank the reads during checkpoints among those of all stretches of the same length without one."""
    covered: Int64 | None = None
    known: dict[int, Floats] = {}
    for begin, end, above in zip(low.tolist(), high.tolist(), excess.tolist(), strict=True):
        moment_ns = reads.begin_ns + begin * reads.part_ns
        if len(pair.chances) == _RANKED or moment_ns < pair.ranked_until_ns:
            continue
        pair.ranked_until_ns = reads.begin_ns + end * reads.part_ns
        if above <= np.log(_SLOWER_AT_ALL):
            pair.chances.append(1.0)
            continue
        if covered is None:
            busy = np.zeros(reads.parts_count + 1, dtype=np.int64)
            np.add.at(busy, low, 1)
            np.add.at(busy, high, -1)
            covered = np.concatenate([[0], np.cumsum(np.cumsum(busy[:-1]) > 0)])
        if end - begin not in known:
            known[end - begin] = _elsewhere(reads, covered, end - begin)
        others = known[end - begin]
        pair.chances.append((1 + int((others >= above).sum())) / (1 + len(others)))


def _elsewhere(reads: _Reads, covered: Int64, length: int) -> Floats:
    """Return by how much reads were slower in each stretch of a length without a checkpoint than around it.

    ``covered``: parts with a checkpoint, up to each part.
    """
    count = reads.parts_count
    begin = np.arange(max(count - length + 1, 0))
    begin = begin[covered[begin + length] == covered[begin]]
    end = begin + length
    first, last = np.maximum(begin - _AROUND * length, 0), np.minimum(end + _AROUND * length, count)
    inside_count, inside_ns = (sums[end] - sums[begin] for sums in (reads.counts, reads.spent_ns))
    around_count, around_ns = (
        sums[begin] - sums[first] + sums[last] - sums[end] for sums in (reads.counts, reads.spent_ns)
    )
    known = (inside_count >= _FEWEST_READS) & (around_count >= _FEWEST_READS) & (inside_ns > 0) & (around_ns > 0)
    inside, around = inside_ns[known] / inside_count[known], around_ns[known] / around_count[known]
    slower: Floats = np.log(inside) - np.log(around)
    return slower
