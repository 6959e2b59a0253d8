"""The summary for programs: rows of its tables, each claim with its evidence and its sentence."""

from __future__ import annotations

from typing import Any

from stashtrace.analysis.findings import Summary
from stashtrace.schema.table import Table
from stashtrace.summary.causes_block import causes_found
from stashtrace.summary.words import evidence_texts, findings_of
from stashtrace.summary.words.cause_templates import cause_rows
from stashtrace.summary.words.headline import headline_text


def document(tables: Summary, first: Table | None = None, path: str = "RUN") -> dict[str, Any]:
    """Return the content of ``analyze summary --format json``.

    ``first``: rows of ``causes``. ``path``: of the run, for the commands in ``do_first``. Returns ``headline``: one
    sentence. ``do_first``: rows of ``causes`` with their ``text``. ``budgets``: rows of that table. ``findings``: rows
    of ``findings`` in reading order, each with ``text``, the sentence of the claim, ``evidence_text``, the sentences
    below it, and ``evidence``, its rows.
    """
    found = findings_of(tables.findings, tables.evidence)
    claims = []
    for finding in found:
        rows = [{k: v for k, v in row.items() if k != "finding_id"} for row in finding.evidence]
        claims.append({**finding.row, "evidence_text": evidence_texts(finding), "evidence": rows})
    return {
        "headline": headline_text(found, causes_found(first) if len(tables.budgets) else []),
        "do_first": cause_rows(first, path) if first is not None else [],
        "budgets": list(tables.budgets.rows()),
        "findings": claims,
    }
