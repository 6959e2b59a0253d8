"""Build the graph of a run whose step threads were attributed by their hosts.

A rank's time is cut as its budget is: what its thread did is a node, what it waited for an edge. Batches and transfers
are nodes of their own. No loop runs over events, only over ranks, workers and groups.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace._native import intervals
from stashtrace.analysis.batch_layers import BatchWaits, batch_waits
from stashtrace.analysis.collective_layers import Blocked, blocked_on_collectives
from stashtrace.analysis.gap_layers import outer_phase_rows
from stashtrace.analysis.graph.model import EdgeKind, Graph, Resource
from stashtrace.analysis.methods import rank_layers
from stashtrace.analysis.step_threads import StepThread
from stashtrace.analysis.steps import counted_steps, ranks_and_steps
from stashtrace.analysis.timeset import NEVER, Int64, TimeSet, int64
from stashtrace.analysis.trace_index import TraceIndex
from stashtrace.errors import MissingDataError
from stashtrace.model.kinds import BatchPhase, StallKind
from stashtrace.model.table import Table
from stashtrace.model.trace import Trace

#: Kinds of time in which a thread waits for a collective.
_IN_COLLECTIVES = (StallKind.STRAGGLER, StallKind.NETWORK, StallKind.INTERCONNECT)
_NODE_COLUMNS = (
    "rank",
    "step",
    "resource",
    "kind",
    "process_id",
    "begin_ns",
    "end_ns",
    "fetch_ns",
    "moved_bytes",
    "row",
)
#: A worker that was idle for longer before a batch had not been asked for it.
_IDLE_NS = 50_000
#: A thread may go on before the backend notes the end of an operation, by so much on a busy machine.
_TOGETHER_NS = 1_000_000
#: The next index goes out at most so long before the loop has its batch: pinning and unpickling lie between.
_ASKED_NS = 5_000_000


def build(trace: Trace) -> Graph:
    """Graph of all steps of all ranks.

    Parameters
    ----------
    trace : Trace
        Needs steps that the host attributes.

    Raises
    ------
    MissingDataError
        If no rank has steps, or the steps of a rank are attributed by its device.
    """
    index = TraceIndex(trace)
    parts = _Parts()
    ranks = [(thread, own) for thread, own in ranks_and_steps(index.origin, index.steps) if len(own)]
    if not ranks:
        raise MissingDataError("no rank has a step")
    transfers = _transfers(index, parts)
    for thread, own in ranks:
        _rank(index, thread, own.sort_by("begin_ns"), transfers, parts)
    return parts.graph()


@dataclass
class _Parts:
    """Nodes and edges so far."""

    count: int = 0
    nodes: dict[str, list[Int64]] = field(default_factory=lambda: {name: [] for name in _NODE_COLUMNS})
    edges: list[tuple[Int64, Int64, int, Int64]] = field(default_factory=list)
    ends: list[tuple[Int64, Int64, Int64, Int64, Int64]] = field(default_factory=list)

    def add(self, count: int, **columns: Any) -> Int64:
        """Append nodes; columns that are not given are -1, but for ``fetch_ns``."""
        for name, made in self.nodes.items():
            default = 0 if name == "fetch_ns" else -1
            made.append(np.broadcast_to(int64(columns.get(name, default)), (count,)))
        first, self.count = self.count, self.count + count
        return np.arange(first, first + count, dtype=np.int64)

    def edge(self, source: Int64, target: Int64, kind: EdgeKind, lag_ns: Int64 | int = 0) -> None:
        """Append edges between known nodes; those from or to -1 are left out."""
        lag = np.broadcast_to(int64(lag_ns), source.shape)
        known = (source >= 0) & (target >= 0) & (source != target)
        self.edges.append((source[known], target[known], int(kind), lag[known]))

    def graph(self) -> Graph:
        """Everything as columns; what no edge explains is a gap before its node."""
        columns = {name: np.concatenate(made) if made else int64([]) for name, made in self.nodes.items()}
        source, target, lag = (
            np.concatenate([edge[i] for edge in self.edges]) if self.edges else int64([]) for i in (0, 1, 3)
        )
        kind = np.concatenate([np.full(len(edge[0]), edge[2], dtype=np.int64) for edge in self.edges] or [int64([])])
        ready = np.full(self.count, -NEVER, dtype=np.int64)
        np.maximum.at(ready, target, columns["end_ns"][source] + lag)
        gap = np.where(ready > -NEVER, np.maximum(columns["begin_ns"] - ready, 0), 0)
        ends = [np.concatenate([part[i] for part in self.ends]) for i in range(5)]
        return Graph(
            gap_ns=gap,
            source=source.astype(np.int32),
            target=target.astype(np.int32),
            edge_kind=kind.astype(np.int8),
            lag_ns=int64(lag),
            ends=ends[0].astype(np.int32),
            ends_rank=ends[1],
            ends_step=ends[2],
            ends_lag_ns=ends[3],
            ends_counted=ends[4] > 0,
            **columns,
        )


@dataclass(frozen=True, slots=True)
class _Cells:
    """What a step thread did, in order, cut wherever something else may begin; some are moments."""

    begin: Int64
    end: Int64

    @classmethod
    def of(cls, time: TimeSet, begin: Int64, end: Int64, points: Int64, moments: Int64) -> _Cells:
        """A set cut at the begins and ends of other intervals and at points; moments that no cell ends at are cells."""
        cuts = np.unique(np.concatenate([begin, end, points, time.begin[:1], time.end[-1:]]))
        cut_begin, cut_end, _ = time.pieces(cuts[:-1], cuts[1:])
        moments = np.unique(moments)
        inside = (moments >= time.begin[0]) & (moments <= time.end[-1]) & ~np.isin(moments, cut_end)
        bare = moments[inside]
        begins, ends = np.concatenate([cut_begin, bare]), np.concatenate([cut_end, bare])
        order = np.lexsort((ends, begins))
        return cls(begins[order], ends[order])

    def __len__(self) -> int:
        return len(self.begin)


@dataclass(frozen=True, slots=True)
class _Transfers:
    """Transfers by row of ``index.trace.collectives``.

    Attributes
    ----------
    node
        Node of each row's transfer, -1 if there is none.
    end_ns, own_end_ns
        Of the node, when the first member was done; and of the row's own member.
    """

    node: Int64
    end_ns: Int64
    own_end_ns: Int64


def _transfers(index: TraceIndex, parts: _Parts) -> _Transfers:
    """One node for each collective that ended: from its last member's entry to its first member's end."""
    table, matched = index.trace.collectives, index.in_flight
    count = len(table)
    ended = (matched.end_ns < NEVER) & (matched.last_enter_ns < NEVER) & (matched.last_enter_ns > -NEVER)
    rows = np.flatnonzero(ended)
    node, end_of = np.full(count, -1, dtype=np.int64), np.full(count, NEVER, dtype=np.int64)
    if not len(rows):
        return _Transfers(node, end_of, end_of)
    # Rows of one operation have one group and number; a group whose hash two communicators share is one queue.
    order = rows[np.lexsort((table["sequence"][rows], table["group_hash"][rows]))]
    group, number = table["group_hash"][order], table["sequence"][order]
    first = np.ones(len(order), dtype=bool)
    first[1:] = (group[1:] != group[:-1]) | (number[1:] != number[:-1])
    starts = np.flatnonzero(first)
    enter = np.maximum.reduceat(np.maximum(matched.last_enter_ns[order], index.entered_ns[order]), starts)
    done = np.minimum.reduceat(matched.end_ns[order], starts)
    new_group = np.ones(len(starts), dtype=bool)
    new_group[1:] = group[starts][1:] != group[starts][:-1]
    begin = _queued(enter, done, new_group)
    done = np.maximum(done, begin)
    kind = np.where(matched.link[order[starts]] == 0, StallKind.INTERCONNECT, StallKind.NETWORK)
    moved = np.maximum.reduceat(table["message_bytes"][order], starts)
    made = parts.add(
        len(starts),
        resource=Resource.TRANSFER,
        kind=kind,
        begin_ns=begin,
        end_ns=done,
        moved_bytes=moved,
        row=order[starts],
    )
    parts.edge(np.where(new_group[1:], -1, made[:-1]), made[1:], EdgeKind.QUEUE)
    of_row = np.cumsum(first) - 1
    node[order], end_of[order] = made[of_row], done[of_row]
    return _Transfers(node, end_of, matched.end_ns)


def _queued(enter: Int64, done: Int64, new_group: npt.NDArray[np.bool_]) -> Int64:
    """When each transfer had the group's queue for itself: entered by all, and the one before it done."""
    before = np.concatenate([[-NEVER], done[:-1]])
    return np.where(new_group, enter, np.minimum(np.maximum(enter, before), np.maximum(done, enter)))


