"""Waits for batches: how long one takes to make, and the slowest file.

``data``: ``cause_kind`` is the part of the making of batches that takes longest, ``handoff`` if most of the waits are
that, ``reads`` if the step thread itself read files. What would help is said by the table ``causes``.

``batch_time`` is the mean time to make a batch, ``quickest_ns`` and ``slowest_ns`` that of the quickest and of the
slowest worker (``worker_id``); ``workers_count`` is 0 if the step thread makes them. ``batch_part`` is a part of it.
``blocked_reads`` has the file with most of that time; the amount is then of its reads.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from stashtrace.analysis.findings.batch_making import DATA_KINDS, Making, making_of
from stashtrace.analysis.findings.claim_rows import Claim, Evidence, Facts, fact
from stashtrace.analysis.findings.rules.policy import POLICY
from stashtrace.analysis.findings.rules.stalls.blocked import dead_connections
from stashtrace.analysis.findings.rules.stalls.loop_code import time_of_kind
from stashtrace.analysis.findings.stall_claims import part_of, stall_claim, verdict, whose
from stashtrace.analysis.findings.summary_input import RankFacts, RunFacts
from stashtrace.analysis.intervals import TimeSet
from stashtrace.analysis.stalls.batch_waits import batch_waits
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.analysis.stragglers.cause_names import as_one_database
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import MAIN_PROCESS, NOT_FILES, UNSEEN_WORKER, BatchPhase, IoFlag, IoOp, StallKind
from stashtrace.schema.stall_kinds import COLUMNS
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace
from stashtrace.text.units import bytes_text, duration_text, ranks_text

#: Part of the making of a batch -> what follows "5 ms of it".
PART_WORDS = {
    "cpu": "on the CPU (decoding, transforming, collating)",
    "queue": "waiting for a CPU",
    "storage": "blocked in storage",
    "network": "waiting for data from a socket",
    "asleep": "asleep (time.sleep, usleep or the like)",
    "page_faults": "waiting for page faults from storage",
    "gil": "waiting for the GIL, which another thread holds",
    "blocked": "blocked (a lock, a pipe, another thread)",
    "unknown": "off the CPU for no recorded reason",
}


def data_claims(run: RunFacts, hit: Sequence[RankFacts]) -> list[Claim]:
    """Return the claim about ranks that wait for batches, or whose loop reads files itself."""
    worst, base, steps = hit[0], stall_claim(hit, "data", COLUMNS["data"]), run.tables["steps"]
    read_ns = _read_outside_batches_ns(run.trace, worst.rank, steps)
    if read_ns > POLICY.mostly_ratio * sum(worst.kinds.get(kind, 0) for kind in COLUMNS["data"]):
        base = part_of(base, read_ns / max(worst.steps_count, 1))
        said = "{who} {who:is|are} blocked {lost} in reads of files"
        short = "{who} {who:is|are} blocked {share} {of_step} in reads of files"
        return [verdict("data", said, run, base, short=short, cause_kind="reads")]
    on, making = whose(base), making_of(run.trace, worst.rank, steps)
    facts, rows = Facts(), _makers_not_recorded(run.trace, worst.rank)
    if not rows and making is None:
        rows = [fact("makers_left_no_records", "its workers left no records of their own")]
    elif not rows and making is not None:
        facts, rows = _of_making(run, worst, making, on)
    rows += dead_connections(run.trace, worst.rank, steps)
    said = "{who} {who:waits|wait} {lost} for batches"
    said = "{who} {who:is|are} input bound: {lost} waiting for batches" if is_input_bound(base) else said
    return [
        verdict("data", said, run, base, rows, short="{who} {who:waits|wait} {share} {of_step} for batches", **facts)
    ]


def is_input_bound(base: Claim) -> bool:
    """Return True if waiting for batches certainly bounds the rank of a claim."""
    return base.low_ns * base.share_ratio >= POLICY.input_bound_ratio * base.stall_ns


def _read_outside_batches_ns(trace: Trace, rank: int, steps: Table) -> int:
    """Return for how long a rank's step thread was blocked in reads outside of batch waits."""
    known = time_of_kind(trace, rank, steps, StallKind.FETCH)
    return (known[1] - batch_waits(TraceIndex(trace), known[0]).time).total_ns if known is not None else 0


def _of_making(run: RunFacts, rank: RankFacts, making: Making, on: str) -> tuple[Facts, list[Evidence]]:
    """Return how batches are made: the part that takes longest, and the evidence."""
    parts, rows = _parts(making, on), list[Evidence]()
    if making.idle_workers:
        said = on + (
            "{items_count} of its {of_count} workers made no batch ({name}): their part of the dataset is empty, as"
            " with fewer shards than workers"
        )
        facts = Facts(rank=rank.rank, items_count=len(making.idle_workers), name=ranks_text(list(making.idle_workers)))
        facts |= Facts(of_count=making.workers + len(making.idle_workers))
        rows.append(fact("workers_without_data", said, "batches", **facts))
    rows += parts
    fetched = rank.per_step_ns("fetch") >= POLICY.part_ratio * rank.per_step_ns(*DATA_KINDS)
    slow = _slow_file(run.trace, making, rank.kinds["fetch"], on) if fetched else None
    rows += [slow] if slow is not None else []
    longest = max(parts[1:], key=lambda row: row["part_ns"], default=None)
    cause = longest["kind"] if longest is not None else ""
    cause = "handoff" if rank.per_step_ns("handoff") > POLICY.mostly_ratio * rank.per_step_ns(*DATA_KINDS) else cause
    return Facts(cause_kind=cause, file=slow["name"] if slow is not None else ""), rows


