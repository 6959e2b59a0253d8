"""Layers of a rank whose device was recorded only by timing events (method ``brackets``): the mode that can stay on.

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

from stashtrace.analysis.intervals import TimeSet
from stashtrace.analysis.stalls.batch_waits import batch_layers, batch_waits
from stashtrace.analysis.stalls.device_exposure import BATCH, COPY, GRAPH, HOST, LINK, PEER, DeviceView, Exposed, joined
from stashtrace.analysis.stalls.device_links import LINK_KINDS, link_layers, queued_time
from stashtrace.analysis.stalls.on_host import standing_of
from stashtrace.analysis.stalls.rows_by_thread import Layer, RankLayers, TraceIndex
from stashtrace.analysis.steps.threads import StepThread
from stashtrace.schema.kinds import Awaited, Bracket, DeviceCall, StallKind

_COMPUTE = StallKind.COMPUTE
_LOADING = (StallKind.PREP, StallKind.FETCH, StallKind.HANDOFF)
#: Kinds that an untimed bracket may have stood for: its codes, the codes of the awaited work, the kinds.
_KINDS_OF: tuple[tuple[tuple[int, ...], tuple[int, ...], tuple[StallKind, ...]], ...] = (
    ((Bracket.BATCH_WAIT,), (), _LOADING),
    ((Bracket.COPY,), (), (StallKind.H2D,)),
    ((Bracket.COLLECTIVE,), (), LINK_KINDS),
    ((Bracket.STREAM_WAIT,), (Awaited.COPY,), (StallKind.H2D,)),
    ((Bracket.STREAM_WAIT,), (Awaited.COLLECTIVE,), LINK_KINDS),
    ((Bracket.HOST_FUNCTION,), (), (StallKind.OTHER,)),
    ((Bracket.STREAM_WAIT,), (Awaited.HOST_FUNCTION,), (StallKind.OTHER,)),
)
_Doubtful = tuple[TimeSet, tuple[StallKind, ...]]
#: Calls that return when their stream has no work left.
_DRAINS_STREAM = (DeviceCall.STREAM_SYNCHRONIZE, DeviceCall.COPY)


def bracket_layers(index: TraceIndex, thread: StepThread) -> RankLayers:
    """Return layers of exposed intervals in the order of the kinds, then of what the device did or may have done."""
    view = DeviceView(index, thread)
    whole = TimeSet.of([thread.begin_ns], [thread.end_ns])
    every = _all_waiting(view, whole)
    seen = list(view.exposed.values())
    streams = sorted({stream for x in seen for stream in x.links})
    links = {stream: TimeSet.united(*(x.link(stream) for x in seen)) for stream in streams}
    busy = {stream: view.busy_on(stream) for stream in streams}
    divided = link_layers(index, thread, {stream: time & every for stream, time in links.items()}, busy=busy)
    layers = divided.layers
    layers.append(Layer(StallKind.INTERCONNECT, _of(seen, PEER) & every))
    layers.append(Layer(StallKind.H2D, _of(seen, COPY) & every))
    layers += _loading(index, thread, _of(seen, BATCH) & every)
    layers.append(Layer(StallKind.OTHER, _of(seen, HOST) & every))
    stalled = TimeSet.united(*(layer.time for layer in layers))

    # If one compute stream waited and another was not seen to wait, a stall is possible unless the other surely worked.
    thinned: list[_Doubtful] = [(view.unobserved(codes, awaited), kinds) for codes, awaited, kinds in _KINDS_OF]
    all_or_one = every | (view.working - TimeSet.united(*(time for time, _ in thinned)))
    any_link = TimeSet.united(*links.values())
    partly: list[_Doubtful] = [
        (any_link - all_or_one, LINK_KINDS),
        (_of(seen, PEER) - all_or_one, LINK_KINDS[2:]),
        (_of(seen, COPY) - all_or_one, (StallKind.H2D,)),
        (_of(seen, BATCH) - all_or_one, _LOADING),
        (_of(seen, HOST) - all_or_one, (StallKind.OTHER,)),
    ]
    unsure: list[_Doubtful] = [
        (_unsure(seen, LINK), LINK_KINDS),
        (_unsure(seen, PEER), LINK_KINDS[2:]),
        (_unsure(seen, COPY), (StallKind.H2D,)),
        (_unsure(seen, HOST), (StallKind.OTHER,)),
    ]
    layers += _doubtful(partly + unsure + thinned)
    opaque = _of(seen, GRAPH) - stalled
    has_collectives = len(index.collectives.rows(thread.process_id)) > 0
    layers.append(Layer(_COMPUTE, opaque, (StallKind.OTHER, *(LINK_KINDS if has_collectives else ()))))

    drained, blocking = _time_after_draining(index, thread, view)
    idle = whole - stalled - opaque - view.loaded - blocking
    stood = standing_of(index, thread)
    layers.append(Layer(StallKind.CHECKPOINT, stood.saving & drained & idle))
    layers.append(Layer(StallKind.CHECKPOINT, stood.saving & idle, (_COMPUTE,)))
    layers.append(Layer(StallKind.FETCH, stood.reading & idle, (_COMPUTE,)))
    ending = index.workers_end(thread.track_id) & idle
    layers.append(Layer(StallKind.HANDOFF, ending & drained))
    layers.append(Layer(StallKind.HANDOFF, ending, (_COMPUTE,)))
    still = (stood.foreign | stood.local) & idle
    layers.append(Layer(StallKind.SYNC, still & drained, (_COMPUTE,)))
    layers.append(Layer(StallKind.OTHER, still, (_COMPUTE,)))
    layers.append(Layer(_COMPUTE, drained & idle, (StallKind.SYNC,)))
    host_paced = idle - drained - stood.saving - stood.reading - ending - still
    layers.append(Layer(_COMPUTE, host_paced, (StallKind.LAUNCH,)))
    layers.append(Layer(_COMPUTE, whole))
    beside = {
        "host_paced": host_paced,
        "graph_opaque": opaque,
        "queued": queued_time(index, view),
        "estimated": divided.estimated,
    }
    return RankLayers("brackets", layers, divided.late, beside=beside)


def _of(seen: list[Exposed], what: int) -> TimeSet:
    return TimeSet.united(*(x.of(what) for x in seen))


def _unsure(seen: list[Exposed], what: int) -> TimeSet:
    return joined([part for x in seen for part in x.unsure.get(what, [])])


def _all_waiting(view: DeviceView, whole: TimeSet) -> TimeSet:
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


def _time_after_draining(index: TraceIndex, thread: StepThread, view: DeviceView) -> tuple[TimeSet, TimeSet]:
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
    own = view.timed.take(np.isin(view.timed["track_id"], view.compute))
    recorded = np.concatenate([own["call_ns"], own["return_ns"]])
    reached = np.concatenate([own["begin_ns"], own["end_ns"]])
    order = np.argsort(recorded, kind="stable")
    recorded, reached = recorded[order], reached[order]
    at = np.searchsorted(recorded, returned)
    inside = at < len(recorded)
    return TimeSet.of(returned[inside], reached[at[inside]]), blocking
