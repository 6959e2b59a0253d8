"""The picture of a history: what each day's machine hours went to, hosts that are late, steps of jobs by run."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import numpy as np

from stashtrace.lab.history.energy import OUTSIDE
from stashtrace.lab.history.questions.fleet import fleet_view
from stashtrace.lab.history.questions.late_hosts import NAMED, late_hosts
from stashtrace.lab.history.questions.slow_commits import slow_commits
from stashtrace.lab.history.run_totals import RunTotals
from stashtrace.lab.history.sentences import short_commit
from stashtrace.lab.plot_helpers import check_plot_file, save_figure
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.stall_kinds import COLUMN_COLOURS
from stashtrace.summary.picture_style import COLOURS, FAINT, MARKERS, new_figure, plain_axes
from stashtrace.units import shortened

#: Hosts and jobs drawn, those with the most late runs and machine hours first; days, the newest.
_HOSTS, _JOBS, _DAYS = 15, 5, 60
_OUTSIDE_COLOUR = "#D0D0D0"
_NAME_WIDTH = 32


def plot_history(totals: RunTotals, path: str) -> None:
    """Draw the fleet over time into a file; the suffix chooses the format."""
    check_plot_file(path)
    figure = new_figure(9.0, 8.0)
    days, hosts, steps = figure.subplots(3, 1, height_ratios=(1.1, 1.0, 1.2))
    _draw_days(days, totals)
    _draw_hosts(hosts, totals)
    _draw_steps(steps, totals)
    for axes in (days, hosts, steps):
        plain_axes(axes)
    save_figure(figure, path)


def _draw_days(axes: Any, totals: RunTotals) -> None:
    """Bars of machine hours by day, divided among the columns of the summary."""
    table = fleet_view(totals, "day")
    table = table.take(slice(max(len(table) - _DAYS, 0), len(table)))
    place, bottom = np.arange(len(table)), np.zeros(len(table))
    colours = COLUMN_COLOURS | {OUTSIDE: _OUTSIDE_COLOUR}
    for name, colour in colours.items():
        hours = table["machine_hours"] * table[f"{name}_ratio"]
        if hours.any():
            axes.bar(place, hours, 0.85, bottom=bottom, color=colour, label=name, lw=0)
            bottom += hours
    shown = place[:: max(len(place) // 8, 1)]
    axes.set_xticks(shown, [str(table["group"][at]) for at in shown], fontsize=7)
    axes.set_ylabel("machine hours")
    axes.set_title("what each day's machine hours went to", fontsize=9, loc="left")
    axes.legend(fontsize=7, frameon=False, ncols=5, loc="upper left", bbox_to_anchor=(0.0, -0.12))


def _draw_hosts(axes: Any, totals: RunTotals) -> None:
    """Bars of late runs by host; those that chance does not explain are filled."""
    table = late_hosts(totals)
    table = table.take(np.argsort(-table["late_count"], kind="stable")[:_HOSTS])
    place = np.arange(len(table))
    named = np.isin(table["verdict"], NAMED)
    axes.bar(place, table["runs_count"], 0.7, color="#EEEEEE", label="runs")
    axes.bar(place, table["late_count"], 0.7, color=np.where(named, COLUMN_COLOURS["late"], "#BBBBBB"))
    axes.plot(place, table["expected_count"], "_", ms=14, color="#000000", label="late runs to expect")
    axes.set_xticks(place, [str(host) for host in table["host"]], fontsize=7, rotation=30, ha="right")
    axes.set_xlim(-0.6, max(len(table), 6) - 0.4)
    axes.set_ylabel("runs")
    axes.set_title("runs in which a host was the late one; coloured: beyond chance", fontsize=9, loc="left")
    if len(table):
        axes.legend(fontsize=7, frameon=False)


def _draw_steps(axes: Any, totals: RunTotals) -> None:
    """Step of each run by the median of its job, and lines at commits that changed it."""
    steps, begin = totals.step_ns, totals.history.begin_ns
    days = (begin - begin.min()) / (24 * 3600e9)
    hours = {int(one): float(totals.hours[rows].sum()) for one, rows in GroupBy(totals.series).items()}
    for at, one in enumerate(sorted(hours, key=lambda key: -hours[key])[:_JOBS]):
        rows = np.flatnonzero((totals.series == one) & (steps > 0))
        if len(rows):
            ratio = steps[rows] / np.median(steps[rows])
            name = shortened(totals.jobs[int(rows[0])], _NAME_WIDTH)
            axes.plot(days[rows], ratio, MARKERS[at], ms=4, mfc="none", color=COLOURS[at], label=name)
    commits = totals.history.fact("commit")
    for row in slow_commits(totals).rows():
        if row["verdict"] in ("slower", "faster"):
            moment = float(days[commits == row["commit"]].min())
            axes.axvline(moment, color="#000000", lw=0.9, ls="--")
            axes.annotate(
                short_commit(row["commit"]), (moment, 1.0), xycoords=("data", "axes fraction"), fontsize=7, color=FAINT
            )
    axes.set_xlabel("days since the first run")
    axes.set_ylabel("step by its job's median")
    axes.set_title("step of each run; dashed: commits that changed one", fontsize=9, loc="left", pad=14)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=7, frameon=False)
