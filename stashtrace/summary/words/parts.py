"""Claims as templates see them, and phrases that several of them use."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stashtrace.schema.table import Table
from stashtrace.units import duration_text, percent_text

Row = dict[str, Any]

#: A bound below this share of the step may be nothing.
_NOTHING_RATIO = 0.03
#: Longer lists of ranks are cut.
_RANKS_WIDTH = 40


@dataclass(frozen=True, slots=True)
class Finding:
    """A claim with its evidence, as rows."""

    row: Row
    evidence: tuple[Row, ...]

    def first(self, code: str) -> Row | None:
        """The first evidence of a code, None if there is none."""
        return next((e for e in self.evidence if e["code"] == code), None)

    def all(self, code: str) -> list[Row]:
        """Evidence of a code."""
        return [e for e in self.evidence if e["code"] == code]


def findings_of(findings: Table, evidence: Table) -> list[Finding]:
    """Rows of both tables, joined, in reading order."""
    by_finding: dict[int, list[Row]] = {}
    for row in evidence.sort_by("finding_id", "order").rows():
        by_finding.setdefault(row["finding_id"], []).append(row)
    return [Finding(row, tuple(by_finding.get(row["finding_id"], ()))) for row in findings.sort_by("order").rows()]


def amount(row: Row) -> str:
    """A mean time per step, as certain as its bounds allow."""
    point, low, high = (duration_text(row[name]) for name in ("stall_ns", "low_ns", "high_ns"))
    if row["confidence"] == "exact":
        least = duration_text(row["least_ns"])
        return f"{least} to {point}" if row["items_count"] > 1 and least != point else point
    words = {"at_least": f"at least {point}", "up_to": f"up to {high}", "between": f"between {low} and {high}"}
    return words[str(row["confidence"])]


def share(row: Row) -> str:
    """Share of the step that goes with ``amount``: a range where the ranks differ, else of the rank hit hardest."""
    if row["confidence"] != "exact" and row["stall_ns"] > 0:
        scale = row["share_ratio"] / row["stall_ns"]
        low, high = (percent_text(row[name] * scale) for name in ("low_ns", "high_ns"))
        point = percent_text(row["share_ratio"])
        between = high if low == high else f"{low.removesuffix(' %')} to {high}"
        share = {"at_least": point, "up_to": high, "between": between}[row["confidence"]]
        return f"{share} on rank {row['rank']}" if row["items_count"] > 1 else share
    most, least = percent_text(row["share_ratio"]), percent_text(row["least_ratio"])
    return most if most == least else f"{least.removesuffix(' %')} to {most}"


def lost(row: Row) -> str:
    return f"{amount(row)} a step ({share(row)})"


def ranks(row: Row) -> str:
    """``ranks 0-3,7``; of many that do not fold, how many, and the first and last."""
    if len(row["ranks"]) > _RANKS_WIDTH:
        named = row["ranks"].split(",")
        return f"{row['items_count']} ranks ({', '.join(named[:3])} … {named[-1]})"
    return f"rank{'s' if row['items_count'] > 1 else ''} {row['ranks']}"


def verb(row: Row, one: str, many: str) -> str:
    """The verb for one rank or several; what may be nothing only ``may``."""
    if row["stall_ns"] > 0 and row["low_ns"] * row["share_ratio"] < _NOTHING_RATIO * row["stall_ns"]:
        return "may be" if many == "are" else f"may {many}"
    return many if row["items_count"] > 1 else one


def operation(name: str) -> str:
    return name.replace("_", "-")


def plural(count: float) -> str:
    return "" if count == 1 else "s"


def number(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"
