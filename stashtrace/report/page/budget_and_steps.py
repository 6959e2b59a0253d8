"""The parts of the page with verdict, budget and single steps, as blocks; empty if there is nothing to say."""

from __future__ import annotations

from typing import Any

from stashtrace.report.blocks import Bar, Bars, Block, Command, Fold, Listing, Paragraph, Picture, Table, how, html_of
from stashtrace.report.budget_groups import percents
from stashtrace.report.page import svg_pictures
from stashtrace.report.page.html import listing, paragraph, tag, text
from stashtrace.report.page.page_words import (
    KINDS,
    REPLAYED,
    binned_text,
    claims_of,
    class_texts,
    finding_how,
    listed_text,
    method_text,
    place_of_step,
    sentence,
)
from stashtrace.report.policy import POLICY
from stashtrace.schema.stall_kinds import COLUMN_LABELS
from stashtrace.text.prose import count_noun
from stashtrace.text.units import duration_text, percent_text

_QUIET = ("compute_bound", "not_told")


def ending_part(facts: dict[str, Any]) -> list[Block | None]:
    """Return how the job failed or stood still, each with its evidence; empty for a job that ended well."""
    claims = facts["ending"]
    return [part for one in claims for part in (Paragraph(one["text"], "warn"), Listing(one["evidence_text"]))]


def verdict_part(facts: dict[str, Any]) -> list[Block | None]:
    verdicts, counts = claims_of(facts, "verdict"), facts["budget"]["steps_counts"]
    causes = causes_in(facts)
    content: list[Block | None] = [_causes(causes) if causes else None]
    is_open = 0 if causes else 1 if facts["ending"] else POLICY.open_verdicts_count
    content += map(_claim, verdicts[:is_open])
    if not verdicts and facts["ending"]:
        content = []
    elif not verdicts:
        content = [Paragraph("There is no verdict: it needs steps, and none was seen in this recording.", "warn")]
    content += [Paragraph(f"Causes: {sentence(one['text'])}") for one in facts["do_first"] if one["reason"]]
    others = claims_of(facts, "files", "machine", "beside")
    more = verdicts[is_open:]
    which = "by the time that they are about" if causes else "smaller"
    known = [(claim_sentences(each)[0], finding_how(each, counts)) for each in (*verdicts, *others)]
    replayed, command = ([sentence(REPLAYED)], facts["commands"]["causes"]) if causes else ([], "")
    return [
        *content,
        Fold(f"{count_noun(len(more), 'finding')}, {which}", list(map(_claim, more))),
        Fold(
            "Files, machine, and what is hidden behind the step", [part for one in others for part in plain_claim(one)]
        ),
        how("these claims", *replayed, known=Listing(known), command=command) if causes or known else None,
    ]


