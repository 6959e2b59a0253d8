"""The critical path of a run: from its end back along what each piece of work waited for last; and slack beside it.

rank 0      [ compute ]......wait......[ compute ]       the path turns to whoever came last
rank 1      [ compute, late     ]~.    .->[ compute ]
transfer                          '[ all_reduce ]
path        [ rank 1            ][ all_reduce ][ rank 0 ]  without a hole: its parts add up to the run
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

import numpy as np
import numpy.typing as npt

from stashtrace._native import graph as native
from stashtrace.analysis.collectives.matching import blocks, contact_errors
from stashtrace.analysis.graph.model import NO_SLACK, Graph, Int8, Int32, Replayed, Resource
from stashtrace.analysis.intervals import NEVER, Int64, TimeSet, int64
from stashtrace.analysis.stalls.index import TraceIndex
from stashtrace.errors import MissingDataError
from stashtrace.schema.trace import Trace


class Part(IntEnum):
    """What a node holds the critical path with."""

    GAP = 0  # before its work: what it waited for was done, and nothing says why it did not begin
    WORK = 1
    LAG = 2  # behind its work: an edge's fixed time


@dataclass(frozen=True)
class Course:
    """A graph at fixed times. One more node stands behind all others: the end of the run, which waits for each rank's.

    Attributes
    ----------
    graph : Graph
    plan : Plan
        Order of the nodes with the end.
    source, target : int32 array
        Of edges: those of the graph, then one from each rank's last node to the end.
    lag_ns : int array
        Of edges, as they were: an edge that the times contradict, as clock errors make, has what was left for it.
    ready_ns : int array
        Of nodes: when everything they wait for was done; their gap begins.
    begin_ns, end_ns : int array
        Of the nodes' work.
    binding : int32 array
        The edge that each node waited for last, -1 if it waited for none.
    """

    graph: Graph
    plan: native.Plan
    source: Int32
    target: Int32
    lag_ns: Int64
    ready_ns: Int64
    begin_ns: Int64
    end_ns: Int64
    binding: Int32

    @classmethod
    def of(cls, graph: Graph, replayed: Replayed | None = None) -> Course:
        """Times as measured, or those of a replay.

        Raises
        ------
        MissingDataError
            If no step of the graph ends.
        """
        if not len(graph.ends):
            raise MissingDataError("no step of the run ends", hint="the critical path leads back from the last one")
        if replayed is None:
            begin, end = graph.begin_ns, graph.end_ns
        else:
            begin, end = replayed.begin_ns + graph.gap_ns, replayed.end_ns
        finish = end[graph.ends] + graph.ends_lag_ns
        order = np.lexsort((finish, graph.ends_rank))
        last = order[np.append(graph.ends_rank[order][1:] != graph.ends_rank[order][:-1], True)]
        stop = int(finish.max())
        begin, end = np.append(begin, stop), np.append(end, stop)
        source = np.concatenate([graph.source, graph.ends[last]]).astype(np.int32)
        target = np.concatenate([graph.target, np.full(len(last), len(graph))]).astype(np.int32)
        lag = np.concatenate([graph.lag_ns, graph.ends_lag_ns[last]])
        lag = np.minimum(lag, begin[target] - end[source])
        certainty: Int8 = np.concatenate([-graph.edge_kind, np.zeros(len(last))]).astype(np.int8)
        plan = native.Plan(source, target, begin, certainty)
        kept = np.ones(len(source), dtype=bool)
        kept[plan.cut()] = False
        ready = np.full(len(begin), -NEVER, dtype=np.int64)
        np.maximum.at(ready, target[kept], (end[source] + lag)[kept])
        ready = np.where(ready > -NEVER, ready, begin - np.append(graph.gap_ns, 0))
        _, binding = plan.replay(ready, end - ready, lag)
        return cls(graph, plan, source, target, int64(lag), int64(ready), int64(begin), int64(end), binding)

    @property
    def stop_ns(self) -> int:
        """When the last step of the last rank ends."""
        return int(self.end_ns[-1])

    @cached_property
    def path(self) -> Int64:
        """Nodes that lead to the end, each the one that the next waited for last; first one first, without the end."""
        before = np.where(self.binding >= 0, self.source[self.binding], -1)
        parents = int64(before).data
        nodes = []
        node = parents[len(parents) - 1]
        while node >= 0:
            nodes.append(node)
            node = parents[node]
        return np.array(nodes[::-1], dtype=np.int64)

    @property
    def path_bounds_ns(self) -> Int64:
        """Begin of each path node's part of the critical path, then the end of the run.

        Gaps belong to the node behind them, the lags of edges to the node before. Where a node begins before the one
        it waited for has ended (a negative lag), the later node holds the path.
        """
        ready = np.append(self.ready_ns[self.path], self.stop_ns)
        return np.minimum.accumulate(ready[::-1])[::-1]

    @cached_property
    def slack_ns(self) -> Int64:
        """By how much each node could end later and the run end no later; -1 where nothing that counts waits for it.

        0 on the critical path, and on any other one that is as long.
        """
        last = np.array([len(self.graph)], dtype=np.int32)
        slack: Int64 = self.plan.slack(self.ready_ns, self.end_ns - self.ready_ns, self.lag_ns, last, NO_SLACK)
        return slack[:-1]

    @cached_property
    def steps(self) -> tuple[Int64, Int64]:
        """Numbers of the run's steps, and when the last rank had ended each."""
        steps, at = np.unique(self.graph.ends_step, return_inverse=True)
        until = np.full(len(steps), -NEVER, dtype=np.int64)
        np.maximum.at(until, at, self.end_ns[self.graph.ends] + self.graph.ends_lag_ns)
        return int64(steps), np.maximum.accumulate(until)

    @cached_property
    def counted_steps(self) -> Int64:
        """Steps that shares are made of: no warm-up, and not the first, whose begin is not an end of another one."""
        steps = self.steps[0]
        counted = np.isin(steps, self.graph.ends_step[self.graph.ends_counted])
        later = steps > steps[0]
        chosen = counted & later if (counted & later).any() else later
        return steps[chosen] if chosen.any() else steps


