"""Sentences of evidence: what the rows of one rank say about a stall that was found. Used by ``findings``."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
import os
from collections.abc import Mapping

import numpy as np

from stashtrace.model.kinds import BatchPhase, CollectiveOp, IoFlag, Phase, ProcessRole, WaitOp
from stashtrace.model.table import Table
from stashtrace.model.trace import Trace
from stashtrace.report.facts import RankFacts
from stashtrace.units import bytes_text, duration_text, percent_text

#: Shares of a wait below this are left out of its sentence.
_WORTH_NAMING = 0.05
_DATA_WORDS = {
    "prep": "decoding, transforming and collating",
    "fetch": "blocked in storage",
    "handoff": "done: the batch was in the queue, being unpickled or pinned",
}


def loading(trace: Trace, rank: RankFacts, tables: Mapping[str, Table]) -> list[str]:
    """Why a rank waited for batches: what the worker of the awaited batch did, the slowest file, how to hide it."""
    wait_ns = rank.per_step_ns(*_DATA_WORDS)
    shares = {k: rank.per_step_ns(k) / wait_ns for k in _DATA_WORDS if rank.per_step_ns(k) >= _WORTH_NAMING * wait_ns}
    ordered = sorted(shares, key=lambda k: -shares[k])
    fetches = _made_batches(trace, rank.rank)
    workers = np.unique(fetches["worker_id"]).tolist()
    own = workers == [-1]
    who = "the step thread loads its own batches (num_workers=0): it" if own else _workers(len(workers))
    part = {k: "all" if shares[k] > 0.995 else percent_text(shares[k]) for k in ordered}
    parts = [f"{part[k]}{' of that' if k == ordered[0] else ''} {_DATA_WORDS[k]}" for k in ordered]
    lines = [f"{who} spent " + ", ".join(parts)] if parts else []
    if "fetch" in shares:
        lines += _slow_file(trace, rank.rank)
    advice = _workers_needed(rank, fetches, len(workers), own)
    return lines + ([advice] if advice else [])


def waited_operation(trace: Trace, rank: int) -> str:
    """Name of the collective that a rank spent most waiting time in, empty if unknown."""
    waits = trace.collective_waits
    mine = trace.collectives.take(trace.collectives["rank"] == rank)
    if not len(mine):
        return ""
    spent = dict.fromkeys(np.unique(mine["op_code"]).tolist(), 0)
    operation = dict(zip(mine["collective_key"].tolist(), mine["op_code"].tolist(), strict=True))
    for key, length in zip(
        waits["collective_key"].tolist(), (waits["end_ns"] - waits["begin_ns"]).tolist(), strict=True
    ):
        if key in operation:
            spent[operation[key]] += length
    return CollectiveOp(max(spent, key=spent.__getitem__)).name.lower().replace("_", "-")


def transfer(trace: Trace, rank: RankFacts, tables: Mapping[str, Table]) -> list[str]:
    """How much was moved, and how fast."""
    mine = trace.collectives.take(trace.collectives["rank"] == rank.rank)
    moved = mine.take((mine["end_ns"] > 0) & (mine["message_bytes"] > 0))
    if not len(moved) or not rank.steps_count:
        return []
    steps = tables["steps"]
    own = steps.take((steps["rank"] == rank.rank) & (steps["warmup"] == 0))
    at = np.searchsorted(own["begin_ns"], moved["call_ns"], side="right") - 1
    inside = (
        (at >= 0) & (moved["call_ns"] < own["end_ns"][np.maximum(at, 0)]) if len(own) else np.zeros(len(moved), bool)
    )
    per_step = float(moved["message_bytes"][inside].sum()) / max(len(own), 1)
    calls = np.count_nonzero(inside) / max(len(own), 1)
    if not per_step:
        return []
    return [f"{calls:.0f} operation{'' if round(calls) == 1 else 's'} and {bytes_text(per_step)} of payload a step"]


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


def unexplained(trace: Trace, rank: RankFacts) -> list[str]:
    """In which calls a rank was blocked, as far as they were seen."""
    waits = trace.waits
    processes = trace.processes
    own = processes["process_id"][(processes["rank"] == rank.rank) & (processes["role_code"] == ProcessRole.RANK)]
    mine = waits.take(np.isin(waits["process_id"], own))
    spent = {
        int(op): int((mine["end_ns"] - mine["begin_ns"])[mine["wait_code"] == op].sum())
        for op in np.unique(mine["wait_code"])
    }
    sleeping = spent.get(WaitOp.SLEEP, 0)
    blocked_ns = rank.kinds.get("other", 0)
    if sleeping > 0.5 * blocked_ns:
        return [f"it calls sleep: {duration_text(sleeping / max(rank.steps_count, 1))} a step"]
    return ["a sleep, a foreign lock or a socket would look like this"]


def files_overview(trace: Trace) -> list[str]:
    """What a run without training steps did with files."""
    io = trace.io
    if not len(io):
        return ["no file was read or written by the recorded processes"]
    length = io["end_ns"] - io["begin_ns"]
    moved = int(io["result_bytes"][io["result_bytes"] > 0].sum())
    processes = len(np.unique(trace.processes["process_id"]))
    lines = [
        f"{len(io):,} I/O calls of {processes} process{'' if processes == 1 else 'es'} moved {bytes_text(moved)}"
        f" in {duration_text(int(length.sum()))} of calls"
    ]
    paths, index = np.unique(io["path_code"], return_inverse=True)
    spent = np.bincount(index, weights=length)
    for at in np.argsort(-spent, kind="stable")[:3]:
        name = trace.text(paths[at]) or "(path not known)"
        lines.append(f"{duration_text(float(spent[at]))} in {np.count_nonzero(index == at):,} calls on {name}")
    return lines


def _made_batches(trace: Trace, rank: int) -> Table:
    batches = trace.batches
    return batches.take((batches["rank"] == rank) & (batches["phase_code"] == BatchPhase.FETCH))


def _workers(count: int) -> str:
    return "its worker" if count == 1 else f"its {count} workers"


def _slow_file(trace: Trace, rank: int) -> list[str]:
    """The file that the workers of a rank were blocked in longest."""
    processes, tracks, io = trace.processes, trace.tracks, trace.io
    own = processes["process_id"][processes["rank"] == rank]
    mine = np.isin(io["track_id"], tracks["track_id"][np.isin(tracks["process_id"], own)])
    blocked = io.take(mine & ((io["io_flags"] & (IoFlag.BLOCKED | IoFlag.BLOCK_INPUT)) != 0) & (io["result_bytes"] > 0))
    if not len(blocked):
        return []
    length = blocked["end_ns"] - blocked["begin_ns"]
    rate = f"{bytes_text(float(blocked['result_bytes'].sum()) / (length.sum() / 1e9))}/s"
    paths, index = np.unique(blocked["path_code"], return_inverse=True)
    spent = np.bincount(index, weights=length)
    name = os.path.basename(trace.text(paths[spent.argmax()])) or "a file without a name"
    part = float(spent.max() / spent.sum())
    where = f"mostly in {name}" if part > 0.5 else f"over {len(paths)} files"
    return [f"blocked reads moved {rate}, {where}; the median one took {duration_text(float(np.median(length)))}"]


def _workers_needed(rank: RankFacts, fetches: Table, workers: int, own: bool) -> str:
    """How many workers would keep up, if each made batches as fast as the present ones do."""
    if not len(fetches) or not rank.steps_count:
        return ""
    busy_ns = float(np.median(fetches["end_ns"] - fetches["begin_ns"]))
    rest_ns = rank.wall_ns / rank.steps_count - rank.per_step_ns(*_DATA_WORDS)
    if rest_ns <= 0 or busy_ns <= 0:
        return ""
    needed = math.ceil(busy_ns / rest_ns)
    batch = f"a batch takes {duration_text(busy_ns)} to make"
    if own:
        beside = f"beside the {duration_text(rest_ns)} of the rest"
        return f"{batch}; {needed} worker{'' if needed == 1 else 's'} would make it {beside}, given free CPUs"
    if needed > workers:
        return (
            f"{batch} and the rest of a step {duration_text(rest_ns)}: {needed} workers would hide it, given free CPUs"
        )
    return f"{batch}; {workers} should be enough on average, so the waits come from uneven batches"
