"""The causes of a summary: who does what and where, what is known of it, who waits for it, what its removal saves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from stashtrace.schema.stall_kinds import COLUMN_OF
from stashtrace.schema.table import Table
from stashtrace.summary.style import Style
from stashtrace.summary.words import Finding, Row, evidence_texts
from stashtrace.summary.words.cause_templates import cause_lines
from stashtrace.text.units import named_ranks, ranks_in

#: Column of the budget -> evidence that says more of a cause than its own row; of the others the row says it.
_DETAILS = {
    "data": ("batch_time", "batch_part", "blocked_reads", "workers_without_data"),
    "link": ("bus_bandwidth",),
    "copy": ("copies",),
    "save": ("checkpoints",),
    "host": ("compiles", "python_collects", "blocking_call", "draining_call"),
    "other": ("host_function",),
}
#: How the time of a cause lies in the steps -> what is said behind it.
_BEHIND = {
    "turns": "; they take turns: in each step only one of them",
    "grows": ", growing over the run",
    "shrinks": ", shrinking over the run",
}
#: Columns of causes whose kind is none of ``StallKind``, and of settings.
_COLUMN_OF = {"compile": "host", "objects": "host", "gil": "other", "loads": "save", "gradients": "link"}
_COLUMN_OF |= dict.fromkeys(("workers", "persistent_workers", "slow_worker", "in_order"), "data")


def details_of(row: Row, found: Sequence[Finding]) -> list[str]:
    """Return what the finding about the same time of the same rank says more: of most kinds at most one sentence."""
    if row["kind"] == "contention":
        return [said for one in found if one.row["kind"] == "contention" for said in evidence_texts(one)]
    if row["kind"] == "compute" and row["level"] == "half" and 2 * row["python_ratio"] <= 1:
        bubbles = (finding.first("bubble") for finding in found)
        return [
            evidence_text for one in bubbles if one is not None for evidence_text in evidence_texts(Finding({}, (one,)))
        ]
    if row["kind"] == "handoff":  # the making of a batch says nothing of how it is handed over
        return []
    column = column_of_cause(row)
    for finding in _about(row, found):
        if finding.row["kind"] == column:
            if finding.row["facts"].get("doubt"):
                return [finding.row["facts"]["doubt"]]
            known = tuple(one for one in finding.evidence if one["code"] in _DETAILS.get(column, ()))
            return evidence_texts(replace(finding, evidence=known))[:1]
    return []


def steps_of(row: Row, found: Sequence[Finding]) -> str:
    """Return what is said of the steps of a cause behind it: that ranks take turns, or made fewer of them."""
    if row["shape"] in _BEHIND:
        return _BEHIND[row["shape"]]
    ranks = ranks_in(row["ranks"])
    for finding in found:
        if finding.row["kind"] == "uneven_steps" and ranks:
            made = [(ranks_in(e["facts"]["name"]), e["facts"]["items_count"]) for e in finding.evidence]
            most = max(count for _, count in made)
            fewer = (count for of, count in made if count < most and set(of) >= set(ranks))
            return next((f"; {named_ranks(row['ranks'], len(ranks))} made {n} of {most} steps" for n in fewer), "")
    return ""


def column_of_cause(row: Row) -> str:
    """Return the column of the budget that the time of a cause is part of; empty if it is of none alone."""
    return "link" if row["where"] == "link" else _COLUMN_OF.get(row["kind"], COLUMN_OF.get(row["kind"], ""))


def _about(row: Row, found: Sequence[Finding]) -> Iterator[Finding]:
    """Yield the findings about the same time: of its column and ranks, or about waits for one of these."""
    ranks = {int(rank) for rank in row["ranks"].split(",") if rank}
    column = column_of_cause(row)
    for finding in found:
        matches = finding.row["kind"] == column and (not ranks or finding.row["rank"] in ranks)
        if matches or (finding.row["kind"] == "late" and finding.row["cause_rank"] in ranks):
            yield finding


_INDENT = "  "


def causes_found(first: Table | None) -> list[Row]:
    """Return the rows that are causes, without those that say why none is known."""
    return [row for row in first.rows() if not row["reason"]] if first is not None else []


def causes_block(causes: Sequence[Row], found: Sequence[Finding], style: Style, path: str) -> list[str]:
    """Return the lines about causes; ``found``: the findings, of which the details are taken."""
    lines: list[str] = []
    shown: set[str] = set()
    for row in causes:
        what, waits, saving = cause_lines(row, path)
        what += steps_of(row, found)
        details = [said for said in details_of(row, found) if said not in shown]
        shown.update(details)
        lines += [style.paint(line, "strong") for line in style.wrap(what, f"{_INDENT}▶ ", _INDENT * 2)]
        for sentence in (*details, "; ".join(said for said in (waits, saving) if said)):
            lines += style.wrap(sentence, _INDENT * 3, _INDENT * 4) if sentence else []
    return lines
