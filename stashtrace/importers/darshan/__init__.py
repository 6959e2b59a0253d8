"""Darshan logs, read with PyDarshan: calls with times where DXT was on, sums per file and process where it was not.

    DXT_POSIX            -> io, one row a read or write, with real times
    DXT_MPIIO            -> spans (the same bytes pass POSIX below, where io has them)
    POSIX, STDIO         -> io_totals: what DXT does not have of them, and as spans from the first to the last call
    MPI-IO               -> io_totals, where the log has no POSIX
    DFS, DAOS            -> a loss: their calls pass none of these

The page ``docs/importers/darshan.md`` says what cannot be known.
"""

from __future__ import annotations

import importlib
import os
import re
import struct
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace.errors import ImporterError
from stashtrace.importers.darshan.child import Item, Job, Segments, read_apart
from stashtrace.importers.import_context import ImportContext, Int64, blocked_by_duration, per_distinct
from stashtrace.importers.import_limits import HIGHEST, counted
from stashtrace.importers.import_limits import nanoseconds as as_ns
from stashtrace.importers.source import Source
from stashtrace.schema.groupby import Floats
from stashtrace.schema.kinds import IoFlag, IoOp, ProcessRole, Severity, SpanKind
from stashtrace.schema.trace import BLOCKED_FROM, PROCESSES

#: Follows the version text in the header, in the byte order of the machine that wrote it.
_MAGIC = 6567223
_MAGICS = (struct.pack("<q", _MAGIC), struct.pack(">q", _MAGIC))
#: File systems behind a network.
_NETWORK = frozenset(
    ("lustre", "nfs", "nfs4", "gpfs", "beegfs", "ceph", "cephfs", "dvs", "panfs", "wekafs")
    + ("pvfs2", "orangefs", "cifs", "smb3", "glusterfs")
)
#: Modules that are read, and those whose bytes pass one that is read, or that record no I/O.
_READ = frozenset(("DXT_POSIX", "DXT_MPIIO", "POSIX", "STDIO", "MPI-IO"))
_SEEN_BELOW = frozenset(
    ("H5F", "H5D", "PNETCDF_FILE", "PNETCDF_VAR", "HEATMAP", "LUSTRE", "BG/Q", "MDHIM", "APMPI", "APXC")
)
_Columns = dict[str, npt.NDArray[Any]]
#: Pieces of calls that are collected before they are added.
_PIECES = 1 << 12
_PID_IN_NAME = re.compile(r"_id\d+-(\d+)_")


def sniff(head: bytes, path: Path) -> bool:
    """Return True for Darshan logs."""
    return head[8:16] in _MAGICS


def load(source: Source, context: ImportContext) -> None:
    """Read one log."""
    backend = _backend(source)
    log, complaints = _Log(source, context), list[str]()
    with source.plain_file(".darshan") as path:
        for item in read_apart(backend, os.fspath(path), complaints):
            log.take(item)
    log.finish()
    for line in dict.fromkeys(complaints):
        context.lose("log_damaged", advice=f"{source.path.name}: {line}")
    if not log.has_records:
        modules = ", ".join(log.head.modules) if log.head else ""
        holds = f", only {modules}" if modules else ""
        reason = complaints[0] if complaints else f"it holds no record of POSIX, STDIO or MPI-IO{holds}"
        raise ImporterError(
            f"{source.path} cannot be used: {reason}", hint="darshan-parser --total shows what it holds"
        )


def _backend(source: Source) -> Any:
    try:
        return importlib.import_module("darshan.backend.cffi_backend")
    except (ImportError, OSError, RuntimeError) as error:
        raise ImporterError(
            f"{source.path} is a Darshan log, and PyDarshan is not installed ({error})",
            hint="pip install 'stashtrace[darshan]'",
        ) from error


