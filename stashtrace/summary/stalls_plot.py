"""Pictures of stalls: a bar of kinds for each rank, and below it which steps of which ranks lost most."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.stalls.budget import OUTSIDE_STEPS, STALL_TOTALS, STALLS
from stashtrace.errors import UsageError
from stashtrace.schema.stall_kinds import KIND_COLOURS, words_of
from stashtrace.schema.table import Table
from stashtrace.summary.picture_style import FAINT, duration_axis, new_figure, plain_axes, require_matplotlib
from stashtrace.text.prose import count_noun
from stashtrace.text.units import duration_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure


#: Inches; more ranks than this share the height of this number.
_WIDTH, _RANK_HEIGHT, _TALL_RANKS = 9.0, 0.32, 16
#: Of more ranks than this, bars touch each other.
_APART_RANKS = 32
#: Most numbers along an axis.
_TICKS = 12


def plot_table(table: Table) -> Figure:
    """Draw a table for which there is a picture. Raises UsageError if there is none, or matplotlib is not installed."""
    if table.schema.name not in (STALLS.name, STALL_TOTALS.name):
        raise UsageError(
            f"there is no picture of the table {table.schema.name}",
            hint='stashtrace.analyze(trace, "stalls").plot() draws the stalls of each rank and step',
        )
    return plot_stalls(table)


def plot_stalls(table: Table) -> Figure:
    """Draw where the time of a step goes.

    ``table``: ``stalls`` by step, rank or run. Of stalls by step, bars are means over the steps that the table has;
    time outside of steps is left out, and a map of ranks and steps follows if there are several steps. Raises
    UsageError if the table has no step, or matplotlib is not installed.
    """
    require_matplotlib("plot()")
    by_step = table.schema.name == STALLS.name
    inside = table[table["step"] != OUTSIDE_STEPS] if by_step else table
    if not len(inside):
        raise UsageError("there is no step to draw", hint="`stashtrace info RUN` says what was recorded")
    ranks, rank_at = np.unique(inside["rank"], return_inverse=True)
    kinds = [kind for kind in KIND_COLOURS if (inside["kind"] == kind).any()]
    kinds += sorted(set(inside["kind"].tolist()) - set(kinds))
    steps = np.unique(inside["step"]) if by_step else np.empty(0, dtype=np.int64)
    bars_height = _RANK_HEIGHT * min(len(ranks), _TALL_RANKS) + 0.6
    rows = [bars_height, max(bars_height, 1.6)] if len(steps) > 1 else [bars_height]
    figure = new_figure(_WIDTH, sum(rows) + 0.9)
    all_axes = np.atleast_1d(figure.subplots(len(rows), 1, gridspec_kw={"height_ratios": rows}))
    _draw_bars(all_axes[0], inside, ranks, rank_at, kinds)
    if len(steps) > 1:
        _draw_map(figure, all_axes[1], inside, ranks, rank_at, steps)
    return figure  # type: ignore[no-any-return]


def _draw_bars(
    axes: Any, table: Table, ranks: npt.NDArray[np.int64], rank_at: npt.NDArray[np.int64], kinds: list[str]
) -> None:
    counts = _steps_of(table, len(ranks), rank_at)
    place, left = np.arange(len(ranks)), np.zeros(len(ranks))
    many = len(ranks) > _APART_RANKS
    for kind in kinds:
        chosen = table["kind"] == kind
        total = np.bincount(rank_at[chosen], weights=table["stall_ns"][chosen], minlength=len(ranks))
        mean = total / np.maximum(counts, 1)
        colour = KIND_COLOURS.get(kind, FAINT)
        axes.barh(place, mean, 1.0 if many else 0.8, left=left, color=colour, label=words_of(kind), lw=0)
        left += mean
    _rank_axis(axes, ranks)
    axes.set_xlim(0, left.max() * 1.02 or 1)
    duration_axis(axes.xaxis)
    plain_axes(axes)
    axes.grid(False, axis="y")
    low, high = int(counts.min()), int(counts.max())
    number = count_noun(high, "step") if low == high else f"{low:,} to {high:,} steps"
    axes.set_title(f"time of a step, mean of {number}", fontsize=9, loc="left")
    axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _steps_of(table: Table, ranks_count: int, rank_at: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    counts = np.zeros(ranks_count, dtype=np.int64)
    if "steps_count" in table:
        np.maximum.at(counts, rank_at, table["steps_count"])
        return counts
    steps, step_at = np.unique(table["step"], return_inverse=True)
    pairs = np.unique(rank_at * len(steps) + step_at)
    return np.bincount(pairs // len(steps), minlength=ranks_count)


def _draw_map(
    figure: Any,
    axes: Any,
    table: Table,
    ranks: npt.NDArray[np.int64],
    rank_at: npt.NDArray[np.int64],
    steps: npt.NDArray[np.int64],
) -> None:
    """Draw the time of each step of each rank that is not compute."""
    lost = np.full((len(ranks), len(steps)), np.nan)
    step_at = np.searchsorted(steps, table["step"])
    lost[rank_at, step_at] = 0.0
    stalled = table["kind"] != "compute"
    np.add.at(lost, (rank_at[stalled], step_at[stalled]), table["stall_ns"][stalled].astype(np.float64))
    extent = (-0.5, len(steps) - 0.5, len(ranks) - 0.5, -0.5)
    image = axes.imshow(lost, aspect="auto", interpolation="nearest", cmap="viridis", extent=extent, vmin=0)
    _rank_axis(axes, ranks)
    _whole_ticks(axes.xaxis, steps)
    axes.set_xlabel("step", fontsize=9)
    axes.set_title("time of each step that is not compute; white: no such step", fontsize=9, loc="left")
    bar = figure.colorbar(image, cax=axes.inset_axes((1.02, 0.0, 0.02, 1.0)))
    bar.ax.yaxis.set_major_formatter(lambda value, _: duration_text(value))


def _rank_axis(axes: Any, ranks: npt.NDArray[np.int64]) -> None:
    axes.set_ylim(len(ranks) - 0.5, -0.5)
    _whole_ticks(axes.yaxis, ranks)
    axes.set_ylabel("all ranks" if ranks.tolist() == [-1] else "rank", fontsize=9)


def _whole_ticks(axis: Any, numbers: npt.NDArray[np.int64]) -> None:
    """Name some places on an axis by the numbers of the ranks or steps that stand there; -1 has no name."""
    round_strides = (digit * 10**power for power in range(19) for digit in (1, 2, 5))
    stride = next(stride for stride in round_strides if len(numbers) <= stride * _TICKS)
    places = range(0, len(numbers), stride)
    axis.set_ticks(list(places), labels=["" if numbers[at] < 0 else str(numbers[at]) for at in places])
