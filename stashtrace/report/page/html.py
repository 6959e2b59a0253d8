"""Pages as one HTML file, and their elements: no network, readable without script, light and dark, printable.

All text passes ``text``, which makes names from outside harmless and visible. A policy in the head of a page forbids
everything that the file does not bring itself, and every script but its own.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Collection, Iterable, Sequence
from importlib.resources import files
from itertools import zip_longest
from typing import Any

from stashtrace.schema.stall_kinds import COLUMNS, STALL_KINDS
from stashtrace.text.visible import finite, visible_line

#: A cell with a longer text is a sentence, and has room for it.
_LONG = 40
#: A cell with a text as short as a number with its unit is never broken.
_SHORT = 12
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=%|[mnu]?s\b|[KMGT]?B\b)")
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
)


def whole_page(
    title: str, header: Sequence[str], parts: Sequence[str], footer: str, *, skip: str = "", script: str = ""
) -> str:
    """Return a page with the style of reports.

    ``skip``: a link to the parts, for keyboards. ``script``: the only one that may run; it stands in ``footer``.
    """
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    body = [skip, "<header>", *header, "</header>", '<main id="main">', *parts, "</main>", footer]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY.format(digest=digest)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{text(title)}</title>\n<style>{style()}</style>\n</head>\n<body>\n"
        + "\n".join(filter(None, body))
        + "\n</body>\n</html>\n"
    )


def style() -> str:
    """Return the style sheet with the colours of the kinds of time; a column has that of its first kind."""
    first = {column: kinds[0] for column, kinds in COLUMNS.items()} | {kind.name: kind.name for kind in STALL_KINDS}
    parts = {
        "light": " ".join(f"--{kind.name}: {kind.colour};" for kind in STALL_KINDS),
        "dark": " ".join(f"--{kind.name}: {kind.on_dark};" for kind in STALL_KINDS),
        "classes": "\n".join(f".k-{name} {{ fill: var(--{kind}) }}" for name, kind in first.items()),
    }
    sheet = own_file("style.css")
    for name, rules in parts.items():
        sheet = sheet.replace(f"/* kinds, {name} */", rules)
    return sheet


def own_file(name: str) -> str:
    """Return the text of a file next to this one."""
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
    named = ((key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items() if value is not None)
    listed = "".join(f' {key}="{text(value)}"' for key, value in named)
    return f"<{name}{listed}>{content}</{name}>"


def paragraph(value: object, class_: str | None = None) -> str:
    """Return a paragraph of text."""
    return tag("p", prose(value), class_=class_)


def listing(values: Sequence[object]) -> str:
    """Return a list of texts; empty without values."""
    return bullets(map(prose, values))


def bullets(items: Iterable[str], class_: str | None = None) -> str:
    """Return a list of HTML; empty without items."""
    shown = "".join(tag("li", item) for item in items)
    return tag("ul", shown, class_=class_) if shown else ""


def verdicts(items: Iterable[str], *, is_quiet: bool) -> str:
    """Return claims as HTML, each with a line at its edge, pale where it is quiet."""
    shown = "".join(tag("li", item, class_="quiet" if is_quiet else None) for item in items)
    return tag("ol", shown, class_="verdicts") if shown else ""


def section(name: str, heading: str, *content: str) -> str:
    """Return a part of the page with its heading; ``name`` is the anchor."""
    title = tag("h2", text(heading), id=f"{name}-heading")
    return tag("section", "\n".join([title, *filter(None, content)]), id=name, aria_labelledby=f"{name}-heading")


def unfolding(summary: str, *content: str, subject: str = "", class_: str | None = None) -> str:
    """Return an element that opens on click; ``subject`` distinguishes its summary from others of the same words."""
    words = text(summary) + (tag("span", f": {text(subject)}", class_="hidden") if subject else "")
    return tag("details", tag("summary", words) + "".join(filter(None, content)), class_=class_)


def side_by_side(foldings: Sequence[str]) -> str:
    """Return elements that open on click in one line; an open one takes a separate line."""
    return tag("div", "".join(foldings), class_="folds")


def titled(items: Sequence[tuple[str, str]]) -> str:
    """Return pictures, each next to its title."""
    return tag(
        "ul", "".join(tag("li", tag("h3", text(name)) + tag("div", each)) for name, each in items), class_="groups"
    )


def percent_of(part: float, whole: float) -> str:
    """Return a part of a whole as a length of CSS."""
    return f"{100 * part / max(whole, 1):.3f}".rstrip("0").rstrip(".") + "%"


def budget_bar(parts: Sequence[tuple[str, float, str]], label: str) -> str:
    """Return a bar of kinds of time: name, part of the whole width, and words of each."""
    drawn, at = [], 0.0
    for name, share, words in parts:
        if share > 0:
            place = f'x="{percent_of(at, 1)}" width="{percent_of(share, 1)}" height="22"'
            drawn.append(f'<rect class="k-{name}" {place}>{tag("title", f"{text(name)} {text(words)}")}</rect>')
        at += share
    listed = ", ".join(f"{name} {words}" for name, share, words in parts if share > 0)
    size = {"width": "100%", "height": "22"}
    return tag("svg", "".join(drawn), class_="bar", **size, role="img", aria_label=f"{label}: {listed}")


def swatch(kind: str) -> str:
    """Return a small square in the colour of a kind; a reader of screens passes over it."""
    return square(f"k-{kind}")


def square(class_: str) -> str:
    """Return a small square of a class; a reader of screens passes over it."""
    square = f'<rect class="{class_}" width="12" height="12"/>'
    return f'<svg class="swatch" width="12" height="12" aria-hidden="true">{square}</svg>'


def see(command: str, what: str = "") -> str:
    """Return a command on a separate line; ``what``: what it shows."""
    return tag("p", (f"{text(what)}: " if what else "") + tag("code", text(command)), class_="command")


def table(
    caption: str,
    head: Sequence[str],
    rows: Sequence[Sequence[object]],
    left: Collection[int],
    *,
    sortable: bool = False,
    ids: Sequence[str] = (),
    wraps: bool = False,
) -> str:
    """Return a table of plain texts whose first column names the rows.

    ``head``: titles of the columns. ``rows``: a cell is a text, or a pair of a text and the number by which it is
    sorted. ``left``: columns that stand to the left. ``sortable``: whether the script may add buttons that sort.
    ``ids``: anchors of the rows. ``wraps``: cells break their lines instead of making the table wide, and in a narrow
    window each row is a list of titles and cells.
    """
    titles = "".join(
        tag("th", text(name), scope="col", class_=None if at in left else "n") for at, name in enumerate(head)
    )
    lines = "".join(
        tag(
            "tr",
            "".join(_cell(cell, at, at not in left, head[at] if wraps else None) for at, cell in enumerate(row)),
            id=name,
        )
        + "\n"
        for row, name in zip_longest(rows, ids)
    )
    above = f"<thead><tr>{titles}</tr></thead>" if head else ""
    whole = f"{tag('caption', text(caption))}{above}<tbody>\n{lines}</tbody>"
    classes = " ".join(filter(None, ("sortable" if sortable else "", "wraps" if wraps else ""))) or None
    shown = tag("table", whole, class_=classes)
    # A wide table scrolls by itself; the focus lets a keyboard scroll it.
    return tag("div", shown, class_="scroll", tabindex="0", role="group", aria_label=caption)


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
