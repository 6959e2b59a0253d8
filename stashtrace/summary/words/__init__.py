"""Sentences of claims and evidence, which rules made, and of causes. ``summary.summary_text`` writes what stands around
them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from stashtrace.schema.table import Table

Row = dict[str, Any]
#: Code of evidence that continues the sentence before it -> what joins them; all others begin a sentence.
_JOINERS = {"compile_reason": ": "}


@dataclass(frozen=True, slots=True)
class Finding:
    """A row of ``findings`` with its rows of ``finding_evidence``; ``facts`` of each are read."""

    row: Row
    evidence: tuple[Row, ...]

    def first(self, code: str) -> Row | None:
        """Return the first evidence with this code; None if there is none."""
        return next((e for e in self.evidence if e["code"] == code), None)


def findings_of(findings: Table, evidence: Table) -> list[Finding]:
    """Join the rows of both tables; the findings are in reading order."""
    by_finding: dict[int, list[Row]] = {}
    for row in evidence.sort_by("finding_id", "order").rows():
        by_finding.setdefault(row["finding_id"], []).append(_with_facts(row))
    claims = map(_with_facts, findings.sort_by("order").rows())
    return [Finding(row, tuple(by_finding.get(row["finding_id"], ()))) for row in claims]


def _with_facts(row: Row) -> Row:
    return {**row, "facts": json.loads(row["facts"] or "{}")}


def claim_text(finding: Finding) -> str:
    """Return the sentence of a claim; empty for kinds whose evidence alone is shown."""
    return str(finding.row["text"])


def evidence_texts(finding: Finding) -> list[str]:
    """Return the sentences of the evidence of a claim."""
    sentences: list[str] = []
    for row in finding.evidence:
        joiner = _JOINERS.get(row["code"], "")
        if joiner and row["text"] and sentences:
            sentences[-1] += joiner + row["text"]
        elif row["text"]:
            sentences.append(row["text"])
    return sentences