def _rank(index: TraceIndex, thread: StepThread, steps: Table, transfers: _Transfers, parts: _Parts) -> None:
    """Nodes of a rank's step thread and workers, and their edges."""
    if (steps["clock_code"] != 0).any():
        raise MissingDataError(
            f"the steps of rank {thread.rank} are those of its device, whose work is not part of the graph",
            hint="a graph is made of ranks whose steps their hosts attribute",
        )
    loads = batch_waits(index, thread)
    blocked = blocked_on_collectives(index, thread, loads.time)
    handed = (loads.made_by >= 0) & (loads.made_by != thread.process_id) & (loads.made_ns < NEVER)
    life = TimeSet.of([int(steps["begin_ns"][0])], [int(steps["end_ns"][-1])])

    layers = rank_layers(index, thread).layers
    begin, end, layer = intervals.paint([(x.time.begin, x.time.end) for x in layers])
    kinds = np.array([x.kind for x in layers], dtype=np.int64)[layer]
    in_collectives = TimeSet.of(begin[np.isin(kinds, _IN_COLLECTIVES)], end[np.isin(kinds, _IN_COLLECTIVES)])
    known = (blocked.row >= 0) & (np.append(transfers.node, -1)[blocked.row] >= 0)
    waits = in_collectives & TimeSet.of(blocked.begin[known], blocked.end[known])
    waits = waits | TimeSet.of(loads.begin[handed], np.minimum(loads.made_ns, loads.end)[handed])

    rows = index.collectives.rows(thread.process_id)
    calls = index.entered_ns[rows]
    phases = outer_phase_rows(index, thread)
    edges = [
        calls,
        steps["end_ns"],
        loads.begin,
        loads.end,
        *(index.trace.phases[n][phases] for n in ("begin_ns", "end_ns")),
    ]
    cells = _Cells.of(life - waits, begin, end, np.concatenate(edges), calls)
    at = np.searchsorted(begin, cells.begin, side="right") - 1
    inside = (at >= 0) & (cells.begin < np.append(end, -1)[at])
    kind = np.where(inside, np.append(kinds, -1)[at], StallKind.OTHER)
    place = np.searchsorted(steps["begin_ns"], cells.begin, side="right") - 1
    nodes = parts.add(
        len(cells),
        rank=thread.rank,
        step=steps["step"][place],
        resource=Resource.STEP_THREAD,
        kind=kind,
        process_id=thread.process_id,
        begin_ns=cells.begin,
        end_ns=cells.end,
    )
    parts.edge(nodes[:-1], nodes[1:], EdgeKind.PROGRAM)
    _enter(cells, nodes, calls, transfers.node[rows], parts)
    _release(index, thread, cells, nodes, blocked, transfers, parts)
    _batches(index, thread, cells, nodes, loads, handed, life, parts)
    last = np.searchsorted(cells.end, steps["end_ns"], side="right") - 1
    ended = last >= 0
    parts.ends.append(
        (
            nodes[last[ended]],
            np.full(int(ended.sum()), thread.rank, dtype=np.int64),
            int64(steps["step"][ended]),
            int64(steps["end_ns"][ended] - cells.end[last[ended]]),
            int64(np.isin(steps["step"], counted_steps(steps)["step"])[ended]),
        )
    )


