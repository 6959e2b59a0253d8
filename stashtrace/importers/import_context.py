"""ImportContext: the processes, tracks, strings and tables that importers fill, and what they share in filling them.

``loading.foreign`` makes one context per load and names the file that comes next; an importer never sees another file.
Times stay in the file's clock; ``loading`` maps them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace.errors import ImporterError
from stashtrace.importers.import_limits import HIGHEST, integer_or
from stashtrace.schema.columns import Column
from stashtrace.schema.events import TABLES
from stashtrace.schema.kinds import IoFlag, IoOp, ProcessRole, Severity
from stashtrace.schema.possible import MOST_RANKS
from stashtrace.schema.strings import StringPool
from stashtrace.schema.table import Table
from stashtrace.schema.trace import WHOLE_FILES, EventTables, LossRow, losses_columns
from stashtrace.schema.tracks import TrackRegistry
from stashtrace.text.units import duration_text

Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

#: Bound of major and minor compute capability; larger numbers are damage.
_HIGHEST_CAPABILITY = 1000
_ENDS = frozenset({"end_ns", "device_end_ns", "return_ns"})


@dataclass(slots=True)
class ImportedProcess:
    """A future row of ``processes``, as an importer described it."""

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
    """A rank that a file holds. Claims show whether the files of a load are of one job."""

    process_id: int
    rank: int
    world_size: int
    importer: str
    #: The file.
    path: str
    #: {"file", "name", "assumed"}; Source of the rank: the content of the file, its name, or neither.
    rank_from: str


@dataclass(frozen=True, slots=True)
class NamedJob:
    """The job that a file names."""

    #: The file.
    path: str
    #: The scheduler's name of the job.
    job: str
    #: Tells apart the runs of several processes that one job started; empty for a process by itself.
    run: str


class ImportContext:
    """Collects the rows of one load.

    Attributes
    ----------
    strings : StringPool
    tracks : TrackRegistry
        ``thread(process_id, tid)``, ``stream(process_id, native_id, name)``, ``device(process_id, index, name)``,
        ``communicator(process_id, group_hash, name)``, ``counter(process_id, name, unit)``.
    recordings : dict of int to list
        Extent of each file of a process, as (begin_ns, end_ns, name); for importers that accept several.
    claims : list of Claim
        Ranks by file, from importers whose files hold one rank or one job each.
    jobs : list of NamedJob
        Jobs by file, from importers whose files name them.
    realtime : bool
        Set False by an importer whose times do not count from 1970.
    """

    def __init__(self, strings: StringPool) -> None:
        self.strings = strings
        self.tracks = TrackRegistry(strings)
        self.processes: list[ImportedProcess] = []
        self.claims: list[Claim] = []
        self.jobs: list[NamedJob] = []
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
        """Return the ``process_id`` of a process.

        It is the same for the same host, pid, rank, role and worker, also from another file.

        Parameters
        ----------
        pid : int
            On its host, 0 if unknown.
        host, clock : str
            Processes of one clock need no alignment. An empty clock is the host's; files of unknown hosts share one.
        name : str
            Name for people; made from rank and role if empty.
        rank_from : {"file", "name", "assumed", ""}
            See :class:`Claim`; empty if ranks of this format do not distinguish jobs.
        alone : bool
            True if no other file can hold more of this process.

        Raises
        ------
        ImporterError
            If no job has this rank.
        """
        if not -1 <= rank < MOST_RANKS:
            raise ImporterError(f"{self._source} names a rank that no job has: {str(rank)[:40]}", hint="write it again")
        if not -1 <= world_size < MOST_RANKS:
            world_size = -1
        own = self._path if alone else self._source if not pid and rank < 0 else ""
        key = (own, host, pid, rank, role, worker_id)
        process_id = self._known.get(key)
        if process_id is None:
            process_id = self._known[key] = len(self.processes)
            shown = name or (f"rank {rank}" if rank >= 0 else f"process {pid}" if pid else self._source)
            self.processes.append(
                ImportedProcess(
                    pid=pid,
                    rank=rank,
                    host=host,
                    clock=clock or host,
                    local_rank=local_rank,
                    world_size=world_size,
                    role=role,
                    worker_id=worker_id,
                    parent=parent,
                    name=shown,
                    source=self._source,
                )
            )
        known = self.processes[process_id]
        if known.world_size < 0 <= world_size:  # another file knew the process, but not the number of ranks
            self.processes[process_id] = replace(known, world_size=world_size)
        if rank_from and rank >= 0 and role == ProcessRole.RANK:
            path = self._path or self._source
            self.claims.append(Claim(process_id, rank, world_size, self._importer, path, rank_from))
        return process_id

    def code(self, text: str) -> int:
        """Return the string code of a text."""
        return self.strings.code(text)

    def codes(self, texts: Iterable[str]) -> Int64:
        """Return the string codes of many texts."""
        return self.strings.codes(texts)

    def add(self, table: str, **columns: Any) -> None:
        """Append rows to a table of the event model.

        Parameters
        ----------
        table : str
            Name in ``events.TABLES``, except ``processes``, ``tracks``, ``losses``, ``metadata`` and ``alignment``.
        **columns
            Arrays of equal length, or scalars that are repeated. An absent ``rank`` is that of the process; absent keys
            (``span_id``, ``collective_key``) continue to count rows; other absent columns get their missing value.

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

    def add_group(
        self,
        process_id: int,
        group_hash: int,
        name: str,
        *,
        backend: str = "nccl",
        members: Sequence[int] | None = None,
        locality: str | None = None,
        **columns: Any,
    ) -> None:
        """Append a row of ``groups``.

        Parameters
        ----------
        members : sequence of int, optional
            Global ranks in group order. ``group_rank`` is the place of the process among them.
        locality : str, optional
            Evidence for ``crosses_hosts``.
        **columns
            Other columns of ``groups``; an absent ``crosses_hosts`` is unknown.
        """
        columns |= {"name_code": self.code(name), "backend_code": self.code(backend)}
        if members is not None:
            rank = self.processes[process_id].rank
            columns["members_code"] = self.code(",".join(map(str, members)))
            columns["group_rank"] = members.index(rank) if rank in members else -1
        if locality is not None:
            columns["locality_code"] = self.code(locality)
        columns.setdefault("crosses_hosts", -1)
        self.add("groups", process_id=process_id, group_hash=np.array([group_hash], dtype=np.uint64), **columns)

    def add_device(
        self,
        process_id: int,
        index: int,
        title: str,
        *,
        name: str = "",
        uuid: str = "",
        bus: str = "",
        memory_bytes: object = None,
        multiprocessors_count: object = None,
        capability: tuple[object, object] = (None, None),
    ) -> None:
        """Append a row of ``devices``.

        Parameters
        ----------
        index : int
            CUDA's ordinal of the device in this process.
        title : str
            Name of its track.
        memory_bytes, multiprocessors_count, capability : object
            As a document gives them; values that are not positive numbers are unknown.
        """
        major, minor = (integer_or(part, 0, lowest=1) for part in capability)
        self.add(
            "devices",
            process_id=process_id,
            device_index=index,
            track_id=self.tracks.device(process_id, index, title),
            uuid_code=self.code(uuid),
            name_code=self.code(name),
            bus_code=self.code(bus),
            memory_bytes=integer_or(memory_bytes, -1, lowest=1),
            multiprocessors_count=integer_or(multiprocessors_count, -1, lowest=1),
            capability_code=10 * major + minor if max(major, minor) < _HIGHEST_CAPABILITY else 0,
        )

    def _without_impossible(self, table: str, columns: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """Return the rows whose begins fit 62 bits. Importers clip ends themselves."""
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
        """Report missing data: a reason in snake_case and a sentence for the user."""
        self.losses.append((process_id, (self._importer, reason, int(severity), int(count), advice or self._source)))

    def doubt(self, reason: str, advice: str, process_id: int = -1) -> None:
        """Report why the figures of a whole file are doubtful: a sentence that the summary prints unchanged."""
        self.losses.append((process_id, (WHOLE_FILES, reason, int(Severity.ERROR), 1, advice)))

    def doubt_newer(self, subject: str, newest: str, parts: str = "fields", process_id: int = -1) -> None:
        """Report that a file has a newer version than the ``newest`` tested one, so its ``parts`` may differ."""
        advice = f"{subject}, newer than {newest}, the newest tested: {parts} may mean something else"
        self.doubt("newer_schema", advice, process_id)

    def doubt_cut_step(self, process_id: int, elapsed_ns: int, step: str) -> None:
        """Report that a recording ends inside a step; ``step`` names it and says how it is counted."""
        rank = self.processes[process_id].rank
        ends = f"{duration_text(elapsed_ns)} into" if elapsed_ns > 0 else "before the work of"
        advice = f"the recording of rank {rank} ends {ends} {step}"
        self.doubt("step_cut_off", advice, process_id)

    def say(self, key: str, value: str, process_id: int = -1) -> None:
        """Record a fact about a process, or about the whole load."""
        self.metadata.append((process_id, key, value))

    def count_from(self, process_id: int, base_ns: int | None) -> None:
        """Set the base of a file's times, which its stamps already include; None if the file has none.

        Times without a base count from that of the other files of the load.
        """
        self.bases_ns[process_id] = base_ns

    def number_anew(self, group_hash: int) -> None:
        """Mark a group whose ``sequence`` is the same on all ranks, but is not a number to show to people."""
        self.renumbered.add(group_hash)

    def name_job(self, job: str, run: str = "") -> None:
        """Note the job that the file names, so that files of several jobs are not taken for one."""
        self.jobs.append(NamedJob(self._path or self._source, job, run))

    def not_recorded(self, what: str) -> None:
        """Record what the files of a load do not hold; several of them repeat it."""
        if (-1, "not_recorded", what) not in self.metadata:
            self.say("not_recorded", what)

    # For loading.foreign ------------------------------------------------------------------------

    def begin(self, importer: str, source: str, path: str = "") -> None:
        """Start a file: the rows that follow come from it."""
        self._importer, self._source, self._path = importer, source, path

    def take(self) -> EventTables:
        """Return the tables of the files so far, and start again with the next file."""
        tables = {name: Table.concat(TABLES[name], pieces) for name, pieces in self._pieces.items()}
        self._pieces = {}
        return EventTables(self.strings, tables)

    def drop(self) -> None:
        """Forget the rows of a file that turned out to be unusable."""
        self._pieces = {}

    def loss_table(self) -> Table:
        """Return the ``losses`` table."""
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


# What several importers derive in the same way.

#: The rank of a file that is named by it.
RANK_IN_NAME = re.compile(r"rank[_\-.]?(\d+)", re.IGNORECASE)
#: Calls whose result is a number of bytes.
TRANSFERS = (
    *(IoOp.READ, IoOp.PREAD, IoOp.READV, IoOp.PREADV),
    *(IoOp.WRITE, IoOp.PWRITE, IoOp.WRITEV, IoOp.PWRITEV, IoOp.SENDFILE),
)
#: A call that copies from the page cache takes at most a fixed cost plus the time of its bytes.
CALL_NS, BYTES_PER_NS = 100_000, 1


def blocked_by_duration(length_ns: Int64, moved_bytes: Int64) -> Int64:
    """Return ``IoFlag.BLOCKED`` for calls that took longer than any copy in memory."""
    slow = length_ns > CALL_NS + np.maximum(moved_bytes, 0) // BYTES_PER_NS
    return np.where(slow, int(IoFlag.BLOCKED), 0)


def per_distinct(values: npt.NDArray[Any], function: Callable[[Any], int]) -> Int64:
    """Return ``function`` of each value, called once per distinct value."""
    distinct, inverse = np.unique(values, return_inverse=True)
    return np.array([function(value) for value in distinct.tolist()], dtype=np.int64)[inverse]


def is_nested(track: Int64, begin_ns: Int64, end_ns: Int64) -> Bools:
    """Return which rows begin inside an earlier row of their track; rows are sorted by track and begin."""
    nested = np.zeros(len(track), dtype=bool)
    for value in np.unique(track).tolist():
        rows = np.flatnonzero(track == value)
        nested[rows[1:]] = begin_ns[rows[1:]] < np.maximum.accumulate(end_ns[rows])[:-1]
    return nested


def stretches(begin_ns: Int64, end_ns: Int64, gap_ns: int, is_border: Bools | None = None) -> tuple[Int64, Int64]:
    """Join rows, sorted by begin, that follow each other within a gap.

    ``gap_ns``: longest pause inside a stretch. ``is_border``: per row but the first, whether a stretch begins with it
    in any case. Returns first row and latest end of each stretch.
    """
    if not len(begin_ns):
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    latest_ns = np.maximum.accumulate(end_ns)
    is_new = begin_ns[1:] - latest_ns[:-1] > gap_ns
    first = np.flatnonzero(np.append(True, is_new if is_border is None else is_new | is_border))
    return first, latest_ns[np.append(first[1:], len(begin_ns)) - 1]
