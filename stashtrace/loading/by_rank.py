"""A run of ours, one rank after the other, so that no more than one rank's rows are in memory.

Numbers of tracks and processes, and texts, are those of the whole run.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import numpy as np

from stashtrace.loading.join import join_rows, name_communicators
from stashtrace.loading.session import Session
from stashtrace.schema.events import TABLES
from stashtrace.schema.strings import StringPool
from stashtrace.schema.table import Table

Path = str | os.PathLike[str]


class RanksOfRun:
    """Iterate once, then ask for ``rest``.

    Parameters
    ----------
    path, run_id
        As in ``load_trace``.
    """

    def __init__(self, path: Path | Sequence[Path], *, run_id: str | None = None) -> None:
        self._session = Session.open(path, run_id=run_id)
        self._groups: list[Table] = []
        self._collectives: list[Table] = []
        self._losses: list[Table] = []
        self._metadata: list[Table] = []

    @property
    def strings(self) -> StringPool:
        """Texts of the run so far."""
        return self._session.strings

    @property
    def path(self) -> str:
        """Where it lies."""
        return self._session.path

    def __len__(self) -> int:
        """Number of parts that iterating gives."""
        return len(set(self._ranks()))

    def __iter__(self) -> Iterator[tuple[int, dict[str, Table]]]:
        """Each rank (-1: none) with its big tables, in order of ranks."""
        ranks = self._ranks()
        for rank in sorted(set(ranks)):
            own = [index for index, of in enumerate(ranks) if of == rank]
            parts = [self._session.decode(index, None) for index in own]
            self._losses += [part.losses for part in parts]
            self._metadata += [part.metadata for part in parts]
            tables = join_rows(parts)
            io = [piece for index in own for piece in self._session.io_pieces(index)]
            tables["io"] = Table.concat(TABLES["io"], io).sort_by("track_id", "begin_ns")
            self._groups.append(tables.pop("groups"))
            backends = {self.strings.text(code) for code in np.unique(self._groups[-1]["backend_code"]).tolist()}
            if "nccl" in backends:
                self._collectives.append(tables["collectives"])
            yield rank, tables

    def rest(self) -> dict[str, Table]:
        """Small tables of the whole run: processes, tracks, groups, losses, alignment, metadata."""
        session = self._session
        groups = Table.concat(TABLES["groups"], self._groups)
        collectives = Table.concat(TABLES["collectives"], self._collectives)
        named = name_communicators(groups, collectives, session.group_notes, session.tracks)
        return {
            "groups": named,
            "processes": session.process_table(),
            "losses": session.loss_table(self._losses),
            "metadata": session.metadata_table(self._metadata),
            "alignment": session.alignment_table(),
            "tracks": session.tracks.table(),
        }

    def _ranks(self) -> list[int]:
        return [identity.rank for identity in self._session.identities]
