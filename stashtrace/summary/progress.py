"""A run that still goes, or hangs, in words: which collective somebody has not entered, and the newest budgets.

Used by ``stashtrace status`` on a trace read from live files.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np

from stashtrace.analysis.findings.waiting import Waiting
from stashtrace.schema.trace import Trace
from stashtrace.units import bytes_text, duration_text, ranks_text

_BUDGET_STEPS = 10


def describe_waiting(waiting: Waiting) -> list[str]:
    """Sentences about one collective that not everybody has entered."""
    inside, missing = ranks_text(list(waiting.inside)), ranks_text(list(waiting.missing))
    size = f", {bytes_text(waiting.message_bytes)}" if waiting.message_bytes > 0 else ""
    name = waiting.group or "a group without a name"
    lines = [
        f"rank{_s(waiting.missing)} {missing} ha{'s' if len(waiting.missing) == 1 else 've'} not entered"
        f" {waiting.operation} {waiting.sequence} of {name}{size}",
        f"  rank{_s(waiting.inside)} {inside} wait{'s' if len(waiting.inside) == 1 else ''} in it"
        f" for {duration_text(waiting.since_ns)}",
    ]
    for rank, last in list(waiting.last.items())[:4]:
        lines.append(
            f"  rank {rank} last called number {last}" if last >= 0 else f"  rank {rank} has called nothing in it"
        )
    return lines


def last_budget(trace: Trace) -> dict[int, tuple[int, int, dict[str, float]]]:
    """Per rank: number of steps, mean wall ns of the newest ones, and the shares of their kinds."""
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


def _s(ranks: tuple[int, ...]) -> str:
    return "" if len(ranks) == 1 else "s"