class _Log:
    """One log while it is read."""

    def __init__(self, source: Source, context: ImportContext) -> None:
        self.source, self.context = source, context
        self.head: Job | None = None
        self.has_records = False
        self.start_ns = 0
        self.is_on_network: Callable[[str], bool] = lambda path: False
        self.hosts: dict[int, str] = {}
        self.moved = Moved()
        self._calls: list[_Columns] = []
        self._spans: list[_Columns] = []
        self._sums: dict[str, list[tuple[int, int, Sums]]] = {}
        self._files: dict[int, tuple[int, int]] = {}
        self._process_ids: dict[int, int] = {}

    def take(self, item: Item) -> None:
        """Add an item of the log."""
        if isinstance(item, Job):
            self._open(item)
            return
        self.has_records = True
        if isinstance(item, Segments):
            self._take_segments(item)
        else:
            sums = sums_of(item.module, item.record, self.moved)
            if sums is not None:
                row = (self._process(int(item.record["rank"])), int(item.record["id"]), sums)
                self._sums.setdefault(item.module, []).append(row)

    def finish(self) -> None:
        """Add the collected rows, and report what is missing."""
        self._flush()
        if self.has_records:
            self._name_job()
        for module, sums in self._sums.items():
            self._add_sums(module, sums)
        info, loss, moved = Severity.INFO, Severity.DATA_LOSS, self.moved
        untimed = "Darshan kept sums of them; DXT_ENABLE_IO_TRACE=1 records each"
        for reason, count, severity, advice in (
            ("calls_without_times", moved.untimed_count, info, untimed),
            ("negative_times", moved.negative_count, loss, "records with negative times, taken as unknown"),
            ("impossible_numbers", moved.impossible_count, loss, "numbers that do not fit 62 bits, taken as unknown"),
        ):
            if count:
                self.context.lose(reason, count, severity=severity, advice=f"{self.source.path.name}: {advice}")

    def _name_job(self) -> None:
        """Name the job, and the run if it had several processes; a process alone may have its pid for a job."""
        if self.head is None:
            return
        job, count = str(self.head.job["jobid"]), int(self.head.job["nprocs"])
        in_name = _PID_IN_NAME.search(self.source.path.name)
        pid = in_name[1] if in_name else ""
        if count > 1:
            self.context.name_job(
                f"job {job}", f"job {job}, process {pid}" if pid else f"job {job}, {self.start_ns} ns"
            )
        elif pid and job != pid:
            self.context.name_job(f"job {job}")

    def _open(self, head: Job) -> None:
        self.head = head
        self.is_on_network = _network_test(head.mounts)
        seconds = head.job.get("start_time_sec", head.job.get("start_time", 0))
        start_ns = int(seconds) * 1_000_000_000 + int(head.job.get("start_time_nsec", 0))
        if 0 <= start_ns < HIGHEST:
            self.start_ns = start_ns
        else:
            self.moved.impossible_count += 1
        unread = [name for name in head.modules if name not in _READ | _SEEN_BELOW]
        if unread:
            calls = " and ".join(unread)
            advice = (
                f"{self.source.path.name}: what the job did through {calls} is not read, so this I/O is missing here"
            )
            self.context.doubt("module_not_read", advice)
        for name, module in head.modules.items():
            if module.get("partial_flag"):
                advice = f"{self.source.path.name}: {name} ran out of memory; files are missing"
                self.context.lose("module_incomplete", advice=advice)
        facts = {
            "command_line": head.command.strip(),
            "darshan_modules": ", ".join(f"{name} {module['ver']}" for name, module in head.modules.items()),
            "darshan_job": str(head.job["jobid"]),
            PROCESSES: str(head.job["nprocs"]),
        }
        for key, value in facts.items():
            if value:
                self.context.say(key, value)

    @property
    def _names(self) -> Mapping[int, str]:
        return self.head.names if self.head else {}

    def _process(self, rank: int) -> int:
        """Return the process of a rank; -1 stands for all ranks, over which Darshan sums some records."""
        if rank not in self._process_ids:
            self._process_ids[rank] = self._new_process(rank)
            self.context.say(*BLOCKED_FROM, self._process_ids[rank])
        return self._process_ids[rank]

    def _new_process(self, rank: int) -> int:
        in_name = _PID_IN_NAME.search(self.source.path.name)
        count = int(self.head.job["nprocs"]) if self.head else 0
        unranked = rank < 0 or count == 1  # a process that ran without MPI does not know its rank
        name = f"all {count} ranks" if rank < 0 else self.source.path.name if unranked else ""
        return self.context.process(
            pid=int(in_name[1]) if in_name else 0,
            rank=-1 if unranked else rank,
            host=self._host(rank),
            role=ProcessRole.OTHER if unranked else ProcessRole.RANK,
            name=name,
        )

    def _host(self, rank: int) -> str:
        """Return the host of a rank as DXT recorded it; of all ranks, their host if it is only one."""
        hosts = set(self.hosts.values()) if rank < 0 else ()
        return next(iter(hosts)) if len(hosts) == 1 else self.hosts.get(rank, "")

    def _file(self, record_id: int) -> tuple[int, int]:
        """Return the code of a file's path, and the flags of its calls."""
        if record_id not in self._files:
            path = self._names.get(record_id, "")
            flags = int(IoFlag.NETWORK_FS) if self.is_on_network(path) else 0
            self._files[record_id] = (self.context.code(path), flags)
        return self._files[record_id]

    def _ns(self, seconds: Floats) -> Int64:
        """Convert seconds since the job's start to ns since 1970; impossible ones become the job's start."""
        since = np.asarray(seconds, dtype=np.float64) * 1e9
        fits = np.abs(since) < HIGHEST - self.start_ns  # false for what is not a number
        self.moved.impossible_count += int(np.count_nonzero(~fits))
        return self.start_ns + np.rint(np.where(fits, since, 0.0)).astype(np.int64)

    def _interval(self, rows: _Columns) -> tuple[Int64, Int64]:
        """Return begin and end of calls of DXT in ns; the end may be before the begin."""
        return self._ns(rows["start_time"]), self._ns(rows["end_time"])

    # DXT ------------------------------------------------------------------------------------------

    def _take_segments(self, item: Segments) -> None:
        self.hosts.setdefault(item.rank, item.host)
        track = self.context.tracks.thread(self._process(item.rank), 0)
        path_code, flags = self._file(item.record_id)
        is_posix = item.module == "DXT_POSIX"
        for op, columns in ((IoOp.READ, item.reads), (IoOp.WRITE, item.writes)):
            if not columns:
                continue
            length, seconds = columns["length"], columns["end_time"] - columns["start_time"]
            if is_posix:
                self.moved.add(item.record_id, item.rank, op, len(length), int(length.sum()), float(seconds.sum()))
            facts = {"track_id": track, "path_code": path_code, "op_code": int(op), "io_flags": flags}
            rows = {**columns, **{name: np.full(len(length), value) for name, value in facts.items()}}
            (self._calls if is_posix else self._spans).append(rows)
        if len(self._calls) + len(self._spans) >= _PIECES:
            self._flush()

    def _flush(self) -> None:
        if self._calls:
            self._add_calls(_join(self._calls))
        if self._spans:
            self._add_spans(_join(self._spans))
        self._calls, self._spans = [], []

    def _add_calls(self, rows: _Columns) -> None:
        begin, end = self._interval(rows)
        self.context.add(
            "io",
            begin_ns=begin,
            end_ns=np.maximum(begin, end),
            track_id=rows["track_id"],
            path_code=rows["path_code"],
            op_code=rows["op_code"],
            io_flags=rows["io_flags"] | blocked_by_duration(end - begin, rows["length"]),
            offset_bytes=rows["offset"],
            result_bytes=rows["length"],
        )

    def _add_spans(self, rows: _Columns) -> None:
        begin, end = self._interval(rows)
        codes = self.context.codes(("MPI read", "MPI write"))
        self.context.add(
            "spans",
            begin_ns=begin,
            end_ns=np.maximum(begin, end),
            track_id=rows["track_id"],
            kind_code=int(SpanKind.USER),
            name_code=codes[(rows["op_code"] == int(IoOp.WRITE)).astype(np.int64)],
            value=rows["length"],
        )

    # Counters -------------------------------------------------------------------------------------

    def _add_sums(self, module: str, rows: list[tuple[int, int, Sums]]) -> None:
        processes = np.array([process for process, _, _ in rows], dtype=np.int64)
        paths = np.array([self._file(record_id)[0] for _, record_id, _ in rows], dtype=np.int64)
        columns = {f.name: np.array([getattr(sums, f.name) for _, _, sums in rows]) for f in fields(Sums)}
        begin, end, of_reads, of_writes = (columns.pop(n) for n in ("first_s", "last_s", "reads_s", "writes_s"))
        known = (begin > 0) & (end >= begin)
        self.context.add(
            "io_totals",
            begin_ns=np.where(known, self._ns(begin), -1),
            end_ns=np.where(known, self._ns(end), -1),
            process_id=processes,
            path_code=paths,
            layer_code=self.context.code(module.lower()),
            **columns,
        )
        moved = [columns[f"{call}_bytes"] * (columns[f"{call}s_count"] > 0) for call in ("read", "write")]
        for word, (first, last), moved_bytes in zip(("reads", "writes"), (of_reads.T, of_writes.T), moved, strict=True):
            # What lies between the first and the last call on a file is not known.
            shown = np.flatnonzero((moved_bytes > 0) & (last >= first) & (first > 0))
            files = [self._names.get(rows[at][1], "a file") for at in shown.tolist()]
            self.context.add(
                "spans",
                begin_ns=self._ns(first[shown]),
                end_ns=self._ns(last[shown]),
                track_id=per_distinct(processes[shown], lambda process: self.context.tracks.thread(process, 0)),
                kind_code=int(SpanKind.USER),
                name_code=self.context.codes([f"{word} of {name}" for name in files]),
                value=moved_bytes[shown],
            )


