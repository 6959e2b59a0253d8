"""Nodes of a rank whose kernels are known: what its streams ran, and what its host did between launches.

    host        [ cell ][ cell ]            [ cell ]        calls that wait for the device are not nodes
                       |launch   ^sync
    stream      ......[kernel   ][kernel  ]                 a kernel waits for its launch, its stream, other streams
    NCCL stream       (join)========(leave)                 a collective is two moments: its time is the transfer's

No recording says which event a stream waited for. Work that began later than its launch and its stream allow is taken
to have waited for the work of another stream that ended just before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stashtrace.analysis.devices.launches import CLOCKS_AGREE_NS, full_queue
from stashtrace.analysis.graph import batch_nodes
from stashtrace.analysis.graph.graph_parts import Cells, Painted, Parts, step_of
from stashtrace.analysis.graph.policy import POLICY
from stashtrace.analysis.graph.transfer_nodes import Transfers
from stashtrace.analysis.graph.work_graph import EdgeKind, Resource
from stashtrace.analysis.intervals import NEVER, Bools, Int64, TimeSet, int64, window_around
from stashtrace.analysis.stalls.batch_waits import batch_layers, batch_waits
from stashtrace.analysis.stalls.on_host import time_of_spans
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.analysis.steps.steps import steps_on_host
from stashtrace.analysis.steps.threads import StepThread
from stashtrace.analysis.steps.training_loop import update_windows
from stashtrace.schema.groupby import GroupBy, order_by
from stashtrace.schema.kinds import (
    BLOCKING_CALLS,
    SYNCHRONISING_CALLS,
    BatchPhase,
    CopyDirection,
    DeviceCall,
    DeviceWork,
    SpanKind,
    StallKind,
)
from stashtrace.schema.table import Table


@dataclass(frozen=True, slots=True)
class _Pieces:
    """Work of a rank's streams by stream and begin. A collective that is a transfer is two moments: join and leave."""

    #: Row of ``kernels``.
    kernel: Int64
    #: Row of the sorted ``collectives`` whose transfer it joins or leaves, -1 for other work.
    collective: Int64
    stream: Int64
    begin_ns: Int64
    end_ns: Int64
    #: -1 if unknown.
    launch_ns: Int64
    #: Moments at which the stream leaves a collective.
    leaves: Bools
    #: First pieces of their streams.
    first: Bools

    def __len__(self) -> int:
        return len(self.kernel)


@dataclass(frozen=True, slots=True)
class _DeviceWaits:
    """Calls in which the host waited for its device."""

    #: When the call began, since when nothing else was launched, and when the call returned.
    called_ns: Int64
    begin_ns: Int64
    end_ns: Int64
    #: Work that had ended last by then.
    piece: Int64
    #: Calls that wait for all streams of the device.
    for_all: Bools


@dataclass(frozen=True, slots=True)
class _Queue:
    """Launches on a stream whose queue was full, in their order."""

    launch_ns: Int64
    return_ns: Int64
    #: Work whose end makes the place for each launch, -1 for the first launches.
    source: Int64
    #: Launches that waited for their place in the recording.
    held: Bools
    #: What a launch takes that is not held.
    usual_ns: int


def add_rank(
    index: TraceIndex, thread: StepThread, steps: Table, transfers: Transfers, origin_ns: int, parts: Parts
) -> None:
    """Add the nodes of a rank's streams, host and workers, and their edges.

    ``origin_ns``: when the first rank began its first step.
    """
    rank = _Rank(index, thread, steps, _pieces(index, thread, transfers), parts)
    rank.add_host(origin_ns)
    rank.add_streams()
    rank.add_collectives(transfers)
    rank.add_device_waits()
    rank.add_queues()
    rank.add_ends()


