"""Build the graph of a run.

A rank's time is cut as its budget is: what its thread or its streams did is a node, what it waited for is an edge.
Batches and transfers are separate nodes. Loops run over ranks, workers, streams and groups, never over events.

Of a rank whose device was timed by events, without its kernels, the compute streams are the timeline:

    nccl stream       [joined ............. done]
    compute stream    [ cell ][ cell ]-----------[ cell ]       it waited for the collective: no node
                              ^ joined           ^ goes on

Computation is a node there, and so is time of which nothing is known. Waits for copies and batches are nodes too, since
what they waited for is on the host.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stashtrace.analysis.graph import batch_nodes, device_nodes
from stashtrace.analysis.graph.graph_parts import Cells, Painted, Parts, ThreadNodes, step_of
from stashtrace.analysis.graph.node_facts import facts_of
from stashtrace.analysis.graph.pipeline_graph import build_pipeline, is_pipeline
from stashtrace.analysis.graph.policy import POLICY
from stashtrace.analysis.graph.transfer_nodes import Transfers, transfers
from stashtrace.analysis.graph.work_graph import EdgeKind, Graph, Resource
from stashtrace.analysis.intervals import Int64, TimeSet, int64, is_one_of
from stashtrace.analysis.stalls.batch_waits import batch_waits
from stashtrace.analysis.stalls.budget import device_windows, rank_layers
from stashtrace.analysis.stalls.collective_blocking import Blocked, in_flight_heads, own_collectives
from stashtrace.analysis.stalls.on_host import host_blocked, outer_phase_rows, time_of_spans
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.analysis.steps.steps import ranks_and_steps
from stashtrace.analysis.steps.threads import StepThread, threads_without_steps
from stashtrace.analysis.stragglers.pipeline_stages import stages_of
from stashtrace.errors import MissingDataError
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import IN_COLLECTIVES, Awaited, BatchPhase, Bracket, CollectiveOp, SpanKind, StallKind
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace


def build(trace: Trace, *, reads: bool = True) -> Graph:
    """Build the graph of all steps of all ranks.

    Parameters
    ----------
    trace : Trace
        Needs steps.
    reads : bool
        Estimate from all reads how long those that waited for storage would have taken from memory. This costs a pass
        over the calls of the run; without it, what-if answers about storage are wider intervals.

    Raises
    ------
    MissingDataError
        If no rank has steps.
    """
    index = TraceIndex(trace)
    if is_pipeline(trace):
        return build_pipeline(index)
    parts = Parts()
    ranks = [(thread, steps) for thread, steps in ranks_and_steps(index.origin, index.steps) if len(steps)]
    if not ranks:
        raise MissingDataError("no rank has a step")
    shared = transfers(index, parts)
    cut = [(thread, *_with_kernels(index, thread, steps.sort_by("begin_ns"))) for thread, steps in ranks]
    origin_ns = min(int(steps["begin_ns"][0]) for _, steps, _ in cut)
    for thread, steps, has_kernels in cut:
        if has_kernels:
            device_nodes.add_rank(index, thread, steps, shared, origin_ns, parts)
        elif (steps["clock_code"] != 0).any():
            add_event_nodes(index, thread, steps, shared, parts)
        else:
            add_host_nodes(index, thread, steps, TimeSet.of(steps["begin_ns"][:1], steps["end_ns"][-1:]), shared, parts)
    last_ns = max(int(steps["end_ns"][-1]) for _, steps, _ in cut)
    for thread in threads_without_steps(index.origin):  # waits of others may lead through it
        life = TimeSet.of([max(thread.begin_ns, origin_ns)], [min(thread.end_ns, last_ns)])
        add_host_nodes(index, thread, index.steps.take(slice(0)), life, shared, parts)
    stages = stages_of(trace, index.steps)
    graph = _counting_steps_with_peers(parts.graph())
    graph = replace(graph, stage_of=stages.of_rank if stages is not None else {})
    return replace(graph, facts=facts_of(index, [(thread, steps) for thread, steps, _ in cut], graph, reads=reads))


def _counting_steps_with_peers(graph: Graph) -> Graph:
    """Return a graph that counts no step of one rank alone, if others are of several: for whom it waits is unknown."""
    steps = GroupBy(graph.ends_step)
    counted = graph.ends_counted & (steps.sizes > 1)[steps.number]
    return replace(graph, ends_counted=counted) if counted.any() else graph


def _with_kernels(index: TraceIndex, thread: StepThread, steps: Table) -> tuple[Table, bool]:
    """Return the steps of which every kernel is known and True; if there are none, all steps and False."""
    time = device_windows(index, thread).get("kernels")
    if time is None:
        return steps, False
    inside = time.within(steps["begin_ns"], steps["end_ns"]) == steps["end_ns"] - steps["begin_ns"]
    return (steps.take(np.flatnonzero(inside)), True) if inside.any() else (steps, False)


def add_event_nodes(index: TraceIndex, thread: StepThread, steps: Table, transfers: Transfers, parts: Parts) -> None:
    """Add the nodes of a rank's compute streams, taken as one, and their edges."""
    life = TimeSet.of([int(steps["begin_ns"][0])], [int(steps["end_ns"][-1])])
    layers = rank_layers(index, thread).layers
    painted = Painted.of(layers)
    at = index.collectives.rows(thread.process_id)
    at = at[index.on_devices.timed[at] & (transfers.node[at] >= 0)]
    done = index.in_flight.end_ns[at]
    at, done = at[np.argsort(done, kind="stable")], np.sort(done)

    stopped = painted.time_of(IN_COLLECTIVES)
    row = _ended_by(done, stopped.end)
    known = row >= 0
    waits = TimeSet(stopped.begin[known], stopped.end[known])
    joined = index.entered_ns[at]
    ran = life - waits
    working = joined[ran.within(joined - 1, joined) > 0]
    cells = Cells.of(ran, painted, np.concatenate([working, steps["end_ns"]]), working)
    if not len(cells):  # by damaged times the streams did nothing but wait
        return
    paced = np.array([*(layer.kind == StallKind.COMPUTE and bool(layer.alternatives) for layer in layers), False])
    nodes = cells.add_to(
        parts,
        rank=thread.rank,
        step=step_of(steps, cells.begin),
        resource=Resource.DEVICE,
        kind=painted.kind_at(cells.begin, StallKind.OTHER),
        process_id=thread.process_id,
        doubtful=paced[painted.layer_at(cells.begin)],
    )
    # A collective that was joined while the streams waited had the collective before it to wait for.
    before, _ = nodes.last_ended(joined)
    parts.edge(before, transfers.node[at], EdgeKind.MEMBER)

    asked_end, asked_row = _asked_for(index, thread, done)
    resumed = np.concatenate([waits.end, asked_end])
    rows = at[np.concatenate([row[known], asked_row])]
    goes_on, begin_ns = nodes.next_begun(resumed)
    lag = np.clip(np.minimum(begin_ns, resumed) - transfers.end_ns[rows], 0, POLICY.soon_ns)
    parts.edge(transfers.node[rows], goes_on, EdgeKind.RELEASE, lag)

    # The host asks for saves, and it has no nodes here.
    batch_nodes.Saves.of(index, thread, life, life).add(thread, parts)

    last, ended_ns = nodes.last_ended(steps["end_ns"])
    parts.end_steps(last, thread.rank, steps, steps["end_ns"] - ended_ns)


