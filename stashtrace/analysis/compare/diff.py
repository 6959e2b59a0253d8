"""diff: two jobs by stall kind, with intervals, the smallest change that could have been seen, and a verdict."""

from __future__ import annotations

import math

import numpy as np

from stashtrace.analysis.compare.change import RUNS_THAT_TELL, Side, change_of, kinds_of
from stashtrace.analysis.compare.steps_of_run import STEP, steps_of_run
from stashtrace.analysis.intervals import Int64
from stashtrace.calibration.noise import OF_MEAN, OF_MEDIAN_DEVIATION, Statistic, median_deviation
from stashtrace.schema import columns as col
from stashtrace.schema.columns import schema as _schema
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

DIFF = _schema(
    "diff",
    "Two jobs by stall kind: a typical step before and after",
    col.word("kind", "step for the wall time, else StallKind in lower case"),
    col.ns("before_ns", "median over steps, mean over ranks and runs"),
    col.ns("after_ns", "the same of the second job"),
    col.ns("change_ns", "after minus before"),
    col.ns("spread_before_ns", f"median absolute deviation over steps, times {OF_MEDIAN_DEVIATION}", detail=4),
    col.ns("spread_after_ns", "the same of the second job", detail=4),
    col.ns("noise_ns", "changes up to this are not a difference", detail=2),
    col.word("verdict", "faster, slower or no difference"),
    col.word("statistic", "median; mean where the kind occurs in less than half of the steps of both jobs", detail=3),
    col.number("before_steps_count", "steps compared", detail=5),
    col.number("after_steps_count", "steps compared", detail=5),
    col.ns("low_ns", "lower 95 % bound of the change, by the steps or, from three runs on a side, by the runs"),
    col.ns("high_ns", "upper 95 % bound of the change"),
    col.ns(
        "detectable_ns",
        "smallest true change that would get a verdict in four of five such comparisons; -1 if a run has a single step:"
        " no spread is known, and the bounds are 0",
        missing=-1,
        detail=1,
    ),
    col.number("before_runs_count", "runs compared", detail=5),
    col.number("after_runs_count", "runs compared", detail=5),
)

#: A change counts if it is this many standard errors, and this share of the step.
_SIGNIFICANT, WORTH_NAMING_RATIO = 3.0, 0.01


def diff(before: Trace, after: Trace) -> Table:
    """Compare a typical step of two runs, kind by kind.

    The medians over steps are compared; a kind that occurs in less than half of the steps of both runs (checkpoints)
    by its means. The interval of a change is that of a block bootstrap over steps, as neighbouring steps are similar.
    A change is called faster or slower if it exceeds half of that interval, three standard errors of the two statistics
    together, and one per cent of the step; else it counts as no difference. Steps of one run are not independent
    runs: differences from run to run (placement, neighbours) are not in the interval. :func:`diff_of_sides` takes
    several runs a side.

    ``before``, ``after``: both need steps. Raises MissingDataError if one of them has no steps. Columns: table ``diff``
    of ``docs/reference/tables.md``.
    """
    return diff_of_sides(Side("before", (steps_of_run(before),)), Side("after", (steps_of_run(after),)))


def diff_of_sides(before: Side, after: Side) -> Table:
    """Compare a typical step of two jobs of one run or more; columns and verdicts as in :func:`diff`.

    With three runs on a side, the interval and the noise are those of the runs, not of their steps.
    """
    kinds = kinds_of((before, after))
    floor_ns = WORTH_NAMING_RATIO * before.value(STEP, "median")
    return Table.from_rows(DIFF, [_row(before, after, kind, floor_ns) for kind in kinds])


def _row(before: Side, after: Side, kind: str, floor_ns: float) -> tuple[object, ...]:
    old, new = ([run.of(kind) for run in side.runs] for side in (before, after))
    rare = _is_rare(old) and _is_rare(new)
    statistic: Statistic = "mean" if rare else "median"
    change = change_of(before, after, kind, statistic=statistic, allowance_ratio=0.0)
    spread_old, spread_new = _spread(old), _spread(new)
    known = math.isfinite(change.steps_ns)
    half = change.steps_ns if known else 0.0
    noise = max(half, floor_ns)
    if max(len(old), len(new)) < RUNS_THAT_TELL:
        noise = max(_SIGNIFICANT * math.hypot(_error(old, rare), _error(new, rare)), noise)
    first, second = int(change.before_ns), int(change.after_ns)
    difference, noise_ns = second - first, int(noise)
    verdict = "no difference" if abs(difference) <= noise_ns else "slower" if difference > 0 else "faster"
    return (
        kind,
        first,
        second,
        difference,
        spread_old,
        spread_new,
        noise_ns,
        verdict,
        statistic,
        before.steps_count,
        after.steps_count,
        round(difference - half) if known else 0,
        round(difference + half) if known else 0,
        round(noise + change.detectable_ns - half) if known else -1,
        len(old),
        len(new),
    )


def _is_rare(runs: list[Int64]) -> bool:
    return sum(map(np.count_nonzero, runs)) * 2 < sum(map(len, runs))


def _spread(runs: list[Int64]) -> int:
    """Spread over the steps within a run, mean over the runs."""
    return int(OF_MEDIAN_DEVIATION * np.mean([median_deviation(v) for v in runs]))


def _error(runs: list[Int64], rare: bool) -> float:
    """Standard error of the statistic, as if steps were independent."""
    errors = [float(np.std(v)) if rare else OF_MEAN * _spread([v]) for v in runs]
    return math.sqrt(sum(error**2 / len(v) for error, v in zip(errors, runs, strict=True))) / len(runs)