class _Rank:
    """One rank while its nodes are added; each method uses what those before it have added."""

    def __init__(self, index: TraceIndex, thread: StepThread, steps: Table, pieces: _Pieces, parts: Parts) -> None:
        self.index, self.thread, self.steps, self.pieces, self.parts = index, thread, steps, pieces, parts
        self.host_steps = steps_on_host(index.origin, steps, thread.rank)
        self.launches_ns = np.unique(pieces.launch_ns[pieces.launch_ns >= 0])

    def add_host(self, origin_ns: int) -> None:
        """Add the cells of the host's time. The threads of a rank that launch take turns, so they are taken as one."""
        index, thread, steps, parts = self.index, self.thread, self.host_steps, self.parts
        begin_ns = max(int(steps["begin_ns"][0]), origin_ns)
        common = {"rank": thread.rank, "resource": Resource.HOST, "process_id": thread.process_id}
        # The time by which this rank began later than the first one is a node: without stragglers it is shorter.
        self.before = parts.add(1, kind=StallKind.OTHER, begin_ns=origin_ns, end_ns=begin_ns, **common)
        loads = batch_waits(index, thread)
        moments = np.concatenate([self.launches_ns, steps["begin_ns"], steps["end_ns"]])
        until_ns = max(int(moments.max()), begin_ns + 1)
        life = TimeSet.of([begin_ns], [until_ns])
        handed = batch_nodes.made_by_workers(loads, thread)
        stood = self._device_waits
        waits = TimeSet.of(stood.begin_ns, stood.end_ns)
        had = batch_nodes.arrived_ns(index, loads, handed)
        waits = waits | TimeSet.of(loads.begin[handed], np.minimum(had, loads.end)[handed])
        painted = Painted.of(batch_layers(index, thread, loads))
        saves = batch_nodes.Saves.of(index, thread, life, waits | painted.time)
        waits = waits | saves.waits
        held = self._allocations - waits
        points = [moments, loads.begin, loads.end, np.clip(had, loads.begin, loads.end), stood.end_ns, saves.moments_ns]
        named = time_of_spans(index, thread, SpanKind.COMPILE, SpanKind.OBJECTS)
        points += [held.begin, held.end, named.begin, named.end, batch_nodes.worker_starts(index, thread).end_ns]
        made = index.batches_of_phase(BatchPhase.FETCH).take(batch_nodes.own_fetches(index, thread))
        points += [made["begin_ns"], made["end_ns"]]
        # The host comes to the end of the last step also where it waited for its device until then.
        free = life - waits
        if not len(free):  # all was launched before, or at unknown times: the host waited from the begin on
            free = TimeSet.of([begin_ns], [begin_ns + 1])
        cells = Cells.of(free, painted, np.concatenate(points), moments, until_ns=until_ns)
        kinds = painted.kind_at(cells.begin, StallKind.LAUNCH)
        launching = kinds == StallKind.LAUNCH
        kinds = np.where(launching & (held.within(cells.begin, cells.begin + 1) > 0), StallKind.SYNC, kinds)
        # What the host did before the first launch in the recording is not known to lead to launches.
        early = cells.begin < (self.launches_ns[0] if len(self.launches_ns) else until_ns)
        kinds = np.where(launching & early, StallKind.OTHER, kinds)
        nodes = cells.add_to(parts, before=self.before, step=step_of(steps, cells.begin), kind=kinds, **common)
        batch_nodes.add_batches(index, thread, nodes, loads, had, life, parts)
        saves.add(thread, parts, nodes)
        self.host = nodes

    @cached_property
    def _allocations(self) -> TimeSet:
        """When the host was inside calls that allocate, free or synchronise, whether or not they waited."""
        calls, rows = self.index.trace.device_calls, self.index.device_calls.rows(self.thread.process_id)
        rows = rows[np.isin(calls["call_code"][rows], BLOCKING_CALLS)]
        return TimeSet.of_rows(calls, rows)

    @cached_property
    def _device_waits(self) -> _DeviceWaits:
        pieces, calls = self.pieces, self.index.trace.device_calls
        rows = self.index.device_calls.rows(self.thread.process_id)
        rows = rows[np.isin(calls["call_code"][rows], BLOCKING_CALLS)]
        begin, end = calls["begin_ns"][rows], calls["end_ns"][rows]
        order = np.argsort(pieces.end_ns, kind="stable")
        done = pieces.end_ns[order]
        last = np.searchsorted(done, end + CLOCKS_AGREE_NS, side="right") - 1
        waited = (last >= 0) & (np.append(done, -NEVER)[last] > begin)
        # A call that allocates or frees waits only if it drains the device.
        busy = TimeSet.of(pieces.begin_ns, pieces.end_ns)
        drained = busy.within(end + CLOCKS_AGREE_NS, end + CLOCKS_AGREE_NS + 1) == 0
        code = calls["call_code"][rows]
        waited &= drained | np.isin(code, SYNCHRONISING_CALLS)
        begin, end, piece = begin[waited], end[waited], order[last[waited]]
        for_all = code[waited] == DeviceCall.DEVICE_SYNCHRONIZE
        # A launch that finds the queue full waits for a place, after the time that any launch takes.
        held = [(q.launch_ns[q.held] + q.usual_ns, q.return_ns[q.held], q.source[q.held]) for q in self._queues]
        columns = [np.concatenate(column) for column in zip((begin, end, piece), *held, strict=True)]
        begin, end, piece = columns
        for_all = np.append(for_all, np.zeros(len(begin) - len(for_all), dtype=bool))
        # A launch by another thread meanwhile shows that the host went on until then.
        before = np.searchsorted(self.launches_ns, end, side="left") - 1
        latest = np.where(before >= 0, np.append(self.launches_ns, 0)[before], -1)
        return _DeviceWaits(begin, np.maximum(begin, np.minimum(latest, end)), end, piece, for_all)

    @cached_property
    def _queues(self) -> list[_Queue]:
        """Queues of the streams that held up launches."""
        pieces, kernels = self.pieces, self.index.trace.kernels
        returned, found = kernels["return_ns"][pieces.kernel], []
        launches = np.flatnonzero((pieces.launch_ns >= 0) & ~pieces.leaves)
        for mine in GroupBy(pieces.stream[launches]):
            rows = launches[mine]
            rows = rows[order_by(pieces.launch_ns[rows], pieces.begin_ns[rows])]
            rows = rows[GroupBy.runs(pieces.launch_ns[rows]).first]  # a graph is one launch
            queue = full_queue(pieces.launch_ns[rows], returned[rows], pieces.begin_ns[rows], pieces.end_ns[rows])
            if queue is None:
                continue
            place = np.arange(len(rows))
            source = np.where(place >= queue.ahead_count, rows[np.maximum(place - queue.ahead_count, 0)], -1)
            held = np.zeros(len(rows), dtype=bool)
            held[queue.held] = True
            held &= source >= 0
            found.append(_Queue(pieces.launch_ns[rows], returned[rows], source, held, queue.usual_ns))
        return found

    def add_queues(self) -> None:
        """No launch returns before there is a place in its queue, also one that was not held in the recording."""
        for queue in self._queues:
            known = ~queue.held & (queue.source >= 0) & (queue.return_ns >= queue.launch_ns)
            known &= self.pieces.end_ns[queue.source] <= queue.return_ns
            resumed, _ = self.host.next_begun(queue.return_ns[known])
            self.parts.edge(self.nodes[queue.source[known]], resumed, EdgeKind.SYNC)

    def add_streams(self) -> None:
        """Add pieces in the order of their streams, after their launches and after the work of other streams."""
        pieces, parts, kernels = self.pieces, self.parts, self.index.trace.kernels
        is_copy = kernels["work_code"][pieces.kernel] == DeviceWork.COPY
        nodes = self.nodes = parts.add(
            len(pieces),
            rank=self.thread.rank,
            step=step_of(self.steps, pieces.begin_ns),
            resource=Resource.STREAM,
            kind=_kinds(self.index, pieces),
            process_id=self.thread.process_id,
            begin_ns=pieces.begin_ns,
            end_ns=pieces.end_ns,
            moved_bytes=np.where(is_copy, kernels["size_bytes"][pieces.kernel], -1),
            row=pieces.kernel,
        )
        before_ns = np.where(pieces.first, -NEVER, np.append(-NEVER, pieces.end_ns[:-1]))
        # Work of one stream may overlap a little, by the resolution of its clock.
        lag = np.minimum(pieces.begin_ns - before_ns, 0)
        parts.edge(np.where(pieces.first, -1, np.append(-1, nodes[:-1])), nodes, EdgeKind.STREAM, lag)
        self._order_streams(np.maximum(before_ns, self._launch(before_ns)))

    def _launch(self, before_ns: Int64) -> Int64:
        """Add edges from the host to what it launched.

        Returns the earliest begin that each launch allows, ``-NEVER`` where the launch is unknown.
        """
        pieces = self.pieces
        known = (pieces.launch_ns >= 0) & ~pieces.leaves
        latency = pieces.begin_ns - pieces.launch_ns
        alone = known & (before_ns <= pieces.launch_ns)
        # Work that waited for another stream took longer for that: the fast launches show the latency.
        usual = (
            float(np.quantile(latency[alone if alone.any() else known], POLICY.quick_launch_quantile))
            if known.any()
            else 0.0
        )
        usual = min(usual, POLICY.longest_launch_ns)
        way = int64(np.where(latency <= POLICY.usual_launch_times * max(usual, 1.0), latency, usual))
        source, ended_ns = self.host.last_ended(pieces.launch_ns)
        known &= source >= 0
        lag = way + pieces.launch_ns - ended_ns
        self.parts.edge(np.where(known, source, -1), self.nodes, EdgeKind.LAUNCH, lag)
        return int64(np.where(known, pieces.launch_ns + way, -NEVER))

    def _order_streams(self, allowed_ns: Int64) -> None:
        """Add edges between streams: where a piece was late, and where torch makes a collective wait for compute."""
        pieces, nodes = self.pieces, self.nodes
        works = ~pieces.leaves
        order = np.argsort(pieces.end_ns, kind="stable")
        order = order[(pieces.collective[order] < 0) | pieces.leaves[order]]
        last = np.searchsorted(pieces.end_ns[order], pieces.begin_ns, side="right") - 1
        source = np.append(order, -1)[last]
        ended = pieces.end_ns[source]
        late = works & (pieces.begin_ns > allowed_ns + POLICY.on_time_ns) & (last >= 0)
        late &= (ended > allowed_ns) & (pieces.begin_ns - ended <= POLICY.handed_over_ns)
        late &= pieces.stream[source] != pieces.stream
        self.parts.edge(np.where(late, nodes[source], -1), nodes, EdgeKind.ORDER, pieces.begin_ns - ended)
        self._start_in_blocking_copies(works & ~late & (pieces.begin_ns > allowed_ns + POLICY.longest_launch_ns))

        kernels = self.index.trace.kernels
        talks = kernels["work_code"][pieces.kernel] == DeviceWork.COMMUNICATION
        computes = np.flatnonzero(~talks & (pieces.launch_ns >= 0))
        computes = computes[np.argsort(pieces.launch_ns[computes], kind="stable")]
        self._after_what_computed(computes, np.flatnonzero(talks & works & (pieces.launch_ns >= 0)))
        self._before_updates(computes, np.flatnonzero(talks & ((pieces.collective < 0) | pieces.leaves)))

    def _start_in_blocking_copies(self, unexplained: Bools) -> None:
        """Work that nothing else delayed, and that began while the host stood in a blocking copy, waited for that call.

        A copy from pageable memory is staged by the host inside its call. What else such a call does before the device
        may go on is not recorded; the time from its begin is kept in a replay.
        """
        pieces, calls = self.pieces, self.index.trace.device_calls
        rows = self.index.device_calls.rows(self.thread.process_id)
        rows = rows[calls["call_code"][rows] == DeviceCall.COPY]
        rows = rows[np.argsort(calls["begin_ns"][rows], kind="stable")]
        begin, end = calls["begin_ns"][rows], calls["end_ns"][rows]
        late = np.flatnonzero(unexplained)
        at = np.searchsorted(begin, pieces.begin_ns[late], side="right") - 1
        late, at = late[at >= 0], at[at >= 0]
        inside = end[at] + CLOCKS_AGREE_NS >= pieces.begin_ns[late]
        late, at = late[inside], at[inside]
        source, ended_ns = self.host.last_ended(begin[at])
        self.parts.edge(source, self.nodes[late], EdgeKind.LAUNCH, pieces.begin_ns[late] - ended_ns)

    def _after_what_computed(self, computes: Int64, asks: Int64) -> None:
        """A collective waits for the work that was launched before it: torch makes its stream wait."""
        pieces = self.pieces
        if not len(computes) or not len(asks):
            return
        at = np.searchsorted(pieces.launch_ns[computes], pieces.launch_ns[asks], side="left") - 1
        source = computes[np.maximum(at, 0)]
        since = pieces.begin_ns[asks] - pieces.end_ns[source]
        fits = (at >= 0) & (since >= 0) & (pieces.stream[source] != pieces.stream[asks])
        lag = np.minimum(since, POLICY.handed_over_ns)
        self.parts.edge(np.where(fits, self.nodes[source], -1), self.nodes[asks], EdgeKind.ORDER, lag)

    def _before_updates(self, computes: Int64, done: Int64) -> None:
        """An update waits for the collectives launched before it, even if they were hidden and never delayed it."""
        pieces = self.pieces
        begin, end = update_windows(self.index.trace, self.thread.process_id)
        at = np.searchsorted(pieces.launch_ns[computes], begin, side="left")
        known = at < len(computes)
        first = computes[at[known]]
        first = first[pieces.launch_ns[first] < end[known]]
        for source in self._last_launched(done, pieces.launch_ns[first], pieces.begin_ns[first]):
            self.parts.edge(source, self.nodes[first], EdgeKind.ORDER)

    def _last_launched(self, rows: Int64, moments: Int64, until_ns: Int64) -> Iterator[Int64]:
        """Yield for each stream the last node that was launched before each moment.

        ``rows``: pieces that count. ``until_ns``: when the piece must have ended; else -1 is yielded in its place.
        """
        pieces = self.pieces
        for of_stream in GroupBy(pieces.stream[rows]):
            mine = rows[of_stream]
            last = np.searchsorted(_latest_launches(pieces, mine), moments, side="left") - 1
            piece = mine[np.maximum(last, 0)]
            yield np.where((last >= 0) & (pieces.end_ns[piece] <= until_ns), self.nodes[piece], -1)

    def add_collectives(self, transfers: Transfers) -> None:
        """A transfer begins when its last member has joined, and a member leaves when it has ended."""
        pieces, nodes = self.pieces, self.nodes
        joins = np.flatnonzero((pieces.collective >= 0) & ~pieces.leaves)
        row = pieces.collective[joins]
        lag = np.maximum(self.index.entered_ns[row] - pieces.begin_ns[joins], 0)
        self.parts.edge(nodes[joins], transfers.node[row], EdgeKind.MEMBER, lag)
        leaves = np.flatnonzero(pieces.leaves)
        row = pieces.collective[leaves]
        lag = pieces.begin_ns[leaves] - transfers.end_ns[row]
        self.parts.edge(transfers.node[row], nodes[leaves], EdgeKind.RELEASE, lag)

    def add_device_waits(self) -> None:
        """After a call that waited for the device the host goes on when the work has ended.

        A call that waits for a whole device waits for the last of all its streams, whichever that is in a replay.
        """
        pieces, stood = self.pieces, self._device_waits
        resumed, begin_ns = self.host.next_begun(stood.end_ns)
        lag = np.minimum(begin_ns, stood.end_ns) - pieces.end_ns[stood.piece]
        self.parts.edge(self.nodes[stood.piece], resumed, EdgeKind.SYNC, lag)
        for source in self._last_launched(np.arange(len(pieces)), stood.called_ns, stood.end_ns):
            self.parts.edge(np.where(stood.for_all, source, -1), resumed, EdgeKind.SYNC)

    def add_ends(self) -> None:
        """Add the end of each step: all that was launched in it is done, and the host has come to its end."""
        parts, steps = self.parts, self.steps
        end, boundary = steps["end_ns"], self.host_steps["end_ns"]
        nodes = parts.add(
            len(steps),
            rank=self.thread.rank,
            step=steps["step"],
            resource=Resource.STREAM,
            kind=StallKind.OTHER,
            process_id=self.thread.process_id,
            begin_ns=end,
            end_ns=end,
        )
        for source in self._last_launched(np.arange(len(self.pieces)), boundary, end):
            parts.edge(source, nodes, EdgeKind.STREAM)
        source, ended_ns = self.host.last_ended(boundary)
        parts.edge(np.where(boundary <= end, source, -1), nodes, EdgeKind.LAUNCH, boundary - ended_ns)
        parts.end_steps(nodes, self.thread.rank, steps, before=int(self.before[0]))


