"""The answer of ``stashtrace characterize`` as one HTML file: no script, nothing to load, light and dark."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from stashtrace.lab.characterize.answer import Characterization
from stashtrace.lab.characterize.characterization_text import (
    CONFIGURATION_WORDS,
    CURES,
    bottleneck_text,
    emulation_text,
    published_text,
    share_text,
    state_texts,
    time_text,
    title,
)
from stashtrace.lab.characterize.differential import CONFIGURATIONS, SIDES
from stashtrace.lab.number_intervals import Interval
from stashtrace.lab.plot_helpers import check_plot_file, save_figure
from stashtrace.report.page.html import code_line, listing, paragraph, section, table, tag, text, whole_page
from stashtrace.report.page.svg_pictures import budget_bar, swatch
from stashtrace.schema.stall_kinds import KIND_COLOURS
from stashtrace.summary.picture_style import new_figure, plain_axes
from stashtrace.units import duration_text

#: Height of a bar in pixels, as in the report.
_BAR_HEIGHT = 22


def characterization_page(answer: Characterization) -> str:
    """Return the HTML of the page."""
    words = title(answer)
    heading = words[0].upper() + words[1:]
    step_head = ("step", "data", "cache", "devices", "step time")
    stall_head = ("stall", "share of the step", "as published by Stash", "costs", "the attribution says")
    body = [
        "<header>",
        tag("h1", text(heading)),
        code_line(shlex.join(answer.facts.get("command", ()))),
        paragraph(bottleneck_text(answer), "claim"),
        listing(_warnings(answer)),
        "</header>",
        '<main id="main">',
        section(
            "steps",
            "Steps",
            table("Mean step of each configuration", step_head, _configuration_rows(answer), wraps=True),
            *(paragraph(state, "soft") for state in state_texts(answer)),
            *_stacks(answer),
        ),
        section(
            "stalls",
            "Stalls",
            table("What the configurations differ by", stall_head, _stall_rows(answer), wraps=True),
            *_shares(answer),
        ),
        "</main>",
        tag("footer", paragraph(_machine(answer))),
    ]
    return whole_page(heading, body)


def _warnings(answer: Characterization) -> list[str]:
    quick = "quick: fewer and shorter runs" if answer.facts.get("quick") else ""
    return [*filter(None, (quick, emulation_text(answer))), *answer.disagreements(), *answer.notes]


def _configuration_rows(answer: Characterization) -> list[list[str]]:
    times = answer.step_times()
    rows = []
    for configuration in CONFIGURATIONS:
        data, cache, where = CONFIGURATION_WORDS[configuration]
        status, why = answer.status(configuration)
        said = time_text(times[configuration]) if configuration in times else f"{status}: {why}"
        place = where.replace("all", str(answer.facts["devices_count"]))
        if configuration == 5 and emulation_text(answer):
            place = place.replace("a network", "an emulated network")
        rows.append([str(configuration), data, cache, place, said])
    return rows


def _stall_rows(answer: Characterization) -> list[list[str]]:
    stalls = answer.stalls()
    rows = []
    for name in CURES:
        if name not in stalls:
            rows.append([name, "not measured", "", "", ""])
            continue
        stall, beside = stalls[name], answer.attributed_difference_ns(name)
        says = duration_text(beside.value) if beside else ""
        rows.append([name, share_text(stall.clean), published_text(stall), duration_text(stall.lost_ns.value), says])
    return rows


def stacks(answer: Characterization) -> list[tuple[str, list[tuple[str, float]]]]:
    """(label, parts of a step in ns) of the job alone, on all devices, with its data, over a network."""
    times, stalls = answer.step_times(), answer.stalls()
    base = times[1].value if 1 in times else times[2].value if 2 in times else None
    if base is None:
        return []
    parts: list[tuple[str, float]] = [("compute", base)]
    out = [("one device", list(parts))] if 1 in times else []
    if "interconnect" in stalls:
        parts = [*parts, ("interconnect", stalls["interconnect"].lost_ns.value)]
    if 2 in times:
        out.append(("all devices", list(parts)))
    data = list(parts)
    for name, label in (("prep", "with data, warm"), ("fetch", "with data, cold")):
        if name in stalls:
            data = [*data, (name, stalls[name].lost_ns.value)]
            out.append((label, data))
    if "network" in stalls:
        out.append(("over a network", [*parts, ("network", stalls["network"].lost_ns.value)]))
    return out


def _stacks(answer: Characterization) -> list[str]:
    """Bars of the parts of a step, on one scale; a negative stall has no width."""
    columns = stacks(answer)
    longest = max((sum(max(ns, 0.0) for _, ns in parts) for _, parts in columns), default=0.0)
    if not longest:
        return []
    bars = []
    for label, parts in columns:
        shares = [{"column": name, "share_ratio": max(ns, 0.0) / longest} for name, ns in parts]
        key = "".join(f"<li>{swatch(name)}{text(_part_text(name, ns))}</li>" for name, ns in parts)
        bar = budget_bar(shares, [duration_text(ns) for _, ns in parts], label)
        whole = duration_text(sum(ns for _, ns in parts))
        bars.append((f"{label}: {whole}", bar + tag("ul", key, class_="key")))
    return [_bars_with_titles(bars)]


def _part_text(name: str, ns: float) -> str:
    """Return a part of a bar in words; one below zero has no width."""
    return f"{name} {duration_text(ns)}" + (", below zero: not drawn" if ns < 0 else "")


def _bars_with_titles(bars: Sequence[tuple[str, str]]) -> str:
    """Return bars, each beside its title."""
    items = (tag("li", tag("h3", text(name)) + tag("div", bar)) for name, bar in bars)
    return tag("ul", "".join(items), class_="groups")


def _beside_zero(share: Interval) -> str:
    """Say what it means that a share or its interval reaches below zero."""
    if share.value < 0 and (not share.known or share.high < 0):
        return ": below zero, the steps without it were no shorter"
    return ": the interval holds zero, so it may be nothing" if share.known and share.low < 0 else ""


def _shares(answer: Characterization) -> list[str]:
    """A bar per stall; if an interval reaches below zero, the scale begins there."""
    stalls = answer.stalls()
    clean = {name: stalls[name].clean for name in CURES if name in stalls}
    ends = [0.0, 1.0, *(x for c in clean.values() for x in ((c.value, c.low, c.high) if c.known else (c.value,)))]
    low, high = max(min(ends), -1.0), min(max(ends), max([1.0, *(c.value for c in clean.values())]))

    def percent(value: float) -> float:
        return 100 * (min(max(value, low), high) - low) / (high - low)

    def rectangle(class_: str, begin: float, end: float) -> str:
        x, width = f"{percent(begin):.2f}%", f"{percent(end) - percent(begin):.2f}%"
        return tag("rect", "", class_=class_, x=x, width=width, height=str(_BAR_HEIGHT))

    def line(class_: str, begin: float, end: float, top: int, bottom: int) -> str:
        x1, x2 = f"{percent(begin):.2f}%", f"{percent(end):.2f}%"
        return tag("line", "", class_=class_, x1=x1, x2=x2, y1=str(top), y2=str(bottom))

    bars = []
    for name, share in clean.items():
        drawn = rectangle("ground", low, high)
        drawn += rectangle(f"k-{name}", min(share.value, 0.0), max(share.value, 0.0))
        if share.known:
            drawn += line("interval", share.low, share.high, _BAR_HEIGHT // 2, _BAR_HEIGHT // 2)
        if low < 0:
            drawn += line("zero", 0.0, 0.0, 0, _BAR_HEIGHT)
        label = f"{name}: {share_text(share)}"
        svg = tag("svg", drawn, class_="share", width="100%", height=str(_BAR_HEIGHT), role="img", aria_label=label)
        bars.append((name, svg + paragraph(share_text(share) + _beside_zero(share), "soft")))
    zero = "the upright line is nothing, the right end" if low < 0 else "a full bar"
    said = paragraph(f"The thin line in each bar is the interval; {zero} is the whole step.", "soft")
    return [_bars_with_titles(bars), said] if bars else []


def _machine(answer: Characterization) -> str:
    machine = answer.facts.get("machine") or {}
    devices = ", ".join(dict.fromkeys(machine.get("devices") or ())) or "no GPU"
    words = [f"{machine.get('cores_count', '?')} cores", str(machine.get("cpu", "")), devices]
    words += [answer.facts.get("created", ""), f"stashtrace {answer.facts.get('stashtrace_version', '')}"]
    return " · ".join(filter(None, words))


def plot_characterization(answer: Characterization, path: str) -> None:
    """Draw into a file; the suffix chooses the format. Negative stalls are drawn as nothing, their whiskers remain."""
    check_plot_file(path)
    figure = new_figure(8.4, 4.2)
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.25))
    _draw_stacks(left, answer)
    _draw_shares(right, answer)
    emulated = (answer.facts.get("network") or {}).get("emulated")
    if emulated and "network" in answer.stalls():
        figure.suptitle("the network is emulated", fontsize=9, color=KIND_COLOURS["network"])
    for axes in (left, right):
        plain_axes(axes)
        axes.grid(False, axis="x")
    save_figure(figure, path)


def _draw_stacks(axes: Any, answer: Characterization) -> None:
    """One column per kind of job: alone, on all devices, with its data, over a network."""
    columns = stacks(answer)
    seen = set()
    for place, (_, parts) in enumerate(columns):
        bottom = 0.0
        for name, value in parts:
            height = max(value, 0.0) / 1e6
            shown = {} if name in seen else {"label": name}
            seen.add(name)
            axes.bar(place, height, 0.7, bottom=bottom, color=KIND_COLOURS[name], **shown)
            bottom += height
    axes.set_xticks(range(len(columns)), ["\n".join(label.rsplit(" ", 1)) for label, _ in columns], fontsize=8)
    axes.set_ylabel("step, ms")
    axes.margins(y=0.3)
    if columns:
        axes.legend(frameon=False, fontsize=8, ncols=2, loc="upper left")


def _draw_shares(axes: Any, answer: Characterization) -> None:
    stalls, times = answer.stalls(), answer.step_times()
    names = [name for name in CURES if name in stalls]
    for place, name in enumerate(names):
        clean = stalls[name].clean
        value = 100 * clean.value
        axes.bar(place - 0.18, max(value, 0.0), 0.34, color=KIND_COLOURS[name])
        if clean.known:
            whisker = [[value - 100 * clean.low], [100 * clean.high - value]]
            axes.errorbar([place - 0.18], [value], whisker, fmt="none", ecolor="#000000", capsize=3, lw=1)
        beside = answer.attributed_difference_ns(name)
        if beside is not None:
            share = 100 * beside.value / times[SIDES[name][1]].value
            axes.bar(
                place + 0.18,
                max(share, 0.0),
                0.34,
                color=KIND_COLOURS[name],
                alpha=0.45,
                hatch="//",
                edgecolor="#FFFFFF",
            )
    axes.set_xticks(range(len(names)), names, fontsize=8)
    axes.set_ylabel("share of the slower step, %")
    axes.axhline(0, color="#000000", lw=0.8)
    axes.set_title("full: by difference, with its interval; hatched: by attribution", fontsize=8)
