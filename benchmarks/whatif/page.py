"""The table of predictions as a page."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from whatif.judging import Prediction, Replay

#: What is asked for: a median error, and how wide an interval may be and how often it must hold the truth.
MEDIAN_BAR, WIDE_BAR, COVERED_BAR = 0.05, 0.10, 0.9


def totals(rows: Sequence[Prediction]) -> str:
    """One sentence about predictions."""
    error = np.array([row.error_ratio for row in rows])
    away = np.abs(error)
    held = sum(row.covered for row in rows)
    narrow = sum(row.wide_ratio <= WIDE_BAR for row in rows)
    return (
        f"{len(rows)} predictions: median error {np.median(away):.1%}, worst {away.max():.1%}, within 5 % in"
        f" {int((away <= MEDIAN_BAR).sum())}; the interval holds the real step in {held}, and is no wider than 10 % to"
        f" a side in {narrow}; {int((error < 0).sum())} are shorter than the real step"
    )


def by_kind(rows: Sequence[Prediction]) -> list[str]:
    """A table of the quantities."""
    lines = [
        "| change | predictions | median error | worst | mean error | interval holds | median width |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind in dict.fromkeys(row.kind for row in rows):
        own = [row for row in rows if row.kind == kind]
        error = np.array([row.error_ratio for row in own])
        wide = float(np.median([row.wide_ratio for row in own]))
        lines.append(
            f"| `{kind}` | {len(own)} | {np.median(np.abs(error)):.1%} | {np.abs(error).max():.1%} |"
            f" {error.mean():+.1%} | {sum(row.covered for row in own)} | ±{wide:.1%} |"
        )
    return lines


def all_rows(rows: Sequence[Prediction], spreads: Mapping[str, float]) -> list[str]:
    """A table of the predictions."""
    lines = [
        "| recorded job | its step, ms | change | predicted, ms | interval, ms | real, ms | recordings differ by |"
        " error | held | unexplained |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        spread = f"{spreads[row.real]:.1%}" if row.real in spreads else ""
        lines.append(
            f"| {row.job} | {row.measured_ms:.1f} | `{row.change}` | {row.middle_ms:.1f} |"
            f" {row.low_ms:.1f} to {row.high_ms:.1f} | {row.real_ms:.1f} | {spread} | {row.error_ratio:+.1%} |"
            f" {'yes' if row.covered else 'no'} | {row.gap_ratio:.1%} |"
        )
    return lines


def shapes(rows: Mapping[str, Sequence[Replay]]) -> list[str]:
    """A table of replays of the run as it was."""
    lines = [
        "| shape | step, ms | replay error of a step, median | worst | unexplained |",
        "|---|---|---|---|---|",
    ]
    for shape, replays in rows.items():
        median = max(replay.error_median_ratio for replay in replays)
        worst = max(replay.error_worst_ratio for replay in replays)
        gap = max(replay.gap_ratio for replay in replays)
        step = float(np.mean([replay.step_ms for replay in replays]))
        lines.append(f"| {shape} | {step:.1f} | {median:.2%} | {worst:.2%} | {gap:.1%} |")
    return lines
