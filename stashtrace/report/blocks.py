"""An answer as blocks, made once and shown in three ways: lines for a terminal, HTML, Markdown.

Paragraph, Command, Code, Listing, Table, Facts, Bars, Picture, Fold, Part
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from stashtrace.report.page import html as h
from stashtrace.text.prose import align, wrap
from stashtrace.text.visible import markdown_code, markdown_text

#: What a sentence of some style begins with on a terminal.
_MARKS = {"claim": "  ▶ ", "quiet": "  ▶ ", "warn": "  ! ", "doubt": "  ! "}
#: Of an item below another one.
_BELOW = "      "


class Block:
    """A part of an answer; what a way has no room for is empty."""

    def lines(self, width: int) -> list[str]:
        """Return lines for a terminal of this width."""
        return []

    def html(self) -> str:
        """Return HTML."""
        return ""

    def markdown(self) -> str:
        """Return Markdown."""
        return ""


#: Blocks, or None where there is nothing to show.
Blocks = Iterable[Block | None]


def text_lines(blocks: Blocks, width: int = 96) -> list[str]:
    """Return the lines for a terminal, with an empty line between blocks."""
    lines: list[str] = []
    for block in blocks:
        shown = block.lines(width) if block else []
        lines += ["", *shown] if lines and shown else shown
    return lines


def html_of(blocks: Blocks) -> list[str]:
    """Return the HTML of blocks; neighbours that open on click stand in one line, where an open one takes a line."""
    shown = [(isinstance(block, Fold), html) for block in blocks if block and (html := block.html())]
    lines = []
    for is_fold, group in groupby(shown, key=lambda pair: pair[0]):
        own = [html for _, html in group]
        lines += [h.side_by_side(own)] if is_fold and len(own) > 1 else own
    return lines


def markdown_of(blocks: Blocks) -> str:
    """Return the Markdown of blocks."""
    return "\n\n".join(shown for block in blocks if block and (shown := block.markdown()))


def page_of(title: str, blocks: Blocks, footer: Block) -> str:
    """Return blocks as one HTML file: no script, nothing to load, light and dark; what is no part stands above them."""
    made = [block for block in blocks if block]
    above = html_of(block for block in made if not isinstance(block, Part))
    parts = html_of(block for block in made if isinstance(block, Part))
    return h.whole_page(title, [h.tag("h1", h.text(title)), *above], parts, h.tag("footer", footer.html()))


def said(value: object) -> str:
    """Return a sentence as Markdown, in which what stands between backticks is code.

    Examples
    --------
    >>> said("see `a*b`; 2*3")
    'see `a*b`; 2\\\\*3'
    """
    parts = str(value).split("`")
    if len(parts) % 2 == 0:  # a backtick without its other one is a part of a name
        return markdown_text(str(value))
    return "".join(markdown_code(part) if at % 2 else markdown_text(part) for at, part in enumerate(parts))


@dataclass(frozen=True, slots=True)
class Paragraph(Block):
    """Sentences; ``style``: ``claim``, ``warn``, ``soft``, or plain."""

    text: str
    style: str | None = None

    def lines(self, width: int) -> list[str]:
        return wrap(self.text, _MARKS.get(self.style or "", ""), width=width)

    def html(self) -> str:
        return h.paragraph(self.text, self.style)

    def markdown(self) -> str:
        return f"**{said(self.text)}**" if self.style in _MARKS else said(self.text)


@dataclass(frozen=True, slots=True)
class Command(Block):
    """A command on a separate line; ``what``: what it shows."""

    command: str
    what: str = ""

    def lines(self, width: int) -> list[str]:
        return [f"{self.what}: {self.command}" if self.what else self.command]

    def html(self) -> str:
        return h.see(self.command, self.what)

    def markdown(self) -> str:
        return (f"{said(self.what)}: " if self.what else "") + markdown_code(self.command)


@dataclass(frozen=True, slots=True)
class Code(Block):
    """Lines to copy, or of an even width, below their title."""

    title: str
    code: Sequence[str]

    def lines(self, width: int) -> list[str]:
        return [f"{self.title}:", *(f"  {line}" for line in self.code)] if self.title else list(self.code)

    def html(self) -> str:
        title = h.paragraph(f"{self.title}:") if self.title else ""
        return title + h.tag("pre", h.tag("code", "\n".join(map(h.text, self.code))))

    def markdown(self) -> str:
        title = f"{said(self.title)}:\n\n" if self.title else ""
        shown = "\n".join(self.code)
        fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", shown))])
        return f"{title}{fence}\n{shown}\n{fence}"


@dataclass(frozen=True, slots=True)
class Listing(Block):
    """Sentences, each with what is known of it, below a title; ``style``: as of a paragraph."""

    items: Sequence[str | tuple[str, Sequence[str]]]
    title: str = ""
    style: str | None = None

    def _pairs(self) -> list[tuple[str, list[str]]]:
        pairs = ((item, ()) if isinstance(item, str) else item for item in self.items)
        return [(first, [one for one in below if one]) for first, below in pairs]

    def lines(self, width: int) -> list[str]:
        lines = [f"{self.title}:"] if self.title and self.items else []
        for first, below in self._pairs():
            lines += wrap(first, _MARKS.get(self.style or "", "  "), width=width)
            lines += [line for one in below for line in wrap(one, _BELOW, width=width)]
        return lines

    def html(self) -> str:
        title = h.paragraph(f"{self.title}:") if self.title and self.items else ""
        if self.style in ("claim", "quiet"):
            items = (h.paragraph(first, "claim") + h.listing(below) for first, below in self._pairs())
            return title + h.verdicts(items, is_quiet=self.style == "quiet")
        items = (h.prose(first) + h.listing(below) for first, below in self._pairs())
        return title + h.bullets(items, self.style)

    def markdown(self) -> str:
        lines = [f"{said(self.title)}:", ""] if self.title and self.items else []
        for first, below in self._pairs():
            lines.append(f"- **{said(first)}**" if self.style in ("claim", "quiet") else f"- {said(first)}")
            lines += [f"  - {said(one)}" for one in below]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Table(Block):
    """A table whose first column names the rows.

    ``head``: titles; empty for none. ``rows``: a cell is a text, or a pair of a text and the number by which a page
    sorts it. ``left``: columns that stand to the left, all of them if None. ``indent``: of its lines on a terminal.
    ``note``: a sentence below. ``ids``, ``sortable``, ``wraps``: as in :func:`stashtrace.report.page.html.table`.
    Columns in which no row says anything are left out, unless ``keeps_all``.
    """

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[Any]]
    left: Collection[int] | None = None
    indent: str = "  "
    note: str = ""
    ids: Sequence[str] = ()
    sortable: bool = False
    wraps: bool = False
    keeps_all: bool = False

    def _cut(self) -> tuple[list[str], list[list[Any]], set[int]]:
        """Return head, rows and columns to the left, without the columns that say nothing."""
        count = len(self.head or self.rows[0])
        shown = [
            at for at in range(count) if self.keeps_all or any(_text(row[at]) not in ("", "-") for row in self.rows)
        ]
        left = {place for place, at in enumerate(shown) if self.left is None or at in self.left}
        return [self.head[at] for at in shown if self.head], [[row[at] for at in shown] for row in self.rows], left

    def lines(self, width: int) -> list[str]:
        if not self.rows:
            return []
        head, rows, left = self._cut()
        shown = align(
            [*([head] if head else []), *([_text(cell) for cell in row] for row in rows)], left, indent=self.indent
        )
        return [*([self.caption] if self.caption else []), *shown, *([self.indent + self.note] if self.note else [])]

    def html(self) -> str:
        if not self.rows:
            return ""
        head, rows, left = self._cut()
        shown = h.table(self.caption, head, rows, left, ids=self.ids, sortable=self.sortable, wraps=self.wraps)
        return shown + (h.paragraph(self.note, "soft") if self.note else "")

    def markdown(self) -> str:
        if not self.rows:
            return ""
        head, rows, left = self._cut()
        rule = "|".join("---" if at in left else "---:" for at in range(len(rows[0])))
        lines = [[*map(_cell, head or [""] * len(rows[0]))], *([_cell(_text(cell)) for cell in row] for row in rows)]
        first, *others = (f"| {' | '.join(line)} |" for line in lines)
        above = f"{said(self.caption)}\n\n" if self.caption else ""
        return above + "\n".join([first, f"|{rule}|", *others]) + (f"\n\n{said(self.note)}" if self.note else "")


def _text(cell: Any) -> str:
    return str(cell[0] if isinstance(cell, tuple) else cell)


def _cell(value: str) -> str:
    """Return a sentence as a cell of Markdown: a bar would end it even in code."""
    return re.sub(r"(?<!\\)\|", r"\\|", said(value))


@dataclass(frozen=True, slots=True)
class Facts(Block):
    """Names with their values; what stands between backticks is code."""

    rows: Sequence[tuple[str, str | Command]]

    def lines(self, width: int) -> list[str]:
        size = max([11, *(len(name) for name, _ in self.rows)])
        lines: list[str] = []
        for name, value in self.rows:
            first = f"  {name:<{size}}  "
            lines += [first + value.command] if isinstance(value, Command) else wrap(value, first, width=width)
        return lines

    def html(self) -> str:
        values = (h.tag("code", h.text(v.command)) if isinstance(v, Command) else h.prose(v) for _, v in self.rows)
        names = (h.tag("dt", h.text(name)) for name, _ in self.rows)
        shown = "".join(f"{n}{h.tag('dd', v)}" for n, v in zip(names, values, strict=True))
        return h.tag("dl", shown) if shown else ""

    def markdown(self) -> str:
        values = (value.markdown() if isinstance(value, Command) else said(value) for _, value in self.rows)
        return "\n".join(f"- {said(name)}: {value}" for (name, _), value in zip(self.rows, values, strict=True))


@dataclass(frozen=True, slots=True)
class Picture(Block):
    """What a page draws; ``instead``: blocks that say the same where nothing can be drawn."""

    drawn: str
    instead: Sequence[Block | None] = ()

    def lines(self, width: int) -> list[str]:
        return text_lines(self.instead, width)

    def html(self) -> str:
        return self.drawn

    def markdown(self) -> str:
        return markdown_of(self.instead)


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of kinds of time below its title; ``parts``: name, part of the whole width, and words of each."""

    title: str
    parts: Sequence[tuple[str, float, str]]

    @property
    def words(self) -> list[str]:
        """Each part in words."""
        return [f"{name} {said}" for name, _, said in self.parts]


