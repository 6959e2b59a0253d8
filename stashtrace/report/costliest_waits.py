"""The costliest waits of a run, each with a cut-out of the timeline: file, worker, late rank, victims.

Waits in collectives are rows of the analysis ``late``; of waits for batches, it is the step of a rank that waited
longest. What a cut-out shows was recorded; a lane without rows is left out.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from stashtrace._native import intervals
from stashtrace.analysis.collectives.collective_waits import collective_rows
from stashtrace.analysis.intervals import Int64, int64, rows_of
from stashtrace.analysis.stalls.batch_waits import BatchWaits, batch_waits
from stashtrace.analysis.stalls.budget import rank_layers
from stashtrace.analysis.stalls.rows_by_thread import READ_OPS, TraceIndex
from stashtrace.analysis.steps.threads import StepThread, step_threads
from stashtrace.analysis.stragglers.late import late
from stashtrace.errors import MissingDataError
from stashtrace.report.policy import POLICY
from stashtrace.report.wait_text import wait_text
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import IO_WAITED, BatchPhase, StallKind
from stashtrace.schema.stall_kinds import COLUMNS
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace
from stashtrace.text.units import bytes_text, duration_text, percent_text, ranks_in


@dataclass(frozen=True, slots=True)
class _Run:
    """What all cut-outs of a run read."""

    trace: Trace
    index: TraceIndex
    threads: dict[int, StepThread]
    steps: Table

    def step(self, rank: int, step: int) -> tuple[int, int] | None:
        """Return begin and end of a step of a rank, None if it has none of that number."""
        at = np.flatnonzero((self.steps["rank"] == rank) & (self.steps["step"] == step))
        return (int(self.steps["begin_ns"][at[0]]), int(self.steps["end_ns"][at[0]])) if len(at) else None


def costliest_waits(trace: Trace, steps: Table, stalls: Table) -> dict[str, Any]:
    """Return the costliest waits of a run with steps.

    ``steps``, ``stalls``: the counted steps; the budget of all steps. Returns ``cut_outs``: see
    :func:`_collective_cut_out` and :func:`_batch_cut_out`; ``listed``: rows of ``late``, the costliest first, with
    ``text``; ``kept_count``: how many rows of ``late`` were worth showing, of the ``examined_at_most`` costliest.
    """
    run = _Run(trace, TraceIndex(trace), {thread.rank: thread for thread in step_threads(trace)}, steps)
    try:
        table = late(trace, top=POLICY.examined_waits_count)
    except MissingDataError:
        rows, cut_outs, listed, count = [], [], [], 0
    else:
        table = _worth_showing(table, steps)
        rows, count = _representative(table), len(table)
        listed = [_row(table, at) for at in range(min(count, POLICY.listed_waits_count))]
        cut_outs = _collective_cut_outs(run, table, rows)
    shown = {(cut["late_rank"], cut["step"]) for cut in cut_outs if cut["cause_kind"] in COLUMNS["data"]}
    most_ns = max((row["total_wait_ns"] for row in listed if row["method"] != "hung"), default=0)
    batch = _batch_cut_out(run, stalls, shown, most_ns)
    return {
        "cut_outs": [*cut_outs, *([batch] if batch else [])],
        "listed": listed,
        "kept_count": count,
        "examined_at_most": POLICY.examined_waits_count,
    }


def _row(table: Table, at: int) -> dict[str, Any]:
    row = {name: table[name][at].item() for name in table.columns}
    row["waiting_count"] = len(ranks_in(row["waiting_ranks"]))
    row["text"] = wait_text(row)
    return row


def _worth_showing(table: Table, steps: Table) -> Table:
    """Return what hangs, and the waits in counted steps that cost a tenth of the costliest one or more.

    Without a wait in a counted step, those outside of them count: a job may have waited only while it began.
    """
    hung = table["method"] == "hung"
    inside = hung | np.isin(table["step"], steps["step"])
    table = table.take(inside) if inside.any() else table
    cost, hung = table["total_wait_ns"], table["method"] == "hung"
    return table.take(hung | (cost * POLICY.worth_divisor >= cost[~hung].max(initial=0)))


def _representative(table: Table) -> list[int]:
    """Return the costliest row for each group, late rank and cause, the costliest first."""
    seen: dict[tuple[Any, ...], int] = {}
    keys = ("communicator", "late_rank", "cause_kind", "cause_worker_id", "cause_name")
    for at, key in enumerate(zip(*(table[name].tolist() for name in keys), strict=True)):
        seen.setdefault(key, at)
    return list(seen.values())[: POLICY.cut_outs_count]


def _collective_cut_outs(run: _Run, table: Table, rows: Iterable[int]) -> list[dict[str, Any]]:
    times, keys = collective_rows(run.trace), run.trace.collectives
    made = (_collective_cut_out(run, _row(table, at), times, keys) for at in rows)
    return [cut for cut in made if cut is not None]


def _collective_cut_out(run: _Run, row: dict[str, Any], times: Table, keys: Table) -> dict[str, Any] | None:
    """Return the cut-out of one row of ``late``: its columns, ``begin_ns``, ``end_ns``, ``lanes``, ``arrows``.

    Arrows have ``from_lane``, ``from_ns``, ``to_lane``, ``to_ns`` and ``text``; moments of lanes and arrows are ns from
    the begin of the cut-out.
    """
    of_all = _instance(row, times, keys)
    if not len(of_all):
        return None
    of_all = of_all.take(np.lexsort((of_all["rank"], -of_all["wait_ns"])))
    late_rank, wait = row["late_rank"], max(int(of_all["wait_ns"].max()), 1)
    entered = {rank: (begin, end) for rank, begin, end in zip(*(of_all[c].tolist() for c in _TIMES), strict=True)}
    others = (set(ranks_in(row["waiting_ranks"])) & set(run.threads)) - {late_rank}
    waiting = [rank for rank in of_all["rank"].tolist() if rank in others][: POLICY.waiting_ranks_count]
    first = int(of_all["begin_ns"].min())
    came = entered[late_rank][0] if late_rank in entered else first + wait
    step = run.step(late_rank, row["step"])
    # The step of the late rank, all of the wait, and what the late rank did longer, but not so much that the wait is
    # too small to see.
    earliest = min(step[0] if step else first, first - wait // 10, came - max(row["cause_ns"], 0) - wait // 10)
    # Where clocks of hosts do not agree, a wait may lie before the begin of the processes.
    begin = max(earliest, first - POLICY.before_wait_times * wait, min(run.trace.origin_ns, first))
    last = max(end for _, end in entered.values())
    window = Window(begin, max(min(last, came + POLICY.after_wait_times * wait), came + 1))
    lanes: list[dict[str, Any]] = []
    if late_rank in run.threads:
        lanes += _source_lanes(run, row, window)
        lanes.append(rank_lane(run.index, run.threads[late_rank], window, "late"))
    lanes += [rank_lane(run.index, run.threads[rank], window, "victim") for rank in waiting]
    if not lanes:
        return None
    arrows = _batch_arrows(run, lanes, row, window)
    if late_rank in run.threads and late_rank in entered:
        source = next(at for at, lane in enumerate(lanes) if lane["role"] == "late")
        arrows += [
            {
                "from_lane": source,
                "from_ns": came - begin,
                "to_lane": at,
                "to_ns": came - begin,
                "text": f"rank {late_rank} enters; {lane['label']} has waited for it",
            }
            for at, lane in enumerate(lanes)
            if lane["role"] == "victim"
        ]
    return {
        **row,
        "what": "collective",
        "begin_ns": begin,
        "end_ns": window.end_ns,
        "entered_ns": came - begin if late_rank in entered else -1,
        "shown_count": len(waiting),
        "lanes": lanes,
        "arrows": arrows,
    }


_TIMES = ("rank", "begin_ns", "end_ns")


def _instance(row: dict[str, Any], times: Table, keys: Table) -> Table:
    """Return the rows of all ranks of one operation; groups of one name are distinguished by when it began."""
    same = np.flatnonzero(
        (times["sequence"] == row["sequence"])
        & (times["communicator"] == row["communicator"])
        & (times["op"] == row["op"])
    )
    for members in GroupBy(keys["group_hash"][same]):
        of_one = times.take(same[members])
        if int(of_one["begin_ns"].min()) == row["begin_ns"]:
            return of_one
    return times.take(same[:0])


def _source_lanes(run: _Run, row: dict[str, Any], window: Window) -> list[dict[str, Any]]:
    """Return the lanes of the file and the worker that the cause of a late rank names."""
    process, worker, lanes = row["cause_process_id"], row["cause_worker_id"], []
    if row["cause_kind"] not in COLUMNS["data"] or process < 0:
        return []
    if row["cause_kind"] == "fetch" and row["cause_name"]:
        lanes.append(file_lane(run.index, process, row["cause_name"], window))
    if process != run.threads[row["late_rank"]].process_id:
        lanes.append(worker_lane(run.index, process, worker, row["late_rank"], window))
    return [lane for lane in lanes if lane is not None]


def _batch_arrows(run: _Run, lanes: list[dict[str, Any]], row: dict[str, Any], window: Window) -> list[dict[str, Any]]:
    """Return arrows from batches that a worker finished in the window to the end of the wait that took each."""
    places = {lane["role"]: at for at, lane in enumerate(lanes)}
    if not {"worker", "late"} <= places.keys():
        return []
    thread = run.threads[row["late_rank"]]
    waits = batch_waits(run.index, thread)
    return _handed_over(run, waits, row["cause_process_id"], window, places["worker"], places["late"])


def _handed_over(
    run: _Run, waits: BatchWaits, process: int, window: Window, source: int, target: int
) -> list[dict[str, Any]]:
    mine = (waits.made_by == process) & (waits.made_ns >= window.begin_ns) & (waits.end <= window.end_ns)
    recorded = run.index.batches_of_phase(BatchPhase.FETCH).take(run.index.fetches_by_process.rows(process))
    mine &= (waits.made_ns <= waits.end) & (waits.end > window.begin_ns) & np.isin(waits.made_ns, recorded["end_ns"])
    return [
        {
            "from_lane": source,
            "from_ns": made - window.begin_ns,
            "to_lane": target,
            "to_ns": end - window.begin_ns,
            "text": "the batch is ready, and the wait for it ends",
        }
        for made, end in zip(waits.made_ns[mine].tolist(), waits.end[mine].tolist(), strict=True)
    ]


def _batch_cut_out(run: _Run, stalls: Table, shown: set[tuple[int, int]], costliest_ns: int) -> dict[str, Any] | None:
    """Return the cut-out of the step of a rank that waited longest for batches; None if none did to speak of.

    ``shown`` are ranks and steps whose wait for batches is in a cut-out already, ``costliest_ns`` is what the costliest
    wait in a collective cost all ranks.
    """
    counted = GroupBy(run.steps["rank"], run.steps["step"])
    step = counted.row_of(stalls["rank"], stalls["step"])
    waited = stalls.take((step >= 0) & np.isin(stalls["kind"], COLUMNS["data"]))
    if not len(waited):
        return None
    each = GroupBy(waited["rank"], waited["step"])
    spent = each.sum(waited["stall_ns"])
    worst = int(spent.argmax())
    rank, number = int(each.keys[0][worst]), int(each.keys[1][worst])
    whole = run.step(rank, number)
    if whole is None or (rank, number) in shown or spent[worst] < POLICY.batch_wait_ratio * (whole[1] - whole[0]):
        return None
    if spent[worst] * POLICY.worth_divisor < costliest_ns:
        return None
    thread = run.threads[rank]
    waits = batch_waits(run.index, thread)
    inside = np.flatnonzero((waits.begin < whole[1]) & (waits.end > whole[0]))
    if not len(inside):
        return None
    at = int(inside[(waits.end - waits.begin)[inside].argmax()])
    begin, end = int(waits.begin[at]), int(waits.end[at])
    process, worker = int(waits.made_by[at]), int(waits.worker_id[at])
    window = Window(
        max(begin - 2 * (end - begin), _made_from(run, process, begin, int(waits.made_ns[at])), 0),
        end + (end - begin) // 4 + 1,
    )
    path = longest_file(run.index, process, window) if process >= 0 else ""
    lanes = [file_lane(run.index, process, path, window)] if path else []
    if process >= 0 and process != thread.process_id:
        lanes.append(worker_lane(run.index, process, worker, rank, window))
    known = [lane for lane in lanes if lane is not None]
    known.append(rank_lane(run.index, thread, window, "waiting"))
    places = {lane["role"]: place for place, lane in enumerate(known)}
    arrows = _handed_over(run, waits, process, window, places["worker"], len(known) - 1) if "worker" in places else []
    share = percent_text(spent[worst] / (whole[1] - whole[0]))
    text = f"rank {rank} waited {duration_text(spent[worst])} ({share}) of step {number} for batches"
    low, high = (int(waited[name][each.number == worst].sum()) for name in ("low_ns", "high_ns"))
    return {
        "what": "batch",
        "text": text,
        "step": number,
        "late_rank": -1,
        "rank": rank,
        "cause_kind": "",
        "wait_ns": int(spent[worst]),
        "low_ns": low,
        "high_ns": min(high, whole[1] - whole[0]),
        "method": str(stalls["method"][np.flatnonzero((stalls["rank"] == rank) & (stalls["step"] == number))[0]]),
        "begin_ns": window.begin_ns,
        "end_ns": window.end_ns,
        "entered_ns": -1,
        "lanes": known,
        "arrows": arrows,
    }


def _made_from(run: _Run, process: int, begin_ns: int, made_ns: int) -> int:
    """Return when a process began the batch that it had made at ``made_ns``; the begin of the wait if that is earlier.

    So it is if the making of the batch has no row.
    """
    fetches = run.index.batches_of_phase(BatchPhase.FETCH)
    rows = run.index.fetches_by_process.rows(process)
    made = rows[fetches["end_ns"][rows] == made_ns]
    return min(int(fetches["begin_ns"][made].min(initial=begin_ns)), begin_ns)


@dataclass(frozen=True, slots=True)
class Window:
    """The part of the timeline that is shown, on the trace's clock."""

    begin_ns: int
    end_ns: int

    @property
    def length_ns(self) -> int:
        """Length of the window."""
        return self.end_ns - self.begin_ns


