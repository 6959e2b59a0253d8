"""Time in which a device only communicates, divided into straggler, network and interconnect.

exposed      |-----------------------------|          what the compute streams waited, or only NCCL's kernels ran
in flight    [ collective 4 ....... ][ collective 5 ...    the oldest on the awaited stream decides
last enter             |                                straggler | link
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.collectives.matching import INSIDE
from stashtrace.analysis.intervals import Int64, TimeSet, int64
from stashtrace.analysis.stalls.collective_blocking import in_flight_heads, transfer_layers
from stashtrace.analysis.stalls.device_exposure import ANY_STREAM, DeviceView
from stashtrace.analysis.stalls.rows_by_thread import LabelledIntervals, Layer, TraceIndex
from stashtrace.analysis.steps.threads import StepThread
from stashtrace.schema.groupby import order_by
from stashtrace.schema.kinds import StallKind

LINK_KINDS = (StallKind.STRAGGLER, StallKind.NETWORK, StallKind.INTERCONNECT)


@dataclass(frozen=True, slots=True)
class LinkTime:
    """Layers in order, the straggler time with the awaited rank, and the link time that an estimate divides."""

    layers: list[Layer]
    late: LabelledIntervals
    estimated: TimeSet


def link_layers(
    index: TraceIndex,
    thread: StepThread,
    exposed: dict[int, TimeSet],
    *,
    busy: Mapping[int, TimeSet] | None = None,
    running: bool = False,
) -> LinkTime:
    """Divide exposed time, given by the stream of the awaited collectives (or ``ANY_STREAM``).

    ``running`` says that communication is known to run in all of it. If not, time before the rank itself entered has no
    known cause, because what delayed the entry was not recorded. Where ``busy`` shows that the awaited stream worked
    meanwhile, it was work on a side stream; elsewhere the host may not have launched the collective yet.
    """
    devices, table = index.on_devices, index.trace.collectives
    own = index.collectives.rows(thread.process_id)
    own = own[devices.timed[own]]
    parts: list[tuple[Int64, Int64, Int64]] = []
    outside: list[TimeSet] = []
    worked: list[TimeSet] = []
    untimed = bool((devices.given & ~devices.timed)[index.collectives.rows(thread.process_id)].any())
    for stream, time in exposed.items():
        rows = own[table["stream_track_id"][own] == stream]
        rows = rows if len(rows) else own
        begin, end, position = in_flight_heads(devices.begin_ns[rows], devices.end_ns[rows])
        cut = time.pieces(begin, end)
        parts.append((cut[0], cut[1], rows[position[cut[2]]]))
        bare = time - TimeSet(begin, end)
        early = np.isin(bare.end, begin) & (not running)
        before = TimeSet(bare.begin[early], bare.end[early])
        side = before & (busy or {}).get(stream, TimeSet.empty())
        worked.append(side)
        outside.append(before - side)
        bare = TimeSet(bare.begin[~early], bare.end[~early])
        parts.append((bare.begin, bare.end, np.full(len(bare), -1, dtype=np.int64)))
    if not parts:
        return LinkTime([], LabelledIntervals(int64([]), int64([]), int64([])), TimeSet.empty())
    begin, end, row = (int64(np.concatenate(c)) for c in zip(*parts, strict=True))
    known = row >= 0
    default = int(devices.matched.link[own[0]]) if len(own) else INSIDE
    bare = TimeSet.of(begin[~known], end[~known])
    begin, end, row = begin[known], end[known], row[known]
    layers, late, estimated = _divide(index, begin, end, row)
    kind = StallKind.INTERCONNECT if default == INSIDE else StallKind.NETWORK
    layers.append(Layer(kind, bare, tuple(k for k in LINK_KINDS if k != kind)))
    layers.append(Layer(StallKind.COMPUTE, TimeSet.united(*worked), LINK_KINDS if untimed else ()))
    layers.append(Layer(StallKind.COMPUTE, TimeSet.united(*outside), (StallKind.LAUNCH, *LINK_KINDS)))
    return LinkTime(layers, late, estimated)


def _divide(index: TraceIndex, begin: Int64, end: Int64, row: Int64) -> tuple[list[Layer], LabelledIntervals, TimeSet]:
    matched = index.on_devices.matched
    late_end = np.clip(matched.last_enter_ns[row], begin, end)
    is_late = late_end > begin
    layers = [Layer(StallKind.STRAGGLER, TimeSet.of(begin[is_late], late_end[is_late]))]
    late = _disjoint(begin[is_late], late_end[is_late], matched.last_rank[row][is_late])
    estimated: list[TimeSet] = []
    for unsure in (False, True):
        of = matched.partial[row] == unsure
        alternative: tuple[StallKind, ...] = (StallKind.STRAGGLER,) if unsure else ()
        made, guessed = transfer_layers(index, late_end[of], end[of], row[of], matched.link[row][of], alternative)
        layers += made
        estimated.append(guessed)
    return layers, late, TimeSet.united(*estimated)


def queued_time(index: TraceIndex, view: DeviceView) -> TimeSet:
    """Return when a compute stream waited for a collective queued behind an earlier one that was transferring.

    It is part of the link's time, that of the earlier collective.
    """
    devices, table = index.on_devices, index.trace.collectives
    own = index.collectives.rows(view.process_id)
    own = own[devices.timed[own]]
    parts: list[TimeSet] = []
    for stream in sorted({s for x in view.exposed.values() for s in x.links} - {ANY_STREAM}):
        rows = own[table["stream_track_id"][own] == stream]
        begin, end, position = in_flight_heads(devices.begin_ns[rows], devices.end_ns[rows])
        if not len(begin):
            continue
        entered = np.clip(devices.matched.last_enter_ns[rows[position]], begin, end)
        moving = TimeSet.of(entered, end)
        for exposed in view.exposed.values():
            for since, until in exposed.links.get(stream, []):
                awaited = np.maximum(np.searchsorted(begin, until) - 1, 0)  # the awaited collective ends last
                parts.append(TimeSet.of(since, np.minimum(until, begin[awaited])) & moving)
    return TimeSet.united(*parts)


def _disjoint(begin: Int64, end: Int64, tag: npt.NDArray[np.int64]) -> LabelledIntervals:
    """Return tagged pieces without overlaps; the earlier piece keeps the time."""
    if len(begin) == 0:
        return LabelledIntervals(int64([]), int64([]), int64([]))
    order = order_by(begin, end, tag)
    begin, end, tag = begin[order], end[order], tag[order]
    passed = np.concatenate([begin[:1], np.maximum.accumulate(end)[:-1]])
    begin = np.maximum(begin, passed)
    keep = end > begin
    return LabelledIntervals(int64(begin[keep]), int64(end[keep]), int64(tag[keep]))


def only_within(late: LabelledIntervals, time: TimeSet) -> LabelledIntervals:
    """Return the straggler time inside a set of times."""
    begin, end, row = time.pieces(late.begin, late.end)
    return LabelledIntervals(begin, end, late.tag[row])
