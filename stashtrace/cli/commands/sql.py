"""``stashtrace sql [RUN...] QUERY``: answer a query about the tables and analyses of one or several runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from stashtrace.cli.parsing import NEWEST, RUN_OR_FILES, TABLE_FORMATS, Parser, add_flag
from stashtrace.cli.print_tables import column_details, screen_width, write_rows
from stashtrace.errors import UsageError

if TYPE_CHECKING:
    from stashtrace.schema.strings import StringPool
    from stashtrace.schema.table import Table
    from stashtrace.schema.trace import Trace
    from stashtrace.sql.query import Run
    from stashtrace.sql.query_names import Named

_EPILOG = """QUERY is one statement in DuckDB's SQL that reads. It names tables of the
recording and analyses; only those that it names are read or computed. Of
several runs, each table has a first column run. A query can neither write
files nor reach the network. "describe NAME" lists the columns of a table with
their units.

  stashtrace sql "select rank, kind, sum(stall_ns) from stalls group by all"
"""
_EXAMPLE = 'an example: stashtrace sql "select kind, sum(stall_ns) from stalls group by kind"'


def parser() -> Parser:
    """Return the parser of ``stashtrace sql``."""
    parser = Parser(
        "sql",
        "Answer a query about the tables and analyses of one or several runs.",
        _EPILOG,
        usage='stashtrace sql [options] [RUN ...] "QUERY"',
    )
    parser.add_argument("words", metavar="RUN", nargs="*", help=f"{RUN_OR_FILES} (default: {NEWEST}); last, the query")
    add_flag(parser, "--tables", "list what a query may name")
    parser.add_format(TABLE_FORMATS)
    parser.add_wide()
    parser.add_run()
    return parser


def main(argv: Sequence[str]) -> int:
    """Print the answer of a query."""
    arguments = parser().read(argv)
    from stashtrace.loading.temporary_archives import named
    from stashtrace.sql.query import Database, require_duckdb, run_labels

    require_duckdb()
    query, jobs = ("show tables", []) if arguments.tables else _query_and_jobs(arguments.words)
    runs = [_open(parts, arguments.run) for parts in jobs]
    database = Database(run_labels([named(parts[0]) for parts in jobs]))
    relation = database.relation(query, runs)
    names = _distinct(relation.columns)
    plain = arguments.format == "table"
    rows = [
        {
            name: _value_for_people(name, value) if plain else _value_for_json(value)
            for name, value in zip(names, row, strict=True)
        }
        for row in database.rows(relation)
    ]
    width = None if arguments.wide else screen_width()
    details = column_details(*database.schemas)
    write_rows(rows, names, arguments.format, sys.stdout, width=width, keep_all=True, details=details, keep_ids=True)
    return 0


def _query_and_jobs(words: Sequence[str]) -> tuple[str, list[list[str]]]:
    """Return the query, which is the last word, and the jobs before it, each as the paths of its parts.

    Raises UsageError if there is no query. Raises MissingDataError if a run does not exist, or none is named and there
    is none here.
    """
    from stashtrace.cli.find_runs import find_jobs

    if not words:
        raise UsageError("there is no query", hint=_EXAMPLE)
    *paths, query = words
    if os.path.exists(query):
        raise UsageError(f"{query} is a file or folder, and no query stands after it", hint=_EXAMPLE)
    return query, find_jobs(paths)


def _open(paths: list[str], run_id: str | None) -> Run:
    """Return a run whose tables are read when a query names them."""
    from stashtrace.store.layout import is_store

    if len(paths) == 1 and is_store(paths[0]):
        from stashtrace.sql.query import StoreRun

        return StoreRun(paths[0])
    return _LoadedRun(paths, run_id)


class _LoadedRun:
    """A run that is loaded once a query has been understood and names a table."""

    def __init__(self, paths: list[str], run_id: str | None) -> None:
        self._paths, self._run_id = paths, run_id
        self._trace: Trace | None = None

    def rows(self, named: Named) -> tuple[Table, StringPool]:
        """See :class:`stashtrace.sql.query.Run`."""
        from stashtrace.cli.find_runs import read_runs
        from stashtrace.sql.query_names import rows_of

        if self._trace is None:
            self._trace = read_runs(self._paths, run_id=self._run_id)
        return rows_of(self._trace, named)


def _distinct(names: Sequence[str]) -> list[str]:
    """Return the names of columns; a name that stands there again gets a number."""
    taken: list[str] = []
    for name in names:
        number, other = 1, name
        while other in taken:
            other, number = f"{name}_{number}", number + 1
        taken.append(other)
    return taken


def _value_for_people(name: str, value: Any) -> Any:
    """Return a value for the aligned form: a mean of times is shown as a time."""
    if value is None:
        return "NULL"
    if isinstance(value, float):
        return round(value) if name.endswith("_ns") and abs(value) < 2**63 else value
    return _value_for_json(value)


def _value_for_json(value: Any) -> Any:
    """Return a value that JSON can hold: numbers, texts and truth as they are; any other type as text."""
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, float) and (value != value or abs(value) == float("inf")):
        return None
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_value_for_json(part) for part in value]
    if isinstance(value, dict):
        return {str(key): _value_for_json(part) for key, part in value.items()}
    return str(value)
