"""Tables, traces and sentences as HTML, as a notebook shows the value of a cell.

The page is the notebook's: text has its colour and font, and lines are faint in light and in dark. Every name in it may
come from a stranger's file, so all text is made visible and escaped. No script, and no style beyond the element itself.
"""

from __future__ import annotations

import html
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from stashtrace.schema.columns import Schema
from stashtrace.text.units import shortened
from stashtrace.text.visible import visible_line

_ROWS, _COLUMNS, _CELL_WIDTH = 10, 20, 60
_SOFT = "opacity:.65"
_LINE = "border-bottom:1px solid rgba(128,128,128,.35)"


@dataclass(frozen=True, slots=True)
class Heading:
    """Head of a column."""

    name: str
    #: Empty if it has none.
    unit: str = ""
    #: Shown when the pointer rests on it.
    meaning: str = ""
    #: Whether the cells below stand to the right.
    is_number: bool = False


class Words(str):
    """Sentences: shown as they are also where Python would show a text in quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        lines = "\n".join(map(_text, self.split("\n")))
        return f'<pre style="white-space:pre-wrap">{lines}</pre>'


def table_html(schema: Schema, columns: Mapping[str, npt.NDArray[Any]], rows_count: int) -> str:
    """First rows of a table, with the units of its columns in their heads; what is not shown is counted or named."""
    shown = schema.columns[:_COLUMNS]
    headings = [Heading(c.name, c.unit, c.meaning, columns[c.name].dtype.kind in "iuf") for c in shown]
    cells = [[_value(value, bool(c.unit)) for value in columns[c.name][:_ROWS].tolist()] for c in shown]
    notes = []
    if rows_count > _ROWS:
        more = rows_count - _ROWS
        notes.append(f"{more:,} more row{'s' * (more > 1)}")
    if len(schema.columns) > len(shown):
        notes.append("columns not shown: " + ", ".join(schema.names[len(shown) :]))
    text = f"{rows_count:,} row{'s' * (rows_count != 1)}. {schema.doc}"
    return rows_html(schema.name, text, headings, list(zip(*cells, strict=True)), notes)


def rows_html(
    title: str, text: str, headings: Sequence[Heading], rows: Sequence[Sequence[str]], notes: Sequence[str] = ()
) -> str:
    """A title with a sentence, a table below it, and notes below that."""
    parts = [f'<div><strong>{_text(title)}</strong> <span style="{_SOFT}">{_text(text)}</span>']
    if rows:
        body = "".join(f"<tr>{''.join(map(_cell, row, headings))}</tr>" for row in rows)
        parts.append(
            '<div style="overflow-x:auto"><table style="border-collapse:collapse">'
            f"<thead><tr>{''.join(map(_head, headings))}</tr></thead><tbody>{body}</tbody></table></div>"
        )
    parts += [f'<div style="{_SOFT}">{_text(note)}</div>' for note in notes]
    return "".join([*parts, "</div>"])


def _value(value: Any, is_amount: bool) -> str:
    """A cell; whole numbers of an amount with a comma after each three digits, as a person reads them."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if is_amount and isinstance(value, int):
        return f"{value:,}"
    return shortened(visible_line(str(value)), _CELL_WIDTH)


def _head(heading: Heading) -> str:
    unit = f'<br/><span style="{_SOFT};font-weight:normal">{_text(heading.unit)}</span>' if heading.unit else ""
    style = f"text-align:{_side(heading)};vertical-align:bottom;padding:.15em .6em;{_LINE}"
    return f'<th style="{style}" title="{_text(heading.meaning)}">{_text(heading.name)}{unit}</th>'


def _cell(value: str, heading: Heading) -> str:
    style = f"text-align:{_side(heading)};padding:.15em .6em;white-space:nowrap"
    return f'<td style="{style}">{_text(value)}</td>'


def _side(heading: Heading) -> str:
    return "right" if heading.is_number else "left"


def _text(text: str) -> str:
    return html.escape(visible_line(text), quote=True)


def lazy_function(target: str) -> Callable[..., Any]:
    """Function of a package above this one, imported when it is first called: ``module:name``."""
    module, _, name = target.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function
