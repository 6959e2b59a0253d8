"""A history as one HTML file: no script, nothing to load, light and dark."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from stashtrace.lab.history.answers import Answer
from stashtrace.lab.history.questions.late_hosts import NAMED
from stashtrace.lab.history.run_totals import RunTotals
from stashtrace.lab.history.runs_over_time import runs_over_time
from stashtrace.lab.history.sentences import LABELS, machine_hours_text, short_commit
from stashtrace.lab.recommend.recommendation_text import cost_text
from stashtrace.report.budget_groups import percents
from stashtrace.report.page.html import code_line, listing, paragraph, section, table, tag, text, whole_page
from stashtrace.report.page.svg_pictures import budget_bar, swatch
from stashtrace.schema.stall_kinds import COLUMNS
from stashtrace.text import count_noun
from stashtrace.units import duration_text, percent_text, shortened

#: Rows of a table on the page; the command prints all of them.
_ROWS = 50
#: Groups of the fleet with a bar.
_BARS = 12
_JOB_WIDTH = 70
#: Columns that the output of a command has, and the page has not: the bars show them, or they are for checking.
_LEFT_OUT = {"file", "expected_count", "chance_ratio", "turn_ratio", *(f"{name}_ratio" for name in COLUMNS)}
#: Columns whose values are kinds of time.
_OF_KINDS = ("largest", "cause", "kind")
#: Column -> its title, where it is more than its name without the unit.
_TITLES = {
    "relative_step_ratio": "step by its job's median",
    "outside_ratio": "outside of steps",
    "energy_kwh": "energy, kWh",
    "step_ns": "mean step",
    "late_count": "late in runs",
    "share_ratio": "part",
    "cause_count": "in runs",
    "wait_ns": "others wait a step",
    "wait_ratio": "part of the step",
    "lost_hours": "machine hours lost",
    "before_commit": "commit before",
    "before_count": "runs before",
    "after_count": "runs after",
    "before_ns": "step before",
    "after_ns": "step after",
    "growth_ratio": "grew by",
    "low_ratio": "at least",
    "high_ratio": "at most",
    "kind": "what grew most",
    "kind_ratio": "by",
    "slower_ratio": "times slower",
    "slower_count": "slower during",
    "lost_ns": "time lost",
    "read_ns": "mean read",
    "usual_ns": "mean read before and after",
    "largest": "largest stall",
    "largest_ratio": "its part",
    "losses_count": "lost records",
}


def history_page(totals: RunTotals, answers: Sequence[Answer]) -> str:
    """Return the HTML of the page: each question with its sentences and the first rows of its table."""
    place = shlex.quote(totals.history.place.text)
    said = {one.name: one for one in answers}
    about = said["fleet"].sentences[0] if "fleet" in said and said["fleet"].sentences else ""
    headline = _headline(said)
    commits = said["commits"].table if "commits" in said else None
    body = [
        "<header>",
        tag("h1", text("Runs over time")),
        paragraph(headline, "claim") if headline else "",
        paragraph(about, "soft") if about else "",
        listing(totals.history.left_out),
        "</header>",
        '<main id="main">',
        section("time", "How long their steps were", *runs_over_time(totals, commits)),
        *(_part(one, totals, place, {headline, about}) for one in answers),
        "</main>",
        tag("footer", code_line(f"stashtrace history {place}")),
    ]
    return whole_page("Runs over time", [part for part in body if part])


def _headline(said: dict[str, Answer]) -> str:
    """Return what matters most: a host that is late, a commit that slowed a job, else what most time went to."""
    found = {
        "hosts": lambda row: row["verdict"] in NAMED,
        "commits": lambda row: row["verdict"] in ("slower", "faster"),
        "interference": lambda row: True,
        "costs": lambda row: row["cause"] != "compute",
    }
    for name, matters in found.items():
        if name in said and said[name].sentences and any(map(matters, said[name].table.rows())):
            return said[name].sentences[0]
    return ""


def _part(one: Answer, totals: RunTotals, place: str, told: set[str]) -> str:
    rows = list(one.table.take(slice(0, _ROWS)).rows())
    columns = [column for column in one.table.schema.columns if column.name not in _LEFT_OUT]
    columns = [column for column in columns if any(_cell(column.name, row[column.name], "") != "-" for row in rows)]
    cells = [[_cell(column.name, row[column.name], totals.currency) for column in columns] for row in rows]
    head = [_title(column.name) for column in columns]
    more = len(one.table) - len(rows)
    content = [
        listing([said for said in one.sentences if said not in told]),
        *(_bars(rows) if one.name == "fleet" else []),
        table(one.table.schema.doc, head, cells, wraps=True) if rows else "",
        paragraph(f"{more:,} more rows are in the output of the command below.", "soft") if more > 0 else "",
        code_line(f"stashtrace history {place} {one.name}"),
    ]
    return section(one.name, one.title[0].upper() + one.title[1:], *content)


def _title(name: str) -> str:
    """Return the title of a column in words."""
    plain = name.removesuffix("_count").removesuffix("_ratio").removesuffix("_ns")
    return _TITLES.get(name, plain.replace("_", " "))


def _bars(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return a bar for each of the first groups of the fleet: parts of the time inside of counted steps."""
    drawn = []
    for row in rows[:_BARS]:
        inside = sum(row[f"{name}_ratio"] for name in COLUMNS)
        if inside <= 0:
            continue
        columns = [{"column": name, "share_ratio": row[f"{name}_ratio"] / inside} for name in COLUMNS]
        shares = percents([column["share_ratio"] for column in columns])
        size = f"{count_noun(row['runs_count'], 'run')}, {machine_hours_text(row['machine_hours'])}"
        title = f"{shortened(row['group'], _JOB_WIDTH)}: {size}"
        key = "".join(
            f"<li>{swatch(column['column'])}{column['column']} {text(share)}</li>"
            for column, share in zip(columns, shares, strict=True)
            if column["share_ratio"] > 0
        )
        bar = budget_bar(columns, shares, title) + tag("ul", key, class_="key")
        drawn.append(tag("li", tag("h3", text(title)) + tag("div", bar)))
    said = paragraph("A bar is the time inside of counted steps; the table is about all time.", "soft")
    return [tag("ul", "".join(drawn), class_="groups"), said] if drawn else []


def _cell(name: str, value: Any, currency: str) -> str:
    """Return a value as a person reads it; ``-`` where it is not known."""
    if isinstance(value, str):
        shown = LABELS.get(value, value) if name in _OF_KINDS else value
        return (short_commit(shown) if name.endswith("commit") else shortened(shown, _JOB_WIDTH)) or "-"
    if value == -1 and name in ("cost", "energy_kwh", "energy_ratio", "exit_code", "relative_step_ratio"):
        return "-"
    if name.endswith("_ns"):
        return duration_text(value)
    if name in ("slower_ratio", "relative_step_ratio"):
        return f"{value:.2f}"
    if name.endswith("_ratio"):
        return percent_text(value)
    if name == "cost":
        return cost_text(value, currency)
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"
