"""A history as one HTML file: no script, nothing to load, light and dark."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from stashtrace.lab.history.answers import Answer
from stashtrace.lab.history.run_totals import RunTotals
from stashtrace.lab.history.sentences import machine_hours_text, short_commit
from stashtrace.lab.recommend.recommendation_text import cost_text
from stashtrace.report.budget_groups import percents
from stashtrace.report.page.html import code_line, listing, paragraph, section, table, tag, text, whole_page
from stashtrace.report.page.svg_pictures import budget_bar, legend
from stashtrace.schema.stall_kinds import COLUMNS
from stashtrace.text import count_noun
from stashtrace.units import duration_text, percent_text, shortened

#: Rows of a table on the page; the command prints all of them.
_ROWS = 50
#: Groups of the fleet with a bar.
_BARS = 12
_JOB_WIDTH = 70


def history_page(totals: RunTotals, answers: Sequence[Answer]) -> str:
    """Return the HTML of the page: each question with its sentences and the first rows of its table."""
    place = shlex.quote(totals.history.place.text)
    body = [
        "<header>",
        tag("h1", text("Runs over time")),
        code_line(f"stashtrace history {place}"),
        listing(totals.history.left_out),
        "</header>",
        '<main id="main">',
        *(_part(one, totals, place) for one in answers),
        "</main>",
    ]
    return whole_page("Runs over time", body)


def _part(one: Answer, totals: RunTotals, place: str) -> str:
    rows = list(one.table.take(slice(0, _ROWS)).rows())
    columns = [column for column in one.table.schema.columns if column.name != "file"]
    columns = [column for column in columns if any(_cell(column.name, row[column.name], "") != "-" for row in rows)]
    cells = [[_cell(column.name, row[column.name], totals.currency) for column in columns] for row in rows]
    more = len(one.table) - len(rows)
    content = [
        listing(one.sentences),
        *(_bars(rows) if one.name == "fleet" else []),
        table(one.table.schema.doc, [column.name for column in columns], cells) if rows else "",
        paragraph(f"{more:,} more rows are in the output of the command below.", "soft") if more > 0 else "",
        code_line(f"stashtrace history {place} {one.name}"),
    ]
    return section(one.name, one.title[0].upper() + one.title[1:], *content)


def _bars(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return a bar for each of the first groups of the fleet: parts of the time inside of counted steps."""
    drawn = [
        legend([name for name in COLUMNS if any(row[f"{name}_ratio"] > 0 for row in rows)]),
        paragraph("A bar is the time inside of counted steps; the ratios of the table are of all time.", "soft"),
    ]
    for row in rows[:_BARS]:
        inside = sum(row[f"{name}_ratio"] for name in COLUMNS)
        if inside <= 0:
            continue
        columns = [{"column": name, "share_ratio": row[f"{name}_ratio"] / inside} for name in COLUMNS]
        size = f"{count_noun(row['runs_count'], 'run')}, {machine_hours_text(row['machine_hours'])}"
        title = f"{shortened(row['group'], _JOB_WIDTH)}: {size}"
        drawn += [tag("h3", text(title)), budget_bar(columns, percents([c["share_ratio"] for c in columns]), title)]
    return drawn


def _cell(name: str, value: Any, currency: str) -> str:
    """Return a value as a person reads it; ``-`` where it is not known."""
    if isinstance(value, str):
        return (short_commit(value) if name.endswith("commit") else shortened(value, _JOB_WIDTH)) or "-"
    if value == -1 and name in ("cost", "energy_kwh", "energy_ratio", "exit_code", "relative_step_ratio"):
        return "-"
    if name.endswith("_ns"):
        return duration_text(value)
    if name in ("slower_ratio", "relative_step_ratio"):
        return f"{value:.2f}"
    if name in ("chance_ratio", "turn_ratio"):
        return f"{value:.2g}"
    if name.endswith("_ratio"):
        return percent_text(value)
    if name == "cost":
        return cost_text(value, currency)
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"
