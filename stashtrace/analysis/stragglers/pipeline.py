"""pipeline: how long each stage waited for its neighbours, from the sends and receives of its group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stashtrace._native import intervals
from stashtrace.analysis.collectives.collective_waits import communicator_names
from stashtrace.analysis.collectives.matching import group_table, process_values
from stashtrace.analysis.intervals import NEVER, Int64, int64, window_at
from stashtrace.analysis.stalls.budget import rank_layers
from stashtrace.analysis.stalls.collective_blocking import in_flight_heads
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.analysis.steps.threads import step_threads
from stashtrace.analysis.stragglers.pipeline_stages import Stages, stages_of
from stashtrace.errors import MissingDataError
from stashtrace.schema import columns as col
from stashtrace.schema.groupby import GroupBy, RowsBy
from stashtrace.schema.kinds import CollectiveOp, StallKind
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

PIPELINE = col.schema(
    "pipeline",
    "What each pipeline stage waited for its neighbours, per step",
    col.number("step", "ordinal, -1 outside", missing=-1),
    col.word("communicator", "name of the group", detail=2),
    col.number("stage_index", "stage of the rank, the first of several; if unknown, its place within the group"),
    col.RANK,
    col.number("receives_count", "receives that were called"),
    col.number("sends_count", "sends that were called"),
    col.ns("wait_ns", "receives were pending and their data had not been sent, overlaps counted once"),
    col.ns("bubble_ns", "of this, the rank did nothing else; -1 if unknown", missing=-1),
    col.ns("transfer_ns", "receives: from the later call of the two, send or receive, to the end"),
    col.ns("step_ns", "length of the step, -1 if unknown", missing=-1),
    col.real("bubble_ratio", "bubble_ns by step_ns, -1 if unknown", missing=-1),
    col.rank("from_rank", "the rank whose data was waited for longest, -1 if none", missing=-1),
)


def pipeline(trace: Trace) -> Table:
    """Sum the bubbles of pipeline stages per step.

    A bubble is time in which a rank only waited for a receive whose data its neighbour had not sent yet: the straggler
    time of ``stalls`` inside such receives. A stage that waits until its neighbour receives (a send with full buffers)
    is not seen, because a send has no straggler time. Forward and backward of several micro-batches in flight overlap;
    a moment counts once, in the step in which it lies. A receive counts in the step in which its data were ready to be
    sent. Columns: table ``pipeline`` of ``docs/reference/tables.md``.

    Parameters
    ----------
    trace : Trace
        Needs sends and receives; steps for what is counted per step and for bubbles.

    Raises
    ------
    MissingDataError
        If no rank sent to or received from another.
    """
    ops = trace.collectives["op_code"]
    if not np.isin(ops, (CollectiveOp.SEND, CollectiveOp.RECEIVE)).any():
        raise MissingDataError(
            "no send or receive was recorded",
            hint="pipeline stages exchange data by send and receive; see `collectives`",
        )
    index = TraceIndex(trace)
    try:
        threads = {t.rank: t for t in step_threads(trace)}
        steps = index.steps
    except MissingDataError:
        threads, steps = {}, None
    table, groups = index.trace.collectives, group_table(index.trace)
    rows = np.flatnonzero(np.isin(table["op_code"], (CollectiveOp.SEND, CollectiveOp.RECEIVE)))
    hashes = np.unique(table["group_hash"][rows])
    name_of = dict(zip(hashes.tolist(), communicator_names(trace, hashes).tolist(), strict=True))
    stages = stages_of(trace, steps) if steps is not None else None
    by_rank = GroupBy(table["rank"][rows])
    steps_by = RowsBy(steps["rank"] if steps is not None else int64([]))
    out: list[tuple[object, ...]] = []
    for rank, at_rank in by_rank.items():
        of_rank = rows[at_rank]
        begin, wait_end, end, whom = _waits(index, of_rank)
        alone = rank_layers(index, threads[rank]).time_of(StallKind.STRAGGLER) if rank in threads else None
        mine = steps_by.rows(rank)
        spent = _spent(steps, mine, begin, wait_end)
        bubble = alone.within(spent.begin, spent.end) if alone is not None else np.zeros(len(spent), dtype=np.int64)
        # A receive may be posted a step before its data are sent.
        number, length = _step_of(steps, mine, wait_end)
        receives = table["op_code"][of_rank] == CollectiveOp.RECEIVE
        group = table["group_hash"][of_rank]
        # A row sums all that begins in a step of a group: first rows of ``of_rank``, then pieces of waits.
        cells = GroupBy(np.concatenate([number, spent.step]), np.concatenate([group, group[spent.row]]))
        lengths = dict(zip(number.tolist(), length.tolist(), strict=True))
        lengths |= dict(zip(spent.step.tolist(), spent.step_ns.tolist(), strict=True))
        for step, value, inside in cells.items():
            chosen, pieces = inside[inside < len(of_rank)], inside[inside >= len(of_rank)] - len(of_rank)
            members = groups[value].members.tolist()
            step_ns = lengths[step]
            waited = (spent.end - spent.begin)[pieces]
            lost = int(bubble[pieces].sum()) if alone is not None else -1
            out.append(
                (
                    step,
                    name_of[value],
                    _place(stages, rank, members),
                    rank,
                    int(receives[chosen].sum()),
                    int((~receives[chosen]).sum()),
                    int(waited.sum()),
                    lost,
                    int((end - wait_end)[chosen][receives[chosen]].sum()),
                    step_ns,
                    lost / step_ns if step_ns > 0 and lost >= 0 else -1.0,
                    _longest(whom[spent.row[pieces]], waited),
                )
            )
    return Table.from_rows(PIPELINE, out).sort_by("step", "communicator", "stage_index")


def _place(stages: Stages | None, rank: int, members: Sequence[int]) -> int:
    """Return the first stage of a rank or, if it is unknown, its place within a group; -1 if it is no member."""
    if stages is not None and rank in stages.of_rank:
        return stages.of_rank[rank]
    return members.index(rank) if rank in members else -1


def _waits(index: TraceIndex, rows: Int64) -> tuple[Int64, Int64, Int64, Int64]:
    """Return entry, end of the wait for the other side, end, and other side; open ends are those of the process."""
    table, matched = index.trace.collectives, index.in_flight
    begin, last, end = index.entered_ns[rows], matched.last_enter_ns[rows], matched.end_ns[rows]
    alive = process_values(index.trace, table["process_id"][rows], "end_ns")
    end = np.where(end == NEVER, np.maximum(alive, begin), end)
    receives = table["op_code"][rows] == CollectiveOp.RECEIVE
    wait_end = np.where(receives & (matched.last_rank[rows] >= 0), np.clip(last, begin, end), begin)
    return begin, int64(wait_end), int64(end), matched.last_rank[rows]


@dataclass(frozen=True, slots=True)
class _Spent:
    """Pieces of a rank's time with pending receives, cut at the edges of its steps."""

    begin: Int64
    end: Int64
    row: Int64
    step: Int64
    step_ns: Int64

    def __len__(self) -> int:
        return len(self.begin)