@dataclass(frozen=True, slots=True)
class Pieces:
    """The critical path in pieces: sorted, each begins where the one before ends, none is empty.

    Attributes
    ----------
    begin_ns, end_ns : int array
    node : int array
        Whose time it is.
    part : int array
        :class:`Part`.
    edge : int array
        Of lags, the edge; else -1.
    """

    begin_ns: Int64
    end_ns: Int64
    node: Int64
    part: Int64
    edge: Int64

    @classmethod
    def of(cls, course: Course) -> Pieces:
        """The whole path, from the begin of its first node to the end of the run."""
        nodes, bounds = course.path, course.path_bounds_ns
        low, high = bounds[:-1], bounds[1:]
        work = np.clip(course.begin_ns[nodes], low, high)
        done = np.clip(course.end_ns[nodes], work, high)
        edge = np.full((len(nodes), len(Part)), -1, dtype=np.int64)
        edge[:, Part.LAG] = course.binding[np.append(nodes[1:], len(course.graph))]
        begin, end = (np.stack(times, axis=1).ravel() for times in ((low, work, done), (work, done, high)))
        kept = end > begin
        part = np.tile(np.arange(len(Part), dtype=np.int64), len(nodes))
        return cls(begin[kept], end[kept], np.repeat(nodes, len(Part))[kept], part[kept], edge.ravel()[kept])

    def __len__(self) -> int:
        return len(self.begin_ns)

    @property
    def held_ns(self) -> Int64:
        """Length of each piece."""
        return self.end_ns - self.begin_ns

    def at(self, moments: Int64) -> Int64:
        """Piece that holds the path at each moment; -1 before the first one, the last one behind the end."""
        return int64(np.searchsorted(self.begin_ns, moments, side="right") - 1)

    def cut(self, moments: Int64) -> tuple[Pieces, Int64]:
        """The same path cut at these moments, and the former piece of each."""
        if not len(self):
            return self, np.empty(0, dtype=np.int64)
        inside = moments[(moments > self.begin_ns[0]) & (moments < self.end_ns[-1])]
        begin = np.sort(np.concatenate([self.begin_ns, inside]))  # np.unique takes ten times as long
        begin = begin[np.append(True, begin[1:] != begin[:-1])]
        former = self.at(begin)
        end = np.append(begin[1:], self.end_ns[-1])
        return Pieces(begin, end, self.node[former], self.part[former], self.edge[former]), former


def rivals(course: Course, pieces: Pieces, clocks: Clocks) -> Overlaps:
    """Work beside the path that may be what the run waited for: its slack is within the error of the clocks."""
    graph, slack = course.graph, course.slack_ns
    beside = np.ones(len(graph), dtype=bool)
    beside[course.path] = False
    beside &= (slack >= 0) & (slack <= clocks.widest_ns)
    nodes = np.flatnonzero(beside & (graph.end_ns > graph.begin_ns))
    begin, end = course.begin_ns[nodes], course.end_ns[nodes]
    first = np.searchsorted(pieces.end_ns, begin, side="right")
    count = np.maximum(np.searchsorted(pieces.begin_ns, end, side="left") - first, 0)
    row = np.repeat(np.arange(len(nodes)), count)
    piece = first[row] + np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    node = nodes[row]
    near = slack[node] <= clocks.apart_ns(node, pieces.node[piece])
    shared_begin = np.maximum(begin[row], pieces.begin_ns[piece])
    shared_end = np.minimum(end[row], pieces.end_ns[piece])
    return Overlaps(piece[near], node[near], shared_begin[near], shared_end[near])


