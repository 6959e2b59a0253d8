"""Layers of a rank whose device was recorded: by its kernels, or by timing events alone.

Method ``kernels``, deep mode or imported: for steps whose kernels are known completely.

    any stream   ##compute##      ###            ####      first all that computes
    NCCL             =====collective=====                  the rest of its time: straggler, network, interconnect
    copies                     ~~~~~~                      the rest of their time: h2d
    nothing                            ...       ...       idle: why the host gave the device nothing to do

Idle time says nothing of the host before the first work that another tool recorded, where the next work had been
launched already, and in a recording that was cut.

Method ``brackets``, the mode that can stay on:

    seen waiting     straggler, network, interconnect, h2d, fetch, prep, handoff,    every compute stream stood still
                     other (a function of the job that the stream runs on the host)
    seen loaded      compute                            an event stood in a stream behind unfinished work
    neither          compute, bounded                   the host was not ahead: some of it may be launch, sync, ...

Stalls that brackets cannot see are alternatives of ``compute``, never the point value of another kind. Where the step
thread is known to have stood still as well (a checkpoint, a sleep), that kind is the point value and ``compute`` its
alternative.
"""

from __future__ import annotations

import numpy as np

from stashtrace.analysis.collectives.matching import is_imported
from stashtrace.analysis.intervals import Bools, Int64, TimeSet
from stashtrace.analysis.stalls import device_links
from stashtrace.analysis.stalls.batch_waits import batch_layers, batch_waits
from stashtrace.analysis.stalls.collective_blocking import blocked_on_collectives, collective_layers
from stashtrace.analysis.stalls.on_host import standing_of
from stashtrace.analysis.stalls.rows_by_thread import Layer, RankLayers, TraceIndex, cut_processes
from stashtrace.analysis.steps.threads import StepThread
from stashtrace.schema.kinds import (
    BLOCKING_CALLS,
    IN_COLLECTIVES,
    LOADING_KINDS,
    Awaited,
    Bracket,
    CollectiveSource,
    CopyDirection,
    DeviceCall,
    DeviceWork,
    StallKind,
)
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

    def when(chosen: Bools) -> TimeSet:
        return TimeSet.of(begin[chosen], end[chosen])

    computing = when(np.isin(work, (DeviceWork.KERNEL, DeviceWork.MEMSET)) | inside)
    opaque = when(work == DeviceWork.GRAPH) - computing
    talks = work == DeviceWork.COMMUNICATION
    streams = kernels["track_id"][rows]
    # Only time that nothing else hides; the order within a stream decides which rank a piece waited for.
    exposed = {int(s): when(talks & (streams == s)) - computing - opaque for s in np.unique(streams[talks])}
    links, late, estimated = device_links.link_layers(index, thread, _once(exposed), running=True)
    layers = [Layer(StallKind.COMPUTE, computing), Layer(StallKind.COMPUTE, opaque, (StallKind.OTHER,))]
    layers += links
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
    if thread.process_id in cut_processes(index.origin):
        layers.append(Layer(StallKind.OTHER, idle, _UNKNOWN))
    elif not index.has_fact(HOST_NOT_RECORDED, thread.process_id):
        layers.append(Layer(StallKind.OTHER, unseen, _UNKNOWN))
        layers.append(Layer(StallKind.OTHER, ahead))
        layers.append(Layer(StallKind.SYNC, _in_blocking_calls(index, thread, idle)))
        layers.append(Layer(StallKind.OTHER, stood.blocked))
        layers.append(Layer(StallKind.LAUNCH, _launch_unknown(index, thread, idle), (StallKind.OTHER,)))
        layers.append(Layer(StallKind.LAUNCH, idle))
    else:
        layers.append(Layer(StallKind.OTHER, idle, _UNSEEN))
    if index.has_fact(DEVICE_WORK_NOT_READ, thread.process_id):
        layers = [
            x if x.kind == StallKind.COMPUTE else Layer(x.kind, x.time, (*x.alternatives, *_UNKNOWN)) for x in layers
        ]
    queued = device_links.queued_time(index, device_links.DeviceView(index, thread))
    marked = {
        "graph_opaque": opaque,
        "queued": queued,
        "estimated": estimated,
        "before_first": unseen,
        "launched_before": ahead,
        "pauses": pauses,
        "host_elsewhere": _host_elsewhere(index, thread, idle),
    }
    return RankLayers("kernels", layers, late, marked=marked)


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


def _once(exposed: dict[int, TimeSet]) -> dict[int, TimeSet]:
    """Assign each instant to one stream: the first one, if several communicate at once."""
    taken, out = TimeSet.empty(), {}
    for stream, time in exposed.items():
        out[stream] = time - taken
        taken = taken | time
    return out or {device_links.ANY_STREAM: TimeSet.empty()}


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
        chosen = rows[calls["track_id"][rows] == track]
        late = ~ran_dry & (launcher == track)
        inside.append(TimeSet.of_rows(calls, chosen) & TimeSet(idle.begin[late], idle.end[late]))
    return TimeSet.united(*inside)


