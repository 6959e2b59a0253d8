"""Reads the database of an Nsight Systems export: columns as arrays, in blocks.

Versions differ in tables and columns, so each read names its columns and a default for a missing column or value.
Of a damaged table, the rows before the damage are read.
"""

from __future__ import annotations

import os
import re
import sqlite3
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from stashtrace.errors import ImporterError
from stashtrace.importers.import_context import RANK_IN_NAME, ImportContext, Int64, per_distinct
from stashtrace.importers.import_limits import bound_queries
from stashtrace.importers.source import Source
from stashtrace.schema.kinds import ProcessRole

MAGIC = b"SQLite format 3\x00"
_BLOCK_ROWS = 1 << 16
#: Ids in one query; old versions of SQLite take no more than 999.
_IDS_PER_QUERY = 500


class Database:
    """One export. ``damaged``: tables that could not be read to their end."""

    def __init__(self, connection: sqlite3.Connection, on_rows: Callable[[int], None]) -> None:
        self._connection = connection
        self._on_rows = on_rows
        self.damaged: list[str] = []
        # Views of a foreign database are programs: only its tables are read.
        query = "SELECT name FROM sqlite_master WHERE type = 'table'"
        try:
            names = connection.execute(query).fetchall()
        except sqlite3.DatabaseError:
            # SQLite refuses a file that is shorter than its head says, unless it knows that repair is under way.
            connection.execute("PRAGMA writable_schema = ON")
            names = connection.execute(query).fetchall()
        self.columns: dict[str, set[str]] = {}
        for (name,) in names:
            described = connection.execute(f"PRAGMA table_info({_quote(name)})").fetchall()
            self.columns[str(name)] = {str(row[1]) for row in described}

    def has(self, table: str, *columns: str) -> bool:
        """Return True if a table exists and has these columns."""
        return table in self.columns and self.columns[table].issuperset(columns)

    def rows_count(self, table: str) -> int:
        """Return the approximate number of rows of a table: the last row's number, which is cheap to find."""
        rows = self.small(f"SELECT max(rowid) FROM {_quote(table)}") if table in self.columns else []
        return int(rows[0][0] or 0) if rows and isinstance(rows[0][0], int | None) else 0

    def integers(self, table: str, **columns: int) -> dict[str, Int64]:
        """Return columns of whole numbers, each named with its default for a missing column and for NULL."""
        pieces = [rows for rows, _ in self.blocks(table, (), **columns)]
        empty = np.empty(0, dtype=np.int64)
        return {name: np.concatenate([piece[name] for piece in pieces]) if pieces else empty for name in columns}

    def blocks(
        self, table: str, others: Sequence[str], **columns: int
    ) -> Iterator[tuple[dict[str, Int64], list[tuple[Any, ...]]]]:
        """Yield the columns of :meth:`integers` in blocks, each with its values of ``others`` by row.

        The value of a missing column is None.
        """
        present = self.columns.get(table)
        if present is None:
            return
        expressions = [self._expression(name, default, name in present) for name, default in columns.items()]
        expressions += [_quote(name) if name in present else "NULL" for name in others]
        count = len(columns)
        for block in self._blocks(table, f"SELECT {', '.join(expressions)} FROM {_quote(table)}"):
            values = np.array([row[:count] for row in block], dtype=np.int64).reshape(len(block), count)
            rows = {name: np.ascontiguousarray(values[:, at]) for at, name in enumerate(columns)}
            yield rows, [row[count:] for row in block] if others else []

    def texts(self, ids: Int64) -> dict[int, str]:
        """Return the texts of ``StringIds`` by id; unknown ids are absent."""
        texts: dict[int, str] = {}
        wanted = np.unique(ids).tolist()
        if not self.has("StringIds", "id", "value"):
            return texts
        for at in range(0, len(wanted), _IDS_PER_QUERY):
            listed = ",".join(map(str, wanted[at : at + _IDS_PER_QUERY]))
            for number, text in self.small(f"SELECT id, value FROM StringIds WHERE id IN ({listed})", "StringIds"):
                texts[number] = str(text)
        return texts

    def small(self, query: str, table: str = "") -> list[tuple[Any, ...]]:
        """Return all rows of a query with few; none if it fails, and the table then counts as damaged."""
        try:
            return self._connection.execute(query).fetchall()
        except sqlite3.DatabaseError:
            if table and table not in self.damaged:
                self.damaged.append(table)
            return []

    def pairs(self, table: str, key: str = "name", value: str = "value") -> dict[str, str]:
        """Return a table of names and values as a dict."""
        if not self.has(table, key, value):
            return {}
        query = f"SELECT {_quote(key)}, {_quote(value)} FROM {_quote(table)}"
        return {str(k): str(v) for k, v in self.small(query, table)}

    def _expression(self, name: str, default: int, is_present: bool) -> str:
        return f"ifnull(CAST({_quote(name)} AS INTEGER), {default})" if is_present else str(default)

    def _blocks(self, table: str, query: str) -> Iterator[list[tuple[Any, ...]]]:
        try:
            cursor = self._connection.execute(query)
            while block := cursor.fetchmany(_BLOCK_ROWS):
                self._on_rows(len(block))
                yield block
        except (sqlite3.DatabaseError, OverflowError):
            self.damaged.append(table)


