"""The document of a report as Markdown, for a pull request or an issue."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from stashtrace.analysis.findings.claim_rows import NOT_SAID
from stashtrace.analysis.lines.place_times import STEP
from stashtrace.errors import guarded
from stashtrace.report.budget_groups import percents
from stashtrace.report.page.first_parts import causes_in, claim_sentences, group_title
from stashtrace.report.page.later_parts import slow_lead
from stashtrace.report.page.page_words import REPLAYED, claims_of, finding_how, method_text, title_around
from stashtrace.schema.stall_kinds import COLUMN_LABELS, KIND_LABELS, WORKER_KINDS
from stashtrace.units import bytes_text, duration_text, percent_text, range_text
from stashtrace.visible import markdown_code as code
from stashtrace.visible import markdown_text

_OPEN = 3
_WAITS, _SLOW, _TRANSFERS = 5, 5, 6


def markdown(facts: dict[str, Any]) -> str:
    """Return the Markdown of a report: verdicts, budget, lines, waits, slow steps, links, trust; the rest is folded in.

    ``facts``: as :func:`stashtrace.report.document.report_facts` returns it.
    """
    parts: dict[str, Callable[[], list[str]]] = {
        "the title": lambda: ["## " + code(facts["path"]).join(title_around(facts))],
        "how the job ended": lambda: _ending(facts),
        "the headline": lambda: [said(", ".join(facts["headline"])), *map(said, facts["not_said"])],
        "what puts it in doubt": lambda: [f"**{said(line)}**" for line in facts["warnings"]],
        "what slows it down": lambda: _verdicts(facts),
        "the budget": lambda: _budget(facts["budget"], facts["commands"]["budget"]),
        "the costliest lines": lambda: _lines(facts),
        "the costliest waits": lambda: _waits(facts),
        "the slow steps": lambda: _slow(facts),
        "the links": lambda: _links(facts),
        "how far to trust it": lambda: _trust(facts),
        "the machine": lambda: _machine(facts),
    }
    blocks = [block for what, make in parts.items() for block in guarded(what, make, lambda line: [plain(line)])]
    return "\n\n".join(filter(None, blocks)) + "\n"


def plain(value: object) -> str:
    """Return a value as text of Markdown."""
    return markdown_text(str(value))


def said(value: object) -> str:
    """Return a sentence as Markdown, in which what stands between backticks is code."""
    parts = str(value).split("`")
    if len(parts) % 2 == 0:  # a backtick without its other one is a part of a name
        return plain(value)
    return "".join(code(part) if at % 2 else plain(part) for at, part in enumerate(parts))


def _cell(value: object) -> str:
    """Return a sentence as a cell of a table: a bar would end it even in code."""
    return re.sub(r"(?<!\\)\|", r"\\|", said(value))


def _claim(text: str, below: Sequence[str], *, strong: bool = False) -> list[str]:
    """Return a claim as an item of a list, and below it what is known of it."""
    return [f"- **{said(text)}**" if strong else f"- {said(text)}", *(f"  - {said(one)}" for one in below if one)]


def _table(head: Sequence[str], rows: Sequence[Sequence[object]], numbers: int) -> str:
    first = len(head) - numbers
    line = "|" + "|".join("---" if at < first else "---:" for at in range(len(head))) + "|"
    lines = ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows]
    return "\n".join(["| " + " | ".join(head) + " |", line, *lines])


def _fold(summary: str, content: str) -> str:
    return f"<details><summary>{summary}</summary>\n\n{content}\n\n</details>"


def _ending(facts: dict[str, Any]) -> list[str]:
    lines = []
    for claim in facts["ending"]:
        lines += _claim(claim["text"], claim["evidence_text"], strong=True)
    return ["\n".join(lines)] if lines else []


def _verdicts(facts: dict[str, Any]) -> list[str]:
    verdicts = claims_of(facts, "verdict")
    causes = causes_in(facts)
    lines = []
    for one in causes:
        lines += _claim(one["what"], (one["saving"], one["who_waits"], *one["details"]), strong=True)
    shown = [] if causes else verdicts[:_OPEN]
    for each in shown:
        lines += _claim(each["text"], each["evidence_text"], strong=True)
    if len(verdicts) > len(shown):
        which = "more" if causes else "smaller"
        lines.append(f"- {len(verdicts) - len(shown)} {which}: {code(facts['commands']['findings'])}")
    lines += [f"- causes: {said(one['text'])}" for one in facts["do_first"] if one["reason"]]
    for each in claims_of(facts, "time", "files", "machine", "beside"):
        first, *rest = claim_sentences(each)
        lines += _claim(first, rest)
    known = [f"- {plain(REPLAYED)}: {code(facts['commands']['causes'])}"] if causes else []
    known += [
        f"- {said(each['text'])}: {plain(' '.join(finding_how(each, facts['budget']['steps_counts'])))}"
        for each in shown
    ]
    return ["\n".join(lines), _fold("How do you know?", "\n".join(known)) if known else ""]


def _budget(budget: dict[str, Any], command: str) -> list[str]:
    if budget["missing"]:
        return [f"{said(budget['missing'])}: {said(budget['hint'])}"]
    groups = budget["groups"]
    shown = [
        at
        for at, name in enumerate(COLUMN_LABELS)
        if name in ("compute", "other") or any(group["columns"][at]["share_ratio"] >= 0.0005 for group in groups)
    ]
    several = len({group["step_kind"] for group in groups}) > 1
    rows = []
    for group in groups:
        shares = percents([column["share_ratio"] for column in group["columns"]])
        rows.append((group_title(group, named_kind=several), *(shares[at] for at in shown)))
    names = list(COLUMN_LABELS)
    return [
        "### Where the time of a step goes",
        _table(("ranks", *(names[at] for at in shown)), rows, len(shown)),
        f"Mean of the counted steps; by {plain(method_text(budget['methods']))}. Bounds: {code(command)}.",
    ]


def _lines(facts: dict[str, Any]) -> list[str]:
    """Return the costliest lines in place of the page's flame graphs."""
    found = facts["lines"]
    if not found:
        return []
    rows = [
        (
            line["place"],
            KIND_LABELS[line["kind"]] if line["where"] == STEP else WORKER_KINDS[line["kind"]],
            f"{duration_text(line['time_ns'])} a {'step' if line['where'] == STEP else 'batch'}",
            _range(line),
            percent_text(line["share_ratio"]),
        )
        for line in found["lines"]
    ]
    longer = [
        f"- rank {row['rank']} spends {duration_text(row['time_ns'])} ({_range(row)}) a step longer in"
        f" {code(row['place'])} than the others"
        for row in found["longer"]
    ]
    return [
        "### Which lines it goes to",
        _table(("function and line", "kind of time", "mean", "between (95 %)", "share"), rows, 3),
        "\n".join(longer),
        f"Over all ranks; the innermost function of the job's code counts. All: {code(facts['commands']['lines'])}.",
    ]


