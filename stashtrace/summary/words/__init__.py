"""Templates of sentences: one for each kind of claim and of evidence. ``summary.summary_text`` writes what stands
around them.

A template sees one row of ``findings`` and its rows of ``finding_evidence``, nothing else, so no sentence can say more
than a row does. How certain a verb is follows from ``confidence`` and the bounds (``parts.amount``).
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from stashtrace.analysis.findings.claim_rows import Evidence
from stashtrace.summary.words.claim_templates import CLAIMS, loss, verdict_text
from stashtrace.summary.words.evidence_templates import COSTLIEST, EVIDENCE, JOINERS
from stashtrace.summary.words.template_parts import Finding, of_recording


def claim_text(finding: Finding) -> str:
    """Word a claim; empty for kinds whose evidence alone is shown."""
    if finding.row["section"] == "loss":
        return loss(finding)
    return verdict_text(finding) if finding.row["section"] == "verdict" else CLAIMS[finding.row["kind"]](finding)


def evidence_texts(finding: Finding) -> list[str]:
    """Word the evidence of a claim, in sentences."""
    sentences: list[str] = []
    for row in finding.evidence:
        words = EVIDENCE.get(row["code"])
        if words is None:
            continue
        text, joiner = of_recording(finding, words(row, finding)), JOINERS.get(row["code"], "")
        if not text:
            continue
        if joiner and sentences:
            sentences[-1] += joiner + text
        else:
            sentences.append(text)
    return sentences


def wait_text(evidence: Sequence[Evidence]) -> str:
    """Word a wait in a collective and its reason, given the rows of ``lateness.costliest.wait_evidence``."""
    said = evidence_texts(Finding({}, tuple(asdict(row) for row in evidence)))
    return "; ".join(said).removeprefix(COSTLIEST)
