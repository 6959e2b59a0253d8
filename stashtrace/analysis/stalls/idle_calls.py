"""idle_calls: in which calls of the driver or runtime the host stood while its device had nothing to do.

    stalls       ######compute######|---- sync ----|-- launch --|####
    main thread            [ hipFree .............. ] [launch]
    idle_ns                          |--------------|  |------|

A call outside the stall explains nothing of it, however long the call is; so only the overlap counts.

    stream_synchronize                        a wait of the program's own, as by .item()
    stream_synchronize before unmap_memory    the wait of an allocator: the next call of the thread unmaps memory
"""

from __future__ import annotations

import numpy as np

from stashtrace.analysis.intervals import Int64, TimeSet, int64
from stashtrace.analysis.stalls.budget import rank_layers
from stashtrace.analysis.stalls.rows_by_thread import RankLayers, TraceIndex
from stashtrace.analysis.steps.steps import counted_steps, ranks_and_steps
from stashtrace.analysis.steps.threads import StepThread
from stashtrace.schema import columns as col
from stashtrace.schema.groupby import GroupBy, order_by
from stashtrace.schema.kinds import DeviceCall, StallKind
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace, cached_on_trace

IDLE_CALLS = col.schema(
    "idle_calls",
    "Calls of the driver or runtime during which a device stood idle, over the counted steps; longest first",
    col.RANK,
    col.word("call", "name of the function, as hipFree; DeviceCall in lower case where only that is known", width=48),
    col.Column("call_code", "i8", "", "", of=DeviceCall),
    col.refers("track_id", "tracks.track_id", "the thread that called, -1 if unknown", missing=-1, detail=5),
    col.number("calls_count", "calls that touch the counted steps"),
    col.ns("inside_ns", "time that the thread stood in them, inside the counted steps"),
    col.ns("idle_ns", "of it, time that stalls gives to sync or launch"),
    col.ns("possible_ns", "of it, time that timing events cannot distinguish from such a stall"),
    col.ns("drained_ns", "stretches of such time, certain or possible, that began inside: the device ran dry"),
    col.real("share_ratio", "idle_ns of the rank's sync and launch time"),
)

_HOST_KINDS = (StallKind.SYNC, StallKind.LAUNCH)
#: cuMemUnmap does not wait for work in flight, so an allocator does: torch's unmapHandles() for its stream or device.
_WAITS = (DeviceCall.STREAM_SYNCHRONIZE, DeviceCall.DEVICE_SYNCHRONIZE)
_CALLS = {int(call): call.name.lower() for call in DeviceCall}


def idle_calls(trace: Trace, *, warmup: bool = False) -> Table:
    """Overlap of calls with the time that ``stalls`` gives to ``sync`` and ``launch``, by rank, function and thread.

    Calls that synchronise, copy, allocate, free, load modules or launch work count, whatever ``stalls`` made of them.
    Of one function and thread no instant counts twice; two threads can stand in calls at once.

    ``trace``: needs steps; a rank without a device has no rows. ``warmup``: whether the warm-up steps count. Raises
    MissingDataError if no rank has steps. Columns: table ``idle_calls`` of ``docs/reference/tables.md``.
    """
    index = TraceIndex(trace)
    counted = counted_steps(index.steps, warmup=warmup)
    tables = []
    for thread, _ in ranks_and_steps(index.origin, index.steps):
        steps = counted.take(counted["rank"] == thread.rank)
        tables.append(_of_rank(index, thread, TimeSet.of_rows(steps)))
    return Table.concat(IDLE_CALLS, tables)


