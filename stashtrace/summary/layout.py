"""Lines of text: aligned columns, wrapped sentences."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import textwrap
from collections.abc import Sequence


def wrapped(text: str) -> list[str]:
    """Return a sentence as indented lines."""
    return textwrap.wrap(text, 96, initial_indent="  ", subsequent_indent="    ")


def table_lines(rows: Sequence[tuple[str, ...]], *, left: int) -> list[str]:
    """Return rows as aligned, indented lines; the first ``left`` columns are left-aligned, the others right-aligned."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = []
    for row in rows:
        padded = zip(row, widths, strict=True)
        cells = [cell.ljust(w) if at < left else cell.rjust(w) for at, (cell, w) in enumerate(padded)]
        lines.append("  " + "  ".join(cells).rstrip())
    return lines
