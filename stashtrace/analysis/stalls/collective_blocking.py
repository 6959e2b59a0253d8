"""When the step thread of a host-driven rank is blocked on a collective, on which one, and why it has not ended.

    call          last rank calls            end
     |--- straggler ---|------- link ---------|        the blocking collective: the oldest that has not ended
           ##################                          the thread's own wait: only this part is a stall

The blocked time is the union of recorded calls of ``Work.wait``, of blocking calls of the thread outside of batch waits
while a collective of the rank is in flight (DDP waits inside C++), and of the launching calls: on busy cores the
backend's threads displace the caller before it waits. A collective that a device timed is in flight from its entry on
the device, and blocks a thread that waits for the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.collectives.matching import ACROSS, INSIDE, MIXED
from stashtrace.analysis.intervals import NEVER, Bools, Int64, TimeSet, int64, is_one_of
from stashtrace.analysis.stalls.rows_by_thread import LabelledIntervals, Layer, TraceIndex, kept_per_thread
from stashtrace.analysis.steps.threads import StepThread
from stashtrace.schema.groupby import GroupBy, order_by
from stashtrace.schema.kinds import SYNCHRONISING_CALLS, StallKind, WaitOp
from stashtrace.schema.table import Table

#: Blocking calls by which a backend waits; not by a mutex, a sleep, a join or a semaphore (a lock of Python).
BACKEND_WAITS = (WaitOp.COND_WAIT, WaitOp.FUTEX, WaitOp.POLL)


#: Fields of ``Blocked`` of which a piece has one or none.
_FLAGS = ("launching", "presumed", "on_device")


@dataclass(frozen=True, slots=True)
class Blocked:
    """Pieces of the step thread's time blocked on a collective, sorted and disjoint."""

    begin: Int64
    end: Int64
    #: Row of ``trace.collectives`` that has not ended, -1 if none is known to be in flight.
    row: Int64
    #: Row that the thread waits for; differs from ``row`` if it is queued behind ``row``; -1 if unknown.
    waited_row: Int64
    #: Link of the group.
    link: Int64
    #: In the call that starts a collective: blocked, kept off the CPU by the backend's threads, or at work.
    launching: Bools
    #: No wait was recorded, but nothing after the call either: the thread is taken to hang in it.
    presumed: Bools
    #: The collective is in flight on the device, which may compute at the same time.
    on_device: Bools

    @classmethod
    def on(cls, row: Int64, begin: Int64, end: Int64, link: Int64) -> Blocked:
        """Return pieces in which nothing but these collectives is known to have been awaited."""
        no = np.zeros(len(row), dtype=bool)
        return cls(begin, end, row, np.full(len(row), -1, dtype=np.int64), link, no, no, no)

    @property
    def time(self) -> TimeSet:
        """The pieces as a set."""
        return TimeSet.of(self.begin, self.end)


def disjoint_rows(table: Table, rows: Int64, *ties: str) -> Int64:
    """Return rows by begin, without those that start inside an earlier one (waits inside waits of the same thread).

    Of equal intervals, the row with the smallest ``ties``, columns of the table, stays, so that the order of rows does
    not matter.
    """
    begin, end = table["begin_ns"][rows], table["end_ns"][rows]
    if (begin[1:] >= end[:-1]).all() and (end > begin).all():  # as nearly all are
        return rows
    return rows[_disjoint(begin, end, *(table[name][rows] for name in ties))]


def _disjoint(begin: Int64, end: Int64, *ties: npt.NDArray[np.integer]) -> Int64:
    order = order_by(begin, -end, *ties)
    order = order[end[order] > begin[order]]
    if len(order) == 0:
        return int64([])
    latest = np.maximum.accumulate(end[order])
    return int64(order[np.concatenate([[True], begin[order][1:] >= latest[:-1]])])