def _latest_launches(pieces: _Pieces, rows: Int64) -> Int64:
    """Return the latest time at which each piece of one stream can have been launched, ascending.

    Work whose launch is not known was launched before what follows it on its stream, and before it began.
    """
    launch = pieces.launch_ns[rows]
    later = np.minimum.accumulate(np.where(launch >= 0, launch, NEVER)[::-1])[::-1]
    return int64(np.maximum.accumulate(np.where(launch >= 0, launch, np.minimum(later, pieces.begin_ns[rows]))))


def _pieces(index: TraceIndex, thread: StepThread, transfers: Transfers) -> _Pieces:
    kernels, rows = index.trace.kernels, index.kernels.rows(thread.process_id)
    work = kernels["work_code"][rows]
    rows = rows[(work != DeviceWork.SYNCHRONIZATION) & (kernels["end_ns"][rows] >= kernels["begin_ns"][rows])]
    collective = _collective_of(index, thread, rows)
    shared = transfers.node_of(collective) >= 0
    op = np.concatenate([np.arange(len(rows)), np.flatnonzero(shared)])
    leaves = np.arange(len(op)) >= len(rows)
    begin, end = kernels["begin_ns"][rows][op], kernels["end_ns"][rows][op]
    begin = np.where(leaves, end, begin)
    end = np.where(leaves | ~shared[op], end, begin)
    stream = kernels["track_id"][rows][op]
    # Where a piece ends as the next one begins, the earlier one comes first.
    order = np.lexsort((leaves, kernels["begin_ns"][rows][op], begin, stream))
    stream = stream[order]
    first = np.ones(len(order), dtype=bool)
    first[1:] = stream[1:] != stream[:-1]
    op = op[order]
    return _Pieces(
        rows[op],
        np.where(shared, collective, -1)[op],
        stream,
        begin[order],
        end[order],
        kernels["launch_ns"][rows][op],
        leaves[order],
        first,
    )


