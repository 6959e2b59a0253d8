"""Number of steps per run, or of runs per side, that would decide an inconclusive comparison.

The growth that was seen is as uncertain as the verdict, so the plan does not rest on it: of equal runs, one pair would
ask for 60 steps and another for 3,000. It rests on the spread of the steps and runs, and on a growth that is to be
separated from the limit: none at all or, where such runs would have shown that already, one nearer to the limit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from stashtrace.analysis.compare.change import RUNS_THAT_TELL, Change, Side
from stashtrace.calibration.noise import FOUR_OF_FIVE, NORMAL, standard_error, student

#: More steps than that many times the present ones are no advice.
_MOST_TIMES = 100
#: Numbers of runs that are advised; more are no advice.
_RUNS = (3, 5, 10, 20, 30)
MOST_RUNS = _RUNS[-1]
#: The growth to be separated from the limit differs from it by the limit itself, and by this part of a step at least.
_LEAST_RATIO = 0.01
#: Or by these parts of that, where it is already known that the growth is near to the limit.
_NEARER = (1 / 2, 1 / 4, 1 / 8)
#: Two equal single runs are within the allowance in 95 of 100 cases: this number of standard deviations of one run.
_ALLOWANCE_IN_SPREADS = NORMAL * math.sqrt(2)
#: What runs of small jobs were seen to spread by counts like this number of runs more: three say little of it.
_PRIOR_DEGREES = 3


@dataclass(frozen=True, slots=True)
class Needs:
    """What would decide a condition in four of five cases, if the growth is as far from the limit as ``told_ns``."""

    #: Steps of each run, on both sides; 0 if more steps would not decide.
    steps_count: int = 0
    #: Runs a side, made by turns, each as long as now; 0 if more runs would not.
    runs_count: int = 0
    #: Growth that is to be separated from the limit.
    told_ns: float = 0.0
    #: Steps and runs spread by too much for any reasonable number of them.
    hidden: bool = False


NO_NEEDS = Needs()


def needs_of(before: Side, after: Side, change: Change, limit_ns: float, step_ns: float, run_ns: float) -> Needs:
    """Return what would decide an inconclusive condition.
    ``change``: of the kind that the condition is about. ``limit_ns``: growth that is allowed. ``step_ns``: the step
    before. ``run_ns``: by how much the means of equal runs differ beyond what their steps show, where too few runs show
    it: their distance in 95 of 100 cases."""
    if not math.isfinite(change.steps_ns):
        return NO_NEEDS
    widest_ns = max(limit_ns, _LEAST_RATIO * step_ns)
    runs_now, distance_ns = min(len(before.runs), len(after.runs)), abs(change.change_ns - limit_ns)
    side = 1 if change.change_ns > limit_ns else -1
    spread_ns = _spread_of_runs(before, after, change, run_ns)
    if change.steps_ns * (1 + FOUR_OF_FIVE / NORMAL) + change.allowance_ns > widest_ns:
        runs_count = _runs(spread_ns, widest_ns, runs_now)
        steps_count = _steps(before, after, change, widest_ns) if change.source == "steps" else 0
        found = bool(steps_count or runs_count)
        return Needs(steps_count, runs_count, limit_ns + side * widest_ns if found else 0.0, not found)
    # These runs would have shown a growth that is this far from the limit: it is nearer.
    for part in _NEARER:
        if distance_ns >= part * widest_ns:
            runs_count = _runs(spread_ns, part * widest_ns, runs_now)
            return Needs(0, runs_count, limit_ns + side * part * widest_ns) if runs_count else NO_NEEDS
    return NO_NEEDS


def runs_without_other_work(before: Side, after: Side) -> Needs:
    """Return the runs by turns that separate a change from other work on the machine."""
    now = min(len(before.runs), len(after.runs))
    return Needs(runs_count=next((runs for runs in _RUNS if runs > max(now, RUNS_THAT_TELL)), 0))


def _steps(before: Side, after: Side, change: Change, margin_ns: float) -> int:
    """Return the steps of each run whose bounds are so near to the growth, 0 if there is no reasonable number."""
    left_ns = margin_ns - change.allowance_ns
    if left_ns <= 0:
        return 0
    one_step = sum(_variance_of_step(side, change.kind) / len(side.runs) for side in (before, after))
    count = one_step * ((NORMAL + FOUR_OF_FIVE) / left_ns) ** 2
    most = _MOST_TIMES * min(before.fewest_steps, after.fewest_steps)
    return _rounded_up(max(count, before.fewest_steps + 1, after.fewest_steps + 1)) if count <= most else 0


def _variance_of_step(side: Side, kind: str) -> float:
    """Variance of the mean of a run, times the number of its steps, mean over the runs of a side."""
    return sum(standard_error(run.of(kind))[0] ** 2 * run.steps_count for run in side.runs) / len(side.runs)


def _runs(spread_ns: float, margin_ns: float, now: int) -> int:
    """Return the rounds whose differences have bounds so near to their mean, 0 if there is no reasonable number."""
    for runs in _RUNS:
        width_ns = (student(runs - 1) + FOUR_OF_FIVE) * spread_ns * math.sqrt(2 / runs)
        if runs > now and runs >= RUNS_THAT_TELL and width_ns <= margin_ns:
            return runs
    return 0


def _spread_of_runs(before: Side, after: Side, change: Change, run_ns: float) -> float:
    """Standard deviation of the mean of one run, ns: as the steps and the runs show it."""
    sides = (before, after)
    of_steps = sum(_variance_of_step(side, change.kind) / side.fewest_steps for side in sides) / 2
    expected = of_steps + (run_ns / _ALLOWANCE_IN_SPREADS) ** 2
    seen, degrees = 0.0, 0
    if change.source == "rounds":
        rounds = min(len(before.runs), len(after.runs))
        degrees = rounds - 1
        seen = (change.steps_ns / student(degrees)) ** 2 * rounds / 2
    elif change.source == "runs":
        for side in sides:
            if len(side.runs) >= RUNS_THAT_TELL:
                values = side.values(change.kind, "mean")
                seen += float(((values - values.mean()) ** 2).sum())
                degrees += len(values) - 1
        seen /= max(degrees, 1)
    return math.sqrt((degrees * seen + _PRIOR_DEGREES * expected) / (degrees + _PRIOR_DEGREES))


def _rounded_up(count: float) -> int:
    """Round up to two significant digits.

    Examples
    --------
    >>> _rounded_up(7.2), _rounded_up(99.5), _rounded_up(431.0)
    (8, 100, 440)
    """
    unit = int(10 ** max(math.floor(math.log10(count)) - 1, 0))
    return math.ceil(count / unit) * unit
