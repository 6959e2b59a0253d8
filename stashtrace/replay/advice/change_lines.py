"""The line of the user's code that a change would have to make quicker."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from stashtrace.analysis.findings import summarize
from stashtrace.analysis.findings.places.line_evidence import longer_lines
from stashtrace.analysis.lines.lines import costliest_lines, costliest_worker_lines
from stashtrace.errors import guarded
from stashtrace.schema.stall_kinds import COLUMN_OF
from stashtrace.schema.trace import Trace

#: Quantities of changes about code that steps run, and about code that makes batches: kinds of time of the same name.
_OF_STEPS, _OF_BATCHES = ("python", "other", "checkpoint"), ("prep", "fetch")
#: A line is named if at least this part of that time is certainly in it.
_MOSTLY_RATIO = 0.3


def line_behind(trace: Trace, quantity: str, rank: int, kind: str = "") -> str:
    """Return where most of the time lies that a change takes away; empty where no line stands out, or none is known.

    ``rank``: whose work the change is about, -1 if of several: then that of the rank with most of that time counts.
    ``kind``: of that work, where the change is about a late rank.
    """
    if quantity == "straggler" and kind in _OF_BATCHES:
        quantity = kind  # its workers are late
    if quantity == "straggler" and not kind:
        return ""  # several kinds of its time: no line stands for them
    return guarded("the line behind a change", lambda: _line_behind(trace, quantity, rank), lambda line: "")


def _line_behind(trace: Trace, quantity: str, rank: int) -> str:
    if quantity == "straggler":
        longer = longer_lines(trace, rank, 1) if rank >= 0 else []
        return longer[0][1].place_and_leaf if longer else ""
    if quantity not in (*_OF_STEPS, *_OF_BATCHES):
        return ""
    find = costliest_lines if quantity in _OF_STEPS else costliest_worker_lines
    lines = find(trace, rank if rank >= 0 else _worst_rank(trace, quantity), quantity, 1)
    return lines[0].place_and_leaf if lines and lines[0].share_low >= _MOSTLY_RATIO else ""


def _worst_rank(trace: Trace, quantity: str) -> int:
    budgets = summarize(trace).budgets
    own = budgets.take(budgets["column"] == COLUMN_OF[quantity])
    return int(own["rank"][own["stall_ns"].argmax()]) if len(own) else -1
