"""What a table's schema is made of."""

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
    "factor",  # a multiple
    "cost",  # money, in the currency of the prices
    "kind",  # name of a kind of time, as text in place
    "commit",  # the same, of a commit
    "command",  # the same, of a command, which may be long
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
    title : str
        What the column is called in words; empty where its name without the unit says it.
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
    role: Role = ""
    missing: int = 0
    of: str | type[enum.IntEnum] | type[enum.IntFlag] = ""
    detail: int = 0
    title: str = ""

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
    def words(self) -> str:
        """Title of the column, or its name without the unit."""
        plain = self.name.removesuffix("_count").removesuffix("_ratio").removesuffix("_ns")
        return self.title or plain.replace("_", " ")

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
        chosen = {c.name: f"{self.name}.{c.name}" for c in self.columns if c.role == "key"}
        object.__setattr__(self, "keys", keys | chosen)


def schema(name: str, doc: str, *columns: Column) -> Schema:
    """Make a schema of columns."""
    return Schema(name, columns, doc)


# Columns of many tables.

#: The two columns of an interval.
INTERVAL = (
    Column("begin_ns", "i8", "ns", "first instant inside", role="moment"),
    Column("end_ns", "i8", "ns", "first instant after", role="moment"),
)
RANK = Column("rank", "i8", "", "global rank", role="rank")
RANK_OR_NONE = Column("rank", "i8", "", "global rank, -1 if none", role="rank", missing=-1)
RANK_OR_ALL = Column("rank", "i8", "", "global rank, -1 for all", role="rank", missing=-1)
PROCESS_ID = Column("process_id", "i8", "", "", of="processes.process_id", detail=6)
TRACK_ID = Column("track_id", "i8", "", "", of="tracks.track_id", detail=5)


# Constructors by what a column holds: its type, unit and role follow from that. ``missing`` and ``detail`` as above.


def ns(name: str, doc: str, missing: int = 0, detail: int = 0, title: str = "") -> Column:
    """Return a column of lengths of time in ns."""
    return Column(name, "i8", "ns", doc, missing=missing, detail=detail, title=title)


def moment(name: str, doc: str, missing: int = 0, detail: int = 0) -> Column:
    """Return a column of instants on the common clock, in ns."""
    return Column(name, "i8", "ns", doc, role="moment", missing=missing, detail=detail)


def nbytes(name: str, doc: str, missing: int = 0, detail: int = 0) -> Column:
    """Return a column of sizes in bytes."""
    return Column(name, "i8", "bytes", doc, missing=missing, detail=detail)


def number(name: str, doc: str, missing: int = 0, detail: int = 0, title: str = "") -> Column:
    """Return a column of whole numbers without a unit, as counts."""
    return Column(name, "i8", "", doc, missing=missing, detail=detail, title=title)


def real(name: str, doc: str, missing: int = 0, detail: int = 0, title: str = "", role: Role = "") -> Column:
    """Return a column of real numbers without a unit, as ratios."""
    return Column(name, "f8", "", doc, role, missing, detail=detail, title=title)


def word(name: str, doc: str, width: int = 16, detail: int = 0, title: str = "", role: Role = "") -> Column:
    """Return a column of texts in place; numpy's type has room for this many characters, tables make it wider."""
    return Column(name, f"U{width}", "", doc, role, detail=detail, title=title)


def rank(name: str, doc: str, missing: int = 0, detail: int = 0) -> Column:
    """Return a column of global ranks, or of how many ranks there are."""
    return Column(name, "i8", "", doc, role="rank", missing=missing, detail=detail)


def key(name: str, doc: str, detail: int = 0) -> Column:
    """Return a column of numbers of rows, by which other tables refer to them."""
    return Column(name, "i8", "", doc, role="key", detail=detail)


def identity(name: str, doc: str, missing: int = 0, detail: int = 0) -> Column:
    """Return a column of numbers that nobody computes with."""
    return Column(name, "i8", "", doc, role="id", missing=missing, detail=detail)


def refers(name: str, of: str, doc: str = "", missing: int = 0, detail: int = 0) -> Column:
    """Return a column of keys of another table, as ``tracks.track_id``."""
    return Column(name, "i8", "", doc, missing=missing, of=of, detail=detail)


def text(name: str, doc: str, detail: int = 0) -> Column:
    """Return a column of codes of texts in the trace's strings."""
    return Column(name, "i8", "", doc, role="text", detail=detail)
