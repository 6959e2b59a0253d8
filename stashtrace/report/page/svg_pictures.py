"""Pictures of the page as SVG: bars of the budget, heat maps, cut-outs of the timeline.

Horizontal places are percents, so that a picture is as wide as the screen and its text keeps its size. Colours are
classes of the style sheet, which has them for light and dark.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from itertools import groupby
from typing import Any

from stashtrace.report.page.html import tag, text
from stashtrace.report.page.page_words import KINDS
from stashtrace.report.stalls_by_rank_and_step import class_of
from stashtrace.units import duration_text, shortened

#: Heights in pixels: a lane of a cut-out with its title, the bar in it, the scale below.
_LANE, _TITLE, _BAR, _SCALE = 46, 17, 20, 22
#: A heat map is so high, and its rows at most so high each.
_HEAT_HEIGHT, _HEAT_ROW = 160, 24
_NAME_WIDTH = 44
#: What the first words of a lane's title say of its role.
_ROLES = {
    "file": "",
    "worker": "",
    "late": "late: ",
    "victim": "waits: ",
    "waiting": "waits: ",
}
_OTHER_KINDS = {"read": "reads that did not block", "blocked": "reads that blocked", "worker": "makes a batch"}


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / max(whole, 1):.3f}".rstrip("0").rstrip(".") + "%"


def budget_bar(columns: list[dict[str, Any]], shares: list[str], label: str) -> str:
    """Return the bar of a group of ranks; ``shares`` are the texts of its columns."""
    parts, at = [], 0.0
    for column, share in zip(columns, shares, strict=True):
        if column["share_ratio"] > 0:
            name = tag("title", f"{text(column['column'])} {text(share)}")
            width = _percent(column["share_ratio"], 1)
            parts.append(
                f'<rect class="k-{column["column"]}" x="{_percent(at, 1)}" width="{width}" height="22">{name}</rect>'
            )
        at += column["share_ratio"]
    told = ", ".join(f"{c['column']} {s}" for c, s in zip(columns, shares, strict=True) if c["share_ratio"] > 0)
    return tag(
        "svg", "".join(parts), class_="bar", width="100%", height="22", role="img", aria_label=f"{label}: {told}"
    )


def heat_map(part: dict[str, Any], ranks: list[str], steps: list[str]) -> str:
    """Return one heat map; cells of a class are one path."""
    rows = part["permille"]
    paths: dict[int, list[str]] = {}
    for y, row in enumerate(rows):
        x = 0
        for value, run in groupby(map(class_of, row)):
            width = len(list(run))
            paths.setdefault(value, []).append(f"M{x} {y}h{width}v1h-{width}z")
            x += width
    drawn = "".join(f'<path class="c{value}" d="{"".join(d)}"/>' for value, d in sorted(paths.items()) if value >= 0)
    height = min(_HEAT_HEIGHT, _HEAT_ROW * len(rows))
    name = KINDS[part["kind"]]
    most = f"{part['most_permille'] / 10:.1f} % (ranks {part['most_ranks']}, steps {part['most_steps']})"
    label = (
        f"Heat map of {name}: rank {ranks[0]} on top to rank {ranks[-1]} at the bottom, steps {steps[0]} to {steps[-1]}"
        f" from left to right; the largest cell has {most}"
    )
    return (
        f'<svg class="heat" width="100%" height="{height}" viewBox="0 0 {len(steps)} {len(rows)}"'
        f' preserveAspectRatio="none" role="img" aria-label="{text(label)}" data-kind="{part["kind"]}">{drawn}</svg>'
    )


def cut_out(cut: dict[str, Any]) -> str:
    """Return a cut-out of the timeline: a lane per file, worker and rank, and arrows between them."""
    length = cut["end_ns"] - cut["begin_ns"]
    height = _LANE * len(cut["lanes"]) + _SCALE
    parts = [_lane(lane, at * _LANE, length) for at, lane in enumerate(cut["lanes"])]
    parts += [_arrow(arrow, length) for arrow in cut["arrows"]]
    parts.append(_scale(length, height))
    lanes = "; ".join(_title(lane) for lane in cut["lanes"])
    label = f"Cut-out of the timeline, {duration_text(length)} long: {lanes}. The table below has the same bars."
    return tag("svg", "".join(parts), class_="cut", width="100%", height=str(height), role="img", aria_label=label)


def _title(lane: dict[str, Any]) -> str:
    more = f", {lane['text']}" if lane["text"] else ""
    return f"{_ROLES[lane['role']]}{shortened(lane['label'], _NAME_WIDTH)}{more}"


def _lane(lane: dict[str, Any], top: int, length: int) -> str:
    title = f'<text class="label" x="0" y="{top + 13}">{text(_title(lane))}</text>'
    ground = f'<rect class="ground" x="0" y="{top + _TITLE}" width="100%" height="{_BAR}"/>'
    bars = []
    for piece in lane["pieces"]:
        width = piece["end_ns"] - piece["begin_ns"]
        cut = "".join(
            words
            for words, is_so in ((", began before", piece["began_before"]), (", ends after", piece["ends_after"]))
            if is_so
        )
        name = tag("title", text(f"{piece_text(piece)}, {duration_text(width)}{cut}"))
        bars.append(
            f'<rect class="k-{piece["kind"]}" x="{_percent(piece["begin_ns"], length)}" y="{top + _TITLE}"'
            f' width="{_percent(width, length)}" height="{_BAR}">{name}</rect>'
        )
    return title + ground + "".join(bars)


def piece_text(piece: dict[str, Any]) -> str:
    """Return what a bar of a lane is."""
    return str(KINDS.get(piece["kind"], piece["text"]))


def _arrow(arrow: dict[str, Any], length: int) -> str:
    """Return a line from the bar of a lane to that of another, with a head that points along it."""
    down = arrow["to_lane"] > arrow["from_lane"]
    first = arrow["from_lane"] * _LANE + _TITLE + (_BAR if down else 0)
    last = arrow["to_lane"] * _LANE + _TITLE + (0 if down else _BAR)
    begin, end = _percent(arrow["from_ns"], length), _percent(arrow["to_ns"], length)
    head = "M-4-7L0 0L4-7z" if down else "M-4 7L0 0L4 7z"
    name = tag("title", text(arrow["text"]))
    return (
        f'<g class="arrow">{name}<line x1="{begin}" y1="{first}" x2="{end}" y2="{last}"/>'
        f'<svg x="{end}" y="{last}" overflow="visible"><path d="{head}"/></svg></g>'
    )


def _scale(length: int, height: int) -> str:
    """Return the scale: the begin, the middle and the end in time since the begin."""
    places = (("0%", "start", 0.0), ("50%", "middle", 0.5), ("100%", "end", 1.0))
    return "".join(
        tag("text", text(duration_text(length * part)), class_="scale", x=x, y=str(height - 6), text_anchor=anchor)
        for x, anchor, part in places
    )


def legend(kinds: list[str]) -> str:
    """Return the list of colours and what they mean."""
    named = ((kind, KINDS.get(kind, _OTHER_KINDS.get(kind, kind))) for kind in kinds)
    items = "".join(f"<li>{swatch(kind)}{text(name)}</li>" for kind, name in named)
    return tag("ul", items, class_="key")


def swatch(kind: str) -> str:
    """Return a small square in the colour of a kind; a reader of screens passes over it."""
    return _square(f"k-{kind}")


def class_swatch(number: int) -> str:
    """Return a small square in the colour of a class of the heat maps."""
    return _square(f"c{number}")


def _square(class_: str) -> str:
    square = f'<rect class="{class_}" width="12" height="12"/>'
    return f'<svg class="swatch" width="12" height="12" aria-hidden="true">{square}</svg>'
