"""Texts that the programs of the lab have in common: counts, signs, wrapped sentences, aligned columns."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import textwrap
from collections.abc import Collection, Sequence

from stashtrace.units import duration_text


def counted(count: int, noun: str) -> str:
    """Count and noun.

    Examples
    --------
    >>> counted(1, "file"), counted(1200, "file")
    ('1 file', '1,200 files')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def and_more(names: Sequence[str], shown: int = 1) -> str:
    """Names with the rest counted.

    Examples
    --------
    >>> and_more(["a", "b", "c"]), and_more(["a"]), and_more(["a", "b", "c"], 2)
    ('a and 2 more', 'a', 'a, b and 1 more')
    """
    rest = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {rest:,} more" if rest > 0 else "")


def signed_duration(ns: float) -> str:
    """Duration text with a sign if it is negative.

    Examples
    --------
    >>> signed_duration(-1_840_000), signed_duration(950)
    ('-1.84 ms', '950 ns')
    """
    return ("-" if ns < 0 else "") + duration_text(round(abs(ns)))


def refusal(error: OSError) -> str:
    """Reason that the system gives, for use within a sentence: ``permission denied``."""
    return (error.strerror or str(error)).lower()


def wrapped(text: str, mark: str = "  ", *, width: int = 96, rest: int | None = None) -> list[str]:
    """Wrap a sentence into indented lines.

    Parameters
    ----------
    text : str
    mark : str
        What the first line begins with.
    width : int
        Columns.
    rest : int, optional
        Indent of the other lines; that of the mark, and at least 4, by default.
    """
    indent = " " * (max(len(mark), 4) if rest is None else rest)
    return textwrap.wrap(text, width, initial_indent=mark, subsequent_indent=indent, break_on_hyphens=False)


def aligned(
    rows: Sequence[Sequence[str]], left: Collection[int] = (), *, indent: str = "", drop_silent: bool = False
) -> list[str]:
    """Format rows as aligned columns; the first row is the head.

    Parameters
    ----------
    rows : sequence of sequence of str
        All of one length.
    left : collection of int
        Columns that are aligned to the left; the others are aligned to the right.
    indent : str
        What each line begins with.
    drop_silent : bool
        Leave out columns in which no row but the head says anything.
    """
    shown = [at for at in range(len(rows[0])) if not drop_silent or any(row[at] not in ("", "-") for row in rows[1:])]
    widths = {at: max(len(row[at]) for row in rows) for at in shown}
    return [
        indent
        + "  ".join(row[at].ljust(widths[at]) if at in left else row[at].rjust(widths[at]) for at in shown).rstrip()
        for row in rows
    ]