def _enter(cells: _Cells, nodes: Int64, calls: Int64, transfers: Int64, parts: _Parts) -> None:
    """Each transfer begins after the work that came before its call."""
    last = np.searchsorted(cells.end, calls, side="right") - 1
    known = last >= 0
    source = np.where(known, nodes[last], -1)
    parts.edge(source, transfers, EdgeKind.MEMBER, np.where(known, calls - cells.end[last], 0))


def _release(
    index: TraceIndex,
    thread: StepThread,
    cells: _Cells,
    nodes: Int64,
    blocked: Blocked,
    transfers: _Transfers,
    parts: _Parts,
) -> None:
    """After a wait the thread goes on when the transfer has ended, and what this member took longer."""
    row = np.append(transfers.node, -1)[blocked.row]
    known = (blocked.row >= 0) & (row >= 0)
    _let_go(cells, nodes, blocked.end[known], blocked.row[known], transfers, parts)
    waits, mine = index.trace.collective_waits, index.collective_waits.rows(thread.track_id)
    own = index.collectives.rows(thread.process_id)
    keys = index.trace.collectives["collective_key"][own]
    order = np.argsort(keys, kind="stable")
    wanted = waits["collective_key"][mine]
    at = order[np.minimum(np.searchsorted(keys[order], wanted), max(len(keys) - 1, 0))] if len(keys) else int64([])
    if len(at):
        asked = keys[at] == wanted
        _let_go(cells, nodes, waits["end_ns"][mine[asked]], own[at[asked]], transfers, parts)


