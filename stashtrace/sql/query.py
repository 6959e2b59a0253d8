"""A query of the tables and analyses of runs, answered by DuckDB.

DuckDB says which name of a query it does not know; that table is taken from the run, or that analysis is computed, and
the query is tried again. So only what a query uses is read or computed, whatever its form. A query can read nothing
else and write nothing: the database is in memory, files and network are turned off, and its settings are locked.

Numbers share the memory of numpy. A code of a text becomes an entry of an Arrow dictionary, whose indices are the codes
themselves: the column of codes is not copied either, unless the trace has very many texts. A code of an enumeration
becomes the name of its member.
"""

from __future__ import annotations

import difflib
import importlib
import os
import re
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from stashtrace.errors import MissingDataError, StashtraceError, UsageError, one_line
from stashtrace.fleet import analyze as fleet
from stashtrace.loading.load import load_trace
from stashtrace.schema import columns as col
from stashtrace.schema.columns import Column, Schema
from stashtrace.schema.events import TABLES
from stashtrace.schema.strings import StringPool
from stashtrace.schema.table import Array, Table
from stashtrace.schema.trace import Trace
from stashtrace.sql.query_names import Named, catalog, listing, no_table, rows_of

if TYPE_CHECKING:
    import duckdb
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


class StoreRun:
    """A store as a :class:`stashtrace.sql.query.Run`.

    Analyses that can be divided by rank run so, if Dask is installed; any other one needs the whole store in memory.
    ``path``: the store.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._whole: Trace | None = None

    def rows(self, named: Named) -> tuple[Table, StringPool]:
        """Rows that a name stands for, with the texts of their codes.

        Raises FormatError if the store is damaged. Raises MissingDataError if it lacks what an analysis needs.
        """
        if named.is_analysis and named.source in fleet.PLANS and find_spec("dask") is not None:
            return fleet.analyze(self._path, named.source)
        if named.is_analysis or self._whole is not None:
            if self._whole is None:
                self._whole = load_trace(self._path)
            return rows_of(self._whole, named)
        return rows_of(load_trace(self._path, tables=_read_with(named.source)), named)


def _read_with(name: str) -> set[str]:
    """Return the tables to read for one: keys are numbered again among the rows of the table that they belong to."""
    return {name, *(key.partition(".")[0] for key in TABLES[name].keys.values())}


#: Settings at the start. Nothing is loaded, and a query that needs more memory fails instead of writing files.
_SETTINGS = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "temp_directory": "",
}
#: Kinds of statements that only read; a PIVOT is several.
_READING = frozenset({"SELECT", "EXPLAIN", "MULTI"})
_NO_TABLE = re.compile(r"Table with name (.+?) does not exist!")
_NO_COLUMN = re.compile(
    r'Referenced column "(.+?)" not found|a column named "(.+?)"|Column "(.+?)" does not exist', re.IGNORECASE
)
_SHOW_TABLES = re.compile(r"\s*show\s+(?:all\s+)?tables\s*;?\s*", re.IGNORECASE)
_DESCRIBE = re.compile(r'\s*(?:describe|desc|show)\s+"?(\w+)"?\s*;?\s*', re.IGNORECASE)
_RUN_COLUMN = col.word("run", "which run the row is of", width=1)
_KEPT = "stashtrace.sql"


class Run(Protocol):
    """A run as a source of tables."""

    def rows(self, named: Named) -> tuple[Table, StringPool]:
        """Rows that a name stands for, with the texts of their codes."""
        ...


class TraceRun:
    """A trace in memory as a :class:`Run`."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def rows(self, named: Named) -> tuple[Table, StringPool]:
        """See :class:`Run`."""
        return rows_of(self._trace, named)


def sql(trace: Trace, query: str, *others: Trace) -> duckdb.DuckDBPyRelation:
    """Answer a query; :meth:`stashtrace.Trace.sql` says what it takes, returns and raises.

    Tables and results of analyses stay with ``trace`` for further queries, unless there are others.
    """
    traces = (trace, *others)
    if others:
        database = Database(run_labels([one.path for one in traces]))
    else:
        if _KEPT not in trace.kept:
            trace.kept[_KEPT] = Database([""])
        database = trace.kept[_KEPT]
    return database.relation(query, [TraceRun(one) for one in traces])


