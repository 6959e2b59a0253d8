"""The step time: the one length of a step that every command prints for a run, and the steps that it is made of.

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
import numpy.typing as npt

from stashtrace.analysis.steps.steps import counted_steps
from stashtrace.analysis.steps.steps import steps as find_steps
from stashtrace.analysis.steps.training_loop import QUIET_KINDS
from stashtrace.errors import MissingDataError
from stashtrace.schema.groupby import GroupBy
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
    #: Steps of the same kinds that do not.
    left_out_count: int


def kinds_that_count(steps: Table) -> list[str]:
    """Return the kinds of steps that the step time is made of: all that train, else the first of those beside."""
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


def step_lengths(counted: Table) -> npt.NDArray[np.float64]:
    """Return the length of each step, the mean over the ranks that made it, in the order of their numbers."""
    by_step = GroupBy(counted["step"])
    return np.asarray(by_step.sum(counted["end_ns"] - counted["begin_ns"]) / np.maximum(by_step.sizes, 1))


def step_time_of(trace: Trace) -> StepTime | None:
    """Return the step time of a trace; None if no rank has a step."""
    try:
        return step_time(find_steps(trace))
    except MissingDataError:
        return None


def step_time(steps: Table, counted: Table | None = None) -> StepTime:
    """Return the step time of a run.

    ``steps``: ``steps`` of all ranks. ``counted``: those of them that count, where they are known:
    :func:`step_time_steps`.
    """
    counted = step_time_steps(steps) if counted is None else counted
    lengths = step_lengths(counted)
    if not len(lengths):
        return StepTime(0.0, 0.0, 0, 0)
    same = np.unique(steps["step"][np.isin(steps["kind"], np.unique(counted["kind"]))])
    return StepTime(float(lengths.mean()), float(np.median(lengths)), len(lengths), len(same) - len(lengths))