def _range(row: dict[str, Any]) -> str:
    return range_text(duration_text(row["low_ns"]), duration_text(row["high_ns"]))


def _waits(facts: dict[str, Any]) -> list[str]:
    waits = facts["waits"]
    if not waits or not waits["cut_outs"]:
        return []
    lines = [f"- {said(cut['text'])}  \n  {code(cut['command'])}" for cut in waits["cut_outs"][:_WAITS]]
    return ["### The costliest waits", "\n".join(lines)]


def _slow(facts: dict[str, Any]) -> list[str]:
    slow = facts["slow"]
    if not slow or not slow["listed"]:
        return []
    rows = [(row["step"], duration_text(row["length_ns"]), "; ".join(row["texts"])) for row in slow["listed"][:_SLOW]]
    return ["### Slow steps", slow_lead(slow), _table(("step", "length", "what is longer"), rows, 0)]


def _links(facts: dict[str, Any]) -> list[str]:
    rows = [
        (
            f"{row['op'].replace('_', '-')} of {row['communicator']}",
            row["group_size"],
            bytes_text(row["message_bytes"]),
            row["calls_count"],
            duration_text(row["transfer_ns"]),
            f"{bytes_text(row['bus_bytes_per_s'])}/s",
            percent_text(row["efficiency_ratio"]) if row["efficiency_ratio"] >= 0 else "not calibrated",
        )
        for row in facts["links"]["transfers"][:_TRANSFERS]
    ]
    if not rows:
        return []
    head = ("collective", "ranks", "payload", "calls", "median transfer", "bus bandwidth", "of what the link can do")
    return ["### Links", _table(head, rows, 6)]


def _trust(facts: dict[str, Any]) -> list[str]:
    lines = [f"- {said(each['text'])}" for each in claims_of(facts, "trust", "loss") if each["kind"] != NOT_SAID]
    return ["### How far to trust it", "\n".join(lines)] if lines else []


def _machine(facts: dict[str, Any]) -> list[str]:
    lines = [
        f"- {plain(row['name'])}: {code(row['value']) if row['name'] == 'command' else plain(row['value'])}"
        for row in facts["machine"]
    ]
    lines.append(f"- on the timeline: {code(facts['commands']['whole'])}")
    if facts["commands"]["note"]:
        lines.append(f"- {plain(facts['commands']['note'])}")
    content = "\n".join(lines)
    return [_fold("Machine, versions and command", content)]
