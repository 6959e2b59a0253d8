"""The list of importers, and the choice of the importer for a file.

``loading.foreign`` calls ``recognise`` for each file. Other packages add importers by the entry point
``stashtrace.importers``: a module with ``sniff`` and ``load`` as below. Those are asked about files that none of ours
takes.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from stashtrace.errors import PluginError, one_line
from stashtrace.importers.import_context import ImportContext
from stashtrace.importers.source import Source
from stashtrace.registry import Plugin, Registry, warn

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
    """Functions of an importer's module."""

    def sniff(self, head: bytes, path: Path) -> bool:
        """Return True if a file with this beginning (decompressed, up to 64 KiB) and name is of this format.

        Never raises.
        """
        ...

    def load(self, source: Source, context: ImportContext) -> None:
        """Read one file; raise ImporterError if nothing of it can be used. Lesser damage is ``context.lose``."""
        ...


def importers() -> Iterator[tuple[str, Importer]]:
    """Yield names and modules of all importers, our own first; other packages are searched only after these."""
    return ((name, importer) for name, importer in _REGISTRY if importer is not None)


def recognise(source: Source) -> tuple[str, Importer] | None:
    """Return name and module of the importer that reads this file, None if there is none."""
    for name, importer in importers():
        if importer.sniff(source.head, source.path):
            return name, importer
    return None


@functools.cache
def _importer_of(plugin: Plugin) -> Importer | None:
    """Return another package's importer; None, after a warning, if it is unusable."""
    try:
        importer = plugin.load()
    except PluginError as error:
        warn(f"{error}; it is left out")
        return None
    missing = [name for name in ("sniff", "load") if not callable(getattr(importer, name, None))]
    if missing:
        warn(f"{plugin} is left out: it has no function {' and no '.join(missing)}")
        return None
    return _PluginImporter(plugin, importer)


class _PluginImporter:
    """An importer of another package whose ``sniff`` never raises."""

    def __init__(self, plugin: Plugin, importer: Importer) -> None:
        self._plugin, self._importer = plugin, importer
        self._has_failed = False
        self.load = importer.load

    def sniff(self, head: bytes, path: Path) -> bool:
        """Ask the importer; return False, after one warning, if it fails."""
        try:
            return bool(self._importer.sniff(head, path))
        except Exception as error:
            if not self._has_failed:
                self._has_failed = True
                reason = f"{one_line(error)}; a file that it cannot examine is not in its format"
                warn(f"{self._plugin} failed to examine {path}: {reason}")
            return False


_REGISTRY: Registry[Importer | None] = Registry("importer", IMPORTERS, _importer_of)
importer_names, plugins = _REGISTRY.names, _REGISTRY.plugins
