"""Which formats of other tools are understood, and which of them a file is.

``align.imported`` asks ``recognise`` for each file. Other packages add importers by the entry point
``stashtrace.importers``: a module with ``sniff`` and ``load`` as below.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import importlib
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol, cast

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


def importers() -> Iterator[tuple[str, Importer]]:
    """Names and modules of all importers, our own first."""
    for name, module, _ in IMPORTERS:
        yield name, cast(Importer, importlib.import_module(module))
    for entry in entry_points(group="stashtrace.importers"):
        yield entry.name, entry.load()


def recognise(source: Source) -> tuple[str, Importer] | None:
    """The importer that reads this file, None if there is none."""
    for name, importer in importers():
        if importer.sniff(source.head, source.path):
            return name, importer
    return None
