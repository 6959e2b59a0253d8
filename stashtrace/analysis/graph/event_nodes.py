"""Nodes of a rank whose device was timed by events, without its kernels: the timeline of its compute streams.

    nccl stream       [joined ............. done]
    compute stream    [ cell ][ cell ]-----------[ cell ]       it waited for the collective: no node
                              ^ joined           ^ goes on

Computation is a node, and so is time of which nothing is known. Waits for copies and batches are nodes too, since what
they waited for is on the host.
"""

from __future__ import annotations

import numpy as np

from stashtrace.analysis.graph.checkpoint_nodes import Saves
from stashtrace.analysis.graph.graph_parts import Cells, Painted, Parts, step_of
from stashtrace.analysis.graph.transfer_nodes import IN_COLLECTIVES, Transfers
from stashtrace.analysis.graph.work_graph import EdgeKind, Resource
from stashtrace.analysis.intervals import Int64, TimeSet, int64
from stashtrace.analysis.stalls.budget import rank_layers
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.analysis.steps.threads import StepThread
from stashtrace.schema.kinds import Awaited, Bracket, StallKind
from stashtrace.schema.table import Table

#: A wait for a collective ends this soon after the collective, by the collective's own events.
_TOGETHER_NS = 50_000


def add_rank(index: TraceIndex, thread: StepThread, steps: Table, transfers: Transfers, parts: Parts) -> None:
    """Add the nodes of a rank's compute streams, taken as one, and their edges."""
    life = TimeSet.of([int(steps["begin_ns"][0])], [int(steps["end_ns"][-1])])
    layers = rank_layers(index, thread).layers
    painted = Painted.of(layers)
    own = index.collectives.rows(thread.process_id)
    own = own[index.on_devices.timed[own] & (transfers.node[own] >= 0)]
    done = index.in_flight.end_ns[own]
    own, done = own[np.argsort(done, kind="stable")], np.sort(done)

    stopped = painted.time_of(IN_COLLECTIVES)
    row = _ended_by(done, stopped.end)
    known = row >= 0
    waits = TimeSet(stopped.begin[known], stopped.end[known])
    joined = index.entered_ns[own]
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
    parts.edge(before, transfers.node[own], EdgeKind.MEMBER)

    asked_end, asked_row = _asked_for(index, thread, done)
    resumed = np.concatenate([waits.end, asked_end])
    rows = own[np.concatenate([row[known], asked_row])]
    goes_on, begin_ns = nodes.next_begun(resumed)
    lag = np.clip(np.minimum(begin_ns, resumed) - transfers.end_ns[rows], 0, _TOGETHER_NS)
    parts.edge(transfers.node[rows], goes_on, EdgeKind.RELEASE, lag)

    # The host asks for saves, and it has no nodes here.
    Saves.of(index, thread, life, life).add(thread, parts)

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
    return int64(np.where(apart.min(axis=0) <= _TOGETHER_NS, nearest, -1))


def _asked_for(index: TraceIndex, thread: StepThread, done: Int64) -> tuple[Int64, Int64]:
    """Return when the streams were told to wait for collectives, whether or not they had to, and for which one."""
    table, rows = index.trace.device_brackets, index.brackets.rows(thread.process_id)
    waits = (table["bracket_code"][rows] == Bracket.STREAM_WAIT) & (table["awaited_code"][rows] == Awaited.COLLECTIVE)
    rows = rows[waits & (table["end_ns"][rows] >= 0) & (table["awaited_ns"][rows] >= 0)]
    row = _ended_by(done, table["awaited_ns"][rows])
    return table["end_ns"][rows][row >= 0], row[row >= 0]
