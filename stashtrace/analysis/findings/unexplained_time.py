"""What the step thread did in time that no phase and no stall explains: blocking calls, calls on files, annotations.

A call counts only where its time has no other kind: a sleep while a batch is made is part of ``data``.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import errno

import numpy as np

from stashtrace._native import intervals
from stashtrace.analysis.findings.claim_rows import Evidence
from stashtrace.analysis.findings.rules.compilations import compilations_in
from stashtrace.analysis.intervals import TimeSet
from stashtrace.analysis.stalls.batch_waits import batch_waits
from stashtrace.analysis.stalls.budget import rank_layers
from stashtrace.analysis.stalls.cpu_waits import cpu_waits
from stashtrace.analysis.stalls.on_host import compilation_time
from stashtrace.analysis.stalls.rows_by_thread import READ_OPS, TraceIndex
from stashtrace.analysis.steps.steps import in_steps, ranks_and_steps
from stashtrace.analysis.steps.threads import StepThread
from stashtrace.analysis.stragglers.file_calls import file_calls as calls_on_files
from stashtrace.schema.groupby import GroupBy, RowsBy, order_by
from stashtrace.schema.kinds import NAMED_SPANS, OPERATORS, IoFlag, IoOp, SpanKind, StallKind, WaitOp
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
#: A file or an annotation is named if it takes at least this share of a time; so many at most.
_WORTH_NAMING, _FEW = 0.05, 2
#: How a connect fails where nobody answers at the other end.
_REFUSED = (errno.ECONNREFUSED, errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)
#: An annotation that holds this share of the steps is around all of them.
_WHOLE_RATIO = 0.95


def blocked_calls(trace: Trace, stalls: Table, steps: Table, *, least_ratio: float) -> dict[int, dict[str, int]]:
    """Return the nanoseconds of ``other`` by the call that blocked the step thread, for ranks where ``other`` matters.

    ``trace``: needs steps. ``stalls``, ``steps``: rows of ``stalls``, and counted rows of ``steps``. ``least_ratio``:
    ranks whose ``other`` is a smaller share of their steps are left out. Returns rank -> ``asleep``, ``gil``, ``join``,
    ``poll``, ``lock``, ``file``, ``socket``, ``pipe``, ``io``, or ``cpu`` (runnable without one) -> time in the steps.
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
    io, own = index.io, index.io_by_track.rows(track)
    of_flag = {_SOCKET: IoFlag.SOCKET, _PIPE: IoFlag.PIPE}
    of_io = {name: io.is_blocked[own] & ((io.flags[own] & int(flag)) != 0) for name, flag in of_flag.items()}
    for name, chosen in ((_FILE, io.is_storage[own]), *of_io.items(), (_IO, io.is_blocked[own])):
        time = free & TimeSet.of(io.begin[own[chosen]], io.end[own[chosen]])
        blocked_ns[name] = time.total_ns
        free -= time
    return {name: ns for name, ns in blocked_ns.items() if ns > 0}


def time_of_kind(trace: Trace, rank: int, steps: Table, kind: StallKind) -> tuple[StepThread, TimeSet] | None:
    """Return a rank's step thread, and its time of one kind in the given steps; None for a rank without steps."""
    index = TraceIndex(trace)
    for thread, own in ranks_and_steps(index.origin, steps):
        if thread.rank == rank:
            return thread, rank_layers(index, thread).time_of(kind) & TimeSet.of_rows(own)
    return None


def file_calls(
    trace: Trace, thread: StepThread, time: TimeSet, steps_count: int, *, reads: bool = False
) -> list[Evidence]:
    """Return the files whose calls by the step thread took most of a time, each with the call that took longest there.

    ``time``: time to explain. ``steps_count``: steps that it lies in. ``reads``: whether only calls that read count.
    """
    table = calls_on_files(TraceIndex(trace), thread)
    if reads:
        table = table.take(np.isin(table.op, READ_OPS))
    spent = time.within(table.begin, table.end)
    table, spent = table.take(spent > 0), spent[spent > 0]
    if not len(spent):
        return []
    files, calls = GroupBy(table.path), GroupBy(table.path, table.op)
    of_file, of_call = files.sum(spent), calls.sum(spent)
    rows = []
    for place in order_by(-of_file, files.values)[:_FEW].tolist():
        if of_file[place] < _WORTH_NAMING * time.total_ns:
            continue
        mine = np.flatnonzero(calls.keys[0] == files.values[place])
        longest = mine[of_call[mine].argmax()]
        rows.append(
            Evidence(
                "file_time",
                "io",
                rank=thread.rank,
                amount_ns=float(of_file[place]) / max(steps_count, 1),
                part_ratio=float(of_file[place]) / max(time.total_ns, 1),
                items_count=len(files),
                kind=IoOp(calls.keys[1][longest]).name.lower(),
                name=trace.text(int(files.values[place])),
            )
        )
    return rows


def reads_outside_batches(trace: Trace, rank: int, steps: Table, apart: TimeSet) -> tuple[StepThread, TimeSet] | None:
    """Return when a rank's step thread was blocked in reads outside of batch waits and ``apart``, None if never."""
    known = time_of_kind(trace, rank, steps, StallKind.FETCH)
    if known is None:
        return None
    thread, time = known
    time -= batch_waits(TraceIndex(trace), thread).time | apart
    return (thread, time) if len(time) else None


