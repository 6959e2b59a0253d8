"""Helpers of the lab's pictures: checks of the file, fitted points, names next to points. matplotlib is optional."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stashtrace.calibration.file import Points
from stashtrace.calibration.fit_link import Fit
from stashtrace.calibration.robust_line import Floats
from stashtrace.errors import UsageError
from stashtrace.files.whole_files import complete_file
from stashtrace.summary.picture_style import COLOURS, FAINT, MARKERS, bytes_axis, duration_axis, require_matplotlib

_SUFFIXES = (".png", ".svg", ".pdf")


def check_plot_file(path: str) -> None:
    """Check before anything is measured or computed that a picture can be drawn.

    Raises UsageError if the suffix is unknown or matplotlib is not installed.
    """
    stem, suffix = os.path.splitext(path)
    if suffix.lower() not in _SUFFIXES:
        raise UsageError(f"{path}: a plot ends in {', '.join(_SUFFIXES)}", hint=f"--plot {stem or 'plot'}.png")
    require_matplotlib("--plot")


def save_figure(figure: Any, path: str) -> None:
    """Write a figure into a file, whole or not at all; the suffix chooses the format."""
    target = Path(path)
    with complete_file(target, hint="choose another file with --plot") as partial:
        figure.savefig(partial, dpi=150, format=target.suffix[1:].lower())


def draw_link(above: Any, below: Any, number: int, points: Points, fit: Fit, label: str) -> None:
    """Draw what was measured of a link and its fit, and below how far they are apart in percent."""
    colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
    sizes, median = np.array(points.sizes_bytes), np.array(points.median_ns)
    bars = np.maximum(np.stack((median - points.low_ns, np.array(points.high_ns) - median)), 0)
    above.errorbar(sizes, median, yerr=bars, fmt=marker, ms=4.5, lw=0.8, color=colour, label=label)
    for piece in fit.pieces:
        x = np.geomspace(max(piece.min_bytes, 1), max(piece.max_bytes, 2), 80)
        time, error = fit.expected(x)
        above.plot(x, time, color=colour, lw=1.4)
        above.fill_between(x, np.maximum(time - error, time * 0.05), time + error, color=colour, alpha=0.12, lw=0)
    off = 100 * fit.residuals(sizes, median)
    below.plot(sizes, off, marker, ms=4, color=colour)
    below.vlines(sizes, 0, off, color=colour, lw=0.6, alpha=0.6)


def scale_links(above: Any, below: Any, time_title: str, size_title: str) -> None:
    """Scale and label axes of times against sizes, with residuals below, after all links were drawn."""
    from matplotlib.ticker import NullLocator

    above.set_xscale("log", base=2)
    above.set_yscale("log")
    above.set_ylabel(time_title)
    below.set_ylabel("off the fit, %")
    below.set_xlabel(size_title)
    below.axhline(0, color=FAINT, lw=0.8)
    above.legend(fontsize=8, frameon=False, loc="upper left")
    duration_axis(above.yaxis)
    bytes_axis(below.xaxis)
    for axes in (above, below):
        axes.xaxis.set_minor_locator(NullLocator())


# Names next to the points of a picture, each where it covers least: no other name, few points, few lines.

#: Where a name may stand about its point: points to the corner of the text, and which corner; the first are preferred.
_GAP = 5.0
_PLACES = (
    (_GAP, _GAP, "left", "bottom"),
    (_GAP, -_GAP, "left", "top"),
    (-_GAP, _GAP, "right", "bottom"),
    (-_GAP, -_GAP, "right", "top"),
    (2 * _GAP, 0.0, "left", "center"),
    (-2 * _GAP, 0.0, "right", "center"),
    (0.0, 1.8 * _GAP, "center", "bottom"),
    (0.0, -1.8 * _GAP, "center", "top"),
)
#: What a name costs: beyond the axes, on another name, on a point, per sample of a line, and by its place in the list.
_OUTSIDE, _ON_NAME, _ON_POINT, _ON_LINE, _LATER = 1000.0, 500.0, 50.0, 2.0, 0.5
_SAMPLE_PIXELS = 3.0


@dataclass(frozen=True, slots=True)
class Name:
    """A name next to a point."""

    #: The point, in data coordinates.
    x: float
    y: float
    text: str
    #: Of the font, points.
    size: float = 7.0
    colour: str = FAINT


def place_names(figure: Any, axes: Any, names: Sequence[Name], lines: Sequence[tuple[Any, Any]] = ()) -> None:
    """Write names next to their points, after everything else has been drawn and scaled.

    ``names``: those that matter most first: they choose first. ``lines``: corners of lines, in data coordinates, that
    names had better not cover.
    """
    from matplotlib.patheffects import withStroke

    figure.draw_without_rendering()
    pixels = figure.dpi / 72
    frame = np.array(axes.get_window_extent().extents)
    points = _pixels(axes, [name.x for name in names], [name.y for name in names])
    along = [_samples(_pixels(axes, xs, ys)) for xs, ys in lines]
    inked = np.concatenate([part for part in along if len(part)] or [np.empty((0, 2))])
    taken: list[Floats] = []
    for name, at in zip(names, points, strict=True):
        text = axes.annotate(
            name.text,
            (name.x, name.y),
            xytext=(0, 0),
            textcoords="offset points",
            fontsize=name.size,
            color=name.colour,
            path_effects=[withStroke(linewidth=2.5, foreground="white")],
            zorder=5,
        )
        text.set_in_layout(False)
        box = text.get_window_extent()
        size = np.array([box.width, box.height])
        costs = [
            _cost(_box(at, size, place, pixels), frame, points, inked, taken) + number * _LATER
            for number, place in enumerate(_PLACES)
        ]
        dx, dy, ha, va = best = _PLACES[int(np.argmin(costs))]
        taken.append(_box(at, size, best, pixels))
        text.set_position((dx, dy))
        text.set_ha(ha)
        text.set_va(va)


def _pixels(axes: Any, xs: Any, ys: Any) -> Floats:
    table = np.stack([np.asarray(xs, dtype=np.float64), np.asarray(ys, dtype=np.float64)], axis=1)
    # A logarithmic axis has no place for zero: what would be at zero is no line to avoid.
    with np.errstate(divide="ignore", invalid="ignore"):
        pixels: Floats = np.asarray(axes.transData.transform(table), dtype=np.float64)
    return pixels


def _samples(corners: Floats) -> Floats:
    """Points along a line, some pixels apart."""
    corners = corners[np.isfinite(corners).all(axis=1)]
    parts = []
    for begin, end in itertools.pairwise(corners):
        count = int(min(np.hypot(*(end - begin)) / _SAMPLE_PIXELS, 2000)) + 1
        parts.append(begin + (end - begin) * np.linspace(0, 1, count)[:, None])
    return np.concatenate(parts) if parts else np.empty((0, 2))


def _box(at: Floats, size: Floats, place: tuple[float, float, str, str], pixels: float) -> Floats:
    """Left, bottom, right, top of a name."""
    dx, dy, ha, va = place
    left = at[0] + dx * pixels - size[0] * {"left": 0.0, "center": 0.5, "right": 1.0}[ha]
    bottom = at[1] + dy * pixels - size[1] * {"bottom": 0.0, "center": 0.5, "top": 1.0}[va]
    return np.array([left, bottom, left + size[0], bottom + size[1]])


def _cost(box: Floats, frame: Floats, points: Floats, inked: Floats, taken: Sequence[Floats]) -> float:
    outside = box[0] < frame[0] or box[1] < frame[1] or box[2] > frame[2] or box[3] > frame[3]
    on_names = sum(
        box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3] for other in taken
    )
    reach = 4.0  # points have a size
    on_points = _inside(points, box + np.array([-reach, -reach, reach, reach]))
    return float(_OUTSIDE * outside + _ON_NAME * on_names + _ON_POINT * on_points + _ON_LINE * _inside(inked, box))


def _inside(points: Floats, box: Floats) -> int:
    x, y = points[:, 0], points[:, 1]
    return int(((x > box[0]) & (x < box[2]) & (y > box[1]) & (y < box[3])).sum())