def _join(pieces: list[_Columns]) -> _Columns:
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}


def _network_test(mounts: list[tuple[str, str]]) -> Callable[[str], bool]:
    """Return a test for paths on a network file system; the longest mount point that leads to a path decides."""
    longest = sorted(mounts, key=lambda mount: -len(mount[0]))

    def is_on_network(path: str) -> bool:
        for point, kind in longest:
            if path == point or path.startswith(point.rstrip("/") + "/"):
                return kind in _NETWORK
        return False

    return is_on_network


# A record of Darshan's counters, less the calls that DXT has.

#: Counters of each module that count opens, reads and writes; the others have the same name in all modules.
_COUNTERS: dict[str, dict[str, tuple[str, ...]]] = {
    "POSIX": {"opens": ("OPENS",), "reads": ("READS",), "writes": ("WRITES",)},
    "STDIO": {"opens": ("OPENS",), "reads": ("READS",), "writes": ("WRITES",)},
    "MPI-IO": {
        "opens": ("INDEP_OPENS", "COLL_OPENS"),
        "reads": ("INDEP_READS", "COLL_READS", "SPLIT_READS", "NB_READS"),
        "writes": ("INDEP_WRITES", "COLL_WRITES", "SPLIT_WRITES", "NB_WRITES"),
    },
}


