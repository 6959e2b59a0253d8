"""What a table's schema is made of."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

#: What the numbers of a column are, where code has to know it.
Role: TypeAlias = Literal[
    "",  # an amount in the column's unit, a plain number, or a text in place
    "moment",  # an instant on the common clock; it moves with the clock, unless it is the missing value
    "rank",  # global rank, or how many ranks there are
    "key",  # number of the row in its own table, by which other tables refer to it
    "id",  # any other identity: nobody computes with it, and it may be a hash of 64 bits
    "code",  # number of an enumeration
    "flags",  # bits of an enumeration
    "text",  # code of a text in the trace's strings
    "path",  # the same, of a file's path: scrubbed as one
    "host",  # the same, of a host's name: scrubbed as one
    "position",  # where in a file; a program may pass any number to a call
]
_ROLES = frozenset(get_args(Role))
_TEXTS = ("text", "path", "host")


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    Attributes
    ----------
    name : str
        Ends in its unit, or in what it is: ``_ns``, ``_bytes``, ``_code``, ``_id``, ...
    dtype : str
        As numpy spells it.
    unit : str
        Empty if it has none.
    doc : str
        Meaning, in one line; what ``of`` says need not be repeated.
    detail : int
        How early a narrow screen leaves the column out: the largest first, of equal ones the one to the right. 0 stays.
    role : str
        One of :data:`Role`; where ``of`` is given, that says it.
    missing : int
        What stands where the value is unknown, or there is none. Of codes of texts, 0 is the empty one.
    of : str or enumeration
        What the number is one of: of an id, the key it refers to (``tracks.track_id``); of a code or of flags, the
        enumeration.

    Raises
    ------
    ValueError
        If there is no such role.
    """

    name: str
    dtype: str
    unit: str
    doc: str
    detail: int = 0
    role: Role = ""
    missing: int = 0
    of: str | type[enum.IntEnum] | type[enum.IntFlag] = ""

    def __post_init__(self) -> None:
        if isinstance(self.of, type):
            object.__setattr__(self, "role", "flags" if issubclass(self.of, enum.IntFlag) else "code")
        elif self.of:
            object.__setattr__(self, "role", "id")
        if self.role not in _ROLES:
            known = ", ".join(sorted(_ROLES - {""}))
            raise ValueError(f"column {self.name} has no known role: {self.role!r}, where there are {known}")

    @property
    def is_text(self) -> bool:
        """Whether the column holds codes of texts."""
        return self.role in _TEXTS

    @property
    def shown_name(self) -> str:
        """Name of the column where texts stand in place of their codes."""
        return self.name.removesuffix("_code") if self.is_text else self.name

    @property
    def meaning(self) -> str:
        """``doc``, after what the numbers refer to."""
        refers_to = "string" if self.is_text else self.of
        if isinstance(refers_to, type):
            refers_to = refers_to.__name__ + " bits" * (self.role == "flags")
        return ": ".join(filter(None, (refers_to, self.doc)))


@dataclass(frozen=True, slots=True)
class Schema:
    """A named, ordered set of columns.

    Attributes
    ----------
    names : tuple of str
        Column names in order.
    dtypes : dict of str to numpy dtype
        Type of each column, in the same order.
    moments : tuple of str
        Names of the columns that hold an instant on the common clock.
    keys : dict of str to str
        Columns that hold keys, with the key that it is: ``{"thread_track_id": "tracks.track_id"}``.
    """

    name: str
    columns: tuple[Column, ...]
    doc: str
    names: tuple[str, ...] = field(init=False, repr=False, compare=False)
    dtypes: dict[str, np.dtype[Any]] = field(init=False, repr=False, compare=False)
    moments: tuple[str, ...] = field(init=False, repr=False, compare=False)
    keys: dict[str, str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Thousands of tables are made of each schema: its texts are read once.
        object.__setattr__(self, "names", tuple(c.name for c in self.columns))
        object.__setattr__(self, "dtypes", {c.name: np.dtype(c.dtype) for c in self.columns})
        object.__setattr__(self, "moments", tuple(c.name for c in self.columns if c.role == "moment"))
        keys = {c.name: c.of for c in self.columns if isinstance(c.of, str) and c.of}
        own = {c.name: f"{self.name}.{c.name}" for c in self.columns if c.role == "key"}
        object.__setattr__(self, "keys", keys | own)


def schema(
    name: str, doc: str, *columns: Column | tuple[str, str, str, str] | tuple[str, str, str, str, int]
) -> Schema:
    """Make a schema of columns; without role and missing value, name, dtype, unit, doc and maybe detail will do."""
    return Schema(name, tuple(c if isinstance(c, Column) else Column(*c) for c in columns), doc)


# Columns of many tables.

#: The two columns of an interval.
INTERVAL = (
    Column("begin_ns", "i8", "ns", "first instant inside", role="moment"),
    Column("end_ns", "i8", "ns", "first instant after", role="moment"),
)
RANK = Column("rank", "i8", "", "global rank", role="rank")
RANK_OR_NONE = Column("rank", "i8", "", "global rank, -1 if none", role="rank", missing=-1)
RANK_OR_ALL = Column("rank", "i8", "", "global rank, -1 for all", role="rank", missing=-1)
PROCESS_ID = Column("process_id", "i8", "", "", 6, of="processes.process_id")
TRACK_ID = Column("track_id", "i8", "", "", 5, of="tracks.track_id")
