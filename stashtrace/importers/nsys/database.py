"""The database of an Nsight Systems export: columns as arrays, read in blocks.

Versions differ in tables and columns, so each read names what it wants and what stands for a column, or a value, that
is not there. A database that is damaged gives the rows before the damage.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import re
import shutil
import sqlite3
import tempfile
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace.errors import ImporterError
from stashtrace.importers.bounds import bound_queries
from stashtrace.importers.context import ImportContext
from stashtrace.importers.source import Source
from stashtrace.schema.kinds import ProcessRole

Int64 = npt.NDArray[np.int64]

MAGIC = b"SQLite format 3\x00"
_BLOCK_ROWS = 1 << 16
#: Texts that one question asks for; SQLite takes no more than 999 in old versions.
_TEXTS_AT_ONCE = 500


class Database:
    """One export.

    Attributes
    ----------
    damaged : list of str
        Tables that could not be read to their end.
    """

    def __init__(self, connection: sqlite3.Connection, read: Callable[[int], None]) -> None:
        self._connection = connection
        self._read = read
        self.damaged: list[str] = []
        # Views of a stranger's database are programs: only its tables are read.
        question = "SELECT name FROM sqlite_master WHERE type = 'table'"
        try:
            names = connection.execute(question).fetchall()
        except sqlite3.DatabaseError:
            # SQLite refuses a file that is shorter than its head says, unless it is told that repair is under way.
            connection.execute("PRAGMA writable_schema = ON")
            names = connection.execute(question).fetchall()
        self.columns: dict[str, set[str]] = {}
        for (name,) in names:
            described = connection.execute(f"PRAGMA table_info({_quoted(name)})").fetchall()
            self.columns[str(name)] = {str(row[1]) for row in described}

    def has(self, table: str, *columns: str) -> bool:
        """Whether a table is there with these columns."""
        return set(columns) <= self.columns.get(table, set()) if table in self.columns else False

    def rows_count(self, table: str) -> int:
        """Rows of a table, about: the last row's number, which costs nothing to find."""
        found = self.small(f"SELECT max(rowid) FROM {_quoted(table)}") if table in self.columns else []
        return int(found[0][0] or 0) if found and isinstance(found[0][0], int | None) else 0

    def integers(self, table: str, **columns: int) -> dict[str, Int64]:
        """Columns of whole numbers; the given value stands for a missing column and for NULL."""
        pieces = [rows for rows, _ in self.blocks(table, (), **columns)]
        empty = np.empty(0, dtype=np.int64)
        return {name: np.concatenate([piece[name] for piece in pieces]) if pieces else empty for name in columns}

    def blocks(
        self, table: str, others: Sequence[str], **columns: int
    ) -> Iterator[tuple[dict[str, Int64], list[tuple[Any, ...]]]]:
        """The same in blocks, each with its values of other columns by row; None where one is not there."""
        there = self.columns.get(table)
        if there is None:
            return
        asked = [self._expression(name, default, name in there) for name, default in columns.items()]
        asked += [_quoted(name) if name in there else "NULL" for name in others]
        count = len(columns)
        for block in self._blocks(table, f"SELECT {', '.join(asked)} FROM {_quoted(table)}"):
            values = np.array([row[:count] for row in block], dtype=np.int64).reshape(len(block), count)
            rows = {name: np.ascontiguousarray(values[:, at]) for at, name in enumerate(columns)}
            yield rows, [row[count:] for row in block] if others else []

    def texts(self, ids: npt.NDArray[np.int64]) -> dict[int, str]:
        """Texts of ``StringIds`` by id; those that are not there are absent."""
        found: dict[int, str] = {}
        wanted = np.unique(ids).tolist()
        if not self.has("StringIds", "id", "value"):
            return found
        for at in range(0, len(wanted), _TEXTS_AT_ONCE):
            listed = ",".join(map(str, wanted[at : at + _TEXTS_AT_ONCE]))
            for number, text in self.small(f"SELECT id, value FROM StringIds WHERE id IN ({listed})", "StringIds"):
                found[number] = str(text)
        return found

    def small(self, question: str, table: str = "") -> list[tuple[Any, ...]]:
        """All rows of a question that has few, none if it cannot be answered."""
        try:
            return self._connection.execute(question).fetchall()
        except sqlite3.DatabaseError:
            if table and table not in self.damaged:
                self.damaged.append(table)
            return []

    def pairs(self, table: str, key: str = "name", value: str = "value") -> dict[str, str]:
        """A table of names and values."""
        if not self.has(table, key, value):
            return {}
        question = f"SELECT {_quoted(key)}, {_quoted(value)} FROM {_quoted(table)}"
        return {str(k): str(v) for k, v in self.small(question, table)}

    def _expression(self, name: str, default: int, there: bool) -> str:
        return f"ifnull(CAST({_quoted(name)} AS INTEGER), {default})" if there else str(default)

    def _blocks(self, table: str, question: str) -> Iterator[list[tuple[Any, ...]]]:
        try:
            cursor = self._connection.execute(question)
            while block := cursor.fetchmany(_BLOCK_ROWS):
                self._read(len(block))
                yield block
        except (sqlite3.DatabaseError, OverflowError):
            self.damaged.append(table)


