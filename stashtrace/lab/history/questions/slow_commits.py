"""Which commit made a job slower: slow_commits, with the statistics of ``check``.

The runs of a job stand in the order in which their commits were first run. They are cut where the mean step differs
most before and after, as long as that is no chance among all places where they could be cut; the two sides of a cut are
then judged as ``check`` judges them, so the growth has bounds, a limit and a kind of time. Runs that a host made
longer, one that ``late_hosts`` names, say nothing of a commit and are left out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from stashtrace.analysis.compare.change import Side
from stashtrace.analysis.compare.cpu_use import CpuUse
from stashtrace.analysis.compare.gate_verdict import Condition, Gate, judge
from stashtrace.analysis.compare.job_identity import FIELDS, Fact
from stashtrace.analysis.compare.steps_of_run import STEP, StepsOfRun
from stashtrace.analysis.intervals import Int64
from stashtrace.calibration.noise import student_tail
from stashtrace.lab.history.gather import number_of
from stashtrace.lab.history.policy import POLICY
from stashtrace.lab.history.questions.late_hosts import slowed_by_host
from stashtrace.lab.history.run_totals import RunTotals
from stashtrace.schema import columns as col
from stashtrace.schema.columns import schema
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.table import Table

SLOW_COMMITS = schema(
    "slow_commits",
    "Commits at which the step of a job changed, the latest first",
    col.word("commit", "the first one with the new step time", role="commit"),
    col.word("before_commit", "the last one with the old step time", title="commit before", role="commit"),
    col.word(
        "verdict", "slower, faster; few: too few runs to rule out chance; hosts: its runs were on other hosts alone"
    ),
    col.word("job", "command, without values that differ from run to run", role="command"),
    col.number("before_count", "runs that were compared, before", title="runs before"),
    col.number("after_count", "and after", title="runs after"),
    col.ns("before_ns", "mean step before", title="step before"),
    col.ns("after_ns", "and after", title="step after"),
    col.real(
        "growth_ratio", "by which it grew, as a part of the step before; negative where it shrank", title="grew by"
    ),
    col.real("low_ratio", "95 % bounds of that, as `check` gives them", title="at least"),
    col.real("high_ratio", "the same", title="at most"),
    col.word(
        "kind",
        "kind of time that changed most; empty if none did beyond its bounds",
        title="what grew most",
        role="kind",
    ),
    col.real("kind_ratio", "its growth, as a part of the step before", title="by"),
    col.real(
        "chance_ratio", "probability of such a difference by chance, times the places and jobs examined", detail=2
    ),
)
#: Growth that is allowed, as by ``check``.
DEFAULT_LIMIT = 5.0


def slow_commits(totals: RunTotals, limit_percent: float = DEFAULT_LIMIT) -> Table:
    """Return the commits at which the step of a job changed by more than a limit, the latest first.

    ``limit_percent``: growth of the step that is allowed.
    """
    commits = totals.history.fact("commit")
    usable = np.flatnonzero((commits != "") & (totals.step_ns > 0) & ~slowed_by_host(totals))
    jobs = [runs for _, at in GroupBy(totals.series[usable]).items() if len(set(commits[(runs := usable[at])])) > 1]
    found = []
    for runs in jobs:
        ordered = _in_order_of_commits(runs, commits, totals.history.begin_ns)
        for cut, begin, end, odds in _cuts(ordered, commits, np.log(totals.step_ns[ordered]), len(jobs)):
            row = _judged(totals, ordered, cut, begin, end, odds, limit_percent)
            if row is not None:
                found.append((int(totals.history.begin_ns[ordered[cut]]), row))
    found.sort(key=lambda pair: -pair[0])
    return Table.from_rows(SLOW_COMMITS, [row for _, row in found])


def _in_order_of_commits(runs: Int64, commits: Any, begin_ns: Int64) -> Int64:
    """Return runs by the first run of their commit, then by their begin."""
    runs = runs[np.argsort(begin_ns[runs], kind="stable")]
    place: dict[str, int] = {}
    order = [place.setdefault(commits[run], len(place)) for run in runs.tolist()]
    return runs[np.argsort(order, kind="stable")]


def _cuts(runs: Int64, commits: Any, level: np.ndarray, jobs_count: int) -> list[tuple[int, int, int, float]]:
    """Return (cut, begin and end of the part that it cuts, chance) of each cut between two commits.

    ``level``: logarithm of the mean step of each run.
    """
    names = commits[runs]
    places = np.flatnonzero(names[1:] != names[:-1]) + 1
    tests_count = max(len(places), 1) * jobs_count
    found: list[tuple[int, float]] = []
    waiting = [(0, len(runs))]
    while waiting:
        begin, end = waiting.pop()
        inside = places[(places >= begin + POLICY.fewest_runs_count) & (places <= end - POLICY.fewest_runs_count)]
        if not len(inside) or end - begin < 2 * POLICY.fewest_runs_count:
            continue
        cut, odds = _largest(level[begin:end], inside - begin)
        odds = min(1.0, odds * tests_count)
        if odds < 1.0:
            found.append((cut + begin, odds))
        if odds < POLICY.cut_chance_ratio:
            waiting += [(begin, cut + begin), (cut + begin, end)]
    cuts = sorted(cut for cut, odds in found if odds < POLICY.cut_chance_ratio)
    out = []
    for cut, odds in sorted(found):
        begin = max((one for one in (0, *cuts) if one < cut), default=0)
        end = min((one for one in (*cuts, len(runs)) if one > cut), default=len(runs))
        out.append((cut, begin, end, odds))
    return out


def _largest(level: np.ndarray, places: Int64) -> tuple[int, float]:
    """Return the place at which the means before and after differ most, and how likely that is by chance."""
    count = len(level)
    sums, squares = np.cumsum(level), np.cumsum(level**2)
    before = places.astype(float)
    after = count - before
    first, second = sums[places - 1] / before, (sums[-1] - sums[places - 1]) / after
    inside = squares[-1] - before * first**2 - after * second**2
    error = np.sqrt(np.maximum(inside, 1e-18) / max(count - 2, 1) * (1 / before + 1 / after))
    t = np.abs(second - first) / error
    best = int(t.argmax())
    return int(places[best]), student_tail(float(t[best]), max(count - 2, 1))


def _judged(
    totals: RunTotals, runs: Int64, cut: int, begin: int, end: int, odds: float, limit_percent: float
) -> tuple[Any, ...] | None:
    """Return the row of a cut; None if ``check`` does not call it worse, nor the other direction."""
    before, after = (
        runs[max(begin, cut - POLICY.compared_runs_count) : cut],
        runs[cut : min(end, cut + POLICY.compared_runs_count)],
    )
    condition = [Condition(STEP, limit_percent)]
    grew = totals.step_ns[after].mean() / totals.step_ns[before].mean()
    if max(grew, 1 / grew) <= 1 + limit_percent / 100:
        return None
    old, new = _side(totals, before, "before"), _side(totals, after, "after")
    gate = judge(old, new, condition)
    slower = gate.verdict == "worse"
    if not slower and judge(new, old, condition).verdict != "worse":
        return None
    commits = totals.history.fact("commit")
    verdict = "few" if odds >= POLICY.cut_chance_ratio else "slower" if slower else "faster"
    if _on_other_hosts(totals, before, after):
        verdict = "hosts"
    step = next(change for change in gate.changes if change.kind == STEP)
    kind, grown = _kind_that_changed(gate)
    whole = step.before_ns
    bounds = step.change_ns / whole, step.low_ns / whole, step.high_ns / whole
    names = commits[after[0]], commits[before[-1]], verdict, totals.jobs[int(after[0])]
    sizes = len(old.runs), len(new.runs)
    return (*names, *sizes, round(step.before_ns), round(step.after_ns), *bounds, kind, grown / whole, odds)


def _on_other_hosts(totals: RunTotals, before: Int64, after: Int64) -> bool:
    """Return whether all runs of one side ran on one set of hosts that no run of the other side used."""
    hosts = totals.history.fact("host_names")
    sets = [{hosts[run] for run in side.tolist()} for side in (before, after)]
    single = [set(",".join(side).split(",")) for side in sets]
    return not single[0] & single[1] and min(map(len, sets)) == 1


def _kind_that_changed(gate: Gate) -> tuple[str, float]:
    """Return the kind whose change is largest in the direction of the step's, beyond its bounds; empty if none is."""
    step = next(change for change in gate.changes if change.kind == STEP)
    kinds = [
        change
        for change in gate.changes
        if change.kind != STEP and (change.low_ns > 0 if step.change_ns > 0 else change.high_ns < 0)
    ]
    if not kinds:
        return "", 0.0
    most = max(kinds, key=lambda change: abs(change.change_ns))
    return most.kind, most.change_ns


