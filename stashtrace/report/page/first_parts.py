"""The first parts of the page: verdict and budget. Each is a list of HTML elements, empty if there is none."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

from stashtrace.report.budget_groups import percents
from stashtrace.report.page import svg_pictures
from stashtrace.report.page.html import (
    how,
    how_each,
    listing,
    paragraph,
    side_by_side,
    table,
    tag,
    text,
    unfolding,
)
from stashtrace.report.page.page_words import (
    REPLAYED,
    claims_of,
    finding_how,
    method_text,
    sentence,
)
from stashtrace.schema.stall_kinds import COLUMN_LABELS
from stashtrace.text import count_noun
from stashtrace.units import duration_text, percent_text

#: Verdicts that are open, of a job that ended well; the others are folded in, as the summary counts them.
_OPEN = 3
#: Bars of the budget that are open.
_GROUPS_OPEN = 4
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


def doubts_part(facts: dict[str, Any]) -> list[str]:
    """Return what puts all figures in doubt; empty if nothing does."""
    return (
        [tag("div", "".join(paragraph(sentence(said)) for said in facts["warnings"]), class_="doubt")]
        if (facts["warnings"])
        else []
    )


def verdict_part(facts: dict[str, Any]) -> list[str]:
    verdicts, counts = claims_of(facts, "verdict"), facts["budget"]["steps_counts"]
    causes = causes_in(facts)
    content = [tag("ol", "".join(_causes(causes)), class_="verdicts causes")] if causes else []
    is_open = 0 if causes else 1 if facts["ending"] else _OPEN
    if verdicts[:is_open]:
        content.append(tag("ol", "".join(map(_claim, verdicts[:is_open])), class_="verdicts"))
    if not verdicts and facts["ending"]:
        content = []
    elif not verdicts:
        content = [paragraph("There is no verdict: it needs steps, and none was seen in this recording.", "warn")]
    content += [paragraph(f"Causes: {sentence(one['text'])}") for one in facts["do_first"] if one["reason"]]
    beside = claims_of(facts, "files", "machine", "beside")
    folds = []
    if more := verdicts[is_open:]:
        listed = tag("ol", "".join(map(_claim, more)), class_="verdicts")
        which = "by the time that they are about" if causes else "smaller"
        folds.append(unfolding(f"{count_noun(len(more), 'finding')}, {which}", listed))
    if beside:
        folds.append(unfolding("Files, machine, and what is hidden behind the step", *map(plain_claim, beside)))
    known = [(claim_sentences(each)[0], finding_how(each, counts)) for each in (*verdicts, *beside)]
    if causes:
        folds.append(how_each("these claims", known, sentence(REPLAYED), command=facts["commands"]["causes"]))
    elif known:
        folds.append(how_each("these claims", known))
    return [*content, side_by_side(*folds)]


def causes_in(facts: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the causes, without the rows that say why none is known."""
    return [one for one in facts["do_first"] if not one["reason"]]


def _causes(causes: list[dict[str, Any]]) -> list[str]:
    """Return each cause with who waits for it, what its removal saves, and what the causes up to it leave of a step."""
    drawn, left_ns = [], max(cause["step_ns"] for cause in causes)
    for cause in causes:
        known = [sentence(said) for said in (cause["saving"], cause["who_waits"], *cause["details"]) if said]
        said = tag("div", paragraph(cause["what"], "claim") + listing(known))
        saved_ns = min(max(cause["saved_ns"], 0), left_ns)
        if saved_ns > 0:
            said += _gain(cause, left_ns, saved_ns)
        left_ns -= saved_ns
        drawn.append(tag("li", said))
    return drawn


def _gain(cause: dict[str, Any], before_ns: int, saved_ns: int) -> str:
    """Return the picture of what a cause saves; ``before_ns``: the step without the causes before it."""
    step_ns, after_ns = cause["step_ns"], before_ns - saved_ns
    before, after = duration_text(before_ns), duration_text(after_ns)
    sure = ", perhaps" if cause["sure"] == "perhaps" else ""
    words = f"{before} → {after}{sure}"
    label = f"Without it a step takes {after} instead of {before}{sure}; the whole bar is {duration_text(step_ns)}"
    picture = svg_pictures.gain_bar(cause["column"], before_ns / step_ns, after_ns / step_ns, label)
    return tag("div", picture + tag("span", text(words)), class_="gain")


