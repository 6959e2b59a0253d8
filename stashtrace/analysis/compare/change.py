"""Change of a time between two jobs, with its bounds.

Each side has one run or several. What the steps of a run say of its mean is a block bootstrap (``resampling``). It
does not say how equal runs differ, by where their ranks were placed or what else the machine did. With three runs on
a side their spread says that, by Student's distribution over the means of runs. With fewer, an allowance is added
to the interval of the steps: :data:`RUN_TO_RUN_RATIO` of the step that was before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np

from stashtrace.analysis.compare.cpu_use import CpuUse
from stashtrace.analysis.compare.job_identity import Fact, common_facts
from stashtrace.analysis.compare.steps_of_run import KINDS, STEP, StepsOfRun, is_same_recording, parts_of
from stashtrace.calibration.noise import FOUR_OF_FIVE, NORMAL, STATISTICS, Floats, Statistic, standard_error, student

#: Two equal runs differ by up to this part of their step beyond what their steps show: ``benchmarks/results/gate.md``.
RUN_TO_RUN_RATIO = 0.02
#: Where an interval comes from.
Source = Literal["steps", "runs", "rounds"]
#: A rank is named for a change if its own is this many times the mean over ranks.
CLEARLY_MORE = 1.25
#: Runs of a side that show how runs differ.
RUNS_THAT_TELL = 3
#: A run of fewer steps says nothing of how steps spread: a verdict needs as many, or several runs on both sides.
LEAST_STEPS = 10


@dataclass(frozen=True, slots=True)
class Side:
    """The runs before a change, or after it."""

    #: What sentences call it.
    name: str
    #: At least one, in the order in which they were made.
    runs: tuple[StepsOfRun, ...]

    @property
    def facts(self) -> dict[str, Fact]:
        """What the runs say of their job."""
        return common_facts([run.facts for run in self.runs])

    @property
    def steps_count(self) -> int:
        """Steps of all runs."""
        return sum(run.steps_count for run in self.runs)

    @property
    def fewest_steps(self) -> int:
        """Steps of the shortest run."""
        return min(run.steps_count for run in self.runs)

    @property
    def tells_spread(self) -> bool:
        """Whether there are enough steps, or enough runs, to show how equal ones differ."""
        return self.fewest_steps >= LEAST_STEPS or len(self.runs) >= RUNS_THAT_TELL

    @property
    def cpu_wait_ns(self) -> float | None:
        """Mean time of a step that ranks waited for a CPU; None if unknown of a run."""
        return _mean([run.cpu_wait_ns for run in self.runs])

    @property
    def worker_wait_ns(self) -> float | None:
        """Mean time of a step that workers waited for a CPU; None if unknown of a run."""
        return _mean([run.worker_wait_ns for run in self.runs])

    @property
    def cpus(self) -> CpuUse | None:
        """Use of the CPUs, mean over the runs; None if unknown of a run."""
        known = [run.cpus for run in self.runs if run.cpus is not None]
        if len(known) < len(self.runs):
            return None
        return CpuUse(*(sum(getattr(one, part.name) for one in known) / len(known) for part in fields(CpuUse)))

    def values(self, kind: str, statistic: Statistic) -> Floats:
        """Statistic of a kind in each run, ns."""
        return np.array([STATISTICS[statistic](run.of(kind)) for run in self.runs], dtype=np.float64)

    def value(self, kind: str, statistic: Statistic) -> float:
        """Mean over the runs of :meth:`values`, ns."""
        return float(self.values(kind, statistic).mean())

    def error(self, kind: str, statistic: Statistic) -> float:
        """Half of the 95 % interval of :meth:`value` by the steps alone, ns; infinite if a run has a single step."""
        halves = []
        for run in self.runs:
            error, degrees = standard_error(run.of(kind), statistic)
            # A kind that never occurs is known to be zero.
            halves.append(0.0 if error == 0 else error * student(degrees))
        return math.sqrt(sum(half**2 for half in halves)) / len(halves)


@dataclass(frozen=True, slots=True)
class Change:
    """A time of a step, before and after."""

    #: ``step``, a kind of stall, or a column of the summary, which sums its kinds.
    kind: str
    #: Statistic over the steps of the mean over ranks; mean over runs.
    before_ns: float
    after_ns: float
    #: 95 % bounds of ``after_ns - before_ns``; infinite where nothing is known of the spread.
    low_ns: float
    high_ns: float
    #: What the steps, or the means of the runs, contribute on either side to the distance of these bounds.
    steps_ns: float
    #: What the run-to-run allowance contributes; 0 where the runs show their spread themselves.
    allowance_ns: float
    #: {"steps", "runs", "rounds"}; Where the interval comes from: the steps of one or two runs a side, the means of
    #: several runs, or the differences of alternating runs.
    source: Source

    @property
    def change_ns(self) -> float:
        """After minus before."""
        return self.after_ns - self.before_ns

    @property
    def detectable_ns(self) -> float:
        """The least true change that such a comparison shows in four of five cases: its bounds then exclude zero."""
        return self.steps_ns * (1 + FOUR_OF_FIVE / NORMAL) + self.allowance_ns


def change_of(
    before: Side,
    after: Side,
    kind: str,
    *,
    statistic: Statistic = "mean",
    allowance_ratio: float = RUN_TO_RUN_RATIO,
    by_turns: bool = False,
) -> Change:
    """Compare one kind of time.

    ``kind``: ``step``, a kind of stall, or a column of the summary, which sums its kinds. ``statistic``: over the steps
    of a run. ``allowance_ratio``: run-to-run allowance between two single runs, as part of the step before.
    ``by_turns``: the runs of both sides alternated, one of each a round, and stand in that order: what slows
    the machine down for a while slows both runs of a round, and cancels.
    """
    if not occurs((before, after), kind):  # what takes no time in either job does not vary
        return Change(kind, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, "steps")
    first, second = before.values(kind, statistic), after.values(kind, statistic)
    counts = len(first), len(second)

    def error_of_steps_ns() -> float:
        return math.hypot(before.error(kind, statistic), after.error(kind, statistic))

    allowance_ns = 0.0
    source: Source = "steps"
    if by_turns and min(counts) >= RUNS_THAT_TELL:
        rounds = min(counts)
        spread = float((second[:rounds] - first[:rounds]).std(ddof=1))
        steps_ns, source = student(rounds - 1) * spread / math.sqrt(rounds), "rounds"
    elif max(counts) >= RUNS_THAT_TELL:
        variance, degrees = variance_of_runs((first, second))
        between_ns = student(degrees) * math.sqrt(variance * sum(1 / count for count in counts))
        # A single run of few steps may be less certain than the runs that show the spread.
        steps_ns, source = max(between_ns, error_of_steps_ns() if min(counts) < RUNS_THAT_TELL else 0.0), "runs"
    else:
        steps_ns = error_of_steps_ns()
        allowance_ns = allowance_ratio * before.value(STEP, statistic) * math.sqrt(sum(1 / c for c in counts) / 2)
    old, new = float(first.mean()), float(second.mean())
    half = steps_ns + allowance_ns
    return Change(kind, old, new, new - old - half, new - old + half, steps_ns, allowance_ns, source)


def variance_of_runs(sides: Sequence[Floats]) -> tuple[float, int]:
    """Return how the means of equal runs spread, by the sides with runs enough to show it, and degrees of freedom."""
    enough = [values for values in sides if len(values) >= RUNS_THAT_TELL]
    degrees = sum(len(values) - 1 for values in enough)
    return sum(float(((values - values.mean()) ** 2).sum()) for values in enough) / max(degrees, 1), degrees


def same_recordings(before: Side, after: Side) -> bool:
    """Return whether each run after a change is also one of those before, so that nothing is said of the change."""
    return all(any(is_same_recording(run, old) for old in before.runs) for run in after.runs)


def occurs(sides: Sequence[Side], kind: str) -> bool:
    """Return whether a run has some of a time: ``step``, a kind, or a column of the summary."""
    return bool(set(parts_of(kind)).intersection(kinds_of(sides)))


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean of values that are all known, else None."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None


def kinds_of(sides: Sequence[Side]) -> list[str]:
    """Return ``step`` and each kind that occurs in a run, in the order of the enumeration."""
    present = {kind for side in sides for run in side.runs for kind in run.kinds}
    return [kind for kind in KINDS if kind in present]
