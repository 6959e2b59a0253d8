"""Table: named numpy columns of equal length with a schema. Immutable; nothing else in the project holds rows."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stashtrace.model.schemas import Schema

if TYPE_CHECKING:
    import pandas
    import pyarrow

Array = npt.NDArray[Any]


class Table:
    """Columns of equal length, in the order and with the types of a :class:`Schema`.

    Parameters
    ----------
    schema : Schema
        Declares the columns.
    columns : mapping of str to array
        One array per column; converted to the declared dtype (no copy if it already has it).

    Raises
    ------
    ValueError
        If a column is missing, unknown or of another length.
    """

    __slots__ = ("_columns", "schema")

    def __init__(self, schema: Schema, columns: Mapping[str, Any]) -> None:
        extra = set(columns) - set(schema.names)
        missing = set(schema.names) - set(columns)
        if extra or missing:
            raise ValueError(f"table {schema.name}: missing {sorted(missing)}, unknown {sorted(extra)}")
        arrays: dict[str, Array] = {}
        length: int | None = None
        for column in schema.columns:
            array = np.ascontiguousarray(columns[column.name])
            if not (column.dtype.startswith("U") and array.dtype.kind == "U"):
                array = array.astype(column.dtype, copy=False)
            if array.ndim != 1 or (length is not None and len(array) != length):
                raise ValueError(f"table {schema.name}: {column.name} has shape {array.shape}, expected ({length},)")
            length = len(array)
            array = array.view()
            array.flags.writeable = False
            arrays[column.name] = array
        self.schema = schema
        self._columns = arrays

    @classmethod
    def empty(cls, schema: Schema) -> Table:
        """Table of no rows, the same one for each call: a run of thousands of processes asks for many."""
        found = _EMPTY.get(schema.name)
        if found is None or found.schema is not schema or type(found) is not cls:
            found = _EMPTY[schema.name] = cls(schema, {c.name: np.empty(0, dtype=c.dtype) for c in schema.columns})
        return found

    @classmethod
    def from_rows(cls, schema: Schema, rows: Sequence[Sequence[Any]]) -> Table:
        """Table from tuples in the order of the schema; for small tables and tests."""
        if not rows:
            return cls.empty(schema)
        return cls(
            schema,
            {
                c.name: np.array(v, dtype=c.dtype if not c.dtype.startswith("U") else None)
                for c, v in zip(schema.columns, zip(*rows, strict=True), strict=True)
            },
        )

    @classmethod
    def concat(cls, schema: Schema, tables: Sequence[Table]) -> Table:
        """Rows of all tables, one after the other."""
        if not tables:
            return cls.empty(schema)
        if len(tables) == 1:
            return tables[0]
        return cls(schema, {n: np.concatenate([t[n] for t in tables]) for n in schema.names})

    def __len__(self) -> int:
        return len(next(iter(self._columns.values()))) if self._columns else 0

    def __getitem__(self, name: str) -> Array:
        try:
            return self._columns[name]
        except KeyError:
            known = ", ".join(self.schema.names)
            raise KeyError(f"table {self.schema.name} has no column {name!r}; it has {known}") from None

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __repr__(self) -> str:
        return f"Table({self.schema.name}: {len(self)} rows x {len(self._columns)} columns)"

    @property
    def columns(self) -> tuple[str, ...]:
        """Column names in order."""
        return self.schema.names

    def take(self, index: Array | slice) -> Table:
        """Rows chosen by a boolean mask, an index array, or a slice (which copies nothing)."""
        return Table(self.schema, {n: a[index] for n, a in self._columns.items()})

    def sort_by(self, *names: str) -> Table:
        """Rows sorted by the named columns, first name first; stable."""
        if len(self) < 2:
            return self
        return self.take(np.lexsort([self._columns[n] for n in reversed(names)]))

    def replace(self, **columns: Any) -> Table:
        """Same table with some columns exchanged."""
        return Table(self.schema, {**self._columns, **columns})

    def rows(self) -> Iterator[dict[str, Any]]:
        """Rows as dicts of Python scalars; for printing, not for computing."""
        lists = [a.tolist() for a in self._columns.values()]
        for values in zip(*lists, strict=True):
            yield dict(zip(self._columns, values, strict=True))

    def to_numpy(self) -> npt.NDArray[np.void]:
        """Copy into one structured array."""
        out = np.empty(len(self), dtype=[(n, a.dtype) for n, a in self._columns.items()])
        for name, array in self._columns.items():
            out[name] = array
        return out

    def to_pandas(self) -> pandas.DataFrame:
        """DataFrame over the same memory where pandas allows it."""
        import pandas

        return pandas.DataFrame(dict(self._columns), copy=False)

    def to_arrow(self) -> pyarrow.Table:
        """Arrow table; fixed-width columns share their memory."""
        import pyarrow

        arrays = [pyarrow.array(a.astype(object) if a.dtype.kind == "U" else a) for a in self._columns.values()]
        return pyarrow.table(arrays, names=list(self._columns))


_EMPTY: dict[str, Table] = {}