def _of_rank(index: TraceIndex, thread: StepThread, window: TimeSet) -> Table:
    begin, end, code, name, track = _calls(index, thread)
    made = rank_layers(index, thread)
    # A call may have drained the device before the first counted step, or have returned as that began.
    dry = _perhaps_idle(made)
    dry_ns = window.within(dry.begin, dry.end)
    drains = TimeSet.of(dry.begin[dry_ns > 0], dry.begin[dry_ns > 0] + 1).within(begin, end + 1) > 0
    touching = window.within(begin, end) > 0
    inside = touching | drains
    begin, end, code, name, track = (column[inside] for column in (begin, end, code, name, track))
    touching = touching[inside]
    if not len(begin):
        return Table.empty(IDLE_CALLS)
    idle = made.time_of(*_HOST_KINDS) & window
    possible = (made.marked.get("host_paced", TimeSet.empty()) & window) - idle
    callers = GroupBy(code, name, track)
    codes, names, tracks = callers.keys
    spent = np.zeros((4, len(callers)), dtype=np.int64)
    for at, rows in enumerate(callers):
        time = TimeSet.of(begin[rows], end[rows]) & window
        drained = TimeSet.of(begin[rows], end[rows] + 1).within(dry.begin, dry.begin + 1) > 0
        spent[:3, at] = [part.total_ns for part in (time, time & idle, time & possible)]
        spent[3, at] = int(dry_ns[drained].sum())
    known = call_names(index.trace)[1]
    texts = [
        known[name] if name >= 0 else DeviceCall(code).name.lower()
        for code, name in zip(codes.tolist(), names.tolist(), strict=True)
    ]
    order = order_by(-spent[1], -spent[2], -spent[0], np.array(texts))
    return Table(
        IDLE_CALLS,
        {
            "rank": np.full(len(callers), thread.rank),
            "call": np.array(texts, dtype="U48")[order],
            "call_code": codes[order],
            "track_id": tracks[order],
            "calls_count": callers.count(touching)[order],
            "inside_ns": spent[0][order],
            "idle_ns": spent[1][order],
            "possible_ns": spent[2][order],
            "drained_ns": spent[3][order],
            "share_ratio": spent[1][order] / max(idle.total_ns, 1),
        },
    )


def _perhaps_idle(made: RankLayers) -> TimeSet:
    """Return the time in which a device waits, or may wait, for its host."""
    time = made.painted()
    may = np.array([bool({x.kind, *x.alternatives} & set(_HOST_KINDS)) for x in made.layers], dtype=bool)[time.tag]
    return TimeSet.of(time.begin[may], time.end[may])


def _calls(index: TraceIndex, thread: StepThread) -> tuple[Int64, Int64, Int64, Int64, Int64]:
    """Return begin, end, DeviceCall, place of name and thread of a rank's calls; launches by what they launched."""
    calls, rows = index.trace.device_calls, index.device_calls.rows(thread.process_id)
    columns = [calls[c][rows] for c in ("begin_ns", "end_ns", "call_code")]
    columns += [call_names(index.trace)[0][rows], calls["track_id"][rows]]
    kernels, work = index.trace.kernels, index.kernels.rows(thread.process_id)
    work = work[(kernels["launch_ns"][work] >= 0) & (kernels["return_ns"][work] > kernels["launch_ns"][work])]
    launch, returned, track = (kernels[c][work] for c in ("launch_ns", "return_ns", "thread_track_id"))
    # The call of a copy or a graph, and in exports of Nsight each launch, has a row in device_calls already.
    new = ~np.isin(launch, columns[0])
    first = GroupBy(launch, track).first
    kept = first[new[first]]
    launches = (
        launch[kept],
        returned[kept],
        np.full(len(kept), int(DeviceCall.LAUNCH)),
        np.full(len(kept), -1),
        track[kept],
    )
    begin, end, code, name, tracks = (int64(np.concatenate(pair)) for pair in zip(columns, launches, strict=True))
    return begin, end, code, name, tracks


@cached_on_trace
def call_names(trace: Trace) -> tuple[Int64, list[str]]:
    """Return for each row of ``device_calls`` the place of its name, and the names."""
    calls = trace.device_calls
    by_name = GroupBy(calls["name_code"], calls["call_code"], _before_unmapping(trace).astype(np.int64))
    names = []
    for name, code, before in zip(*(key.tolist() for key in by_name.keys), strict=True):
        text = trace.text(name) or _CALLS.get(code, "unknown")
        names.append(f"{text} before {_CALLS[DeviceCall.UNMAP_MEMORY]}" if before else text)
    return by_name.number, names


def _before_unmapping(trace: Trace) -> np.ndarray:
    """Return which rows of ``device_calls`` wait for work, and are followed on their thread by a call that unmaps."""
    calls = trace.device_calls
    order = order_by(calls["process_id"], calls["track_id"], calls["begin_ns"])
    process, track, code = (calls[name][order] for name in ("process_id", "track_id", "call_code"))
    same = (process[1:] == process[:-1]) & (track[1:] == track[:-1]) & (track[1:] >= 0)
    found = np.full(len(calls), False)
    found[order[:-1]] = same & (code[1:] == DeviceCall.UNMAP_MEMORY) & np.isin(code[:-1], _WAITS)
    return found
