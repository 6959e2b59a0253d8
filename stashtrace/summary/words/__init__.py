"""Templates of sentences of the claims, and of evidence, that no rule has worded. ``summary.summary_text`` writes what
stands around them.

A template sees one row of ``findings`` and its rows of ``finding_evidence``, nothing else, so no sentence can say more
than a row does. How certain a verb is follows from ``confidence`` and the bounds (``parts.amount``).
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial

from stashtrace.analysis.findings.claim_rows import Evidence
from stashtrace.errors import guarded
from stashtrace.summary.words import claim_templates
from stashtrace.summary.words.claim_templates import CLAIMS, verdict_text
from stashtrace.summary.words.evidence_templates import COSTLIEST, EVIDENCE, JOINERS
from stashtrace.summary.words.template_parts import Finding, Row, of_recording


def claim_text(finding: Finding) -> str:
    """Word a claim; empty for kinds whose evidence alone is shown."""
    return guarded(f"the claim '{finding.row['kind']}'", partial(_claim_text, finding), str)


def _claim_text(finding: Finding) -> str:
    if finding.row.get("text"):
        return str(finding.row["text"])
    words = verdict_text if finding.row["section"] == "verdict" else CLAIMS.get(finding.row["kind"])
    return words(finding) if words is not None else ""


def steps_text(finding: Finding, *, alone: bool) -> str:
    """Word count and length of steps: ``40 validation steps of 59.0 ms``; the only kind goes without its name."""
    return guarded("the steps", partial(claim_templates.steps_text, finding, alone=alone), str)


def evidence_texts(finding: Finding) -> list[str]:
    """Word the evidence of a claim, in sentences."""
    sentences: list[str] = []
    for row in finding.evidence:
        text = guarded(f"the evidence '{row['code']}'", partial(_evidence_text, row, finding), str)
        joiner = JOINERS.get(row["code"], "")
        if not text:
            continue
        if joiner and sentences:
            sentences[-1] += joiner + text
        else:
            sentences.append(text)
    return sentences


def _evidence_text(row: Row, finding: Finding) -> str:
    if row.get("text"):
        return str(row["text"])
    words = EVIDENCE.get(row["code"])
    return "" if words is None else of_recording(finding, words(row, finding))


def wait_text(evidence: Sequence[Evidence]) -> str:
    """Word a wait in a collective and its reason, given the rows of ``lateness.costliest.wait_evidence``."""
    said = evidence_texts(Finding({}, tuple(asdict(row) for row in evidence)))
    return "; ".join(said).removeprefix(COSTLIEST)
