"""A store as a source of tables: each is read from its own files when a query first names it."""

from __future__ import annotations

from importlib.util import find_spec

from stashtrace.fleet import analyze as fleet
from stashtrace.fleet.analyze import PLANS
from stashtrace.loading.load import load_trace
from stashtrace.schema.events import TABLES
from stashtrace.schema.strings import StringPool
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace
from stashtrace.sql.query_names import Named, rows_of


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
        if named.is_analysis and named.source in PLANS and find_spec("dask") is not None:
            return fleet.analyze(self._path, named.source)
        if named.is_analysis or self._whole is not None:
            if self._whole is None:
                self._whole = load_trace(self._path)
            return rows_of(self._whole, named)
        return rows_of(load_trace(self._path, tables=_read_with(named.source)), named)


def _read_with(name: str) -> set[str]:
    """Return the tables to read for one: keys are numbered anew among the rows of the table that they belong to."""
    return {name, *(key.partition(".")[0] for key in TABLES[name].keys.values())}
