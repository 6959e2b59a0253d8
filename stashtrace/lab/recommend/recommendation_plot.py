"""The picture of a recommendation: time against cost, the Pareto front, the budgets. matplotlib is optional."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stashtrace.errors import UsageError
from stashtrace.lab.number_intervals import Interval
from stashtrace.lab.plot_helpers import Name, check_plot_file, place_names, save_figure
from stashtrace.lab.recommend.candidates import UNKNOWN, Candidate, faster
from stashtrace.lab.recommend.recommend import Recommendation
from stashtrace.schema.stall_kinds import KIND_COLOURS
from stashtrace.summary.picture_style import FAINT, new_figure, plain_axes

_COLOURS = {**KIND_COLOURS, UNKNOWN: "#777777"}


def plot_recommendation(answer: Recommendation, path: str) -> None:
    """Draw time and cost of all candidates with a price into a file; the suffix chooses the format.

    Raises UsageError if no candidate has a price, so that there is no second axis.
    """
    check_plot_file(path)
    priced = [candidate for candidate in answer.candidates if candidate.priced]
    if not priced:
        raise UsageError("no candidate has a price, so there is nothing to plot", hint="give one: --price NAME=VALUE")
    figure = new_figure(8.0, 5.0)
    axes = figure.subplots()
    front = sorted((candidate for candidate in priced if candidate.pareto), key=faster)
    hours, costs = [candidate.hours.value for candidate in front], [candidate.cost.value for candidate in front]
    axes.plot(hours, costs, color="#999999", lw=1.2, zorder=1, label="Pareto front")
    for candidate in priced:
        _draw(axes, candidate)
    _scales(axes, priced)
    _budgets(axes, answer)
    axes.set_xlabel("time, hours")
    axes.set_ylabel(f"cost, {priced[0].currency}".rstrip(", "))
    axes.set_title("filled: measured    hollow: predicted    colour: what limits the step", fontsize=8, loc="left")
    axes.legend(handles=_legend(axes, priced), frameon=False, fontsize=8)
    plain_axes(axes)
    axes.grid(True, which="minor", color="#EEEEEE", lw=0.6)
    _names(figure, axes, answer, priced)
    save_figure(figure, path)


def _draw(axes: Any, candidate: Candidate) -> None:
    colour = _COLOURS[candidate.limited_by]
    x, y = candidate.hours.value, candidate.cost.value
    for ends in _error_lines([candidate]):
        axes.plot(*ends, color=colour, lw=1.0, alpha=0.45, solid_capstyle="butt", zorder=2)
    fill = colour if candidate.measured else "#FFFFFF"
    axes.plot(x, y, "o", ms=8 if candidate.pareto else 6, mfc=fill, mec=colour, mew=1.6, zorder=3)


def _error_lines(candidates: Sequence[Candidate]) -> list[tuple[Any, Any]]:
    """Ends of each interval. Cost is time times price: one error, drawn along the line through the origin."""
    return [
        ([candidate.hours.low, candidate.hours.high], [candidate.cost.low, candidate.cost.high])
        for candidate in candidates
        if candidate.hours.known and candidate.cost.known
    ]


def _budgets(axes: Any, answer: Recommendation) -> None:
    if answer.budget.hours is not None:
        axes.axvline(answer.budget.hours, color="#000000", lw=0.9, ls="--", label="budget")
    if answer.budget.cost is not None:
        axes.axhline(answer.budget.cost, color="#000000", lw=0.9, ls="--", label="budget")


def _scales(axes: Any, candidates: Sequence[Candidate]) -> None:
    """Make both axes logarithmic where one spans more than a factor of four: one price is then one straight line."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    every = [
        [bound for candidate in candidates for bound in _bounds(candidate.hours)],
        [bound for candidate in candidates for bound in _bounds(candidate.cost)],
    ]
    if min(min(values) for values in every) <= 0 or all(max(values) <= 4 * min(values) for values in every):
        axes.margins(0.12)
        return
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis, values in zip((axes.xaxis, axes.yaxis), every, strict=True):
        wide = max(values) > 30 * min(values)
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if wide else (1, 1.5, 2, 3, 4, 5, 6, 8)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.margins(0.12)


def _names(figure: Any, axes: Any, answer: Recommendation, candidates: Sequence[Candidate]) -> None:
    """Write the names beside the points, those of the front first."""
    front = sorted((candidate for candidate in candidates if candidate.pareto), key=faster)
    lines: list[tuple[Any, Any]] = [
        ([candidate.hours.value for candidate in front], [candidate.cost.value for candidate in front])
    ]
    lines += _error_lines(candidates)
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    if answer.budget.hours is not None:
        lines.append(([answer.budget.hours] * 2, [low, high]))
    if answer.budget.cost is not None:
        lines.append(([left, right], [answer.budget.cost] * 2))
    names = [
        Name(
            candidate.hours.value,
            candidate.cost.value,
            candidate.name,
            8 if candidate.pareto else 7,
            "#000000" if candidate.pareto else FAINT,
        )
        for candidate in sorted(candidates, key=lambda c: (not c.pareto, c.hours.value, c.cost.value))
    ]
    place_names(figure, axes, names, lines)


def _legend(axes: Any, candidates: Sequence[Candidate]) -> list[Any]:
    from matplotlib.lines import Line2D

    kinds = {candidate.limited_by for candidate in candidates}
    own = [Line2D([], [], marker="o", ls="", color=_COLOURS[kind], label=kind) for kind in _COLOURS if kind in kinds]
    lines, seen = axes.get_legend_handles_labels()
    first = {name: line for line, name in zip(lines, seen, strict=True)}
    return [*own, *first.values()]


def _bounds(span: Interval) -> tuple[float, ...]:
    """Value and ends; an end at zero has no place on a logarithmic axis."""
    return (span.value, *(end for end in (span.low, span.high) if span.known and end > 0))
