"""Decide whether a time grew by more than is allowed: worse, not worse or inconclusive.

A condition ``KIND+N%`` allows the mean of a kind over ranks and steps to grow by N % of the step that was before, and
``step+N%`` the step itself; a column of the summary (``data``) stands for the sum of its kinds. Means, not medians: a
job pays for its rare slow steps too, and the kinds of a step add up.

For an inconclusive comparison, ``needs_of`` says how many steps or runs would decide it. The growth that was seen is as
uncertain as the verdict, so the plan does not rest on it: of equal runs, one pair would ask for 60 steps and another
for 3,000. It rests on the spread of the steps and runs, and on a growth that is to be separated from the limit: none at
all or, where such runs would have shown that already, one nearer to the limit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from stashtrace.analysis.compare.change import (
    RUN_TO_RUN_RATIO,
    RUNS_THAT_TELL,
    Change,
    Side,
    change_of,
    kinds_of,
    occurs,
    same_recordings,
    variance_of_runs,
)
from stashtrace.analysis.compare.cpu_use import OtherWork, added_by_others
from stashtrace.analysis.compare.job_identity import DECIDING, Difference, differences
from stashtrace.analysis.compare.steps_of_run import STEP
from stashtrace.calibration.noise import FOUR_OF_FIVE, NORMAL, standard_error, student
from stashtrace.errors import MissingDataError, UsageError
from stashtrace.schema.stall_kinds import hint_for, id_of_word, words_of

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
    """What would decide a condition in four of five cases, if the growth is as far from the limit as ``growth_ns``."""

    #: Steps of each run, on both sides; 0 if more steps would not decide.
    steps_count: int = 0
    #: Alternating runs a side, each as long as now; 0 if more runs would not.
    runs_count: int = 0
    #: Growth that is to be separated from the limit.
    growth_ns: float = 0.0
    #: Steps and runs spread by too much for any reasonable number of them.
    hidden: bool = False


NO_NEEDS = Needs()


def needs_of(before: Side, after: Side, change: Change, limit_ns: float, step_ns: float, run_ns: float) -> Needs:
    """Return what would decide an inconclusive condition.

    ``change``: of the kind that the condition is about. ``limit_ns``: growth that is allowed. ``step_ns``: the step
    before. ``run_ns``: by how much the means of equal runs differ beyond what their steps show, where too few runs show
    it: their distance in 95 of 100 cases.
    """
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
    """Return the alternating runs that separate a change from other work on the machine."""
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
        seen, degrees = variance_of_runs([side.values(change.kind, "mean") for side in sides])
    return math.sqrt((degrees * seen + _PRIOR_DEGREES * expected) / (degrees + _PRIOR_DEGREES))


def _rounded_up(count: float) -> int:
    """Round up to two significant digits.

    >>> _rounded_up(7.2), _rounded_up(99.5), _rounded_up(431.0)
    (8, 100, 440)
    """
    unit = int(10 ** max(math.floor(math.log10(count)) - 1, 0))
    return math.ceil(count / unit) * unit


#: What is judged if nothing is asked for: above the run-to-run allowance, so that equal runs can pass.
DEFAULT_CONDITION = "step+5%"
Verdict = Literal["worse", "not worse", "inconclusive", "not comparable"]
#: Exit codes; see docs/reference/exit-codes.md.
EXIT_CODES: Mapping[Verdict, int] = {"not worse": 0, "worse": 1, "not comparable": 4, "inconclusive": 5}

_CONDITION = re.compile(r"\s*([a-z0-9_][a-z0-9_: -]*?)\s*\+\s*(\d{1,4}(?:\.\d{1,4})?)\s*%\s*")


@dataclass(frozen=True, slots=True)
class Condition:
    """Growth of a kind that is allowed."""

    #: ``step``, the id of a kind of stall, or a column of the summary, which sums its kinds.
    kind: str
    #: Of the step before.
    percent: float

    @classmethod
    def of(cls, text: str) -> Condition:
        """Read ``KIND+N%``.

        Raises UsageError if it is not of that form, or there is no such kind or column.

        >>> Condition.of("network+2.5%")
        Condition(kind='network', percent=2.5)
        >>> Condition.of("data: hand-off + 2%")
        Condition(kind='handoff', percent=2.0)
        """
        match = _CONDITION.fullmatch(text.lower())
        if match is None:
            raise UsageError(f"--fail-if {text} is not of the form KIND+N%", hint="for example --fail-if step+5%")
        kind = STEP if match[1] == STEP else id_of_word(match[1])
        if not kind:
            raise UsageError(f"--fail-if {text}: unknown kind '{match[1]}'", hint=hint_for(match[1], more=[STEP]))
        return cls(kind, float(match[2]))

    @property
    def words(self) -> str:
        """The condition in the words of the summary, which can be typed too."""
        return f"{words_of(self.kind)}+{self.percent:g}%"

    def __str__(self) -> str:
        return f"{self.kind}+{self.percent:g}%"


@dataclass(frozen=True, slots=True)
class Judged:
    """A condition with its verdict."""

    condition: Condition
    change: Change
    #: Growth that is allowed.
    limit_ns: float
    #: {"worse", "not worse", "inconclusive"}; Worse if even the lower bound of the growth is above the limit, not worse
    #: if the upper bound is not. Inconclusive also if it would not be the same without what other work on the machine
    #: can have added, or if a run has too few steps.
    verdict: Verdict
    #: Of an inconclusive one.
    needs: Needs = NO_NEEDS
    #: What other work can have added, where that alone makes a verdict inconclusive.
    other_work: OtherWork | None = None
    #: Steps of the shortest run, where they are too few for a verdict, else 0.
    few_steps: int = 0
    #: int, float; Rank whose mean grew most, and by how much; -1 and 0 where the ranks are not known on both sides.
    rank: int = -1
    rank_growth_ns: float = 0.0

    @property
    def detectable_ns(self) -> float:
        """Smallest true growth that such a comparison calls worse in four of five cases."""
        return self.limit_ns + self.change.detectable_ns


@dataclass(frozen=True, slots=True)
class Gate:
    """What a comparison of two jobs found."""

    before: Side
    after: Side
    #: Fields of the jobs.
    differs: tuple[Difference, ...]
    #: Those that make them incomparable.
    refused: tuple[Difference, ...]
    #: One per condition; none if the jobs are not comparable.
    judged: tuple[Judged, ...] = ()
    #: The step and every kind.
    changes: tuple[Change, ...] = ()
    #: Run-to-run allowance that was asked for, as part of the step before.
    allowance_ratio: float = RUN_TO_RUN_RATIO
    #: Each run after the change is also one of those before it: their growth says nothing.
    is_same: bool = False

    @property
    def verdict(self) -> Verdict:
        """Worse if any condition is; not worse only if all are. A recording compared with itself decides nothing."""
        if self.refused:
            return "not comparable"
        if self.is_same:
            return "inconclusive"
        verdicts = {one.verdict for one in self.judged}
        return "worse" if "worse" in verdicts else "inconclusive" if "inconclusive" in verdicts else "not worse"

    @property
    def queued_handoff_ns(self) -> float:
        """What waits for a CPU grew by, where that may be most of what the hand-off of batches grew by; else 0."""
        change = next((one for one in self.changes if one.kind == "handoff"), None)
        if change is None or change.low_ns <= 0:
            return 0.0
        waits_ns = _waits_grew_ns(self.before, self.after)
        return waits_ns if 2 * waits_ns >= change.change_ns else 0.0

    @property
    def exit_code(self) -> int:
        """Exit code of the verdict."""
        return EXIT_CODES[self.verdict]


def judge(
    before: Side,
    after: Side,
    conditions: Sequence[Condition],
    *,
    allowed: Sequence[str] = (),
    allowance_ratio: float = RUN_TO_RUN_RATIO,
    by_turns: bool = False,
) -> Gate:
    """Compare two jobs, and judge the conditions unless the jobs cannot be compared.

    ``allowed``: fields of :data:`stashtrace.analysis.compare.job_identity.DECIDING` that may differ.
    ``allowance_ratio``, ``by_turns``: as in :func:`stashtrace.analysis.compare.change.change_of`. Raises
    MissingDataError if the steps before have no length.
    """
    differs = tuple(differences(before.facts, after.facts))
    refused = tuple(
        one for one in differs if one.is_known and one.field.name in DECIDING and one.field.name not in allowed
    )
    if refused:
        return Gate(before, after, differs, refused, allowance_ratio=allowance_ratio)
    kinds = dict.fromkeys([*kinds_of((before, after)), *(condition.kind for condition in conditions)])
    changes = {
        kind: change_of(before, after, kind, allowance_ratio=allowance_ratio, by_turns=by_turns) for kind in kinds
    }
    step_ns = changes[STEP].before_ns
    if step_ns <= 0:
        raise MissingDataError(
            "the steps before have no length, and growth is judged as a part of them",
            hint="`stashtrace analyze steps` shows when each began and ended",
        )
    # In alternating runs, what slows the machine down slows both sides.
    other = OtherWork() if by_turns else other_work(before, after)
    run_ns = allowance_ratio * step_ns
    judged = tuple(
        _judge(before, after, condition, changes[condition.kind], step_ns, other, run_ns) for condition in conditions
    )
    is_same = same_recordings(before, after)
    if is_same:
        judged = tuple(replace(one, verdict="inconclusive", needs=NO_NEEDS, other_work=None) for one in judged)
    return Gate(before, after, differs, (), judged, tuple(changes.values()), allowance_ratio, is_same)


def other_work(before: Side, after: Side) -> OtherWork:
    """Return what other work on the machine can have added to the step after.

    Where a recording does not show how much CPU time went to others, it may be all that waits for a CPU grew by.
    """
    if before.cpus is not None and after.cpus is not None:
        return added_by_others(before.cpus, after.cpus, before.value(STEP, "mean"), after.value(STEP, "mean"))
    return OtherWork(_waits_grew_ns(before, after))


def _waits_grew_ns(before: Side, after: Side) -> float:
    """Return by how much longer threads of the job waited for a CPU in a step, as far as was recorded."""
    if before.cpus is not None and after.cpus is not None:
        return after.cpus.wait_ns - before.cpus.wait_ns
    pairs = (before.cpu_wait_ns, after.cpu_wait_ns), (before.worker_wait_ns, after.worker_wait_ns)
    return sum(new - old for old, new in pairs if old is not None and new is not None)


def _judge(
    before: Side, after: Side, condition: Condition, change: Change, step_ns: float, other: OtherWork, run_ns: float
) -> Judged:
    limit_ns = condition.percent / 100 * step_ns
    rank, rank_ns = _rank_that_grew(before, after, condition.kind)
    has_any = occurs((before, after), change.kind)
    few = [side.fewest_steps for side in (before, after) if not side.tells_spread]
    if not math.isfinite(change.steps_ns):  # several runs and a single one, and one of them has a single step
        few = few or [min(before.fewest_steps, after.fewest_steps)]
    if few and has_any:
        return Judged(condition, change, limit_ns, "inconclusive", NO_NEEDS, None, min(few), rank, rank_ns)
    verdict: Verdict = "inconclusive"
    if change.low_ns > limit_ns:
        verdict = "worse"
    elif change.high_ns <= limit_ns:
        verdict = "not worse"
    # Bounds of the growth without what other work can have added: they have to agree.
    without = {
        "worse": change.low_ns - other.added_ns > limit_ns,
        "not worse": change.high_ns - other.added_ns <= limit_ns,
    }
    if has_any and not without.get(verdict, True):
        needs = runs_without_other_work(before, after)
        return Judged(condition, change, limit_ns, "inconclusive", needs, other, 0, rank, rank_ns)
    needs = NO_NEEDS
    if verdict == "inconclusive":
        needs = needs_of(before, after, change, limit_ns, step_ns, run_ns)
    return Judged(condition, change, limit_ns, verdict, needs, None, 0, rank, rank_ns)


def _rank_that_grew(before: Side, after: Side, kind: str) -> tuple[int, float]:
    """Return the rank whose mean grew most, and its growth."""
    means: list[dict[int, float]] = []
    for side in (before, after):
        shared = set.intersection(*(set(run.ranks_ns) for run in side.runs))
        means.append({r: sum(run.mean_of_rank(r, kind) for run in side.runs) / len(side.runs) for r in shared})
    old, new = means
    if set(old) != set(new) or len(old) < 2:
        return -1, 0.0
    growth = {rank: new[rank] - old[rank] for rank in sorted(new)}
    most = max(growth, key=lambda rank: growth[rank])
    return most, growth[most]
