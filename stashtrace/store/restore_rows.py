"""Add unknown rows of ``processes`` and ``tracks`` in place of those that a store has lost; ``files`` uses it.

Other tables still hold what these did, and it is shown: a partition has the rank, a row the number of its process.
Everything else about a lost process or track is unknown, and ``losses`` counts it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from stashtrace.schema.columns import Schema
from stashtrace.schema.events import TABLES
from stashtrace.schema.kinds import ProcessRole, Severity
from stashtrace.schema.strings import StringPool
from stashtrace.schema.table import Array, Table
from stashtrace.schema.trace import LossRow, losses_columns
from stashtrace.schema.tracks import kind_of_rows
from stashtrace.store.layout import NO_RANK, PROCESS, TRACK

#: Tables in which -1 as process stands for the whole run.
_OF_THE_RUN = ("losses", "metadata")
_HINT = "; what it did is shown. Export the run again to have it whole"


class Reinstated:
    """Looks at the partitions while they are read; :meth:`complete` then adds the rows that they refer to and lack."""

    def __init__(self, strings: StringPool) -> None:
        self._strings = strings
        self._known: dict[str, Array] = {}
        self._first: dict[int, int] = {}
        self._processes: dict[int, dict[str, int]] = {}
        self._tracks: dict[int, dict[str, int]] = {}

    def note(self, name: str, table: Table) -> None:
        """Take in ``processes`` and ``tracks``, which are read before the tables that refer to them."""
        key = {"processes": PROCESS, "tracks": TRACK}.get(name)
        if key is None:
            return
        self._known[key] = np.unique(table[key])
        if name == "processes":
            ranks = zip(table["rank"].tolist(), table[PROCESS].tolist(), table["role_code"].tolist(), strict=True)
            for rank, process, _ in sorted(ranks, key=lambda each: (each[2] != ProcessRole.RANK, each[1])):
                self._first.setdefault(rank, process)

    def has_all(self, table: Table) -> bool:
        """Whether all rows refer to known processes and tracks; :meth:`add` is not needed then."""
        name = table.schema.name
        if not len(table) or name in _OF_THE_RUN or name == "processes":
            return True
        keys = [key for key in (PROCESS, TRACK) if key in table and (key, name) != (TRACK, "tracks")]
        known = (self._known.get(key, np.empty(0, dtype=np.int64)) for key in keys)
        return all(bool(np.isin(table[key], numbers).all()) for key, numbers in zip(keys, known, strict=True))

    def add(self, rank: int, part: Table) -> Table:
        """Note what the rows of a partition refer to; rows without a track (-1) get an unknown one."""
        name = part.schema.name
        if not len(part) or name in _OF_THE_RUN or name == "processes":
            return part
        if PROCESS in part:
            for process, rows in self._missing(PROCESS, part[PROCESS]):
                self._miss_process(process, rank, part.take(rows))
        if TRACK not in part or name == "tracks":
            return part
        tracks = part[TRACK]
        for track, rows in self._missing(TRACK, part[TRACK]):
            process = int(part[PROCESS][rows[0]]) if PROCESS in part else self._first_of(rank)
            number = track
            if track < 0:
                number = self._number_of_none(process, name)
                tracks = tracks.copy() if tracks is part[TRACK] else tracks
                tracks[rows] = number
            self._tracks.setdefault(
                number, {"track_id": number, "process_id": process, "kind_code": int(kind_of_rows(name))}
            )
        return part if tracks is part[TRACK] else part.replace(track_id=tracks)

    def complete(self, tables: dict[str, Table]) -> None:
        """Add the rows that are missing to ``processes``, ``tracks`` and ``losses``."""
        lost: list[LossRow] = []
        for name, missing in (("processes", self._processes), ("tracks", self._tracks)):
            if missing:
                rows = [self._filled(TABLES[name], row) for row in missing.values()]
                tables[name] = Table.concat(TABLES[name], [tables[name], Table.from_rows(TABLES[name], rows)])
                advice = f"the store lacks rows of {name}{_HINT}"
                lost.append(("format", f"{name}_lost", int(Severity.DATA_LOSS), len(missing), advice))
        add_losses(tables, lost, self._strings)

    def _missing(self, key: str, values: Array) -> Iterator[tuple[int, Array]]:
        """Unknown numbers and the rows of each; a damaged column may hold as many as it has rows."""
        outside = np.flatnonzero(~np.isin(values, self._known.get(key, np.empty(0, dtype=np.int64))))
        if len(outside):
            rows = outside[np.argsort(values[outside], kind="stable")]
            missing, first = np.unique(values[rows], return_index=True)
            yield from zip(missing.tolist(), np.split(rows, first[1:]), strict=True)

    def _miss_process(self, process: int, rank: int, rows: Table) -> None:
        entry = self._processes.get(process)
        if entry is None:
            has_own = rank == NO_RANK or rank in self._first
            role = ProcessRole.OTHER if has_own else ProcessRole.RANK
            self._first.setdefault(rank, process)
            entry = {"process_id": process, "rank": rank, "role_code": int(role), "pid": 0}
            self._processes[process] = entry
        for name, best in (("begin_ns", min), ("end_ns", max)):
            stamps = rows[name][rows[name] >= 0] if name in rows else np.empty(0, dtype=np.int64)
            if len(stamps):
                value = int(best(stamps))
                entry[name] = best(entry.get(name, value), value)

    def _first_of(self, rank: int) -> int:
        """Process of the rows of a rank that do not name one."""
        if rank not in self._first:
            self._miss_process(self._number(self._known.get(PROCESS), self._processes), rank, Table.empty(TABLES["io"]))
        return self._first[rank]

    def _number_of_none(self, process: int, table: str) -> int:
        kind = int(kind_of_rows(table))
        for number, row in self._tracks.items():
            if row["process_id"] == process and row["kind_code"] == kind and row.get("native_id") == -1:
                return number
        number = self._number(self._known.get(TRACK), self._tracks)
        self._tracks[number] = {"track_id": number, "process_id": process, "kind_code": kind, "native_id": -1}
        return number

    @staticmethod
    def _number(known: Array | None, taken: Mapping[int, Any]) -> int:
        return max(int(known.max(initial=-1)) if known is not None else -1, max(taken, default=-1)) + 1

    def _filled(self, schema: Schema, given: dict[str, int]) -> list[int]:
        unknown = self._strings.code("unknown")
        row = {column.name: column.missing for column in schema.columns} | {"name_code": unknown} | given
        if "end_ns" in row:
            row["end_ns"] = max(row["begin_ns"], row["end_ns"])
        return [row[column] for column in schema.names]


def add_losses(tables: dict[str, Table], lost: list[LossRow], strings: StringPool) -> None:
    """Append rows to the ``losses`` table, for the run as a whole."""
    if not lost:
        return
    schema = TABLES["losses"]
    tables["losses"] = Table.concat(schema, [tables["losses"], Table(schema, losses_columns(-1, lost, strings))])
