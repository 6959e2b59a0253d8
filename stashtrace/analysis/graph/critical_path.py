"""The critical path of a run, from its end back along what each piece of work waited for last; and slack.

rank 0      [ compute ]......wait......[ compute ]       the path turns to whoever came last
rank 1      [ compute, late     ]~.    .->[ compute ]
transfer                          '[ all_reduce ]
path        [ rank 1            ][ all_reduce ][ rank 0 ]  without a gap: its parts add up to the run
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

import numpy as np

from stashtrace._native import graph as native
from stashtrace.analysis.collectives.matching import contact_errors
from stashtrace.analysis.graph.policy import POLICY
from stashtrace.analysis.graph.work_graph import NO_SLACK, Graph, Int8, Int32, Resource
from stashtrace.analysis.intervals import NEVER, Bools, Int64, TimeSet, int64, ranges
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.errors import MissingDataError
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.trace import Trace


class Part(IntEnum):
    """Part of a node's time on the critical path."""

    GAP = 0  # before its work: what it waited for was done, and nothing explains why it did not begin
    WORK = 1
    LAG = 2  # after its work: the fixed time of an edge


@dataclass(frozen=True)
class Course:
    """A graph at fixed times, with one more node: the end of the run, which waits for the last node of each rank."""

    graph: Graph
    #: Order of the nodes with the end.
    plan: native.Plan
    #: Of edges: those of the graph, then one from each rank's last node to the end.
    source: Int32
    target: Int32
    #: Of edges, at these times: an edge that contradicts them, as clock errors make, has the lag that was left.
    lag_ns: Int64
    #: When everything that each node waits for was done; its gap begins.
    ready_ns: Int64
    #: Of the nodes' work.
    begin_ns: Int64
    end_ns: Int64
    #: The edge that each node waited for last, -1 if it waited for none.
    binding: Int32

    @classmethod
    def of(cls, graph: Graph) -> Course:
        """Take times as measured. Raises MissingDataError if no step of the graph ends."""
        if not len(graph.ends):
            raise MissingDataError("no step of the run ends", hint="the critical path leads back from the last step")
        finish = graph.end_ns[graph.ends] + graph.ends_lag_ns
        order = np.lexsort((finish, graph.ends_rank))
        last = order[np.append(graph.ends_rank[order][1:] != graph.ends_rank[order][:-1], True)]
        stop = int(finish.max())
        begin, end = np.append(graph.begin_ns, stop), np.append(graph.end_ns, stop)
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
        ready = np.where(ready > -NEVER, ready, begin - np.append(graph.gap_ns, 0))  # no edge leads to it
        _, binding = plan.replay(ready, end - ready, lag)
        return cls(graph, plan, source, target, int64(lag), int64(ready), int64(begin), int64(end), binding)

    @property
    def stop_ns(self) -> int:
        """When the last step of the last rank ends."""
        return int(self.end_ns[-1])

    @cached_property
    def path(self) -> Int64:
        """Nodes that lead to the end, the first one first: each is what the next one waited for last."""
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

        Gaps belong to the node behind them, the lags of edges to the node before. Where a node begins before the one it
        waited for has ended (a negative lag), the later node holds the path.
        """
        ready = np.append(self.ready_ns[self.path], self.stop_ns)
        return np.minimum.accumulate(ready[::-1])[::-1]

    @cached_property
    def slack_ns(self) -> Int64:
        """Time by which each node could end later without the run ending later; -1 where the end does not wait for it.

        0 on the critical path, and on any other path that is as long.
        """
        last = np.array([len(self.graph)], dtype=np.int32)
        slack: Int64 = self.plan.slack(self.ready_ns, self.end_ns - self.ready_ns, self.lag_ns, last, NO_SLACK)
        return slack[:-1]

    @cached_property
    def steps(self) -> tuple[Int64, Int64]:
        """Numbers of the run's steps, and when the last rank had ended each."""
        steps = GroupBy(self.graph.ends_step)
        until = steps.max(self.end_ns[self.graph.ends] + self.graph.ends_lag_ns)
        return int64(steps.values), np.maximum.accumulate(until)

    @cached_property
    def counted_steps(self) -> Int64:
        """Steps that shares are taken over: no warm-up, and not the first, which does not begin with another's end."""
        steps = self.steps[0]
        counted = np.isin(steps, self.graph.ends_step[self.graph.ends_counted])
        later = steps > steps[0]
        chosen = counted & later if (counted & later).any() else later
        return steps[chosen] if chosen.any() else steps


@dataclass(frozen=True, slots=True)
class Pieces:
    """The critical path in pieces. Each begins where the one before ends, none is empty."""

    begin_ns: Int64
    end_ns: Int64
    #: Node whose time it is.
    node: Int64
    #: :class:`Part` of the node's time.
    part: Int64
    #: Edge of a lag; else -1.
    edge: Int64

    @classmethod
    def of(cls, course: Course) -> Pieces:
        """Cut the whole path, from the begin of its first node to the end of the run."""
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
        """Return the piece at each moment; -1 before the first one, the last one behind the end."""
        return int64(np.searchsorted(self.begin_ns, moments, side="right") - 1)

    def cut(self, moments: Int64) -> tuple[Pieces, Int64]:
        """Cut the path at these moments; return its pieces, and the former piece of each."""
        if not len(self):
            return self, np.empty(0, dtype=np.int64)
        inside = moments[(moments > self.begin_ns[0]) & (moments < self.end_ns[-1])]
        begin = np.sort(np.concatenate([self.begin_ns, inside]))  # np.unique takes ten times as long
        begin = begin[np.append(True, begin[1:] != begin[:-1])]
        former = self.at(begin)
        end = np.append(begin[1:], self.end_ns[-1])
        return Pieces(begin, end, self.node[former], self.part[former], self.edge[former]), former