def in_flight_heads(call: Int64, end: Int64) -> tuple[Int64, Int64, Int64]:
    """Return begin, end and row of the oldest collective in flight at each instant; rows in order of their call."""
    if len(call) == 0:
        return int64([]), int64([]), int64([])
    order = order_by(call, end)
    latest = np.maximum.accumulate(end[order])
    begin = np.maximum(call[order], np.concatenate([[-NEVER], latest[:-1]]))
    keep = end[order] > begin
    return begin[keep], end[order][keep], int64(order[keep])


@kept_per_thread
def own_collectives(index: TraceIndex, thread: StepThread) -> tuple[Int64, Int64, Int64]:
    """Return rows, calls and ends of a rank's collectives; one that never ended lasts as long as the rank.

    If all ranks entered an operation and its end was not recorded, it must not block the queue for ever: it counts as
    ended when the last rank entered.
    """
    table, matched = index.trace.collectives, index.in_flight
    rows = index.collectives.rows(thread.process_id)
    call, end = index.entered_ns[rows], matched.end_ns[rows]
    floor = np.maximum(matched.last_enter_ns[rows], np.maximum(table["return_ns"][rows], call))
    end = np.where((end == NEVER) & (matched.last_enter_ns[rows] < NEVER), floor, end)
    return rows, call, np.minimum(end, max(thread.end_ns, int(call.max()) if len(call) else 0))


def device_waits(index: TraceIndex, thread: StepThread) -> TimeSet:
    """Return when the step thread was inside calls that wait for the device."""
    calls, rows = index.trace.device_calls, index.device_calls.rows(thread.process_id)
    rows = rows[(calls["track_id"][rows] == thread.track_id) & is_one_of(calls["call_code"][rows], SYNCHRONISING_CALLS)]
    return TimeSet.of_rows(calls, rows)


def blocked_on_collectives(index: TraceIndex, thread: StepThread, batch_waits: TimeSet) -> Blocked:
    """Return the pieces of time in which the step thread is blocked on collectives."""
    table, matched = index.trace.collectives, index.in_flight
    rows, call, end = own_collectives(index, thread)
    hanging = matched.last_enter_ns[rows] == NEVER
    timed = index.timed_on_device[rows]

    parts: list[tuple[npt.NDArray[Any], ...]] = []

    def add(*pieces: Int64, flag: str = "") -> None:
        parts.append((*pieces, *(np.full(len(pieces[0]), name == flag) for name in _FLAGS)))

    waits = index.trace.collective_waits
    wait_rows = index.collective_waits.rows(thread.track_id)
    wait_rows = disjoint_rows(waits, wait_rows, "collective_key")
    wait_begin, wait_end = waits["begin_ns"][wait_rows], waits["end_ns"][wait_rows]
    waited = GroupBy(table["collective_key"][rows]).row_of(waits["collective_key"][wait_rows])
    waited[waits["collective_key"][wait_rows] < 0] = -1
    group = table["group_hash"][rows]
    heads = in_flight_heads(call, end)
    for chosen, queue in _queues(group, waited, call, end, heads):
        made = _pieces(wait_begin[chosen], wait_end[chosen], waited[chosen], queue)
        # Before the device entered the awaited collective, it did something else.
        early = (made[2] < 0) & (made[3] >= 0) & np.append(timed, False)[made[3]]
        add(*(c[~early] for c in made))
    explicit = TimeSet.of(wait_begin, wait_end)

    thread_waits = index.trace.waits
    at = index.waits.rows(thread.track_id)
    at = at[is_one_of(thread_waits["wait_code"][at], BACKEND_WAITS)]
    on_device = device_waits(index, thread) - batch_waits - explicit
    silent = TimeSet.of_rows(thread_waits, at) - batch_waits - explicit - on_device
    calls = _launching(index, thread, rows) - batch_waits - explicit - silent - on_device
    of_host, of_device = (_heads_of(chosen, call, end, heads) for chosen in (~timed, timed))
    for time, queue, flag in (
        (silent, of_host, ""),
        (on_device, of_device, "on_device"),
        (calls, of_host, "launching"),
    ):
        pieces = _pieces(time.begin, time.end, np.full(len(time), -1, dtype=np.int64), queue)
        add(*(c[pieces[2] >= 0] for c in pieces), flag=flag)

    hang = _hang(index, thread, rows[hanging], call[hanging])
    if hang is not None and hang[1] > hang[0]:
        taken = TimeSet.united(*(TimeSet.of(begin, stop) for begin, stop, *_ in parts))
        left = TimeSet.of([hang[0]], [hang[1]]) - taken - batch_waits
        at = np.full(len(left), np.flatnonzero(rows == hang[2])[0])
        add(left.begin, left.end, at, np.full(len(left), -1), flag="presumed")
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    order = np.argsort(columns[0], kind="stable")
    begin, stop, row, asked, launches, presumed, device = (column[order] for column in columns)
    default = int(matched.link[rows[0]]) if len(rows) else INSIDE
    speaks = np.where(row >= 0, row, asked)
    links = np.append(matched.link[rows], default)[speaks]
    every = np.append(rows, -1)
    device |= np.append(timed, False)[row]
    return Blocked(begin, stop, every[row], every[asked], links, launches, presumed, device)