def _let_go(cells: _Cells, nodes: Int64, wait_end: Int64, rows: Int64, transfers: _Transfers, parts: _Parts) -> None:
    after = np.searchsorted(cells.begin, wait_end, side="left")
    known = (after < len(cells)) & (wait_end > cells.begin[0])
    rows, after = rows[known], after[known]
    later = cells.begin[after] - transfers.end_ns[rows]
    # A thread that goes on while the operation is in flight did not wait for its end. What a member goes on later than
    # its own part of the operation has ended is nobody's doing.
    lag = np.minimum(later, np.maximum(transfers.own_end_ns[rows] - transfers.end_ns[rows], 0))
    parts.edge(np.where(later >= -_TOGETHER_NS, transfers.node[rows], -1), nodes[after], EdgeKind.RELEASE, lag)


def _batches(
    index: TraceIndex,
    thread: StepThread,
    cells: _Cells,
    nodes: Int64,
    loads: BatchWaits,
    handed: npt.NDArray[np.bool_],
    life: TimeSet,
    parts: _Parts,
) -> None:
    """Batches that workers make: one after the other, each after it was asked for; the thread takes what is made."""
    fetches = index.batches_of_phase(BatchPhase.FETCH)
    made = index.fetches.rows(thread.rank)
    made = made[(fetches["process_id"][made] != thread.process_id) & (fetches["end_ns"][made] > life.begin[0])]
    if not len(made):
        return
    order = made[np.lexsort((fetches["begin_ns"][made], fetches["process_id"][made]))]
    begin, end, process = (fetches[name][order] for name in ("begin_ns", "end_ns", "process_id"))
    same = np.concatenate([[False], process[1:] == process[:-1]])
    before = np.concatenate([[0], end[:-1]])
    fetch_ns = np.zeros(len(order), dtype=np.int64)
    for worker in np.unique(process).tolist():
        io, own = index.io, index.io_by_process.rows(worker)
        storage = own[io.is_storage[own]]
        mine = process == worker
        fetch_ns[mine] = TimeSet.of(io.begin[storage], io.end[storage]).within(begin[mine], end[mine])
    batches = parts.add(
        len(order),
        rank=thread.rank,
        resource=Resource.WORKER,
        kind=StallKind.PREP,
        process_id=process,
        begin_ns=begin,
        end_ns=end,
        fetch_ns=fetch_ns,
        row=order,
    )
    idle = _idle_before(index, process, before, begin, same)
    # Between two passes nobody recorded what a worker waits for.
    idle = np.where(same & (begin - before - idle > _ASKED_NS), begin - before, idle)
    parts.edge(np.where(same[1:], batches[:-1], -1), batches[1:], EdgeKind.PROGRAM, (begin - before - idle)[1:])

    waits = index.batches_of_phase(BatchPhase.WAIT)
    mine = index.batch_waits.rows(thread.track_id)
    mine = mine[waits["batch_index"][mine] >= 0]
    for loader in np.unique(fetches["loader_id"][order]).tolist():
        of_loader = np.flatnonzero(fetches["loader_id"][order] == loader)
        takes = mine[waits["loader_id"][mine] == loader]
        _taken(cells, nodes, batches, order, of_loader, fetches, waits.take(takes), idle, parts)


