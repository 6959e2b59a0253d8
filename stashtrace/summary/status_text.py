"""How a job failed or stands still, as lines: of `stashtrace live` and `stashtrace analyze hang`."""

from __future__ import annotations

from stashtrace.analysis.findings.claim_rows import tables_of
from stashtrace.analysis.findings.rules.ending.hangs import ending_claims
from stashtrace.schema.trace import Trace
from stashtrace.summary.words import claim_text, evidence_texts, findings_of


def describe_stuck(trace: Trace, *, lives: bool = False) -> list[str]:
    """Return lines about how the job failed or stands still: who is waited for, who waits, what was done last.
    Of one that still ``lives`` it is not said that it hung."""
    lines = []
    for finding in findings_of(*tables_of(ending_claims(trace, lives=lives))):
        lines.append(claim_text(finding))
        lines += [f"  {sentence}" for sentence in evidence_texts(finding)]
    return lines
