"""Nodes of a rank that its host attributes: what its step thread did is a node, what it waited for is an edge."""

from __future__ import annotations

import numpy as np

from stashtrace.analysis.graph.batch_nodes import add_batches, arrived_ns, made_by_workers, own_fetches, worker_starts
from stashtrace.analysis.graph.checkpoint_nodes import Saves
from stashtrace.analysis.graph.graph_parts import Cells, Painted, Parts, ThreadNodes, step_of
from stashtrace.analysis.graph.transfer_nodes import IN_COLLECTIVES, Transfers
from stashtrace.analysis.graph.work_graph import EdgeKind, Resource
from stashtrace.analysis.intervals import Int64, TimeSet, int64, is_one_of
from stashtrace.analysis.stalls.batch_waits import batch_waits
from stashtrace.analysis.stalls.budget import rank_layers
from stashtrace.analysis.stalls.collective_blocking import Blocked, in_flight_heads, own_collectives
from stashtrace.analysis.stalls.on_host import host_blocked, outer_phase_rows, time_of_spans
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.analysis.steps.threads import StepThread
from stashtrace.schema.kinds import BatchPhase, CollectiveOp, SpanKind, StallKind
from stashtrace.schema.table import Table

#: Kinds of time in which a thread may wait for a save in the background.
_UNEXPLAINED = (StallKind.CHECKPOINT, StallKind.OTHER)
#: On a busy machine a thread may go on before the backend notes the end of an operation, by this much.
_TOGETHER_NS = 1_000_000


def add_rank(
    index: TraceIndex, thread: StepThread, steps: Table, life: TimeSet, transfers: Transfers, parts: Parts
) -> None:
    """Add the nodes of a rank's step thread and workers in its life, and their edges.

    A rank that only serves others has no steps.
    """
    loads = batch_waits(index, thread)
    blocked = host_blocked(index, thread)
    handed = made_by_workers(loads, thread)

    painted = Painted.of(rank_layers(index, thread).layers)
    known = transfers.node_of(blocked.row) >= 0
    waits = painted.time_of(IN_COLLECTIVES) & TimeSet.of(blocked.begin[known], blocked.end[known])
    had = arrived_ns(index, loads, handed)
    presumed = _presumed_waits(index, thread, painted, blocked, transfers)
    waits = waits | TimeSet.of(*presumed[:2])
    waits = waits | TimeSet.of(loads.begin[handed], np.minimum(had, loads.end)[handed])
    explained = painted.time_of([kind for kind in StallKind if kind not in _UNEXPLAINED])
    saves = Saves.of(index, thread, life, explained)
    waits = waits | saves.waits

    rows = index.collectives.rows(thread.process_id)
    calls = index.entered_ns[rows]
    phases = outer_phase_rows(index, thread)
    pickling = time_of_spans(index, thread, SpanKind.OBJECTS)
    made = index.batches_of_phase(BatchPhase.FETCH).take(own_fetches(index, thread))
    points = [
        calls,
        steps["end_ns"],
        loads.begin,
        loads.end,
        np.clip(had, loads.begin, loads.end),
        worker_starts(index, thread).end_ns,
        made["begin_ns"],
        made["end_ns"],
        *(index.trace.phases[name][phases] for name in ("begin_ns", "end_ns")),
        saves.moments_ns,
        pickling.begin,
        pickling.end,
    ]
    cells = Cells.of(life - waits, painted, np.concatenate(points), calls)
    if not len(cells):  # by damaged times the thread did nothing but wait
        return
    nodes = cells.add_to(
        parts,
        rank=thread.rank,
        step=step_of(steps, cells.begin),
        resource=Resource.STEP_THREAD,
        kind=painted.kind_at(cells.begin, StallKind.OTHER),
        process_id=thread.process_id,
    )
    # Each transfer begins after the work that came before its call.
    before, ended_ns = nodes.last_ended(calls)
    parts.edge(before, transfers.node[rows], EdgeKind.MEMBER, calls - ended_ns)
    _release(index, thread, nodes, blocked, transfers, parts)
    _, ended, rows = presumed
    goes_on, begin_ns = nodes.next_begun(ended)
    parts.edge(transfers.node[rows], goes_on, EdgeKind.RELEASE, _lag_ns(begin_ns, rows, transfers))
    add_batches(index, thread, nodes, loads, had, life, parts)
    saves.add(thread, parts, nodes)
    if len(steps):
        last, ended_ns = nodes.last_ended(steps["end_ns"])
        parts.end_steps(last, thread.rank, steps, steps["end_ns"] - ended_ns)


