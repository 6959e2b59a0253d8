"""A run that is still going, or hangs: the collectives that some ranks have not entered, and the newest budgets."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np

from stashtrace.analysis.findings.waiting import Waiting
from stashtrace.schema.trace import Trace
from stashtrace.summary.words.parts import last_called, not_entered, waiting_inside
from stashtrace.units import ranks_text

_BUDGET_STEPS = 10
_RANKS_AT_MOST = 4


def describe_waiting(waiting: Waiting) -> list[str]:
    """Return lines about a collective that some ranks have not entered: who is missing, who waits in it, how long."""
    missing, inside = ranks_text(list(waiting.missing)), ranks_text(list(waiting.inside))
    last = list(waiting.last.items())[:_RANKS_AT_MOST]
    return [
        not_entered(missing, waiting.operation, waiting.sequence, waiting.group, waiting.message_bytes),
        f"  {waiting_inside(inside, waiting.since_ns)}",
        *(f"  {last_called(rank, sequence)}" for rank, sequence in last),
    ]


def last_budget(trace: Trace) -> dict[int, tuple[int, int, dict[str, float]]]:
    """Return for each rank how many steps it made, the mean length of the newest in ns, and the share of each kind."""
    from stashtrace.analysis.registry import analyze
    from stashtrace.errors import MissingDataError

    try:
        steps, stalls = analyze(trace, "steps"), analyze(trace, "stalls")
    except MissingDataError:
        return {}
    budgets = {}
    for rank in np.unique(steps["rank"]).tolist():
        own = steps.take(steps["rank"] == rank).sort_by("step")
        newest = own["step"][-_BUDGET_STEPS:]
        wall = int((own["end_ns"] - own["begin_ns"])[-_BUDGET_STEPS:].sum())
        rows = stalls.take((stalls["rank"] == rank) & np.isin(stalls["step"], newest))
        shares = {
            str(k): int(rows["stall_ns"][rows["kind"] == k].sum()) / max(wall, 1) for k in np.unique(rows["kind"])
        }
        budgets[rank] = (len(own), wall // max(len(newest), 1), shares)
    return budgets
