"""A finding as templates see it, and the phrases that several templates use."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from stashtrace.schema.table import Table
from stashtrace.units import duration_text, few_ranks, is_several, percent_text, range_text

Row = dict[str, Any]

#: A bound below this share of the step may be nothing.
_NOTHING_RATIO = 0.03
#: Longer lists of ranks are cut.
_RANKS_WIDTH = 40
#: Bounds that are nearer to each other, as a part of the upper one, are one figure.
_NEAR_RATIO = 0.05


@dataclass(frozen=True, slots=True)
class Finding:
    """A row of ``findings`` with its rows of ``finding_evidence``."""

    row: Row
    evidence: tuple[Row, ...]

    def first(self, code: str) -> Row | None:
        """Return the first evidence with this code; None if there is none."""
        return next((e for e in self.evidence if e["code"] == code), None)

    def all(self, code: str) -> list[Row]:
        """Return all evidence with this code, in order."""
        return [e for e in self.evidence if e["code"] == code]


def findings_of(findings: Table, evidence: Table) -> list[Finding]:
    """Join the rows of both tables; the findings are in reading order."""
    by_finding: dict[int, list[Row]] = {}
    for row in evidence.sort_by("finding_id", "order").rows():
        by_finding.setdefault(row["finding_id"], []).append(_with_facts(row))
    claims = map(_with_facts, findings.sort_by("order").rows())
    return [Finding(row, tuple(by_finding.get(row["finding_id"], ()))) for row in claims]


def _with_facts(row: Row) -> Row:
    return {**row, "facts": json.loads(row["facts"] or "{}")}


def amount(row: Row) -> str:
    """Word the mean time per step: the figure, a bound or a range, as ``confidence`` allows.

    What is said of several ranks is true of each: the bounds are those of the rank that loses most.
    """
    point, low, high = (duration_text(row[name]) for name in ("stall_ns", "low_ns", "high_ns"))
    least, several = duration_text(row["least_ns"]), row["items_count"] > 1
    if row["confidence"] in ("exact", "at_least"):
        length = f"{least} to {point}" if several and least != point else point
        return length if row["confidence"] == "exact" else f"at least {length}"
    if several:
        return f"up to {high}"
    words = {"at_least": f"at least {point}", "up_to": f"up to {high}", "between": f"between {low} and {high}"}
    return words[str(row["confidence"])]


def share(row: Row) -> str:
    """Word the share of the step that ``amount`` is: a range where ranks differ, a bound where ``amount`` is one."""
    if row["confidence"] in ("up_to", "between") and row["stall_ns"] > 0:
        scale = row["share_ratio"] / row["stall_ns"]
        low, high = (percent_text(row[name] * scale) for name in ("low_ns", "high_ns"))
        if row["items_count"] > 1:
            return f"up to {high}"
        return high if row["confidence"] == "up_to" or low == high else f"{low.removesuffix(' %')} to {high}"
    most, least = percent_text(row["share_ratio"]), percent_text(row["least_ratio"])
    if row["items_count"] <= 1 or row["least_ratio"] < 0:
        return most
    return most if most == least else f"{least.removesuffix(' %')} to {most}"


def between_bounds(row: Row) -> str:
    """Word a time of evidence: one figure where its bounds are near to each other, else a range."""
    return bounded_time(row["amount_ns"], row["low_ns"], row["high_ns"])


def bounded_time(point_ns: float, low_ns: float, high_ns: float) -> str:
    """Word a time with bounds: one figure where these are near to each other, else a range."""
    point, low, high = (duration_text(time) for time in (point_ns, low_ns, high_ns))
    return point if high_ns - low_ns <= _NEAR_RATIO * high_ns else range_text(low, high)


def of_recording(f: Finding, text: str) -> str:
    """Return what is said of a step; if no step was marked it is said of the recording, which counts as one."""
    if f.first("whole_recording") is None:
        return text
    text = re.sub(r"\b(\d+ (?:ns|us|ms|s|min|h)|\d[\d.,]* (?:ns|us|ms|s)) a step\b", r"\1", text)
    return text.replace("of a step", "of the recording").replace(" a step", " in all")


#: What another recording would tell: of one that we made, and of one that another tool made, which takes no options of
#: ours. Words that name an option or a function of ours stand here and nowhere else.
_RECORD_MORE = {
    "kernels": ("timing events cannot tell, `stashtrace run --kernels` can", "this recording cannot tell"),
    "function": (
        "no stacks were sampled, which name the line (`stashtrace run --stack-hz 50`, the default)",
        "the recording does not say which function",
    ),
}


def record_more(f: Finding, what: str) -> str:
    """Say that a recording does not tell something, with what would, if it is one of ours."""
    ours, of_others = _RECORD_MORE[what]
    return ours if f.first("of_another_tool") is None else of_others


def lost(row: Row) -> str:
    """Word the time lost per step and its share: ``20.1 ms a step (35 %)``."""
    return f"{amount(row)} a step ({share(row)})"


def ranks(row: Row) -> str:
    """Name the ranks: ``ranks 0-3,7``; a list too long to read becomes a count with the first and last ones."""
    if len(row["ranks"]) > _RANKS_WIDTH:
        return f"{row['items_count']} ranks ({few_ranks(row['ranks'])})"
    return f"rank{'s' if row['items_count'] > 1 else ''} {row['ranks']}"


def all_or_part(ratio: float) -> str:
    """Word a part: ``all``, or its percentage."""
    return "all" if percent_text(ratio) == percent_text(1) else percent_text(ratio)


def verb(row: Row, one: str, many: str) -> str:
    """Return the verb for one rank or for several; ``may`` precedes it where the lower bound is close to nothing."""
    if row["stall_ns"] > 0 and row["low_ns"] * row["share_ratio"] < _NOTHING_RATIO * row["stall_ns"]:
        return "may be" if many == "are" else f"may {many}"
    return many if row["items_count"] > 1 else one


def ranks_named(text: str, verbs: tuple[str, str]) -> str:
    """Put ``rank`` or ``ranks`` before a list such as ``0-2,5``, and the verb for one or for several behind it."""
    return f"rank{'s' if is_several(text) else ''} {text} {verbs[is_several(text)]}"
