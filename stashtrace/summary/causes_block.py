"""The causes of a summary: who does what and where, what is known of it, who waits for it, what its removal saves."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stashtrace.schema.stall_kinds import COLUMN_OF
from stashtrace.schema.table import Table
from stashtrace.summary.look import Look
from stashtrace.summary.words import evidence_texts
from stashtrace.summary.words.cause_templates import cause_lines
from stashtrace.summary.words.template_parts import Finding, Row

_INDENT = "  "
#: Column of the budget -> evidence that says more of a cause than its own row; of the others the row says it.
_DETAILS = {
    "data": ("batch_time", "batch_part", "blocked_reads", "workers_without_data"),
    "link": ("payload", "bus_bandwidth"),
    "copy": ("copies",),
    "save": ("checkpoints",),
    "host": ("compiles", "python_collects", "blocking_call", "draining_call"),
    "other": ("host_function",),
}
#: Columns of causes whose kind is none of ``StallKind``, and of settings.
_COLUMN_OF = {"compile": "host", "objects": "host", "gil": "other", "loads": "save", "gradients": "link"}
_COLUMN_OF |= dict.fromkeys(("workers", "persistent_workers", "slow_worker", "in_order"), "data")


def causes_found(first: Table | None) -> list[Row]:
    """Return the rows that are causes, without those that say why none is known."""
    return [row for row in first.rows() if not row["reason"]] if first is not None else []


def causes_block(causes: Sequence[Row], found: Sequence[Finding], look: Look, path: str) -> list[str]:
    """Return the lines about causes; ``found``: the findings, of which the details are taken."""
    lines: list[str] = []
    told: set[str] = set()
    for row in causes:
        what, waits, saving = cause_lines(row, path)
        details = [said for said in _details(row, found) if said not in told]
        told.update(details)
        if row["where"] == "link" and details:
            what, details = f"{what}: {details[0]}", []
        lines += [look.paint(line, "strong") for line in look.wrap(what, f"{_INDENT}▶ ", _INDENT * 2)]
        for sentence in (*details, waits, saving):
            lines += look.wrap(sentence, _INDENT * 3, _INDENT * 4) if sentence else []
    return lines


def _details(row: Row, found: Sequence[Finding]) -> list[str]:
    """Return what the finding about the same time of the same rank says more: of most kinds at most one sentence."""
    if row["kind"] == "contention":
        return [said for one in found if one.row["kind"] == "contention" for said in evidence_texts(one)]
    if row["kind"] == "handoff":  # the making of a batch says nothing of how it is handed over
        return []
    column = "link" if row["where"] == "link" else _COLUMN_OF.get(row["kind"], COLUMN_OF.get(row["kind"], ""))
    ranks = {int(rank) for rank in row["ranks"].split(",") if rank}
    for finding in found:
        if finding.row["kind"] == column and (not ranks or finding.row["rank"] in ranks):
            known = tuple(one for one in finding.evidence if one["code"] in _DETAILS.get(column, ()))
            return evidence_texts(replace(finding, evidence=known))[:1]
    return []