@contextmanager
def opened(source: Source, tables: Sequence[str]) -> Iterator[Database]:
    """The database of a file, unpacked to a temporary place if it is compressed.

    Parameters
    ----------
    tables : sequence of str
        What will be read; progress counts their rows.
    """
    with tempfile.TemporaryDirectory(prefix="stashtrace-nsys-") as folder:
        path = source.path
        with path.open("rb") as stream:
            packed = stream.read(len(MAGIC)) != MAGIC
        if packed:
            path = Path(folder, "export.sqlite")
            with source.open() as stream, path.open("wb") as out:
                shutil.copyfileobj(stream, out, 1 << 20)
        # immutable: no lock or journal is made beside a file that may lie where nothing can be written
        address = f"file:{urllib.parse.quote(str(path.resolve()))}?mode=ro&immutable=1"
        try:
            with closing(sqlite3.connect(address, uri=True)) as connection:
                connection.text_factory = partial(str, encoding="utf-8", errors="replace")
                bound_queries(connection, os.stat(path).st_size)
                meter = _Meter(0 if packed else source.size_bytes, source)
                database = Database(connection, meter.rows)
                meter.total = sum(database.rows_count(name) for name in tables)
                yield database
        except sqlite3.DatabaseError as error:
            raise ImporterError(
                f"{source.path} is a damaged SQLite file: {error}",
                hint="export the report again: nsys export --type sqlite REPORT.nsys-rep",
            ) from error


class _Meter:
    """Tells the progress bar about rows as if each were as large as any other."""

    def __init__(self, size_bytes: int, source: Source) -> None:
        self.total = 0
        self._size_bytes = size_bytes
        self._source = source
        self._rows = self._told = 0

    def rows(self, count: int) -> None:
        """So many more rows were read."""
        self._rows += count
        reached = self._size_bytes * min(self._rows, self.total) // max(self.total, 1)
        self._source.passed(reached - self._told)
        self._told = reached


def _quoted(name: str) -> str:
    return '"' + str(name).replace('"', '""') + '"'


# Processes of an Nsight Systems export: who they are, which rank, on which clock.