def rivals(course: Course, pieces: Pieces, clocks: Clocks) -> Overlaps:
    """Find work next to the path that the run may have waited for: its slack is within the error of the clocks."""
    graph, slack = course.graph, course.slack_ns
    chosen = np.ones(len(graph), dtype=bool)
    chosen[course.path] = False
    chosen &= (slack >= 0) & (slack <= clocks.widest_ns)
    nodes = np.flatnonzero(chosen & (graph.end_ns > graph.begin_ns))
    begin, end = course.begin_ns[nodes], course.end_ns[nodes]
    first = np.searchsorted(pieces.end_ns, begin, side="right")
    count = np.maximum(np.searchsorted(pieces.begin_ns, end, side="left") - first, 0)
    row, piece = np.repeat(np.arange(len(nodes)), count), ranges(first, first + count)
    node = nodes[row]
    near = slack[node] <= clocks.apart_ns(node, pieces.node[piece])
    shared_begin = np.maximum(begin[row], pieces.begin_ns[piece])
    shared_end = np.minimum(end[row], pieces.end_ns[piece])
    return Overlaps(piece[near], node[near], shared_begin[near], shared_end[near])


@dataclass(frozen=True, slots=True)
class Overlaps:
    """Pieces of the path, nodes next to it, and the time that both share."""

    piece: Int64
    node: Int64
    begin_ns: Int64
    end_ns: Int64

    @property
    def shared_ns(self) -> Int64:
        """Length of the shared time."""
        return self.end_ns - self.begin_ns

    def ambiguous(self, pieces: Pieces) -> Bools:
        """Return the pieces during which such work ran for at least half of their time."""
        shared = TimeSet.of(self.begin_ns, self.end_ns).within(pieces.begin_ns, pieces.end_ns)
        return (shared > 0) & (2 * shared >= pieces.held_ns)


@dataclass(frozen=True, slots=True)
class Clocks:
    """Clocks behind the times of each node, and their errors: within these, two paths tie."""

    #: Number of the host's clock; negative if several clocks are behind the node.
    host: Int64
    #: Half-width of the interval that holds the offset of that clock; of several clocks, the widest.
    host_error_ns: Int64
    #: Error that a device's clock adds; 0 for nodes that a host timed.
    device_error_ns: Int64
    #: -1 for transfers.
    process_id: Int64
    #: Error of a reading of one clock.
    reading_ns: int

    @property
    def widest_ns(self) -> int:
        """Largest distance of two times whose order is in doubt."""
        between = max(int(self.host_error_ns.max(initial=0)), self.reading_ns)
        return 2 * (between + int(self.device_error_ns.max(initial=0)))

    def apart_ns(self, a: Int64, b: Int64) -> Int64:
        """Return the doubt about the order of pairs of nodes: none within one process and one clock."""
        one_host = (self.host[a] == self.host[b]) & (self.host[a] >= 0)
        between = np.where(one_host, 2 * self.reading_ns, self.host_error_ns[a] + self.host_error_ns[b])
        own_a, own_b = self.device_error_ns[a], self.device_error_ns[b]
        one_clock = (
            (self.process_id[a] == self.process_id[b]) & (self.process_id[a] >= 0) & ((own_a > 0) == (own_b > 0))
        )
        return int64(np.where(one_clock, 0, between + own_a + own_b))


def clocks_of(index: TraceIndex, graph: Graph) -> Clocks:
    """Look up the clocks of the nodes in ``alignment`` and ``device_clocks``; a transfer has those of all its ranks."""
    trace = index.trace
    processes, alignment = trace.processes, trace.alignment
    error_of = dict(zip(alignment["boot_code"].tolist(), contact_errors(trace).tolist(), strict=True))
    reading = alignment["error_ns"][alignment["boot_code"] == alignment["reference_code"]]
    clock = np.full(int(processes["process_id"].max(initial=-1)) + 2, -1, dtype=np.int64)  # the last: no process
    clock[processes["process_id"]] = processes["boot_code"]
    error = int64([error_of.get(boot, 0) for boot in clock.tolist()])
    device = _device_errors(trace, len(clock))
    host, host_error = clock[graph.process_id], error[graph.process_id]
    on_device = np.isin(graph.resource, (Resource.STREAM, Resource.DEVICE))
    device_error = np.where(on_device, device[graph.process_id], 0)

    transfers = np.flatnonzero((graph.resource == Resource.TRANSFER) & (graph.row >= 0))
    if len(transfers):
        operations = GroupBy(trace.collectives["group_hash"], trace.collectives["sequence"])
        owner, mine = trace.collectives["process_id"], operations.number[graph.row[transfers]]
        lowest = operations.min(clock[owner])
        host[transfers] = np.where(lowest == operations.max(clock[owner]), lowest, -1)[mine]
        host_error[transfers] = operations.max(error[owner])[mine]
        timed = np.where(index.timed_on_device, device[owner], 0)
        device_error[transfers] = operations.max(timed)[mine]
    return Clocks(host, host_error, device_error, graph.process_id, int(reading.max(initial=0)))


def _device_errors(trace: Trace, count: int) -> Int64:
    """Return the largest error of the device clocks of each process."""
    errors = np.full(count, POLICY.least_device_error_ns, dtype=np.int64)
    clocks = trace.device_clocks
    np.maximum.at(errors, clocks["process_id"], clocks["error_ns"])
    return errors
