"""evidence: the numbers behind the sentences of a summary: time of workers, files, causes of late ranks."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from stashtrace._native import intervals
from stashtrace.analysis.collectives.collective_waits import communicator_names
from stashtrace.analysis.collectives.matching import INSIDE, group_table
from stashtrace.analysis.intervals import NEVER, Int64, TimeSet, int64
from stashtrace.analysis.stalls.budget import rank_layers, stall_intervals
from stashtrace.analysis.stalls.idle_calls import call_names
from stashtrace.analysis.stalls.on_host import CHECKPOINT_PHASES
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.analysis.steps.steps import counted_steps, ranks_and_steps
from stashtrace.analysis.steps.steps import steps as find_steps
from stashtrace.analysis.steps.threads import StepThread
from stashtrace.calibration.fit_link import bus_bytes
from stashtrace.schema import columns as col
from stashtrace.schema.columns import RANK, schema
from stashtrace.schema.groupby import GroupBy, RowsBy, order_by
from stashtrace.schema.kinds import (
    BLOCKING_CALLS,
    BatchPhase,
    Bracket,
    BracketFlag,
    CollectiveOp,
    CopyDirection,
    DeviceWork,
)
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

EVIDENCE = schema(
    "evidence",
    "What speaks for the largest stalls, over the steps without warm-up",
    RANK,
    col.word("kind", "stall that it explains: prep, fetch, straggler, h2d, sync, other, network or interconnect"),
    col.word(
        "detail",
        "worker_time: of its workers; file: blocked in it; late_rank: what the rank did meanwhile;"
        " copy, blocking_call, host_function, collective: of its device",
    ),
    col.word(
        "name",
        "decode, collate, blocked or idle; path; kind of time of the late rank; what was copied or called; stream",
    ),
    col.rank("cause_rank", "late_rank: the rank that was waited for, -1 otherwise", missing=-1),
    col.ns("amount_ns", "how long"),
    col.real("share_ratio", "of the rank's rows with the same detail"),
    col.real("rate_bytes_per_s", "file: bytes by blocked time; copy; collective: bus bandwidth; 0 otherwise"),
)

#: Files named per rank.
_FILES = 3


def evidence(trace: Trace) -> Table:
    """Collect what speaks for the stalls of each rank, over its steps without warm-up.

    ``worker_time`` divides the time of the DataLoader workers that served the rank; ``file`` names the files in which
    they (or the step thread) were blocked longest, without those of checkpoints; ``late_rank`` says what another rank
    did while this one waited. Of a device: ``copy`` are its copies from and to the host with their rate,
    ``blocking_call`` what blocked the host on it, ``host_function`` the job's own functions that a stream ran on the
    host, ``collective`` the transfers once all ranks were in, with their bus bandwidth; hidden ones count as well.

    Parameters
    ----------
    trace : Trace
        Needs steps.

    Columns
    -------
    rank, kind, detail, name, cause_rank, amount_ns, share_ratio, rate_bytes_per_s

    Raises
    ------
    MissingDataError
        If no rank has steps.
    """
    index = TraceIndex(trace)
    steps = find_steps(trace)
    counted = counted_steps(steps)
    counted = counted if len(counted) else counted_steps(steps, warmup=True)
    kinds = stall_intervals(trace)
    by_rank = RowsBy(kinds["rank"])
    rows: list[Row] = []
    for thread, own in ranks_and_steps(trace, counted):
        window = TimeSet.of_rows(own)
        rows += _worker_time(index, thread, window)
        rows += _workers_end(index, thread, window, kinds, by_rank)
        rows += _files(index, thread, window)
        rows += _late_ranks(index, thread, window, kinds, by_rank)
        rows += device_evidence(index, thread, window)
    return Table.from_rows(EVIDENCE, rows)


def _shares(rank: int, kind: str, detail: str, amounts: dict[str, int], cause: int = -1) -> Iterator[Row]:
    whole = sum(amounts.values())
    for name, amount in sorted(amounts.items(), key=lambda item: -item[1]):
        if amount > 0:
            yield rank, kind, detail, name, cause, amount, amount / whole, 0.0


def _worker_time(index: TraceIndex, thread: StepThread, window: TimeSet) -> list[Row]:
    """Return the time of all workers together: blocked in storage, collating, the rest of making batches, idle."""
    fetches, collates = index.batches_of_phase(BatchPhase.FETCH), index.batches_of_phase(BatchPhase.COLLATE)
    rows = index.fetches.rows(thread.rank)
    io = index.io
    amounts = dict.fromkeys(("decode", "collate", "blocked", "idle"), 0)
    by_process = RowsBy(collates["process_id"])
    for process in np.unique(fetches["process_id"][rows]).tolist():
        own = index.fetches_by_process.rows(process)
        making = TimeSet.of_rows(fetches, own) & window
        calls = index.io_by_process.rows(process)
        calls = calls[io.is_storage[calls] | io.is_receive[calls]]
        blocked = TimeSet.of(io.begin[calls], io.end[calls]) & making
        mine = by_process.rows(process)
        collating = (TimeSet.of_rows(collates, mine) & making) - blocked
        amounts["blocked"] += blocked.total_ns
        amounts["collate"] += collating.total_ns
        amounts["decode"] += making.total_ns - blocked.total_ns - collating.total_ns
        if process != thread.process_id:  # between its first and last batch; the main process has other things to do
            life = TimeSet.of([fetches["begin_ns"][own].min()], [fetches["end_ns"][own].max()]) & window
            amounts["idle"] += life.total_ns - making.total_ns
    return list(_shares(thread.rank, "prep", "worker_time", amounts))


def _workers_end(
    index: TraceIndex, thread: StepThread, window: TimeSet, kinds: Table, by_rank: RowsBy
) -> Iterator[Row]:
    """Yield the waits of the thread for loader workers to end: all together, then the longest one."""
    ending = index.workers_end(thread.track_id) & window
    if not len(ending):
        return
    own = kinds.take(by_rank.rows(thread.rank))
    handed = TimeSet.of(*(own[n][own["kind"] == "handoff"] for n in ("begin_ns", "end_ns"))) & window
    whole = max(handed.total_ns, ending.total_ns)
    for name, amount in (("all", ending.total_ns), ("longest", int((ending.end - ending.begin).max()))):
        yield thread.rank, "handoff", "workers_end", name, -1, amount, amount / whole, 0.0


def _files(index: TraceIndex, thread: StepThread, window: TimeSet) -> list[Row]:
    """Return the files whose calls blocked longest in workers, and in batches and reads of the rank's process."""
    trace, io = index.trace, index.io
    fetches, rows = index.batches_of_phase(BatchPhase.FETCH), index.fetches.rows(thread.rank)
    workers = np.setdiff1d(fetches["process_id"][rows], [thread.process_id])
    calls = np.concatenate([index.io_by_process.rows(p) for p in workers.tolist()] + [_own_reads(index, thread)])
    calls = calls[io.is_storage[calls]]
    if len(calls) == 0:
        return []
    length = window.within(io.begin[calls], io.end[calls])
    inside = length > 0
    calls, length = calls[inside], length[inside]
    files = GroupBy(io.path[calls])
    blocked, moved = files.sum(length), files.sum(np.maximum(io.result[calls], 0))
    rows_of_files: list[Row] = []
    for at in np.argsort(-blocked, kind="stable")[:_FILES].tolist():
        amount = int(blocked[at])
        share, rate = amount / float(length.sum()), float(moved[at]) * 1e9 / max(amount, 1)
        rows_of_files.append((thread.rank, "fetch", "file", trace.text(files.values[at]), -1, amount, share, rate))
    return rows_of_files


