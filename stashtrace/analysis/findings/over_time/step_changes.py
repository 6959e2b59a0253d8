"""over_time: shifts, drifts and periods of the step, which rank and kind of time they come from, and what is behind.

A change is looked for in one series, the length of the step; whose it is follows from the budgets. Waits for late
ranks are passed over, because the late rank has the time of its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.findings.over_time.attribute_change import Budgets, Change, Whose
from stashtrace.analysis.findings.over_time.detect_changes import Stretch, drift, onset, period, stretches
from stashtrace.analysis.findings.over_time.policy import POLICY
from stashtrace.analysis.stalls.budget import stalls as find_stalls
from stashtrace.analysis.steps.step_time import step_lengths, step_time_steps
from stashtrace.analysis.steps.steps import steps as find_steps
from stashtrace.calibration.noise import Floats
from stashtrace.errors import MissingDataError
from stashtrace.schema import columns as col
from stashtrace.schema.columns import Column, schema
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

OVER_TIME = schema(
    "over_time",
    "When the steps of a run change: shifts, drifts and periods, whose they are and what is behind",
    col.word("kind", "shift (other steps between two moments), drift (each step grows), period (every P-th step)"),
    col.word("place", "of a shift in the run: begin, middle or end; else whole"),
    col.word("onset", "of a shift: sudden, gradual (its steps grow) or either, if the lengths do not tell; else empty"),
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
    col.rank("rank", "rank whose time changes most, -1 if no rank's explains it", missing=-1),
    col.word("ranks", "ranks whose time changes alike, runs folded"),
    col.word(
        "stall_kind",
        "its kind of time that changes, as in stalls; together: all its work; validation, inference: steps of this kind"
        " before each; empty if none explains half",
    ),
    col.ns("rank_delta_ns", "by how much that kind changes per changed step"),
    col.word(
        "cause_kind",
        "what that time goes to: gc, checkpoint, file, annotation, a kind of wait, phase, worker; absent where ranks"
        " make no steps; else empty",
    ),
    col.word("cause_name", "file, annotation, phase, number of the worker or absent ranks"),
    col.ns("cause_ns", "how much more of it there is per changed step, -1 if unknown", missing=-1),
)


def over_time(trace: Trace) -> Table:
    """Find shifts, drifts and periods in the length of the step, and what they come from.

    Found by the ranks of the lengths, so that single long steps do not count; noise of any distribution makes a finding
    in fewer than one of thousands of runs. A change is one of at least 5 % of the step; runs of fewer than 12 counted
    steps have none. A long step counts as one of a period where it is longer by a tenth and stands out of the noise.
    Neighbouring shifts in which a rank spends about as much more in one kind of time are one.

    Parameters
    ----------
    trace : Trace
        Needs steps.

    Columns
    -------
    kind, place, onset, first_step_index, last_step_index, every_count, together_count, changed_count, steps_count,
    usual_ns, changed_ns, delta_ns, step_delta_ns, rank, ranks, stall_kind, rank_delta_ns, cause_kind, cause_name,
    cause_ns

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
    if len(lengths) < POLICY.least_steps_count:
        return Table.from_rows(OVER_TIME, [])
    changes = _changes(lengths)
    if not changes:
        return Table.from_rows(OVER_TIME, [])
    budgets = Budgets(trace, counted, stalls)
    shifts = _union(lengths, [change for change in changes if change.kind == "shift"], budgets)
    changes = shifts + [change for change in changes if change.kind != "shift"]
    changes.sort(key=lambda change: -abs(change.delta) * np.count_nonzero(change.changed))
    return Table.from_rows(OVER_TIME, [_row(change, numbers, budgets) for change in changes])


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
    alike = [s for s in found if abs(s.length - usual.length) < POLICY.worth_saying_ratio * max(usual.length, 1.0)]
    others = np.zeros(len(lengths), dtype=bool)
    for stretch in alike:
        others[stretch.begin : stretch.end] = True
    changes = []
    for stretch in found:
        if stretch in alike:
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


def _union(lengths: Floats, found: list[Change], budgets: Budgets) -> list[Change]:
    """Join neighbouring shifts in which the same time of the same rank is longer by about as much.

    Noise of the machine divides one change where all steps become longer for a while.
    """
    joined: list[tuple[Change, Whose]] = []
    for change in found:
        own = budgets.whose(change)
        if joined and _is_one(*joined[-1], change, own):
            changed = joined[-1][0].changed | change.changed
            change = replace(change, changed=changed, length=float(np.median(lengths[changed])))
            own = budgets.whose(change)
            joined.pop()
        joined.append((change, own))
    return [change for change, _ in joined]


def _is_one(before: Change, of_before: Whose, change: Change, of_change: Whose) -> bool:
    if np.flatnonzero(before.changed)[-1] + 1 != np.flatnonzero(change.changed)[0]:
        return False
    if of_before.rank < 0 or (of_before.rank, of_before.kind) != (of_change.rank, of_change.kind):
        return False
    # A further level of the same rank's own is one more change.
    if abs(of_change.delta_ns - of_before.delta_ns) >= POLICY.its_own_ratio * abs(change.length - before.length):
        return False
    one, other = sorted((abs(of_before.delta_ns), abs(of_change.delta_ns)))
    return one >= POLICY.as_much_ratio * other and (before.delta > 0) == (change.delta > 0)


def changed_steps(row: dict[str, Any], numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return which of the run's counted steps are the changed ones of a row of ``over_time``; of a drift its half."""
    if row["kind"] == "drift":
        return np.asarray(np.arange(len(numbers)) >= len(numbers) // 2)
    inside = (numbers >= row["first_step_index"]) & (numbers <= row["last_step_index"])
    if row["kind"] == "period":
        place = np.arange(len(numbers)) - np.searchsorted(numbers, row["first_step_index"])
        first = place % row["every_count"] < row["together_count"]
        return np.asarray(inside & first)
    return np.asarray(inside)


def _row(change: Change, numbers: npt.NDArray[np.int64], budgets: Budgets) -> tuple[object, ...]:
    own = budgets.whose(change)
    cause = budgets.behind(change, own)
    steps = numbers[change.changed] if change.kind != "drift" else numbers
    place = "whole"
    if change.kind == "shift":
        place = "end" if change.changed[-1] else "begin" if change.changed[0] else "middle"
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
        round(change.delta),
        change.slope,
        own.rank,
        own.ranks,
        own.kind,
        round(own.delta_ns),
        cause[0],
        cause[1],
        round(cause[2]),
    )
