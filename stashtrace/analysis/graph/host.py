"""Nodes of a rank that its host attributes: what its step thread did is a node, what it waited for an edge."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np

from stashtrace._native import intervals
from stashtrace.analysis.graph.batches import add_batches, arrived_ns
from stashtrace.analysis.graph.model import EdgeKind, Resource
from stashtrace.analysis.graph.parts import Cells, Parts
from stashtrace.analysis.graph.saves import Saves
from stashtrace.analysis.graph.transfers import Transfers
from stashtrace.analysis.intervals import NEVER, Int64, TimeSet, int64
from stashtrace.analysis.stalls.batches import batch_waits
from stashtrace.analysis.stalls.budget import rank_layers
from stashtrace.analysis.stalls.collectives import Blocked, blocked_on_collectives
from stashtrace.analysis.stalls.index import TraceIndex
from stashtrace.analysis.stalls.on_host import outer_phase_rows
from stashtrace.analysis.steps.threads import StepThread
from stashtrace.schema.kinds import StallKind
from stashtrace.schema.table import Table

#: Kinds of time in which a thread waits for a collective.
_IN_COLLECTIVES = (StallKind.STRAGGLER, StallKind.NETWORK, StallKind.INTERCONNECT)
#: Kinds of time in which a thread may wait for a save in the background.
_UNEXPLAINED = (StallKind.CHECKPOINT, StallKind.OTHER)
#: A thread may go on before the backend notes the end of an operation, by so much on a busy machine.
_TOGETHER_NS = 1_000_000


def add_rank(index: TraceIndex, thread: StepThread, steps: Table, transfers: Transfers, parts: Parts) -> None:
    """Nodes of a rank's step thread and workers, and their edges."""
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
    had = arrived_ns(index, loads, handed)
    waits = waits | TimeSet.of(loads.begin[handed], np.minimum(had, loads.end)[handed])

    explained = ~np.isin(kinds, _UNEXPLAINED)
    saves = Saves.of(index, thread, life, TimeSet.of(begin[explained], end[explained]))
    waits = waits | saves.waits

    rows = index.collectives.rows(thread.process_id)
    calls = index.entered_ns[rows]
    phases = outer_phase_rows(index, thread)
    edges = [
        calls,
        steps["end_ns"],
        loads.begin,
        loads.end,
        np.clip(had, loads.begin, loads.end),
        *(index.trace.phases[n][phases] for n in ("begin_ns", "end_ns")),
        saves.moments_ns,
    ]
    cells = Cells.of(life - waits, begin, end, np.concatenate(edges), calls)
    if not len(cells):  # by damaged times it did nothing but wait
        return
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
    add_batches(index, thread, cells, nodes, loads, had, life, parts)
    saves.add(thread, parts, cells, nodes)
    last = np.searchsorted(cells.end, steps["end_ns"], side="right") - 1
    ended = np.where(last >= 0, nodes[last], -1)
    parts.end_steps(ended, thread.rank, steps, steps["end_ns"] - cells.end[last])


def _enter(cells: Cells, nodes: Int64, calls: Int64, transfers: Int64, parts: Parts) -> None:
    """Each transfer begins after the work that came before its call."""
    last = np.searchsorted(cells.end, calls, side="right") - 1
    known = last >= 0
    source = np.where(known, nodes[last], -1)
    parts.edge(source, transfers, EdgeKind.MEMBER, np.where(known, calls - cells.end[last], 0))


def _release(
    index: TraceIndex,
    thread: StepThread,
    cells: Cells,
    nodes: Int64,
    blocked: Blocked,
    transfers: Transfers,
    parts: Parts,
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


def _let_go(cells: Cells, nodes: Int64, wait_end: Int64, rows: Int64, transfers: Transfers, parts: Parts) -> None:
    after = np.searchsorted(cells.begin, wait_end, side="left")
    known = (after < len(cells)) & (wait_end > cells.begin[0])
    rows, after = rows[known], after[known]
    later = cells.begin[after] - transfers.end_ns[rows]
    # A thread that goes on while the operation is in flight did not wait for its end. What a member goes on later than
    # its own part of the operation has ended is nobody's doing.
    lag = np.minimum(later, np.maximum(transfers.own_end_ns[rows] - transfers.end_ns[rows], 0))
    parts.edge(np.where(later >= -_TOGETHER_NS, transfers.node[rows], -1), nodes[after], EdgeKind.RELEASE, lag)