def _launching(index: TraceIndex, thread: StepThread, rows: Int64) -> TimeSet:
    """Return when the step thread was inside calls that start a collective."""
    table = index.trace.collectives
    chosen = rows[(table["track_id"][rows] == thread.track_id) & (table["return_ns"][rows] > table["call_ns"][rows])]
    return TimeSet.of(table["call_ns"][chosen], table["return_ns"][chosen])


Queue = tuple[Int64, Int64, Int64]


def _heads_of(chosen: Bools, call: Int64, end: Int64, heads: Queue) -> Queue:
    """Return the queue of some of the rank's collectives. ``heads``: that of all."""
    if chosen.all():
        return heads
    members = np.flatnonzero(chosen)
    begin, stop, row = in_flight_heads(call[members], end[members])
    return begin, stop, members[row]


def _queues(
    group: npt.NDArray[np.uint64], waited: Int64, call: Int64, end: Int64, heads: Queue
) -> list[tuple[Bools, Queue]]:
    """Return the waits of each queue, and the queue: one for each awaited group, one for all if that is unknown."""
    queues: list[tuple[Bools, Queue]] = [(waited < 0, heads)]
    wanted = group[waited[waited >= 0]]
    waited_group = group[np.maximum(waited, 0)] if len(group) else np.zeros(len(waited), dtype=np.uint64)
    for value in np.unique(wanted):
        queue = _heads_of(group == value, call, end, heads)
        queues.append(((waited >= 0) & (waited_group == value), queue))
    return queues


def _pieces(begin: Int64, end: Int64, waited: Int64, queue: Queue) -> tuple[Int64, ...]:
    """Return the waits cut by the queue's heads: begin, end, row, awaited row; row -1 where no head covers a wait."""
    if not len(begin):
        return (int64([]),) * 4
    waits = TimeSet(int64(begin), int64(end))
    head = TimeSet(queue[0], queue[1])
    cut = waits.pieces(queue[0], queue[1])
    bare = waits - head
    piece_begin = np.concatenate([cut[0], bare.begin])
    asked = waited[np.searchsorted(waits.begin, piece_begin, side="right") - 1] if len(waits) else int64([])
    row = np.concatenate([queue[2][cut[2]], np.full(len(bare), -1)])
    return piece_begin, np.concatenate([cut[1], bare.end]), row, asked


def _hang(index: TraceIndex, thread: StepThread, rows: Int64, call: Int64) -> tuple[int, int, int] | None:
    """Return (begin, end, row) if the thread never returned from an operation that some rank never entered."""
    if len(rows) == 0:
        return None
    first = int(call.argmin())
    row, begin = int(rows[first]), max(int(call[first]), int(index.trace.collectives["return_ns"][rows[first]]))
    phases = index.phases.rows(thread.track_id)
    later = (index.trace.phases["end_ns"][phases] > begin).any()
    later |= (index.trace.collectives["call_ns"][index.collectives.rows(thread.process_id)] > begin).any()
    return None if later else (begin, thread.end_ns, row)


