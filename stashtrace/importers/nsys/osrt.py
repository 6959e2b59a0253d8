"""Calls into the C library that Nsight Systems traced: waits and I/O.

It knows how long a call took and what it returned, but not which file it was for.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re

import numpy as np

from stashtrace.importers.context import ImportContext
from stashtrace.importers.nsys.database import Database, Int64, Processes
from stashtrace.schema.kinds import IoFlag, IoOp, WaitOp

CALLS = "OSRT_API"
_WAITS = {
    "pthread_cond_wait": WaitOp.COND_WAIT,
    "pthread_cond_timedwait": WaitOp.COND_WAIT,
    "pthread_mutex_lock": WaitOp.MUTEX_LOCK,
    "pthread_rwlock_rdlock": WaitOp.MUTEX_LOCK,
    "pthread_rwlock_wrlock": WaitOp.MUTEX_LOCK,
    "sem_wait": WaitOp.SEMAPHORE,
    "sem_timedwait": WaitOp.SEMAPHORE,
    "sem_clockwait": WaitOp.SEMAPHORE,
    "futex": WaitOp.FUTEX,
    "poll": WaitOp.POLL,
    "ppoll": WaitOp.POLL,
    "select": WaitOp.POLL,
    "pselect": WaitOp.POLL,
    "epoll_wait": WaitOp.POLL,
    "epoll_pwait": WaitOp.POLL,
    "sleep": WaitOp.SLEEP,
    "usleep": WaitOp.SLEEP,
    "nanosleep": WaitOp.SLEEP,
    "clock_nanosleep": WaitOp.SLEEP,
    "pthread_join": WaitOp.JOIN,
    "waitpid": WaitOp.JOIN,
}
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
_MOVES = (
    IoOp.READ,
    IoOp.WRITE,
    IoOp.PREAD,
    IoOp.PWRITE,
    IoOp.READV,
    IoOp.WRITEV,
    IoOp.PREADV,
    IoOp.PWRITEV,
    IoOp.SENDFILE,
    IoOp.RECV,
    IoOp.SEND,
)


def add_library_calls(database: Database, processes: Processes, context: ImportContext) -> None:
    """Fill ``waits`` and ``io``."""
    rows = database.integers(CALLS, start=0, end=0, globalTid=0, nameId=0, returnValue=0)
    distinct, inverse = np.unique(rows["nameId"], return_inverse=True)
    if not len(distinct):
        return
    texts = database.texts(rows["nameId"])
    names = [re.sub(r"^_+|(64|_2)$", "", texts.get(n, "")) for n in distinct.tolist()]
    process, tid = processes.of(rows["globalTid"]), rows["globalTid"] & 0xFFFFFF
    wait = np.array([int(_WAITS.get(name, 0)) for name in names], dtype=np.int64)[inverse]
    op = np.array([int(_IO.get(name, 0)) for name in names], dtype=np.int64)[inverse]
    begin = rows["start"] + processes.base_ns
    end = np.maximum(rows["end"], rows["start"]) + processes.base_ns
    chosen = np.flatnonzero(wait)
    if len(chosen):
        context.add(
            "waits",
            begin_ns=begin[chosen],
            end_ns=end[chosen],
            track_id=processes.threads(process[chosen], tid[chosen]),
            process_id=processes.ids[process[chosen]],
            wait_code=wait[chosen],
        )
    chosen = np.flatnonzero(op)
    if len(chosen):
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
    """Bytes that a call moved; of others 0, or the failure that it returned."""
    return np.where(np.isin(op, _MOVES), np.maximum(returned, -1), np.clip(returned, -1, 0))


def _flags(op: Int64) -> Int64:
    flags = np.where(np.isin(op, _STDIO), int(IoFlag.STDIO), 0) | np.where(np.isin(op, _SOCKETS), int(IoFlag.SOCKET), 0)
    return np.asarray(flags, dtype=np.int64)
