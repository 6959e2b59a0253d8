"""Leave out rows with impossible numbers: a file may be damaged, or made to harm, and have valid checksums.

Called for each table that is read: by ``loading.decode`` for a run, by ``store.files`` for a store. Analyses subtract
and add these numbers in 64 bits, and use codes as indices. After this check the difference of any two numbers fits, and
no code is negative. Importers have the same bound (``importers.import_limits``).
"""

from __future__ import annotations

import numpy as np

from stashtrace.schema.columns import Schema
from stashtrace.schema.groupby import Bools, Int64
from stashtrace.schema.table import Table

#: Numbers and moments end here: 2^62 ns since 1970 is the year 2116. The difference of any two fits 64 bits.
HIGHEST = (1 << 62) - 1
#: Ranks of a job, and workers of a rank. A larger number is damage, and arrays of that size would be made.
MOST_RANKS = 1 << 24
#: Roles of columns that may hold any number.
_ANY_NUMBER = ("key", "id", "position")
#: What the methods of arrays call: these take twice as long where rows are few, and each process has these tables.
_least, _most = np.minimum.reduce, np.maximum.reduce


def rank_number(text: str) -> int:
    """Parse the number of a rank, or the number of ranks; -1 if the text is neither.

    >>> rank_number("7"), rank_number("999999999999"), rank_number("-1"), rank_number("many")
    (7, -1, -1, -1)
    """
    if not (text.isdecimal() and len(text) <= len(str(MOST_RANKS))):
        return -1
    number = int(text)
    return number if number < MOST_RANKS else -1


def is_possible(values: Int64) -> Bools:
    """Mask of the numbers within :data:`HIGHEST`."""
    return (values >= -HIGHEST) & (values <= HIGHEST)


def without_impossible(table: Table) -> tuple[Table, int]:
    """Rows whose moments, amounts and counts are all within :data:`HIGHEST`, and the number of rows left out.

    A negative code in a narrow column is one that did not fit into it, so its meaning is lost.
    """
    bad: Bools | None = None
    for name, lowest, highest in _bounds(table.schema) if len(table) else ():
        values = table[name]
        # Nearly every column passes here, without a temporary array.
        if int(_least(values)) >= lowest and (highest is None or int(_most(values)) <= highest):
            continue
        outside = values < lowest if highest is None else (values < lowest) | (values > highest)
        bad = outside if bad is None else bad | outside
    if bad is None:
        return table, 0
    return table.take(~bad), int(bad.sum())


def _bounds(schema: Schema) -> list[tuple[str, int, int | None]]:
    """Return the columns that are checked, each with its least and its largest number, None where any fits."""
    known, bounds = _KNOWN.get(schema.name, (None, []))
    if known is schema:
        return bounds
    bounds = []
    for column in schema.columns:
        if column.role in _ANY_NUMBER:
            continue
        if column.dtype in ("i2", "i4") and (column.is_text or column.role == "code"):
            bounds.append((column.name, 0, None))
        elif column.dtype == "i8":
            bounds.append((column.name, -HIGHEST, MOST_RANKS if column.role == "rank" else HIGHEST))
    _KNOWN[schema.name] = schema, bounds
    return bounds


#: Name of a schema -> the schema, and its columns with bounds: each process has a table of each.
_KNOWN: dict[str, tuple[Schema, list[tuple[str, int, int | None]]]] = {}
