"""Layers of a rank whose device work is known completely (method ``kernels``): deep mode, or imported.

    any stream   ##compute##      ###            ####      first all that computes
    NCCL             =====collective=====                  the rest of its time: straggler, network, interconnect
    copies                     ~~~~~~                      the rest of their time: h2d
    nothing                            ...       ...       idle: why the host gave the device nothing to do

Applies to steps whose kernels were recorded. Idle time says nothing of the host before the first work that another tool
recorded, where the next work had been launched already, and in a recording that was cut.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.collectives.matching import is_imported
from stashtrace.analysis.intervals import Int64, TimeSet
from stashtrace.analysis.stalls.batch_waits import batch_layers, batch_waits
from stashtrace.analysis.stalls.collective_blocking import blocked_on_collectives, collective_layers
from stashtrace.analysis.stalls.device_exposure import ANY_STREAM, DeviceView
from stashtrace.analysis.stalls.device_links import link_layers, queued_time
from stashtrace.analysis.stalls.on_host import standing_of
from stashtrace.analysis.stalls.rows_by_thread import Layer, RankLayers, TraceIndex
from stashtrace.analysis.steps.threads import StepThread
from stashtrace.schema.kinds import BLOCKING_CALLS, CollectiveSource, CopyDirection, DeviceWork, StallKind
from stashtrace.schema.trace import DEVICE_WORK_NOT_READ, HOST_NOT_RECORDED

#: Possible causes of an idle device if its host was not recorded.
_UNSEEN = (StallKind.STRAGGLER,)
#: What a device may have done that has no record: before its recording began, behind a cut, or in a form that is not
#: read.
_UNKNOWN = (StallKind.COMPUTE, StallKind.LAUNCH)
#: Between two works that are queued a device pauses for less than this; a longer pause waits for something.
_PAUSE_NS = 20_000


def kernel_layers(index: TraceIndex, thread: StepThread) -> RankLayers:
    """Return layers of the work that ran, in the order of the kinds, then of the reasons why nothing ran."""
    kernels, rows = index.trace.kernels, index.kernels.rows(thread.process_id)
    begin, end = kernels["begin_ns"][rows], kernels["end_ns"][rows]
    work, direction = kernels["work_code"][rows], kernels["copy_code"][rows]
    is_copy = work == DeviceWork.COPY
    inside = is_copy & (direction == CopyDirection.DEVICE_TO_DEVICE)
    peer = is_copy & (direction == CopyDirection.PEER)

    def when(chosen: npt.NDArray[np.bool_]) -> TimeSet:
        return TimeSet.of(begin[chosen], end[chosen])

    computing = when(np.isin(work, (DeviceWork.KERNEL, DeviceWork.MEMSET)) | inside)
    opaque = when(work == DeviceWork.GRAPH) - computing
    talks = work == DeviceWork.COMMUNICATION
    streams = kernels["track_id"][rows]
    # Only time that nothing else hides; the order within a stream decides which rank a piece waited for.
    exposed = {int(s): when(talks & (streams == s)) - computing - opaque for s in np.unique(streams[talks])}
    divided = link_layers(index, thread, _once(exposed), running=True)
    layers = [Layer(StallKind.COMPUTE, computing), Layer(StallKind.COMPUTE, opaque, (StallKind.OTHER,))]
    layers += divided.layers
    layers.append(Layer(StallKind.INTERCONNECT, when(peer)))
    layers.append(Layer(StallKind.H2D, when(is_copy & ~inside & ~peer)))
    working = TimeSet.united(*(x.time for x in layers))

    layers += _host_collectives(index, thread)
    layers += batch_layers(index, thread, batch_waits(index, thread))
    stood = standing_of(index, thread)
    layers.append(Layer(StallKind.CHECKPOINT, stood.saving))
    layers.append(Layer(StallKind.FETCH, stood.reading))
    idle = working.gaps(thread.begin_ns, thread.end_ns)
    unseen, (pauses, ahead) = _before_first(index, thread, begin), _launched_before(index, thread, idle)
    if thread.process_id in index.cut_processes:
        layers.append(Layer(StallKind.OTHER, idle, _UNKNOWN))
    elif _saw_host(index, thread):
        layers.append(Layer(StallKind.OTHER, unseen, _UNKNOWN))
        layers.append(Layer(StallKind.OTHER, ahead))
        layers.append(Layer(StallKind.SYNC, _in_blocking_calls(index, thread, idle)))
        layers.append(Layer(StallKind.OTHER, stood.foreign | stood.local))
        layers.append(Layer(StallKind.LAUNCH, _launch_unknown(index, thread, idle), (StallKind.OTHER,)))
        layers.append(Layer(StallKind.LAUNCH, idle))
    else:
        layers.append(Layer(StallKind.OTHER, idle, _UNSEEN))
    if index.has_fact(DEVICE_WORK_NOT_READ, thread.process_id):
        layers = [
            x if x.kind == StallKind.COMPUTE else Layer(x.kind, x.time, (*x.alternatives, *_UNKNOWN)) for x in layers
        ]
    queued = queued_time(index, DeviceView(index, thread))
    beside = {
        "graph_opaque": opaque,
        "queued": queued,
        "estimated": divided.estimated,
        "before_first": unseen,
        "launched_before": ahead,
        "pauses": pauses,
        "host_elsewhere": _host_elsewhere(index, thread, idle),
    }
    return RankLayers("kernels", layers, divided.late, beside=beside)


def _before_first(index: TraceIndex, thread: StepThread, begin: Int64) -> TimeSet:
    """Return the time before the first work that another tool recorded: the device may have had work from before."""
    if not len(begin) or not is_imported(index.trace):
        return TimeSet.empty()
    return TimeSet.of([thread.begin_ns], [int(begin.min())])


def _launched_before(index: TraceIndex, thread: StepThread, idle: TimeSet) -> tuple[TimeSet, TimeSet]:
    """Return idle stretches before whose begin the next work had been launched, the short ones and the long ones.

    The device did not wait for its host in them.
    """
    next_work = _next_work(index, thread, idle)
    returned = np.append(index.trace.kernels["return_ns"], -1)[next_work]
    known = (next_work >= 0) & (returned >= 0) & (returned <= idle.begin)
    is_long = idle.end - idle.begin > _PAUSE_NS
    short, long = (TimeSet(idle.begin[chosen], idle.end[chosen]) for chosen in (known & ~is_long, known & is_long))
    return short, long


def _launch_unknown(index: TraceIndex, thread: StepThread, idle: TimeSet) -> TimeSet:
    """Return idle stretches before work of which another tool recorded no launch: whether it came late is not known."""
    if not is_imported(index.trace):
        return TimeSet.empty()
    next_work = _next_work(index, thread, idle)
    unknown = (next_work >= 0) & (np.append(index.trace.kernels["launch_ns"], -1)[next_work] < 0)
    return TimeSet(idle.begin[unknown], idle.end[unknown])


def _next_work(index: TraceIndex, thread: StepThread, idle: TimeSet) -> Int64:
    """Return the row of the work that ends each idle stretch; -1 behind the last work."""
    kernels, rows = index.trace.kernels, index.kernels.rows(thread.process_id)
    rows = rows[np.argsort(kernels["begin_ns"][rows], kind="stable")]
    return np.append(rows, -1)[np.searchsorted(kernels["begin_ns"][rows], idle.end)]


def _saw_host(index: TraceIndex, thread: StepThread) -> bool:
    """Return True if the host was recorded; else an idle device has no known cause."""
    return not index.has_fact(HOST_NOT_RECORDED, thread.process_id)


def _once(exposed: dict[int, TimeSet]) -> dict[int, TimeSet]:
    """Assign each instant to one stream: the first one, if several communicate at once."""
    taken, out = TimeSet.empty(), {}
    for stream, time in exposed.items():
        out[stream] = time - taken
        taken = taken | time
    return out or {ANY_STREAM: TimeSet.empty()}


def _in_blocking_calls(index: TraceIndex, thread: StepThread, idle: TimeSet) -> TimeSet:
    """Return idle stretches that begin inside a blocking call, which drained the device; of others, the part in one.

    Within a stretch only calls of the thread count that launches the work at its end: it came late because of them.
    """
    calls, rows = index.trace.device_calls, index.device_calls.rows(thread.process_id)
    rows = rows[np.isin(calls["call_code"][rows], BLOCKING_CALLS)]
    blocking = TimeSet.of(calls["begin_ns"][rows], calls["end_ns"][rows] + 1)
    ran_dry = blocking.within(idle.begin, idle.begin + 1) > 0
    inside = [TimeSet(idle.begin[ran_dry], idle.end[ran_dry])]
    launcher = np.append(index.trace.kernels["thread_track_id"], -1)[_next_work(index, thread, idle)]
    for track in np.unique(launcher[~ran_dry & (launcher >= 0)]).tolist():
        own = rows[calls["track_id"][rows] == track]
        late = ~ran_dry & (launcher == track)
        inside.append(TimeSet.of_rows(calls, own) & TimeSet(idle.begin[late], idle.end[late]))
    return TimeSet.united(*inside)


def _host_elsewhere(index: TraceIndex, thread: StepThread, idle: TimeSet) -> TimeSet:
    """Return the idle time in which no thread is in a blocking call and the next work is not launched yet."""
    launched = np.append(index.trace.kernels["launch_ns"], -1)[_next_work(index, thread, idle)]
    known = launched >= 0
    before = TimeSet.of(idle.begin[known], np.clip(launched, idle.begin, idle.end)[known])
    calls, rows = index.trace.device_calls, index.device_calls.rows(thread.process_id)
    return before - TimeSet.of_rows(calls, rows[np.isin(calls["call_code"][rows], BLOCKING_CALLS)])


def _host_collectives(index: TraceIndex, thread: StepThread) -> list[Layer]:
    """Return layers of operations on the host (gloo beside NCCL): if they block the step thread, the device idles."""
    table, given = index.trace.collectives, index.on_devices.given
    backends = index.trace.groups
    nccl = backends["group_hash"][backends["backend_code"] == index.trace.strings.find("nccl")]
    on_host = ~given & (table["source_code"] == CollectiveSource.HOST) & ~np.isin(table["group_hash"], nccl)
    if not (on_host & (table["process_id"] == thread.process_id)).any():
        return []
    keys: Int64 = table["collective_key"][on_host]
    waits = index.trace.collective_waits
    narrow = TraceIndex(
        index.trace.replace(
            collectives=table.take(on_host), collective_waits=waits.take(np.isin(waits["collective_key"], keys))
        )
    )
    loads = batch_waits(narrow, thread)
    layers, *_ = collective_layers(narrow, blocked_on_collectives(narrow, thread, loads.time))
    return layers
