"""Where a step thread waited for a CPU: the run-queue time that the kernel counted, by column of the budget.

The kernel's counter is read where phases begin and end. Between two readings the wait lies first in time in which the
thread could run; a thread that sleeps waits for a CPU once it is woken, so what is left lies in its waits.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np

from stashtrace.analysis.intervals import Int64, int64
from stashtrace.analysis.stalls.budget import rank_layers
from stashtrace.analysis.stalls.on_host import outer_phase_rows
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.analysis.steps.threads import StepThread
from stashtrace.schema.kinds import StallKind
from stashtrace.schema.stall_kinds import COLUMNS
from stashtrace.schema.table import Table

#: Columns in which a thread sleeps until others have done something.
_ASLEEP = ("late", "link", "other")


def queue_readings(index: TraceIndex, thread: StepThread) -> tuple[Int64, Int64]:
    """Return when the run-queue time of a step thread was read, and what it had reached, in ns."""
    phases, rows = index.trace.phases, outer_phase_rows(index, thread)
    at = np.stack([phases["begin_ns"][rows], phases["end_ns"][rows]], axis=1).ravel()
    queue = np.stack([phases["begin_runqueue_ns"][rows], phases["end_runqueue_ns"][rows]], axis=1).ravel()
    known = queue >= 0
    return at[known], queue[known]


def queued_in(index: TraceIndex, thread: StepThread, begin: Int64, end: Int64) -> Int64:
    """Return the run-queue time in ns of each window, linear between two readings; -1 if unknown."""
    at, queue = queue_readings(index, thread)
    return growth_in(at, queue, begin, end) if len(at) > 1 else np.full(len(begin), -1, dtype=np.int64)


def growth_in(at: Int64, value: Int64, begin: Int64, end: Int64) -> Int64:
    """Return the growth of a cumulative value over windows, linear between its readings."""
    base = int(at[0])  # relative to the first reading, so floats hold durations
    late = np.interp(end - base, at - base, value - value[0])
    early = np.interp(begin - base, at - base, value - value[0])
    return int64(np.maximum(np.rint(late - early), 0))


def cpu_waits(index: TraceIndex, thread: StepThread, steps: Table) -> dict[str, int]:
    """Return the ns that a step thread waited for a CPU in some steps, by column of the budget.

    ``steps``: rows of ``steps`` of that rank. No column has more than its time. Empty where no reading is known.
    """
    at, _ = queue_readings(index, thread)
    if len(at) < 2 or not len(steps):
        return {}
    edges = np.unique(np.concatenate([at, steps["begin_ns"], steps["end_ns"]]))
    begin, end = edges[:-1], edges[1:]
    step = np.searchsorted(steps["begin_ns"], begin, side="right") - 1
    inside = (step >= 0) & (end <= steps["end_ns"][np.maximum(step, 0)])
    begin, end = begin[inside], end[inside]
    kinds = rank_layers(index, thread).painted_kinds()
    spent = {
        column: kinds.time_of(*(StallKind[kind.upper()] for kind in names)).within(begin, end)
        for column, names in COLUMNS.items()
    }
    # What no kind covers is ``other``.
    spent["other"] = spent["other"] + np.maximum(end - begin - sum(spent.values()), 0)
    left = queued_in(index, thread, begin, end).astype(float)
    found: dict[str, int] = {}
    for columns in ([name for name in COLUMNS if name not in _ASLEEP], list(_ASLEEP)):
        whole = np.sum([spent[name] for name in columns], axis=0)
        part = np.minimum(left / np.maximum(whole, 1), 1.0)
        found |= {name: round(float((spent[name] * part).sum())) for name in columns}
        left = left - whole * part
    return found