@dataclass(frozen=True, slots=True)
class _Pieces:
    """Intervals of a lane with a kind and a number of rows each."""

    begin: Int64
    end: Int64
    kind: Int64
    rows: Int64

    def length_in(self, window: Window) -> Int64:
        """Return the length of each piece inside a window."""
        return int64(np.minimum(self.end, window.end_ns) - np.maximum(self.begin, window.begin_ns))


def rank_lane(index: TraceIndex, thread: StepThread, window: Window, role: str) -> dict[str, Any]:
    """Return the lane of a rank: its time by kind of the budget."""
    time = rank_layers(index, thread).painted_kinds()
    begin, end, row, _ = intervals.join(time.begin, time.end, int64([window.begin_ns]), int64([window.end_ns]))
    kinds = [kind.name.lower() for kind in sorted(StallKind)]
    kind = np.searchsorted(np.array(sorted(StallKind)), time.tag[row])
    pieces = _Pieces(begin, end, int64(kind), np.ones(len(begin), dtype=np.int64))
    return _lane(role, f"rank {thread.rank}", "", pieces, kinds, window, rank=thread.rank)


def worker_lane(index: TraceIndex, process_id: int, worker_id: int, rank: int, window: Window) -> dict[str, Any] | None:
    """Return the lane of a loader worker: the batches that it made; None if it made none in the window."""
    fetches = index.batches_of_phase(BatchPhase.FETCH)
    made = fetches.take(index.fetches_by_process.rows(process_id))
    made = _rows_in_window(made, window)
    if not len(made):
        return None
    batches = made["batch_index"].tolist()
    numbers = np.arange(len(made), dtype=np.int64)
    pieces = _Pieces(made["begin_ns"], made["end_ns"], numbers, np.ones(len(made), dtype=np.int64))
    names = [f"batch {batch}" if batch >= 0 else "a batch" for batch in batches]
    label = f"worker {worker_id} of rank {rank}" if worker_id >= 0 else f"a worker of rank {rank}"
    lane = _lane("worker", label, "", pieces, names, window)
    for piece in lane["pieces"]:
        piece["text"], piece["kind"] = f"makes {piece['kind']}", "worker"
    return lane