@contextmanager
def opened(source: Source, tables: Sequence[str]) -> Iterator[Database]:
    """Open the database of a file.

    ``tables``: tables that will be read; progress counts their rows. Raises ImporterError if SQLite cannot read it.
    """
    with source.plain_file(".sqlite") as path:
        # immutable: SQLite makes no lock or journal, also where nothing can be written
        address = f"file:{urllib.parse.quote(str(path.resolve()))}?mode=ro&immutable=1"
        try:
            with closing(sqlite3.connect(address, uri=True)) as connection:
                connection.text_factory = partial(str, encoding="utf-8", errors="replace")
                bound_queries(connection, os.stat(path).st_size)
                meter = _Meter(source)
                database = Database(connection, meter.advance)
                meter.rows_total = sum(database.rows_count(name) for name in tables)
                yield database
        except sqlite3.DatabaseError as error:
            raise ImporterError(
                f"{source.path} is a damaged SQLite file: {error}",
                hint="export the report again: nsys export --type sqlite REPORT.nsys-rep",
            ) from error


class _Meter:
    """Reports progress in bytes, as if all rows had the same size. Unpacking has reported that of a compressed file."""

    def __init__(self, source: Source) -> None:
        self.rows_total = 0
        self._size_bytes = 0 if source.is_compressed else source.size_bytes
        self._source = source
        self._rows = self._reported_bytes = 0

    def advance(self, rows_count: int) -> None:
        """Add rows that were read."""
        self._rows += rows_count
        read_bytes = self._size_bytes * min(self._rows, self.rows_total) // max(self.rows_total, 1)
        self._source.passed(read_bytes - self._reported_bytes)
        self._reported_bytes = read_bytes


def _quote(name: str) -> str:
    return '"' + str(name).replace('"', '""') + '"'


# Processes of an Nsight Systems export: identity, rank, clock.