@dataclass(slots=True)
class _Timed:
    count: int = 0
    bytes: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class Moved:
    """Calls of DXT on each file, by rank and (rank -1) of all ranks; counts of calls without times and of damage."""

    by_file: dict[tuple[int, int, IoOp], _Timed] = field(default_factory=lambda: defaultdict(_Timed))
    untimed_count: int = 0
    negative_count: int = 0
    impossible_count: int = 0

    def add(self, record_id: int, rank: int, op: IoOp, count: int, moved_bytes: int, seconds: float) -> None:
        """Add calls of DXT on a file."""
        for key in {rank, -1}:
            timed = self.by_file[record_id, key, op]
            timed.count += count
            timed.bytes += moved_bytes
            timed.seconds += seconds

    def of(self, record_id: int, rank: int, op: IoOp) -> _Timed:
        """Return what DXT has of a record of counters."""
        return self.by_file.get((record_id, rank, op), _Timed())


@dataclass(frozen=True, slots=True)
class Sums:
    """Columns of ``io_totals``; first and last moment of all calls, of the reads and of the writes."""

    opens_count: int
    reads_count: int
    writes_count: int
    read_bytes: int
    write_bytes: int
    read_ns: int
    write_ns: int
    other_ns: int
    consecutive_reads_count: int
    slowest_process_ns: int
    first_s: float
    last_s: float
    reads_s: tuple[float, float]
    writes_s: tuple[float, float]


