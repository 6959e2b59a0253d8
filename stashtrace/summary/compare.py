"""Which of two runs is faster, and why, in words; the numbers are those of ``diff`` and ``kernel_diff``."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stashtrace.schema.table import Table
from stashtrace.units import duration_text, percent_text, shortened

#: From this ratio on a change is no longer worded as percent.
_TIMES_RATIO = 9
#: Kinds, or kernels, that a sentence names.
_NAMED_AT_MOST = 3
#: Names of kernels are C++ with all its templates.
_NAME_WIDTH = 48


def verdict(table: Table, before: str, after: str) -> list[str]:
    """Say in sentences how the length of a step changed, and which kinds of time changed most.

    Parameters
    ----------
    table : Table
        Result of ``diff``.
    before, after : str
        Names of the two runs.
    """
    step, *kinds = table.rows()
    kinds = [row for row in kinds if row["verdict"] != "no difference"]
    first, second, noise = (duration_text(step[n]) for n in ("before_ns", "after_ns", "noise_ns"))
    lines = []
    if step["verdict"] == "no difference":
        lines.append(f"no difference: a step takes {first} in {before} and {second} in {after} (noise up to {noise})")
    else:
        ratio = abs(step["change_ns"]) / step["before_ns"]
        # A step of ten times the length is another job rather than a change of so many percent.
        share = percent_text(ratio) if ratio < _TIMES_RATIO else f"{ratio + 1:,.0f} times as long: is it the same job?"
        change = f"{duration_text(abs(step['change_ns']))} ({share})"
        lines.append(
            f"{after} is {step['verdict']}: a step takes {second}, {change} {_than(step)} than {first} in {before}"
        )
    if kinds:
        worst = sorted(kinds, key=lambda row: -abs(row["change_ns"]))[:_NAMED_AT_MOST]
        lines.append("by kind: " + ", ".join(_change(row["kind"], row) for row in worst))
    fewest = min(step["before_steps_count"], step["after_steps_count"])
    if fewest < 20:
        were = "step was" if fewest == 1 else "steps were"
        lines.append(f"only {fewest} {were} compared; more would tell smaller changes from noise")
    return lines


def _than(step: dict[str, Any]) -> str:
    return "less" if step["verdict"] == "faster" else "more"


def _change(name: str, row: dict[str, Any]) -> str:
    change = row["change_ns"]
    return f"{name} {'+' if change > 0 else '-'}{duration_text(abs(change))}"


def names_apart(paths: Sequence[str]) -> list[str]:
    """Return the paths as names of the runs, or A and B if they are equal or too long for a sentence."""
    return list(paths) if all(len(p) <= 24 for p in paths) and len(set(paths)) == len(paths) else ["A", "B"]


def kernel_verdict(table: Table, before: str, after: str) -> list[str]:
    """Say in sentences how the work on devices changed, and which kernels changed most.

    Parameters
    ----------
    table : Table
        Result of ``kernel_diff``.
    before, after : str
        Names of the two runs.
    """
    whole, *kernels = table.rows()
    kernels = [row for row in kernels if row["name"] != whole["name"]]
    first, second, noise = (duration_text(whole[n]) for n in ("before_ns", "after_ns", "noise_ns"))
    if whole["verdict"] == "no difference":
        lines = [f"no difference: GPU work takes {first} in {before} and {second} in {after} (noise up to {noise})"]
    else:
        change = duration_text(abs(whole["change_ns"]))
        words = f"{after} is {whole['verdict']}: GPU work takes {second} a step and rank"
        lines = [f"{words}, {change} {_than(whole)} than {first} in {before}"]
    for word in ("slower", "faster", "appeared", "vanished"):
        chosen = [row for row in kernels if row["verdict"] == word]
        if chosen:
            named = ", ".join(_change(shortened(row["name"], _NAME_WIDTH), row) for row in chosen[:_NAMED_AT_MOST])
            more = f", {len(chosen) - _NAMED_AT_MOST} more" if len(chosen) > _NAMED_AT_MOST else ""
            lines.append(f"{word}: {named}{more}")
    return lines
