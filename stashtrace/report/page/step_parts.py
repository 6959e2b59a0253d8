"""The parts of the page about single steps: how long each takes, heat maps by rank and step."""

from __future__ import annotations

from typing import Any

from stashtrace.report.blocks import Block, Command, Fold, Listing, Paragraph, Picture, Table, how, html_of
from stashtrace.report.page import svg_pictures
from stashtrace.report.page.causes_and_budget import claim_sentences, plain_claim
from stashtrace.report.page.html import paragraph, tag, text
from stashtrace.report.page.page_words import (
    KINDS,
    binned_text,
    claims_of,
    class_texts,
    finding_how,
    listed_text,
    method_text,
    place_of_step,
)
from stashtrace.units import duration_text, percent_text

#: Maps of kinds with less than this of all steps are folded in; so many rows of a map all have names.
_MAP_RATIO, _ROWS_NAMED = 0.01, 8


def curve_part(facts: dict[str, Any]) -> list[Block | None]:
    curve = facts["curve"]
    if not curve:
        return []
    said = paragraph(_curve_text(curve, len((facts["slow"] or {}).get("listed", ()))), "soft")
    changes, counts = claims_of(facts, "time"), facts["budget"]["steps_counts"]
    worst = facts["commands"].get("worst")
    shared = (
        f" Up to {curve['steps_per_cell']} neighbouring steps share a place." if curve["steps_per_cell"] > 1 else ""
    )
    return [
        Picture(_curve(facts) + said, [Paragraph(f"{svg_pictures.curve_words(curve)}.")]),
        *(part for each in changes for part in plain_claim(each)),
        Command(worst, "The step that lost most, on the timeline") if worst else None,
        how(
            "the step time",
            "The line is the mean of the steps over their ranks, as in the headline; the band reaches from the shortest"
            f" to the longest step of a rank.{shared} Steps of the warm-up are left out.",
            known=Listing([(claim_sentences(each)[0], finding_how(each, counts)) for each in changes])
            if changes
            else None,
            command=facts["commands"]["steps"],
        ),
    ]


def _curve_text(curve: dict[str, Any], listed_count: int) -> str:
    """Say what the line, the band and the marks of the curve are; ``listed_count``: slow steps that are explained."""
    several = curve["ranks_count"] > 1
    line = "Line: mean of the ranks; band: their range." if several else "Line: the step, one after the other."
    if not several and curve["steps_per_cell"] > 1:
        line = "Line: mean of neighbouring steps; band: their range."
    count, marked = curve["slow_count"], len(curve["slow"])
    which = (
        f"The {marked} costliest of {count:,} slow steps are"
        if count > marked
        else ("The slow step is" if count == 1 else f"{count} slow steps are")
    )
    leading = "a mark" if marked <= listed_count else "a large one"
    slow = f" {which} marked; {leading} leads to what made it slow." if count else ""
    longest_ns, top_ns = max(curve["high_ns"]), svg_pictures.curve_top(curve)
    cut = f" Steps above {duration_text(top_ns)} are cut off; the longest takes {duration_text(longest_ns)}."
    return line + slow + (cut if longest_ns > top_ns else "")


def _curve(facts: dict[str, Any]) -> str:
    """Return the picture of the step time, with a mark for each slow step and links to what made it slow."""
    curve, cells = facts["curve"], len(facts["curve"]["first_steps"])
    texts = {row["step"]: row["texts"][0] for row in (facts["slow"] or {}).get("listed", ())}
    marks = []
    for row in reversed(curve["slow"]):  # the costliest on top
        longer = f"step {row['step']}: {duration_text(row['length_ns'])}, {duration_text(row['excess_ns'])} longer"
        said = "; ".join(filter(None, (longer, texts.get(row["step"], ""))))
        place = (
            f"left:{100 * (row['cell'] + 0.5) / cells:.2f}%;"
            f"top:{100 - 100 * min(row['length_ns'] / svg_pictures.curve_top(curve), 1):.1f}%"
        )
        target = place_of_step(facts, row["step"])
        hidden = tag("span", text(said), class_="hidden")
        marks.append(
            tag("a", hidden, class_="mark", href=f"#{target}", title=said, style=place)
            if target
            else tag("span", "", class_="mark", title=said, style=place)
        )
    ends = f'<span>step {curve["first_steps"][0]}</span><span class="now"></span><span>step {curve["last_step"]}</span>'
    inner = svg_pictures.step_curve(curve) + "".join(marks)
    return tag("div", tag("div", inner, class_="curve") + tag("div", ends, class_="ends"))


