"""What a device waited for: exposed waits of its compute streams, and its links (straggler, network, interconnect).

exposed      |-----------------------------|          what the compute streams waited, or only NCCL's kernels ran
in flight    [ collective 4 ....... ][ collective 5 ...    the oldest on the awaited stream decides
last enter             |                                straggler | link

    host     enter |....... next() .......| return
    stream   ### T_before ............... T_after ###      exposed = min(T_after, return) - max(T_before, enter)

    stream   ### T_before ........ T_after                 exposed = [T_before, min(T_after, end of the awaited work))
    awaited  ================ end

Exposed time of one stream is a stall of the rank only where every compute stream waits. The rules and their reasons are
in ``docs/concepts/stalls.md``.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from stashtrace.analysis.collectives.matching import INSIDE
from stashtrace.analysis.intervals import Bools, Int64, TimeSet, int64
from stashtrace.analysis.stalls.collective_blocking import Blocked, collective_layers, in_flight_heads
from stashtrace.analysis.stalls.rows_by_thread import LabelledIntervals, Layer, TraceIndex
from stashtrace.analysis.steps.threads import StepThread
from stashtrace.schema.groupby import GroupBy, RowsBy, order_by
from stashtrace.schema.kinds import (
    IN_COLLECTIVES,
    UNUSABLE_BRACKET,
    Awaited,
    Bracket,
    BracketFlag,
    CopyDirection,
    DeviceClock,
    StallKind,
    StreamFlag,
)
from stashtrace.schema.table import Table

BATCH, COPY, PEER, LINK, GRAPH, HOST = 1, 2, 3, 4, 5, 6
#: Stream of a wait whose cause is unknown.
ANY_STREAM = -1
_NO_DIRECTION = (0, int(CopyDirection.UNKNOWN))
_MARKED = (Bracket.BATCH_WAIT, Bracket.STEP, Bracket.MARK)
#: If the device reaches an event this soon after it was recorded, the stream was empty: a launch takes some
#: microseconds, and the error of the clocks is smaller.
STARVED_NS = 20_000


@dataclass(slots=True)
class Exposed:
    """Exposed time of one compute stream by the awaited work, as lists of begins and ends.

    ``links`` holds each wait by the stream of the awaited collective. In pieces of ``unsure``, it is unknown whether
    the stream waited or the host had not enqueued the wait yet.
    """

    pieces: dict[int, list[tuple[Int64, Int64]]] = field(default_factory=dict)
    links: dict[int, list[tuple[Int64, Int64]]] = field(default_factory=dict)
    unsure: dict[int, list[tuple[Int64, Int64]]] = field(default_factory=dict)

    def add(self, what: int, begin: Int64, end: Int64, chosen: Bools) -> None:
        """Add the chosen intervals to one cause."""
        self.pieces.setdefault(what, []).append((begin[chosen], end[chosen]))

    def of(self, what: int) -> TimeSet:
        """Return the time exposed for one cause."""
        return joined(self.pieces.get(what, []))

    def link(self, stream: int) -> TimeSet:
        """Return the time exposed for collectives of one stream."""
        return joined(self.links.get(stream, []))

    @property
    def waiting(self) -> TimeSet:
        """Time exposed for any cause: this stream had nothing to run."""
        parts = [p for what, exposed in self.pieces.items() if what != GRAPH for p in exposed]
        return joined(parts + [p for exposed in self.links.values() for p in exposed])


def joined(parts: list[tuple[Int64, Int64]]) -> TimeSet:
    """Return the union of pieces."""
    return TimeSet.of(*(np.concatenate(column) for column in zip(*parts, strict=True))) if parts else TimeSet.empty()


class DeviceView:
    """Brackets of one rank, and the times derived from them.

    ``process_id``: of the rank. ``compute``: tracks of the streams that carry compute. ``exposed``: by compute stream.
    ``life``: first and last event of each compute stream. ``loaded``: time when the device surely had work: an event
    stood in a compute stream behind unfinished work. ``error_ns``: error of the event clock.
    """

    def __init__(self, index: TraceIndex, thread: StepThread) -> None:
        trace = index.trace
        rows = index.brackets.rows(thread.process_id)
        brackets = trace.device_brackets.take(rows).sort_by("call_ns", "return_ns", "bracket_id")
        self._index, self.process_id = index, thread.process_id
        self._all = brackets
        usable = (brackets["begin_ns"] >= 0) & (brackets["end_ns"] >= brackets["begin_ns"])
        self.timed = brackets.take(usable & ((brackets["bracket_flags"] & UNUSABLE_BRACKET) == 0))
        self.error_ns = self._error()
        by_stream = RowsBy(self.timed["track_id"])
        tables = {stream: self.timed.take(by_stream.rows(stream)) for stream in self._compute_streams()}
        tables = {stream: table for stream, table in tables.items() if len(table)}
        self.compute = list(tables)
        self.exposed = {stream: self._exposed(stream, table) for stream, table in tables.items()}
        self.life = {s: (int(t["begin_ns"].min()), int(t["end_ns"].max())) for s, t in tables.items()}
        self.loaded = TimeSet.united(*(self._loaded(table) for table in tables.values()))

    def _compute_streams(self) -> list[int]:
        streams = self._index.trace.streams
        carries = (streams["process_id"] == self.process_id) & (
            (streams["stream_flags"] & StreamFlag.CARRIES_COMPUTE) != 0
        )
        marked = np.isin(self._all["bracket_code"], _MARKED)
        tracks: list[int] = np.union1d(streams["track_id"][carries], self._all["track_id"][marked]).tolist()
        return tracks

    def _error(self) -> int:
        clocks = self._index.trace.device_clocks
        mine = (clocks["process_id"] == self.process_id) & (clocks["clock_code"] == DeviceClock.EVENT)
        return int(clocks["error_ns"][mine].max(initial=0))

    def _exposed(self, stream: int, table: Table) -> Exposed:
        exposed = Exposed()
        begin, end, code = table["begin_ns"], table["end_ns"], table["bracket_code"]
        entered, returned = table["call_ns"], table["return_ns"]
        exposed.add(BATCH, np.maximum(begin, entered), np.minimum(end, returned), code == Bracket.BATCH_WAIT)
        self._copies(exposed, table["copy_code"], code == Bracket.COPY, (begin, begin, end))
        exposed.add(GRAPH, begin, end, code == Bracket.GRAPH)
        exposed.add(HOST, begin, end, code == Bracket.HOST_FUNCTION)
        chosen = code == Bracket.COLLECTIVE
        exposed.links.setdefault(stream, []).append((begin[chosen], end[chosen]))
        rows, given = self._index.collectives.rows(self.process_id), self._index.on_devices
        rows = rows[given.timed[rows] & (self._index.trace.collectives["stream_track_id"][rows] == stream)]
        exposed.links[stream].append((given.begin_ns[rows], given.end_ns[rows]))
        self._waits(table.take(code == Bracket.STREAM_WAIT), exposed)
        return exposed

    def _waits(self, waits: Table, exposed: Exposed) -> None:
        """Add stream waits, up to the end of the awaited work where that is known."""
        begin, end = waits["begin_ns"], waits["end_ns"]
        at = GroupBy(self._all["bracket_id"]).row_of(waits["correlation_id"])
        at[waits["correlation_id"] <= 0] = -1
        known = at >= 0
        work_end = np.where(known, np.append(self._all["end_ns"], -1)[at], -1)
        done = np.where(waits["awaited_ns"] >= 0, waits["awaited_ns"], work_end)
        # Else, once both events stand in the stream before it reaches the first, all time between them is the wait.
        sure = np.where(done >= 0, begin, np.clip(waits["return_ns"], begin, end))
        stop = np.where(done >= 0, np.clip(done, begin, end), end)
        code = waits["awaited_code"]
        of_work = np.where(known, np.append(self._all["copy_code"], 0)[at], 0)
        directions = np.where(waits["copy_code"] > 0, waits["copy_code"], of_work)
        self._copies(exposed, directions, code == Awaited.COPY, (begin, sure, stop))
        exposed.add(GRAPH, sure, stop, code == Awaited.GRAPH)
        functions = code == Awaited.HOST_FUNCTION
        exposed.add(HOST, sure, stop, functions)
        exposed.unsure.setdefault(HOST, []).append((begin[functions], sure[functions]))
        links = code == Awaited.COLLECTIVE
        streams = np.where(known, np.append(self._all["track_id"], ANY_STREAM)[at], ANY_STREAM)
        for stream in np.unique(streams[links]).tolist():
            chosen = links & (streams == stream)
            exposed.links.setdefault(stream, []).append((sure[chosen], stop[chosen]))
        exposed.unsure.setdefault(LINK, []).append((begin[links], sure[links]))

    @staticmethod
    def _copies(exposed: Exposed, direction: Int64, among: Bools, pieces: tuple[Int64, ...]) -> None:
        """Add copies by their kind of stall. ``pieces``: the stall may begin at the first time, surely at the second.

        A copy inside one device is the device's work. A copy of unknown direction may be a stall or not.
        """
        begin, sure, stop = pieces
        peer = direction == CopyDirection.PEER
        unknown = among & np.isin(direction, _NO_DIRECTION)
        over_host = among & ~peer & ~unknown & (direction != CopyDirection.DEVICE_TO_DEVICE)
        for what, chosen in ((COPY, over_host), (PEER, among & peer)):
            exposed.add(what, sure, stop, chosen)
            exposed.unsure.setdefault(what, []).append((begin[chosen], sure[chosen]))
        exposed.unsure[COPY].append((begin[unknown], stop[unknown]))

    def _loaded(self, table: Table) -> TimeSet:
        """Return the times from recording an event to the stream reaching it: work stood before the event."""
        recorded = np.concatenate([table["call_ns"], table["return_ns"]])
        reached = np.concatenate([table["begin_ns"], table["end_ns"]])
        behind = reached - recorded > STARVED_NS + self.error_ns
        return TimeSet.of(recorded[behind], reached[behind])

    def busy_on(self, stream: int) -> TimeSet:
        """Return when a stream surely worked: an event stood in it behind something other than a wait.

        For ``ANY_STREAM``, return when every stream with collectives of this rank did.
        """
        if stream == ANY_STREAM:
            rows = self._index.collectives.rows(self.process_id)
            given = np.unique(self._index.trace.collectives["stream_track_id"][rows])
            busy = [self.busy_on(int(track)) for track in given[given >= 0]]
            return functools.reduce(operator.and_, busy) if busy else TimeSet.empty()
        part = self.timed.take(self.timed["track_id"] == stream)
        waiting = (part["bracket_code"] == Bracket.STREAM_WAIT) & (part["awaited_code"] != Awaited.COMPUTE)
        waits = part.take(waiting | (part["bracket_code"] == Bracket.HOST_FUNCTION))
        return self._loaded(part) - TimeSet.of_rows(waits)

    @property
    def working(self) -> TimeSet:
        """Time when any compute stream surely worked on something that no bracket surrounds."""
        return TimeSet.united(
            *(self.busy_on(stream) - exposed.waiting - exposed.of(GRAPH) for stream, exposed in self.exposed.items())
        )

    def unobserved(self, codes: tuple[int, ...], awaited: tuple[int, ...] = ()) -> TimeSet:
        """Return when untimed brackets of the compute streams may lie: between the timed events around them."""
        gone = ((self._all["bracket_flags"] & UNUSABLE_BRACKET) == BracketFlag.UNTIMED) | (
            (self._all["begin_ns"] < 0) & ((self._all["bracket_flags"] & UNUSABLE_BRACKET) == 0)
        )
        wanted = np.isin(self._all["bracket_code"], codes) & np.isin(self._all["track_id"], self.compute)
        wanted &= self._all["copy_code"] != CopyDirection.DEVICE_TO_DEVICE
        if awaited:
            wanted &= np.isin(self._all["awaited_code"], awaited)
        call = self._all["call_ns"][gone & wanted]
        part = self.timed.take(np.isin(self.timed["track_id"], self.compute))
        if not len(call) or not len(part):
            return TimeSet.empty()
        order = np.argsort(part["call_ns"], kind="stable")
        at = np.searchsorted(part["call_ns"][order], call)
        ends = np.maximum.accumulate(part["end_ns"][order])
        before = np.where(at > 0, ends[np.maximum(at - 1, 0)], call)
        after = np.where(at < len(order), part["begin_ns"][order][np.minimum(at, len(order) - 1)], before)
        return TimeSet.of(before, after)


def link_layers(
    index: TraceIndex,
    thread: StepThread,
    exposed: dict[int, TimeSet],
    *,
    busy: Mapping[int, TimeSet] | None = None,
    running: bool = False,
) -> tuple[list[Layer], LabelledIntervals, TimeSet]:
    """Divide exposed time, given by the stream of the awaited collectives (or ``ANY_STREAM``).

    Returns what ``collective_layers`` does: layers in order, the straggler time with the awaited rank, and the link
    time that an estimate divides.

    ``running`` says that communication is known to run in all of it. If not, time before the rank itself entered has no
    known cause, because what delayed the entry was not recorded. Where ``busy`` shows that the awaited stream worked
    meanwhile, it was work on a side stream; elsewhere the host may not have launched the collective yet.
    """
    devices, table = index.on_devices, index.trace.collectives
    at = index.collectives.rows(thread.process_id)
    at = at[devices.timed[at]]
    parts: list[tuple[Int64, Int64, Int64]] = []
    outside: list[TimeSet] = []
    worked: list[TimeSet] = []
    untimed = bool((devices.given & ~devices.timed)[index.collectives.rows(thread.process_id)].any())
    for stream, time in exposed.items():
        rows = at[table["stream_track_id"][at] == stream]
        rows = rows if len(rows) else at
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
        return [], LabelledIntervals(int64([]), int64([]), int64([])), TimeSet.empty()
    begin, end, row = (int64(np.concatenate(c)) for c in zip(*parts, strict=True))
    known = row >= 0
    default = int(devices.matched.link[at[0]]) if len(at) else INSIDE
    bare = TimeSet.of(begin[~known], end[~known])
    begin, end, row = begin[known], end[known], row[known]
    blocked = Blocked.on(row, begin, end, devices.matched.link[row])
    layers, late, estimated = collective_layers(index, blocked)
    kind = StallKind.INTERCONNECT if default == INSIDE else StallKind.NETWORK
    layers.append(Layer(kind, bare, tuple(k for k in IN_COLLECTIVES if k != kind)))
    layers.append(Layer(StallKind.COMPUTE, TimeSet.united(*worked), IN_COLLECTIVES if untimed else ()))
    layers.append(Layer(StallKind.COMPUTE, TimeSet.united(*outside), (StallKind.LAUNCH, *IN_COLLECTIVES)))
    return layers, _disjoint(late), estimated


def queued_time(index: TraceIndex, view: DeviceView) -> TimeSet:
    """Return when a compute stream waited for a collective queued behind an earlier one that was transferring.

    It is part of the link's time, that of the earlier collective.
    """
    devices, table = index.on_devices, index.trace.collectives
    at = index.collectives.rows(view.process_id)
    at = at[devices.timed[at]]
    parts: list[TimeSet] = []
    for stream in sorted({s for x in view.exposed.values() for s in x.links} - {ANY_STREAM}):
        rows = at[table["stream_track_id"][at] == stream]
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


def _disjoint(late: LabelledIntervals) -> LabelledIntervals:
    """Return tagged pieces without overlaps; the earlier piece keeps the time."""
    order = order_by(late.begin, late.end, late.tag)
    begin, end, tag = late.begin[order], late.end[order], late.tag[order]
    passed = np.concatenate([begin[:1], np.maximum.accumulate(end)[:-1]])
    begin = np.maximum(begin, passed)
    keep = end > begin
    return LabelledIntervals(int64(begin[keep]), int64(end[keep]), int64(tag[keep]))


def only_within(late: LabelledIntervals, time: TimeSet) -> LabelledIntervals:
    """Return the straggler time inside a set of times."""
    begin, end, row = time.pieces(late.begin, late.end)
    return LabelledIntervals(begin, end, late.tag[row])