def _own_reads(index: TraceIndex, thread: StepThread) -> Int64:
    """Return calls of the rank's own process that may have read data: its reads, and all calls while it makes a batch.

    Calls of its checkpoints are left out.
    """
    phases, io = index.trace.phases, index.io
    saves = (phases["process_id"] == thread.process_id) & np.isin(phases["phase_code"], CHECKPOINT_PHASES)
    saving = TimeSet.of_rows(phases, saves)
    fetches, made = index.batches_of_phase(BatchPhase.FETCH), index.fetches_by_process.rows(thread.process_id)
    making = TimeSet.of_rows(fetches, made)
    calls = int64(index.io_by_process.rows(thread.process_id))
    begin = io.begin[calls]
    wanted = io.is_read[calls] | (intervals.locate(making.begin, making.end, begin) >= 0)
    return calls[wanted & (intervals.locate(saving.begin, saving.end, begin) < 0)]


def _late_ranks(index: TraceIndex, thread: StepThread, window: TimeSet, kinds: Table, by_rank: RowsBy) -> Iterator[Row]:
    """Yield what each rank that this one waited for did in that time."""
    late = rank_layers(index, thread).late
    for cause in np.unique(late.tag[late.tag >= 0]).tolist():
        chosen = late.tag == cause
        waited = TimeSet.of(late.begin[chosen], late.end[chosen]) & window
        own = by_rank.rows(cause)
        begin, end, row = waited.pieces(kinds["begin_ns"][own], kinds["end_ns"][own])
        did = GroupBy(kinds["kind"][own][row])
        amounts = dict(zip(did.values.tolist(), did.sum(end - begin).tolist(), strict=True))
        yield from _shares(thread.rank, "straggler", "late_rank", amounts, cause)


