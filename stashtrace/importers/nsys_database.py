"""The database of an Nsight Systems export: columns as arrays, read in blocks. Used by the rooms of ``nsys``.

Versions differ in tables and columns, so each read names what it wants and what stands for a column, or a value, that
is not there. A database that is damaged gives the rows before the damage.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace.errors import ImporterError
from stashtrace.importers.bounds import bound_queries
from stashtrace.importers.source import Source

Int64 = npt.NDArray[np.int64]

MAGIC = b"SQLite format 3\x00"
_BLOCK_ROWS = 1 << 16
#: Texts that one question asks for; SQLite takes no more than 999 in old versions.
_TEXTS_AT_ONCE = 500


class Database:
    """One export.

    Attributes
    ----------
    damaged : list of str
        Tables that could not be read to their end.
    """

    def __init__(self, connection: sqlite3.Connection, read: Callable[[int], None]) -> None:
        self._connection = connection
        self._read = read
        self.damaged: list[str] = []
        # Views of a stranger's database are programs: only its tables are read.
        question = "SELECT name FROM sqlite_master WHERE type = 'table'"
        try:
            names = connection.execute(question).fetchall()
        except sqlite3.DatabaseError:
            # SQLite refuses a file that is shorter than its head says, unless it is told that repair is under way.
            connection.execute("PRAGMA writable_schema = ON")
            names = connection.execute(question).fetchall()
        self.columns: dict[str, set[str]] = {}
        for (name,) in names:
            described = connection.execute(f"PRAGMA table_info({_quoted(name)})").fetchall()
            self.columns[str(name)] = {str(row[1]) for row in described}

    def has(self, table: str, *columns: str) -> bool:
        """Whether a table is there with these columns."""
        return set(columns) <= self.columns.get(table, set()) if table in self.columns else False

    def rows_count(self, table: str) -> int:
        """Rows of a table, about: the last row's number, which costs nothing to find."""
        found = self.small(f"SELECT max(rowid) FROM {_quoted(table)}") if table in self.columns else []
        return int(found[0][0] or 0) if found and isinstance(found[0][0], int | None) else 0

    def integers(self, table: str, **columns: int) -> dict[str, Int64]:
        """Columns of whole numbers; the given value stands for a missing column and for NULL."""
        pieces = [rows for rows, _ in self.blocks(table, (), **columns)]
        empty = np.empty(0, dtype=np.int64)
        return {name: np.concatenate([piece[name] for piece in pieces]) if pieces else empty for name in columns}

    def blocks(
        self, table: str, others: Sequence[str], **columns: int
    ) -> Iterator[tuple[dict[str, Int64], list[tuple[Any, ...]]]]:
        """The same in blocks, each with its values of other columns by row; None where one is not there."""
        there = self.columns.get(table)
        if there is None:
            return
        asked = [self._expression(name, default, name in there) for name, default in columns.items()]
        asked += [_quoted(name) if name in there else "NULL" for name in others]
        count = len(columns)
        for block in self._blocks(table, f"SELECT {', '.join(asked)} FROM {_quoted(table)}"):
            values = np.array([row[:count] for row in block], dtype=np.int64).reshape(len(block), count)
            rows = {name: np.ascontiguousarray(values[:, at]) for at, name in enumerate(columns)}
            yield rows, [row[count:] for row in block] if others else []

    def texts(self, ids: npt.NDArray[np.int64]) -> dict[int, str]:
        """Texts of ``StringIds`` by id; those that are not there are absent."""
        found: dict[int, str] = {}
        wanted = np.unique(ids).tolist()
        if not self.has("StringIds", "id", "value"):
            return found
        for at in range(0, len(wanted), _TEXTS_AT_ONCE):
            listed = ",".join(map(str, wanted[at : at + _TEXTS_AT_ONCE]))
            for number, text in self.small(f"SELECT id, value FROM StringIds WHERE id IN ({listed})", "StringIds"):
                found[number] = str(text)
        return found

    def small(self, question: str, table: str = "") -> list[tuple[Any, ...]]:
        """All rows of a question that has few, none if it cannot be answered."""
        try:
            return self._connection.execute(question).fetchall()
        except sqlite3.DatabaseError:
            if table and table not in self.damaged:
                self.damaged.append(table)
            return []

    def pairs(self, table: str, key: str = "name", value: str = "value") -> dict[str, str]:
        """A table of names and values."""
        if not self.has(table, key, value):
            return {}
        question = f"SELECT {_quoted(key)}, {_quoted(value)} FROM {_quoted(table)}"
        return {str(k): str(v) for k, v in self.small(question, table)}

    def _expression(self, name: str, default: int, there: bool) -> str:
        return f"ifnull(CAST({_quoted(name)} AS INTEGER), {default})" if there else str(default)

    def _blocks(self, table: str, question: str) -> Iterator[list[tuple[Any, ...]]]:
        try:
            cursor = self._connection.execute(question)
            while block := cursor.fetchmany(_BLOCK_ROWS):
                self._read(len(block))
                yield block
        except (sqlite3.DatabaseError, OverflowError):
            self.damaged.append(table)


@contextmanager
def opened(source: Source, tables: Sequence[str]) -> Iterator[Database]:
    """The database of a file, unpacked to a temporary place if it is compressed.

    Parameters
    ----------
    tables : sequence of str
        What will be read; progress counts their rows.
    """
    with tempfile.TemporaryDirectory(prefix="stashtrace-nsys-") as folder:
        path = source.path
        with path.open("rb") as stream:
            packed = stream.read(len(MAGIC)) != MAGIC
        if packed:
            path = Path(folder, "export.sqlite")
            with source.open() as stream, path.open("wb") as out:
                shutil.copyfileobj(stream, out, 1 << 20)
        # immutable: no lock or journal is made beside a file that may lie where nothing can be written
        address = f"file:{urllib.parse.quote(str(path.resolve()))}?mode=ro&immutable=1"
        try:
            with closing(sqlite3.connect(address, uri=True)) as connection:
                connection.text_factory = partial(str, encoding="utf-8", errors="replace")
                bound_queries(connection, os.stat(path).st_size)
                meter = _Meter(0 if packed else source.size_bytes, source)
                database = Database(connection, meter.rows)
                meter.total = sum(database.rows_count(name) for name in tables)
                yield database
        except sqlite3.DatabaseError as error:
            raise ImporterError(
                f"{source.path} is a damaged SQLite file: {error}",
                hint="export the report again: nsys export --type sqlite REPORT.nsys-rep",
            ) from error


class _Meter:
    """Tells the progress bar about rows as if each were as large as any other."""

    def __init__(self, size_bytes: int, source: Source) -> None:
        self.total = 0
        self._size_bytes = size_bytes
        self._source = source
        self._rows = self._told = 0

    def rows(self, count: int) -> None:
        """So many more rows were read."""
        self._rows += count
        reached = self._size_bytes * min(self._rows, self.total) // max(self.total, 1)
        self._source.passed(reached - self._told)
        self._told = reached


def _quoted(name: str) -> str:
    return '"' + str(name).replace('"', '""') + '"'
