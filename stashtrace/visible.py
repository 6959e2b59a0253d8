"""Text that came from somewhere else, made safe for a person's terminal and for a spreadsheet.

File names, hosts, functions and arguments are whatever somebody chose. A terminal takes some of their characters for
commands, and some turn the order of letters around or are not seen at all: these are shown as ``\\u202e``, which JSON
reads back as the same character. The command line puts everything that it prints through here.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
from typing import Any, TextIO

#: C0 (but tab and end of line), DEL, C1; marks of direction, of no width and of no sight; halves of characters.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)
_BREAKS = re.compile("[\t\n]")
#: The colours in which reports are painted, and their end: these alone are let through.
_COLOUR = re.compile("(\x1b\\[(?:0|1|2|3[1-6]|1;33)m)")
#: What a spreadsheet takes for the beginning of a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def visible(text: str) -> str:
    """Text with its control characters in visible form; lines, tabs and the colours of reports stay.

    Examples
    --------
    >>> print(visible("a" + chr(27) + "[2Jb" + chr(0x202e) + "c"))
    a\\u001b[2Jb\\u202ec
    """
    if not _HIDDEN.search(text):
        return text
    parts = _COLOUR.split(text)
    return "".join(part if _COLOUR.fullmatch(part) else _HIDDEN.sub(_shown, part) for part in parts)


def visible_line(text: str) -> str:
    """The same for text that must not break its line, nor paint: a name in a sentence or a cell."""
    return _BREAKS.sub(_shown, _HIDDEN.sub(_shown, text))


def spreadsheet_cell(value: Any) -> Any:
    """A cell of a CSV file: a text that a spreadsheet would compute gets an apostrophe in front; numbers stay."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _shown(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass").hex()  # JSON has no other name for what is beyond 16 bits
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


class VisibleStream:
    """A text stream whose ``write`` makes everything visible; ``write_as_is`` is for what we made ourselves."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write text in visible form."""
        return self._stream.write(visible(text))

    def writelines(self, lines: Any) -> None:
        """Write several."""
        for line in lines:
            self.write(line)

    def write_as_is(self, text: str) -> int:
        """Write text as it is."""
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
