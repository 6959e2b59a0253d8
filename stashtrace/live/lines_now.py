"""Which line of the user's code costs most in the newest steps, of all ranks and of one that is late.

The tables are those of ``analyze lines`` and ``lines_between_ranks``, made of the steps in memory.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Sequence

from stashtrace.analysis.findings.rules.stalls.lines import longer_lines
from stashtrace.analysis.lines.lines import CostlyLine, costliest_of_all
from stashtrace.analysis.lines.place_times import STEP, WORKER
from stashtrace.live.state import LATE, MOST, LineNow
from stashtrace.schema.trace import Trace
from stashtrace.summary.words import Finding

#: Evidence that a late rank, or its workers, spend longer in a function: whose time it is.
_LONGER = {"late_made_longer": WORKER, "longer_in": STEP}


def lines_now(window: Trace, found: Sequence[Finding]) -> list[LineNow]:
    """Return the costliest line of all ranks, and that of each rank that the others wait for.

    ``found``: the summary of these steps, which says who is late. Without recorded stacks the list is empty. Raises
    MissingDataError if no rank has steps.
    """
    lines = []
    if (most := costliest_of_all(window)) is not None and most[1].low_ns > 0:
        lines.append(_line(MOST, -1, *most))
    late = {f.row["cause_rank"]: f for f in found if f.row["section"] == "verdict" and f.row["kind"] == "late"}
    for rank, finding in sorted(late.items()):
        lines += _of_late(window, rank, finding)
    return lines


def _of_late(window: Trace, rank: int, finding: Finding) -> list[LineNow]:
    """Return the line that the summary names first for a late rank, if it certainly spends longer there."""
    return [
        LineNow(LATE, rank, where, line.kind, line.place_and_leaf, row["longer_ns"], row["low_ns"], row["high_ns"])
        for code, where in _LONGER.items()
        if finding.first(code) is not None
        for row, line in longer_lines(window, rank, 1, where=where)
    ]


def _line(why: str, rank: int, where: str, line: CostlyLine) -> LineNow:
    return LineNow(why, rank, where, line.kind, line.place_and_leaf, line.time_ns, line.low_ns, line.high_ns)
