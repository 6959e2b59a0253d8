"""The answer of ``stashtrace characterize`` as one HTML file: no script, nothing to load, light and dark."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import html
import shlex
from collections.abc import Sequence
from typing import Any

from stashtrace.lab.characterize.answer import Characterization
from stashtrace.lab.characterize.differential import CONFIGURATIONS, SIDES
from stashtrace.lab.characterize.report import (
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
from stashtrace.lab.plot import check_plot_file, save_figure
from stashtrace.summary.pictures import KIND_COLOURS, new_figure, plain_axes
from stashtrace.units import duration_text

_STYLE = """
:root { color-scheme: light dark; --line: #d5d5d5; --soft: #666; --paper: #fff; --ink: #1a1a1a; --bar: #eee }
@media (prefers-color-scheme: dark) {
  :root { --line: #3a3a3a; --soft: #a5a5a5; --paper: #161616; --ink: #e8e8e8; --bar: #262626 } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
  background: var(--paper); color: var(--ink) }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin-top: 2rem }
.lead { font-size: 1.1rem; border-left: 4px solid #D55E00; padding-left: .8rem }
.scroll { overflow-x: auto }
table { border-collapse: collapse; width: 100% } th, td { text-align: left; padding: .3rem .8rem .3rem 0;
  border-bottom: 1px solid var(--line); vertical-align: top } td.n { white-space: nowrap }
th { font-weight: 600; color: var(--soft) } .soft { color: var(--soft) } code { overflow-wrap: anywhere }
.row { display: grid; grid-template-columns: 9.5rem 1fr; align-items: center; margin: .35rem 0; gap: .6rem }
.stack { display: flex; height: 1.4rem; background: var(--bar); border-radius: 3px; overflow: hidden }
.stack span { height: 100% }
.share { position: relative; height: 1.4rem; background: var(--bar); border-radius: 3px }
.share span { position: absolute; top: 0; bottom: 0 }
.share .interval { top: 45%; bottom: 45%; min-width: 2px; background: var(--ink) }
.share .zero { min-width: 1px; background: var(--soft) }
.key { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin: 0 .3em 0 1em }
"""


def characterization_page(answer: Characterization) -> str:
    """HTML of the page."""
    words = title(answer)
    heading = words[0].upper() + words[1:]
    stall_head = ("stall", "share of the step", "as published by Stash", "costs", "the attribution says")
    body = [
        f"<h1>{heading}</h1>",
        f"<p><code>{_text(shlex.join(answer.facts.get('command', ())))}</code></p>",
        f'<p class="lead">{_text(bottleneck_text(answer))}</p>',
        *_warnings(answer),
        "<h2>Steps</h2>",
        _table(("step", "data", "cache", "devices", "step time"), _configuration_rows(answer)),
        *(f'<p class="soft">{_text(text)}</p>' for text in state_texts(answer)),
        *_stacks(answer),
        "<h2>Stalls</h2>",
        _table(stall_head, _stall_rows(answer)),
        *_shares(answer),
        f'<p class="soft">{_text(_machine(answer))}</p>',
    ]
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{heading}</title>'
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}<style>{_STYLE}</style></head><body>\n'
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _text(value: object) -> str:
    return html.escape(str(value))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = "".join(f"<th>{_text(name)}</th>" for name in head)
    lines = ["<tr>" + "".join(f'<td class="n">{cell}</td>' for cell in row) + "</tr>" for row in rows]
    return f'<div class="scroll"><table><tr>{cells}</tr>{"".join(lines)}</table></div>'


def _warnings(answer: Characterization) -> list[str]:
    quick = "quick: fewer and shorter runs" if answer.facts.get("quick") else ""
    texts = [*filter(None, (quick, emulation_text(answer))), *answer.disagreements(), *answer.notes]
    return ["<ul>" + "".join(f"<li>{_text(text)}</li>" for text in texts) + "</ul>"] if texts else []


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
        rows.append([str(configuration), *map(_text, (data, cache, place, said))])
    return rows


def _stall_rows(answer: Characterization) -> list[list[str]]:
    stalls = answer.stalls()
    rows = []
    for name in CURES:
        if name not in stalls:
            rows.append([name, '<span class="soft">not measured</span>', "", "", ""])
            continue
        stall, beside = stalls[name], answer.attributed_difference_ns(name)
        says = duration_text(beside.value) if beside else ""
        texts = (share_text(stall.clean), published_text(stall), duration_text(stall.lost_ns.value), says)
        key = f'<span class="key" style="background:{KIND_COLOURS[name]};margin-left:0"></span>{name}'
        rows.append([key, *map(_text, texts)])
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
    kinds = dict.fromkeys(name for _, parts in columns for name, _ in parts)
    key = "".join(f'<span class="key" style="background:{KIND_COLOURS[k]}"></span>{k}' for k in kinds)
    out = [f"<p>{key}</p>"]
    for label, parts in columns:
        spans = "".join(
            f'<span style="width:{100 * max(ns, 0.0) / longest:.2f}%;background:{KIND_COLOURS[name]}"'
            f' title="{name} {_text(duration_text(ns))}"></span>'
            for name, ns in parts
        )
        out.append(f'<div class="row"><div>{label}</div><div class="stack">{spans}</div></div>')
    return out


def _shares(answer: Characterization) -> list[str]:
    """A bar per stall; if an interval reaches below zero, the scale begins there."""
    stalls = answer.stalls()
    clean = {name: stalls[name].clean for name in CURES if name in stalls}
    ends = [0.0, 1.0, *(x for c in clean.values() for x in ((c.value, c.low, c.high) if c.known else (c.value,)))]
    low, high = max(min(ends), -1.0), min(max(ends), max([1.0, *(c.value for c in clean.values())]))

    def span(of: str, begin: float, end: float, colour: str = "") -> str:
        left, right = (100 * (min(max(x, low), high) - low) / (high - low) for x in (begin, end))
        style = f"left:{left:.2f}%;width:{right - left:.2f}%" + (f";background:{colour}" if colour else "")
        return f'<span class="{of}" style="{style}"></span>'

    out = []
    for name, share in clean.items():
        bar = span("value", min(share.value, 0.0), max(share.value, 0.0), KIND_COLOURS[name])
        if share.known:
            bar += span("interval", share.low, share.high)
        if low < 0:
            bar += span("zero", 0.0, 0.0)
        out.append(f'<div class="row"><div>{name}</div><div class="share">{bar}</div></div>')
    zero = "the upright line is nothing, the right end" if low < 0 else "a full bar"
    said = f'<p class="soft">The thin line in each bar is the interval; {zero} is the whole step.</p>'
    return [*out, said] if out else []


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
    axes.set_xticks(range(len(columns)), [_in_two_lines(label) for label, _ in columns], fontsize=8)
    axes.set_ylabel("step, ms")
    axes.margins(y=0.3)
    if columns:
        axes.legend(frameon=False, fontsize=8, ncols=2, loc="upper left")


def _in_two_lines(label: str) -> str:
    head, _, tail = label.rpartition(" ")
    return f"{head}\n{tail}"


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
