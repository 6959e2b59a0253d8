"""Calls into the C library that Nsight Systems traced: waits and I/O.

An export has the duration and the result of a call, but not the file.
"""

from __future__ import annotations

import re

import numpy as np

from stashtrace.importers.import_context import TRANSFERS, ImportContext, Int64, per_distinct
from stashtrace.importers.nsys.database import Database, Processes
from stashtrace.schema.kinds import IoFlag, IoOp, WaitOp

CALLS = "OSRT_API"
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
    rows = database.integers(CALLS, start=0, end=0, globalTid=0, nameId=0, returnValue=0)
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
