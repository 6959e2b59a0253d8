"""The lines of the user's code in which a step spends most, for a report without pictures."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

from stashtrace.analysis.findings.rules.stalls.lines import longer_lines
from stashtrace.analysis.lines.lines import costliest_rows
from stashtrace.analysis.lines.place_times import STEP, WORKER
from stashtrace.schema.trace import Trace

#: Lines of steps, of workers, and of each rank that is longer, at most.
_STEPS, _WORKERS, _LONGER = 8, 2, 2
#: A line with a smaller part of a step or batch is left out.
_LEAST_RATIO = 0.01


def costliest_lines(trace: Trace) -> dict[str, Any] | None:
    """Return the costliest lines of all ranks together; None without stacks.

    ``lines``: rows of steps, then of workers, each with ``where``, ``kind``, ``place``, ``time_ns`` (mean of a step or
    batch), ``low_ns``, ``high_ns`` and ``share_ratio`` of it. ``longer``: rows of ranks that certainly spend longer in
    a function than the others, with ``rank``, ``kind``, ``place``, ``time_ns`` (what it is longer) and its bounds.
    """
    found: list[dict[str, Any]] = [
        {
            "where": where,
            "kind": line.kind,
            "place": line.place_and_leaf,
            "time_ns": line.time_ns,
            "low_ns": line.low_ns,
            "high_ns": line.high_ns,
            "share_ratio": line.time_ns / max(whole_ns, 1),
        }
        for where, count in ((STEP, _STEPS), (WORKER, _WORKERS))
        for line, whole_ns in costliest_rows(trace, where, count)
    ]
    found = [row for row in found if row["share_ratio"] >= _LEAST_RATIO]
    if not found:
        return None
    longer = [
        {
            "rank": rank,
            "kind": line.kind,
            "place": line.place_and_leaf,
            "time_ns": row["longer_ns"],
            "low_ns": row["low_ns"],
            "high_ns": row["high_ns"],
        }
        for rank in trace.ranks.tolist()
        for row, line in longer_lines(trace, rank, _LONGER)
    ]
    return {"lines": found, "longer": sorted(longer, key=lambda row: -row["low_ns"])[:_STEPS]}
