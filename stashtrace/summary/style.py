"""How text for people may look: width, UTF-8 or ASCII, colour or none. The caller decides; no terminal is looked at."""

from __future__ import annotations

from dataclasses import dataclass

from stashtrace.schema.stall_kinds import COLUMN_SGR
from stashtrace.text.prose import fill, unbroken_words
from stashtrace.text.visible import visible_line

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_ASCII = str.maketrans({"▶": ">", "→": "-", "±": "+", "µ": "u", "×": "x", "…": "."})
#: SGR codes by meaning; colour only repeats what the words say.
STYLES = {**COLUMN_SGR, "strong": "1", "faint": "2", "warn": "1;33"}


@dataclass(frozen=True, slots=True)
class Style:
    """What the screen can show."""

    width: int = 80
    utf8: bool = True
    colour: bool = False

    def paint(self, text: str, style: str) -> str:
        """Return ``text`` in the colour of a meaning, if colour is wanted."""
        return f"\x1b[{STYLES[style]}m{text}\x1b[0m" if self.colour and text.strip() else text

    def bar(self, ratio: float, cells_of_whole: int) -> str:
        """Return a bar of ``ratio`` (at most 1) times ``cells_of_whole`` cells; from 0.5 % on it is visible."""
        ratio = min(ratio, 1.0) if ratio > 0 else 0.0
        if not self.utf8:
            return "#" * max(round(ratio * cells_of_whole), 1 if ratio >= 0.005 else 0)
        eighths = max(round(ratio * cells_of_whole * 8), 1 if ratio >= 0.005 else 0)
        return _EIGHTHS[8] * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")

    def plain(self, text: str) -> str:
        """Return the text in the characters that the screen has."""
        if self.utf8:
            return text
        return text.replace("±", "+-").translate(_ASCII).encode("ascii", "replace").decode("ascii")

    def wrap(self, text: str, first: str = "", rest: str = "") -> list[str]:
        """Break a sentence into lines of the width, with one indent for the first and one for the others.

        The text has no colour yet: control characters in it are part of a name, and are made visible.
        """
        return fill([visible_line(word) for word in unbroken_words(text)], first, rest, self.width)
