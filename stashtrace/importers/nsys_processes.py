"""Processes of an Nsight Systems export: who they are, which rank, on which clock. Used by the rooms of ``nsys``."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import numpy as np

from stashtrace.importers.context import ImportContext
from stashtrace.importers.nsys_database import Database, Int64
from stashtrace.model.kinds import ProcessRole

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
