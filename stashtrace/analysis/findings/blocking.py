"""Calls in which the step thread was blocked while its time was ``other``, so that a verdict can name them.

A call counts only where its time has no other kind: a sleep while a batch is made is part of ``data``.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np

from stashtrace._native import intervals
from stashtrace.analysis.intervals import TimeSet
from stashtrace.analysis.stalls.budget import rank_layers
from stashtrace.analysis.stalls.index import TraceIndex
from stashtrace.analysis.steps.steps import in_steps, ranks_and_steps
from stashtrace.analysis.steps.threads import StepThread
from stashtrace.schema.groupby import RowsBy
from stashtrace.schema.kinds import StallKind, WaitOp
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
_IO = "io"
#: Calls that explain why the thread was blocked; the others show only where.
KNOWN_CALLS = ("asleep", "gil")


def blocked_calls(trace: Trace, stalls: Table, steps: Table, *, least_ratio: float) -> dict[int, dict[str, int]]:
    """Return the nanoseconds of ``other`` by the call that blocked the step thread, for ranks where ``other`` matters.

    Parameters
    ----------
    trace : Trace
        Needs steps.
    stalls, steps : Table
        Rows of ``stalls``, and counted rows of ``steps``.
    least_ratio : float
        Ranks whose ``other`` is a smaller share of their steps are left out.

    Returns
    -------
    dict
        Rank -> ``asleep``, ``gil``, ``join``, ``poll``, ``lock`` or ``io`` -> time in the steps.
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
    layers = rank_layers(index, thread).layers
    begin, end, layer = intervals.paint([(x.time.begin, x.time.end) for x in layers])
    named = np.isin(layer, [i for i, x in enumerate(layers) if x.kind != StallKind.OTHER])
    steps = steps.take(steps["end_ns"] > steps["begin_ns"])
    free = TimeSet.of(steps["begin_ns"], steps["end_ns"]) - TimeSet.of(begin[named], end[named])
    waits, rows = index.trace.waits, index.waits.rows(thread.track_id)
    code, begin, end = (waits[name][rows] for name in ("wait_code", "begin_ns", "end_ns"))
    blocked_ns: dict[str, int] = {}
    for name, codes in _CALLS.items():
        chosen = np.isin(code, codes)
        time = free & TimeSet.of(begin[chosen], end[chosen])
        blocked_ns[name] = time.total_ns
        free -= time
    io, own = index.io, index.io_by_track.rows(thread.track_id)
    own = own[io.is_blocked[own]]
    blocked_ns[_IO] = (free & TimeSet.of(io.begin[own], io.end[own])).total_ns
    return {name: ns for name, ns in blocked_ns.items() if ns > 0}
