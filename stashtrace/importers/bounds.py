"""What a file of another tool may cost, in one place: depth, digits, sizes, expansion and work.

Every importer reads its numbers, texts and documents through here. The limits are counts, not times, so a file is
judged alike on each machine. They are far above what the tools write: what exceeds them is damaged, or made to harm.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterable
from typing import Any

from stashtrace.errors import ImporterError
from stashtrace.units import bytes_text

#: Brackets inside brackets. Execution traces have 10, configurations of groups 5.
MOST_DEPTH = 100
#: Digits of a whole number; 64 bits have 20.
MOST_DIGITS = 40
#: Values of a pickle, each counted as often as it is referred to. A dump of 2,000 operations with stacks has 2 million.
MOST_VALUES = 20_000_000
#: Instructions of a pickle.
MOST_INSTRUCTIONS = 20_000_000
#: Bytes of one line, or of what stands before the first event.
LONGEST_LINE_BYTES = 16 << 20
#: So much is unpacked whatever the ratio; above it the ratio counts. Traces shrink to a fifth to a fiftieth.
FREE_BYTES = 64 << 20
MOST_EXPANSION = 250
#: Numbers that a column takes: 2^62 ns is the year 2116, 2^62 bytes are 4 EiB.
HIGHEST = 1 << 62
#: Steps of SQLite's machine: so many in any case, and so many more for each byte of the file.
_FREE_STEPS, _STEPS_PER_BYTE = 100_000_000, 50
_STEPS_BETWEEN_LOOKS = 1_000_000

_HINT = "no tool writes such files: copy it again from where it was written, or leave it out"


class OutOfBoundsError(ImporterError):
    """A file asks for more than any file of its kind needs."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(f"{name} {what}", hint=_HINT)


# Numbers --------------------------------------------------------------------------------------------


def whole_number(text: str) -> int:
    """The number that a text of digits stands for; ``ValueError`` if it is longer than any number of a trace."""
    if len(text) > MOST_DIGITS:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)


def counted(value: Any) -> int:
    """A count or a size as a whole number that fits a column; ``ValueError`` if it does not."""
    number = int(value)
    if not -HIGHEST < number < HIGHEST:
        raise ValueError("a number that does not fit 62 bits")
    return number


def nanoseconds(seconds: float) -> int:
    """Seconds as ns that fit a column; ``ValueError`` for what is no time."""
    scaled = float(seconds) * 1e9
    if not math.isfinite(scaled) or abs(scaled) >= HIGHEST:
        raise ValueError("a time that does not fit 62 bits of ns")
    return round(scaled)


# Documents ------------------------------------------------------------------------------------------

#: For readers that take one value after the other; its errors are those of :func:`parse_json`.
_DECODER = json.JSONDecoder(parse_int=whole_number)
_LENIENT = json.JSONDecoder(parse_int=whole_number, strict=False)


def parse_json(text: str | bytes, *, strict: bool = True) -> Any:
    """Value of a JSON text.

    Raises
    ------
    ValueError
        If it is no JSON, is nested too deeply, or holds a number of too many digits.
    """
    decoded = text.decode("utf-8", "surrogatepass") if isinstance(text, bytes) else text
    try:
        return (_DECODER if strict else _LENIENT).decode(decoded)
    except RecursionError:
        raise ValueError("brackets inside brackets without end") from None


def parse_next(text: str, at: int) -> tuple[Any, int]:
    """The JSON value that begins at a place, and the place after it; errors as of :func:`parse_json`."""
    try:
        return _DECODER.raw_decode(text, at)
    except RecursionError:
        raise ValueError("brackets inside brackets without end") from None


def check_values(root: Any, name: str) -> None:
    """Refuse what would take for ever to walk: containers that hold each other, or are shared over and over.

    Each value counts as often as it is referred to, as a walk meets it; each container is looked at once.

    Raises
    ------
    OutOfBoundsError
        If it is too deep, too large when written out, refers to itself, or holds a number of too many digits.
    """
    sizes: dict[int, tuple[int, int]] = {}  # of containers that were left: values below, depth
    open_: dict[int, None] = {}
    stack: list[tuple[Any, bool]] = [(root, False)]
    while stack:
        value, leaving = stack.pop()
        if isinstance(value, int) and value.bit_length() > 4 * MOST_DIGITS:
            raise OutOfBoundsError(name, f"holds a number of more than {MOST_DIGITS} digits")
        if not isinstance(value, dict | list | tuple):
            continue
        key = id(value)
        if leaving:
            below = [sizes.get(id(item), (1, 0)) for item in _items(value)]
            count, depth = 1 + sum(n for n, _ in below), 1 + max((d for _, d in below), default=0)
            if count > MOST_VALUES:
                raise OutOfBoundsError(name, f"holds more than {MOST_VALUES} values, shared over and over")
            if depth > MOST_DEPTH:
                raise OutOfBoundsError(name, f"has more than {MOST_DEPTH} lists inside lists")
            sizes[key] = count, depth
            del open_[key]
        elif key in open_:
            raise OutOfBoundsError(name, "holds a list that is part of itself")
        elif key not in sizes:
            open_[key] = None
            stack.append((value, True))
            stack += [(item, False) for item in _items(value)]


def _items(value: Any) -> Iterable[Any]:
    return [*value.keys(), *value.values()] if isinstance(value, dict) else value


# Sizes and work -------------------------------------------------------------------------------------


class Expansion:
    """Counts what a compressed file was unpacked to."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._packed = self._unpacked = 0

    def add(self, packed_bytes: int, unpacked_bytes: int) -> None:
        """So much was read, and so much came out of it.

        Raises
        ------
        OutOfBoundsError
            If it grows beyond what a trace can shrink by.
        """
        self._packed += packed_bytes
        self._unpacked += unpacked_bytes
        if self._unpacked > max(FREE_BYTES, MOST_EXPANSION * self._packed):
            ratio = self._unpacked // max(self._packed, 1)
            text = f"unpacks to {ratio} times its size ({bytes_text(self._unpacked)} so far), which no trace does"
            raise OutOfBoundsError(self._name, text)


def bound_queries(connection: sqlite3.Connection, file_bytes: int) -> None:
    """Let SQLite give up (``OperationalError``: interrupted) where a database makes it work without end."""
    left = _FREE_STEPS + _STEPS_PER_BYTE * file_bytes

    def look() -> int:
        nonlocal left
        left -= _STEPS_BETWEEN_LOOKS
        return int(left < 0)

    connection.set_progress_handler(look, _STEPS_BETWEEN_LOOKS)
