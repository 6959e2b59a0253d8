"""Write text for people: count nouns, wrap sentences, align columns."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

#: What no line ends within: a word, or what is between backticks with what stands before and behind it. A no-break
#: space is part of a word.
_WORD = re.compile(r"(?:`[^`\n]*`|[^\s`]|`(?![^`\n]*`))+", re.ASCII)


def plural(count: float) -> str:
    """Return the ending of a noun behind a count."""
    return "" if count == 1 else "s"


def ordinal(number: int) -> str:
    """Return the ordinal of a number: ``21st``.

    Examples
    --------
    >>> ordinal(2), ordinal(11), ordinal(23)
    ('2nd', '11th', '23rd')
    """
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number % 100 // 10 != 1 else "th"
    return f"{number}{ending}"


def count_noun(count: int, noun: str) -> str:
    """Return count and noun.

    Examples
    --------
    >>> count_noun(1, "worker"), count_noun(2, "process"), count_noun(1204, "call")
    ('1 worker', '2 processes', '1,204 calls')
    """
    ending = plural(count) if not noun.endswith(("s", "ch")) else "" if count == 1 else "es"
    return f"{count:,} {noun}{ending}"


def list_some(names: Sequence[str], shown: int = 1) -> str:
    """List the first names, and count the others.

    Examples
    --------
    >>> list_some(["a", "b", "c"]), list_some(["a"]), list_some(["a", "b", "c"], 2)
    ('a and 2 more', 'a', 'a, b and 1 more')
    """
    rest = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {rest:,} more" if rest > 0 else "")


def unbroken_words(text: str) -> list[str]:
    """Split a sentence where a line may end: at blanks, but not within a command, which somebody may copy.

    Examples
    --------
    >>> unbroken_words("see `ls -l 'a  b'`, or ask")
    ['see', "`ls -l 'a  b'`,", 'or', 'ask']
    """
    return [found.group() for found in _WORD.finditer(text)]


def wrap(text: str, first: str = "  ", *, width: int = 96, rest: int | None = None) -> list[str]:
    """Wrap a sentence into lines that begin with ``first``, then with ``rest`` blanks (as ``first``, 4 at least).

    A line with a command or name that is longer is as long as that.
    """
    return fill(unbroken_words(text), first, " " * (max(len(first), 4) if rest is None else rest), width)


def fill(words: Sequence[str], first: str, rest: str, width: int) -> list[str]:
    """Put words into lines of the width; the first begins with ``first``, the others with ``rest``."""
    lines, line, is_fresh = list[str](), first, True
    for word in words:
        if not is_fresh and len(line) + 1 + len(word) > width:
            lines.append(line)
            line, is_fresh = rest, True
        line += word if is_fresh else " " + word
        is_fresh = False
    return lines if is_fresh else [*lines, line]


def align(rows: Sequence[Sequence[str]], left: Collection[int] = (), *, indent: str = "  ") -> list[str]:
    """Format rows as lines of aligned columns; the first row is the head.

    ``rows``: all of one length. ``left``: columns that are aligned to the left; the others are aligned to the right.
    ``indent``: what each line begins with.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = (cell.ljust(widths[at]) if at in left else cell.rjust(widths[at]) for at, cell in enumerate(row))
        lines.append(indent + "  ".join(cells).rstrip())
    return lines