def _ended_by(done: Int64, moments: Int64) -> Int64:
    """Return the index of the collective that ended at each moment, -1 if none did."""
    if not len(done):
        return np.full(len(moments), -1, dtype=np.int64)
    after = np.searchsorted(done, moments + 1)
    candidates = np.clip(np.stack([after - 1, after]), 0, len(done) - 1)
    apart = np.abs(done[candidates] - moments)
    nearest = np.where(apart[0] <= apart[1], candidates[0], candidates[1])
    return int64(np.where(apart.min(axis=0) <= POLICY.soon_ns, nearest, -1))


def _asked_for(index: TraceIndex, thread: StepThread, done: Int64) -> tuple[Int64, Int64]:
    """Return when the host asked the streams to wait for collectives, whether or not they had to, and for which one."""
    table, rows = index.trace.device_brackets, index.brackets.rows(thread.process_id)
    waits = (table["bracket_code"][rows] == Bracket.STREAM_WAIT) & (table["awaited_code"][rows] == Awaited.COLLECTIVE)
    rows = rows[waits & (table["end_ns"][rows] >= 0) & (table["awaited_ns"][rows] >= 0)]
    row = _ended_by(done, table["awaited_ns"][rows])
    return table["end_ns"][rows][row >= 0], row[row >= 0]


