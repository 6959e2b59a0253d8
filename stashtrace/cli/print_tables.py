"""Tables on stdout: aligned text for people, JSON and CSV for scripts.

JSON and CSV hold the columns as documented, times in integer ns; a text behind a string code is written
under the name without ``_code``. The aligned form rounds times and bytes to what a person compares, and names kinds
of time in the words of the summary.
"""

from __future__ import annotations

import csv
import json
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, TextIO

from stashtrace.schema.columns import Schema
from stashtrace.schema.stall_kinds import words_of
from stashtrace.schema.strings import StringPool
from stashtrace.schema.table import Table
from stashtrace.text.prose import align, wrap
from stashtrace.text.units import bytes_text, duration_text, shortened
from stashtrace.text.visible import spreadsheet_cell, visible_line

#: Names of kernels are C++ with all its templates.
_NAME_WIDTH = 60
_ZERO = re.compile(r"-?[0.]+( (ns|B|B/s))?|")
#: Where room is short they are cut further, but no further than this.
_SHORTEST = 24
#: Where room is short, sentences are wrapped, into no fewer characters than these.
_NARROWEST = 36
#: Of rows that come from no table of ours.
NO_DETAILS: Mapping[str, int] = {}
#: Columns whose name alone would mislead -> title of the aligned form.
_TITLES = {"caused_wait_ns": "wait caused"}
#: Columns with ids of kinds of time.
_KINDS = ("kind", "rival_kind", "cause_kind")


def named_rows(table: Table, strings: StringPool, extra: dict[str, Any] | None = None) -> Iterator[dict[str, Any]]:
    """Rows as dicts with texts in place of string codes; ``extra`` columns come first."""
    texts = {c.name: c.shown_name for c in table.schema.columns if c.is_text}
    for row in table.rows():
        yield {**(extra or {}), **{texts.get(n, n): (strings.text(v) if n in texts else v) for n, v in row.items()}}