@dataclass(frozen=True, slots=True)
class Overlaps:
    """Pieces of the path, nodes beside it, and from when to when both lasted together."""

    piece: Int64
    node: Int64
    begin_ns: Int64
    end_ns: Int64

    @property
    def shared_ns(self) -> Int64:
        """How long."""
        return self.end_ns - self.begin_ns

    def ambiguous(self, pieces: Pieces) -> npt.NDArray[np.bool_]:
        """Pieces beside which such work ran for at least half of their time; what ran at one moment counts once."""
        shared = TimeSet.of(self.begin_ns, self.end_ns).within(pieces.begin_ns, pieces.end_ns)
        return (shared > 0) & (2 * shared >= pieces.held_ns)


# By how much the clocks behind two nodes of a graph may disagree: what makes a tie of two paths.

#: What a device's times may be off by where its clock left no error, as in the matching of collectives.
_LEAST_DEVICE_ERROR_NS = 1


@dataclass(frozen=True, slots=True)
class Clocks:
    """Whose clocks told the times of each node.

    Attributes
    ----------
    host : int array
        One number for each host's clock; negative if several told them.
    host_error_ns : int array
        Half-width of the interval that holds the offset of that clock; of several, the widest.
    device_error_ns : int array
        What a device's clock adds to it; 0 of nodes that a host timed.
    process_id : int array
        -1 of transfers.
    reading_ns : int
        By how much a reading of one clock may be off.
    """

    host: Int64
    host_error_ns: Int64
    device_error_ns: Int64
    process_id: Int64
    reading_ns: int

    @property
    def widest_ns(self) -> int:
        """The most that two times may be apart without having an order."""
        between = max(int(self.host_error_ns.max(initial=0)), self.reading_ns)
        return 2 * (between + int(self.device_error_ns.max(initial=0)))

    def apart_ns(self, a: Int64, b: Int64) -> Int64:
        """By how much the order of pairs of nodes is in doubt: of one process and one clock not at all."""
        one_host = (self.host[a] == self.host[b]) & (self.host[a] >= 0)
        between = np.where(one_host, 2 * self.reading_ns, self.host_error_ns[a] + self.host_error_ns[b])
        own_a, own_b = self.device_error_ns[a], self.device_error_ns[b]
        one_clock = (
            (self.process_id[a] == self.process_id[b]) & (self.process_id[a] >= 0) & ((own_a > 0) == (own_b > 0))
        )
        return int64(np.where(one_clock, 0, between + own_a + own_b))


def clocks_of(index: TraceIndex, graph: Graph) -> Clocks:
    """Clocks of the nodes by ``alignment`` and ``device_clocks``; a transfer's are those of all ranks in it."""
    trace = index.trace
    processes, alignment = trace.processes, trace.alignment
    error_of = dict(zip(alignment["boot_code"].tolist(), contact_errors(trace).tolist(), strict=True))
    reading = alignment["error_ns"][alignment["boot_code"] == alignment["reference_code"]]
    clock = np.full(int(processes["process_id"].max(initial=-1)) + 2, -1, dtype=np.int64)  # the last: of no process
    clock[processes["process_id"]] = processes["boot_code"]
    error = int64([error_of.get(boot, 0) for boot in clock.tolist()])
    device = _device_errors(trace, len(clock))
    host, host_error = clock[graph.process_id], error[graph.process_id]
    on_device = np.isin(graph.resource, (Resource.STREAM, Resource.DEVICE))
    device_error = np.where(on_device, device[graph.process_id], 0)

    transfers = np.flatnonzero((graph.resource == Resource.TRANSFER) & (graph.row >= 0))
    if len(transfers):
        order, block = blocks(trace.collectives)
        owner = trace.collectives["process_id"][order]
        of_row = np.empty(len(order), dtype=np.int64)
        of_row[order] = block
        mine = of_row[graph.row[transfers]]
        low = _extreme(np.minimum, block, clock[owner])
        host[transfers] = np.where(low == _extreme(np.maximum, block, clock[owner]), low, -1)[mine]
        host_error[transfers] = _extreme(np.maximum, block, error[owner])[mine]
        timed = np.where(index.timed_on_device[order], device[owner], 0)
        device_error[transfers] = _extreme(np.maximum, block, timed)[mine]
    return Clocks(host, host_error, device_error, graph.process_id, int(reading.max(initial=0)))


def _device_errors(trace: Trace, count: int) -> Int64:
    """Largest error of the device clocks of each process."""
    errors = np.full(count, _LEAST_DEVICE_ERROR_NS, dtype=np.int64)
    clocks = trace.device_clocks
    np.maximum.at(errors, clocks["process_id"], clocks["error_ns"])
    return errors


def _extreme(ufunc: np.ufunc, block: Int64, values: npt.NDArray[np.int64]) -> Int64:
    """Smallest or largest value of each block."""
    extremes = np.full(int(block[-1]) + 1, NEVER if ufunc is np.minimum else -NEVER, dtype=np.int64)
    ufunc.at(extremes, block, values)
    return extremes
