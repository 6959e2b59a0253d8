"""A history to show: its questions as blocks, and as one HTML file on which runs stand on an axis of dates."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stashtrace.lab.history.answers import MOST, Answer, machine_hours_text, short_commit, shown_cell
from stashtrace.lab.history.questions.late_hosts import NAMED
from stashtrace.lab.history.run_totals import RunTotals, typical_steps
from stashtrace.report.blocks import Bar, Bars, Block, Command, Listing, Paragraph, Part, Picture, Table, page_of
from stashtrace.report.budget_groups import percents
from stashtrace.report.page.html import paragraph, tag, text
from stashtrace.report.page.svg_pictures import picture_file
from stashtrace.schema import table as tables
from stashtrace.schema.stall_kinds import COLUMNS
from stashtrace.text import count_noun
from stashtrace.units import duration_text, shortened

#: Rows of a table on the page, of which the command prints all; columns of this detail are in its output alone.
_ROWS, _DETAIL = 50, 2
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


def overview_blocks(answers: Sequence[Answer]) -> list[Block | None]:
    """Return the first sentences of each question."""
    return [Listing(_first(one.sentences), one.title) for one in answers]


def _first(sentences: Sequence[str]) -> list[str]:
    more = len(sentences) - MOST - 1
    return [*sentences[: MOST + 1], *([f"and {more} more"] if more > 0 else [])]


def history_blocks(totals: RunTotals, answers: Sequence[Answer]) -> list[Block | None]:
    """Return a history to show: what matters most, the runs, each question with its sentences and first rows."""
    said = {one.name: one for one in answers}
    about = said["fleet"].sentences[0] if "fleet" in said and said["fleet"].sentences else ""
    headline = _headline(said)
    commits = said["commits"].table if "commits" in said else None
    drawn, words = _runs_over_time(totals, commits)
    return [
        Paragraph(headline, "claim") if headline else None,
        Paragraph(about, "soft") if about else None,
        Listing(totals.history.left_out),
        Part("time", "How long their steps were", [Picture(drawn + paragraph(words, "soft"))]),
        *(_part(one, totals, {headline, about}) for one in answers),
    ]


def history_page(totals: RunTotals, answers: Sequence[Answer]) -> str:
    """Return a history as one HTML file."""
    command = Command(f"stashtrace history {shlex.quote(totals.history.place.text)}")
    return page_of("Runs over time", history_blocks(totals, answers), command)


def history_picture(totals: RunTotals, answers: Sequence[Answer]) -> str:
    """Return the runs on the axis of dates as an SVG file."""
    commits = next((one.table for one in answers if one.name == "commits"), None)
    return picture_file([("How long the steps of runs were", *_runs_over_time(totals, commits))], _HEIGHT)


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


def _part(one: Answer, totals: RunTotals, told: set[str]) -> Part:
    place = shlex.quote(totals.history.place.text)
    rows = list(one.table.take(slice(0, _ROWS)).rows())
    columns = [column for column in one.table.schema.columns if column.detail < _DETAIL]
    cells = [[shown_cell(column, row[column.name], totals.currency) for column in columns] for row in rows]
    more = len(one.table) - len(rows)
    bars = _bars(rows) if one.name == "fleet" else []
    content = [
        Listing([said for said in one.sentences if said not in told]),
        Bars(bars),
        Paragraph("A bar is the time inside of counted steps; the table is about all time.", "soft") if bars else None,
        Table(one.table.schema.doc, [column.words for column in columns], cells, wraps=True),
        Paragraph(f"{more:,} more rows are in the output of the command below.", "soft") if more > 0 else None,
        Command(f"stashtrace history {place} {one.name}"),
    ]
    return Part(one.name, one.title[0].upper() + one.title[1:], content)


def _bars(rows: Sequence[dict[str, Any]]) -> list[Bar]:
    """Return a bar for each of the first groups of the fleet: parts of the time inside of counted steps."""
    bars = []
    for row in rows[:_BARS]:
        inside = sum(row[f"{name}_ratio"] for name in COLUMNS)
        if inside > 0:
            ratios = [row[f"{name}_ratio"] / inside for name in COLUMNS]
            parts = [part for part in zip(COLUMNS, ratios, percents(ratios), strict=True) if part[1] > 0]
            size = f"{count_noun(row['runs_count'], 'run')}, {machine_hours_text(row['machine_hours'])}"
            bars.append(Bar(f"{shortened(row['group'], _JOB_WIDTH)}: {size}", parts))
    return bars


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


def _runs_over_time(totals: RunTotals, commits: tables.Table | None) -> tuple[str, str]:
    """Return the picture of the runs and what it shows; ``commits``: rows of ``slow_commits``, drawn as lines."""
    begin_ns, usual_ns = totals.history.begin_ns, typical_steps(totals)
    drawn = np.flatnonzero(totals.step_ns > 0)[-_RUNS:]
    if not len(drawn):
        return "", "No run has steps."
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
    return picture, words


def _changes(totals: RunTotals, commits: tables.Table | None, axes: _Axes) -> Iterator[str]:
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
