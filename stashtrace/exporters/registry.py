"""The list of exporters, and ``export``, which calls them."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from stashtrace.errors import StashtraceError, UsageError
from stashtrace.registry import Plugin, one_line
from stashtrace.registry import plugins as entry_points
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
    (
        "store",
        "stashtrace.exporters.store:export_store",
        "all tables as Parquet files by rank (needs pyarrow)",
    ),
    (
        "arrow",
        "stashtrace.exporters.tables:export_arrow",
        "one table or analysis as an Arrow file (needs pyarrow)",
    ),
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


def plugins() -> dict[str, Plugin]:
    """Return the exporters of other packages by name, from the entry points of all installed packages."""
    return entry_points("exporter", [name for name, _, _ in EXPORTERS])


def known_exporter(name: str) -> str:
    """Return the name of an exporter.

    Raises
    ------
    UsageError
        If there is no such exporter; the hint lists them.
    """
    known = [own for own, _, _ in EXPORTERS]
    if name in known or name in plugins():
        return name
    raise UsageError(f"no exporter is called {name}", hint=f"there are: {', '.join([*known, *plugins()])}")


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
    target = next((target for known, target, _ in EXPORTERS if known == name), None)
    if target is None:
        return _by_plugin(plugins()[known_exporter(name)], trace, Path(path), options)
    module, _, function = target.partition(":")
    call: Callable[..., Exported] = getattr(import_module(module), function)
    check_options(name, call, options)
    return call(trace, Path(path), **options)


def _by_plugin(plugin: Plugin, trace: Trace, path: Path, options: dict[str, Any]) -> Exported:
    """Call another package's exporter; anything but an ``Exported`` or a StashtraceError becomes a PluginError."""
    call = plugin.load()
    if not callable(call):
        raise plugin.error(f"is not a function but a {type(call).__name__}")
    check_options(plugin.name, call, options)
    try:
        written = call(trace, path, **options)
    except (StashtraceError, OSError, MemoryError):
        raise
    except Exception as error:
        raise plugin.error(f"failed: {one_line(error)}") from error
    if not isinstance(written, Exported):
        raise plugin.error(f"returned a {type(written).__name__}, not a stashtrace.plugins.Exported")
    return written


def check_options(name: str, call: Callable[..., Exported], options: dict[str, Any]) -> None:
    """Raise UsageError if an exporter does not know one of these options."""
    parameters = inspect.signature(call).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    known = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    unknown = [option for option in options if option not in known]
    if unknown:
        raise UsageError(f"the exporter {name} takes no {', '.join(unknown)}", hint=f"it takes {', '.join(known)}")