def screen_width() -> int | None:
    """Columns of the terminal that stdout is, None if it is none: a file or a pipe gets everything."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def write_rows(
    rows: Sequence[dict[str, Any]],
    columns: Sequence[str],
    format_name: str,
    stream: TextIO,
    *,
    width: int | None = None,
    notes: TextIO | None = None,
    keep_all: bool = False,
    details: Mapping[str, int] = NO_DETAILS,
    keep_ids: bool = False,
) -> None:
    """Write rows as ``table``, ``json`` or ``csv``.

    An aligned table leaves out columns to fit into ``width`` characters, if that is given; which ones is said in one
    line on ``notes`` (stderr). It also leaves out columns in which no row says anything, unless ``keep_all``: then
    somebody asked for just these columns. With ``keep_ids`` it has the ids of kinds of time, as a query compares them.
    """
    if format_name == "json":
        # One row a line: a list that json.load takes and grep does too.
        body = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
        stream.write(f"[\n{body}\n]\n" if rows else "[]\n")
    elif format_name == "csv":
        writer = csv.DictWriter(stream, list(columns), lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: spreadsheet_cell(value) for name, value in row.items()} for row in rows)
    else:
        text, left_out = align_rows(rows, columns, width, keep_all, details, keep_ids)
        stream.write(text)
        if left_out:
            stream.flush()
            many = f"{len(left_out)} columns do" if len(left_out) > 1 else "1 column does"
            equal = {name: f"{name} ({_cell(name, rows[0][name])} in every row)" for name in left_out}
            names = [equal[name] if len({row[name] for row in rows}) == 1 < len(rows) else name for name in left_out]
            notes = sys.stderr if notes is None else notes
            notes.write(f"{many} not fit into {width} characters: {', '.join(names)} (--wide shows all)\n")


def align_rows(
    rows: Sequence[dict[str, Any]],
    columns: Sequence[str],
    width: int | None = None,
    keep_all: bool = False,
    details: Mapping[str, int] = NO_DETAILS,
    keep_ids: bool = False,
) -> tuple[str, tuple[str, ...]]:
    """(text, columns that it leaves out to fit into ``width`` characters).

    Columns stand under their names, numbers to the right; one in which no row says anything is left out silently,
    unless ``keep_all``. Sentences are wrapped within their column where that is needed.
    """
    if not rows:
        return "no rows\n", ()
    titles = _titles(columns)
    said = () if keep_ids else _KINDS
    parts = []
    for name, title in zip(columns, titles, strict=True):
        cells = [visible_line(_cell(name, words_of(row[name]) if name in said else row[name])) for row in rows]
        if keep_all or any(cell not in ("", "-") for cell in cells):
            right = any(isinstance(row[name], int | float) for row in rows)
            parts.append(_Part(name, right, [visible_line(title), *cells]))
    kept = parts if width is None else _fit(parts, width, details)
    left = [at for at, part in enumerate(kept) if not part.right]
    shown_rows = zip(*(part.wrapped() for part in kept), strict=True)
    lines = align([line for row in shown_rows for line in zip_longest(*row, fillvalue="")], left, indent="")
    shown = {part.name for part in kept}
    return "\n".join([*lines, ""]), tuple(part.name for part in parts if part.name not in shown)


@dataclass(slots=True, eq=False)
class _Part:
    """One column of text: its title, then its cells; ``width`` is that of the longest line, or what it is given."""

    name: str
    right: bool
    lines: list[str]
    width: int = field(init=False)

    def __post_init__(self) -> None:
        self.width = max(map(len, self.lines))

    @property
    def is_sentence(self) -> bool:
        """Whether the cells are texts of several words that may be wrapped."""
        return not self.right and self.name not in ("path", "name") and any(line.count(" ") > 4 for line in self.lines)

    def wrapped(self) -> list[list[str]]:
        """Return the lines of each cell within the width."""
        if not self.is_sentence:
            return [[line] for line in self.lines]
        return [wrap(line, "", width=self.width, rest=0) or [""] for line in self.lines]

    @property
    def says_one_thing(self) -> bool:
        """Whether several rows say the same."""
        return len(self.lines) > 2 and len(set(self.lines[1:])) == 1

    def shortened(self, width: int) -> _Part:
        """A column of names or paths cut to ``width`` characters; any other one as it is."""
        if self.name == "path":
            cut = [line if len(line) <= width else "…" + line[1 - width :] for line in self.lines]
        elif self.name == "name":
            cut = [shortened(line, width) for line in self.lines]
        else:
            return self
        return _Part(self.name, self.right, cut)


def _fit(parts: list[_Part], width: int, details: Mapping[str, int]) -> list[_Part]:
    """The columns that fit side by side, in their order.

    Sentences become narrow, paths lose their beginning and names their middle before any column goes. Then go columns
    of zeros, what is the same in all rows, details (:class:`Column`), and the rest from the right. The first column
    stays. Sentences then take the room that is left. Next to a column that is too wide for any screen all stays.
    """
    kept = list(parts)
    if _width(parts) <= width:
        return kept
    sentences = {id(part): part.width for part in parts if part.is_sentence}
    for part in parts:
        if id(part) in sentences:
            part.width = min(part.width, max(_NARROWEST, *map(len, part.lines[:1])))
    if max(part.width for part in parts) >= width:
        return kept
    kept = parts = [part.shortened(max(width * 2 // 5, _SHORTEST)) for part in parts]
    constant = [part for part in parts if part.says_one_thing]
    zeros = [part for part in constant if _ZERO.fullmatch(part.lines[1])]
    of_detail = [part for part in reversed(parts) if details.get(part.name)]
    of_detail.sort(key=lambda part: -details[part.name])
    dropped = []
    for part in [*zeros, *constant, *of_detail, *reversed(parts)]:
        if _width(kept) <= width:
            break
        if part in kept and part is not parts[0]:
            kept.remove(part)
            dropped.append(part)
    for part in reversed(dropped):  # a wide one that went last may have made room for narrow ones
        more = [each for each in parts if each in kept or each is part]
        if part not in zeros and _width(more) <= width:
            kept = more
    for part in kept:
        part.width += min(sentences.get(id(part), part.width) - part.width, width - _width(kept))
    return kept


def _width(parts: Sequence[_Part]) -> int:
    return sum(part.width + 2 for part in parts) - 2


def _titles(names: Sequence[str]) -> list[str]:
    """Names above columns, without the unit where each cell has it and no other column would be called the same."""
    short = [_title(name) for name in names]
    return [name if short.count(title) > 1 else title for name, title in zip(names, short, strict=True)]


def _title(name: str) -> str:
    if name in _TITLES:
        return _TITLES[name]
    if _is_moment(name):
        return name
    unit = next((unit for unit in ("_bytes_per_s", "_bytes", "_ns") if name.endswith(unit)), "")
    return name.removesuffix(unit)


def _is_moment(name: str) -> bool:
    """Whether a column holds moments: they are compared digit by digit, while lengths of time are compared by size."""
    return name.endswith("_ns") and name.startswith(("begin", "end", "ts_"))


def column_names(table: Table, extra: Sequence[str] = ()) -> list[str]:
    """Names under which :func:`named_rows` gives the columns."""
    return [*extra, *(column.shown_name for column in table.schema.columns)]


def column_details(*schemas: Schema) -> dict[str, int]:
    """Return for the columns that are details how early a narrow screen leaves them out, by their shown names."""
    return {column.shown_name: column.detail for schema in schemas for column in schema.columns if column.detail}


def _cell(name: str, value: Any) -> str:
    if isinstance(value, float) and name.endswith("_bytes_per_s"):
        return f"{bytes_text(value)}/s" if value > 0 else "-"
    if isinstance(value, float):
        if value == -1.0 and name.endswith("_ratio"):
            return "-"
        return f"{value:.3f}" if value == value else "-"
    if isinstance(value, int):
        if name.endswith("_ns") and not _is_moment(name):
            return duration_text(value) if value != -1 else "-"
        if value == -1 and (name == "step" or name.endswith(("rank", "_count", "_id"))):
            return "-"
        if name == "bytes" or name.endswith("_bytes"):
            return bytes_text(value) if value != -1 else "-"
    return shortened(str(value), _NAME_WIDTH) if name in ("name", "path") else str(value)
