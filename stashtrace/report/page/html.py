"""Pages as one HTML file, and their elements: no network, readable without script, light and dark, printable.

All text passes ``text``, which makes names from outside harmless and visible. A policy in the head of a page forbids
everything that the file does not bring itself, and every script but its own.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Sequence
from importlib.resources import files
from itertools import zip_longest
from typing import Any

from stashtrace.schema.stall_kinds import COLUMNS, STALL_KINDS
from stashtrace.visible import finite, visible_line

#: A cell with a longer text is a sentence, and has room for it.
_LONG = 40
#: A cell with a text as short as a number with its unit is never broken.
_SHORT = 12
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=%|[mnu]?s\b|[KMGT]?B\b)")
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
)


def whole_page(title: str, body: Sequence[str], *, script: str = "") -> str:
    """Return a page with the style of reports; ``script`` is the only one that may run."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY.format(digest=digest)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{text(title)}</title>\n<style>{_style()}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def _style() -> str:
    """Return the style sheet with the colours of the kinds of time; a column has that of its first kind."""
    first = {column: kinds[0] for column, kinds in COLUMNS.items()} | {kind.name: kind.name for kind in STALL_KINDS}
    parts = {
        "light": " ".join(f"--{kind.name}: {kind.colour};" for kind in STALL_KINDS),
        "dark": " ".join(f"--{kind.name}: {kind.on_dark};" for kind in STALL_KINDS),
        "classes": "\n".join(f".k-{name} {{ fill: var(--{kind}) }}" for name, kind in first.items()),
    }
    style = own_file("style.css")
    for name, rules in parts.items():
        style = style.replace(f"/* kinds, {name} */", rules)
    return style


def own_file(name: str) -> str:
    """Return the text of a file that stands beside this one."""
    return files("stashtrace.report.page").joinpath(name).read_text(encoding="utf-8")


def text(value: object) -> str:
    """Return a text for an element or an attribute: escaped, with control characters and marks of direction visible."""
    return html.escape(visible_line(str(value)), quote=True)


def prose(value: object) -> str:
    """Return a text for an element, in which what stands between backticks is code, and units keep to their numbers.

    Examples
    --------
    >>> prose("see `stashtrace info`; a < b")
    'see <code>stashtrace info</code>; a &lt; b'
    """
    parts = _BEFORE_UNIT.sub("\u00a0", text(value)).split("`")
    if len(parts) % 2 == 0:  # a backtick without its other one is a part of a name
        return "`".join(parts)
    return "".join(tag("code", part) if at % 2 else part for at, part in enumerate(parts))


def tag(name: str, content: str, **attributes: str | None) -> str:
    """Return an element; ``content`` is HTML, attributes are plain text, and one that is None is left out.

    ``_`` in the name of an attribute stands for ``-``, and ``class_`` for ``class``.
    """
    return f"<{name}{_attributes(attributes)}>{content}</{name}>"


def _attributes(attributes: dict[str, str | None]) -> str:
    named = ((key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items() if value is not None)
    return "".join(f' {key}="{text(value)}"' for key, value in named)


def paragraph(value: object, class_: str | None = None) -> str:
    """Return a paragraph of text."""
    return tag("p", prose(value), class_=class_)


def listing(values: Sequence[object], class_: str | None = None) -> str:
    """Return a list of texts; empty without values."""
    return tag("ul", "".join(tag("li", prose(value)) for value in values), class_=class_) if values else ""


def section(name: str, heading: str, *content: str) -> str:
    """Return a part of the page with its heading; ``name`` is the anchor."""
    title = tag("h2", text(heading), id=f"{name}-heading")
    return tag("section", "\n".join([title, *filter(None, content)]), id=name, aria_labelledby=f"{name}-heading")


def unfolding(summary: str, *content: str, subject: str = "", class_: str | None = None) -> str:
    """Return an element that opens on click; ``subject`` tells its summary from others of the same words."""
    told = text(summary) + (tag("span", f": {text(subject)}", class_="hidden") if subject else "")
    return tag("details", tag("summary", told) + "".join(filter(None, content)), class_=class_)


def side_by_side(*foldings: str) -> str:
    """Return elements that open on click in one line; an open one takes a line of its own."""
    return tag("div", "".join(filter(None, foldings)), class_="folds") if any(foldings) else ""


def how(subject: str, *sentences: str, content: str = "", command: str = "") -> str:
    """Return how the numbers of ``subject`` are known: method, bounds, and the command that prints their rows."""
    rows = [paragraph("It prints the rows that these numbers come from:"), code_line(command)] if command else []
    return unfolding("How do you know?", *map(paragraph, sentences), content, *rows, subject=subject, class_="how")


def how_each(subject: str, known: Sequence[tuple[str, Sequence[str]]], *sentences: str, command: str = "") -> str:
    """Return how the claims of a part are known, once for the part: what holds for all, then claim by claim."""
    rows = [tag("li", tag("em", prose(claim)) + listing(each)) for claim, each in known]
    return how(subject, *sentences, content=tag("ul", "".join(rows)) if rows else "", command=command)


def code_line(command: str) -> str:
    """Return a command on a line of its own."""
    return tag("p", tag("code", text(command)), class_="command")


def see(command: str, what: str = "On the timeline") -> str:
    """Return the command that shows a part on the timeline."""
    return tag("p", f"{text(what)}: {tag('code', text(command))}", class_="command")


def table(
    caption: str,
    head: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    numbers: int = 0,
    sortable: bool = False,
    ids: Sequence[str] = (),
    wraps: bool = False,
) -> str:
    """Return a table of plain texts whose first column names the rows.

    ``head``: titles of the columns. ``rows``: a cell is a text, or a pair of a text and the number by which it is
    sorted. ``numbers``: so many columns at the end are numbers, which stand to the right. ``sortable``: whether the
    script may add buttons that sort. ``ids``: anchors of the rows. ``wraps``: cells break their lines
    instead of making the table wide, and in a narrow window each row is a list of titles and cells.
    """
    first_number = len(head) - numbers
    titles = "".join(
        tag("th", text(name), scope="col", class_="n" if at >= first_number else None) for at, name in enumerate(head)
    )
    lines = "".join(
        tag(
            "tr",
            "".join(_cell(cell, at, at >= first_number, head[at] if wraps else None) for at, cell in enumerate(row)),
            id=name,
        )
        + "\n"
        for row, name in zip_longest(rows, ids)
    )
    whole = f"{tag('caption', text(caption))}<thead><tr>{titles}</tr></thead><tbody>\n{lines}</tbody>"
    classes = " ".join(filter(None, ("sortable" if sortable else "", "wraps" if wraps else ""))) or None
    # A wide table scrolls by itself; the focus lets a keyboard scroll it.
    return tag(
        "div",
        tag("table", whole, class_=classes),
        class_="scroll",
        tabindex="0",
        role="group",
        aria_label=caption,
    )


def _cell(cell: object, at: int, is_number: bool, title: str | None) -> str:
    shown, key = cell if isinstance(cell, tuple) else (cell, None)
    sort_key = None if key is None else str(key)
    size = len(str(shown))
    class_ = "n" if is_number and at else "long" if size > _LONG else "short" if title and size <= _SHORT else None
    name, scope = ("th", "row") if at == 0 else ("td", None)
    return tag(name, text(shown), scope=scope, class_=class_, data_key=sort_key, data_title=title)


def embedded_json(document: Any) -> str:
    """Return a document as JSON that no text inside it can end: ``<``, ``>`` and ``&`` are written as escapes."""
    plain = json.dumps(finite(document), separators=(",", ":"))
    return plain.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
