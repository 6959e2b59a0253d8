"""The picture of a history's page: the step of each run by the median of its job, on an axis of dates."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import time

import numpy as np

from stashtrace.lab.history.run_totals import RunTotals, typical_steps
from stashtrace.lab.history.sentences import short_commit
from stashtrace.report.page.html import paragraph, tag, text
from stashtrace.schema.table import Table
from stashtrace.text import count_noun
from stashtrace.units import duration_text, shortened

#: Runs drawn, the newest; dates on the axis.
_RUNS, _DATES = 500, 5
#: Of the picture, in pixels: its height, the part for points, and how far these stay off its upper edge.
_HEIGHT, _PLOT, _MARGIN = 190, 160, 20
#: Part of its width for the scale, in percent.
_LEFT = 9
#: Longer steps than so many times the median of their job are drawn at this height.
_MOST_RATIO = 3.0
_JOB_WIDTH, _DAY_NS = 60, 86_400 * 10**9


def runs_over_time(totals: RunTotals, commits: Table | None) -> list[str]:
    """Return the picture and what it shows; ``commits``: rows of ``slow_commits``, which are drawn as lines."""
    begin_ns, usual_ns = totals.history.begin_ns, typical_steps(totals)
    drawn = np.flatnonzero(totals.step_ns > 0)[-_RUNS:]
    if not len(drawn):
        return [paragraph("No run has steps.")]
    ratio = totals.step_ns[drawn] / usual_ns[drawn]
    first, last = int(begin_ns[drawn].min()), int(begin_ns[drawn].max())
    first, last = (first, last) if last > first else (first - _DAY_NS // 2, last + _DAY_NS // 2)
    low, top = min(float(ratio.min()), 0.9), min(max(float(ratio.max()), 1.1), _MOST_RATIO)

    def across(ns: int) -> str:
        return f"{_LEFT + (98 - _LEFT) * (ns - first) / (last - first):.2f}%"

    def down(value: float) -> str:
        return f"{_PLOT - (_PLOT - _MARGIN) * (min(value, top) - low) / (top - low):.1f}"

    parts = []
    for value in (low, 1.0, top):
        parts.append(f'<line class="grid" x1="{_LEFT - 1}%" x2="100%" y1="{down(value)}" y2="{down(value)}"/>')
        parts.append(tag("text", f"{value:.2f}", class_="scale", x="0", y=str(float(down(value)) + 4)))
    for row in commits.rows() if commits is not None else ():
        own = begin_ns[totals.history.fact("commit") == row["commit"]]
        if row["verdict"] in ("slower", "faster") and len(own) and first <= own.min() <= last:
            at = across(int(own.min()))
            parts.append(f'<line class="change" x1="{at}" x2="{at}" y1="0" y2="{_PLOT}"/>')
            parts.append(tag("text", text(short_commit(row["commit"])), class_="scale", x=at, y="12", dx="4"))
    for run, value in zip(drawn.tolist(), ratio.tolist(), strict=True):
        ended = ", failed" if totals.failed[run] else ""
        said = (
            f"{_moment(int(begin_ns[run]))}: step of {duration_text(totals.step_ns[run])}, {value:.2f} of the median;"
            f" {shortened(totals.jobs[run], _JOB_WIDTH)}{ended}"
        )
        place = f'cx="{across(int(begin_ns[run]))}" cy="{down(value)}"'
        class_ = "run failed" if ended else "run"
        parts.append(f'<circle class="{class_}" {place} r="4">{tag("title", text(said))}</circle>')
    for at in range(_DATES):
        ns = first + (last - first) * at // (_DATES - 1)
        anchor = "start" if at == 0 else "end" if at == _DATES - 1 else "middle"
        date = _moment(ns)[:10] if last - first >= 2 * _DATES * _DAY_NS else _moment(ns)[5:16]
        class_ = "scale" if at in (0, _DATES // 2, _DATES - 1) else "scale between"
        parts.append(tag("text", date, class_=class_, x=across(ns), y=str(_HEIGHT - 8), text_anchor=anchor))
    label = (
        f"Step of {count_noun(len(drawn), 'run')} by the median of its job, from {_moment(first)} to {_moment(last)}:"
        f" between {ratio.min():.2f} and {ratio.max():.2f}"
    )
    picture = tag(
        "svg", "".join(parts), class_="dates", width="100%", height=str(_HEIGHT), role="img", aria_label=label
    )
    return [picture, paragraph(_explained(len(drawn), totals, float(ratio.max()), top), "soft")]


def _explained(count: int, totals: RunTotals, most: float, top: float) -> str:
    """Say what the points are."""
    words = "A point is a run: its mean step by the median of the runs of its job, at the time when it began (UTC)."
    if totals.failed.any():
        words += " Hollow points failed."
    if most > top:
        words += f" Points above {top:g} are drawn at the upper edge."
    left_out = int((totals.step_ns > 0).sum()) - count
    return words + (f" {left_out:,} older runs are not drawn." if left_out > 0 else "")


def _moment(ns: int) -> str:
    """Return a moment as date and time, UTC."""
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(ns // 10**9))
