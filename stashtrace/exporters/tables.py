"""One table of a trace, or the result of an analysis, as CSV, Parquet or Arrow. Called through ``registry.export``."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from stashtrace.analysis.registry import analyze, find
from stashtrace.errors import StashtraceError, UsageError
from stashtrace.exporters.registry import Exported
from stashtrace.files.whole_files import complete_file
from stashtrace.registry import require_options
from stashtrace.schema.events import TABLES
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace
from stashtrace.text.visible import spreadsheet_cell

_CSV_ROWS = 65536


def export_csv(
    trace: Trace,
    path: Path,
    *,
    table: str = "stalls",
    ranks: Iterable[int] | None = None,
    steps: tuple[int, int] | None = None,
    **options: Any,
) -> Exported:
    """Write one table as CSV with a header line.

    ``trace``: where it comes from. ``path``: file to write. ``table``: a table of the trace (``io``, ``collectives``,
    ...) or an analysis (``stalls``, ``steps``, ...). ``ranks``: only rows of these ranks; the table must have a column
    ``rank``. ``steps``: only rows with ``first <= step < last``; the table must have a column ``step``. ``options``: of
    the analysis. Raises UsageError if there is no such table, column or option.
    """
    return _export(trace, path, _write_csv, table=table, ranks=ranks, steps=steps, **options)


def export_parquet(trace: Trace, path: Path, **options: Any) -> Exported:
    """Write one table as Parquet; options and errors as of :func:`export_csv`. Needs pyarrow."""
    return _export(trace, path, _write_parquet, **options)


def export_arrow(trace: Trace, path: Path, **options: Any) -> Exported:
    """Write one table as an Arrow (Feather 2) file; options and errors as of :func:`export_csv`. Needs pyarrow."""
    return _export(trace, path, _write_feather, **options)


def _export(
    trace: Trace,
    path: Path,
    write: Callable[[Table, Path], None],
    *,
    table: str = "stalls",
    ranks: Iterable[int] | None = None,
    steps: tuple[int, int] | None = None,
    **options: Any,
) -> Exported:
    chosen = _cut_table(trace, table, ranks, steps, options)
    with complete_file(path) as partial:
        write(chosen, partial)
    return Exported(path, path.stat().st_size, len(chosen))


def _write_csv(table: Table, path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(table.columns)
        for start in range(0, len(table), _CSV_ROWS):
            part = [table[name][start : start + _CSV_ROWS].tolist() for name in table.columns]
            writer.writerows(map(spreadsheet_cell, row) for row in zip(*part, strict=True))


def _write_parquet(table: Table, path: Path) -> None:
    _require_pyarrow()
    import pyarrow.parquet

    pyarrow.parquet.write_table(table.to_arrow(), path)


def _write_feather(table: Table, path: Path) -> None:
    _require_pyarrow()
    import pyarrow.feather

    pyarrow.feather.write_feather(table.to_arrow(), str(path), compression="uncompressed")


def _cut_table(
    trace: Trace, name: str, ranks: Iterable[int] | None, steps: tuple[int, int] | None, options: dict[str, Any]
) -> Table:
    """Return a table or the result of an analysis, cut to ranks and steps."""
    if name in TABLES:
        if options:
            raise UsageError(f"table {name!r} has no option {next(iter(options))!r}", hint="leave it out")
        table = trace.table(name)
    else:
        try:
            function = find(name)
        except UsageError as error:
            raise UsageError(
                f"no table or analysis is called {name}", hint=f"tables: {', '.join(TABLES)}; {error.hint}"
            ) from error
        require_options(f"analysis {name!r}", function, options)
        table = analyze(trace, name, **options)
    for column, limits in (("rank", ranks), ("step", steps)):
        if limits is not None and column not in table:
            raise UsageError(f"the table {name} has no column {column} to cut by")
    if ranks is not None:
        table = table.take(np.isin(table["rank"], list(ranks)))
    if steps is not None:
        table = table.take((table["step"] >= steps[0]) & (table["step"] < steps[1]))
    return table


def _require_pyarrow() -> None:
    from importlib.util import find_spec

    if find_spec("pyarrow") is None:
        raise StashtraceError("writing Parquet and Arrow needs pyarrow", hint="pip install pyarrow, or export csv")
