"""Limits on files of other tools: depth, digits, sizes, expansion and work.

Every importer reads its numbers, texts and documents through here. The limits are counts, not times, so the verdict on
a file is the same on every machine. They are far above what the tools write: a file beyond them is damaged or hostile.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterable
from typing import Any

from stashtrace.errors import ImporterError
from stashtrace.files.whole_files import FREE_BYTES, MOST_EXPANSION
from stashtrace.text.units import bytes_text

#: Nesting depth of a document. Execution traces have 10 levels, configurations of groups 5.
MOST_DEPTH = 100
#: Digits of a whole number; 64 bits have 20.
MOST_DIGITS = 40
#: Values of a pickle, each counted as often as it is referred to. A dump of 2,000 operations with stacks has 2 million.
MOST_VALUES = 20_000_000
#: Instructions of a pickle.
MOST_INSTRUCTIONS = 20_000_000
#: Bytes of one line, or of the text before the first event.
LONGEST_LINE_BYTES = 16 << 20
#: Bound of the numbers that a column holds: 2^62 ns is the year 2116, 2^62 bytes are 4 EiB.
HIGHEST = 1 << 62
#: Steps of SQLite's virtual machine: allowed for any file, allowed in addition per byte of the file, between checks.
_FREE_STEPS, _STEPS_PER_BYTE, _STEPS_BETWEEN_CHECKS = 100_000_000, 50, 1_000_000

_HINT = "no tool writes such files: copy it again from where it was written, or leave it out"


class OutOfBoundsError(ImporterError):
    """A file exceeds a limit that no file of its kind needs to exceed.

    ``name``: the file. ``excess``: what is too large, as the predicate of a sentence about the file.
    """

    def __init__(self, name: str, excess: str) -> None:
        super().__init__(f"{name} {excess}", hint=_HINT)


# Numbers --------------------------------------------------------------------------------------------


def whole_number(text: str) -> int:
    """Parse a text of digits; raise ``ValueError`` if it is longer than any number of a trace."""
    if len(text) > MOST_DIGITS:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)


def counted(value: Any) -> int:
    """Convert a count or a size to a whole number; raise ``ValueError`` if it does not fit a column."""
    number = int(value)
    if not -HIGHEST < number < HIGHEST:
        raise ValueError("a number that does not fit 62 bits")
    return number


def integer_or(value: object, default: int, *, lowest: int = 1 - HIGHEST) -> int:
    """Return an integer that a document holds; ``default`` for other types and for numbers that no column holds.

    >>> integer_or(7, -1), integer_or("7", -1), integer_or(True, -1), integer_or(1 << 70, 0)
    (7, -1, -1, 0)
    """
    return value if isinstance(value, int) and not isinstance(value, bool) and lowest <= value < HIGHEST else default


def nanoseconds(seconds: float) -> int:
    """Convert seconds to ns; raise ``ValueError`` if the result is not a time or does not fit a column."""
    scaled = float(seconds) * 1e9
    if not math.isfinite(scaled) or abs(scaled) >= HIGHEST:
        raise ValueError("a time that does not fit 62 bits of ns")
    return round(scaled)


# Documents ------------------------------------------------------------------------------------------

_DECODER = json.JSONDecoder(parse_int=whole_number)
_LENIENT = json.JSONDecoder(parse_int=whole_number, strict=False)


def parse_json(text: str | bytes, *, strict: bool = True) -> Any:
    """Parse a JSON text.

    Raises ValueError if the text is no JSON, is nested too deeply, or holds a number of too many digits.
    """
    decoded = text.decode("utf-8", "surrogatepass") if isinstance(text, bytes) else text
    try:
        return (_DECODER if strict else _LENIENT).decode(decoded)
    except RecursionError:
        raise ValueError("brackets are nested too deeply") from None


def parse_next(text: str, at: int) -> tuple[Any, int]:
    """Parse the JSON value that begins at a position; return it and the position after it. Errors as ``parse_json``."""
    try:
        return _DECODER.raw_decode(text, at)
    except RecursionError:
        raise ValueError("brackets are nested too deeply") from None


def check_values(root: Any, name: str) -> None:
    """Raise unless a value can be walked in reasonable time: containers may share or contain each other.

    A value counts as often as it is referred to, because a walk meets it that often; a container is examined once.

    Raises OutOfBoundsError if the value is too deep, too large when written out, refers to itself, or holds a number of
    too many digits.
    """
    sizes: dict[int, tuple[int, int]] = {}  # of finished containers: number of values in them, depth
    unfinished: set[int] = set()
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
            unfinished.remove(key)
        elif key in unfinished:
            raise OutOfBoundsError(name, "holds a list that is part of itself")
        elif key not in sizes:
            unfinished.add(key)
            stack.append((value, True))
            stack += [(item, False) for item in _items(value)]


def _items(value: Any) -> Iterable[Any]:
    return [*value.keys(), *value.values()] if isinstance(value, dict) else value


# Sizes and work -------------------------------------------------------------------------------------


class Expansion:
    """Counts the bytes that a compressed file was unpacked to."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._packed = self._unpacked = 0

    def add(self, packed_bytes: int, unpacked_bytes: int) -> None:
        """Add bytes read and bytes that came out of them.

        Raises OutOfBoundsError if the file expands more than any trace does.
        """
        self._packed += packed_bytes
        self._unpacked += unpacked_bytes
        if self._unpacked > max(FREE_BYTES, MOST_EXPANSION * self._packed):
            ratio = self._unpacked // max(self._packed, 1)
            text = f"unpacks to {ratio} times its size ({bytes_text(self._unpacked)} so far), which no trace does"
            raise OutOfBoundsError(self._name, text)


def bound_queries(connection: sqlite3.Connection, file_bytes: int) -> None:
    """Make SQLite stop with ``OperationalError`` ("interrupted") when a database makes it work without end."""
    left = _FREE_STEPS + _STEPS_PER_BYTE * file_bytes

    def is_exhausted() -> int:
        nonlocal left
        left -= _STEPS_BETWEEN_CHECKS
        return int(left < 0)

    connection.set_progress_handler(is_exhausted, _STEPS_BETWEEN_CHECKS)