#: Tables whose rows belong to a process, and the column with its serialized id; those of devices first.
_OWNERS = (
    ("CUPTI_ACTIVITY_KIND_KERNEL", "globalPid"),
    ("CUPTI_ACTIVITY_KIND_MEMCPY", "globalPid"),
    ("CUPTI_ACTIVITY_KIND_MEMSET", "globalPid"),
    ("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "globalPid"),
    ("CUPTI_ACTIVITY_KIND_RUNTIME", "globalTid"),
    ("NVTX_EVENTS", "globalTid"),
    ("OSRT_API", "globalTid"),
)
#: Number of tables of devices: only these make a process a user of a device.
_OF_DEVICES = 4
_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID")
_NODES = ("NODE_RANK", "GROUP_RANK", "SLURM_NODEID")
_WORLDS = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_NTASKS")
_MPI_RANK = re.compile(r"MPI Rank (\d+)$")
#: Stamps from here on count from 1970, smaller ones from the start of the recording.
_SINCE_1970_NS = 1 << 58


class Processes:
    """Processes that have rows, numbered 0, 1, ...

    ``ids``: ``processes.process_id`` of each. ``base_ns``: added to each time of the file. ``until_ns``: end of the
    recording, in the file's times; -1 if unknown. ``session_ends``: whether the export says when its session ended.
    Else ``until_ns`` is the end of the last work or call.
    """

    def __init__(self, database: Database, path: Path, context: ImportContext) -> None:
        self._context = context
        self.base_ns, latest = _base(database, context)
        lengths = database.integers("ANALYSIS_DETAILS", duration=-1)["duration"]
        self.session_ends = bool(len(lengths)) and int(lengths.max()) > 0 and latest < _SINCE_1970_NS
        last_ns = _latest(database, "end", 'SELECT max("end") FROM {table}', -1)
        self.until_ns = int(lengths.max()) if self.session_ends else last_ns
        seen, devices = _owners(database)
        self._keys = np.array(sorted(seen) or [0], dtype=np.int64)
        named = {int(k) >> 24: (pid, name) for k, pid, name in _named(database)}
        keys = self._keys.tolist()
        self.pids = [int(named[k][0]) if k in named else k & 0xFFFFFF for k in keys]
        environment = _environment(database)
        host = database.pairs("TARGET_INFO_SYSTEM_ENV").get("Hostname", "")
        main = [k for k in keys if k in devices] or keys
        ranks, rank_from = _ranks(main, devices, _mpi_ranks(database), environment, path, context)
        # The environment counts tasks; where one task has several processes, that is not the size of the job.
        world = _number_of(environment, _WORLDS, -1) if len(main) == 1 else -1
        ids = [
            context.process(
                pid=pid,
                rank=ranks.get(key, -1),
                host=host,
                world_size=world if key in ranks else -1,
                role=ProcessRole.RANK if key in ranks else ProcessRole.OTHER,
                rank_from=rank_from,
                name="" if key in ranks or key not in named else PurePosixPath(named[key][1]).name,
            )
            for key, pid in zip(keys, self.pids, strict=True)
        ]
        self.ids = np.array(ids, dtype=np.int64)
        self._name_threads(database)

    def of(self, serialized: Int64) -> Int64:
        """Return the number of the process of each serialized pid or tid."""
        return np.minimum(np.searchsorted(self._keys, serialized >> 24), len(self._keys) - 1).astype(np.int64)

    def threads(self, process: Int64, tid: Int64) -> Int64:
        """Return the track of each row's thread."""
        thread = self._context.tracks.thread
        keys = (process << 24) | (tid & 0xFFFFFF)
        return per_distinct(keys, lambda key: thread(int(self.ids[key >> 24]), key & 0xFFFFFF))

    def _name_threads(self, database: Database) -> None:
        rows = database.integers("ThreadNames", nameId=0, globalTid=0)
        at = np.flatnonzero(np.isin(rows["globalTid"] >> 24, self._keys))
        names = database.texts(rows["nameId"][at])
        process = self.of(rows["globalTid"][at])
        for owner, serialized, name in zip(
            process.tolist(), rows["globalTid"][at].tolist(), rows["nameId"][at].tolist(), strict=True
        ):
            tid, title = serialized & 0xFFFFFF, names.get(name, "")
            main = tid == self.pids[owner] & 0xFFFFFF
            self._context.tracks.describe_thread(int(self.ids[owner]), tid, name=f"{title} · main" if main else title)


def _base(database: Database, context: ImportContext) -> tuple[int, int]:
    """Return what to add to times so that they count from 1970, 0 if the export did that; and the latest of some."""
    session = database.integers("TARGET_INFO_SESSION_START_TIME", utcEpochNs=0)["utcEpochNs"]
    latest = _latest(database, "start", "SELECT start FROM {table} LIMIT 1", 0)
    if latest >= _SINCE_1970_NS:
        return 0, latest
    if len(session) and int(session[0]) > 0:
        return int(session[0]), latest
    context.realtime = False
    return 0, latest


def _latest(database: Database, column: str, query: str, least: int) -> int:
    """Return the largest answer of the tables that have a column."""
    for table, _ in _OWNERS:
        if database.has(table, column):
            answer = database.small(query.format(table=table), table)
            least = max([least, *(value for (value,) in answer if isinstance(value, int))])
    return least


def _owners(database: Database) -> tuple[set[int], dict[int, int]]:
    """Return the serialized processes with rows, and the first device of those that use devices."""
    seen: set[int] = set()
    devices: dict[int, int] = {}
    for number, (table, column) in enumerate(_OWNERS):
        if not database.has(table, column):
            continue
        # A damaged export holds NULL, text or bytes where numbers belong.
        known = number < _OF_DEVICES and database.has(table, "deviceId")
        device = "CAST(ifnull(deviceId, -1) AS INTEGER)" if known else "-1"
        query = f"SELECT ifnull({column}, 0) >> 24 AS owner, min({device}) FROM {table} GROUP BY owner"
        for owner, first in database.small(query, table):
            if not isinstance(owner, int):
                continue
            seen.add(owner)
            if number < _OF_DEVICES:
                devices[owner] = min(devices.get(owner, first), first)
    return seen, devices


def _named(database: Database) -> list[tuple[int, int, str]]:
    if not database.has("PROCESSES", "globalPid", "pid", "name"):
        return []
    rows = database.small("SELECT globalPid, pid, name FROM PROCESSES", "PROCESSES")
    return [(g, p, str(n or "")) for g, p, n in rows if isinstance(g, int) and isinstance(p, int)]


def _environment(database: Database) -> dict[str, str]:
    text = database.pairs("TARGET_INFO_SYSTEM_ENV").get("DeviceEnvironment", "")
    return {name: value for name, sign, value in (part.partition("=") for part in text.split(";")) if sign}


def _number_of(environment: Mapping[str, str], names: Sequence[str], default: int) -> int:
    """Return the number in the first of these variables that holds one."""
    return next((int(environment[name]) for name in names if environment.get(name, "").isdecimal()), default)


def _mpi_ranks(database: Database) -> dict[int, int]:
    """Return the ranks of processes that MPI's interceptor noted in names of threads."""
    if not database.has("NVTX_EVENTS", "text", "globalTid"):
        return {}
    query = "SELECT globalTid >> 24, text FROM NVTX_EVENTS WHERE eventType = 39 AND text LIKE 'MPI Rank %'"
    matches = [(owner, _MPI_RANK.match(str(text))) for owner, text in database.small(query, "NVTX_EVENTS")]
    return {owner: int(match.group(1)) for owner, match in matches if match}


def _ranks(
    main: list[int],
    devices: Mapping[int, int],
    mpi_ranks: Mapping[int, int],
    environment: Mapping[str, str],
    path: Path,
    context: ImportContext,
) -> tuple[dict[int, int], str]:
    """Return the rank of each main process, and ``rank_from``.

    Sources in this order: MPI, the environment, the name of the file, the order of devices.
    """
    if mpi_ranks.keys() >= set(main):
        return {key: mpi_ranks[key] for key in main}, "file"
    if len(main) == 1:
        rank = _number_of(environment, _RANKS, -1)
        if rank >= 0:
            return {main[0]: rank}, "file"
        named = RANK_IN_NAME.findall(path.stem)
        context.say("nsys.ranks", "by the file's name" if named else "assumed: the file names none")
        return {main[0]: int(named[-1]) if named else 0}, "name" if named else "assumed"
    node = _number_of(environment, _NODES, 0)
    ordered = sorted(main, key=lambda key: (devices.get(key, -1), key & 0xFFFFFF))
    context.say("nsys.ranks", "assumed: by the order of devices")
    return {key: node * len(ordered) + at for at, key in enumerate(ordered)}, "assumed"