def collective_layers(index: TraceIndex, blocked: Blocked) -> tuple[list[Layer], LabelledIntervals, TimeSet]:
    """Return layers straggler, network and interconnect of blocked pieces, the straggler time with the rank waited for,
    and the link time that an estimate divides.
    """
    matched = index.in_flight
    rows = np.maximum(blocked.row, 0)
    known = blocked.row >= 0
    if len(matched.end_ns):
        last_enter = np.where(known, matched.last_enter_ns[rows], -NEVER)
        cause = np.where(known, matched.last_rank[rows], -1)
        partial = known & matched.partial[rows]
    else:
        last_enter, cause = np.full(len(rows), -NEVER), np.full(len(rows), -1, dtype=np.int64)
        partial = np.zeros(len(rows), dtype=bool)
    late_end = np.clip(last_enter, blocked.begin, blocked.end)
    is_late = late_end > blocked.begin
    layers: list[Layer] = []
    working = blocked.launching | blocked.on_device
    plain = ~blocked.presumed & ~working
    for group, alternatives in ((plain, ()), (working, (StallKind.COMPUTE,)), (blocked.presumed, (StallKind.OTHER,))):
        chosen = is_late & group
        layers.append(Layer(StallKind.STRAGGLER, TimeSet.of(blocked.begin[chosen], late_end[chosen]), alternatives))
    estimated = []
    for unsure in (False, True):
        for at_work in (False, True):
            of = (partial == unsure) & (working == at_work)
            if not of.any():
                continue
            alternative = (StallKind.STRAGGLER,) * unsure + (StallKind.COMPUTE,) * at_work
            pieces = late_end[of], blocked.end[of], blocked.row[of], blocked.link[of]
            made, guessed = transfer_layers(index, *pieces, alternative)
            layers += made
            estimated.append(guessed)
    late = LabelledIntervals(blocked.begin[is_late], late_end[is_late], cause[is_late])
    return layers, late, TimeSet.united(*estimated)


# Transfers of collectives as layers: network, interconnect, or both where a group spans hosts that members share.


def transfer_layers(
    index: TraceIndex, begin: Int64, end: Int64, row: Int64, link: Int64, alternative: tuple[StallKind, ...] = ()
) -> tuple[list[Layer], TimeSet]:
    """Return layers of transfers by link (``row`` may be -1), and the transfers that an estimate divides.

    If a group spans hosts and some members share a host, its transfer is network up to the cut, then interconnect.
    Around an estimated cut, each of the two is the alternative of the other.
    """
    network, inside = StallKind.NETWORK, StallKind.INTERCONNECT
    across, within, mixed = link == ACROSS, link == INSIDE, link == MIXED
    layers = [
        Layer(network, TimeSet.of(begin[across], end[across]), alternative),
        Layer(inside, TimeSet.of(begin[within], end[within]), alternative),
    ]
    if not mixed.any():
        return layers, TimeSet.empty()
    cuts, known = index.network_cuts, mixed & (row >= 0)
    low, point, high, guess = (c[row[known]] for c in (cuts.low_ns, cuts.point_ns, cuts.high_ns, cuts.estimated))
    low, point, high = (
        np.where(point >= 0, np.clip(x, begin[known], end[known]), y)
        for x, y in ((low, begin[known]), (point, end[known]), (high, end[known]))
    )
    bare = mixed & ~known
    layers += [
        Layer(network, TimeSet.of(begin[known], low), alternative),
        Layer(network, TimeSet.of(low, point), (inside, *alternative)),
        Layer(inside, TimeSet.of(point, high), (network, *alternative)),
        Layer(inside, TimeSet.of(high, end[known]), alternative),
        Layer(network, TimeSet.of(begin[bare], end[bare]), (inside, *alternative)),
    ]
    guess &= cuts.point_ns[row[known]] >= 0
    return layers, TimeSet.of(begin[known][guess], end[known][guess])
