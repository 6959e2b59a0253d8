"""Sentences of evidence: what the rows of one rank say about a stall that was found. Used by ``findings``."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
import os

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.batch_layers import MAIN_PROCESS, UNSEEN_WORKER
from stashtrace.analysis.timeset import TimeSet
from stashtrace.analysis.trace_index import blocked_by_guess
from stashtrace.model.kinds import BatchPhase, CollectiveOp, IoFlag, IoOp, Phase, ProcessRole
from stashtrace.model.table import Table
from stashtrace.model.trace import Trace
from stashtrace.report.epoch_evidence import epoch_begins
from stashtrace.report.facts import RankFacts
from stashtrace.units import bytes_text, duration_text, percent_text, shortened

#: Shares of a wait below this are left out of its sentence.
_WORTH_NAMING = 0.05
#: Paths are cut in their middle to fit into a line of the summary with what is said of them.
_PATH_WIDTH = 48
_DATA_KINDS = ("prep", "fetch", "handoff")
_WORKER_WORDS = {"prep": "decoding, transforming and collating", "fetch": "blocked in storage"}
#: Above this share of a worker's time in the run queue, or of busy CPUs, more workers are no cure.
_CROWDED_RATIO = 0.2
_BUSY_RATIO = 0.85
#: The begin of epochs is told from this part of the waits on, and is their reason above the other.
_EPOCHS_MATTER, _EPOCHS_RULE = 0.25, 0.5
#: Blocked reads explain the time in storage if they are at least this share of it.
_WORTH_BLAMING = 0.25


def loading(trace: Trace, rank: RankFacts, steps: Table, cpu_busy_ratio: float) -> list[str]:
    """Why a rank waited for batches: what the worker of the awaited batch did, the slowest file, how to hide it."""
    wait_ns = rank.per_step_ns(*_DATA_KINDS)
    shares = {k: rank.per_step_ns(k) / wait_ns for k in _DATA_KINDS if rank.per_step_ns(k) >= _WORTH_NAMING * wait_ns}
    made = _made_batches(trace, rank.rank, steps)
    unseen = _makers_not_recorded(trace, rank.rank)
    if unseen:
        return [unseen]
    workers = np.unique(made["worker_id"]).tolist()
    own = workers == [-1]
    who = "the step thread makes its own batches (num_workers=0): it" if own else _workers(len(workers))
    lines = []
    epochs = epoch_begins(trace, rank.rank, steps)
    between = min(epochs.wait_ns / max(wait_ns * rank.steps_count, 1), 1.0) if epochs else 0.0
    if epochs and between >= _EPOCHS_MATTER:
        lines.append(epochs.text(_part(between), rank.steps_count))
    if between > _EPOCHS_RULE:  # what its workers did meanwhile was to begin
        return lines + (_slow_file(trace, made, rank.kinds["fetch"]) if "fetch" in shares else [])
    working = sorted((k for k in _WORKER_WORDS if k in shares), key=lambda k: -shares[k])
    if working:
        parts = [f"{_part(shares[k])}{' of that' if k == working[0] else ''} {_WORKER_WORDS[k]}" for k in working]
        passed = f"; {_part(shares['handoff'])} is hand-over (queue, unpickling)" if "handoff" in shares else ""
        lines.append(f"{who} spent " + ", ".join(parts) + passed)
    elif "handoff" in shares:
        lines.append("the batches were made in time: all of that is hand-over (queue, unpickling, pinning)")
    if blocked_by_guess(trace):
        lines.append("storage or memory: told by how long calls took, so part of it may be the other")
    if "fetch" in shares:
        lines += _slow_file(trace, made, rank.kinds["fetch"]) or _faults(made)
    crowded = _crowded(made, own)
    if crowded > _CROWDED_RATIO and working:
        queued = f"stood in the run queue for {percent_text(crowded)} of the time: too few CPUs"
        lines.append(f"making a batch, {'it' if own else 'a worker'} {queued}")
    busy = ""
    if cpu_busy_ratio > _BUSY_RATIO:
        busy = f"the CPUs are {percent_text(cpu_busy_ratio)} busy"
    elif crowded > _CROWDED_RATIO:
        busy = "they would queue for the same CPUs"
    needs = _batches_a_step(trace, rank, steps)
    handed_ns = rank.per_step_ns("handoff") / needs if shares.get("handoff", 0.0) > 0.5 else 0.0
    advice = _workers_needed(rank, made, len(workers), own, busy, needs, handed_ns)
    return lines + ([advice] if advice else [])


def _part(share: float) -> str:
    return "all" if share > 0.995 else percent_text(share)


def _crowded(made: Table, own: bool) -> float:
    """Share of the making of batches that the maker was runnable and not running."""
    known = made.take(made["runqueue_ns"] >= 0)
    length = int((known["end_ns"] - known["begin_ns"]).sum())
    return float(known["runqueue_ns"].sum()) / length if length else 0.0


def waited_operation(trace: Trace, rank: int, steps: Table) -> str:
    """Name of the collective in which a rank was blocked longest within its counted steps, empty if unknown."""
    mine = trace.collectives.take(trace.collectives["rank"] == rank)
    operation = dict(zip(mine["collective_key"].tolist(), mine["op_code"].tolist(), strict=True))
    waits = trace.collective_waits
    inside = waits.take(
        np.isin(waits["collective_key"], mine["collective_key"]) & (_step_of(waits["begin_ns"], rank, steps) >= 0)
    )
    spent: dict[int, int] = {}
    for key, length in zip(
        inside["collective_key"].tolist(), (inside["end_ns"] - inside["begin_ns"]).tolist(), strict=True
    ):
        spent[operation[key]] = spent.get(operation[key], 0) + length
    if not spent:  # blocked without a wait of its own: DDP's reducer waits inside backward
        called = mine.take((mine["end_ns"] >= 0) & (_step_of(mine["call_ns"], rank, steps) >= 0))
        for op in np.unique(called["op_code"]).tolist():
            spent[op] = int((called["end_ns"] - called["call_ns"])[called["op_code"] == op].sum())
    return CollectiveOp(max(spent, key=spent.__getitem__)).name.lower().replace("_", "-") if spent else ""


def _step_of(moments: npt.NDArray[np.int64], rank: int, steps: Table) -> npt.NDArray[np.int64]:
    """Row of the counted step of a rank that holds each moment, -1 if none does."""
    own = steps.take(steps["rank"] == rank).sort_by("begin_ns")
    if not len(own):
        return np.full(len(moments), -1, dtype=np.int64)
    at = np.searchsorted(own["begin_ns"], moments, side="right") - 1
    return np.where((at >= 0) & (moments < own["end_ns"][np.maximum(at, 0)]), at, -1)


def transfer(trace: Trace, rank: RankFacts, steps: Table) -> list[str]:
    """How much was moved a step, in how many operations."""
    mine = trace.collectives.take(trace.collectives["rank"] == rank.rank)
    # The host calls far ahead of a device, whose clock cuts the steps.
    moments = np.where(mine["device_begin_ns"] >= 0, mine["device_begin_ns"], mine["call_ns"])
    moved = mine.take((mine["message_bytes"] > 0) & (_step_of(moments, rank.rank, steps) >= 0))
    if not len(moved) or not rank.steps_count:
        return []
    calls = round(len(moved) / rank.steps_count)
    per_step = bytes_text(float(moved["message_bytes"].sum()) / rank.steps_count)
    return [f"{max(calls, 1)} operation{'' if calls <= 1 else 's'} with {per_step} of payload a step"]


def saving(trace: Trace, rank: RankFacts) -> list[str]:
    """How often and how long checkpoints were written."""
    phases = trace.phases
    processes = trace.processes
    own = processes["process_id"][(processes["rank"] == rank.rank) & (processes["role_code"] == ProcessRole.RANK)]
    mine = phases.take((phases["phase_code"] == Phase.CHECKPOINT) & np.isin(phases["process_id"], own))
    if not len(mine):
        return []
    lengths = mine["end_ns"] - mine["begin_ns"]
    count = len(mine)
    return [f"{count} checkpoint{'' if count == 1 else 's'} of {duration_text(float(np.median(lengths)))}"]


def files_overview(trace: Trace) -> list[str]:
    """What a run without training steps did with files."""
    summed = trace.io_totals
    if not trace.io_rows_count and not len(summed):
        if trace.strings.find("imported") in trace.metadata["key_code"].tolist():
            return []  # tools that record no files are no evidence of none
        return ["no file was read or written by the recorded processes"]
    moved = int(summed["read_bytes"].sum() + summed["write_bytes"].sum())
    path, size = summed["path_code"], len(trace.strings)
    spent = np.zeros(size)
    np.add.at(spent, path, summed["read_ns"] + summed["write_ns"] + summed["other_ns"])
    calls = np.zeros(size, dtype=np.int64)
    np.add.at(calls, path, summed["opens_count"] + summed["reads_count"] + summed["writes_count"])
    for io in trace.io_pieces():
        moved += int(np.maximum(io["result_bytes"], 0).sum())
        spent += np.bincount(io["path_code"], io["end_ns"] - io["begin_ns"], len(spent))
        calls += np.bincount(io["path_code"], minlength=len(calls))
    processes = len(np.unique(trace.processes["process_id"]))
    lines = [
        f"{int(calls.sum()):,} I/O calls of {processes} process{'' if processes == 1 else 'es'} moved"
        f" {bytes_text(moved)} in {duration_text(int(spent.sum()))} of calls"
    ]
    used = np.flatnonzero(calls)
    for code in used[np.argsort(-spent[used], kind="stable")[:3]].tolist():
        name = trace.text(code) or "(path not known)"
        lines.append(f"{duration_text(float(spent[code]))} in {calls[code]:,} calls on {shortened(name, _PATH_WIDTH)}")
    return lines


def _made_batches(trace: Trace, rank: int, steps: Table) -> Table:
    """Batches made while the counted steps ran: those before them had a cold cache or workers that just began."""
    batches = trace.batches
    made = batches.take((batches["rank"] == rank) & (batches["phase_code"] == BatchPhase.FETCH))
    own = steps.take(steps["rank"] == rank)
    if not len(own):
        return made
    during = made.take((made["end_ns"] > own["begin_ns"].min()) & (made["begin_ns"] < own["end_ns"].max()))
    return during if len(during) else made


def _makers_not_recorded(trace: Trace, rank: int) -> str:
    """What can be said of batches that an imported recording shows from the waiting side alone."""
    batches = trace.batches
    own = batches["worker_id"][batches["rank"] == rank]
    if (own == UNSEEN_WORKER).any():
        return "who made them is not in the recording: reading, decoding and hand-over cannot be told apart"
    made = (batches["phase_code"][batches["rank"] == rank] == BatchPhase.FETCH).any()
    if (own == MAIN_PROCESS).any() and not (own >= 0).any() and not made:
        return (
            "the step thread made them itself (num_workers=0): reading and decoding cannot be told apart in this"
            " recording; a few workers would hide both"
        )
    return ""


def _workers(count: int) -> str:
    if count == 0:
        return "its workers, which left no records of their own,"
    return "its worker" if count == 1 else f"its {count} workers"


def _batches_a_step(trace: Trace, rank: RankFacts, steps: Table) -> float:
    """Batches that a step consumes: several where gradients are accumulated."""
    batches = trace.batches
    waits = batches.take(
        (batches["rank"] == rank.rank) & (batches["phase_code"] == BatchPhase.WAIT) & (batches["batch_index"] >= 0)
    )
    consumed = np.count_nonzero(_step_of(waits["begin_ns"], rank.rank, steps) >= 0)
    return max(consumed / max(rank.steps_count, 1), 1.0)


def _faults(made: Table) -> list[str]:
    """Page faults that waited for storage while batches were made: a mapped file has no reads to show."""
    faults = int(made["major_faults_count"][made["major_faults_count"] > 0].sum())
    if not faults:
        return []
    mean = faults / len(made)
    return [f"not in reads: {mean:.1f} page faults a batch waited for storage, as those of a mapped file do"]


def _slow_file(trace: Trace, made: Table, fetch_ns: int) -> list[str]:
    """The file whose reads blocked longest while the batches of a rank were made; sockets only where one receives.

    Reads that make up only a small part of the time in storage are no evidence.
    """
    tracks, io = trace.tracks, trace.notable_io
    flags = io["io_flags"]
    waited = ((flags & (IoFlag.BLOCKED | IoFlag.BLOCK_INPUT)) != 0) & (io["result_bytes"] > 0)
    wanted = waited & (((flags & (IoFlag.SOCKET | IoFlag.PIPE)) == 0) | (io["op_code"] == IoOp.RECV))
    rows = []
    for process in np.unique(made["process_id"]).tolist():
        own = made["process_id"] == process
        making = TimeSet.of(made["begin_ns"][own], made["end_ns"][own])
        calls = np.flatnonzero(wanted & np.isin(io["track_id"], tracks["track_id"][tracks["process_id"] == process]))
        rows.append(calls[making.within(io["begin_ns"][calls], io["end_ns"][calls]) > 0])
    blocked = io.take(np.concatenate(rows)) if rows else io.take(np.zeros(0, dtype=np.int64))
    if not len(blocked):
        return []
    length = blocked["end_ns"] - blocked["begin_ns"]
    if length.sum() < _WORTH_BLAMING * fetch_ns:
        return []
    rate = f"{bytes_text(float(blocked['result_bytes'].sum()) / (length.sum() / 1e9))}/s"
    paths, index = np.unique(blocked["path_code"], return_inverse=True)
    spent = np.bincount(index, weights=length)
    name = os.path.basename(trace.text(paths[spent.argmax()])) or "a file without a name"
    part = float(spent.max() / spent.sum())
    where = f"mostly in {name}" if part > 0.5 else f"over {len(paths)} files"
    return [f"blocked reads moved {rate}, {where}; the median one took {duration_text(float(np.median(length)))}"]


def _workers_needed(
    rank: RankFacts, made: Table, workers: int, own: bool, busy: str, needs: float, handed_ns: float
) -> str:
    """How many workers would keep up, if each made batches as fast as the present ones do.

    A step consumes ``needs`` batches; ``handed_ns`` is how long one is handed over, 0 if that is not the trouble.
    """
    if not len(made) or not rank.steps_count:
        return ""
    batch_ns = float((made["end_ns"] - made["begin_ns"]).mean())
    rest_ns = rank.wall_ns / rank.steps_count - rank.per_step_ns(*_DATA_KINDS)
    if rest_ns <= 0 or batch_ns <= 0:
        return ""
    several = f" and a step takes {needs:.3g} of them" if needs > 1.05 else ""
    if handed_ns and not own:
        often = f", {needs:.3g} times a step" if several else ""
        free = ", or free CPUs," if busy else ""
        return (
            f"a batch takes {duration_text(batch_ns)} to make, then {duration_text(handed_ns)} of waiting for its"
            f" hand-over{often}: more workers would not help; fewer, larger batches{free} might"
        )
    batch = f"a batch takes {duration_text(batch_ns)} to make{several}, the rest of a step {duration_text(rest_ns)}"
    needed = math.ceil(needs * batch_ns / rest_ns)
    if not own and needed <= workers:
        return (
            f"{batch}: on average {'it keeps' if workers == 1 else 'they keep'} up, the waits come from uneven batches"
        )
    if busy:
        return f"{batch}; more workers would not help, {busy}; cheaper decoding or more CPUs would"
    return f"{batch}: {needed} worker{'' if needed == 1 else 's'} would hide it, given free CPUs"
