"""What an importer is given beside the file: processes, tracks, strings, and the tables that it fills.

``loading.foreign`` makes one context per load and tells it which file comes next; an importer never sees another file.
Times stay in the file's own clock; ``align`` maps them.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace.errors import ImporterError
from stashtrace.importers.bounds import HIGHEST
from stashtrace.schema.columns import Column
from stashtrace.schema.events import TABLES
from stashtrace.schema.kinds import IoFlag, ProcessRole, Severity
from stashtrace.schema.possible import MOST_RANKS
from stashtrace.schema.strings import StringPool
from stashtrace.schema.table import Table
from stashtrace.schema.trace import EventTables, LossRow, losses_columns
from stashtrace.schema.tracks import TrackRegistry

#: Who reports what holds for whole files, whatever their format.
WHOLE_FILES = "importers"
_ENDS = frozenset({"end_ns", "device_end_ns", "return_ns"})


@dataclass(slots=True)
class ImportedProcess:
    """One row of ``processes`` to be, as an importer described it."""

    pid: int
    rank: int
    host: str
    clock: str
    local_rank: int
    world_size: int
    role: ProcessRole
    worker_id: int
    parent: int
    name: str
    source: str


@dataclass(frozen=True, slots=True)
class Claim:
    """That a file holds a rank: what tells whether the files of a load are of one job.

    Attributes
    ----------
    path : str
        The file.
    rank_from : {"file", "name", "assumed"}
        Whether the file says its rank, its name does, or the importer took one because neither does.
    """

    process_id: int
    rank: int
    world_size: int
    importer: str
    path: str
    rank_from: str


class ImportContext:
    """Collects what the importers of one load give.

    Attributes
    ----------
    strings : StringPool
    tracks : TrackRegistry
        ``thread(process_id, tid)``, ``stream(process_id, native_id, name)``, ``device(process_id, index, name)``,
        ``communicator(process_id, group_hash, name)``, ``counter(process_id, name, unit)``.
    recordings : dict of int to list
        For importers that meet several files of a process: what each file covers, as (begin_ns, end_ns, name).
    claims : list of Claim
        Ranks by file, of importers whose files are of one rank or one job each.
    realtime : bool
        Set False by an importer whose times do not count from 1970.
    """

    def __init__(self, strings: StringPool) -> None:
        self.strings = strings
        self.tracks = TrackRegistry(strings)
        self.processes: list[ImportedProcess] = []
        self.claims: list[Claim] = []
        self.losses: list[tuple[int, LossRow]] = []
        self.metadata: list[tuple[int, str, str]] = []
        self.realtime = True
        self.recordings: dict[int, list[tuple[int, int, str]]] = {}
        self.bases_ns: dict[int, int | None] = {}
        self.renumbered: set[int] = set()
        self._known: dict[tuple[object, ...], int] = {}
        self._importer = self._source = self._path = ""
        self._pieces: dict[str, list[Table]] = {}

    # For importers ------------------------------------------------------------------------------

    def process(
        self,
        *,
        pid: int,
        rank: int = -1,
        host: str = "",
        clock: str = "",
        local_rank: int = -1,
        world_size: int = -1,
        role: ProcessRole = ProcessRole.RANK,
        worker_id: int = -1,
        parent: int = -1,
        name: str = "",
        rank_from: str = "",
        alone: bool = False,
    ) -> int:
        """``process_id`` of a process; the same for the same host, pid, rank, role and worker, also from another file.

        Parameters
        ----------
        pid : int
            On its host, 0 if unknown.
        host, clock : str
            Processes of one clock need no alignment; the host's own if empty, and files of unknown hosts share one.
        name : str
            What a person calls it; made from rank and role if empty.
        rank_from : {"file", "name", "assumed", ""}
            See :class:`Claim`; empty if ranks of this format do not tell jobs apart.
        alone : bool
            Whether no other file can hold more of this process.
        """
        if not -1 <= rank < MOST_RANKS:
            raise ImporterError(f"{self._source} names a rank that no job has: {str(rank)[:40]}", hint="write it again")
        if not -1 <= world_size < MOST_RANKS:
            world_size = -1
        own = self._path if alone else self._source if not pid and rank < 0 else ""
        key = (own, host, pid, rank, role, worker_id)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = len(self.processes)
            shown = name or (f"rank {rank}" if rank >= 0 else f"process {pid}" if pid else self._source)
            self.processes.append(
                ImportedProcess(
                    pid,
                    rank,
                    host,
                    clock or host,
                    local_rank,
                    world_size,
                    role,
                    worker_id,
                    parent,
                    shown,
                    self._source,
                )
            )
        known = self.processes[found]
        if known.world_size < 0 <= world_size:  # another file knew the process, but not how many ranks there are
            self.processes[found] = replace(known, world_size=world_size)
        if rank_from and rank >= 0 and role == ProcessRole.RANK:
            self.claims.append(Claim(found, rank, world_size, self._importer, self._path or self._source, rank_from))
        return found

    def code(self, text: str) -> int:
        """String code of a text."""
        return self.strings.code(text)

    def codes(self, texts: Iterable[str]) -> npt.NDArray[np.int64]:
        """String codes of many texts."""
        return self.strings.codes(texts)

    def add(self, table: str, **columns: Any) -> None:
        """Append rows to a table of the event model.

        Parameters
        ----------
        table : str
            Name in ``events.TABLES``, but ``processes``, ``tracks``, ``losses``, ``metadata``, ``alignment``.
        **columns
            Arrays of equal length, or scalars that are repeated. ``rank`` is the process's if it is left out; keys that
            number rows (``span_id``, ``collective_key``) go on counting; other columns that are left out get their
            missing value.

        Raises
        ------
        ValueError
            If a column is unknown or of another length.
        """
        schema = TABLES[table]
        unknown = set(columns) - set(schema.names)
        if unknown:
            raise ValueError(f"table {table} has no column {sorted(unknown)}")
        rows = max((len(v) for v in columns.values() if np.ndim(v)), default=1)
        if not rows:
            return
        if "rank" in schema.names and "rank" not in columns:
            ranks = np.array([p.rank for p in self.processes], dtype=np.int64)
            columns["rank"] = ranks[np.asarray(columns["process_id"], dtype=np.int64)]
        full = {c.name: self._filled(schema.name, c, columns.get(c.name), rows) for c in schema.columns}
        full = self._without_impossible(table, full)
        placed, lost_count = self.tracks.placed(Table(schema, full))
        if lost_count:
            advice = f"{self._source}: rows of {table} do not say on what they ran; they are shown on an unknown track"
            self.lose("track_unknown", lost_count, severity=Severity.ERROR, advice=advice)
        self._pieces.setdefault(table, []).append(placed)

    def _without_impossible(self, table: str, columns: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """Rows that begin within reach of 62 bits; an end without end was clipped by who read it."""
        fits = np.ones(1, dtype=bool)
        for name in set(TABLES[table].moments) - _ENDS:
            fits = fits & (np.abs(columns[name].astype(np.float64)) < HIGHEST)
        if fits.all():
            return columns
        self.lose("impossible_times", int(np.count_nonzero(~fits)), advice=f"{self._source}: times of {table}")
        return {name: values[fits] for name, values in columns.items()}

    def lose(
        self,
        reason: str,
        count: int = 1,
        *,
        process_id: int = -1,
        severity: Severity = Severity.DATA_LOSS,
        advice: str = "",
    ) -> None:
        """Report something that is missing: a snake_case reason and one sentence for the user."""
        self.losses.append((process_id, (self._importer, reason, int(severity), int(count), advice or self._source)))

    def doubt(self, reason: str, advice: str, process_id: int = -1) -> None:
        """Report what makes the figures of a whole file doubtful: the summary prints this sentence as it stands."""
        self.losses.append((process_id, (WHOLE_FILES, reason, int(Severity.ERROR), 1, advice)))

    def say(self, key: str, value: str, process_id: int = -1) -> None:
        """A fact about a process, or about the whole load."""
        self.metadata.append((process_id, key, value))

    def count_from(self, process_id: int, base_ns: int | None) -> None:
        """From when a file's own times count; the stamps given have it in them. None: the file does not say.

        Times without a base count from that of the other files of the load.
        """
        self.bases_ns[process_id] = base_ns

    def number_anew(self, group_hash: int) -> None:
        """``sequence`` of this group orders its collectives alike on all ranks, but is no number for a person."""
        self.renumbered.add(group_hash)

    def say_once(self, key: str, value: str) -> None:
        """A fact about the whole load that several of its files tell alike."""
        if (-1, key, value) not in self.metadata:
            self.say(key, value)

    # For align.imported -------------------------------------------------------------------------

    def begin(self, importer: str, source: str, path: str = "") -> None:
        """Rows that follow come from this file."""
        self._importer, self._source, self._path = importer, source, path

    def take(self) -> EventTables:
        """Tables of the files so far, each table joined; the context starts anew with its next file."""
        tables = {name: Table.concat(TABLES[name], pieces) for name, pieces in self._pieces.items()}
        self._pieces = {}
        return EventTables(self.strings, tables)

    def drop(self) -> None:
        """Forget the rows of a file that could not be read to any use."""
        self._pieces = {}

    def loss_table(self) -> Table:
        """The ``losses`` table."""
        tables = [
            Table(TABLES["losses"], losses_columns(process_id, [row], self.strings)) for process_id, row in self.losses
        ]
        return Table.concat(TABLES["losses"], tables)

    def _filled(self, table: str, column: Column, given: Any, rows: int) -> npt.NDArray[Any]:
        if given is not None:
            return np.asarray(given) if np.ndim(given) else np.full(rows, given, dtype=column.dtype)
        if column.role == "key":
            first = sum(len(t) for t in self._pieces.get(table, ()))
            return np.arange(first, first + rows, dtype=np.int64)
        return np.full(rows, column.missing, dtype=column.dtype)


# What importers of I/O calls share: which calls waited, where nothing but their duration tells.

Int64 = npt.NDArray[np.int64]

#: A call that copies from the page cache stays under a fixed cost and the time of its bytes.
CALL_NS, BYTES_PER_NS = 100_000, 1
#: Fact (``metadata``) of a process whose calls were flagged so; ``stalls`` then widens its bounds.
BLOCKED_FROM = ("io_blocked_from", "duration")


def blocked_by_duration(length_ns: Int64, moved_bytes: Int64) -> Int64:
    """``IoFlag.BLOCKED`` for calls that took longer than any copy in memory."""
    slow = length_ns > CALL_NS + np.maximum(moved_bytes, 0) // BYTES_PER_NS
    return np.where(slow, int(IoFlag.BLOCKED), 0)