def _host_elsewhere(index: TraceIndex, thread: StepThread, idle: TimeSet) -> TimeSet:
    """Return the idle time in which no thread is in a blocking call and the next work is not launched yet."""
    launched = np.append(index.trace.kernels["launch_ns"], -1)[_next_work(index, thread, idle)]
    known = launched >= 0
    before = TimeSet.of(idle.begin[known], np.clip(launched, idle.begin, idle.end)[known])
    calls, rows = index.trace.device_calls, index.device_calls.rows(thread.process_id)
    return before - TimeSet.of_rows(calls, rows[np.isin(calls["call_code"][rows], BLOCKING_CALLS)])


def _host_collectives(index: TraceIndex, thread: StepThread) -> list[Layer]:
    """Return layers of operations on the host (gloo next to NCCL): if they block the step thread, the device idles."""
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


_COMPUTE = StallKind.COMPUTE
#: Kinds that an untimed bracket may have stood for: its codes, the codes of the awaited work, the kinds.
_KINDS_OF: tuple[tuple[tuple[int, ...], tuple[int, ...], tuple[StallKind, ...]], ...] = (
    ((Bracket.BATCH_WAIT,), (), LOADING_KINDS),
    ((Bracket.COPY,), (), (StallKind.H2D,)),
    ((Bracket.COLLECTIVE,), (), IN_COLLECTIVES),
    ((Bracket.STREAM_WAIT,), (Awaited.COPY,), (StallKind.H2D,)),
    ((Bracket.STREAM_WAIT,), (Awaited.COLLECTIVE,), IN_COLLECTIVES),
    ((Bracket.HOST_FUNCTION,), (), (StallKind.OTHER,)),
    ((Bracket.STREAM_WAIT,), (Awaited.HOST_FUNCTION,), (StallKind.OTHER,)),
)
#: What a compute stream was exposed to -> kinds of the stall that it then was.
_KINDS_OF_EXPOSED: dict[int, tuple[StallKind, ...]] = {
    device_links.LINK: IN_COLLECTIVES,
    device_links.PEER: IN_COLLECTIVES[2:],
    device_links.COPY: (StallKind.H2D,),
    device_links.BATCH: LOADING_KINDS,
    device_links.HOST: (StallKind.OTHER,),
}
_Doubtful = tuple[TimeSet, tuple[StallKind, ...]]
#: Calls that return when their stream has no work left.
_DRAINS_STREAM = (DeviceCall.STREAM_SYNCHRONIZE, DeviceCall.COPY)


def bracket_layers(index: TraceIndex, thread: StepThread) -> RankLayers:
    """Return layers of exposed intervals in the order of the kinds, then of what the device did or may have done."""
    view = device_links.DeviceView(index, thread)
    whole = TimeSet.of([thread.begin_ns], [thread.end_ns])
    every = _all_waiting(view, whole)
    seen = list(view.exposed.values())
    streams = sorted({stream for x in seen for stream in x.links})
    links = {stream: TimeSet.united(*(x.link(stream) for x in seen)) for stream in streams}
    busy = {stream: view.busy_on(stream) for stream in streams}
    exposed = {stream: time & every for stream, time in links.items()}
    layers, late, estimated = device_links.link_layers(index, thread, exposed, busy=busy)
    layers.append(Layer(StallKind.INTERCONNECT, _of(seen, device_links.PEER) & every))
    layers.append(Layer(StallKind.H2D, _of(seen, device_links.COPY) & every))
    layers += _loading(index, thread, _of(seen, device_links.BATCH) & every)
    layers.append(Layer(StallKind.OTHER, _of(seen, device_links.HOST) & every))
    stalled = TimeSet.united(*(layer.time for layer in layers))

    # If one compute stream waited and another was not seen to wait, a stall is possible unless the other surely worked.
    thinned: list[_Doubtful] = [(view.unobserved(codes, awaited), kinds) for codes, awaited, kinds in _KINDS_OF]
    all_or_one = every | (view.working - TimeSet.united(*(time for time, _ in thinned)))
    any_link = TimeSet.united(*links.values())
    waited = {**{what: _of(seen, what) for what in _KINDS_OF_EXPOSED}, device_links.LINK: any_link}
    partly: list[_Doubtful] = [(waited[what] - all_or_one, kinds) for what, kinds in _KINDS_OF_EXPOSED.items()]
    unsure: list[_Doubtful] = [(_unsure(seen, what), kinds) for what, kinds in _KINDS_OF_EXPOSED.items()]
    layers += _doubtful(partly + unsure + thinned)
    opaque = _of(seen, device_links.GRAPH) - stalled
    has_collectives = len(index.collectives.rows(thread.process_id)) > 0
    layers.append(Layer(_COMPUTE, opaque, (StallKind.OTHER, *(IN_COLLECTIVES if has_collectives else ()))))

    drained, blocking = _time_after_draining(index, thread, view)
    idle = whole - stalled - opaque - view.loaded - blocking
    stood = standing_of(index, thread)
    layers.append(Layer(StallKind.CHECKPOINT, stood.saving & drained & idle))
    layers.append(Layer(StallKind.CHECKPOINT, stood.saving & idle, (_COMPUTE,)))
    layers.append(Layer(StallKind.FETCH, stood.reading & idle, (_COMPUTE,)))
    ending = index.workers_end(thread.track_id) & idle
    layers.append(Layer(StallKind.HANDOFF, ending & drained))
    layers.append(Layer(StallKind.HANDOFF, ending, (_COMPUTE,)))
    still = stood.blocked & idle
    layers.append(Layer(StallKind.SYNC, still & drained, (_COMPUTE,)))
    layers.append(Layer(StallKind.OTHER, still, (_COMPUTE,)))
    layers.append(Layer(_COMPUTE, drained & idle, (StallKind.SYNC,)))
    host_paced = idle - drained - stood.saving - stood.reading - ending - still
    layers.append(Layer(_COMPUTE, host_paced, (StallKind.LAUNCH,)))
    layers.append(Layer(_COMPUTE, whole))
    marked = {
        "host_paced": host_paced,
        "graph_opaque": opaque,
        "queued": device_links.queued_time(index, view),
        "estimated": estimated,
    }
    return RankLayers("brackets", layers, late, marked=marked)