def _presumed_waits(
    index: TraceIndex, thread: StepThread, painted: Painted, blocked: Blocked, transfers: Transfers
) -> tuple[Int64, Int64, Int64]:
    """Return waits for collectives that were not recorded and that the budget presumes: begin, end, row.

    A thread that goes on before the last rank has entered did not wait for that.
    """
    rows, call, end = own_collectives(index, thread)
    begin, until, position = in_flight_heads(call, end)
    since, stop, head = (painted.time_of(IN_COLLECTIVES) - blocked.time).pieces(begin, until)
    row = rows[position[head]]
    waited = (transfers.node_of(row) >= 0) & (stop >= index.in_flight.last_enter_ns[row])
    return since[waited], stop[waited], row[waited]


def _release(
    index: TraceIndex, thread: StepThread, nodes: ThreadNodes, blocked: Blocked, transfers: Transfers, parts: Parts
) -> None:
    """After a wait the thread goes on when the transfer has ended, plus what this member took longer."""
    known = transfers.node_of(blocked.row) >= 0
    _let_go(index, nodes, (blocked.begin[known], blocked.end[known]), blocked.row[known], transfers, parts)
    waits, mine = index.trace.collective_waits, index.collective_waits.rows(thread.track_id)
    own = index.collectives.rows(thread.process_id)
    if not len(own):
        return
    keys = index.trace.collectives["collective_key"][own]
    order = np.argsort(keys, kind="stable")
    wanted = waits["collective_key"][mine]
    at = order[np.minimum(np.searchsorted(keys[order], wanted), len(keys) - 1)]
    asked = keys[at] == wanted
    asked_for = waits["begin_ns"][mine[asked]], waits["end_ns"][mine[asked]]
    _let_go(index, nodes, asked_for, int64(own[at[asked]]), transfers, parts)


def _let_go(
    index: TraceIndex,
    nodes: ThreadNodes,
    waits: tuple[Int64, Int64],
    rows: Int64,
    transfers: Transfers,
    parts: Parts,
) -> None:
    wait_begin, wait_end = waits
    goes_on, begin_ns = nodes.next_begun(wait_end)
    lag = _lag_ns(begin_ns, rows, transfers)
    # The end of a send or a receive is seen when the thread asks for it: who asks late did not wait till then.
    asked_ns = np.maximum(wait_end - np.maximum(wait_begin, transfers.end_ns[rows]), 0)
    to_one_rank = is_one_of(index.trace.collectives["op_code"][rows], (CollectiveOp.SEND, CollectiveOp.RECEIVE))
    lag = np.where(to_one_rank, np.minimum(lag, asked_ns), lag)
    # A thread that goes on while the operation is in flight did not wait for its end.
    waited = (begin_ns - transfers.end_ns[rows] >= -_TOGETHER_NS) & (wait_end > nodes.begin_ns[0])
    parts.edge(np.where(waited, transfers.node[rows], -1), goes_on, EdgeKind.RELEASE, lag)


def _lag_ns(begin_ns: Int64, rows: Int64, transfers: Transfers) -> Int64:
    """Return how long after its transfer a member goes on: what is later than its own part is nobody's doing."""
    own_ns = transfers.own_end_ns[rows] - transfers.end_ns[rows]
    return int64(np.minimum(begin_ns - transfers.end_ns[rows], np.maximum(own_ns, 0)))