def python_evidence(trace: Trace, rank: int, steps: Table, steps_count: int, apart: TimeSet) -> list[Evidence]:
    """Return what is known of a rank's time in the loop's own code: annotations, files, garbage collection.

    Time of ``apart`` is left out.
    """
    known = time_of_kind(trace, rank, steps, StallKind.PYTHON)
    if known is None or not len(known[1] - apart):
        return []
    rows = code_in(trace, known[0], known[1] - apart, steps, steps_count)
    if sum(row.part_ratio for row in rows) < 0.5:
        rows.append(Evidence("python_unknown", "stalls", rank=rank))
    return rows


def code_in(trace: Trace, thread: StepThread, time: TimeSet, steps: Table, steps_count: int) -> list[Evidence]:
    """Return what is known of the code that a step thread ran in a time: compilations, annotations, files, garbage."""
    compiling = compilation_time(TraceIndex(trace), thread)
    rows = compilations_in(trace, thread, compiling & time, steps, time.total_ns)
    rows += annotations_in(trace, thread, time, steps, compiling) + file_calls(trace, thread, time, steps_count)
    spans = trace.spans
    collecting = (spans["track_id"] == thread.track_id) & (spans["kind_code"] == SpanKind.GC)
    collected = ((TimeSet.of_rows(spans, collecting) & time) - compiling).total_ns
    if collected >= _WORTH_NAMING * time.total_ns:
        rows.append(
            Evidence(
                "python_collects",
                "spans",
                rank=thread.rank,
                amount_ns=collected / max(steps_count, 1),
                part_ratio=collected / max(time.total_ns, 1),
            )
        )
    return rows


def dead_connections(trace: Trace, rank: int, steps: Table) -> list[Evidence]:
    """Return the address that a rank and its workers connect to most often in its steps, and get nothing from.

    Of a call that does not wait for the answer (a time-out was set), and of which the program does not learn later that
    it was refused, only the silence is known. Where less than every other step connects, it explains no time of a step.
    """
    own = steps.take(steps["rank"] == rank)
    tracks = trace.tracks["track_id"][
        np.isin(trace.tracks["process_id"], trace.processes["process_id"][trace.processes["rank"] == rank])
    ]
    made, refused, alive = dict[int, int](), dict[int, int](), set[int]()
    for io in trace.io_pieces():
        rows = io.take(np.isin(io["track_id"], tracks) & ((io["io_flags"] & int(IoFlag.SOCKET)) != 0))
        connects = np.isin(rows["op_code"], (IoOp.CONNECT, IoOp.CONNECT_ERROR))
        moves = ~connects & (rows["result_bytes"] > 0)
        alive.update(rows["path_code"][moves].tolist())
        calls = rows.take(connects & (rows["result_bytes"] < 0))
        calls = calls.take(TimeSet.of_rows(own).within(calls["begin_ns"], calls["begin_ns"] + 1) > 0)
        for call in calls.rows():
            path = call["path_code"]
            made[path] = made.get(path, 0) + (call["op_code"] == IoOp.CONNECT)
            refused[path] = refused.get(path, 0) + (-call["result_bytes"] in _REFUSED)
    dead = {path: count for path, count in made.items() if path not in alive and 2 * count >= len(own)}
    if not dead:
        return []
    path = max(dead, key=lambda one: (dead[one], -one))
    kind = "refused" if 2 * refused[path] > dead[path] else "silent"
    name = trace.text(path)
    return [
        Evidence("dead_connection", "io", rank=rank, items_count=dead[path], of_count=len(own), kind=kind, name=name)
    ]


def annotations_in(
    trace: Trace, thread: StepThread, time: TimeSet, steps: Table, apart: TimeSet | None = None
) -> list[Evidence]:
    """Return the annotations, and timed calls, of the step thread that hold most of a time, inner ones first.

    One around whole steps says nothing of any part of them, and is left out. ``apart``: time that has names already.
    """
    own = TimeSet.of_rows(steps, steps["rank"] == thread.rank)
    steps_count = int(np.count_nonzero(steps["rank"] == thread.rank))
    spans = trace.spans
    mine = (spans["track_id"] == thread.track_id) & np.isin(spans["kind_code"], NAMED_SPANS)
    table = spans.take(mine & (spans["name_code"] != trace.strings.find(OPERATORS)))
    rows: list[Evidence] = []
    names = GroupBy(table["name_code"])
    within, shortest = dict[int, TimeSet](), dict[int, int]()
    for code, rows_of_name in names.items():
        spent = TimeSet.of_rows(table, rows_of_name)
        if (spent & own).total_ns < _WHOLE_RATIO * own.total_ns:
            within[code] = spent & time
            shortest[code] = int(np.median((table["end_ns"] - table["begin_ns"])[rows_of_name]))
    left = time if apart is None else time - apart
    for code in sorted(within, key=lambda code: shortest[code]):
        spent = within[code] & left
        left -= spent
        if spent.total_ns >= _WORTH_NAMING * time.total_ns:
            rows.append(
                Evidence(
                    "python_in",
                    "spans",
                    rank=thread.rank,
                    amount_ns=spent.total_ns / max(steps_count, 1),
                    part_ratio=spent.total_ns / max(time.total_ns, 1),
                    name=trace.text(code),
                )
            )
    return sorted(rows, key=lambda row: -row.amount_ns)[:_FEW]