def _known_count(read: Callable[[Any], int], value: Any, moved: Moved) -> int:
    """Return a counter, or 0 if no file and no job can have this number."""
    try:
        return read(value)
    except (ValueError, OverflowError):
        moved.impossible_count += 1
        return 0


def _seconds(value: Any, moved: Moved) -> float:
    """Return a time, 0 if no job can have it; the caller treats negative ones."""
    return float(value) if _known_count(as_ns, value, moved) or not value else 0.0


def sums_of(module: str, record: Mapping[str, Any], moved: Moved) -> Sums | None:
    """Return the counters of one record less what DXT has of it; None if nothing is left."""
    prefix = module.replace("-", "") + "_"
    counters = {n.removeprefix(prefix): _known_count(counted, v, moved) for n, v in record["counters"].items()}
    times = {n.removeprefix(prefix + "F_"): _seconds(v, moved) for n, v in record["fcounters"].items()}
    names = _COUNTERS[module]

    def count(calls: str) -> int:
        total = sum(max(counters.get(name, 0), 0) for name in names[calls])
        return _known_count(counted, total, moved)

    def nanoseconds(name: str, less: float = 0.0) -> int:
        seconds = times.get(name, 0.0)
        if seconds < 0:
            moved.negative_count += 1
            return 0
        return round(max(seconds - less, 0.0) * 1e9)

    def hull(call: str) -> tuple[float, float]:
        return times.get(f"{call}_START_TIMESTAMP", 0.0), times.get(f"{call}_END_TIMESTAMP", 0.0)

    record_id, rank = int(record["id"]), int(record["rank"])
    nothing = _Timed()
    read, written = (moved.of(record_id, rank, op) if module == "POSIX" else nothing for op in (IoOp.READ, IoOp.WRITE))
    reads, writes = max(count("reads") - read.count, 0), max(count("writes") - written.count, 0)
    read_bytes = max(counters.get("BYTES_READ", 0) - read.bytes, 0)
    write_bytes = max(counters.get("BYTES_WRITTEN", 0) - written.bytes, 0)
    read_ns = nanoseconds("READ_TIME", read.seconds) if reads else 0
    write_ns = nanoseconds("WRITE_TIME", written.seconds) if writes else 0
    other_ns = nanoseconds("META_TIME")
    if not (count("opens") or reads or writes or other_ns):
        return None
    moved.untimed_count += reads + writes
    calls = ["OPEN", *(["READ"] if reads else []), *(["WRITE"] if writes else []), "CLOSE"]
    stamps = list(map(hull, calls))
    firsts = [first for first, _ in stamps if first > 0]
    # Where DXT has a part of a record, the counter of consecutive reads does not fit the rest.
    consecutive = counters.get("CONSEC_READS", -1) if not read.count else -1
    slowest = nanoseconds("SLOWEST_RANK_TIME") if rank < 0 and times.get("SLOWEST_RANK_TIME", 0.0) > 0 else -1
    return Sums(
        opens_count=count("opens"),
        reads_count=reads,
        writes_count=writes,
        read_bytes=read_bytes,
        write_bytes=write_bytes,
        read_ns=read_ns,
        write_ns=write_ns,
        other_ns=other_ns,
        consecutive_reads_count=consecutive,
        slowest_process_ns=slowest,
        first_s=min(firsts, default=0.0),
        last_s=max((last for _, last in stamps), default=0.0),
        reads_s=hull("READ"),
        writes_s=hull("WRITE"),
    )