def _side(totals: RunTotals, runs: Int64, name: str) -> Side:
    return Side(name, tuple(steps_of_runs(totals, runs.tolist())))


def steps_of_runs(totals: RunTotals, runs: Sequence[int]) -> list[StepsOfRun]:
    """Return runs of a history as ``check`` takes them."""
    history = totals.history
    read = history.series(runs, ("steps",))["steps"]
    steps, kinds = history.section("steps"), history.section("kind")
    of = steps["run"][read.rows]
    out = []
    for run in runs:
        of_run = range(*np.searchsorted(of, (run, run + 1)).tolist())
        times = {str(steps["kind"][read.rows[at]]): read[at] for at in of_run}
        steps_count = max((int(steps["steps_count"][read.rows[at]]) for at in of_run), default=0)
        ranks: dict[int, dict[str, float]] = {}
        rows = slice(*np.searchsorted(kinds["run"], (run, run + 1)).tolist())
        columns = (kinds[name][rows].tolist() for name in ("rank", "kind", "mean_ns"))
        for rank, name, mean_ns in zip(*columns, strict=True):
            ranks.setdefault(rank, {})[name] = float(mean_ns)
        facts: dict[str, Fact] = {field.name: _fact(history.fact(field.name)[run]) for field in FIELDS}
        waits = [number_of(history.fact(name)[run], None) for name in ("cpu_wait_ns", "worker_wait_ns")]
        out.append(
            StepsOfRun(
                history.files[run],
                times,
                steps_count,
                ranks,
                facts,
                cpu_wait_ns=waits[0],
                worker_wait_ns=waits[1],
                recording=history.run_ids[run],
                cpus=_cpus(history.fact("cpus")[run]),
            )
        )
    return out


def _fact(text: str) -> Fact:
    return int(text) if text.isdecimal() and len(text) < 16 else text or None


def _cpus(text: str) -> CpuUse | None:
    try:
        content = json.loads(text)
        return CpuUse(*(float(content[name]) for name in ("wait_ns", "others_count", "stolen_ratio")))
    except (ValueError, TypeError, KeyError):  # a run whose machine was not sampled has none
        return None
