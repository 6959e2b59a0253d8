"""Nodes of batches that workers make, and the thread that takes them."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.batch_layers import BatchWaits
from stashtrace.analysis.graph.model import EdgeKind, Resource
from stashtrace.analysis.graph.parts import Cells, Parts
from stashtrace.analysis.step_threads import StepThread
from stashtrace.analysis.timeset import Int64, TimeSet
from stashtrace.analysis.trace_index import TraceIndex
from stashtrace.model.kinds import BatchPhase, StallKind
from stashtrace.model.table import Table

#: A worker that was idle for longer before a batch had not been asked for it.
_IDLE_NS = 50_000
#: The next index goes out at most so long before the loop has its batch: pinning and unpickling lie between.
_ASKED_NS = 5_000_000


def add_batches(
    index: TraceIndex,
    thread: StepThread,
    cells: Cells,
    nodes: Int64,
    loads: BatchWaits,
    handed: npt.NDArray[np.bool_],
    life: TimeSet,
    parts: Parts,
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
    cells: Cells,
    nodes: Int64,
    batches: Int64,
    order: Int64,
    of_loader: Int64,
    fetches: Table,
    takes: Table,
    idle: Int64,
    parts: Parts,
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
