"""Pictures of the page as SVG: bars of the budget, heat maps, cut-outs of the timeline.

Horizontal places are percents, so that a picture is as wide as the screen and its text keeps its size. Colours are
classes of the style sheet, which has them for light and dark.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from stashtrace.report.page.html import percent_of, square, style, swatch, tag, text
from stashtrace.report.page.page_words import KINDS
from stashtrace.report.policy import POLICY
from stashtrace.report.steps_over_time import class_of
from stashtrace.text.units import duration_text, shortened

#: Heights in pixels: a lane of a cut-out with its title, the bar in it, the scale below.
_LANE, _TITLE, _BAR, _SCALE = 46, 17, 20, 22
#: A heat map is so high, and its rows at most so high each.
_HEAT_HEIGHT, _HEAT_ROW = 160, 24
_NAME_WIDTH = 44
#: Heights of the step time in pixels and in units of its paths.
_CURVE_HEIGHT, _CURVE_UNITS = 100, 200
#: What the first words of a lane's title say of its role.
_ROLES = {"file": "", "worker": "", "late": "late: ", "victim": "waits: ", "waiting": "waits: "}
#: Of a picture in a separate file, in pixels.
_FILE_WIDTH = 900
_OTHER_KINDS = {"read": "reads that did not block", "blocked": "reads that blocked", "worker": "makes a batch"}


def picture_file(rows: Sequence[tuple[str, str, str]], height: int) -> str:
    """Return pictures of a page as an SVG file, one below the other: title, picture of this height, words."""
    parts, y = [], 8
    for title, picture, words in rows:
        inner = tag("svg", picture, x="12", y=str(y + 26), width=str(_FILE_WIDTH - 24), height=str(height))
        parts.append(tag("text", text(title), x="12", y=str(y + 18)) + inner)
        parts.append(tag("text", text(words), class_="soft", x="12", y=str(y + height + 44)))
        y += height + 60
    drawn = f'<rect width="100%" height="100%" fill="var(--paper)"/>{"".join(parts)}'
    own = "text { font: 14px system-ui, sans-serif; fill: var(--ink) }"
    own += " .soft, .scale { font-size: 12px; fill: var(--soft) }"
    size = f'width="{_FILE_WIDTH}" height="{y}" viewBox="0 0 {_FILE_WIDTH} {y}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{style()}{own}</style>{drawn}</svg>\n'


def gain_bar(column: str, before: float, after: float, label: str) -> str:
    """Return the bar of a step with what the removal of a cause saves; ``before`` and ``after`` are parts of the step.

    ``column``: of the budget, or empty.
    """
    left, width = percent_of(after, 1), percent_of(before - after, 1)
    saved = f'<rect class="k-{column or "cause"}" x="{left}" width="{width}" height="14"/>'
    drawn = f'<rect class="ground" width="100%" height="14"/><rect class="left" width="{left}" height="14"/>'
    return tag("svg", drawn + saved, class_="saves", width="100%", height="14", role="img", aria_label=label)


def curve_top(curve: dict[str, Any]) -> int:
    """Return the step time at the upper edge of its picture, ns."""
    usual_ns = int(sorted(curve["mean_ns"])[len(curve["mean_ns"]) // 2])
    longest = sorted(curve["high_ns"])
    kept_ns = max(POLICY.cut_off_times * usual_ns, int(longest[int(POLICY.cut_off_unless_ratio * (len(longest) - 1))]))
    return max(round(POLICY.curve_room_times * min(int(longest[-1]), kept_ns)), 1)


def step_curve(curve: dict[str, Any]) -> str:
    """Return the picture of the step time: the range of the ranks as a band, their mean as a line."""
    top_ns, count = curve_top(curve), len(curve["mean_ns"])

    def heights(name: str) -> list[int]:
        return [round(_CURVE_UNITS * (1 - min(ns / top_ns, 1))) for ns in curve[name]]

    low, mean, high = (heights(name) for name in ("low_ns", "mean_ns", "high_ns"))
    back = f"V{low[-1]}{_stairs(low[::-1], -1)}z"
    paths = f'<path class="band" d="M0 {high[0]}{_stairs(high, 1)}{back}"/>' if low != high else ""
    paths += f'<path class="line" d="M0 {mean[0]}{_stairs(mean, 1)}"/>'
    label = f"{curve_words(curve)}; on a scale from 0 to {duration_text(top_ns)}"
    drawn = (
        f'<svg width="100%" height="100%" viewBox="0 0 {count} {_CURVE_UNITS}" preserveAspectRatio="none"'
        f' x="0" aria-hidden="true">{paths}</svg>'
    )
    scale = tag("text", text(duration_text(top_ns)), class_="scale", x="2", y="12")
    scale += tag("text", "0", class_="scale", x="2", y=str(_CURVE_HEIGHT - 4))
    return tag("svg", drawn + scale, width="100%", height=str(_CURVE_HEIGHT), role="img", aria_label=label)


def curve_words(curve: dict[str, Any]) -> str:
    """Return what the picture of the step time shows."""
    return (
        f"Step time of {curve['steps_count']:,} steps, {curve['first_steps'][0]} to {curve['last_step']}: mean"
        f" {duration_text(curve['whole_mean_ns'])}, shortest {duration_text(min(curve['low_ns']))}, longest"
        f" {duration_text(max(curve['high_ns']))}; {curve['slow_count']:,} slow"
    )


def _stairs(heights: list[int], way: int) -> str:
    """Return a path over cells of one unit, from the height of the first; ``way``: 1 to the right, -1 to the left."""
    parts, at = [], heights[0]
    for height, cells in groupby(heights):
        parts.append((f"v{height - at}" if height != at else "") + f"h{way * len(list(cells))}")
        at = height
    return "".join(parts)


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
            f'<rect class="k-{piece["kind"]}" x="{percent_of(piece["begin_ns"], length)}" y="{top + _TITLE}"'
            f' width="{percent_of(width, length)}" height="{_BAR}">{name}</rect>'
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
    begin, end = percent_of(arrow["from_ns"], length), percent_of(arrow["to_ns"], length)
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


def class_swatch(number: int) -> str:
    """Return a small square in the colour of a class of the heat maps."""
    return square(f"c{number}")