# Rows of ``evidence`` about a rank's device: copies, calls that blocked on it, functions on the host, collectives.

Row = tuple[int, str, str, str, int, int, float, float]
_Names = npt.NDArray[np.str_]
#: Copies that the budget counts as the device's own work, or as communication with another device.
_NOT_HOST = (CopyDirection.DEVICE_TO_DEVICE, CopyDirection.PEER)


def device_evidence(index: TraceIndex, thread: StepThread, window: TimeSet) -> Iterator[Row]:
    """Yield the rows of one rank inside its counted steps; none for a rank without a device."""
    yield from _copies(index, thread, window)
    yield from _blocking_calls(index, thread, window)
    yield from _host_functions(index, thread, window)
    yield from _collectives(index, thread, window)


def _sum_by_name(
    rank: int, kind: str, detail: str, names: _Names, spent: Int64, moved: npt.NDArray[np.float64]
) -> list[Row]:
    """Return one row per name, longest first."""
    if not len(names):
        return []
    by_name = GroupBy(names)
    total, size = by_name.sum(spent), by_name.sum(moved)
    order = order_by(-total, by_name.values)
    share, rate = total / max(int(total.sum()), 1), size * 1e9 / np.maximum(total, 1)
    columns = (by_name.values, total, share, rate)
    return [
        (rank, kind, detail, name, -1, amount, part, speed)
        for name, amount, part, speed in zip(*(column[order].tolist() for column in columns), strict=True)
    ]


def _copies(index: TraceIndex, thread: StepThread, window: TimeSet) -> list[Row]:
    """Return copies between host and device by memory and direction, from brackets, else from kernels."""
    table, rows = index.trace.device_brackets, index.brackets.rows(thread.process_id)
    rows = rows[(table["bracket_code"][rows] == Bracket.COPY) & (table["begin_ns"][rows] >= 0)]
    flags = table["bracket_flags"][rows]
    memory = np.select(
        [(flags & BracketFlag.PINNED) != 0, (flags & BracketFlag.PAGEABLE) != 0], ["pinned ", "pageable "], ""
    )
    if not len(rows):
        table, rows = index.trace.kernels, index.kernels.rows(thread.process_id)
        rows = rows[table["work_code"][rows] == DeviceWork.COPY]
        memory = np.full(len(rows), "")
    inside = window.within(table["begin_ns"][rows], table["end_ns"][rows])
    chosen = (inside > 0) & ~np.isin(table["copy_code"][rows], _NOT_HOST)
    names = _names(CopyDirection)[table["copy_code"][rows][chosen]]
    sizes = table["size_bytes"][rows][chosen].astype(np.float64)
    return _sum_by_name(thread.rank, "h2d", "copy", np.char.add(memory[chosen], names), inside[chosen], sizes)


