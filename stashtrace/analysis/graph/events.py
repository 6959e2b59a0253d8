"""Nodes of a rank whose device was timed by events, without its kernels: the time line of its compute streams.

    nccl stream       [joined ............. done]
    compute stream    [ cell ][ cell ]-----------[ cell ]       it waited for the collective: no node
                              ^ joined           ^ goes on

What computed, and what is not known, is a node; so are waits for copies and batches, whose makers are on the host.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np

from stashtrace._native import intervals
from stashtrace.analysis.graph.model import EdgeKind, Resource
from stashtrace.analysis.graph.parts import Cells, Parts
from stashtrace.analysis.graph.saves import Saves
from stashtrace.analysis.graph.transfers import Transfers
from stashtrace.analysis.intervals import Int64, TimeSet, int64
from stashtrace.analysis.stalls.budget import rank_layers
from stashtrace.analysis.stalls.index import TraceIndex
from stashtrace.analysis.steps.threads import StepThread
from stashtrace.schema.kinds import Awaited, Bracket, StallKind
from stashtrace.schema.table import Table

_IN_COLLECTIVES = (StallKind.STRAGGLER, StallKind.NETWORK, StallKind.INTERCONNECT)
#: A wait for a collective ends so soon after the end that its own events say.
_TOGETHER_NS = 50_000


def add_rank(index: TraceIndex, thread: StepThread, steps: Table, transfers: Transfers, parts: Parts) -> None:
    """Nodes of a rank's compute streams, taken as one, and their edges."""
    life = TimeSet.of([int(steps["begin_ns"][0])], [int(steps["end_ns"][-1])])
    layers = rank_layers(index, thread).layers
    begin, end, layer = intervals.paint([(x.time.begin, x.time.end) for x in layers])
    kinds = np.array([x.kind for x in layers], dtype=np.int64)[layer]
    own = index.collectives.rows(thread.process_id)
    own = own[index.on_devices.timed[own] & (transfers.node[own] >= 0)]
    done = index.in_flight.end_ns[own]
    own, done = own[np.argsort(done, kind="stable")], np.sort(done)

    stood = np.isin(kinds, _IN_COLLECTIVES)
    stopped = TimeSet.of(begin[stood], end[stood])
    row = _ended_by(done, stopped.end)
    known = row >= 0
    waits = TimeSet(stopped.begin[known], stopped.end[known])
    joined = index.entered_ns[own]
    ran = life - waits
    working = joined[ran.within(joined - 1, joined) > 0]
    cells = Cells.of(ran, begin, end, np.concatenate([working, steps["end_ns"]]), working)
    if not len(cells):  # by damaged times it did nothing but wait
        return
    at = np.searchsorted(begin, cells.begin, side="right") - 1
    inside = (at >= 0) & (cells.begin < np.append(end, -1)[at])
    paced = np.append(np.array([x.kind == StallKind.COMPUTE and bool(x.doubts) for x in layers])[layer], False)
    place = np.searchsorted(steps["begin_ns"], cells.begin, side="right") - 1
    nodes = parts.add(
        len(cells),
        rank=thread.rank,
        step=steps["step"][place],
        resource=Resource.DEVICE,
        kind=np.where(inside, np.append(kinds, -1)[at], StallKind.OTHER),
        process_id=thread.process_id,
        begin_ns=cells.begin,
        end_ns=cells.end,
        doubtful=inside & paced[at],
    )
    parts.edge(nodes[:-1], nodes[1:], EdgeKind.PROGRAM)
    last = np.searchsorted(cells.end, joined, side="right") - 1
    source = np.maximum(last, 0)
    # A collective that was joined while the streams waited had the one before it to wait for.
    parts.edge(np.where(last >= 0, nodes[source], -1), transfers.node[own], EdgeKind.MEMBER)

    asked_end, asked_row = _asked_for(index, thread, done)
    resumed = np.concatenate([waits.end, asked_end])
    rows = own[np.concatenate([row[known], asked_row])]
    after = np.searchsorted(cells.begin, resumed, side="left")
    there = after < len(cells)
    rows, after = rows[there], after[there]
    lag = np.minimum(cells.begin[after] - transfers.end_ns[rows], resumed[there] - transfers.end_ns[rows])
    parts.edge(transfers.node[rows], nodes[after], EdgeKind.RELEASE, np.clip(lag, 0, _TOGETHER_NS))

    # Their threads ask the host, which has no nodes here.
    Saves.of(index, thread, life, life).add(thread, parts)

    last = np.searchsorted(cells.end, steps["end_ns"], side="right") - 1
    ended = np.where(last >= 0, nodes[last], -1)
    parts.end_steps(ended, thread.rank, steps, steps["end_ns"] - cells.end[last])


def _ended_by(done: Int64, moments: Int64) -> Int64:
    """Place of the collective that ended at each moment, -1 if none did."""
    if not len(done):
        return np.full(len(moments), -1, dtype=np.int64)
    after = np.searchsorted(done, moments + 1)  # the last one that had ended by then
    place = np.clip(np.stack([after - 1, after]), 0, len(done) - 1)
    apart = np.abs(done[place] - moments)
    nearest = np.where(apart[0] <= apart[1], place[0], place[1])
    return int64(np.where(apart.min(axis=0) <= _TOGETHER_NS, nearest, -1))


def _asked_for(index: TraceIndex, thread: StepThread, done: Int64) -> tuple[Int64, Int64]:
    """When the streams were told to wait for collectives, whether or not they had to, and for which of ``done``."""
    table, rows = index.trace.device_brackets, index.brackets.rows(thread.process_id)
    told = (table["bracket_code"][rows] == Bracket.STREAM_WAIT) & (table["awaited_code"][rows] == Awaited.COLLECTIVE)
    rows = rows[told & (table["end_ns"][rows] >= 0) & (table["awaited_ns"][rows] >= 0)]
    row = _ended_by(done, table["awaited_ns"][rows])
    return table["end_ns"][rows][row >= 0], row[row >= 0]