def heat_part(facts: dict[str, Any]) -> list[Block | None]:
    heat = facts["heat"]
    if not heat:
        return []
    key = "".join(f"<li>{svg_pictures.class_swatch(at)}{text(name)}</li>" for at, name in enumerate(class_texts()))
    large = [part for part in heat["kinds"] if part["share_ratio"] >= _MAP_RATIO]
    folded = [part for part in heat["kinds"] if part["share_ratio"] < _MAP_RATIO]
    small = [KINDS[kind] for kind in heat["small"]]
    said = paragraph(f"Share of the step that each kind of time takes. {binned_text(heat)}")
    left_out = paragraph(f"Below 1 % in every cell, and not drawn: {listed_text(small)}.") if small else ""
    return [
        Picture(said + tag("ul", key, class_="key") + _maps(large, heat)),
        Fold(_folded_text(folded), [Picture(_maps(folded, heat))]) if folded else None,
        Picture(left_out),
        how(
            "the heat maps",
            "The cells are sums of the same attribution as the budget, before any step is left out.",
            f"Method: {method_text(facts['budget']['methods'])}.",
            "Bounds of each step of each rank are columns of the analysis.",
            command=facts["commands"]["budget"],
        ),
    ]


def _maps(parts: list[dict[str, Any]], heat: dict[str, Any]) -> str:
    return tag("div", "".join(_map(part, heat) for part in parts), class_="maps")


def _folded_text(parts: list[dict[str, Any]]) -> str:
    """Name the kinds that are below a percent of all steps, with the most that each has in a cell."""
    names = [f"{KINDS[part['kind']]} (up to {percent_text(part['most_permille'] / 1000)} of a cell)" for part in parts]
    return f"Below 1 % of all steps: {listed_text(names)}"


def _map(part: dict[str, Any], heat: dict[str, Any]) -> str:
    name, ranks, steps = KINDS[part["kind"]], heat["ranks"], heat["steps"]
    rows = [
        (label, *("-" if value < 0 else f"{value / 10:.1f}" for value in row))
        for label, row in zip(ranks, part["permille"], strict=True)
    ]
    most = (
        f"{percent_text(part['share_ratio'])} of all steps; most in rank {part['most_ranks']}, step"
        f" {part['most_steps']}: {part['most_permille'] / 10:.1f} %"
    )
    cells = Table(f"{name}: percent of the step, by rank and step", ("rank", *steps), rows, (0,), keeps_all=True)
    as_table = Picture(cells.html().replace("<table>", '<table class="cells">', 1))
    content = [
        tag("h3", text(name)),
        tag("div", _row_names(ranks) + svg_pictures.heat_map(part, ranks, steps), class_="rows"),
        tag("div", f"<span>step {text(steps[0])}</span><span>step {text(steps[-1])}</span>", class_="ends"),
        paragraph(most, "now"),
        *html_of([Fold("As a table", [as_table], name), Command(part["command"], "The largest cell")]),
    ]
    return tag("div", "".join(content), class_="map")


def _row_names(ranks: list[str]) -> str:
    """Return the names of the rows of a map, of many the first and the last; none for a single row."""
    shown = ranks if len(ranks) <= _ROWS_NAMED else [ranks[0], ranks[-1]]
    names = "".join(tag("span", text(rank)) for rank in ["rank " + shown[0], *shown[1:]])
    class_ = "names" if len(ranks) <= _ROWS_NAMED else "names ends-only"
    return tag("div", names, class_=class_, aria_hidden="true") if len(ranks) > 1 else ""
