"""One table of a trace, or the result of an analysis, as CSV, Parquet or Arrow. Called through ``registry.export``."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from stashtrace.errors import StashtraceError, UsageError
from stashtrace.exporters.registry import Exported
from stashtrace.model.schemas import TABLES
from stashtrace.model.table import Table
from stashtrace.model.trace import Trace

_CSV_ROWS = 65536


def export_csv(trace: Trace, path: Path, *, table: str = "stalls", **options: Any) -> Exported:
    """Write one table as CSV with a header line.

    Parameters
    ----------
    trace : Trace
        Where it comes from.
    path : Path
        File to write.
    table : str
        A table of the trace (``io``, ``collectives``, ...) or an analysis (``stalls``, ``steps``, ...).
    **options
        Of the analysis.
    """
    chosen = _choose(trace, table, options)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(chosen.columns)
        for start in range(0, len(chosen), _CSV_ROWS):
            part = [chosen[name][start : start + _CSV_ROWS].tolist() for name in chosen.columns]
            writer.writerows(zip(*part, strict=True))
    return Exported(path, path.stat().st_size, len(chosen))


def export_parquet(trace: Trace, path: Path, *, table: str = "stalls", **options: Any) -> Exported:
    """Write one table as Parquet; parameters as in :func:`export_csv`. Needs pyarrow."""
    chosen = _choose(trace, table, options)
    _require_pyarrow()
    import pyarrow.parquet

    pyarrow.parquet.write_table(chosen.to_arrow(), path)
    return Exported(path, path.stat().st_size, len(chosen))


def export_arrow(trace: Trace, path: Path, *, table: str = "stalls", **options: Any) -> Exported:
    """Write one table as an Arrow (Feather 2) file; parameters as in :func:`export_csv`. Needs pyarrow."""
    chosen = _choose(trace, table, options)
    _require_pyarrow()
    import pyarrow.feather

    pyarrow.feather.write_feather(chosen.to_arrow(), str(path), compression="uncompressed")
    return Exported(path, path.stat().st_size, len(chosen))


def _choose(trace: Trace, name: str, options: dict[str, Any]) -> Table:
    from stashtrace.analysis.registry import ANALYSES, analyze

    if name in TABLES:
        if options:
            raise UsageError(f"the table {name} takes no options, got {', '.join(options)}")
        return trace.table(name)
    known = [entry[0] for entry in ANALYSES]
    if name not in known:
        raise UsageError(f"no table or analysis is called {name}", hint=f"there are: {', '.join([*TABLES, *known])}")
    return analyze(trace, name, **options)


def _require_pyarrow() -> None:
    from importlib.util import find_spec

    if find_spec("pyarrow") is None:
        raise StashtraceError("writing Parquet and Arrow needs pyarrow", hint="pip install pyarrow, or export csv")
