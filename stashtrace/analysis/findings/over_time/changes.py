"""over_time: shifts, drifts and periods of the step, which rank and kind of time they come from, and what is behind.

A change is looked for in one series, the length of the step; whose it is follows from the budgets. Waits for late
ranks are passed over, because the late rank has the time of its own.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.findings.over_time.behind import behind
from stashtrace.analysis.findings.over_time.series import LEAST_STEPS, Floats, Stretch, drift, period, stretches
from stashtrace.analysis.stalls.budget import stalls as find_stalls
from stashtrace.analysis.steps.step_time import step_lengths, step_time_steps
from stashtrace.analysis.steps.steps import steps as find_steps
from stashtrace.errors import MissingDataError
from stashtrace.schema.columns import Column, schema
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.stall_kinds import COLUMN_OF
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace
from stashtrace.units import ranks_text

OVER_TIME = schema(
    "over_time",
    "When the steps of a run change: shifts, drifts and periods, whose they are and what is behind",
    ("kind", "U16", "", "shift (other steps between two moments), drift (each step grows), period (every P-th step)"),
    ("place", "U16", "", "of a shift in the run: begin, middle or end; else whole"),
    ("first_step_index", "i8", "", "first step that is changed"),
    ("last_step_index", "i8", "", "last step that is changed"),
    ("every_count", "i8", "", "period: from one changed step to the next; else 1"),
    ("changed_count", "i8", "", "counted steps that are changed"),
    ("steps_count", "i8", "", "counted steps of the run"),
    ("usual_ns", "i8", "ns", "median length of the other steps; drift: of the step at its begin"),
    ("changed_ns", "i8", "ns", "median length of the changed steps; drift: of the step at its end"),
    ("delta_ns", "i8", "ns", "by how much longer a changed step is, negative if shorter; drift: from begin to end"),
    ("step_delta_ns", "f8", "ns", "drift: by how much longer each step is than the one before; else 0"),
    Column("rank", "i8", "", "rank whose time changes most, -1 if no rank's explains it", role="rank", missing=-1),
    ("ranks", "U16", "", "ranks whose time changes alike, runs folded"),
    ("stall_kind", "U16", "", "its kind of time that changes, as in stalls; empty if no kind explains half"),
    ("rank_delta_ns", "i8", "ns", "by how much that kind changes per changed step"),
    (
        "cause_kind",
        "U16",
        "",
        "what that time goes to: gc, checkpoint, file, annotation, a kind of wait, phase, worker; absent where ranks"
        " make no steps; else empty",
    ),
    ("cause_name", "U16", "", "file, annotation, phase, number of the worker or absent ranks"),
    Column("cause_ns", "i8", "ns", "how much more of it there is per changed step, -1 if unknown", missing=-1),
)
#: A kind of time of a rank is named where it is at least this part of the change; ranks are alike from the other on.
_EXPLAINS, _ALIKE = 0.5, 0.5
#: A period matters from this part of the mean step on.
_PERIOD_RATIO = 0.01
_PASSED_ON = "straggler"


@dataclass(frozen=True, slots=True)
class _Change:
    kind: str
    changed: npt.NDArray[np.bool_]
    others: npt.NDArray[np.bool_]
    usual: float
    length: float
    every: int = 1
    slope: float = 0.0


def over_time(trace: Trace) -> Table:
    """Find shifts, drifts and periods in the length of the step, and what they come from.

    Found by the ranks of the lengths, so that single long steps do not count; noise of any distribution makes a finding
    in fewer than one of thousands of runs. A change is one of at least 5 % of the step; runs of fewer than 12 counted
    steps have none. A long step counts as one of a period where it is longer by a tenth and stands out of the noise.

    Parameters
    ----------
    trace : Trace
        Needs steps.

    Columns
    -------
    kind, place, first_step_index, last_step_index, every_count, changed_count, steps_count, usual_ns, changed_ns,
    delta_ns, step_delta_ns, rank, ranks, stall_kind, rank_delta_ns, cause_kind, cause_name, cause_ns

    Raises
    ------
    MissingDataError
        If no rank has steps.
    """
    table = find_steps(trace)
    if not len(table):
        raise MissingDataError("no rank has a step")
    return changes_of(trace, step_time_steps(table), find_stalls(trace, warmup=True))


def changes_of(trace: Trace, counted: Table, stalls: Table) -> Table:
    """Make the table ``over_time`` of the counted steps and the stalls of all steps."""
    lengths = step_lengths(counted)
    numbers = np.unique(counted["step"])
    changes = _changes(lengths) if len(lengths) >= LEAST_STEPS else []
    budgets = _Budgets(counted, stalls) if changes else None
    rows = [_row(trace, counted, change, numbers, budgets) for change in changes if budgets is not None]
    return Table.from_rows(OVER_TIME, rows)


def _changes(lengths: Floats) -> list[_Change]:
    found = stretches(lengths)
    every = np.ones(len(lengths), dtype=bool)
    changes: list[_Change] = []
    line = drift(lengths, found)
    if line is not None:
        half = np.arange(len(lengths)) >= len(lengths) // 2
        changes.append(_Change("drift", half, ~half, line.begin, line.end, slope=line.slope))
    elif len(found) > 1:
        changes += _shifts(lengths, found)
    waves = period(lengths, found)
    if waves is not None and waves.excess * waves.count >= _PERIOD_RATIO * float(lengths.sum()):
        at = np.arange(len(lengths)) % waves.every == waves.first
        usual, length = float(np.median(lengths[~at])), float(np.median(lengths[at]))
        changes.append(_Change("period", at, every & ~at, usual, length, every=waves.every))
    return sorted(changes, key=lambda change: -abs(change.length - change.usual) * np.count_nonzero(change.changed))


def _shifts(lengths: Floats, found: list[Stretch]) -> list[_Change]:
    """Return the stretches that differ from the usual step, which is that of the longest stretch, or of the first."""
    if len(found) == 2:
        usual = found[0]
    else:
        usual = max(found, key=lambda stretch: (stretch.end - stretch.begin, -stretch.begin))
    alike = [s for s in found if abs(s.length - usual.length) < 0.05 * max(usual.length, 1.0)]
    others = np.zeros(len(lengths), dtype=bool)
    for stretch in alike:
        others[stretch.begin : stretch.end] = True
    changes = []
    for stretch in found:
        if stretch in alike:
            continue
        inside = np.zeros(len(lengths), dtype=bool)
        inside[stretch.begin : stretch.end] = True
        changes.append(_Change("shift", inside, others, usual.length, stretch.length))
    return changes


class _Budgets:
    """Time of each rank and kind by step."""

    def __init__(self, counted: Table, stalls: Table) -> None:
        numbers = np.unique(counted["step"])
        self.ranks = np.unique(counted["rank"])
        self._made = np.zeros((len(self.ranks), len(numbers)), dtype=bool)
        self._made[np.searchsorted(self.ranks, counted["rank"]), np.searchsorted(numbers, counted["step"])] = True
        rows = np.flatnonzero(np.isin(stalls["step"], numbers) & (stalls["kind"] != _PASSED_ON))
        kinds = GroupBy(stalls["kind"][rows])
        self.kinds = [str(kind) for kind in kinds.values.tolist()]
        shape = (len(self.ranks), len(self.kinds), len(numbers))
        at = np.searchsorted(self.ranks, stalls["rank"][rows])
        known = (at < len(self.ranks)) & (self.ranks[np.minimum(at, len(self.ranks) - 1)] == stalls["rank"][rows])
        rows, at, kind = rows[known], at[known], kinds.number[known]
        step = np.searchsorted(numbers, stalls["step"][rows])
        cell = (at * shape[1] + kind) * shape[2] + step
        self.spent = np.bincount(cell, stalls["stall_ns"][rows], int(np.prod(shape))).reshape(shape)

    def absent(self, change: _Change) -> npt.NDArray[np.int64]:
        """Return the ranks that make no step in one of both parts."""
        made = [self._made[:, part].any(axis=1) for part in (change.changed, change.others)]
        return np.asarray(self.ranks[~(made[0] & made[1])])

    def deltas(self, change: _Change) -> Floats:
        """Return by how much each kind of each rank is longer in changed steps."""
        middle = np.mean if change.kind == "period" else np.median
        inside, outside = (middle(self.spent[:, :, part], axis=2) for part in (change.changed, change.others))
        # From the middle of one half of a drift to the middle of the other are half of its steps.
        count = len(change.changed)
        return np.asarray((inside - outside) * (2 * (count - 1) / count if change.kind == "drift" else 1))


def _row(
    trace: Trace, counted: Table, change: _Change, numbers: npt.NDArray[np.int64], budgets: _Budgets
) -> tuple[object, ...]:
    delta = change.length - change.usual
    sign = 1.0 if delta >= 0 else -1.0
    deltas = budgets.deltas(change) * sign
    rank, ranks, kind, own, cause = -1, "", "", 0.0, ("", "", -1.0)
    absent = budgets.absent(change)
    if len(absent):  # the mean is one of other ranks then
        cause = ("absent", ranks_text(absent.tolist()), -1.0)
    elif deltas.size:
        best, of_kind = (int(at) for at in np.unravel_index(int(deltas.argmax()), deltas.shape))
        if deltas[best, of_kind] >= _EXPLAINS * abs(delta):
            rank, kind, own = int(budgets.ranks[best]), budgets.kinds[of_kind], sign * float(deltas[best, of_kind])
            column = [COLUMN_OF[name] == COLUMN_OF[kind] for name in budgets.kinds]
            alike = deltas[:, column].sum(axis=1) >= _ALIKE * deltas[best, column].sum()
            ranks = ranks_text(budgets.ranks[alike].tolist())
            if delta > 0:
                chosen = counted.take(counted["rank"] == rank).sort_by("step")
                changed = np.isin(chosen["step"], numbers[change.changed])
                usual = np.isin(chosen["step"], numbers[change.others])
                cause = behind(trace, rank, kind, chosen, (changed, usual), own)
    steps = numbers[change.changed] if change.kind != "drift" else numbers
    place = "whole"
    if change.kind == "shift":
        place = "end" if change.changed[-1] else "begin" if change.changed[0] else "middle"
    return (
        change.kind,
        place,
        int(steps[0]),
        int(steps[-1]),
        change.every,
        len(steps),
        len(numbers),
        round(change.usual),
        round(change.length),
        round(delta),
        change.slope,
        rank,
        ranks,
        kind,
        round(own),
        cause[0],
        cause[1],
        round(cause[2]),
    )
