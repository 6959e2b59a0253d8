"""Tables on stdout: aligned text for people, JSON and CSV for scripts.

JSON and CSV hold the columns as documented, times in integer ns; a text behind a string code is written
under the name without ``_code``. The aligned form rounds times and bytes to what a person compares.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

from stashtrace.model.strings import StringPool
from stashtrace.model.table import Table
from stashtrace.units import bytes_text, duration_text, shortened
from stashtrace.visible import spreadsheet_cell, visible_line

#: Names of kernels are C++ with all its templates.
_NAME_WIDTH = 60
FORMATS = ("table", "json", "csv")
#: Columns whose name alone would mislead -> title of the aligned form.
_TITLES = {"caused_wait_ns": "wait caused"}


def named_rows(table: Table, strings: StringPool, extra: dict[str, Any] | None = None) -> Iterator[dict[str, Any]]:
    """Rows as dicts with texts in place of string codes; ``extra`` columns come first."""
    texts = {c.name for c in table.schema.columns if c.name.endswith("_code") and c.doc.startswith("string")}
    for row in table.rows():
        yield {
            **(extra or {}),
            **{(n[:-5] if n in texts else n): (strings.text(v) if n in texts else v) for n, v in row.items()},
        }


def write_rows(rows: Sequence[dict[str, Any]], columns: Sequence[str], format_name: str, stream: TextIO) -> None:
    """Write rows in one of :data:`FORMATS`."""
    if format_name == "json":
        # One row a line: a list that json.load takes and grep does too.
        body = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
        stream.write(f"[\n{body}\n]\n" if rows else "[]\n")
    elif format_name == "csv":
        writer = csv.DictWriter(stream, list(columns), lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: spreadsheet_cell(value) for name, value in row.items()} for row in rows)
    else:
        stream.write(aligned(rows, columns))


def aligned(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> str:
    """Columns under their names, numbers to the right; a column in which no row says anything is left out."""
    if not rows:
        return "no rows\n"
    every = [[visible_line(_cell(name, row[name])) for name in columns] for row in rows]
    told = [at for at in range(len(columns)) if any(line[at] != "-" for line in every)]
    columns, cells = [columns[at] for at in told], [[line[at] for at in told] for line in every]
    titles = [_title(name) for name in columns]
    right = [any(isinstance(row[name], int | float) for row in rows) for name in columns]
    widths = [max(len(titles[i]), *(len(line[i]) for line in cells)) for i in range(len(columns))]

    def line(parts: Sequence[str]) -> str:
        padded = [p.rjust(w) if r else p.ljust(w) for p, w, r in zip(parts, widths, right, strict=True)]
        return "  ".join(padded).rstrip() + "\n"

    return line(titles) + "".join(line(c) for c in cells)


def _title(name: str) -> str:
    """Name above a column, without the unit where each cell has it."""
    if name in _TITLES:
        return _TITLES[name]
    return name if _is_moment(name) else name.removesuffix("_ns").removesuffix("_bytes").removesuffix("_bytes_per_s")


def _is_moment(name: str) -> bool:
    """Whether a column holds moments: they are compared digit by digit, while lengths of time are compared by size."""
    return name.endswith("_ns") and name.startswith(("begin", "end", "ts_"))


def column_names(table: Table, extra: Sequence[str] = ()) -> list[str]:
    """Names under which :func:`named_rows` gives the columns."""
    return [
        *extra,
        *(
            c.name[:-5] if c.name.endswith("_code") and c.doc.startswith("string") else c.name
            for c in table.schema.columns
        ),
    ]


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
        if value == -1 and (name == "step" or name.endswith("rank")):
            return "-"
        if name == "bytes" or name.endswith("_bytes"):
            return bytes_text(value) if value != -1 else "-"
    return shortened(str(value), _NAME_WIDTH) if name in ("name", "path") else str(value)