def _claim(finding: dict[str, Any]) -> str:
    """Return a verdict with its evidence."""
    content = [paragraph(finding["text"], "claim"), listing(finding["evidence_text"])]
    return tag("li", "".join(content), class_="quiet" if finding["kind"] in _QUIET else None)


def claim_sentences(finding: dict[str, Any]) -> list[str]:
    """Return the sentences of a claim; of some the evidence alone is told."""
    return [finding["text"], *finding["evidence_text"]] if finding["text"] else (finding["evidence_text"] or [""])


def plain_claim(finding: dict[str, Any]) -> str:
    """Return a claim beside the verdicts."""
    first, *rest = claim_sentences(finding)
    return paragraph(first) + listing(rest)


def budget_part(facts: dict[str, Any]) -> list[str]:
    budget = facts["budget"]
    if budget["missing"]:
        return [paragraph(f"{sentence(budget['missing'])} {sentence(budget['hint'])}", "warn")]
    groups = budget["groups"]
    named = len({group["step_kind"] for group in groups}) > 1
    present = [name for name in COLUMN_LABELS if any(_column(g, name)["share_ratio"] > 0 for g in groups)]
    shown, more = groups[:_GROUPS_OPEN], groups[_GROUPS_OPEN:]
    rest = tag("ul", "".join(_group(group, named) for group in more), class_="groups")
    return [
        tag("ul", "".join(_group(group, named) for group in shown), class_="groups"),
        unfolding(f"{count_noun(len(more), 'more bar')}", rest) if more else "",
        side_by_side(
            unfolding("What the columns hold", listing([f"{name}: {COLUMN_LABELS[name]}" for name in present])),
            unfolding("Times and bounds", *(_bounds(group, named) for group in groups)),
            how(
                "the budget",
                "A bar is the mean of the counted steps, divided among what each instant went to; it adds up to 100 %."
                f" Ranks are one bar if no column differs from the middle of their group by more than"
                f" {percent_text(budget['alike_ratio'])} of the step, nor their steps in length.",
                f"Method: {method_text(budget['methods'])}.",
                "Every nanosecond of a step of a rank goes to exactly one kind, so that the kinds add up to the step."
                " Overlapping causes are resolved by a fixed order.",
                "The bounds beside each share are what the recording leaves open.",
                command=facts["commands"]["budget"],
            ),
        ),
    ]


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


def _shares(group: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
    """Return the columns of a group that are shown, each with its share in words."""
    shares = percents([column["share_ratio"] for column in group["columns"]])
    return [
        (column, share)
        for column, share in zip(group["columns"], shares, strict=True)
        if column["share_ratio"] > 0 or column["high_ns"] > 0 or column["column"] in ("compute", "other")
    ]


def _group(group: dict[str, Any], named_kind: bool) -> str:
    """Return the bar of a group of ranks below its title, with the share of each column."""
    title = group_title(group, named_kind=named_kind)
    key = "".join(
        f"<li>{svg_pictures.swatch(c['column'])}{c['column']} {text(share)}</li>" for c, share in _shares(group)
    )
    bar = svg_pictures.budget_bar(group["columns"], percents([c["share_ratio"] for c in group["columns"]]), title)
    return tag("li", tag("h3", text(title)) + tag("div", bar + tag("ul", key, class_="key")))


def _bounds(group: dict[str, Any], named_kind: bool) -> str:
    """Return the table of the times of a group, and its ranks where the title only counts them."""
    title = group_title(group, named_kind=named_kind)
    rows = [
        (column["column"], share, *(duration_text(column[name]) for name in ("stall_ns", "low_ns", "high_ns")))
        for column, share in _shares(group)
    ]
    caption = f"{title}; mean over {count_noun(group['steps_count'], 'step')} of its ranks, and its bounds"
    listed = unfolding("Its ranks", paragraph(group["ranks"]), subject=title)
    shown = table(caption, ("time", "share", "a step", "at least", "at most"), rows, numbers=4)
    return shown + (listed if len(group["ranks"]) > _RANKS_WIDTH else "")
