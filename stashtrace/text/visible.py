"""Make values of unknown origin safe for terminals, spreadsheets, Markdown and JSON.

File names, hosts, functions and arguments may hold any characters. A terminal takes some for commands; others reverse
the order of letters or are invisible. They are shown as ``\\u202e``, which JSON reads back as the same character. The
command line passes all its output through here.
"""

from __future__ import annotations

import math
import re
from typing import Any, TextIO

#: C0 (except tab and end of line), DEL, C1; marks of direction, of no width, invisible ones; halves of characters.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)
_BREAKS = re.compile("[\t\n]")
#: The colours of reports, and their end: the only commands for a terminal that pass.
_COLOUR = re.compile("(\x1b\\[(?:0|1|2|3[1-6]|1;33)m)")
#: Characters that mean something in Markdown.
_MARKUP = re.compile(r"[\\`*_\[\]|~]")
#: What GitHub sees more in than a text: HTML, the name of a person, who would be notified, a reference, a formula, an
#: address, which becomes a link. An entity would not do for most: they are looked for in the page.
_MEANT = re.compile(r"[&<>@#$]|://|www(?=\.)", re.IGNORECASE)
_AS_TEXT = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "$": "<span>$</span>", "://": ":&#8203;//"}
#: What a spreadsheet takes for the beginning of a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def visible(text: str) -> str:
    """Text with control characters in visible form, except ends of lines, tabs and the colours of reports.

    Examples
    --------
    >>> print(visible("a" + chr(27) + "[2Jb" + chr(0x202e) + "c"))
    a\\u001b[2Jb\\u202ec
    """
    if not _HIDDEN.search(text):
        return text
    parts = _COLOUR.split(text)
    return "".join(part if _COLOUR.fullmatch(part) else _HIDDEN.sub(_show, part) for part in parts)


def visible_line(text: str) -> str:
    """As :func:`visible`, for a name in a sentence or a cell: also without line breaks, tabs and colours."""
    return _BREAKS.sub(_show, _HIDDEN.sub(_show, text))


def markdown_text(text: str) -> str:
    """Text that Markdown and GitHub show as it is, on one line: names of runs and commands may hold anything.

    Examples
    --------
    >>> print(markdown_text("a|b <c> @d https://e"))
    a\\|b &lt;c&gt; @&#8203;d https:&#8203;//e
    """
    escaped = _MARKUP.sub(r"\\\g<0>", visible_line(text))
    return _MEANT.sub(lambda found: _AS_TEXT.get(found[0], f"{found[0]}&#8203;"), escaped)


def markdown_code(text: str) -> str:
    """Text as code of Markdown; the fence is longer than any run of backticks in it."""
    shown = visible_line(text)
    longest = max((len(run) for run in re.findall(r"`+", shown)), default=0)
    fence, pad = "`" * (longest + 1), " " if longest else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def spreadsheet_cell(value: Any) -> Any:
    """A cell of a CSV file: a text that a spreadsheet would compute gets an apostrophe in front; numbers stay."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _show(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass").hex()  # JSON writes characters beyond 16 bits as pairs
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def finite(value: Any) -> Any:
    """Return a document with null in place of numbers that are not finite, which JSON does not have."""
    if isinstance(value, dict):
        return {key: finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class VisibleStream:
    """A text stream whose ``write`` makes everything visible; ``write_as_is`` is for text of our own."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write text in visible form."""
        return self._stream.write(visible(text))

    def writelines(self, lines: Any) -> None:
        """Write several texts in visible form."""
        for line in lines:
            self.write(line)

    def write_as_is(self, text: str) -> int:
        """Write text as it is."""
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
