"""The calls that blocked a step thread in time that no phase and no other stall explains.

A call counts only where its time has no other kind: a sleep while a batch is made is part of ``data``.
"""

from __future__ import annotations

import numpy as np

from stashtrace.analysis.intervals import TimeSet
from stashtrace.analysis.stalls.budget import rank_layers
from stashtrace.analysis.stalls.cpu_waits import cpu_waits
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.analysis.steps.steps import in_steps, ranks_and_steps
from stashtrace.analysis.steps.threads import StepThread
from stashtrace.schema.groupby import RowsBy
from stashtrace.schema.kinds import IoFlag, StallKind, WaitOp
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

#: Waits by what they wait for. Calls of files, pipes and sockets count where no recorded wait covers them.
_CALLS = {
    "asleep": (WaitOp.SLEEP,),
    "gil": (WaitOp.GIL,),
    "join": (WaitOp.JOIN,),
    "poll": (WaitOp.POLL,),
    "lock": (WaitOp.COND_WAIT, WaitOp.MUTEX_LOCK, WaitOp.FUTEX, WaitOp.SEMAPHORE),
}
#: Name of a wait -> its key of ``_CALLS``.
CALL_OF_WAIT = {op.name.lower(): name for name, ops in _CALLS.items() for op in ops}
#: Calls of files, and of what else has a descriptor.
_FILE, _SOCKET, _PIPE, _IO = "file", "socket", "pipe", "io"
#: Calls that explain why the thread was blocked; the others show only where.
KNOWN_CALLS = ("asleep", "gil", _FILE, _SOCKET, _PIPE)


def blocked_calls(trace: Trace, stalls: Table, steps: Table, *, least_ratio: float) -> dict[int, dict[str, int]]:
    """Return the nanoseconds of ``other`` by the call that blocked the step thread, for ranks where ``other`` matters.

    ``trace``: needs steps. ``stalls``, ``steps``: rows of ``stalls``, and counted rows of ``steps``. ``least_ratio``:
    ranks whose ``other`` is a smaller share of their steps are left out. Returns rank -> ``asleep``, ``gil``, ``join``,
    ``poll``, ``lock``, ``file``, ``socket``, ``pipe``, ``io``, or ``cpu`` (runnable without one) -> time in the
    steps.
    """
    others = (stalls["kind"] == StallKind.OTHER.name.lower()) & in_steps(stalls, steps)
    other_ns, by_rank = stalls["stall_ns"][others], RowsBy(stalls["rank"][others])
    length_ns, steps_by_rank = steps["end_ns"] - steps["begin_ns"], RowsBy(steps["rank"])
    wanted = {
        rank
        for rank in steps_by_rank.values.tolist()
        if int(other_ns[by_rank.rows(rank)].sum()) >= least_ratio * int(length_ns[steps_by_rank.rows(rank)].sum())
    }
    if not wanted:
        return {}
    index = TraceIndex(trace)
    ranks = ranks_and_steps(index.origin, steps)
    return {thread.rank: _of_rank(index, thread, own) for thread, own in ranks if thread.rank in wanted}


def _of_rank(index: TraceIndex, thread: StepThread, steps: Table) -> dict[str, int]:
    steps = steps.take(steps["end_ns"] > steps["begin_ns"])
    named = [kind for kind in StallKind if kind != StallKind.OTHER]
    free = TimeSet.of_rows(steps) - rank_layers(index, thread).time_of(*named)
    blocked_ns = blocked_in(index, thread.track_id, free)
    queued_ns = cpu_waits(index, thread, steps).get("other", 0)
    queued_ns = min(queued_ns, free.total_ns - sum(blocked_ns.values()))
    return blocked_ns | ({"cpu": queued_ns} if queued_ns > 0 else {})


def blocked_in(index: TraceIndex, track: int, free: TimeSet) -> dict[str, int]:
    """Return the nanoseconds of a time by the call that blocked a thread; see :func:`blocked_calls`."""
    waits, rows = index.trace.waits, index.waits.rows(track)
    code, begin, end = (waits[name][rows] for name in ("wait_code", "begin_ns", "end_ns"))
    blocked_ns: dict[str, int] = {}
    for name, codes in _CALLS.items():
        chosen = np.isin(code, codes)
        time = free & TimeSet.of(begin[chosen], end[chosen])
        blocked_ns[name] = time.total_ns
        free -= time
    io, calls = index.io, index.io_by_track.rows(track)
    of_flag = {_SOCKET: IoFlag.SOCKET, _PIPE: IoFlag.PIPE}
    of_io = {name: io.is_blocked[calls] & ((io.flags[calls] & int(flag)) != 0) for name, flag in of_flag.items()}
    for name, chosen in ((_FILE, io.is_storage[calls]), *of_io.items(), (_IO, io.is_blocked[calls])):
        time = free & TimeSet.of(io.begin[calls[chosen]], io.end[calls[chosen]])
        blocked_ns[name] = time.total_ns
        free -= time
    return {name: ns for name, ns in blocked_ns.items() if ns > 0}
