"""The document of a report as one HTML file: no network, readable without script, light and dark, printable.

The parts are in the order of the table of contents. A policy in the head forbids everything that the file does not
bring itself, and every script but its own.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from typing import Any

from stashtrace.report.page.first_parts import budget_part, ending_part, heat_part, verdict_part
from stashtrace.report.page.html import embedded_json, paragraph, section, tag, text
from stashtrace.report.page.later_parts import links_part, losses_part, machine_part, slow_part, waits_part
from stashtrace.report.page.words import sentence, title_around
from stashtrace.schema.stall_kinds import COLUMNS, STALL_KINDS

_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
)


def page(facts: dict[str, Any]) -> str:
    """Return the HTML of a report.

    Parameters
    ----------
    facts : dict
        As :func:`stashtrace.report.facts.report_facts` returns it.
    """
    parts = [
        ("verdict", "What slows it down", verdict_part(facts)),
        ("budget", "Where the time of a step goes", budget_part(facts)),
        ("heat", "Which steps and which ranks", heat_part(facts)),
        ("waits", "The costliest waits", waits_part(facts)),
        ("slow", "Slow steps", slow_part(facts)),
        ("links", "Links", links_part(facts)),
        ("losses", "Losses and own cost", losses_part(facts)),
        ("machine", "Machine, versions and command", machine_part(facts)),
    ]
    shown = [(name, title, content) for name, title, content in parts if content]
    contents = "".join(f'<li><a href="#{name}">{text(title)}</a></li>' for name, title, _ in shown)
    script, style = _own_file("script.js"), _style()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    title = text(f"{facts['path']} - stashtrace report")
    body = [
        '<a class="skip" href="#main">Skip to the report</a>',
        "<header>",
        tag("h1", tag("code", text(facts["path"])).join(map(text, title_around(facts)))),
        *ending_part(facts),
        *([paragraph(sentence(facts["verdict"]), "claim")] if facts["verdict"] and not facts["ending"] else []),
        paragraph(", ".join(facts["headline"]), "soft"),
        tag("nav", tag("ul", contents), aria_label="Parts of the report"),
        "</header>",
        '<main id="main">',
        *(section(name, title, *content) for name, title, content in shown),
        "</main>",
        tag("footer", paragraph(_FOOTER)),
        f'<script type="application/json" id="facts">{embedded_json(facts)}</script>',
        f"<script>{script}</script>" if facts["heat"] or facts["waits"] else "",
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY.format(digest=digest)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{title}</title>\n<style>{style}</style>\n</head>\n<body>\n" + "\n".join(body) + "\n</body>\n</html>\n"
    )


_FOOTER = (
    "Made by stashtrace from one recording. All of it is in this file; the same facts are in it as JSON, in the element"
    " with the id facts. Times are of the recorded run: another run of the same job may differ."
)


def _style() -> str:
    """Return the style sheet with the colours of the kinds of time; a column has that of its first kind."""
    first = {column: kinds[0] for column, kinds in COLUMNS.items()} | {kind.name: kind.name for kind in STALL_KINDS}
    parts = {
        "light": " ".join(f"--{kind.name}: {kind.colour};" for kind in STALL_KINDS),
        "dark": " ".join(f"--{kind.name}: {kind.on_dark};" for kind in STALL_KINDS),
        "classes": "\n".join(f".k-{name} {{ fill: var(--{kind}) }}" for name, kind in first.items()),
    }
    style = _own_file("style.css")
    for name, rules in parts.items():
        style = style.replace(f"/* kinds, {name} */", rules)
    return style


def _own_file(name: str) -> str:
    return files("stashtrace.report.page").joinpath(name).read_text(encoding="utf-8")
