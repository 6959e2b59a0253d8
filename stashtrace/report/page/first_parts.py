"""The first parts of the page: verdict, budget, heat maps. Each is a list of HTML elements, empty if there is none."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

from stashtrace.report.budget_groups import percents
from stashtrace.report.page import svg_pictures
from stashtrace.report.page.html import how, how_each, listing, paragraph, see, table, tag, text, unfolding
from stashtrace.report.page.page_words import (
    KINDS,
    REPLAYED,
    binned_text,
    claims_of,
    class_texts,
    finding_how,
    listed_text,
    method_text,
    sentence,
)
from stashtrace.schema.stall_kinds import COLUMN_LABELS
from stashtrace.text import count_noun
from stashtrace.units import duration_text, percent_text

#: Verdicts that are open; the others are folded in, as the summary counts them.
_OPEN = 3
#: A longer list of ranks is folded in.
_RANKS_WIDTH = 60
#: More ranks than this are counted beside their list.
_COUNTED_AT_SIGHT = 3
_QUIET = ("compute_bound", "not_told")


def ending_part(facts: dict[str, Any]) -> list[str]:
    """Return how the job failed or stood still, each with its evidence; empty for a job that ended well."""
    parts: list[str] = []
    for claim in facts["ending"]:
        parts.append(paragraph(claim["text"], "warn"))
        if claim["evidence_text"]:
            parts.append(tag("ul", "".join(tag("li", text(one)) for one in claim["evidence_text"])))
    return parts


def verdict_part(facts: dict[str, Any]) -> list[str]:
    verdicts, counts = claims_of(facts, "verdict"), facts["budget"]["steps_counts"]
    causes = [one for one in facts["do_first"] if not one["reason"]]
    content = [tag("ol", "".join(map(_cause, causes)), class_="verdicts")] if causes else []
    is_open = 0 if causes else _OPEN
    if verdicts[:is_open]:
        content.append(tag("ol", "".join(map(_claim, verdicts[:is_open])), class_="verdicts"))
    if not verdicts and facts["ending"]:
        content = []
    elif not verdicts:
        content = [paragraph("There is no verdict: it needs steps, and none was seen in this recording.", "warn")]
    if more := verdicts[is_open:]:
        listed = tag("ol", "".join(map(_claim, more)), class_="verdicts")
        which = "by the time that they are about" if causes else "smaller"
        content.append(unfolding(f"{count_noun(len(more), 'finding')}, {which}", listed))
    content += [paragraph(f"Causes: {sentence(one['text'])}") for one in facts["do_first"] if one["reason"]]
    beside = claims_of(facts, "time", "files", "machine", "beside")
    if beside:
        content += [tag("h3", "Beside that"), *map(_plain, beside)]
    known = [(_claim_sentences(each)[0], finding_how(each, counts)) for each in (*verdicts, *beside)]
    if causes:
        content.append(how_each("these claims", known, sentence(REPLAYED), command=facts["commands"]["causes"]))
    elif known:
        content.append(how_each("these claims", known))
    if "worst" in facts["commands"]:
        content.append(see(facts["commands"]["worst"], "The step that lost most, on the timeline"))
    return content


def _cause(cause: dict[str, Any]) -> str:
    """Return a cause with who waits for it and what its removal saves."""
    known = [sentence(said) for said in (cause["who_waits"], cause["saving"]) if said]
    return tag("li", paragraph(cause["what"], "claim") + listing(known))


def _claim(finding: dict[str, Any]) -> str:
    """Return a verdict with its evidence."""
    content = [paragraph(finding["text"], "claim"), listing(finding["evidence_text"])]
    return tag("li", "".join(content), class_="quiet" if finding["kind"] in _QUIET else None)


def _claim_sentences(finding: dict[str, Any]) -> list[str]:
    """Return the sentences of a claim; of some the evidence alone is told."""
    return [finding["text"], *finding["evidence_text"]] if finding["text"] else (finding["evidence_text"] or [""])


def _plain(finding: dict[str, Any]) -> str:
    """Return a claim beside the verdicts."""
    first, *rest = _claim_sentences(finding)
    return paragraph(first) + listing(rest)


def budget_part(facts: dict[str, Any]) -> list[str]:
    budget = facts["budget"]
    if budget["missing"]:
        return [paragraph(f"{sentence(budget['missing'])} {sentence(budget['hint'])}", "warn")]
    kinds = {group["step_kind"] for group in budget["groups"]}
    present = [name for name in COLUMN_LABELS if any(_column(g, name)["share_ratio"] > 0 for g in budget["groups"])]
    ranks_count = sum(group["ranks_count"] for group in budget["groups"])
    parts = [
        paragraph(
            "Mean of the counted steps, divided among what each instant went to; each bar adds up to 100 %."
            + (" Ranks that spend their time alike are one bar." if ranks_count > 1 else "")
        ),
        tag("ul", "".join(_group(group, len(kinds) > 1) for group in budget["groups"]), class_="groups"),
        unfolding("What the columns hold", listing([f"{name}: {COLUMN_LABELS[name]}" for name in present])),
        how(
            "the budget",
            f"Method: {method_text(budget['methods'])}.",
            "Every nanosecond of a step of a rank goes to exactly one kind, so that the kinds add up to the step."
            " Overlapping causes are resolved by a fixed order.",
            "The bounds beside each share are what the recording leaves open; they are in the table of each bar.",
            f"Ranks are alike if no column differs from the middle of their group by more than"
            f" {percent_text(budget['alike_ratio'])} of the step, nor their steps in length.",
            command=facts["commands"]["budget"],
        ),
    ]
    return parts


def _column(group: dict[str, Any], name: str) -> dict[str, Any]:
    return next(column for column in group["columns"] if column["column"] == name)


def group_title(group: dict[str, Any], *, named_kind: bool) -> str:
    """Name a group of ranks: its ranks if they are few, how many they are, the kind and length of its steps."""
    several = group["ranks_count"] > 1
    short = len(group["ranks"]) <= _RANKS_WIDTH
    who = f"{'ranks' if several else 'rank'} {group['ranks']}" if short else f"{group['ranks_count']:,} ranks"
    count = f" ({group['ranks_count']:,} ranks)" if group["ranks_count"] > _COUNTED_AT_SIGHT and short else ""
    mixed = ", not alike" if group["mixed"] else ""
    kind = f"{group['step_kind'] or 'training'} " if named_kind else ""
    return f"{who}{count}{mixed}: {kind}step of {duration_text(group['step_ns'])}"


def _group(group: dict[str, Any], named_kind: bool) -> str:
    title = group_title(group, named_kind=named_kind)
    shares = percents([column["share_ratio"] for column in group["columns"]])
    shown = [
        (column, share)
        for column, share in zip(group["columns"], shares, strict=True)
        if column["share_ratio"] > 0 or column["high_ns"] > 0 or column["column"] in ("compute", "other")
    ]
    key = "".join(f"<li>{svg_pictures.swatch(c['column'])}{c['column']} {text(share)}</li>" for c, share in shown)
    rows = [
        (
            column["column"],
            share,
            duration_text(column["stall_ns"]),
            duration_text(column["low_ns"]),
            duration_text(column["high_ns"]),
        )
        for column, share in shown
    ]
    long = len(group["ranks"]) > _RANKS_WIDTH
    return tag(
        "li",
        tag("h3", text(title))
        + svg_pictures.budget_bar(group["columns"], shares, title)
        + tag("ul", key, class_="key")
        + (unfolding("Its ranks", paragraph(group["ranks"]), subject=title) if long else "")
        + unfolding(
            "Times and bounds",
            table(
                f"Mean per step and rank over {count_noun(group['steps_count'], 'step')}, and its bounds",
                ("time", "share", "a step", "at least", "at most"),
                rows,
                numbers=4,
            ),
            subject=title,
            class_="how",
        ),
    )


def heat_part(facts: dict[str, Any]) -> list[str]:
    heat = facts["heat"]
    if not heat:
        return []
    key = "".join(f"<li>{svg_pictures.class_swatch(at)}{text(name)}</li>" for at, name in enumerate(class_texts()))
    maps = "".join(_map(part, heat) for part in heat["kinds"])
    small = [KINDS[kind] for kind in heat["small"]]
    return [
        paragraph(f"Share of the step that each kind of time takes. {binned_text(heat)}"),
        tag("ul", key, class_="key"),
        tag("div", maps, class_="maps"),
        paragraph(f"Below 1 % in every cell, and not drawn: {listed_text(small)}.") if small else "",
        how(
            "the heat maps",
            "The cells are sums of the same attribution as the budget, before any step is left out.",
            f"Method: {method_text(facts['budget']['methods'])}.",
            "Bounds of each step of each rank are columns of the analysis.",
            command=facts["commands"]["budget"],
        ),
    ]


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
    cells = table(f"{name}: percent of the step, by rank and step", ("rank", *steps), rows, numbers=len(steps))
    content = [
        tag("h3", text(name)),
        tag("div", f"<span>rank {text(ranks[0])} on top</span>", class_="ends") if len(ranks) > 1 else "",
        svg_pictures.heat_map(part, ranks, steps),
        tag(
            "div",
            f"<span>step {text(steps[0])}</span><span>step {text(steps[-1])}</span>",
            class_="ends",
        ),
        paragraph(most, "now"),
        unfolding("As a table", cells.replace("<table>", '<table class="cells">', 1), subject=name),
        see(part["command"], "The largest cell"),
    ]
    return tag("div", "".join(content), class_="map")
