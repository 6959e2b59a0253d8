"""Load a native run one rank after the other, so that no more than one rank's rows are in memory.

Numbers of tracks and processes, and codes of texts, are those of the whole run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import numpy as np

from stashtrace.loading.decode import Decoded, decode_processes
from stashtrace.loading.join import join_rows, name_communicators
from stashtrace.loading.join_collectives import GroupNotes
from stashtrace.loading.load import open_processes
from stashtrace.loading.run_tables import describe
from stashtrace.schema.events import TABLES
from stashtrace.schema.strings import StringPool
from stashtrace.schema.table import Table

Path = str | os.PathLike[str]


class RanksOfRun:
    """Ranks of a run, to be iterated once before ``rest`` is called.

    ``path``, ``run_id``: as in ``load_trace``.
    """

    def __init__(self, path: Path | Sequence[Path], *, run_id: str | None = None) -> None:
        self._run = open_processes(path, run_id=run_id)
        self._decoded: list[Decoded] = []
        self._groups: list[Table] = []
        self._collectives: list[Table] = []

    @property
    def strings(self) -> StringPool:
        """Texts of the run that have been read so far."""
        return self._run.strings

    @property
    def path(self) -> str:
        """Path of the run."""
        return self._run.path

    def __len__(self) -> int:
        """Return the number of parts that iterating gives."""
        return len({process.identity.rank for process in self._run.processes})

    def __iter__(self) -> Iterator[tuple[int, dict[str, Table]]]:
        """Yield each rank (-1: processes without one) with its big tables, in order of ranks."""
        processes = self._run.processes
        for rank in sorted({process.identity.rank for process in processes}):
            own = decode_processes([p for p in processes if p.identity.rank == rank], self._run.tracks, None)
            tables = join_rows([one.tables for one in own])
            io = [piece for one in own for piece in one.io.pieces()]
            tables["io"] = Table.concat(TABLES["io"], io).sort_by("track_id", "begin_ns")
            self._decoded += own
            self._groups.append(tables.pop("groups"))
            backends = {self.strings.text(code) for code in np.unique(self._groups[-1]["backend_code"]).tolist()}
            if "nccl" in backends:
                self._collectives.append(tables["collectives"])
            yield rank, tables

    def rest(self) -> dict[str, Table]:
        """Return the small tables of the whole run: processes, tracks, groups, losses, alignment, metadata."""
        groups = Table.concat(TABLES["groups"], self._groups)
        collectives = Table.concat(TABLES["collectives"], self._collectives)
        notes = GroupNotes.of_all(one.notes for one in self._decoded)
        named = name_communicators(groups, collectives, notes, self._run.tracks)
        return {"groups": named, **describe(self._run, self._decoded)}
