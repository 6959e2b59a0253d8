"""evidence: the numbers behind the sentences of a summary: what workers did, which files, why a rank was late."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stashtrace._native import intervals
from stashtrace.analysis.device_evidence import Row, device_evidence
from stashtrace.analysis.host_layers import CHECKPOINT_PHASES
from stashtrace.analysis.methods import rank_layers
from stashtrace.analysis.stalls import stall_intervals
from stashtrace.analysis.step_threads import StepThread
from stashtrace.analysis.steps import counted_steps, ranks_and_steps
from stashtrace.analysis.steps import steps as find_steps
from stashtrace.analysis.timeset import Int64, RowsBy, TimeSet, int64
from stashtrace.analysis.trace_index import TraceIndex
from stashtrace.model.kinds import BatchPhase
from stashtrace.model.schemas import EVIDENCE
from stashtrace.model.table import Table
from stashtrace.model.trace import Trace

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
    found = find_steps(trace)
    counted = counted_steps(found)
    counted = counted if len(counted) else counted_steps(found, warmup=True)
    kinds = stall_intervals(trace)
    by_rank = RowsBy(kinds["rank"])
    rows: list[Row] = []
    for thread, own in ranks_and_steps(trace, counted):
        window = TimeSet.of(own["begin_ns"], own["end_ns"])
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
    """Time of all workers together: blocked in storage, collating, the rest of making batches, idle."""
    fetches, collates = index.batches_of_phase(BatchPhase.FETCH), index.batches_of_phase(BatchPhase.COLLATE)
    rows = index.fetches.rows(thread.rank)
    io = index.io
    amounts = dict.fromkeys(("decode", "collate", "blocked", "idle"), 0)
    by_process = RowsBy(collates["process_id"])
    for process in np.unique(fetches["process_id"][rows]).tolist():
        own = index.fetches_by_process.rows(process)
        making = TimeSet.of(fetches["begin_ns"][own], fetches["end_ns"][own]) & window
        calls = index.io_by_process.rows(process)
        calls = calls[io.is_storage[calls] | io.is_receive[calls]]
        blocked = TimeSet.of(io.begin[calls], io.end[calls]) & making
        mine = by_process.rows(process)
        collating = (TimeSet.of(collates["begin_ns"][mine], collates["end_ns"][mine]) & making) - blocked
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
    """What the thread waited for workers of a loader to end: all together, then the longest of these waits."""
    ending = index.workers_end(thread.track_id) & window
    if not len(ending):
        return
    own = kinds.take(by_rank.rows(thread.rank))
    handed = TimeSet.of(*(own[n][own["kind"] == "handoff"] for n in ("begin_ns", "end_ns"))) & window
    whole = max(handed.total_ns, ending.total_ns)
    for name, amount in (("all", ending.total_ns), ("longest", int((ending.end - ending.begin).max()))):
        yield thread.rank, "handoff", "workers_end", name, -1, amount, amount / whole, 0.0


def _files(index: TraceIndex, thread: StepThread, window: TimeSet) -> list[Row]:
    """Files whose calls blocked longest where data was read: by workers, in batches and reads of the rank's process."""
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
    files, row = np.unique(io.path[calls], return_inverse=True)
    blocked, moved = np.bincount(row, length, len(files)), np.bincount(row, np.maximum(io.result[calls], 0), len(files))
    whole = float(length.sum())
    found: list[Row] = []
    for at in np.argsort(-blocked, kind="stable")[:_FILES].tolist():
        amount = int(blocked[at])
        rate = float(moved[at]) * 1e9 / max(amount, 1)
        found.append((thread.rank, "fetch", "file", trace.text(files[at]), -1, amount, amount / whole, rate))
    return found


def _own_reads(index: TraceIndex, thread: StepThread) -> Int64:
    """Calls of the rank's own process that may have read data: its reads, and all calls while it makes a batch.

    What its checkpoints read and write is none of that.
    """
    phases, io = index.trace.phases, index.io
    saves = (phases["process_id"] == thread.process_id) & np.isin(phases["phase_code"], CHECKPOINT_PHASES)
    saving = TimeSet.of(phases["begin_ns"][saves], phases["end_ns"][saves])
    fetches, made = index.batches_of_phase(BatchPhase.FETCH), index.fetches_by_process.rows(thread.process_id)
    making = TimeSet.of(fetches["begin_ns"][made], fetches["end_ns"][made])
    calls = int64(index.io_by_process.rows(thread.process_id))
    begin = io.begin[calls]
    wanted = io.is_read[calls] | (intervals.locate(making.begin, making.end, begin) >= 0)
    return calls[wanted & (intervals.locate(saving.begin, saving.end, begin) < 0)]


def _late_ranks(index: TraceIndex, thread: StepThread, window: TimeSet, kinds: Table, by_rank: RowsBy) -> Iterator[Row]:
    """What each rank that this one waited for did in that time."""
    late = rank_layers(index, thread).late
    for cause in np.unique(late.tag[late.tag >= 0]).tolist():
        chosen = late.tag == cause
        waited = TimeSet.of(late.begin[chosen], late.end[chosen]) & window
        own = by_rank.rows(cause)
        begin, end, row = waited.pieces(kinds["begin_ns"][own], kinds["end_ns"][own])
        names, position = np.unique(kinds["kind"][own][row], return_inverse=True)
        spent = np.zeros(len(names), dtype=np.int64)
        np.add.at(spent, position, end - begin)
        amounts = dict(zip(names.tolist(), spent.tolist(), strict=True))
        yield from _shares(thread.rank, "straggler", "late_rank", amounts, cause)