def file_lane(index: TraceIndex, process_id: int, path: str, window: Window) -> dict[str, Any] | None:
    """Return the lane of a file: the reads of one process on it; None if there is none in the window.

    Of a run whose calls are still on disk, only those that blocked are there.
    """
    trace = index.trace
    code = trace.strings.find(path)
    if code < 0 or not path:
        return None
    table = trace.notable_io if trace.streamed_io is not None else trace.io
    tracks = trace.tracks
    parts = []
    for track in np.sort(tracks["track_id"][tracks["process_id"] == process_id]).tolist():
        calls = table.take(rows_of(table["track_id"], track))
        parts.append(calls.take((calls["path_code"] == code) & np.isin(calls["op_code"], READ_OPS)))
    calls = _rows_in_window(Table.concat(table.schema, parts), window).sort_by("begin_ns")
    if not len(calls):
        return None
    blocked = int64((calls["io_flags"] & IO_WAITED) != 0)
    pieces = _Pieces(calls["begin_ns"], calls["end_ns"], blocked, np.ones(len(calls), dtype=np.int64))
    lane = _lane("file", os.path.basename(path) or path, path, pieces, ["read", "blocked"], window)
    moved = int(np.maximum(calls["result_bytes"], 0).sum())
    lane["rows_count"], lane["moved_bytes"] = len(calls), moved
    for piece in lane["pieces"]:
        what = "blocked reads" if piece["kind"] == "blocked" else "reads that did not block"
        piece["text"] = f"{what} ({piece['rows_count']})"
    lane["text"] = f"{len(calls):,} read calls, {bytes_text(moved)}"
    return lane