def run_labels(paths: Sequence[str]) -> list[str]:
    """Names of runs in the column ``run``: of their directories, whole paths where two would be the same."""
    short = [os.path.basename(os.path.abspath(path)) if path else "" for path in paths]
    labels: list[str] = []
    for name, path in zip(short, paths, strict=True):
        label = name if name and short.count(name) == 1 else path or "run"
        number = 2
        while label in labels:
            label, number = f"{path or 'run'}#{number}", number + 1
        labels.append(label)
    return labels


def require_duckdb() -> None:
    """Raise StashtraceError unless what queries need is installed."""
    if find_spec("duckdb") is None or find_spec("pyarrow") is None:
        missing = "duckdb" if find_spec("duckdb") is None else "pyarrow"
        raise StashtraceError(f"SQL needs {missing}, which is not installed", hint="`pip install 'stashtrace[sql]'`")
    for name, used in (("duckdb", "connect"), ("pyarrow", "Table")):
        try:
            with _interrupted_afterwards():
                getattr(importlib.import_module(name), used)
        except Exception as error:  # whatever a broken installation raises
            raise StashtraceError(
                f"SQL needs {name}, which is installed and cannot be loaded: {one_line(error)}",
                hint=f"`{shlex.quote(sys.executable)} -m pip install --force-reinstall {name}`",
            ) from error


@contextmanager
def _interrupted_afterwards() -> Iterator[None]:
    """Let Ctrl-C wait for the end of an import: native code that is loaded loses a KeyboardInterrupt, or wraps it."""
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            handler(signal.SIGINT, None)