def _spent(steps: Table | None, mine: Int64, begin: Int64, wait_end: Int64) -> _Spent:
    """Cut the pending time of receives into pieces; if several receives are pending, the oldest has the time."""
    head_begin, head_end, head_row = in_flight_heads(begin, wait_end)
    borders = np.concatenate([steps[c][mine] for c in ("begin_ns", "end_ns")]) if steps is not None else begin[:0]
    edges = np.unique(np.concatenate([head_begin, head_end, borders]))
    piece_begin, piece_end, head, _ = intervals.join(head_begin, head_end, edges[:-1], edges[1:])
    number, length = _step_of(steps, mine, piece_begin)
    return _Spent(piece_begin, piece_end, int64(head_row[head]), number, length)


def _step_of(steps: Table | None, rows: Int64, at: Int64) -> tuple[Int64, Int64]:
    """Return number and length in ns of the step of each moment; -1 outside of steps."""
    if steps is None:
        return np.full(len(at), -1, dtype=np.int64), np.full(len(at), -1, dtype=np.int64)
    begin, end, number = (steps[name][rows] for name in ("begin_ns", "end_ns", "step"))
    window = window_at(at, begin, end)
    return np.append(number, -1)[window], np.append(end - begin, -1)[window]


def _longest(whom: Int64, waited: Int64) -> int:
    """Return the rank that was awaited longest, of equals the lowest; -1 if there is none."""
    by_rank = GroupBy(whom[waited > 0])
    return int(by_rank.values[by_rank.sum(waited[waited > 0]).argmax()]) if len(by_rank) else -1
