"""Which formats of other tools are understood, and which of them a file is.

``loading.foreign`` asks ``recognise`` for each file. Other packages add importers by the entry point
``stashtrace.importers``: a module with ``sniff`` and ``load`` as below. Theirs are asked about files that none of
ours takes.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, cast

from stashtrace.entry_points import Plugin, one_line, warn
from stashtrace.entry_points import plugins as entry_points
from stashtrace.errors import PluginError
from stashtrace.importers.context import ImportContext
from stashtrace.importers.source import Source

#: (name, module, one-line help).
IMPORTERS: tuple[tuple[str, str, str], ...] = (
    ("kineto", "stashtrace.importers.kineto", "Kineto: traces of torch.profiler, one JSON file (or .json.gz) a rank"),
    ("dftracer", "stashtrace.importers.dftracer", "DFTracer, .pfw and .pfw.gz"),
    ("nsys", "stashtrace.importers.nsys", "Nsight Systems: reports exported to SQLite"),
    ("nccl_inspector", "stashtrace.importers.nccl_inspector", "NCCL Inspector: JSON lines of finished operations"),
    ("flight_recorder", "stashtrace.importers.flight_recorder", "torch Flight Recorder: pickle or JSON of a rank"),
    ("darshan", "stashtrace.importers.darshan", "Darshan logs, with or without DXT (extra: darshan)"),
    ("straggler", "stashtrace.importers.straggler", "StragglerAnalysis: trace-*.parquet of a job (extra: arrow)"),
    ("chakra", "stashtrace.importers.chakra", "execution traces: PyTorch's JSON, Chakra's .et; no times"),
)


class Importer(Protocol):
    """What an importer's module offers."""

    def sniff(self, head: bytes, path: Path) -> bool:
        """Whether a file with this beginning (decompressed, up to 64 KiB) and name is of this format. Never raises."""
        ...

    def load(self, source: Source, context: ImportContext) -> None:
        """Read one file. Raises ImporterError if nothing of it can be used; lesser damage is ``context.lose``."""
        ...


def plugins() -> dict[str, Plugin]:
    """Importers of other packages by name. Reads the entry points of all packages that are installed."""
    return entry_points("importer", [name for name, _, _ in IMPORTERS])


def importer_names() -> list[str]:
    """Names of all formats, our own first."""
    return [*(name for name, _, _ in IMPORTERS), *plugins()]


def importers() -> Iterator[tuple[str, Importer]]:
    """Names and modules of all importers, our own first; other packages are looked for only when these are through."""
    for name, module, _ in IMPORTERS:
        yield name, cast(Importer, importlib.import_module(module))
    for name, plugin in plugins().items():
        added = _of_plugin(plugin)
        if added is not None:
            yield name, added


def recognise(source: Source) -> tuple[str, Importer] | None:
    """The importer that reads this file, None if there is none."""
    for name, importer in importers():
        if importer.sniff(source.head, source.path):
            return name, importer
    return None


@functools.cache
def _of_plugin(plugin: Plugin) -> Importer | None:
    """Another package's importer; None, after a warning, if it is none."""
    try:
        importer = plugin.load()
    except PluginError as error:
        warn(f"{error}; it is left out")
        return None
    lacks = [name for name in ("sniff", "load") if not callable(getattr(importer, name, None))]
    if lacks:
        warn(f"{plugin} is left out: it has no function {' and no '.join(lacks)}")
        return None
    return _Added(plugin, importer)


class _Added:
    """An importer of another package, which keeps the promise that ``sniff`` never raises."""

    def __init__(self, plugin: Plugin, importer: Importer) -> None:
        self._plugin, self._importer = plugin, importer
        self._has_failed = False
        self.load = importer.load

    def sniff(self, head: bytes, path: Path) -> bool:
        """What the importer says; False, and once a warning, if it fails."""
        try:
            return bool(self._importer.sniff(head, path))
        except Exception as error:
            if not self._has_failed:
                self._has_failed = True
                why = f"{one_line(error)}; files that it cannot look at are not its"
                warn(f"{self._plugin} failed to look at {path}: {why}")
            return False
