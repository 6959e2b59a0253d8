"""The picture of a calibration: times with their fit above, residuals below, one column per backend.

matplotlib is an optional package and is imported by the functions that need it.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import numpy as np

from stashtrace.models.calibration import Calibration, Link
from stashtrace.report.calibration import bandwidth_text, latency_text
from stashtrace.report.plot_file import check_plot_file, new_figure, plain_axes, save_figure
from stashtrace.units import bytes_text, duration_text

#: Okabe and Ito's palette, which the colour-blind can tell apart, without its yellow.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_SHAPES = ("o", "s", "^", "D", "v", "P", "X")


def plot_calibration(calibration: Calibration, path: str) -> None:
    """Draw a calibration into a file; the suffix chooses the format."""
    check_plot_file(path)
    heads = list(dict.fromkeys((link.kind, link.backend, link.ranks_count) for link in calibration.links))
    figure = new_figure(7.2 * len(heads), 7.0)
    axes = figure.subplots(2, len(heads), squeeze=False, sharex="col", height_ratios=(3, 1))
    for column, head in enumerate(heads):
        own = [link for link in calibration.links if (link.kind, link.backend, link.ranks_count) == head]
        _draw(axes[0][column], axes[1][column], own)
        ranks = f", {head[2]} ranks" if head[2] > 1 else ""
        axes[0][column].set_title(f"{head[1]}{ranks}", loc="left", fontweight="bold")
    machine = calibration.machine
    what = ", ".join(dict.fromkeys(machine.get("devices", ()))) or machine.get("cpu", "")
    figure.suptitle(f"{what}    {calibration.date[:10]}", x=0.01, ha="left", fontsize=10, color="#555555")
    save_figure(figure, path)


def _draw(above: Any, below: Any, links: list[Link]) -> None:
    for number, link in enumerate(links):
        colour, shape = _COLOURS[number % len(_COLOURS)], _SHAPES[number % len(_SHAPES)]
        sizes, median = np.array(link.points.sizes_bytes), np.array(link.points.median_ns)
        low, high = np.array(link.points.low_ns), np.array(link.points.high_ns)
        label = f"{link.op}   {latency_text(link)}, {bandwidth_text(link)}"
        bars = np.maximum(np.stack((median - low, high - median)), 0)
        above.errorbar(sizes, median, yerr=bars, fmt=shape, ms=4.5, color=colour, lw=0.8, label=label)
        for piece in link.fit.pieces:
            x = np.geomspace(max(piece.min_bytes, 1), max(piece.max_bytes, 1), 60)
            time, error = link.fit.expected(x)
            above.plot(x, time, color=colour, lw=1.4)
            above.fill_between(x, np.maximum(time - error, time * 0.05), time + error, color=colour, alpha=0.12, lw=0)
        off = 100 * link.fit.residuals(sizes, median)
        below.plot(sizes, off, shape, ms=4, color=colour)
        below.vlines(sizes, 0, off, color=colour, lw=0.6, alpha=0.6)
    above.set_xscale("log", base=2)
    above.set_yscale("log")
    above.set_ylabel("time of one message")
    below.set_ylabel("off the fit, %")
    below.set_xlabel("message size, one rank's input" if links[0].ranks_count > 1 else "size")
    below.axhline(0, color="#555555", lw=0.8)
    _limit_residuals(below, links)
    above.legend(fontsize=8, frameon=False, loc="upper left")
    from matplotlib.ticker import FuncFormatter, NullLocator

    above.yaxis.set_major_formatter(FuncFormatter(lambda value, _: duration_text(value)))
    below.xaxis.set_major_formatter(FuncFormatter(lambda value, _: bytes_text(value)))
    for axes in (above, below):
        axes.xaxis.set_minor_locator(NullLocator())
        plain_axes(axes)


def _limit_residuals(axes: Any, links: list[Link]) -> None:
    """A single wild point must not flatten all others: those beyond are clipped and counted in the corner."""
    off = np.concatenate([np.abs(link.fit.residuals(link.points.sizes_bytes, link.points.median_ns)) for link in links])
    limit = 100 * max(3 * float(np.percentile(off, 75)), 0.05)
    axes.set_ylim(-limit, limit)
    beyond = int(np.count_nonzero(100 * off > limit))
    if beyond:
        text = f"{beyond} point{'' if beyond == 1 else 's'} beyond"
        axes.text(1, 1.02, text, transform=axes.transAxes, ha="right", va="bottom", fontsize=8, color="#555555")
