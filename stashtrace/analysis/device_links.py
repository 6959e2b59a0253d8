"""Time that a device spends on nothing but communication, divided into straggler, network and interconnect.

    exposed      |-----------------------------|          what the compute streams waited, or only NCCL's kernels ran
    in flight    [ collective 4 ....... ][ collective 5 ...    the oldest on the awaited stream decides
    last enter             |                                straggler | link

Used by ``bracket_layers`` and ``kernel_layers``.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.collective_layers import in_flight_heads
from stashtrace.analysis.matching import ACROSS, INSIDE, MIXED
from stashtrace.analysis.step_threads import StepThread
from stashtrace.analysis.timeset import Int64, TimeSet, int64
from stashtrace.analysis.trace_index import Layer, Tagged, TraceIndex
from stashtrace.model.kinds import StallKind

LINK_KINDS = (StallKind.STRAGGLER, StallKind.NETWORK, StallKind.INTERCONNECT)
#: Stream of a wait of which nobody knows what it stood for.
ANY_STREAM = -1


@dataclass(frozen=True, slots=True)
class LinkTime:
    """Layers in order, and whom the straggler time waited for."""

    layers: list[Layer]
    late: Tagged


def link_layers(
    index: TraceIndex,
    thread: StepThread,
    exposed: dict[int, TimeSet],
    *,
    busy: Mapping[int, TimeSet] | None = None,
    running: bool = False,
) -> LinkTime:
    """Divide exposed time, given by the stream whose collectives were waited for (or ``ANY_STREAM``).

    ``running`` says that communication is known to run in all of it. If not, time before the rank itself entered is
    nobody's: what kept it from entering was not seen. Where ``busy`` says that the awaited stream worked meanwhile,
    that was work on a side stream; elsewhere the host may have been on its way.
    """
    found, table = index.on_devices, index.trace.collectives
    own = index.collectives.rows(thread.process_id)
    own = own[found.timed[own]]
    parts: list[tuple[Int64, Int64, Int64]] = []
    outside: list[TimeSet] = []
    worked: list[TimeSet] = []
    untimed = bool((found.given & ~found.timed)[index.collectives.rows(thread.process_id)].any())
    for stream, time in exposed.items():
        rows = own[table["stream_track_id"][own] == stream]
        rows = rows if len(rows) else own
        begin, end, position = in_flight_heads(found.begin_ns[rows], found.end_ns[rows])
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
        return LinkTime([], Tagged(int64([]), int64([]), int64([])))
    begin, end, row = (int64(np.concatenate(c)) for c in zip(*parts, strict=True))
    known = row >= 0
    default = int(found.matched.link[own[0]]) if len(own) else INSIDE
    bare = TimeSet.of(begin[~known], end[~known])
    begin, end, row = begin[known], end[known], row[known]
    layers, late = _divided(index, begin, end, row)
    kind = StallKind.INTERCONNECT if default == INSIDE else StallKind.NETWORK
    layers.append(Layer(kind, bare, tuple(k for k in LINK_KINDS if k != kind)))
    layers.append(Layer(StallKind.COMPUTE, TimeSet.united(*worked), LINK_KINDS if untimed else ()))
    layers.append(Layer(StallKind.COMPUTE, TimeSet.united(*outside), (StallKind.LAUNCH, *LINK_KINDS)))
    return LinkTime(layers, late)


def _divided(index: TraceIndex, begin: Int64, end: Int64, row: Int64) -> tuple[list[Layer], Tagged]:
    found = index.on_devices
    matched = found.matched
    enter = matched.last_enter_ns[row]
    late_end = np.clip(enter, begin, end)
    is_late = late_end > begin
    layers = [Layer(StallKind.STRAGGLER, TimeSet.of(begin[is_late], late_end[is_late]))]
    late = _disjoint(begin[is_late], late_end[is_late], matched.last_rank[row][is_late])

    link, partial = matched.link[row], matched.partial[row]
    proxied = (link == MIXED) & (found.network_ns[row] >= 0)
    # Where inside the transfer the bytes were between hosts is not known, only for how long: laid at its begin.
    moved = np.maximum(enter, found.enter_ns[row]) + np.maximum(found.network_ns[row], 0)
    wire_end = np.where(proxied, np.clip(moved, late_end, end), end)
    for unsure in (False, True):
        of = partial == unsure
        doubt: tuple[StallKind, ...] = (StallKind.STRAGGLER,) if unsure else ()
        across = of & ((link == ACROSS) | proxied)
        layers.append(Layer(StallKind.NETWORK, TimeSet.of(late_end[across], wire_end[across]), doubt))
        mixed = of & (link == MIXED) & ~proxied
        estimated = (StallKind.INTERCONNECT, *doubt)
        layers.append(Layer(StallKind.NETWORK, TimeSet.of(late_end[mixed], end[mixed]), estimated))
        rest = of & proxied
        layers.append(Layer(StallKind.INTERCONNECT, TimeSet.of(wire_end[rest], end[rest]), doubt))
        inside = of & (link == INSIDE)
        layers.append(Layer(StallKind.INTERCONNECT, TimeSet.of(late_end[inside], end[inside]), doubt))
    return layers, late


def _disjoint(begin: Int64, end: Int64, tag: npt.NDArray[np.int64]) -> Tagged:
    """Tagged pieces without overlaps: the earlier one keeps the time."""
    if len(begin) == 0:
        return Tagged(int64([]), int64([]), int64([]))
    order = np.lexsort((tag, end, begin))
    begin, end, tag = begin[order], end[order], tag[order]
    passed = np.concatenate([begin[:1], np.maximum.accumulate(end)[:-1]])
    begin = np.maximum(begin, passed)
    keep = end > begin
    return Tagged(int64(begin[keep]), int64(end[keep]), int64(tag[keep]))


def only_within(late: Tagged, time: TimeSet) -> Tagged:
    """Straggler time inside a set."""
    begin, end, row = time.pieces(late.begin, late.end)
    return Tagged(int64(begin), int64(end), int64(late.tag[row]))
