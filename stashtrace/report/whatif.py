"""Answers to what-if questions in words."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stashtrace.units import duration_text, percent_text

if TYPE_CHECKING:
    from stashtrace.replay import Answer

#: A replay that misses by more, or explains less, says nothing about changes.
MOST_ERROR_RATIO, MOST_GAP_RATIO = 0.06, 0.05
_NAMES = {
    "compute": "computes",
    "data": "waits for batches",
    "link": "waits for transfers",
    "late": "waits for late ranks",
    "copy": "waits for copies",
    "save": "writes checkpoints",
    "host": "waits for the host",
    "other": "asleep or blocked",
}


def whatif_lines(run: Answer, answers: Sequence[Answer], *, asked: bool) -> list[str]:
    """Lines for the terminal: what the replay is worth, then a table of changes.

    Parameters
    ----------
    run : Answer
        Without a change.
    answers : sequence of Answer
    asked : bool
        One question was asked; its budget follows.
    """
    error, gap = percent_text(run.error_ratio), percent_text(run.gap_ratio)
    lines = [
        f"a step takes {duration_text(run.measured_ns)} on average",
        f"the replay of the run as it was misses that by {error}; {gap} of it follows",
        "from no recorded cause and is kept as it was",
    ]
    if run.error_ratio > MOST_ERROR_RATIO or run.gap_ratio > MOST_GAP_RATIO:
        lines.append("that is too much for the answers below to be relied on")
    if not answers:
        return [*lines, "", "no single change of what is known would make it shorter"]
    head = ("change", "step", "saves", "then mostly")
    rows = [head, *(_cells(answer) for answer in answers)]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines.append("")
    for row in rows:
        cells = [row[0].ljust(widths[0]), row[1].rjust(widths[1]), row[2].rjust(widths[2]), row[3]]
        lines.append("  " + "  ".join(cells))
    return lines + (_budget(run, answers[0]) if asked else [])


def _cells(answer: Answer) -> tuple[str, str, str, str]:
    saved = (percent_text(1 - ns / answer.replayed_ns) for ns in (answer.high_ns, answer.low_ns))
    step = _range(duration_text(answer.low_ns), duration_text(answer.high_ns))
    return ", ".join(map(str, answer.changes)), step, _range(*saved), _NAMES[answer.bottleneck]


def _range(low: str, high: str) -> str:
    return high if low == high else f"{low} to {high}"


def _budget(run: Answer, answer: Answer) -> list[str]:
    """Where the step went before and after, by columns of the summary."""
    lines = ["", "  mean of all ranks" + "now".rjust(12) + "then".rjust(12)]
    for name, before in run.after_ns.items():
        after = answer.after_ns[name]
        if max(before, after) >= 0.005 * run.measured_ns:
            lines.append("  " + name.ljust(17) + duration_text(before).rjust(12) + duration_text(after).rjust(12))
    return lines
