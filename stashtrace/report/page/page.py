"""The document of a report as one HTML file and as Markdown, in the order of the table of contents.

The parts about waits, slow steps, links, losses and the machine are made here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from stashtrace.errors import guarded
from stashtrace.report.blocks import (
    Block,
    Command,
    Facts,
    Fold,
    Listing,
    Paragraph,
    Part,
    Picture,
    Table,
    how,
    html_of,
    markdown_of,
)
from stashtrace.report.page import svg_pictures
from stashtrace.report.page.budget_and_steps import budget_part, curve_part, ending_part, heat_part, verdict_part
from stashtrace.report.page.flame_graphs import flames_part
from stashtrace.report.page.html import embedded_json, own_file, paragraph, tag, text, whole_page
from stashtrace.report.page.page_words import claims_of, link_method_text, sentence, title_around, wait_how
from stashtrace.text.units import bytes_text, duration_text, percent_text
from stashtrace.text.visible import markdown_code


def waits_part(facts: dict[str, Any]) -> list[Block | None]:
    waits = facts["waits"]
    if not waits or not (waits["cut_outs"] or waits["listed"]):
        return [Paragraph("No wait in a collective or for a batch stands out in this recording.")] if waits else []
    rows = [
        (
            row["text"],
            (row["step"] if row["step"] >= 0 else "-", row["step"]),
            (duration_text(row["wait_ns"]), row["wait_ns"]),
            (duration_text(row["total_wait_ns"]), row["total_wait_ns"]),
        )
        for row in waits["listed"]
    ]
    head = ("wait", "step", "longest wait", "cost of all ranks")
    listed = Table("Waits in collectives, the costliest first", head, rows, (0,), sortable=True)
    sentences = (
        "A wait is from a rank's entry into a collective to the entry of the last rank, by the ranks' clocks.",
        f"The {waits['examined_at_most']} costliest waits of the run are examined, and {waits['kept_count']}"
        " are kept: those in counted steps, if there are any, that cost a tenth of the costliest one or more.",
    )
    known = Listing([(cut["text"], wait_how(cut)) for cut in waits["cut_outs"]])
    return [
        Picture(
            paragraph(
                "Each picture is cut out of the timeline: the file, the worker and the rank that were late, as far as"
                " they were recorded, and ranks that waited. Of waits with the same group, late rank and"
                " cause, the costliest is drawn."
            )
        ),
        *(_cut_out(cut, f"wait-{at}") for at, cut in enumerate(waits["cut_outs"])),
        Fold(f"The {len(rows)} costliest waits in collectives", [listed]) if len(rows) > 1 else None,
        how("these waits", *sentences, known=known, command=facts["commands"]["late"])
        if rows
        else how("these waits", known=known),
    ]


def _cut_out(cut: dict[str, Any], name: str) -> Picture:
    kinds = list(dict.fromkeys(piece["kind"] for lane in cut["lanes"] for piece in lane["pieces"]))
    rows = [
        (lane["label"], svg_pictures.piece_text(piece), duration_text(piece["begin_ns"]), duration_text(_length(piece)))
        for lane in cut["lanes"]
        for piece in lane["pieces"]
    ]
    step = f"step {cut['step']}: " if cut["step"] >= 0 else ""
    bars = Table("Bars of the picture from top to bottom", ("lane", "what", "from", "for"), rows, (0, 1))
    shown = Command(cut["command"], "On the timeline")
    below = html_of([Fold("As a table", [bars], cut["text"]), shown])
    drawn = [tag("h3", text(f"{step}{cut['text']}")), svg_pictures.cut_out(cut), svg_pictures.legend(kinds), *below]
    return Picture(tag("div", "".join(drawn), class_="wait", id=name), [Listing([f"{step}{cut['text']}"]), shown])


def _length(piece: dict[str, Any]) -> int:
    return int(piece["end_ns"] - piece["begin_ns"])


def slow_part(facts: dict[str, Any]) -> list[Block | None]:
    slow = facts["slow"]
    if not slow:
        return []
    known = how(
        "slow steps",
        "A step is slow if it is longer than comparable steps (of one kind, with or without a checkpoint, and"
        " with equal computing), by more than these vary and by 2 % at least.",
        "The length of a step is the mean over its ranks; what grew is a time of the rank that is named.",
        command=facts["commands"]["slow"],
    )
    if slow["too_few"]:
        said = f"Too few steps were counted ({slow['steps_count']}) to say which of them are slow."
        return [Paragraph(said), known]
    if not slow["slow_count"]:
        return [Paragraph(f"None of the {slow['steps_count']:,} counted steps is slow."), known]
    rows = [
        (
            (row["step"], row["step"]),
            "; ".join(row["texts"]),
            (duration_text(row["length_ns"]), row["length_ns"]),
            (f"+{duration_text(row['excess_ns'])}", row["excess_ns"]),
        )
        for row in slow["listed"]
    ]
    head, ids = ("step", "what is longer", "length", "longer by"), [f"slow-{row['step']}" for row in slow["listed"]]
    which = "The costliest slow steps" if slow["slow_count"] > len(rows) else "Slow steps, the costliest first"
    commands = [Command(row["command"], f"step {row['step']}") for row in slow["listed"]]
    return [
        Paragraph(slow_lead(slow)),
        Table(f"{which}, and what is longer in them", head, rows, (0, 1), ids=ids, sortable=True),
        Fold("On the timeline", commands, "slow steps"),
        known,
    ]


def slow_lead(slow: dict[str, Any]) -> str:
    """Say how many steps are slow, and what they cost."""
    share = percent_text(slow["excess_ns"] / max(slow["whole_ns"], 1))
    verbs = "is slow: it takes" if slow["slow_count"] == 1 else "are slow: together they take"
    return (
        f"{slow['slow_count']:,} of {slow['steps_count']:,} counted steps {verbs}"
        f" {duration_text(slow['excess_ns'])} longer than comparable ones, {share} of the time of all steps."
    )


def links_part(facts: dict[str, Any]) -> list[Block | None]:
    links = facts["links"]
    if links["missing"] and facts["ranks_count"] <= 1:
        return []  # a rank alone moves nothing
    if links["missing"]:
        return [Paragraph(f"{sentence(links['missing'])} {sentence(links['hint'])}")]
    calibrated = any(row["efficiency_ratio"] >= 0 for row in links["transfers"])
    rows = [
        (
            f"{row['op'].replace('_', '-')} of {row['communicator']}",
            row["group_size"],
            (bytes_text(row["message_bytes"]), row["message_bytes"]),
            row["calls_count"],
            (duration_text(row["transfer_ns"]), row["transfer_ns"]),
            (_rate(row["bus_bytes_per_s"]), row["bus_bytes_per_s"]),
            (_rate(row["best_bus_bytes_per_s"]), row["best_bus_bytes_per_s"]),
            *((_of_calibration(row), row["efficiency_ratio"]),) * calibrated,
        )
        for row in links["transfers"]
    ]
    head = ["collective", "ranks", "payload", "calls", "median transfer", "bus bandwidth", "best call of any size"]
    head += ["of what the link can do"] * calibrated
    methods = sorted({row["method"] for row in links["transfers"]})
    more = links["rows_count"] - len(rows)
    return [
        Paragraph(
            "What the links can do is known from a calibration."
            if calibrated
            else "What the links can do was not calibrated (`stashtrace calibrate` measures it); next to the median"
            " is the best call of the same group and operation, of any size."
        ),
        *(Paragraph(note, "warn") for note in links["notes"]),
        Table("Transfers of collectives by size", head, rows, (0,), sortable=True),
        Paragraph(f"{more} kinds of transfers that took less time together are left out.") if more > 0 else None,
        _paths(links),
        how(
            "the links",
            "A transfer is from the entry of the last rank to the end, so waiting for late ranks is not part of it;"
            " where the last entry is unknown it begins with the rank's. The time is the median over calls and ranks.",
            "Bus bandwidth is what the busiest link moves by that time, with the factors of nccl-tests.",
            f"Expected times come from: {'; '.join(link_method_text(name) for name in methods)}.",
            command=facts["commands"]["links"],
        ),
        Command(links["command"], "The longest transfer"),
    ]


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_text(bytes_per_s)}/s" if bytes_per_s > 0 else "-"


def _of_calibration(row: dict[str, Any]) -> str:
    if row["efficiency_ratio"] < 0:
        return "-"
    error = f" ± {percent_text(row['error_ns'] / max(row['transfer_ns'], 1))}" if row["error_ns"] >= 0 else ""
    return f"{percent_text(row['efficiency_ratio'])}{error}"


def _paths(links: dict[str, Any]) -> Block | None:
    if not links["paths"]:
        said = f"Which way the bytes went is not known: {links['paths_missing']}."
        return Paragraph(said) if links["transfers"] else None
    rows = [
        (
            f"{row['op'].replace('_', '-')} of {row['communicator']}",
            row["path"],
            (percent_text(row["share_ratio"]) if row["share_ratio"] >= 0 else "-", row["share_ratio"]),
            (percent_text(row["error_ratio"]) if row["error_ratio"] >= 0 else "-", row["error_ratio"]),
            row["confidence"],
        )
        for row in links["paths"]
    ]
    head = ("collective", "path", "share of its bytes", "standard error", "confidence")
    return Table("Which way the bytes went, by the traffic counters", head, rows, sortable=True)


def losses_part(facts: dict[str, Any]) -> list[Block | None]:
    said = [each["text"] for each in claims_of(facts, "trust") if each["text"]]
    kinds = facts["losses"]["kinds"]
    rows = [
        (f"{row['collector']}: {row['reason'].replace('_', ' ')}", row["severity"], row["lost_count"], row["advice"])
        for row in kinds
    ]
    head = ("what", "severity", "count", "what it means")
    more = facts["losses"]["more_count"]
    return [
        Listing([sentence(each) for each in said]),
        Table("What could not be recorded or read", head, rows, sortable=True),
        Paragraph(f"{more} more kinds are in the output of the command below.") if more else None,
        how(
            "what was lost, and own cost",
            "What the recorder could not write is counted where it happens; what a file does not hold is counted when"
            " it is read.",
            "Own cost is CPU time of the tracing by that of the job: the lower figure is what was accounted for, the"
            " higher one includes the most that it may have evicted from caches.",
            "The error of the clocks is half of the interval that holds the true offset between hosts.",
            command=facts["commands"]["info"],
        ),
    ]


def machine_part(facts: dict[str, Any]) -> list[Block | None]:
    rows = ((row["name"], row["value"]) for row in facts["machine"])
    return [
        Facts([(name, Command(value) if name == "command" else value) for name, value in rows]),
        how("the machine", "These facts were written by the job's processes and its launcher as they ran."),
        Command(facts["commands"]["whole"], "The whole run on the timeline"),
        Paragraph(facts["commands"]["note"], "soft") if facts["commands"]["note"] else None,
    ]


def page(facts: dict[str, Any]) -> str:
    """Return the HTML of a report. ``facts``: as :func:`stashtrace.report.document.report_facts` returns it."""
    shown = {part.name: html for part in _parts(facts) if (html := part.html())}
    contents = "".join(f'<li><a href="#{name}">{text(short)}</a></li>' for name, short, *_ in _PARTS if name in shown)
    header = [
        tag("h1", tag("code", text(facts["path"])).join(map(text, title_around(facts)))),
        *html_of(_above(facts)),
        tag("nav", tag("ul", contents), aria_label="Parts of the report"),
    ]
    script = own_file("script.js")
    footer = [
        tag("footer", paragraph(_FOOTER)),
        f'<script type="application/json" id="facts">{embedded_json(facts)}</script>',
        f"<script>{script}</script>" if facts["heat"] or facts["waits"] or facts["curve"] else "",
    ]
    skip = '<a class="skip" href="#main">Skip to the report</a>'
    title = f"{facts['path']} - stashtrace report"
    return whole_page(title, header, list(shown.values()), "\n".join(footer), skip=skip, script=script)


def markdown(facts: dict[str, Any]) -> str:
    """Return the Markdown of a report, for a pull request or an issue: what the page says, without its pictures."""
    title = "## " + markdown_code(facts["path"]).join(title_around(facts))
    return "\n\n".join([title, markdown_of([*_above(facts), *_parts(facts)])]) + "\n"


def _above(facts: dict[str, Any]) -> list[Block | None]:
    """Return what stands above all parts: how the job ended, what was recorded, what puts all figures in doubt."""
    return [
        *guarded("how the job ended", partial(ending_part, facts), _in_place),
        Paragraph(", ".join(facts["headline"]), "soft"),
        *(Paragraph(sentence(line), "doubt") for line in facts["warnings"]),
        *(Paragraph(sentence(line), "warn") for line in facts["not_said"]),
    ]


def _parts(facts: dict[str, Any]) -> list[Part]:
    return [
        Part(name, title, guarded(title.lower(), partial(make, facts), _in_place)) for name, _, title, make in _PARTS
    ]


def _in_place(line: str) -> list[Block | None]:
    """Return what stands in place of a part that could not be made."""
    return [Paragraph(sentence(line), "warn")]


#: Parts of the page in their order: name, word in the list of parts, title, what makes it.
_PARTS: tuple[tuple[str, str, str, Callable[[dict[str, Any]], list[Block | None]]], ...] = (
    ("verdict", "Causes", "What slows it down", verdict_part),
    ("budget", "Budget", "Where the time of a step goes", budget_part),
    ("curve", "Step time", "How long each step takes", curve_part),
    ("flames", "Functions", "Which of your functions it goes to", flames_part),
    ("heat", "Heat maps", "Which steps and which ranks", heat_part),
    ("waits", "Waits", "The costliest waits", waits_part),
    ("slow", "Slow steps", "Slow steps", slow_part),
    ("links", "Links", "Links", links_part),
    ("losses", "Lost", "What was lost, and own cost", losses_part),
    ("machine", "Machine", "Machine, versions and command", machine_part),
)
_FOOTER = (
    "Made by stashtrace from one recording. All of it is in this file; the same facts are in it as JSON, in the element"
    " with the id facts. Times are of the recorded run: another run of the same job may differ."
)
