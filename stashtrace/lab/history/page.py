"""A history as one HTML file: no script, nothing to load, light and dark. Runs stand on an axis of dates."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stashtrace.lab.history.answers import Answer
from stashtrace.lab.history.questions.late_hosts import NAMED
from stashtrace.lab.history.run_totals import RunTotals, typical_steps
from stashtrace.lab.history.sentences import LABELS, machine_hours_text, short_commit
from stashtrace.lab.recommend.recommendation_text import cost_text
from stashtrace.report.budget_groups import percents
from stashtrace.report.page.html import code_line, listing, paragraph, section, table, tag, text, whole_page
from stashtrace.report.page.svg_pictures import budget_bar, swatch
from stashtrace.schema.stall_kinds import COLUMNS
from stashtrace.schema.table import Table
from stashtrace.text import count_noun
from stashtrace.units import duration_text, percent_text, shortened

#: Rows of a table on the page; the command prints all of them.
_ROWS = 50
#: Groups of the fleet with a bar.
_BARS = 12
_JOB_WIDTH = 70
#: Runs on the axis of dates, the newest; dates on it.
_RUNS, _DATES = 500, 5
#: Of that picture, in pixels: its height, the part for points, and how far these stay off its upper edge.
_HEIGHT, _PLOT, _MARGIN = 190, 160, 20
#: Part of its width for the scale, in percent.
_LEFT = 9
#: Longer steps than so many times the median of their job are drawn at this height.
_MOST_RATIO = 3.0
_DAY_NS = 86_400 * 10**9
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
        section("time", "How long their steps were", *_runs_over_time(totals, commits)),
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


@dataclass(frozen=True, slots=True)
class _Axes:
    """Of the picture of runs: moments from left to right, steps by the median of their job from below."""

    first_ns: int
    last_ns: int
    low_ratio: float
    top_ratio: float

    def across(self, ns: int) -> str:
        """Return the place of a moment."""
        return f"{_LEFT + (98 - _LEFT) * (ns - self.first_ns) / (self.last_ns - self.first_ns):.2f}%"

    def down(self, ratio: float) -> float:
        """Return the place of a step, in pixels."""
        part = (min(ratio, self.top_ratio) - self.low_ratio) / (self.top_ratio - self.low_ratio)
        return round(_PLOT - (_PLOT - _MARGIN) * part, 1)

    def drawn(self) -> Iterator[str]:
        """Yield the lines and numbers of the scale, and the dates."""
        for ratio in (self.low_ratio, 1.0, self.top_ratio):
            at = self.down(ratio)
            yield f'<line class="grid" x1="{_LEFT - 1}%" x2="100%" y1="{at}" y2="{at}"/>'
            yield tag("text", f"{ratio:.2f}", class_="scale", x="0", y=str(at + 4))
        long = self.last_ns - self.first_ns >= 2 * _DATES * _DAY_NS
        for number in range(_DATES):
            ns = self.first_ns + (self.last_ns - self.first_ns) * number // (_DATES - 1)
            anchor = "start" if number == 0 else "end" if number == _DATES - 1 else "middle"
            class_ = "scale" if number in (0, _DATES // 2, _DATES - 1) else "scale between"
            date, y = _moment(ns)[slice(10) if long else slice(5, 16)], str(_HEIGHT - 8)
            yield tag("text", date, class_=class_, x=self.across(ns), y=y, text_anchor=anchor)


def _runs_over_time(totals: RunTotals, commits: Table | None) -> list[str]:
    """Return the picture of the runs and what it shows; ``commits``: rows of ``slow_commits``, drawn as lines."""
    begin_ns, usual_ns = totals.history.begin_ns, typical_steps(totals)
    drawn = np.flatnonzero(totals.step_ns > 0)[-_RUNS:]
    if not len(drawn):
        return [paragraph("No run has steps.")]
    ratios = totals.step_ns[drawn] / usual_ns[drawn]
    first, last = int(begin_ns[drawn].min()), int(begin_ns[drawn].max())
    room_ns = 0 if last > first else _DAY_NS // 2
    low, high = float(ratios.min()), float(ratios.max())
    axes = _Axes(first - room_ns, last + room_ns, min(low, 0.9), min(max(high, 1.1), _MOST_RATIO))
    parts = [*axes.drawn(), *_changes(totals, commits, axes)]
    for run, ratio in zip(drawn.tolist(), ratios.tolist(), strict=True):
        said = (
            f"{_moment(int(begin_ns[run]))}: step of {duration_text(float(totals.step_ns[run]))}, {ratio:.2f} of the"
            f" median; {shortened(totals.jobs[run], _JOB_WIDTH)}{', failed' if totals.failed[run] else ''}"
        )
        place = f'cx="{axes.across(int(begin_ns[run]))}" cy="{axes.down(ratio)}"'
        class_ = "run failed" if totals.failed[run] else "run"
        parts.append(f'<circle class="{class_}" {place} r="4">{tag("title", text(said))}</circle>')
    label = (
        f"Step of {count_noun(len(drawn), 'run')} by the median of its job, from {_moment(first)} to {_moment(last)}:"
        f" between {low:.2f} and {high:.2f}"
    )
    size = {"width": "100%", "height": str(_HEIGHT)}
    picture = tag("svg", "".join(parts), class_="dates", **size, role="img", aria_label=label)
    words = "A point is a run: its mean step by the median of the runs of its job, at the time when it began (UTC)."
    words += " Hollow points failed." if totals.failed[drawn].any() else ""
    words += f" Points above {axes.top_ratio:g} are drawn at the upper edge." if high > axes.top_ratio else ""
    older = int((totals.step_ns > 0).sum()) - len(drawn)
    words += f" {count_noun(older, 'older run')} {'is' if older == 1 else 'are'} not drawn." if older > 0 else ""
    return [picture, paragraph(words, "soft")]


def _changes(totals: RunTotals, commits: Table | None, axes: _Axes) -> Iterator[str]:
    """Yield a line for each commit that changed the step of a job."""
    rows = commits.rows() if commits is not None else ()
    for commit in dict.fromkeys(row["commit"] for row in rows if row["verdict"] in ("slower", "faster")):
        own = totals.history.begin_ns[totals.history.fact("commit") == commit]
        if len(own) and axes.first_ns <= own.min() <= axes.last_ns:
            at = axes.across(int(own.min()))
            yield f'<line class="change" x1="{at}" x2="{at}" y1="0" y2="{_PLOT}"/>'
            yield tag("text", text(short_commit(commit)), class_="scale", x=at, y="12", dx="4")


def _moment(ns: int) -> str:
    """Return a moment as date and time, UTC."""
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(ns // 10**9))