def _of(seen: list[device_links.Exposed], what: int) -> TimeSet:
    return TimeSet.united(*(x.of(what) for x in seen))


def _unsure(seen: list[device_links.Exposed], what: int) -> TimeSet:
    return device_links.joined([part for x in seen for part in x.unsure.get(what, [])])


def _all_waiting(view: device_links.DeviceView, whole: TimeSet) -> TimeSet:
    """Return when every compute stream waited, or did not exist."""
    every = whole if view.compute else TimeSet.empty()
    for stream in view.compute:
        begin, end = view.life[stream]
        every = every & (view.exposed[stream].waiting | (whole - TimeSet.of([begin], [end])))
    return every


def _loading(index: TraceIndex, thread: StepThread, time: TimeSet) -> list[Layer]:
    """Return layers of exposed batch waits by what the worker did; without a record, ``prep`` with alternatives."""
    layers = [
        Layer(x.kind, x.time & time, x.alternatives) for x in batch_layers(index, thread, batch_waits(index, thread))
    ]
    return [*layers, Layer(StallKind.PREP, time, (StallKind.FETCH, StallKind.HANDOFF))]


def _doubtful(parts: list[_Doubtful]) -> list[Layer]:
    """Return layers of compute with alternatives; with several possible causes, those of all."""
    layers: list[Layer] = []
    kinds = sorted({k for _, ks in parts for k in ks})
    reach = {k: TimeSet.united(*(t for t, ks in parts if k in ks)) for k in kinds}
    # Cut at every edge, so that each piece has one set of alternatives.
    if not any(len(time) for time in reach.values()):
        return layers
    edges = np.unique(np.concatenate([e for t in reach.values() for e in (t.begin, t.end)]))
    begin, end = edges[:-1], edges[1:]
    mask = np.stack([reach[k].within(begin, end) > 0 for k in kinds])
    codes = (mask * (1 << np.arange(len(kinds)))[:, None]).sum(axis=0)
    for code in np.unique(codes[codes > 0]).tolist():
        alternatives = tuple(k for bit, k in enumerate(kinds) if code >> bit & 1)
        layers.append(Layer(_COMPUTE, TimeSet.of(begin[codes == code], end[codes == code]), alternatives))
    return layers


def _time_after_draining(
    index: TraceIndex, thread: StepThread, view: device_links.DeviceView
) -> tuple[TimeSet, TimeSet]:
    """Return the time from the end of calls that drained the device to the next event, and the time inside such calls.

    The device works during such a call. Kernels launched after it are not recorded, so the first set is a bound.
    """
    calls, rows = index.trace.device_calls, index.device_calls.rows(thread.process_id)
    code, stream = calls["call_code"][rows], calls["stream_track_id"][rows]
    on_compute = np.isin(stream, view.compute)
    drains = (code == DeviceCall.DEVICE_SYNCHRONIZE) | (np.isin(code, _DRAINS_STREAM) & on_compute)
    bound = drains | (code == DeviceCall.EVENT_SYNCHRONIZE)
    if len(view.compute) > 1:  # other streams may still have work
        drains = code == DeviceCall.DEVICE_SYNCHRONIZE
    blocking = TimeSet.of_rows(calls, rows[drains])
    returned = np.sort(calls["end_ns"][rows[bound]])
    part = view.timed.take(np.isin(view.timed["track_id"], view.compute))
    recorded = np.concatenate([part["call_ns"], part["return_ns"]])
    reached = np.concatenate([part["begin_ns"], part["end_ns"]])
    order = np.argsort(recorded, kind="stable")
    recorded, reached = recorded[order], reached[order]
    at = np.searchsorted(recorded, returned)
    inside = at < len(recorded)
    return TimeSet.of(returned[inside], reached[at[inside]]), blocking