class Database:
    """Tables of runs that queries have used so far, in a database in memory.

    ``labels``: of each run; of several, they stand in the column ``run``. Raises StashtraceError if DuckDB or pyarrow
    is not installed.
    """

    def __init__(self, labels: Sequence[str]) -> None:
        require_duckdb()
        import duckdb

        self._labels = labels
        self._schemas: dict[str, Schema] = {}
        self._texts: dict[int, Texts] = {}
        self._connection = duckdb.connect(":memory:", config=dict(_SETTINGS))
        # Variables of the caller are no tables: the name of one could hide that of a table.
        self._connection.execute("set python_enable_replacements = false")
        self._connection.execute("set lock_configuration = true")

    @property
    def schemas(self) -> list[Schema]:
        """Schemas of the tables that queries have used so far."""
        return list(self._schemas.values())

    def relation(self, query: str, runs: Sequence[Run]) -> duckdb.DuckDBPyRelation:
        """Bind a query, after taking what it names from the runs; parameters and errors as of :func:`sql`.

        ``show tables`` lists what a query may name, ``describe NAME`` the columns with their units.
        """
        if _SHOW_TABLES.fullmatch(query):
            return self._connection.from_arrow(listing())
        names = catalog()
        described = _DESCRIBE.fullmatch(query)
        if described and described[1].lower() in names:
            return self._described(names[described[1].lower()], runs)
        self._check(query)
        import duckdb

        while True:
            try:
                return self._connection.sql(query)
            except duckdb.CatalogException as error:
                missing = _NO_TABLE.search(str(error))
                if missing is None:
                    raise self._reworded(error, query) from error
                named = names.get(missing[1].lower())
                if named is None:
                    raise no_table(missing[1]) from error
                if named.name in self._schemas:  # in a schema of a database that we did not make
                    raise self._reworded(error, query) from error
            except duckdb.Error as error:
                raise self._reworded(error, query) from error
            self._add(named, runs)

    def rows(self, relation: duckdb.DuckDBPyRelation) -> list[tuple[Any, ...]]:
        """Compute a relation; what goes wrong then is a UsageError, too."""
        with self._rewording():
            return self._computed(relation)

    def _computed(self, relation: duckdb.DuckDBPyRelation) -> list[tuple[Any, ...]]:
        """Compute a relation on a separate thread, so that Ctrl-C ends it.

        DuckDB looks for signals between tasks of the thread that asked; while its own threads do the work, that
        one waits, and Ctrl-C would have no effect before the query ends.
        """
        with ThreadPoolExecutor(1) as executor:
            answer = executor.submit(relation.fetchall)
            try:
                rows: list[tuple[Any, ...]] = answer.result()
                return rows
            except KeyboardInterrupt:
                while not answer.done():  # what had not begun when it was interrupted goes on
                    self._connection.interrupt()
                    wait([answer], timeout=0.05)
                raise

    def _check(self, query: str) -> None:
        """Raise UsageError unless a text is one statement that reads."""
        with self._rewording():
            statements = self._connection.extract_statements(query)
        if not statements:
            raise UsageError("the query is empty", hint='an example: "select rank, count(*) from steps group by rank"')
        if len(statements) > 1:
            raise UsageError(f"{len(statements)} statements are given, and one can be answered", hint="run each apart")
        kind = statements[0].type.name
        if kind not in _READING:
            raise UsageError(f"a query can only read, and this is {kind}", hint="begin it with select, from or with")

    def _add(self, named: Named, runs: Sequence[Run]) -> None:
        """Make the rows of a name known to the database."""
        parts = []
        for label, run in zip(self._labels, runs, strict=True):
            try:
                parts.append(run.rows(named))
            except MissingDataError as error:
                raise MissingDataError(f"{label}: {error}" if len(runs) > 1 else str(error), hint=error.hint) from error
        for number, (table, strings) in enumerate(parts):
            texts = self._texts.setdefault(id(strings), Texts(strings))
            name = named.name if len(parts) == 1 else f"{named.name}#{number}"
            self._connection.register(name, to_arrow(table, texts))
        if len(parts) > 1:
            selects = (
                f"select {_literal(label)} as run, * from {_quote(f'{named.name}#{number}')}"
                for number, label in enumerate(self._labels)
            )
            body = " union all by name ".join(selects)
            self._connection.execute(f"create temp view {_quote(named.name)} as {body}")
        self._schemas[named.name] = parts[0][0].schema

    def _described(self, named: Named, runs: Sequence[Run]) -> duckdb.DuckDBPyRelation:
        if named.name not in self._schemas:
            self._add(named, runs)
        schema = self._schemas[named.name]
        if len(runs) > 1:
            schema = Schema(schema.name, (_RUN_COLUMN, *schema.columns), schema.doc)
        return self._connection.from_arrow(describing(schema))

    @contextmanager
    def _rewording(self) -> Iterator[None]:
        import duckdb

        try:
            yield
        except duckdb.Error as error:
            raise self._reworded(error) from error

    def _reworded(self, error: duckdb.Error, query: str = "") -> StashtraceError:
        """Return one line for what DuckDB says in several; a query adds near names of the columns that it may mean."""
        import duckdb

        first = str(error).partition("\n")[0]
        message = first.partition(": ")[2] or first
        if isinstance(error, duckdb.PermissionException):
            return UsageError(
                "a query reads the tables of the runs alone, no files and no network",
                hint="`stashtrace sql RUN QUERY --format csv > FILE` writes its answer",
            )
        if isinstance(error, duckdb.OutOfMemoryException):
            return StashtraceError("there is not enough memory for this query", hint="choose fewer rows or columns")
        column = _NO_COLUMN.search(message)
        if column is not None:
            return self._no_column(next(filter(None, column.groups())), query)
        return UsageError(f"the query is wrong: {message}", hint="`stashtrace sql --tables` lists what it may name")

    def _no_column(self, name: str, query: str) -> UsageError:
        words = set(re.findall(r"\w+", query.lower()))
        tables = [table for table in self._schemas if table.lower() in words]
        known = {column for table in tables for column in query_names(self._schemas[table]).values()}
        near = difflib.get_close_matches(name.lower(), sorted(known), n=3)
        if near:
            hint = f"did you mean {' or '.join(map(repr, near))}?"
        elif tables:
            hint = f'`stashtrace sql RUN "describe {tables[-1]}"` lists the columns of {tables[-1]}'
        else:
            hint = "`stashtrace sql --tables` lists what a query may name"
        return UsageError(f"no column is called {name!r}", hint=hint)


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