def _collective_of(index: TraceIndex, thread: StepThread, rows: Int64) -> Int64:
    """Return the collective that each communicating kernel carries out, by its stream and time; -1 for none."""
    kernels, table, seen = index.trace.kernels, index.trace.collectives, index.on_devices
    collective = np.full(len(rows), -1, dtype=np.int64)
    places = index.collectives.rows(thread.process_id)
    places = places[seen.timed[places]]
    talks = np.flatnonzero(kernels["work_code"][rows] == DeviceWork.COMMUNICATION)
    for stream in np.unique(kernels["track_id"][rows[talks]]).tolist():
        mine = talks[kernels["track_id"][rows[talks]] == stream]
        given = places[np.isin(table["stream_track_id"][places], (stream, -1))]
        given = given[np.argsort(seen.begin_ns[given], kind="stable")]
        middle = (kernels["begin_ns"][rows[mine]] + kernels["end_ns"][rows[mine]]) // 2
        at = window_around(middle, middle, seen.begin_ns[given], seen.end_ns[given])
        # An operation of several kernels is entered with the first; the others are separate work.
        _, first = np.unique(at[at >= 0], return_index=True)
        chosen = np.flatnonzero(at >= 0)[first]
        collective[mine[chosen]] = given[at[chosen]]
    return collective


def _kinds(index: TraceIndex, pieces: _Pieces) -> Int64:
    """Return the kind that the time of each piece has in the budget if nothing hides it."""
    kernels = index.trace.kernels
    work, direction = kernels["work_code"][pieces.kernel], kernels["copy_code"][pieces.kernel]
    inside_host = np.append(index.in_flight.link, 0)[pieces.collective] == 0
    talks, copies = work == DeviceWork.COMMUNICATION, work == DeviceWork.COPY
    choices = [
        (talks & inside_host, StallKind.INTERCONNECT),
        (talks, StallKind.NETWORK),
        (copies & (direction == CopyDirection.PEER), StallKind.INTERCONNECT),
        (copies & (direction != CopyDirection.DEVICE_TO_DEVICE), StallKind.H2D),
    ]
    conditions, kinds = zip(*choices, strict=True)
    return int64(np.select(conditions, [int(kind) for kind in kinds], int(StallKind.COMPUTE)))
