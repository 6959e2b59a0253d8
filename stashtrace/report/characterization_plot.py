"""The picture of a characterisation: what a step is made of, by the steps, and each stall beside the attribution."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
from typing import Any

from stashtrace.report.characterization import CURES, Characterized
from stashtrace.report.characterization_page import COLOURS, stacks
from stashtrace.report.plot_file import check_plot_file, new_figure, plain_axes, save_figure


def plot_characterization(found: Characterized, path: str) -> None:
    """Draw into a file; the suffix chooses the format. Negative stalls are drawn as nothing, their whiskers remain."""
    check_plot_file(path)
    figure = new_figure(8.4, 4.2)
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.25))
    _stacks(left, found)
    _shares(right, found)
    emulated = (found.facts.get("network") or {}).get("emulated")
    if emulated and "network" in found.stalls():
        figure.suptitle("the network is emulated", fontsize=9, color="#D55E00")
    for axes in (left, right):
        plain_axes(axes)
        axes.grid(False, axis="x")
    save_figure(figure, path)


def _stacks(axes: Any, found: Characterized) -> None:
    """One column per kind of job: alone, on all devices, with its data, over a network."""
    columns = stacks(found)
    seen = set()
    for place, (_, parts) in enumerate(columns):
        bottom = 0.0
        for name, value in parts:
            height = max(value, 0.0) / 1e6
            shown = {} if name in seen else {"label": name}
            seen.add(name)
            axes.bar(place, height, 0.7, bottom=bottom, color=COLOURS[name], **shown)
            bottom += height
    axes.set_xticks(range(len(columns)), [_in_two_lines(label) for label, _ in columns], fontsize=8)
    axes.set_ylabel("step, ms")
    axes.margins(y=0.3)
    if columns:
        axes.legend(frameon=False, fontsize=8, ncols=2, loc="upper left")


def _in_two_lines(label: str) -> str:
    head, _, tail = label.rpartition(" ")
    return f"{head}\n{tail}"


def _shares(axes: Any, found: Characterized) -> None:
    stalls, times = found.stalls(), found.step_times()
    slower = {"interconnect": 2, "network": 5, "prep": 4, "fetch": 3}
    names = [name for name in CURES if name in stalls]
    for place, name in enumerate(names):
        clean = stalls[name].clean
        value = 100 * clean.value
        axes.bar(place - 0.18, max(value, 0.0), 0.34, color=COLOURS[name])
        if not math.isnan(clean.low):
            whisker = [[value - 100 * clean.low], [100 * clean.high - value]]
            axes.errorbar([place - 0.18], [value], whisker, fmt="none", ecolor="#000000", capsize=3, lw=1)
        beside = found.attributed_difference_ns(name)
        if beside is not None:
            share = 100 * beside[0] / times[slower[name]].value
            axes.bar(
                place + 0.18, max(share, 0.0), 0.34, color=COLOURS[name], alpha=0.45, hatch="//", edgecolor="#FFFFFF"
            )
    axes.set_xticks(range(len(names)), names, fontsize=8)
    axes.set_ylabel("share of the slower step, %")
    axes.axhline(0, color="#000000", lw=0.8)
    axes.set_title("full: by difference, with its interval; hatched: by attribution", fontsize=8)