def causes_in(facts: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the causes, without the rows that say why none is known."""
    return [one for one in facts["do_first"] if not one["reason"]]


def _causes(causes: list[dict[str, Any]]) -> Picture:
    """Return each cause with who waits for it, what its removal saves, and what the causes up to it leave of a step."""
    drawn, items, left_ns = [], [], max(cause["step_ns"] for cause in causes)
    for cause in causes:
        known = [sentence(said) for said in (cause["saving"], cause["who_waits"], *cause["details"]) if said]
        items.append((cause["what"], known))
        said = tag("div", paragraph(cause["what"], "claim") + listing(known))
        saved_ns = min(max(cause["saved_ns"], 0), left_ns)
        if saved_ns > 0:
            said += _gain(cause, left_ns, saved_ns)
        left_ns -= saved_ns
        drawn.append(tag("li", said))
    return Picture(tag("ol", "".join(drawn), class_="verdicts causes"), [Listing(items, style="claim")])


def _gain(cause: dict[str, Any], before_ns: int, saved_ns: int) -> str:
    """Return the picture of what a cause saves; ``before_ns``: the step without the causes before it."""
    step_ns, after_ns = cause["step_ns"], before_ns - saved_ns
    before, after = duration_text(before_ns), duration_text(after_ns)
    sure = ", perhaps" if cause["sure"] == "perhaps" else ""
    words = f"{before} → {after}{sure}"
    label = f"Without it a step takes {after} instead of {before}{sure}; the whole bar is {duration_text(step_ns)}"
    picture = svg_pictures.gain_bar(cause["column"], before_ns / step_ns, after_ns / step_ns, label)
    return tag("div", picture + tag("span", text(words)), class_="gain")


def _claim(finding: dict[str, Any]) -> Listing:
    """Return a verdict with its evidence."""
    return Listing(
        [(finding["text"], finding["evidence_text"])], style="quiet" if finding["kind"] in _QUIET else "claim"
    )


def claim_sentences(finding: dict[str, Any]) -> list[str]:
    """Return the sentences of a claim; of some only the evidence."""
    return [finding["text"], *finding["evidence_text"]] if finding["text"] else (finding["evidence_text"] or [""])


def plain_claim(finding: dict[str, Any]) -> list[Block]:
    """Return a claim that is no verdict."""
    first, *rest = claim_sentences(finding)
    return [Paragraph(first), Listing(rest)]


def budget_part(facts: dict[str, Any]) -> list[Block | None]:
    budget = facts["budget"]
    if budget["missing"]:
        return [Paragraph(f"{sentence(budget['missing'])} {sentence(budget['hint'])}", "warn")]
    groups = budget["groups"]
    named = len({group["step_kind"] for group in groups}) > 1
    present = [name for name in COLUMN_LABELS if any(_column(g, name)["share_ratio"] > 0 for g in groups)]
    bars = [_bar(group, named) for group in groups]
    more = bars[POLICY.open_groups_count :]
    known = how(
        "the budget",
        "A bar is the mean of the counted steps, divided among what each instant went to; it adds up to 100 %."
        f" Ranks are one bar if no column differs from the middle of their group by more than"
        f" {percent_text(budget['alike_ratio'])} of the step, nor their steps in length.",
        f"Method: {method_text(budget['methods'])}.",
        "Every nanosecond of a step of a rank goes to exactly one kind, so that the kinds add up to the step."
        " Overlapping causes are resolved by a fixed order.",
        "The bounds of each share are what the recording leaves open.",
        command=facts["commands"]["budget"],
    )
    bounds = Fold("Times and bounds", [part for group in groups for part in _bounds(group, named)])
    columns = Fold("What the columns hold", [Listing([f"{name}: {COLUMN_LABELS[name]}" for name in present])])
    return [
        Bars(bars[: POLICY.open_groups_count]),
        Fold(count_noun(len(more), "more bar"), [Bars(more)]) if more else None,
        columns,
        bounds,
        known,
    ]


def _column(group: dict[str, Any], name: str) -> dict[str, Any]:
    return next(column for column in group["columns"] if column["column"] == name)


def group_title(group: dict[str, Any], *, named_kind: bool) -> str:
    """Name a group of ranks: its ranks if they are few, how many they are, the kind and length of its steps."""
    several = group["ranks_count"] > 1
    short = len(group["ranks"]) <= POLICY.ranks_characters
    who = f"{'ranks' if several else 'rank'} {group['ranks']}" if short else f"{group['ranks_count']:,} ranks"
    count = (
        f" ({group['ranks_count']:,} ranks)" if group["ranks_count"] > POLICY.counted_at_sight_count and short else ""
    )
    mixed = ", not similar" if group["mixed"] else ""
    kind = f"{group['step_kind'] or 'training'} " if named_kind else ""
    return f"{who}{count}{mixed}: {kind}step of {duration_text(group['step_ns'])}"


def _shares(group: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
    """Return the columns of a group that are shown, each with its share in words."""
    shares = percents([column["share_ratio"] for column in group["columns"]])
    return [
        (column, share)
        for column, share in zip(group["columns"], shares, strict=True)
        if column["share_ratio"] > 0 or column["high_ns"] > 0 or column["column"] in ("compute", "other")
    ]


def _bar(group: dict[str, Any], named_kind: bool) -> Bar:
    """Return the bar of a group of ranks, with the share of each column."""
    parts = [(column["column"], column["share_ratio"], share) for column, share in _shares(group)]
    return Bar(group_title(group, named_kind=named_kind), parts)


def _bounds(group: dict[str, Any], named_kind: bool) -> list[Block | None]:
    """Return the table of the times of a group, and its ranks where the title only counts them."""
    title = group_title(group, named_kind=named_kind)
    rows = [
        (column["column"], share, *(duration_text(column[name]) for name in ("stall_ns", "low_ns", "high_ns")))
        for column, share in _shares(group)
    ]
    caption = f"{title}; mean over {count_noun(group['steps_count'], 'step')} of its ranks, and its bounds"
    listed = (
        Fold("Its ranks", [Paragraph(group["ranks"])], title) if len(group["ranks"]) > POLICY.ranks_characters else None
    )
    return [Table(caption, ("time", "share", "a step", "at least", "at most"), rows, (0,)), listed]


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
    large = [part for part in heat["kinds"] if part["share_ratio"] >= POLICY.open_map_ratio]
    folded = [part for part in heat["kinds"] if part["share_ratio"] < POLICY.open_map_ratio]
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
    shown = ranks if len(ranks) <= POLICY.named_rows_count else [ranks[0], ranks[-1]]
    names = "".join(tag("span", text(rank)) for rank in ["rank " + shown[0], *shown[1:]])
    class_ = "names" if len(ranks) <= POLICY.named_rows_count else "names ends-only"
    return tag("div", names, class_=class_, aria_hidden="true") if len(ranks) > 1 else ""
