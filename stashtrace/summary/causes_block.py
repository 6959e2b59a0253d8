"""The causes of a summary: who does what and where, what is known of it, who waits for it, what its removal saves."""

from __future__ import annotations

from collections.abc import Sequence

from stashtrace.schema.table import Table
from stashtrace.summary.style import Style
from stashtrace.summary.words import Finding, Row
from stashtrace.summary.words.beside_causes import details_of, steps_of
from stashtrace.summary.words.cause_templates import cause_lines

_INDENT = "  "


def causes_found(first: Table | None) -> list[Row]:
    """Return the rows that are causes, without those that say why none is known."""
    return [row for row in first.rows() if not row["reason"]] if first is not None else []


def causes_block(causes: Sequence[Row], found: Sequence[Finding], style: Style, path: str) -> list[str]:
    """Return the lines about causes; ``found``: the findings, of which the details are taken."""
    lines: list[str] = []
    told: set[str] = set()
    for row in causes:
        what, waits, saving = cause_lines(row, path)
        what += steps_of(row, found)
        details = [said for said in details_of(row, found) if said not in told]
        told.update(details)
        lines += [style.paint(line, "strong") for line in style.wrap(what, f"{_INDENT}▶ ", _INDENT * 2)]
        for sentence in (*details, "; ".join(said for said in (waits, saving) if said)):
            lines += style.wrap(sentence, _INDENT * 3, _INDENT * 4) if sentence else []
    return lines
