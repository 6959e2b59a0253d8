"""The list of exporters, and ``export``, which calls them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stashtrace.registry import Registry, require_options
from stashtrace.schema.trace import Trace

#: (name, "module:function", one-line help); resolved on use.
EXPORTERS: tuple[tuple[str, str, str], ...] = (
    (
        "perfetto",
        "stashtrace.timeline.timeline:export_perfetto",
        "timeline for ui.perfetto.dev (.pftrace.gz or .pftrace)",
    ),
    ("csv", "stashtrace.exporters.tables:export_csv", "one table or analysis as CSV"),
    ("parquet", "stashtrace.exporters.tables:export_parquet", "one table or analysis as Parquet (needs pyarrow)"),
    ("store", "stashtrace.exporters.store:export_store", "all tables as Parquet files by rank (needs pyarrow)"),
    ("arrow", "stashtrace.exporters.tables:export_arrow", "one table or analysis as an Arrow file (needs pyarrow)"),
    (
        "chakra",
        "stashtrace.exporters.chakra.export:export_chakra",
        "execution traces by rank, for ASTRA-sim (needs protobuf)",
    ),
)


@dataclass(frozen=True, slots=True)
class Exported:
    """Result of an export.

    Attributes
    ----------
    path : Path
        The file, or the folder.
    file_bytes : int
        Its size.
    rows_count : int
        Slices of a timeline, rows of a table, nodes of execution traces.
    notes : tuple of str
        Sentences for the user about cuts and aggregation.
    """

    path: Path
    file_bytes: int
    rows_count: int
    notes: tuple[str, ...] = ()


def export(trace: Trace, name: str, path: str | Path, **options: Any) -> Exported:
    """Write a trace to a file.

    Parameters
    ----------
    trace : Trace
        From :func:`stashtrace.load`.
    name : str
        Exporter: ``perfetto``, ``csv``, ``parquet``, ``store``, ``arrow``, ``chakra``.
    path : str or Path
        File to write; the folder of a store and of execution traces. Replaced only when the export succeeds.
    **options
        Of that exporter; see its documentation.

    Returns
    -------
    Exported
        Path, size, count, and notes on what was cut or aggregated.

    Raises
    ------
    UsageError
        If there is no such exporter, or it does not know an option.
    PluginError
        If the exporter of another package cannot be loaded, fails, or returns no ``Exported``.
    """
    call = _REGISTRY.find(name)
    check_options(name, call, options)
    return call(trace, Path(path), **options)


def check_options(name: str, call: Callable[..., Exported], options: dict[str, Any]) -> None:
    """Raise UsageError if an exporter does not know one of these options."""
    require_options(f"exporter {name!r}", call, options)


_REGISTRY: Registry[Callable[..., Exported]] = Registry(
    "exporter",
    EXPORTERS,
    lambda plugin: plugin.function(Exported, called="stashtrace.plugins.Exported", passed_on=OSError),
)
known_exporter, plugins = _REGISTRY.require, _REGISTRY.plugins
