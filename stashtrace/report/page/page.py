"""The document of a report as one HTML file, and as Markdown; its parts are in the order of the table of contents."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from stashtrace.errors import guarded
from stashtrace.report.blocks import Block, Paragraph, Part, html_of, markdown_of
from stashtrace.report.page.causes_and_budget import budget_part, ending_part, verdict_part
from stashtrace.report.page.flame_parts import flames_part
from stashtrace.report.page.html import embedded_json, own_file, paragraph, tag, text, whole_page
from stashtrace.report.page.page_words import sentence, title_around
from stashtrace.report.page.step_parts import curve_part, heat_part
from stashtrace.report.page.waits_links_machine import links_part, losses_part, machine_part, slow_part, waits_part
from stashtrace.visible import markdown_code


def page(facts: dict[str, Any]) -> str:
    """Return the HTML of a report.

    ``facts``: as :func:`stashtrace.report.document.report_facts` returns it.
    """
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
    """Return the Markdown of a report, for a pull request or an issue: what the page says, without its pictures.

    ``facts``: as :func:`stashtrace.report.document.report_facts` returns it.
    """
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