def _idle_before(index: TraceIndex, process: Int64, before: Int64, begin: Int64, same: npt.NDArray[np.bool_]) -> Int64:
    """How long each worker waited for the index of a batch since the one before."""
    table = index.batches_of_phase(BatchPhase.INDEX_WAIT)
    found = np.zeros(len(begin), dtype=np.int64)
    for worker in np.unique(process).tolist():
        own = table["process_id"] == worker
        mine = np.flatnonzero((process == worker) & same)
        if not own.any():  # nobody recorded what it waited for: it was idle for as long as it made nothing
            found[mine] = np.maximum(begin[mine] - before[mine], 0)
            continue
        time = TimeSet.of(table["begin_ns"][own], table["end_ns"][own])
        found[mine] = time.within(np.minimum(before[mine], begin[mine]), begin[mine])
    return found


def _taken(
    cells: _Cells,
    nodes: Int64,
    batches: Int64,
    order: Int64,
    of_loader: Int64,
    fetches: Table,
    takes: Table,
    idle: Int64,
    parts: _Parts,
) -> None:
    """Edges between the batches of a loader and the thread that takes them."""
    if not len(takes):
        return
    takes = takes.sort_by("begin_ns")
    number = fetches["batch_index"][order[of_loader]]
    begin, end = fetches["begin_ns"][order[of_loader]], fetches["end_ns"][order[of_loader]]
    # The making that a take waits for: the last one of its number that had begun by then.
    made = _latest(takes["batch_index"], takes["end_ns"], number, begin)
    known = made >= 0
    first = np.searchsorted(cells.begin, np.maximum(takes["begin_ns"], np.append(end, 0)[made]), side="left")
    known &= first < len(cells)
    source = np.where(known, batches[of_loader[made]], -1)
    target = np.where(known, nodes[np.minimum(first, len(cells) - 1)], -1)
    parts.edge(source, target, EdgeKind.BATCH)

    # A batch is asked for when the one so many before it has been taken.
    waiting = idle[of_loader] > _IDLE_NS
    taken_before = np.searchsorted(np.sort(takes["end_ns"]), begin, side="right")
    latest = takes["batch_index"][np.maximum(taken_before - 1, 0)]
    ahead = (number - latest)[waiting & (taken_before > 0)]
    if not len(ahead):
        return
    distance = max(int(np.median(ahead)), 1)
    asked = _latest(number - distance, begin + _ASKED_NS, takes["batch_index"], takes["end_ns"])
    # A pass begins when the thread makes its iterator: what it did last before then is as good as a take.
    moment = np.where(asked >= 0, takes["end_ns"][asked], begin)
    moment = np.where(waiting & (begin - moment > _ASKED_NS), begin, moment)
    last = np.searchsorted(cells.end, moment, side="right") - 1
    right = (last >= 0) & (waiting | (asked >= 0))
    # The index goes out before the taken batch is handed to the loop: the lag may be negative.
    lag = np.where(waiting, begin - cells.end[np.maximum(last, 0)], 0)
    source = np.where(right, nodes[np.maximum(last, 0)], -1)
    parts.edge(source, batches[of_loader], EdgeKind.PREFETCH, lag)


def _latest(number: Int64, until: Int64, numbers: Int64, moments: Int64) -> Int64:
    """For each pair the last row of that number whose moment is not after the other's, -1 if there is none."""
    order = np.lexsort((moments, numbers))
    low, high = (np.searchsorted(numbers[order], number, side=side) for side in ("left", "right"))
    found = np.full(len(number), -1, dtype=np.int64)
    for back in range(int((high - low).max(initial=0))):  # as often as there were passes over the data
        at = high - 1 - back
        row = order[np.maximum(at, 0)]
        fits = (found < 0) & (at >= low) & (moments[row] <= until)
        found[fits] = row[fits]
    return found
