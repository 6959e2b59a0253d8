"""diff: two runs by stall kind, with the spread over their steps and a verdict."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stashtrace.analysis.intervals import Int64, int64
from stashtrace.analysis.stalls.budget import stalls
from stashtrace.analysis.steps.steps import counted_steps
from stashtrace.analysis.steps.steps import steps as find_steps
from stashtrace.schema.columns import schema as _schema
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import StallKind
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

DIFF = _schema(
    "diff",
    "Two runs by stall kind: a typical step before and after",
    ("kind", "U16", "", "step for the wall time, else StallKind in lower case"),
    ("before_ns", "i8", "ns", "median over steps, mean over ranks"),
    ("after_ns", "i8", "ns", "the same of the second run"),
    ("change_ns", "i8", "ns", "after minus before"),
    ("spread_before_ns", "i8", "ns", "median absolute deviation over steps, times 1.4826"),
    ("spread_after_ns", "i8", "ns", "the same of the second run"),
    ("noise_ns", "i8", "ns", "changes up to this are not a difference"),
    ("verdict", "U16", "", "faster, slower or no difference"),
    ("statistic", "U16", "", "median; mean where the kind occurs in less than half of the steps of both runs"),
    ("before_steps_count", "i8", "", "steps compared"),
    ("after_steps_count", "i8", "", "steps compared"),
)

#: MAD of a normal distribution times this is its standard deviation.
_MAD_SCALE = 1.4826
#: Standard error of a median, in standard deviations over the root of the number of steps.
_MEDIAN_ERROR = 1.2533
#: A change counts if it is this many standard errors, and this share of the step.
_SIGNIFICANT, _WORTH_NAMING = 3.0, 0.01


@dataclass(frozen=True, slots=True)
class _Run:
    """Wall time and time of each kind per step: means over ranks, without warm-up and validation."""

    walls: Int64
    kinds: dict[str, Int64]


def diff(before: Trace, after: Trace) -> Table:
    """Compare a typical step of two runs, kind by kind.

    The medians over steps are compared; a kind that occurs in less than half of the steps of both runs (checkpoints)
    by its means. A change is called faster or slower if it exceeds three standard errors of the two statistics
    together and one per cent of the step; else it counts as no difference. Steps of one run are not independent runs:
    differences from run to run (placement, neighbours) are not in the error.

    Parameters
    ----------
    before, after : Trace
        Both need steps.

    Columns
    -------
    kind, before_ns, after_ns, change_ns, spread_before_ns, spread_after_ns, noise_ns, verdict, statistic,
    before_steps_count, after_steps_count

    Raises
    ------
    MissingDataError
        If one of them has no steps.
    """
    old, new = _per_step(before), _per_step(after)
    rows = [_compare("step", old.walls, new.walls, float(np.median(old.walls)))]
    floor = float(np.median(old.walls))
    for kind in StallKind:
        name = kind.name.lower()
        if name in old.kinds or name in new.kinds:
            first, second = old.kinds.get(name, old.walls * 0), new.kinds.get(name, new.walls * 0)
            rows.append(_compare(name, first, second, floor))
    return Table.from_rows(DIFF, rows)


def _per_step(trace: Trace) -> _Run:
    steps = find_steps(trace)
    counted = counted_steps(steps)
    counted = counted.take(counted["kind"] != "validation")
    counted = counted if len(counted) else steps
    by_step = GroupBy(counted["step"])
    ranks = by_step.sizes
    walls = by_step.sum(counted["end_ns"] - counted["begin_ns"])
    table = stalls(trace)
    parts = GroupBy.numbered(by_step.find(table["step"]), len(by_step))
    totals = {
        name: parts.sum(table["stall_ns"], where=table["kind"] == name) for name in np.unique(table["kind"]).tolist()
    }
    return _Run(int64(walls // ranks), {name: int64(total // ranks) for name, total in totals.items() if total.any()})


def _compare(name: str, old: Int64, new: Int64, step_ns: float) -> tuple[object, ...]:
    rare = np.count_nonzero(old) * 2 < len(old) and np.count_nonzero(new) * 2 < len(new)
    middle = np.mean if rare else np.median
    first, second = int(middle(old)), int(middle(new))
    spread_old, spread_new = _spread(old), _spread(new)
    if rare:
        errors = [float(np.std(v)) / np.sqrt(len(v)) for v in (old, new)]
    else:
        errors = [_MEDIAN_ERROR * s / np.sqrt(len(v)) for s, v in ((spread_old, old), (spread_new, new))]
    noise = int(max(_SIGNIFICANT * float(np.hypot(*errors)), _WORTH_NAMING * step_ns))
    change = second - first
    verdict = "no difference" if abs(change) <= noise else "slower" if change > 0 else "faster"
    statistic = "mean" if rare else "median"
    return name, first, second, change, spread_old, spread_new, noise, verdict, statistic, len(old), len(new)


def _spread(values: Int64) -> int:
    return int(_MAD_SCALE * float(np.median(np.abs(values - np.median(values)))))
