"""step_kinds, and the step time: the one length of a step that every command prints for a run.

    which steps   those that train; validation or inference steps in a run that never trains.
                  Without the warm-up, and without steps that the event budget left without events
    of each step  the mean over the ranks that made it
    of the run    the mean over these steps: a job pays for its slow steps too, and the kinds of a step add up to it

A median, the step of one rank, or the newest steps of a run are other figures, and are called so where they are shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stashtrace.analysis.intervals import Bools, Floats, Int64, int64
from stashtrace.analysis.steps.steps import counted_steps, host_steps, is_counted, steps_if_any
from stashtrace.analysis.steps.steps import steps as find_steps
from stashtrace.analysis.steps.training_loop import QUIET_KINDS
from stashtrace.errors import MissingDataError
from stashtrace.schema import columns as col
from stashtrace.schema.groupby import GroupBy, RowsBy
from stashtrace.schema.kinds import Phase, PhaseFlag
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace


@dataclass(frozen=True, slots=True)
class StepTime:
    """Step time of a run, or of one rank."""

    #: Over the steps.
    mean_ns: float
    median_ns: float
    #: Steps that count.
    steps_count: int


def kinds_that_count(steps: Table) -> list[str]:
    """Return the kinds of steps that the step time is made of: all that train, else the first of the others."""
    kinds = steps["kind"]
    if len(kinds) and (kinds == kinds[0]).all():  # as of most ranks; texts are sorted slowly
        return [kinds[0].item()]
    present = set(np.unique(kinds).tolist())
    trains = sorted(present.difference(QUIET_KINDS))
    return trains or [kind for kind in QUIET_KINDS if kind in present][:1]


def counted_of_kinds(steps: Table, kinds: Sequence[str]) -> Table:
    """Return the counted steps of some kinds; with their warm-up where they have no others."""
    counted = counted_steps(steps)
    counted = counted.take(np.isin(counted["kind"], list(kinds)))
    return counted if len(counted) else counted_steps(steps, warmup=True, kinds=kinds)


def step_time_steps(steps: Table) -> Table:
    """Return the rows of ``steps`` that the step time is made of."""
    return counted_of_kinds(steps, kinds_that_count(steps))


def step_lengths(counted: Table) -> Floats:
    """Return the length of each step, the mean over the ranks that made it, in the order of their numbers."""
    by_step = GroupBy(counted["step"])
    return np.asarray(by_step.sum(counted["end_ns"] - counted["begin_ns"]) / np.maximum(by_step.sizes, 1))


def step_time_of(trace: Trace) -> StepTime | None:
    """Return the step time of a trace; None if no rank has a step."""
    steps = steps_if_any(trace)
    return None if steps is None else step_time(steps)


def step_time(steps: Table) -> StepTime:
    """Return the step time of a run. ``steps``: ``steps`` of all ranks."""
    lengths = step_lengths(step_time_steps(steps))
    if not len(lengths):
        return StepTime(0.0, 0.0, 0)
    return StepTime(float(lengths.mean()), float(np.median(lengths)), len(lengths))


STEP_KINDS = col.schema(
    "step_kinds",
    "How many steps of each kind a rank made and how long they took; a row of rank -1 for all ranks",
    col.RANK_OR_ALL,
    col.word("kind", "steps.kind"),
    col.number("steps_count", "counted steps; of all ranks, steps that any rank made"),
    col.number("warmup_count", "steps left out as warm-up, or because the event budget left them without events"),
    col.ns("mean_ns", "mean of the counted steps; of all ranks, each step is the mean over its ranks"),
    col.ns("median_ns", "median of the counted steps; of all ranks, each step is the mean over its ranks"),
    col.ns("total_ns", "sum of the counted steps; of all ranks, the mean over the ranks that made any"),
    col.number("sub_steps_count", "sub-steps of the counted steps: micro-batches, or updates of an iteration"),
    col.ns("rollout_ns", "iterations: mean time up to the first phase that trains, by the host; else 0"),
)

#: In the order in which a summary speaks of them.
KINDS = ("train", "iteration", "marked", "skipped_update", "validation", "inference")
_TRAINS = (Phase.BACKWARD, Phase.OPTIMIZER, Phase.UPDATE_SKIPPED)


def step_kinds(trace: Trace, *, warmup: bool = False) -> Table:
    """Count the steps of each kind apart, so that a number here is a number of the job's log.

    The steps that are counted are those of all totals (:func:`~stashtrace.analysis.steps.steps.counted_steps`); where
    they leave a kind out, because all its steps are warm-up, that kind counts all of its own. Columns: table
    ``step_kinds`` of ``docs/reference/tables.md``.

    Parameters
    ----------
    trace : Trace
        Needs steps.
    warmup : bool
        Whether the warm-up steps count.

    Raises
    ------
    MissingDataError
        If no rank has steps.
    """
    steps = find_steps(trace)
    if not len(steps):
        raise MissingDataError("no rank has a step")
    rollout = _rollouts(trace, steps)
    rows = []
    for kind in KINDS:
        of_kind = np.flatnonzero(steps["kind"] == kind)
        table = steps.take(of_kind)
        counted = _counted_rows(table, warmup)
        for rank, mine in GroupBy(table["rank"]).items():
            part, own = table.take(mine), counted[mine]
            wall = (part["end_ns"] - part["begin_ns"])[own]
            rows.append(_row(rank, kind, part, own, int(wall.sum()), rollout[of_kind[mine[own]]]))
        if len(of_kind):
            ranks = len(np.unique(table["rank"][counted]))
            total = round(int((table["end_ns"] - table["begin_ns"])[counted].sum()) / max(ranks, 1))
            rows.append(_row(-1, kind, table, counted, total, rollout[of_kind[counted]]))
    return Table.from_rows(STEP_KINDS, rows).sort_by("rank")


def _counted_rows(table: Table, warmup: bool) -> Bools:
    """Return a mask of the rows of one kind that count; at least one per rank."""
    counted, ranks = is_counted(table, warmup=warmup), GroupBy(table["rank"])
    return np.asarray(counted | (ranks.count(counted) == 0)[ranks.number])


def _row(rank: int, kind: str, table: Table, chosen: Bools, total: int, rollout: Int64) -> tuple[object, ...]:
    lengths = step_lengths(table.take(chosen))
    steps_count = len(np.unique(table["step"][chosen]))
    return (
        rank,
        kind,
        steps_count,
        len(np.unique(table["step"])) - steps_count,
        round(float(lengths.mean())),
        round(float(np.median(lengths))),
        total,
        int(table["sub_steps_count"][chosen].sum())
        // (1 if rank >= 0 else max(len(np.unique(table["rank"][chosen])), 1)),
        round(float(rollout.mean())) if len(rollout) else 0,
    )


def _rollouts(trace: Trace, steps: Table) -> Int64:
    """Return the host time of each iteration before its first phase that trains; 0 for other steps."""
    out = np.zeros(len(steps), dtype=np.int64)
    if not (steps["kind"] == "iteration").any():
        return out
    host = host_steps(trace)
    phases = trace.phases
    code, flags = phases["phase_code"], phases["phase_flags"]
    trains = np.isin(code, _TRAINS) | ((code == Phase.FORWARD) & ((flags & PhaseFlag.NO_GRAD) == 0))
    serious = phases.take(trains & ((flags & PhaseFlag.BACKGROUND) == 0)).sort_by("begin_ns")
    by_track = RowsBy(serious["track_id"])
    for at in np.flatnonzero(steps["kind"] == "iteration").tolist():
        begin = serious["begin_ns"][by_track.rows(int(host["track_id"][at]))]
        first = int(np.searchsorted(begin, host["begin_ns"][at]))
        if first < len(begin) and begin[first] < host["end_ns"][at]:
            out[at] = begin[first] - host["begin_ns"][at]
    return int64(out)
