"""What the compute streams of a rank waited for, from pairs of timing events around the waits.

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
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.intervals import Int64, TimeSet
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.analysis.steps.threads import StepThread
from stashtrace.schema.groupby import GroupBy, RowsBy
from stashtrace.schema.kinds import Awaited, Bracket, BracketFlag, CopyDirection, DeviceClock, StreamFlag
from stashtrace.schema.table import Table

BATCH, COPY, PEER, LINK, GRAPH, HOST = 1, 2, 3, 4, 5, 6
#: Stream of a wait whose cause is unknown.
ANY_STREAM = -1
#: Flags of brackets that have no usable pair of events on a device.
_USELESS = int(BracketFlag.UNTIMED | BracketFlag.CAPTURED | BracketFlag.FAILED)
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

    def add(self, what: int, begin: Int64, end: Int64, chosen: npt.NDArray[np.bool_]) -> None:
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
        self.timed = brackets.take(usable & ((brackets["bracket_flags"] & _USELESS) == 0))
        self.error_ns = self._error()
        by_stream = RowsBy(self.timed["track_id"])
        own = {stream: self.timed.take(by_stream.rows(stream)) for stream in self._compute_streams()}
        own = {stream: table for stream, table in own.items() if len(table)}
        self.compute = list(own)
        self.exposed = {stream: self._exposed(stream, table) for stream, table in own.items()}
        self.life = {s: (int(t["begin_ns"].min()), int(t["end_ns"].max())) for s, t in own.items()}
        self.loaded = TimeSet.united(*(self._loaded(table) for table in own.values()))

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
        own = code == Bracket.COLLECTIVE
        exposed.links.setdefault(stream, []).append((begin[own], end[own]))
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
    def _copies(exposed: Exposed, direction: Int64, among: npt.NDArray[np.bool_], pieces: tuple[Int64, ...]) -> None:
        """Add copies by their kind of stall. ``pieces``: the stall may begin at the first time, surely at the second.

        A copy inside one device is the device's own work. A copy of unknown direction may be a stall or not.
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
        own = self.timed.take(self.timed["track_id"] == stream)
        waiting = (own["bracket_code"] == Bracket.STREAM_WAIT) & (own["awaited_code"] != Awaited.COMPUTE)
        waits = own.take(waiting | (own["bracket_code"] == Bracket.HOST_FUNCTION))
        return self._loaded(own) - TimeSet.of_rows(waits)

    @property
    def working(self) -> TimeSet:
        """Time when any compute stream surely worked on something that no bracket surrounds."""
        return TimeSet.united(
            *(self.busy_on(stream) - exposed.waiting - exposed.of(GRAPH) for stream, exposed in self.exposed.items())
        )

    def unobserved(self, codes: tuple[int, ...], awaited: tuple[int, ...] = ()) -> TimeSet:
        """Return when untimed brackets of the compute streams may lie: between the timed events around them."""
        gone = ((self._all["bracket_flags"] & _USELESS) == BracketFlag.UNTIMED) | (
            (self._all["begin_ns"] < 0) & ((self._all["bracket_flags"] & _USELESS) == 0)
        )
        wanted = np.isin(self._all["bracket_code"], codes) & np.isin(self._all["track_id"], self.compute)
        wanted &= self._all["copy_code"] != CopyDirection.DEVICE_TO_DEVICE
        if awaited:
            wanted &= np.isin(self._all["awaited_code"], awaited)
        call = self._all["call_ns"][gone & wanted]
        own = self.timed.take(np.isin(self.timed["track_id"], self.compute))
        if not len(call) or not len(own):
            return TimeSet.empty()
        order = np.argsort(own["call_ns"], kind="stable")
        at = np.searchsorted(own["call_ns"][order], call)
        ends = np.maximum.accumulate(own["end_ns"][order])
        before = np.where(at > 0, ends[np.maximum(at - 1, 0)], call)
        after = np.where(at < len(order), own["begin_ns"][order][np.minimum(at, len(order) - 1)], before)
        return TimeSet.of(before, after)