#: Tables whose rows belong to a process, and the column that says which; those of devices first.
_OWNERS = (
    ("CUPTI_ACTIVITY_KIND_KERNEL", "globalPid"),
    ("CUPTI_ACTIVITY_KIND_MEMCPY", "globalPid"),
    ("CUPTI_ACTIVITY_KIND_MEMSET", "globalPid"),
    ("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "globalPid"),
    ("CUPTI_ACTIVITY_KIND_RUNTIME", "globalTid"),
    ("NVTX_EVENTS", "globalTid"),
    ("OSRT_API", "globalTid"),
)
#: Only tables of the first kind make a process a user of a device.
_OF_DEVICES = 4
_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID")
_NODES = ("NODE_RANK", "GROUP_RANK", "SLURM_NODEID")
_WORLDS = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_NTASKS")
_MPI_RANK = re.compile(r"MPI Rank (\d+)$")
_NAMED_RANK = re.compile(r"rank[_\-.]?(\d+)", re.IGNORECASE)
#: Stamps above this are no times since the start of a recording, but since 1970.
_SINCE_1970_NS = 1 << 58


class Processes:
    """Processes that have rows, numbered 0, 1, ...

    Attributes
    ----------
    pids : list of int
    ids : int64 array
        ``processes.process_id`` of each.
    base_ns : int
        Added to each time of the file.
    until_ns : int
        End of what was recorded, in the file's own times; -1 if nothing says when.
    session_ends : bool
        Whether the export says when its session ended. Else ``until_ns`` is the end of the last work or call.
    """

    def __init__(self, database: Database, path: Path, context: ImportContext) -> None:
        self._context = context
        self.base_ns, latest = _base(database, context)
        lengths = database.integers("ANALYSIS_DETAILS", duration=-1)["duration"]
        self.session_ends = bool(len(lengths)) and int(lengths.max()) > 0 and latest < _SINCE_1970_NS
        self.until_ns = int(lengths.max()) if self.session_ends else _last_end(database)
        seen, devices = _owners(database)
        self._keys = np.array(sorted(seen) or [0], dtype=np.int64)
        named = {int(k) >> 24: (pid, name) for k, pid, name in _named(database)}
        keys = self._keys.tolist()
        self.pids = [int(named[k][0]) if k in named else k & 0xFFFFFF for k in keys]
        environment = _environment(database)
        host = database.pairs("TARGET_INFO_SYSTEM_ENV").get("Hostname", "")
        main = [k for k in keys if k in devices] or keys
        ranks, rank_from = _ranks(main, devices, _told_ranks(database), environment, path, context)
        told = [int(environment[name]) for name in _WORLDS if environment.get(name, "").isdecimal()]
        # The command line's world is that of tasks; where one task has several processes, it is not the job's.
        world = told[0] if told and len(main) == 1 else -1
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
        """Number of the process of each serialized pid or tid."""
        return np.minimum(np.searchsorted(self._keys, serialized >> 24), len(self._keys) - 1).astype(np.int64)

    def threads(self, process: Int64, tid: Int64) -> Int64:
        """Track of each row's thread."""
        distinct, inverse = np.unique((process << 24) | (tid & 0xFFFFFF), return_inverse=True)
        tracks = [self._context.tracks.thread(int(self.ids[k >> 24]), k & 0xFFFFFF) for k in distinct.tolist()]
        return np.array(tracks, dtype=np.int64)[inverse]

    def _name_threads(self, database: Database) -> None:
        rows = database.integers("ThreadNames", nameId=0, globalTid=0)
        own = np.flatnonzero(np.isin(rows["globalTid"] >> 24, self._keys))
        names = database.texts(rows["nameId"][own])
        process = self.of(rows["globalTid"][own])
        for owner, serialized, name in zip(
            process.tolist(), rows["globalTid"][own].tolist(), rows["nameId"][own].tolist(), strict=True
        ):
            tid, title = serialized & 0xFFFFFF, names.get(name, "")
            main = tid == self.pids[owner] & 0xFFFFFF
            self._context.tracks.describe_thread(int(self.ids[owner]), tid, name=f"{title} · main" if main else title)


def _base(database: Database, context: ImportContext) -> tuple[int, int]:
    """What makes times count from 1970 that count from the start of the recording, 0 if the export moved them; and one
    of the times."""
    session = database.integers("TARGET_INFO_SESSION_START_TIME", utcEpochNs=0)["utcEpochNs"]
    latest = 0
    for table, _ in _OWNERS:
        if database.has(table, "start"):
            row = database.small(f"SELECT start FROM {table} LIMIT 1", table)
            latest = max([latest, *(value for (value,) in row if isinstance(value, int))])
    if latest >= _SINCE_1970_NS:
        return 0, latest
    if len(session) and int(session[0]) > 0:
        return int(session[0]), latest
    context.realtime = False
    return 0, latest


def _last_end(database: Database) -> int:
    """When the last work or call ended, -1 if there is none."""
    latest = -1
    for table, _ in _OWNERS:
        if database.has(table, "end"):
            row = database.small(f'SELECT max("end") FROM {table}', table)
            latest = max([latest, *(value for (value,) in row if isinstance(value, int))])
    return latest


def _owners(database: Database) -> tuple[set[int], dict[int, int]]:
    """Serialized processes that have rows; of those that use devices, the first device."""
    seen: set[int] = set()
    devices: dict[int, int] = {}
    for number, (table, column) in enumerate(_OWNERS):
        if not database.has(table, column):
            continue
        # A damaged export holds NULL, text or bytes where numbers belong.
        known = number < _OF_DEVICES and database.has(table, "deviceId")
        device = "CAST(ifnull(deviceId, -1) AS INTEGER)" if known else "-1"
        question = f"SELECT ifnull({column}, 0) >> 24 AS owner, min({device}) FROM {table} GROUP BY owner"
        for owner, first in database.small(question, table):
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
    """Environment of the command that recorded."""
    text = database.pairs("TARGET_INFO_SYSTEM_ENV").get("DeviceEnvironment", "")
    return {name: value for name, sign, value in (part.partition("=") for part in text.split(";")) if sign}


def _told_ranks(database: Database) -> dict[int, int]:
    """Ranks that MPI's interceptor wrote down as names of threads."""
    if not database.has("NVTX_EVENTS", "text", "globalTid"):
        return {}
    question = "SELECT globalTid >> 24, text FROM NVTX_EVENTS WHERE eventType = 39 AND text LIKE 'MPI Rank %'"
    found = [(owner, _MPI_RANK.match(str(text))) for owner, text in database.small(question, "NVTX_EVENTS")]
    return {owner: int(match.group(1)) for owner, match in found if match}


def _ranks(
    main: list[int],
    devices: Mapping[int, int],
    told: Mapping[int, int],
    environment: Mapping[str, str],
    path: Path,
    context: ImportContext,
) -> tuple[dict[int, int], str]:
    """Rank of each main process, and from where: as told, by the environment, by the file's name, at last by their
    order of devices."""
    if set(main) <= set(told):
        return {key: told[key] for key in main}, "file"
    if len(main) == 1:
        for name in _RANKS:
            if environment.get(name, "").isdecimal():
                return {main[0]: int(environment[name])}, "file"
        named = _NAMED_RANK.findall(path.stem)
        context.say("nsys.ranks", "by the file's name" if named else "assumed: the file tells none")
        return {main[0]: int(named[-1]) if named else 0}, "name" if named else "assumed"
    node = next((int(environment[n]) for n in _NODES if environment.get(n, "").isdecimal()), 0)
    ordered = sorted(main, key=lambda key: (devices.get(key, -1), key & 0xFFFFFF))
    context.say("nsys.ranks", "assumed: by the order of devices")
    return {key: node * len(ordered) + at for at, key in enumerate(ordered)}, "assumed"
