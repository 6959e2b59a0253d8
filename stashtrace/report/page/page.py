"""The document of a report as one HTML file; its parts are in the order of the table of contents."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from stashtrace.errors import guarded
from stashtrace.report.page.first_parts import budget_part, doubts_part, ending_part, verdict_part
from stashtrace.report.page.flame_parts import flames_part
from stashtrace.report.page.html import embedded_json, own_file, paragraph, section, tag, text, whole_page
from stashtrace.report.page.later_parts import links_part, losses_part, machine_part, slow_part, waits_part
from stashtrace.report.page.page_words import sentence, title_around
from stashtrace.report.page.step_parts import curve_part, heat_part


def page(facts: dict[str, Any]) -> str:
    """Return the HTML of a report.

    ``facts``: as :func:`stashtrace.report.document.report_facts` returns it.
    """
    parts = [
        (
            name,
            short,
            title,
            guarded(title.lower(), partial(make, facts), lambda line: [paragraph(sentence(line), "warn")]),
        )
        for name, short, title, make in _PARTS
    ]
    shown = [part for part in parts if part[-1]]
    contents = "".join(f'<li><a href="#{name}">{text(short)}</a></li>' for name, short, _, _ in shown)
    script = own_file("script.js")
    body = [
        '<a class="skip" href="#main">Skip to the report</a>',
        "<header>",
        tag("h1", tag("code", text(facts["path"])).join(map(text, title_around(facts)))),
        paragraph(", ".join(facts["headline"]), "soft"),
        *ending_part(facts),
        *doubts_part(facts),
        *(paragraph(sentence(line), "warn") for line in facts["not_said"]),
        tag("nav", tag("ul", contents), aria_label="Parts of the report"),
        "</header>",
        '<main id="main">',
        *(section(name, title, *content) for name, _, title, content in shown),
        "</main>",
        tag("footer", paragraph(_FOOTER)),
        f'<script type="application/json" id="facts">{embedded_json(facts)}</script>',
        f"<script>{script}</script>" if facts["heat"] or facts["waits"] or facts["curve"] else "",
    ]
    return whole_page(f"{facts['path']} - stashtrace report", body, script=script)


#: Parts of the page in their order: name, word in the list of parts, title, what makes it.
_PARTS: tuple[tuple[str, str, str, Callable[[dict[str, Any]], list[str]]], ...] = (
    ("verdict", "Causes", "What slows it down", verdict_part),
    ("budget", "Budget", "Where the time of a step goes", budget_part),
    ("curve", "Step time", "How long each step takes", curve_part),
    ("flames", "Functions", "Which of your functions it goes to", flames_part),
    ("heat", "Heat maps", "Which steps and which ranks", heat_part),
    ("waits", "Waits", "The costliest waits", waits_part),
    ("slow", "Slow steps", "Slow steps", slow_part),
    ("links", "Links", "Links", links_part),
    ("losses", "Losses", "Losses and own cost", losses_part),
    ("machine", "Machine", "Machine, versions and command", machine_part),
)
_FOOTER = (
    "Made by stashtrace from one recording. All of it is in this file; the same facts are in it as JSON, in the element"
    " with the id facts. Times are of the recorded run: another run of the same job may differ."
)
