"""What a table's schema is made of."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np

_MINUS_ONE = re.compile(r"-1 (if|untimed|when|for)")


@dataclass(frozen=True, slots=True)
class Column:
    """One column: name, numpy dtype text, unit ('' if none), one-line meaning."""

    name: str
    dtype: str
    unit: str
    doc: str

    @property
    def unknown(self) -> int:
        """What stands where nobody knows: -1 if the meaning says what that stands for, else 0 (the empty text)."""
        return -1 if _MINUS_ONE.search(self.doc) else 0

    @property
    def is_text(self) -> bool:
        """Whether it holds codes of texts."""
        return self.doc.startswith("string")


@dataclass(frozen=True, slots=True)
class Schema:
    """A named, ordered set of columns.

    Attributes
    ----------
    names : tuple of str
        Column names in order.
    dtypes : dict of str to numpy dtype
        Type of each column, in the same order.
    """

    name: str
    columns: tuple[Column, ...]
    doc: str
    names: tuple[str, ...] = field(init=False, repr=False, compare=False)
    dtypes: dict[str, np.dtype[Any]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Thousands of tables are made of each schema: its texts are read once.
        object.__setattr__(self, "names", tuple(c.name for c in self.columns))
        object.__setattr__(self, "dtypes", {c.name: np.dtype(c.dtype) for c in self.columns})


def schema(name: str, doc: str, *columns: tuple[str, str, str, str]) -> Schema:
    """Make a schema from ``(name, dtype, unit, doc)`` tuples."""
    return Schema(name, tuple(Column(*c) for c in columns), doc)


#: Columns that hold a moment of the common clock; every other ``_ns`` column is a length of time. -1 means unseen
#: where the column says so, and stays -1 when clocks are mapped.
STAMPS = frozenset(
    {
        "begin_ns",
        "end_ns",
        "call_ns",
        "return_ns",
        "ts_ns",
        "launch_ns",
        "awaited_ns",
        "device_begin_ns",
        "device_end_ns",
        "source_ns",
        "destination_ns",
    }
)

#: The two columns of an interval.
INTERVAL = (
    ("begin_ns", "i8", "ns", "first instant inside"),
    ("end_ns", "i8", "ns", "first instant after"),
)