def _blocking_calls(index: TraceIndex, thread: StepThread, window: TimeSet) -> list[Row]:
    """Return calls that blocked on or drained the device, by call and thread."""
    trace, calls, rows = index.trace, index.trace.device_calls, index.device_calls.rows(thread.process_id)
    rows = rows[np.isin(calls["call_code"][rows], BLOCKING_CALLS)]
    inside = window.within(calls["begin_ns"][rows], calls["end_ns"][rows])
    rows, inside = rows[inside > 0], inside[inside > 0]
    threads = _track_names(trace, calls["track_id"][rows], "")
    place, called = call_names(trace)
    names = [
        f"{called[at]} on {who or 'an unnamed thread'}" for at, who in zip(place[rows].tolist(), threads, strict=True)
    ]
    return _sum_by_name(
        thread.rank, "sync", "blocking_call", np.array(names, dtype=np.str_), inside, np.zeros(len(rows))
    )


def _host_functions(index: TraceIndex, thread: StepThread, window: TimeSet) -> list[Row]:
    """Return functions of the job that streams ran on the host, by the stream that they delayed."""
    trace, table, rows = index.trace, index.trace.device_brackets, index.brackets.rows(thread.process_id)
    rows = rows[(table["bracket_code"][rows] == Bracket.HOST_FUNCTION) & (table["begin_ns"][rows] >= 0)]
    inside = window.within(table["begin_ns"][rows], table["end_ns"][rows])
    rows, inside = rows[inside > 0], inside[inside > 0]
    names = _track_names(trace, table["track_id"][rows], "an unnamed stream")
    return _sum_by_name(
        thread.rank, "other", "host_function", np.array(names, dtype=np.str_), inside, np.zeros(len(rows))
    )


def _collectives(index: TraceIndex, thread: StepThread, window: TimeSet) -> Iterator[Row]:
    """Yield transfers from the entry of the last rank, by operation and communicator, with their bus bandwidth."""
    trace, devices = index.trace, index.on_devices
    table, rows = trace.collectives, index.collectives.rows(thread.process_id)
    rows = rows[devices.timed[rows] & (devices.matched.last_enter_ns[rows] < NEVER)]
    begin, end = np.maximum(devices.matched.last_enter_ns[rows], devices.enter_ns[rows]), devices.end_ns[rows]
    inside = window.within(begin, end)
    rows, inside = rows[inside > 0], inside[inside > 0]
    if not len(rows):
        return
    groups = group_table(trace)
    known = np.isin(table["op_code"][rows], list(CollectiveOp))
    rows, inside = rows[known], inside[known]
    hashes, ops = table["group_hash"][rows], _names(CollectiveOp)[table["op_code"][rows]].tolist()
    communicators = communicator_names(trace, hashes).tolist()
    names = np.array([f"{op}, {name}" for op, name in zip(ops, communicators, strict=True)], dtype=np.str_)
    messages = zip(ops, hashes.tolist(), table["message_bytes"][rows].tolist(), strict=True)
    moved = np.array([bus_bytes(op, len(groups[group].members), size) for op, group, size in messages], dtype=float)
    stays = devices.matched.link[rows] == INSIDE
    for kind, chosen in (("interconnect", stays), ("network", ~stays)):
        yield from _sum_by_name(thread.rank, kind, "collective", names[chosen], inside[chosen], moved[chosen])


def _track_names(trace: Trace, track_id: Int64, unknown: str) -> list[str]:
    """Return the name of each track; ``unknown`` where the trace has no such track."""
    if not len(track_id):
        return []
    tracks = trace.tracks
    named = dict(zip(tracks["track_id"].tolist(), tracks["name_code"].tolist(), strict=True))
    return [trace.text(named[track]) if track in named else unknown for track in track_id.tolist()]


def _names(codes: type[CopyDirection] | type[CollectiveOp]) -> _Names:
    """Return the name of each code, indexed by the code."""
    texts = np.full(max(codes) + 1, "unknown", dtype="U32")
    for code in codes:
        texts[code] = code.name.lower()
    return texts