#: Kinds of time in which a thread may wait for a save in the background.
_UNEXPLAINED = (StallKind.CHECKPOINT, StallKind.OTHER)


def add_host_nodes(
    index: TraceIndex, thread: StepThread, steps: Table, life: TimeSet, transfers: Transfers, parts: Parts
) -> None:
    """Add the nodes of a rank's step thread and workers in its life, and their edges.

    A rank that only serves others has no steps.
    """
    loads = batch_waits(index, thread)
    blocked = host_blocked(index, thread)
    handed = batch_nodes.made_by_workers(loads, thread)

    painted = Painted.of(rank_layers(index, thread).layers)
    known = transfers.node_of(blocked.row) >= 0
    waits = painted.time_of(IN_COLLECTIVES) & TimeSet.of(blocked.begin[known], blocked.end[known])
    had = batch_nodes.arrived_ns(index, loads, handed)
    presumed = _presumed_waits(index, thread, painted, blocked, transfers)
    waits = waits | TimeSet.of(*presumed[:2])
    waits = waits | TimeSet.of(loads.begin[handed], np.minimum(had, loads.end)[handed])
    explained = painted.time_of([kind for kind in StallKind if kind not in _UNEXPLAINED])
    saves = batch_nodes.Saves.of(index, thread, life, explained)
    waits = waits | saves.waits

    rows = index.collectives.rows(thread.process_id)
    calls = index.entered_ns[rows]
    phases = outer_phase_rows(index, thread)
    pickling = time_of_spans(index, thread, SpanKind.OBJECTS)
    made = index.batches_of_phase(BatchPhase.FETCH).take(batch_nodes.own_fetches(index, thread))
    points = [
        calls,
        steps["end_ns"],
        loads.begin,
        loads.end,
        np.clip(had, loads.begin, loads.end),
        batch_nodes.worker_starts(index, thread).end_ns,
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
    batch_nodes.add_batches(index, thread, nodes, loads, had, life, parts)
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
    rows = index.collectives.rows(thread.process_id)
    at = GroupBy(index.trace.collectives["collective_key"][rows]).row_of(waits["collective_key"][mine])
    mine, at = mine[at >= 0], at[at >= 0]
    _let_go(index, nodes, (waits["begin_ns"][mine], waits["end_ns"][mine]), int64(rows[at]), transfers, parts)


def _let_go(
    index: TraceIndex, nodes: ThreadNodes, waits: tuple[Int64, Int64], rows: Int64, transfers: Transfers, parts: Parts
) -> None:
    wait_begin, wait_end = waits
    goes_on, begin_ns = nodes.next_begun(wait_end)
    lag = _lag_ns(begin_ns, rows, transfers)
    # The end of a send or a receive is seen when the thread asks for it: who asks late did not wait till then.
    asked_ns = np.maximum(wait_end - np.maximum(wait_begin, transfers.end_ns[rows]), 0)
    to_one_rank = is_one_of(index.trace.collectives["op_code"][rows], (CollectiveOp.SEND, CollectiveOp.RECEIVE))
    lag = np.where(to_one_rank, np.minimum(lag, asked_ns), lag)
    # A thread that goes on while the operation is in flight did not wait for its end.
    waited = (begin_ns - transfers.end_ns[rows] >= -POLICY.noted_late_ns) & (wait_end > nodes.begin_ns[0])
    parts.edge(np.where(waited, transfers.node[rows], -1), goes_on, EdgeKind.RELEASE, lag)


def _lag_ns(begin_ns: Int64, rows: Int64, transfers: Transfers) -> Int64:
    """Return how long after its transfer a member goes on: what is later than its part is nobody's doing."""
    own_ns = transfers.own_end_ns[rows] - transfers.end_ns[rows]
    return int64(np.minimum(begin_ns - transfers.end_ns[rows], np.maximum(own_ns, 0)))
