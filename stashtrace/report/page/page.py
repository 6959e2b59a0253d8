"""The document of a report as one HTML file; its parts are in the order of the table of contents."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from stashtrace.errors import guarded
from stashtrace.report.page.first_parts import budget_part, ending_part, heat_part, verdict_part
from stashtrace.report.page.flame_parts import flames_part
from stashtrace.report.page.html import embedded_json, own_file, paragraph, section, tag, text, whole_page
from stashtrace.report.page.later_parts import links_part, losses_part, machine_part, slow_part, waits_part
from stashtrace.report.page.page_words import sentence, title_around


def page(facts: dict[str, Any]) -> str:
    """Return the HTML of a report.

    ``facts``: as :func:`stashtrace.report.document.report_facts` returns it.
    """
    parts = [
        (name, title, guarded(title.lower(), partial(make, facts), lambda line: [paragraph(sentence(line), "warn")]))
        for name, title, make in _PARTS
    ]
    shown = [(name, title, content) for name, title, content in parts if content]
    contents = "".join(f'<li><a href="#{name}">{text(title)}</a></li>' for name, title, _ in shown)
    script = own_file("script.js")
    body = [
        '<a class="skip" href="#main">Skip to the report</a>',
        "<header>",
        tag("h1", tag("code", text(facts["path"])).join(map(text, title_around(facts)))),
        *ending_part(facts),
        *([paragraph(sentence(facts["verdict"]), "claim")] if facts["verdict"] and not facts["ending"] else []),
        paragraph(", ".join(facts["headline"]), "soft"),
        *(paragraph(sentence(line), "warn") for line in facts["not_said"]),
        tag("nav", tag("ul", contents), aria_label="Parts of the report"),
        "</header>",
        '<main id="main">',
        *(section(name, title, *content) for name, title, content in shown),
        "</main>",
        tag("footer", paragraph(_FOOTER)),
        f'<script type="application/json" id="facts">{embedded_json(facts)}</script>',
        f"<script>{script}</script>" if facts["heat"] or facts["waits"] else "",
    ]
    return whole_page(f"{facts['path']} - stashtrace report", body, script=script)


#: Parts of the page in their order: name, title, what makes it.
_PARTS: tuple[tuple[str, str, Callable[[dict[str, Any]], list[str]]], ...] = (
    ("verdict", "What slows it down", verdict_part),
    ("budget", "Where the time of a step goes", budget_part),
    ("flames", "Which of your functions it goes to", flames_part),
    ("heat", "Which steps and which ranks", heat_part),
    ("waits", "The costliest waits", waits_part),
    ("slow", "Slow steps", slow_part),
    ("links", "Links", links_part),
    ("losses", "What was lost, and own cost", losses_part),
    ("machine", "Machine, versions and command", machine_part),
)
_FOOTER = (
    "Made by stashtrace from one recording. All of it is in this file; the same facts are in it as JSON, in the element"
    " with the id facts. Times are of the recorded run: another run of the same job may differ."
)
