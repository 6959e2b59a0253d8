"""The step time over the steps of a run: mean and range over the ranks, in a bounded number of cells."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import numpy as np

from stashtrace.analysis.steps.step_time import step_lengths
from stashtrace.report.stalls_by_rank_and_step import cells_of
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.table import Table

#: Cells of the curve; more steps share cells.
CELLS = 200
#: Slow steps that are marked, those that cost most.
MARKED = 60


def step_curve(steps: Table, slow: Table) -> dict[str, Any] | None:
    """Return how long the counted steps of a run were, one after the other; None without steps.

    ``steps``: the counted steps of all ranks. ``slow``: rows of ``spikes`` of any steps. Returns per cell
    ``first_steps`` (number of its first step), ``mean_ns`` (over its steps and their ranks), ``low_ns`` and ``high_ns``
    (the shortest and the longest step of a rank in it); ``steps_count``, ``last_step``, ``ranks_count``,
    ``steps_per_cell`` (at most), ``whole_mean_ns`` (the step time of the run); and ``slow``: per slow step ``step``,
    ``cell``, ``length_ns`` and ``excess_ns``, those that cost most first, ``slow_count`` of them in all.
    """
    if not len(steps):
        return None
    by_step = GroupBy(steps["step"])
    length_ns, numbers = steps["end_ns"] - steps["begin_ns"], by_step.values
    means = step_lengths(steps)
    cell = cells_of(len(numbers), CELLS)
    by_cell = GroupBy(cell)
    slow = slow.take(np.isin(slow["step"], numbers))
    excess_ns = slow["length_ns"] - slow["usual_ns"]
    return {
        "first_steps": by_cell.min(numbers).tolist(),
        "mean_ns": np.rint(np.bincount(cell, means) / by_cell.sizes).astype(np.int64).tolist(),
        "low_ns": by_cell.min(by_step.min(length_ns)).tolist(),
        "high_ns": by_cell.max(by_step.max(length_ns)).tolist(),
        "steps_count": len(numbers),
        "last_step": int(numbers[-1]),
        "ranks_count": len(np.unique(steps["rank"])),
        "steps_per_cell": int(by_cell.sizes.max()),
        "whole_mean_ns": round(float(means.mean())),
        "slow_count": len(slow),
        "slow": [
            {
                "step": int(slow["step"][at]),
                "cell": int(cell[np.searchsorted(numbers, slow["step"][at])]),
                "length_ns": int(slow["length_ns"][at]),
                "excess_ns": int(excess_ns[at]),
            }
            for at in np.argsort(-excess_ns, kind="stable")[:MARKED].tolist()
        ],
    }