def longest_file(index: TraceIndex, process_id: int, window: Window) -> str:
    """Return the path on which a process was blocked in storage longest in a window; empty if it was not."""
    io = index.io
    rows = index.io_by_process.rows(process_id)
    rows = rows[io.is_storage[rows] & io.is_read[rows]]
    spent = np.minimum(io.end[rows], window.end_ns) - np.maximum(io.begin[rows], window.begin_ns)
    rows, spent = rows[spent > 0], spent[spent > 0]
    if not len(rows):
        return ""
    paths = GroupBy(io.path[rows])
    return index.trace.text(int(paths.values[int(paths.sum(spent).argmax())]))


def _rows_in_window(table: Table, window: Window) -> Table:
    return table.take((table["begin_ns"] < window.end_ns) & (table["end_ns"] > window.begin_ns))


def _lane(
    role: str, label: str, name: str, pieces: _Pieces, kinds: list[str], window: Window, rank: int = -1
) -> dict[str, Any]:
    """Return a lane with at most ``POLICY.pieces_count`` pieces, clipped to the window and sorted by begin.

    ``hidden_count`` pieces were too short to draw, ``close_ns`` is the gap below which neighbours are one.
    """
    close = max(window.length_ns // POLICY.close_divisor, 1)
    short = 0
    if rank >= 0:  # its pieces leave no gaps: what is too short to draw must not part its neighbours
        long = pieces.length_in(window) * POLICY.short_divisor >= window.length_ns
        short = int(np.count_nonzero(~long))
        pieces = _Pieces(pieces.begin[long], pieces.end[long], pieces.kind[long], pieces.rows[long])
    joined = _join_neighbours(pieces, window, close, across=rank < 0)
    length = joined.length_in(window)
    visible = np.flatnonzero(length * POLICY.short_divisor >= window.length_ns)
    chosen = visible[np.argsort(-length[visible], kind="stable")[: POLICY.pieces_count]]
    chosen = chosen[np.argsort(joined.begin[chosen], kind="stable")]
    listed = [
        {
            "begin_ns": max(int(joined.begin[at]), window.begin_ns) - window.begin_ns,
            "end_ns": min(int(joined.end[at]), window.end_ns) - window.begin_ns,
            "began_before": bool(joined.begin[at] < window.begin_ns),
            "ends_after": bool(joined.end[at] > window.end_ns),
            "kind": kinds[int(joined.kind[at])],
            "text": kinds[int(joined.kind[at])],
            "rows_count": int(joined.rows[at]),
        }
        for at in chosen.tolist()
    ]
    return {
        "role": role,
        "label": label,
        "name": name,
        "rank": rank,
        "text": "",
        "pieces": listed,
        "hidden_count": len(joined.begin) - len(chosen) + short,
        "close_ns": close,
    }


def _join_neighbours(pieces: _Pieces, window: Window, close_ns: int, *, across: bool) -> _Pieces:
    """Join neighbours of one kind that overlap or are closer than ``close_ns`` inside the window.

    With ``across``, pieces of other kinds in between do not part them.
    """
    if not len(pieces.begin):
        return pieces
    order = np.lexsort((pieces.begin, pieces.kind)) if across else np.argsort(pieces.begin, kind="stable")
    begin, end, kind, rows = (x[order] for x in (pieces.begin, pieces.end, pieces.kind, pieces.rows))
    # Kinds stand one behind the other on one axis, too far apart to be joined.
    shift = kind * (2 * window.length_ns + close_ns) if across else 0
    first_ns = np.clip(begin - window.begin_ns, 0, window.length_ns) + shift
    last_ns = np.clip(end - window.begin_ns, 0, window.length_ns) + shift
    near = first_ns[1:] - np.maximum.accumulate(last_ns)[:-1] < close_ns
    new = np.append(True, ~near | (kind[1:] != kind[:-1]))
    first = np.flatnonzero(new)
    return _Pieces(
        np.minimum.reduceat(begin, first), np.maximum.reduceat(end, first), kind[first], np.add.reduceat(rows, first)
    )
