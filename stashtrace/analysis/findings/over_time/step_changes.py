"""over_time: shifts, drifts and periods in the length of the step; whose time they are, the table ``causes`` says."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stashtrace.analysis.findings.over_time.detect_changes import POLICY, Stretch, drift, onset, period, stretches
from stashtrace.analysis.intervals import Bools, Int64
from stashtrace.analysis.steps.step_time import step_lengths, step_time_steps
from stashtrace.analysis.steps.steps import steps as find_steps
from stashtrace.calibration.noise import Floats
from stashtrace.errors import MissingDataError
from stashtrace.schema import columns as col
from stashtrace.schema.columns import Column, schema
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace
from stashtrace.text.units import ranks_text

OVER_TIME = schema(
    "over_time",
    "When the steps of a run change: shifts, drifts and periods",
    col.word("kind", "shift (other steps between two moments), drift (each step grows), period (every P-th step)"),
    col.word("place", "of a shift in the run: begin, middle or end; else whole"),
    col.word("onset", "of a shift: sudden, gradual (its steps grow) or either, if it is not clear; else empty"),
    col.number("first_step_index", "first step that is changed"),
    col.number("last_step_index", "last step that is changed"),
    col.number("every_count", "period: from one changed step to the next; else 1"),
    col.number("together_count", "period: changed steps in a row, as in 2 of every 4 steps; else 1"),
    col.number("changed_count", "counted steps that are changed"),
    col.number("steps_count", "counted steps of the run"),
    col.ns("usual_ns", "median length of the other steps; drift: of the step at its begin"),
    col.ns("changed_ns", "median length of the changed steps; drift: of the step at its end"),
    col.ns("delta_ns", "by how much longer a changed step is, negative if shorter; drift: from begin to end"),
    Column("step_delta_ns", "f8", "ns", "drift: by how much longer each step is than the one before; else 0"),
    col.word("absent_ranks", "ranks that make no step in one of both parts, runs folded"),
)


def over_time(trace: Trace) -> Table:
    """Find shifts, drifts and periods in the length of the step.

    Found by the ranks of the lengths, so that single long steps do not count; noise of any distribution makes a finding
    in fewer than one of thousands of runs. A change is one of at least 5 % of the step; runs of fewer than 12 counted
    steps have none. A long step counts as one of a period where it is longer by a tenth and stands out of the noise.
    Columns: table ``over_time`` of ``docs/reference/tables.md``.

    Parameters
    ----------
    trace : Trace
        Needs steps.

    Raises
    ------
    MissingDataError
        If no rank has steps.
    """
    table = find_steps(trace)
    if not len(table):
        raise MissingDataError("no rank has a step")
    return changes_of(step_time_steps(table))


def changes_of(counted: Table) -> Table:
    """Make the table ``over_time`` of the counted steps."""
    lengths = step_lengths(counted)
    if len(lengths) < POLICY.least_steps_count:
        return Table.from_rows(OVER_TIME, [])
    changes = _changes(lengths)
    changes.sort(key=lambda change: -abs(change.length - change.usual) * np.count_nonzero(change.changed))
    return Table.from_rows(OVER_TIME, [_row(change, counted) for change in changes])


@dataclass(frozen=True, slots=True)
class Change:
    """A shift, drift or period: which steps are ``changed`` and which are as usual, by their place."""

    kind: str
    changed: Bools
    others: Bools
    usual: float
    length: float
    every: int = 1
    width: int = 1
    slope: float = 0.0
    onset: str = ""


def _changes(lengths: Floats) -> list[Change]:
    """Return shifts in the order of steps, or a drift, and then a period."""
    found = stretches(lengths)
    every = np.ones(len(lengths), dtype=bool)
    changes: list[Change] = []
    line = drift(lengths, found)
    if line is not None:
        half = np.arange(len(lengths)) >= len(lengths) // 2
        changes.append(Change("drift", half, ~half, line.begin, line.end, slope=line.slope))
    elif len(found) > 1:
        changes += _shifts(lengths, found)
    waves = period(lengths, found)
    if waves is not None and waves.excess * waves.count >= POLICY.period_ratio * float(lengths.sum()):
        at = waves.holds(len(lengths))
        usual, length = float(np.median(lengths[~at])), float(np.median(lengths[at]))
        changes.append(Change("period", at, every & ~at, usual, length, every=waves.every, width=waves.width))
    return changes


def _shifts(lengths: Floats, found: list[Stretch]) -> list[Change]:
    """Return the stretches that differ from the usual step, which is that of the longest stretch, or of the first."""
    if len(found) == 2:
        usual = found[0]
    else:
        usual = max(found, key=lambda stretch: (stretch.end - stretch.begin, -stretch.begin))
    like_usual = [s for s in found if abs(s.length - usual.length) < POLICY.worth_saying_ratio * max(usual.length, 1.0)]
    others = np.zeros(len(lengths), dtype=bool)
    for stretch in like_usual:
        others[stretch.begin : stretch.end] = True
    changes = []
    for stretch in found:
        if stretch in like_usual:
            continue
        inside = np.zeros(len(lengths), dtype=bool)
        inside[stretch.begin : stretch.end] = True
        changes.append(Change("shift", inside, others, usual.length, stretch.length))
    return _with_onset(lengths, found, changes)


def _with_onset(lengths: Floats, found: list[Stretch], changes: list[Change]) -> list[Change]:
    """Return shifts with how the steps get longer; steps that grow to the end of the run are one shift."""
    rises = np.diff([stretch.length for stretch in found])
    if not (np.all(rises > 0) or np.all(rises < 0)):
        return [replace(change, onset="sudden") for change in changes]
    place, how = onset(lengths, found)
    if how != "gradual":
        last = len(changes) == 1 and bool(changes[0].changed[-1])
        return [replace(change, onset=how if last else "sudden") for change in changes]
    inside = np.arange(len(lengths)) >= place
    usual, length = float(np.median(lengths[~inside])), float(np.median(lengths[inside]))
    return [Change("shift", inside, ~inside, usual, length, onset=how)]


def changed_steps(row: dict[str, Any], numbers: Int64) -> Bools:
    """Return which of the run's counted steps are the changed ones of a row of ``over_time``; of a drift its half."""
    if row["kind"] == "drift":
        return np.asarray(np.arange(len(numbers)) >= len(numbers) // 2)
    inside = (numbers >= row["first_step_index"]) & (numbers <= row["last_step_index"])
    if row["kind"] == "period":
        place = np.arange(len(numbers)) - np.searchsorted(numbers, row["first_step_index"])
        first = place % row["every_count"] < row["together_count"]
        return np.asarray(inside & first)
    return np.asarray(inside)


def _row(change: Change, counted: Table) -> tuple[object, ...]:
    numbers = np.unique(counted["step"])
    steps = numbers[change.changed] if change.kind != "drift" else numbers
    place = "whole"
    if change.kind == "shift":
        place = "end" if change.changed[-1] else "begin" if change.changed[0] else "middle"
    made, others = (
        counted["rank"][np.isin(counted["step"], numbers[part])] for part in (change.changed, change.others)
    )
    return (
        change.kind,
        place,
        change.onset,
        int(steps[0]),
        int(steps[-1]),
        change.every,
        change.width,
        len(steps),
        len(numbers),
        round(change.usual),
        round(change.length),
        round(change.length - change.usual),
        change.slope,
        ranks_text(np.setdiff1d(counted["rank"], np.intersect1d(made, others)).tolist()),
    )
