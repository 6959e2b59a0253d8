"""Imports reports of Nsight Systems that were exported to SQLite (``nsys export --type sqlite``).

    CUPTI_ACTIVITY_KIND_*   kernels, device_calls, streams, devices         (device)
    NVTX_EVENTS             spans, step marks, phases, waits for batches    (nvtx)
    both                    collectives, groups                             (collectives)
    OSRT_API                waits, io

Versions of the schema differ in tables and columns; a missing one costs only the rows it would hold.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from stashtrace.errors import ImporterError
from stashtrace.importers.import_context import TRANSFERS, ImportContext, Int64, per_distinct
from stashtrace.importers.nsys import device, nvtx
from stashtrace.importers.nsys.collectives import add_collectives
from stashtrace.importers.nsys.database import MAGIC, Database, Processes, opened
from stashtrace.importers.nsys.device import Work
from stashtrace.importers.source import Source
from stashtrace.schema.kinds import IoFlag, IoOp, SpanKind, WaitOp
from stashtrace.schema.trace import WHOLE_RECORDING

_LIBRARY_CALLS = "OSRT_API"
#: Tables that are read.
_READ = (
    device.KERNELS,
    device.COPIES,
    device.SETS,
    device.GRAPHS,
    device.WAITS,
    device.CALLS,
    nvtx.EVENTS,
    _LIBRARY_CALLS,
)
#: Tables with measurements that are not read, and are reported.
_UNREAD = ("GPU_METRICS", "NET_NIC_METRIC", "CUDA_GPU_MEMORY_USAGE_EVENTS", "MPI_COLLECTIVES_EVENTS", "MPI_P2P_EVENTS")
#: Major and minor number of the newest tested schema.
_NEWEST_SCHEMA = (3, 25)


def sniff(head: bytes, path: Path) -> bool:
    """Return True for SQLite files; ``load`` finds out if it is an export of Nsight Systems."""
    return head.startswith(MAGIC)


def load(source: Source, context: ImportContext) -> None:
    """Read one export."""
    with opened(source, _READ) as database:
        present = [name for name in _READ if database.has(name)]
        if not present and not database.has("TARGET_INFO_SESSION_START_TIME"):
            raise ImporterError(
                f"{source.path} is an SQLite file, but no export of Nsight Systems",
                hint="nsys export --type sqlite REPORT.nsys-rep",
            )
        if not any(database.rows_count(table) for table in present):
            raise ImporterError(
                f"{source.path} holds no kernel, call or range",
                hint="record with nsys profile --trace=cuda,nvtx,osrt, and export without --tables",
            )
        processes = Processes(database, source.path, context)
        calls = device.read_calls(database, processes)
        work = device.add_work(database, calls, processes, context)
        device.add_calls(calls, processes, context)
        ranges, with_steps = nvtx.add_ranges(database, processes, context)
        _whole_recording(work, processes, with_steps, context)
        add_collectives(ranges, work, processes, source.path.name, context)
        add_library_calls(database, processes, context)
        _report(database, source.path.name, context)


def _whole_recording(work: Work, processes: Processes, with_steps: set[int], context: ImportContext) -> None:
    """Add step marks around all the work of each process whose ranges name no step."""
    for process, extent in work.extents.items():
        if process in with_steps:
            continue
        process_id = int(processes.ids[process])
        marks = np.array(extent, dtype=np.int64)
        context.add(
            "spans",
            begin_ns=marks,
            end_ns=marks,
            track_id=context.tracks.thread(process_id, processes.pids[process] & 0xFFFFFF),
            kind_code=int(SpanKind.STEP_MARK),
            name_code=context.codes([WHOLE_RECORDING, "end of the recording"]),
        )
        context.say("nsys.steps", "no NVTX range names a step: the recording counts as one", process_id)


def _report(database: Database, name: str, context: ImportContext) -> None:
    for table in dict.fromkeys(database.damaged):
        context.lose("table_damaged", advice=f"{name} is cut or damaged: {table} was read up to the damage")
    exported = database.pairs("META_DATA_EXPORT") or database.pairs("EXPORT_META_DATA")
    context.say("nsys.version", exported.get("EXPORT_PRODUCT_VERSION", "unknown"))
    schema = exported.get("EXPORT_SCHEMA_VERSION", "unknown")
    context.say("nsys.schema", schema)
    numbers = re.match(r"(\d{1,6})\.(\d{1,6})", schema)
    if numbers and (int(numbers[1]), int(numbers[2])) > _NEWEST_SCHEMA:
        context.doubt_newer(f"{name} has schema {schema}", ".".join(map(str, _NEWEST_SCHEMA)), "columns")
    unread = [table for table in _UNREAD if database.rows_count(table)]
    if unread:
        context.say("nsys.not_read", ", ".join(unread))


_WAIT_FAMILIES = {
    WaitOp.COND_WAIT: "pthread_cond_wait pthread_cond_timedwait",
    WaitOp.MUTEX_LOCK: "pthread_mutex_lock pthread_rwlock_rdlock pthread_rwlock_wrlock",
    WaitOp.SEMAPHORE: "sem_wait sem_timedwait sem_clockwait",
    WaitOp.FUTEX: "futex",
    WaitOp.POLL: "poll ppoll select pselect epoll_wait epoll_pwait",
    WaitOp.SLEEP: "sleep usleep nanosleep clock_nanosleep",
    WaitOp.JOIN: "pthread_join waitpid",
}
_WAITS = {name: op for op, names in _WAIT_FAMILIES.items() for name in names.split()}
_IO = {op.name.lower(): op for op in IoOp} | {
    "openat": IoOp.OPEN,
    "fopen": IoOp.FOPEN,
    "fdatasync": IoOp.FSYNC,
    "recvfrom": IoOp.RECV,
    "recvmsg": IoOp.RECV,
    "sendto": IoOp.SEND,
    "sendmsg": IoOp.SEND,
    "fstat": IoOp.STAT,
    "lstat": IoOp.STAT,
    "preadv2": IoOp.PREADV,
    "pwritev2": IoOp.PWRITEV,
    "ftruncate": IoOp.TRUNCATE,
}
_STDIO = (IoOp.FOPEN, IoOp.FCLOSE, IoOp.FREAD, IoOp.FWRITE, IoOp.FSEEK, IoOp.FFLUSH)
_SOCKETS = (IoOp.RECV, IoOp.SEND, IoOp.CONNECT)
_MOVES = (*TRANSFERS, IoOp.RECV, IoOp.SEND)


def add_library_calls(database: Database, processes: Processes, context: ImportContext) -> None:
    """Fill ``waits`` and ``io``."""
    rows = database.integers(_LIBRARY_CALLS, start=0, end=0, globalTid=0, nameId=0, returnValue=0)
    names = {n: re.sub(r"^_+|(64|_2)$", "", text) for n, text in database.texts(rows["nameId"]).items()}
    process, tid = processes.of(rows["globalTid"]), rows["globalTid"] & 0xFFFFFF
    wait = per_distinct(rows["nameId"], lambda n: _WAITS.get(names.get(n, ""), 0))
    op = per_distinct(rows["nameId"], lambda n: _IO.get(names.get(n, ""), 0))
    begin = rows["start"] + processes.base_ns
    end = np.maximum(rows["end"], rows["start"]) + processes.base_ns
    chosen = np.flatnonzero(wait)
    context.add(
        "waits",
        begin_ns=begin[chosen],
        end_ns=end[chosen],
        track_id=processes.threads(process[chosen], tid[chosen]),
        process_id=processes.ids[process[chosen]],
        wait_code=wait[chosen],
        gil_track_id=np.full(len(chosen), -1),
    )
    chosen = np.flatnonzero(op)
    track = processes.threads(process[chosen], tid[chosen])
    chosen = chosen[np.lexsort((begin[chosen], track))]
    context.add(
        "io",
        begin_ns=begin[chosen],
        end_ns=end[chosen],
        track_id=np.sort(track),
        op_code=op[chosen],
        io_flags=_flags(op[chosen]),
        offset_bytes=-1,
        result_bytes=_results(op[chosen], rows["returnValue"][chosen]),
    )


def _results(op: Int64, returned: Int64) -> Int64:
    """Return the bytes that a call moved; of others 0, or -1 for a failure."""
    return np.where(np.isin(op, _MOVES), np.maximum(returned, -1), np.clip(returned, -1, 0))


def _flags(op: Int64) -> Int64:
    flags = np.where(np.isin(op, _STDIO), int(IoFlag.STDIO), 0) | np.where(np.isin(op, _SOCKETS), int(IoFlag.SOCKET), 0)
    return np.asarray(flags, dtype=np.int64)