@dataclass(frozen=True, slots=True)
class Bars(Block):
    """Bars below each other: drawn on a page, a table in Markdown."""

    bars: Sequence[Bar]

    def html(self) -> str:
        return h.titled([(bar.title, self._drawn(bar)) for bar in self.bars]) if self.bars else ""

    @staticmethod
    def _drawn(bar: Bar) -> str:
        words = zip(bar.parts, bar.words, strict=True)
        key = "".join(h.tag("li", h.swatch(name) + h.text(said)) for (name, *_), said in words)
        return h.budget_bar(bar.parts, bar.title) + h.tag("ul", key, class_="key")

    def markdown(self) -> str:
        names = dict.fromkeys(name for bar in self.bars for name, *_ in bar.parts)
        known = [{name: said for name, _, said in bar.parts} for bar in self.bars]
        rows = [
            (bar.title, *(said.get(name, "-") for name in names)) for bar, said in zip(self.bars, known, strict=True)
        ]
        return Table("", ("", *names), rows, (0,)).markdown()


@dataclass(frozen=True, slots=True)
class Fold(Block):
    """What opens on click; ``subject`` distinguishes its summary from others of the same words.

    ``brief``: a command that stands in its place in Markdown.
    """

    summary: str
    blocks: Sequence[Block | None]
    subject: str = ""
    style: str | None = None
    brief: str = ""

    def html(self) -> str:
        content = html_of(self.blocks)
        return h.unfolding(self.summary, *content, subject=self.subject, class_=self.style) if content else ""

    def markdown(self) -> str:
        content = markdown_of(self.blocks)
        if self.brief:
            return f"Its rows: {markdown_code(self.brief)}"
        return f"<details><summary>{h.text(self.summary)}</summary>\n\n{content}\n\n</details>" if content else ""


@dataclass(frozen=True, slots=True)
class Part(Block):
    """Blocks below a heading; ``name``: its anchor on a page."""

    name: str
    title: str
    blocks: Sequence[Block | None]

    def lines(self, width: int) -> list[str]:
        return text_lines(self.blocks, width)

    def html(self) -> str:
        content = html_of(self.blocks)
        return h.section(self.name, self.title, *content) if content else ""

    def markdown(self) -> str:
        # How something is known says nothing without it.
        shown = markdown_of(one for one in self.blocks if not isinstance(one, Fold))
        return f"### {said(self.title)}\n\n{markdown_of(self.blocks)}" if shown else ""


def how(subject: str, *sentences: str, known: Listing | None = None, command: str = "") -> Fold:
    """Return how the numbers of ``subject`` are known: method, bounds, claim by claim, and what prints their rows."""
    rows = [Paragraph("It prints the rows that these numbers come from:"), Command(command)] if command else []
    brief = "" if known else command
    return Fold("How do you know?", [*map(Paragraph, sentences), known, *rows], subject, "how", brief)