def _parts(making: Making, on: str) -> list[Evidence]:
    """Return how long a batch takes to make, and the parts of that time, longest first."""
    needs = making.needs if making.needs > POLICY.one_each_ratio else 1.0
    means_ns = list(making.by_worker_ns.values()) or [-1.0]
    slowest = max(making.by_worker_ns, key=making.by_worker_ns.__getitem__, default=-1)
    named = sorted(making.parts_ns.items(), key=lambda item: -item[1])
    parts = [
        fact("batch_part", "", "batches", kind=part, part_ns=ns, part_ratio=ns / making.batch_ns)
        for part, ns in named
        if ns >= POLICY.part_ratio * making.batch_ns
    ]
    facts = Facts(batch_ns=making.batch_ns, quickest_ns=min(means_ns), slowest_ns=max(means_ns), worker_id=slowest)
    facts |= Facts(workers_count=making.workers, batches_of_step=needs)
    several = f" (a step uses {needs:.3g} batches)" if needs > 1 else ""
    if making.workers > 1 and facts["slowest_ns"] > POLICY.uneven_ratio * facts["quickest_ns"] > 0:
        said = (
            f"its {{workers_count}} workers take {{quickest_ns:time}} to {{slowest_ns:time}} to make a batch{several},"
            " worker {worker_id} longest; the mean batch takes {batch_ns:time}"
        )
    else:
        one = "worker {worker_id}" if making.idle_workers else "its worker"
        who = {0: "the step thread (num_workers=0)", 1: one}.get(making.workers, "each of its {workers_count} workers")
        said = f"{who} takes {{batch_ns:time}} to make a batch{several}"
    return [fact("batch_time", f"{on}{said}{parts_text(parts)}", "batches", **facts), *parts]


def parts_text(parts: Sequence[Evidence]) -> str:
    """Word the parts of the making of a batch: ``: 5 ms of it on the CPU, 2 ms blocked in storage``."""
    said = [f"{duration_text(part['part_ns'])} {PART_WORDS[part['kind']]}" for part in parts[1:]]
    for first in parts[:1]:
        length = "all" if first["part_ratio"] > 0.995 else duration_text(first["part_ns"])
        said.insert(0, f": {length} of it {PART_WORDS[first['kind']]}")
    return ", ".join(said)


def _makers_not_recorded(trace: Trace, rank: int) -> list[Evidence]:
    """Return evidence that an imported recording shows only the waits for batches; nothing if it shows their making."""
    batches = trace.batches
    workers = batches["worker_id"][batches["rank"] == rank]
    made = (batches["phase_code"][batches["rank"] == rank] == BatchPhase.FETCH).any()
    if (workers == UNSEEN_WORKER).any():
        said = "who made the batches is not in the recording: reading, decoding and hand-off cannot be separated"
    elif (workers == MAIN_PROCESS).any() and not (workers >= 0).any() and not made:
        said = (
            "the step thread makes the batches itself (num_workers=0): this recording cannot tell reading from"
            " decoding; a few workers might hide both"
        )
    else:
        return []
    return [fact("makers_not_recorded", said, "batches", rank=rank)]


def _slow_file(trace: Trace, making: Making, fetch_ns: int, on: str) -> Evidence | None:
    """Return the file whose reads blocked longest while a rank's batches were made; of sockets only receiving counts.

    Reads that are only a small part of the time in storage are not evidence.
    """
    made, tracks, io = making.batches, trace.tracks, trace.notable_io
    flags = io["io_flags"]
    waited = ((flags & (IoFlag.BLOCKED | IoFlag.BLOCK_INPUT)) != 0) & (io["result_bytes"] > 0)
    wanted = waited & (((flags & NOT_FILES) == 0) | (io["op_code"] == IoOp.RECV))
    rows = []
    for process in np.unique(made["process_id"]).tolist():
        of_process = made["process_id"] == process
        time = TimeSet.of_rows(made, of_process)
        calls = np.flatnonzero(wanted & np.isin(io["track_id"], tracks["track_id"][tracks["process_id"] == process]))
        rows.append(calls[time.within(io["begin_ns"][calls], io["end_ns"][calls]) > 0])
    blocked: Table = io.take(np.concatenate(rows)) if rows else io.take(np.zeros(0, dtype=np.int64))
    if not len(blocked):
        return None
    length = blocked["end_ns"] - blocked["begin_ns"]
    if length.sum() < POLICY.explains_ratio * fetch_ns:
        return None
    paths = GroupBy(as_one_database(trace, blocked["path_code"]))
    spent = paths.sum(length)
    part = float(spent.max() / spent.sum())
    if part > 0.5:  # the others do not matter, and may be many short ones
        mostly = np.flatnonzero(paths.number == spent.argmax())
        blocked, length = blocked.take(mostly), length[mostly]
    known = Facts(name=trace.text(paths.values[spent.argmax()]) if part > 0.5 else "", items_count=len(paths))
    known |= Facts(part_ratio=part, read_ns=float(length.mean()))
    name = os.path.basename(known["name"]) or "a file without a name"
    phrases = {"where": f"mostly from {name}" if part > 0.5 else f"over {len(paths)} files"}
    # A socket's answers do not show its rate: the time is the delay before the first of them.
    if (blocked["op_code"] == IoOp.RECV).mean() > 0.5:
        said = "blocked reads, {where}, take {read_ns:time} on average"
    else:
        rate = float(blocked["result_bytes"].sum()) / (length.sum() / 1e9)
        known, phrases = known | {"rate_bytes_per_s": rate}, phrases | {"rate": bytes_text(rate)}
        said = "blocked reads moved {rate}/s, {where}; one takes {read_ns:time} on average"
    return fact("blocked_reads", on + said, "io", phrases=phrases, **known)
