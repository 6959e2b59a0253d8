"""Tables in the form that DuckDB reads: numbers share the memory of numpy, codes become texts.

A code of a text becomes an entry of an Arrow dictionary, whose indices are the codes themselves: the column of codes is
not copied either, unless the trace has very many texts. A code of an enumeration becomes the name of its member.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stashtrace.schema.columns import Column, Schema
from stashtrace.schema.strings import StringPool
from stashtrace.schema.table import Array, Table

if TYPE_CHECKING:
    import pyarrow

#: DuckDB decodes a dictionary again for each piece of a column. Of more texts than this, only those in use are given.
_MOST_TEXTS = 1 << 14
#: Codes of enumerations below this are indices of a list of all names.
_MOST_MEMBERS = 1 << 10


class Texts:
    """The texts of a trace as an Arrow array, made once and again only when an analysis has added some."""

    def __init__(self, strings: StringPool) -> None:
        self._strings = strings
        self._made: pyarrow.Array | None = None

    def array(self) -> pyarrow.Array:
        """All texts, in the order of their codes."""
        import pyarrow

        if self._made is None or len(self._made) != len(self._strings):
            self._made = pyarrow.array(self._strings, pyarrow.string())
        return self._made


def query_names(schema: Schema) -> dict[str, str]:
    """Name in a query of each column: without ``_code`` where a text stands in place of the code."""
    names = {column.name: column.shown_name for column in schema.columns}
    for column in schema.columns:
        short = column.name.removesuffix("_code")
        if _is_enumeration(column) and short not in names.values():
            names[column.name] = short
    return names


def to_arrow(table: Table, texts: Texts) -> pyarrow.Table:
    """Arrow form of a table with the columns of :func:`query_names`; numbers share the memory of the table.

    Columns of truth values are copied, since Arrow packs them, and so are texts that stand in the table itself.
    """
    import pyarrow

    arrays = []
    for column in table.schema.columns:
        values = table[column.name]
        if column.is_text:
            arrays.append(_texts_of(values, texts.array()))
        elif _is_enumeration(column):
            arrays.append(_names_of(values, column))
        elif values.dtype.kind == "U":
            arrays.append(pyarrow.array(values.tolist(), pyarrow.string()))
        else:
            arrays.append(pyarrow.array(values))
    return pyarrow.Table.from_arrays(arrays, names=list(query_names(table.schema).values()))


def describing(schema: Schema) -> pyarrow.Table:
    """Rows of (column, type, unit, meaning), one for each column of :func:`query_names`."""
    import pyarrow

    names = query_names(schema)
    columns = schema.columns
    words = {c.name for c in columns if c.is_text or _is_enumeration(c) or np.dtype(c.dtype).kind == "U"}
    kinds = ["text" if c.name in words else _KINDS.get(np.dtype(c.dtype).kind, c.dtype) for c in columns]
    return pyarrow.table(
        {
            "column": [names[c.name] for c in columns],
            "type": kinds,
            "unit": [c.unit for c in columns],
            "meaning": [c.doc if c.is_text else c.meaning for c in columns],
        }
    )


_KINDS = {"i": "integer", "u": "integer", "f": "double", "b": "boolean"}


def _is_enumeration(column: Column) -> bool:
    """Whether a column holds codes that have names; bits of flags may be several at once and stay numbers."""
    return column.role == "code" and isinstance(column.of, type)


def _texts_of(codes: Array, texts: pyarrow.Array) -> pyarrow.Array:
    import pyarrow

    if len(texts) <= _MOST_TEXTS:
        return pyarrow.DictionaryArray.from_arrays(pyarrow.array(codes), texts)
    used = np.zeros(len(texts), dtype=np.bool_)
    used[codes] = True
    number = np.cumsum(used, dtype=np.int32) - 1
    return pyarrow.DictionaryArray.from_arrays(
        pyarrow.array(number[codes], pyarrow.int32()), texts.take(pyarrow.array(np.flatnonzero(used)))
    )


def _names_of(codes: Array, column: Column) -> pyarrow.Array:
    import pyarrow

    assert isinstance(column.of, type)
    known = {int(member): str(member.name).lower() for member in column.of}
    if not len(codes) or (codes.min() >= 0 and codes.max() < _MOST_MEMBERS):
        values, indices = np.arange(int(codes.max()) + 1 if len(codes) else 0), codes
    else:
        values, indices = np.unique(codes, return_inverse=True)
    names = [known.get(value, "" if value == column.missing else f"unknown_{value}") for value in values.tolist()]
    return pyarrow.DictionaryArray.from_arrays(pyarrow.array(indices), pyarrow.array(names, pyarrow.string()))
