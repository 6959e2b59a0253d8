"""The picture of a forecast: a step against the cached share, as compute, prep and fetch. matplotlib is optional."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np

from stashtrace.analysis.cache_forecast import Inputs
from stashtrace.model.table import Table
from stashtrace.report.plot_file import check_plot_file, new_figure, plain_axes, save_figure

#: Okabe and Ito's palette, which the colour-blind can tell apart.
_COLOURS = {"compute": "#009E73", "prep": "#E69F00", "fetch": "#0072B2"}


def plot_forecast(inputs: Inputs, table: Table, policy: str, path: str) -> None:
    """Draw a forecast into a file; the suffix chooses the format."""
    check_plot_file(path)
    figure = new_figure(7.2, 4.4)
    axes = figure.subplots()
    share = 100 * table["cached_ratio"]
    parts = {name: table[f"{name}_ns"] / 1e6 for name in _COLOURS}
    if len(share) > 1:
        axes.stackplot(share, *parts.values(), labels=list(parts), colors=list(_COLOURS.values()), alpha=0.75, lw=0)
        low, high = table["low_ns"] / 1e6, table["high_ns"] / 1e6
        axes.fill_between(share, low, high, color="#555555", alpha=0.3, lw=0, label="at least, at most")
    else:
        below = np.zeros(len(share))
        for name, values in parts.items():
            axes.bar(share, values, bottom=below, width=4, color=_COLOURS[name], label=name)
            below = below + values
    axes.plot(share, table["simulated_ns"] / 1e6, "o", ms=4, color="#000000", label="simulated")
    if len(share) > 1:  # a cache of which share would have answered as much as the run's did
        at = np.interp(inputs.measured_hit_ratio, table["hit_ratio"], share)
        step = inputs.measured_step_ns / 1e6
        axes.plot(at, step, "D", ms=6, color="#D55E00", label="the run, by its hits")
    axes.set_xlim(-2, 102)
    axes.set_ylim(bottom=0)
    axes.set_xlabel(f"cached share of the data set, % ({policy})")
    axes.set_ylabel("step, ms")
    # Above the axes: the areas below the step leave no room.
    axes.legend(frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(0, 1), ncols=6, columnspacing=1.2)
    plain_axes(axes)
    save_figure(figure, path)
