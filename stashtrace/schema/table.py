"""Table: named numpy columns of equal length with a schema. Immutable; nothing else in the project holds rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from stashtrace.schema.columns import Schema
from stashtrace.schema.notebook import lazy_function, table_html
from stashtrace.text.units import shortened
from stashtrace.text.visible import visible_line

if TYPE_CHECKING:
    import pandas
    import pyarrow
    from matplotlib.figure import Figure

Array = npt.NDArray[Any]
#: Characters of a line and of a cell of the preview.
_PREVIEW_WIDTH, _CELL_WIDTH = 100, 40
#: Columns that grow get room for at least this many more rows.
_ROOM_ROWS = 1 << 12


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

    __slots__ = ("_arrays", "_length", "_rows", "_whole", "schema")

    def __init__(self, schema: Schema, columns: Mapping[str, Any]) -> None:
        if columns.keys() != schema.dtypes.keys():
            extra = set(columns) - set(schema.names)
            missing = set(schema.names) - set(columns)
            raise ValueError(f"table {schema.name}: missing {sorted(missing)}, unknown {sorted(extra)}")
        arrays: dict[str, Array] = {}
        length: int | None = None
        for name, dtype in schema.dtypes.items():
            array = np.ascontiguousarray(columns[name])
            if array.dtype != dtype and not (dtype.kind == "U" and array.dtype.kind == "U"):
                array = array.astype(dtype)
            if array.ndim != 1 or (length is not None and len(array) != length):
                raise ValueError(f"table {schema.name}: {name} has shape {array.shape}, expected ({length},)")
            length = len(array)
            if array.flags.writeable:  # only the view is locked: the array may be the caller's
                array = array.view()
                array.flags.writeable = False
            arrays[name] = array
        self.schema = schema
        self._arrays, self._length = arrays, length or 0
        self._whole: dict[str, Array] | None = None
        self._rows: Array | None = None

    @property
    def _columns(self) -> dict[str, Array]:
        return self._arrays if self._whole is None else {name: self._column(name) for name in self._whole}

    def _column(self, name: str) -> Array:
        array = self._arrays.get(name)
        if array is None:
            if self._whole is None:
                raise KeyError(name)
            array = self._whole[name][self._rows]
            array.flags.writeable = False
            self._arrays[name] = array
        return array

    def _chosen(self, rows: Array) -> Table:
        """Table of these rows, in which a column is copied when it is first asked for: of few rows few columns are."""
        table = Table.__new__(Table)
        table.schema, table._arrays, table._length = self.schema, {}, len(rows)
        if self._whole is not None:
            assert self._rows is not None
            rows = self._rows[rows]
        table._whole, table._rows = self._whole or self._arrays, rows
        if self._whole is None and 2 * len(rows) > len(self):  # without the rows left out, the table takes less memory
            table._arrays, table._whole, table._rows = table._columns, None, None
        return table

    def __reduce__(self) -> tuple[Any, ...]:
        return Table, (self.schema, self._columns)

    @classmethod
    def empty(cls, schema: Schema) -> Table:
        """Table of no rows, the same one for each call: a run of thousands of processes asks for many."""
        found = _EMPTY.get(schema.name)
        if found is None or found.schema is not schema or type(found) is not cls:
            found = _EMPTY[schema.name] = cls(schema, {n: np.empty(0, dtype=t) for n, t in schema.dtypes.items()})
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
        return self._length

    @overload
    def __getitem__(self, key: str) -> Array: ...
    @overload
    def __getitem__(self, key: Array | Sequence[bool] | slice) -> Table: ...
    def __getitem__(self, key: str | Array | Sequence[bool] | slice) -> Array | Table:
        """Column by name, or the rows that a boolean mask or a slice chooses.

        Raises
        ------
        KeyError
            If there is no column of that name.
        IndexError
            If the mask is not as long as the table.
        TypeError
            If the key is something else; ``take`` accepts row numbers.
        """
        if isinstance(key, str):
            try:
                return self._column(key)
            except KeyError:
                known = ", ".join(self.schema.names)
                raise KeyError(f"table {self.schema.name} has no column {key!r}; it has {known}") from None
        if isinstance(key, slice):
            return self.take(key)
        mask = np.asarray(key)
        if mask.dtype != np.bool_ or mask.ndim != 1:
            raise TypeError("index a table by a column name, a boolean mask or a slice; take() accepts row numbers")
        if len(mask) != len(self):
            raise IndexError(f"mask of {len(mask)} for table {self.schema.name}, which has {len(self)} rows")
        return self.take(mask)

    def __contains__(self, name: object) -> bool:
        return name in self.schema.dtypes

    def __repr__(self) -> str:
        rows = f"{len(self):,} row{'s' * (len(self) != 1)}"
        title = f"Table({self.schema.name}: {rows} x {len(self.columns)} columns)"
        return "\n".join([title, *self._preview()]) if len(self) else title

    def _repr_html_(self) -> str:
        """First rows as a notebook shows them; see :mod:`stashtrace.schema.notebook`."""
        return table_html(self.schema, self._columns, len(self))

    def plot(self) -> Figure:
        """Draw the table, if it is one of the analysis ``stalls``.

        See :func:`stashtrace.summary.stalls_plot.plot_stalls`.

        Returns
        -------
        matplotlib Figure
            A notebook shows it; ``savefig("stalls.png")`` writes it.

        Raises
        ------
        UsageError
            If there is no picture of this table, or matplotlib is not installed.
        """
        figure: Figure = lazy_function("stashtrace.summary.stalls_plot:plot_table")(self)
        return figure

    def _preview(self) -> list[str]:
        """Names and first rows, aligned, as many columns as fit; then what is not shown."""
        first = self.head()
        lines = [""] * (1 + len(first))
        shown = 0
        for name in self.columns:
            array = first[name]
            cells = [name, *(_cell_text(value) for value in array.tolist())]
            width = max(map(len, cells))
            cells = [cell.ljust(width) if array.dtype.kind == "U" else cell.rjust(width) for cell in cells]
            if shown and len(lines[0]) + 2 + width > _PREVIEW_WIDTH:
                break
            lines = [f"{line}  {cell}" if shown else cell for line, cell in zip(lines, cells, strict=True)]
            shown += 1
        lines = [line.rstrip() for line in lines]
        if len(first) < len(self):
            more = len(self) - len(first)
            lines.append(f"... {more:,} more row{'s' * (more > 1)}")
        if shown < len(self.columns):
            rest = "... columns not shown: " + ", ".join(self.columns[shown:])
            lines.append(rest if len(rest) <= _PREVIEW_WIDTH else rest[: _PREVIEW_WIDTH - 4] + " ...")
        return lines

    @property
    def columns(self) -> tuple[str, ...]:
        """Column names in order."""
        return self.schema.names

    def take(self, index: Array | slice) -> Table:
        """Rows chosen by a boolean mask, an index array, or a slice (which copies nothing).

        Raises
        ------
        IndexError
            If the mask is not as long as the table, or a row is not there.
        """
        if isinstance(index, np.ndarray) and index.ndim == 1:
            rows: Array = index
            if index.dtype == np.bool_ and len(index) == len(self):
                rows = np.flatnonzero(index)
            elif self._whole is None:
                self._column(self.schema.names[0])[index]  # raises where a row is not there
                rows = index.copy()  # the caller may change its own
            return self._chosen(rows)
        return Table(self.schema, {n: a[index] for n, a in self._columns.items()})

    def head(self, n: int = 5) -> Table:
        """First ``n`` rows, all if there are fewer; copies nothing.

        Raises
        ------
        ValueError
            If ``n`` is negative.
        """
        if n < 0:
            raise ValueError(f"a table has no first {n} rows")
        return self.take(slice(n))

    def sort_by(self, *names: str) -> Table:
        """Rows sorted by the named columns, first name first; stable. The same table if one column ascends already."""
        if len(self) < 2:
            return self
        if len(names) == 1 and self.schema.dtypes[names[0]].kind in "iu":
            column = self._column(names[0])
            if (column[1:] >= column[:-1]).all():
                return self
        return self.take(np.lexsort([self._column(n) for n in reversed(names)]))

    def replace(self, **columns: Any) -> Table:
        """Same table with some columns exchanged."""
        return Table(self.schema, {**self._columns, **columns})

    def rows(self) -> Iterator[dict[str, Any]]:
        """Rows as dicts of Python scalars; for printing, not for computing."""
        lists = [a.tolist() for a in self._columns.values()]
        for values in zip(*lists, strict=True):
            yield dict(zip(self._columns, values, strict=True))

    def lookup(self, key: str, column: str) -> dict[Any, Any]:
        """Values of a column by those of another, as Python scalars; of equal keys the last row counts."""
        return dict(zip(self._column(key).tolist(), self._column(column).tolist(), strict=True))

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


class GrowingTable:
    """A table made piece by piece. Columns grow in place, so that no row is held twice."""

    def __init__(self, schema: Schema) -> None:
        self._schema, self._count = schema, 0
        self._columns: dict[str, Array] = {name: np.empty(0, dtype=dtype) for name, dtype in schema.dtypes.items()}

    def add(self, columns: Mapping[str, Array] | Table, count: int) -> None:
        """Append ``count`` rows, given as columns of that length."""
        first, self._count = self._count, self._count + count
        for name, column in self._columns.items():
            if self._count > len(column):
                column.resize(self._count + max(self._count // 8, _ROOM_ROWS), refcheck=False)
            column[first : self._count] = columns[name]

    def table(self) -> Table:
        """The table; nothing can be added any more."""
        if not self._count:
            return Table.empty(self._schema)
        for column in self._columns.values():
            column.resize(self._count, refcheck=False)
        return Table(self._schema, self._columns)


def _cell_text(value: Any) -> str:
    """A cell of the preview: one line, without commands for a terminal."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return shortened(visible_line(str(value)), _CELL_WIDTH)


_EMPTY: dict[str, Table] = {}
