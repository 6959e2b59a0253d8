"""The parts of the page with verdict and budget, as blocks; empty if there is nothing to say."""

from __future__ import annotations

from typing import Any

from stashtrace.report.blocks import Bar, Bars, Block, Fold, Listing, Paragraph, Picture, Table, how
from stashtrace.report.budget_groups import percents
from stashtrace.report.page import svg_pictures
from stashtrace.report.page.html import listing, paragraph, tag, text
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


def ending_part(facts: dict[str, Any]) -> list[Block | None]:
    """Return how the job failed or stood still, each with its evidence; empty for a job that ended well."""
    claims = facts["ending"]
    return [part for one in claims for part in (Paragraph(one["text"], "warn"), Listing(one["evidence_text"]))]


def verdict_part(facts: dict[str, Any]) -> list[Block | None]:
    verdicts, counts = claims_of(facts, "verdict"), facts["budget"]["steps_counts"]
    causes = causes_in(facts)
    content: list[Block | None] = [_causes(causes) if causes else None]
    is_open = 0 if causes else 1 if facts["ending"] else _OPEN
    content += map(_claim, verdicts[:is_open])
    if not verdicts and facts["ending"]:
        content = []
    elif not verdicts:
        content = [Paragraph("There is no verdict: it needs steps, and none was seen in this recording.", "warn")]
    content += [Paragraph(f"Causes: {sentence(one['text'])}") for one in facts["do_first"] if one["reason"]]
    beside = claims_of(facts, "files", "machine", "beside")
    more = verdicts[is_open:]
    which = "by the time that they are about" if causes else "smaller"
    known = [(claim_sentences(each)[0], finding_how(each, counts)) for each in (*verdicts, *beside)]
    replayed, command = ([sentence(REPLAYED)], facts["commands"]["causes"]) if causes else ([], "")
    return [
        *content,
        Fold(f"{count_noun(len(more), 'finding')}, {which}", list(map(_claim, more))),
        Fold(
            "Files, machine, and what is hidden behind the step", [part for one in beside for part in plain_claim(one)]
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
    """Return the sentences of a claim; of some the evidence alone is told."""
    return [finding["text"], *finding["evidence_text"]] if finding["text"] else (finding["evidence_text"] or [""])


def plain_claim(finding: dict[str, Any]) -> list[Block]:
    """Return a claim beside the verdicts."""
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
    more = bars[_GROUPS_OPEN:]
    known = how(
        "the budget",
        "A bar is the mean of the counted steps, divided among what each instant went to; it adds up to 100 %."
        f" Ranks are one bar if no column differs from the middle of their group by more than"
        f" {percent_text(budget['alike_ratio'])} of the step, nor their steps in length.",
        f"Method: {method_text(budget['methods'])}.",
        "Every nanosecond of a step of a rank goes to exactly one kind, so that the kinds add up to the step."
        " Overlapping causes are resolved by a fixed order.",
        "The bounds beside each share are what the recording leaves open.",
        command=facts["commands"]["budget"],
    )
    bounds = Fold("Times and bounds", [part for group in groups for part in _bounds(group, named)])
    columns = Fold("What the columns hold", [Listing([f"{name}: {COLUMN_LABELS[name]}" for name in present])])
    return [
        Bars(bars[:_GROUPS_OPEN]),
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
    listed = Fold("Its ranks", [Paragraph(group["ranks"])], title) if len(group["ranks"]) > _RANKS_WIDTH else None
    return [Table(caption, ("time", "share", "a step", "at least", "at most"), rows, (0,)), listed]
