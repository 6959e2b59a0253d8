"""Waits for batches: which part of the work on them takes longest, the slowest file, the begin of epochs.

``data``: ``cause_kind`` is the ``part`` of the work on batches that takes longest, ``handoff`` (``queue`` where most of
that is a wait for a CPU), ``epochs`` or ``sampler``; ``reads`` if the step thread itself read files. How many workers
would help is no closed formula: the table ``causes`` answers that.

``batch_time`` is the mean time to make a batch, ``quickest_ns`` and ``slowest_ns`` that of the quickest and of the
slowest worker (``worker_id``); ``workers_count`` is 0 if the step thread makes them. ``batch_part`` is a part of it.
``sampler_time`` and ``epochs_...`` lie before a batch can be made. ``blocked_reads`` has the file with most of that
time; the amount is then of its reads.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from stashtrace.analysis.findings.batch_making import DATA_KINDS, Making, making_of, queued_handoffs_ns
from stashtrace.analysis.findings.claim_rows import Claim, Evidence, Facts, fact
from stashtrace.analysis.findings.rules.policy import POLICY
from stashtrace.analysis.findings.rules.stalls.blocked import dead_connections
from stashtrace.analysis.findings.rules.stalls.loop_code import file_calls, mostly_in_file, time_of_kind
from stashtrace.analysis.findings.stall_claims import part_of, stall_claim, step_words, verdict, whose
from stashtrace.analysis.findings.summary_input import RankFacts, RunFacts
from stashtrace.analysis.intervals import TimeSet
from stashtrace.analysis.stalls.batch_waits import MAIN_PROCESS, UNSEEN_WORKER, batch_waits
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex, blocked_by_guess
from stashtrace.analysis.steps.epochs import epoch_begins
from stashtrace.analysis.steps.threads import StepThread, step_threads
from stashtrace.analysis.stragglers.cause_names import as_one_database
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import BatchPhase, IoFlag, IoOp, SpanKind, StallKind
from stashtrace.schema.stall_kinds import COLUMNS
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace
from stashtrace.units import bytes_text, duration_text, ranks_text

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


#: Why a rank waits for batches: facts of the claim, and its evidence.
_Why = tuple[Facts, list[Evidence]]


def data_claims(run: RunFacts, hit: Sequence[RankFacts]) -> list[Claim]:
    """Return the claim about ranks that wait for batches, or whose loop reads files itself."""
    worst, base = hit[0], stall_claim(hit, "data", COLUMNS["data"])
    plain = _reads_outside_batches(run.trace, worst.rank, run.tables["steps"])
    if plain is not None and plain[1].total_ns > 0.5 * sum(worst.kinds.get(kind, 0) for kind in COLUMNS["data"]):
        rows = file_calls(run.trace, *plain, worst.steps_count, reads=True)
        named = Facts(file=rows[0]["name"], call=rows[0]["kind"]) if rows else {}
        base = part_of(base, plain[1].total_ns / max(worst.steps_count, 1))
        said = "{who} {who:is|are} blocked {lost} in reads of files{mostly}"
        short = "{who} {who:is|are} blocked {share} {of_step} in reads of files"
        mostly = {"mostly": mostly_in_file(rows)}
        return [verdict("data", said, run, base, rows, phrases=mostly, short=short, cause_kind="reads", **named)]
    own, rows = loading(run, worst, whose(base))
    rows += dead_connections(run.trace, worst.rank, run.tables["steps"])
    said = "{who} {who:waits|wait} {lost} for batches"
    said = "{who} {who:is|are} input bound: {lost} waiting for batches" if is_input_bound(base) else said
    return [verdict("data", said, run, base, rows, short="{who} {who:waits|wait} {share} {of_step} for batches", **own)]


def is_input_bound(base: Claim) -> bool:
    """Return True if waiting for batches certainly bounds the rank of a claim."""
    return base.low_ns * base.share_ratio >= POLICY.input_bound_ratio * base.stall_ns


def _reads_outside_batches(trace: Trace, rank: int, steps: Table) -> tuple[StepThread, TimeSet] | None:
    """Return when a rank's step thread was blocked in reads outside of batch waits, None if never."""
    known = time_of_kind(trace, rank, steps, StallKind.FETCH)
    if known is None:
        return None
    thread, time = known
    time -= batch_waits(TraceIndex(trace), thread).time
    return (thread, time) if len(time) else None


def loading(run: RunFacts, rank: RankFacts, on: str) -> _Why:
    """Collect why one rank waits; ``on`` names it where a claim is about several."""
    trace, steps = run.trace, run.tables["steps"]
    unrecorded = _makers_not_recorded(trace, rank.rank)
    if unrecorded is not None:
        return Facts(), [unrecorded]
    wait_ns = rank.per_step_ns(*DATA_KINDS)
    handed, handoff = rank.per_step_ns("handoff") / wait_ns, "handoff"
    fetched = rank.per_step_ns("fetch") / wait_ns >= POLICY.part_ratio
    making = making_of(trace, rank.rank, steps)
    rows: list[Evidence] = []
    epochs = _epochs(run, rank.rank)
    between = min(epochs["wait_ns"] / max(wait_ns * rank.steps_count, 1), 1.0) if epochs else 0.0
    if epochs and between >= POLICY.explains_ratio:
        rows += _epoch_rows(rank, epochs, between, on)
    sampler = _sampler(trace, rank.rank, steps, wait_ns * rank.steps_count, on)
    if sampler is not None and sampler["part_ratio"] > POLICY.mostly_ratio:
        return Facts(cause_kind="sampler"), [sampler]
    rows += [sampler] if sampler is not None else []
    slow = _slow_file(trace, making, rank.kinds["fetch"], on) if making is not None and fetched else None
    if between > POLICY.mostly_ratio:  # meanwhile its workers were starting
        advice = "persistent_workers" if epochs and epochs["anew_count"] > 0 else ""
        return Facts(cause_kind="epochs", advice_code=advice), rows + ([slow] if slow else [])
    if handed >= POLICY.part_ratio:
        rows.append(_handed_over(run.trace, rank, handed, steps, on))
        # Batches that wait for a CPU wait for that, wherever they are.
        handoff = "queue" if rows[-1]["queued_ratio"] > POLICY.mostly_ratio else handoff
    if making is None:
        unseen = fact("makers_left_no_records", "its workers left no records of their own")
        return Facts(cause_kind=handoff if handed > POLICY.mostly_ratio else ""), [unseen, *rows]
    return _of_making(run, rank, making, rows, (handed, handoff, slow, fetched), on)


def _of_making(
    run: RunFacts,
    rank: RankFacts,
    making: Making,
    rows: list[Evidence],
    known: tuple[float, str, Evidence | None, bool],
    on: str,
) -> _Why:
    """Return the reason in the making of batches.

    ``known``: part that is hand-off, what that is called as a reason, slowest file, storage is a part.
    """
    handed, handoff, slow, fetched = known
    parts = _parts(making, on)
    if making.idle_workers:
        said = on + (
            "{items_count} of its {of_count} workers made no batch ({name}): their part of the dataset is empty, as"
            " with fewer shards than workers"
        )
        own = Facts(rank=rank.rank, items_count=len(making.idle_workers), name=ranks_text(list(making.idle_workers)))
        rows.append(
            fact("workers_without_data", said, "batches", of_count=making.workers + len(making.idle_workers), **own)
        )
    if handed < 1 - POLICY.part_ratio:
        rows += [*parts, *_spread(making, on)]
    if blocked_by_guess(run.trace):
        said = "storage and memory are told apart by how long calls took, so part of one may be the other"
        rows.append(fact("blocked_by_guess", said, "io"))
    if slow:
        rows.append(slow)
    elif making.faults_count > 0 and fetched:
        said = on + "{each_count:number} page faults per batch waited for storage; reads of a memory-mapped file look"
        rows.append(fact("page_faults", said + " like this", "batches", each_count=making.faults_count))
    # Workers that always make batches limit the step: the hand-over of a batch is then hidden behind the next batch.
    always = POLICY.always_ratio * making.workers * rank.step_ns
    busy = making.workers > 0 and making.needs * making.batch_ns >= always
    if handed > POLICY.mostly_ratio and not busy and handoff == "handoff":
        larger = _larger_batches(run.trace, rank, making, on)
        return Facts(cause_kind="handoff", advice_code="fewer_larger_batches"), [*rows, larger]
    cause = max(parts[1:], key=lambda row: row["part_ns"])["kind"] if len(parts) > 1 else ""
    cause = handoff if handed > POLICY.mostly_ratio else cause
    return Facts(cause_kind=cause, file=slow["name"] if slow else ""), rows


def _times(count: int, each_ns: float) -> str:
    """Word how often something happens, up to how long each takes: ``twice in 25 steps, 905 ms each``."""
    often = {1: "once", 2: "twice"}.get(count, f"{count} times")
    return f"{often} in {{of_count:step}}, {duration_text(each_ns)}{' each' if count > 1 else ''}"


def _epoch_rows(rank: RankFacts, epochs: dict[str, Any], between: float, on: str) -> list[Evidence]:
    """Return what the begin of epochs costs, which is this part of the waits."""
    count, workers, each_ns = (
        epochs["begins_count"],
        epochs["workers_count"],
        epochs["wait_ns"] / epochs["begins_count"],
    )
    own = Facts(rank=rank.rank, each_ns=each_ns, items_count=count, of_count=rank.steps_count, part_ratio=between)
    own |= Facts(workers_count=workers)
    said = on + f"{{part_ratio:part}} of that lies between epochs: {_times(count, each_ns)}, "
    if epochs["anew_count"] > 0:
        restarted = "its worker" if workers == 1 else "its {workers_count} workers"
        said += f"to start {restarted} again and make a first batch; persistent_workers=True keeps them"
        rows = [fact("epochs_start_workers", said, "epoch_begins", **own)]
    else:
        said += "for a first batch that no worker had made ahead"
        rows = [fact("epochs_first_batch", said, "epoch_begins", **own)]
    if epochs["workers_end_ns"] >= POLICY.part_ratio * epochs["wait_ns"]:
        which = "each" if count > 1 else "it"
        said = f"{{each_ns:time}} of {which} was spent waiting for the workers of the epoch before to end"
        rows.append(fact("epochs_workers_end", said, "epoch_begins", each_ns=epochs["workers_end_ns"] / count))
    return rows


def _epochs(run: RunFacts, rank: int) -> dict[str, Any]:
    """Return the row of ``epoch_begins`` for loaders with workers in the counted steps, empty if there is none."""
    serves = run.step_kind or "training"
    for row in epoch_begins(run.trace, rank, run.tables["steps"]).rows():
        if row["serves"] == serves and row["workers_count"] > 0:
            return row
    return {}


def _sampler(trace: Trace, rank: int, steps: Table, wait_ns: float, on: str) -> Evidence | None:
    """Return the sampler that a rank's loader waits for longest in its steps; None if it is no part of the waits."""
    index, own = TraceIndex(trace), steps.take(steps["rank"] == rank)
    for thread in step_threads(trace):
        if thread.rank != rank:
            continue
        spans = trace.spans.take(index.spans.rows(thread.track_id))
        spans = spans.take(spans["kind_code"] == SpanKind.LIBRARY)
        waits = batch_waits(index, thread).time & TimeSet.of_rows(own)
        spent = waits.within(spans["begin_ns"], spans["end_ns"])
        spans, spent = spans.take(spent > 0), spent[spent > 0]
        names = GroupBy(spans["name_code"])
        sums = names.sum(spent)
        if not len(sums) or sums.max() < POLICY.part_ratio * wait_ns:
            return None
        longest = int(sums.argmax())
        mine = spent[names.number == longest]
        times = int(np.count_nonzero(mine >= POLICY.part_ratio * mine.max()))  # others may only have lost the CPU
        each_ns, part = float(sums[longest]) / times, float(sums[longest]) / max(wait_ns, 1)
        often = _times(times, each_ns)
        said = f"{on}{{part_ratio:part}} of that is {{name}}, which says which samples are next: {often},"
        known = Facts(rank=rank, each_ns=each_ns, items_count=times, of_count=len(own), part_ratio=part)
        known |= Facts(name=trace.text(int(names.values[longest])))
        return fact("sampler_time", f"{said} before a batch can be made", "spans", **known)
    return None


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
    own = Facts(batch_ns=making.batch_ns, quickest_ns=min(means_ns), slowest_ns=max(means_ns), worker_id=slowest)
    own |= Facts(workers_count=making.workers, batches_of_step=needs)
    several = f" (a step uses {needs:.3g} batches)" if needs > 1 else ""
    if making.workers > 1 and own["slowest_ns"] > POLICY.uneven_ratio * own["quickest_ns"] > 0:
        said = (
            f"its {{workers_count}} workers take {{quickest_ns:time}} to {{slowest_ns:time}} to make a batch{several},"
            " worker {worker_id} longest; the mean batch takes {batch_ns:time}"
        )
    else:
        one = "worker {worker_id}" if making.idle_workers else "its worker"
        who = {0: "the step thread (num_workers=0)", 1: one}.get(making.workers, "each of its {workers_count} workers")
        said = f"{who} takes {{batch_ns:time}} to make a batch{several}"
    return [fact("batch_time", f"{on}{said}{parts_text(parts)}", "batches", **own), *parts]


def parts_text(parts: Sequence[Evidence]) -> str:
    """Word the parts of the making of a batch: ``: 5 ms of it on the CPU, 2 ms blocked in storage``."""
    said = [f"{duration_text(part['part_ns'])} {PART_WORDS[part['kind']]}" for part in parts[1:]]
    for first in parts[:1]:
        length = "all" if first["part_ratio"] > 0.995 else duration_text(first["part_ns"])
        said.insert(0, f": {length} of it {PART_WORDS[first['kind']]}")
    return ", ".join(said)


def _spread(making: Making, on: str) -> list[Evidence]:
    """Return how far batches differ where the mean says little of most of them."""
    if making.median_ns * POLICY.uneven_ratio > making.batch_ns:
        return []
    said = on + "half of the batches take {median_ns:time} or less, the longest takes {longest_ns:time}"
    return [fact("batch_spread", said, "batches", median_ns=making.median_ns, longest_ns=making.longest_ns)]


def _handed_over(trace: Trace, rank: RankFacts, handed: float, steps: Table, on: str) -> Evidence:
    """Return which part of the waits is hand-off, and which part of that a wait for a CPU."""
    handed_ns = rank.per_step_ns("handoff")
    queued = min(queued_handoffs_ns(trace, rank.rank, steps) / max(handed_ns * rank.steps_count, 1), 1.0)
    said = on + "{part_ratio:part} of that is hand-off of batches that were ready (queue, unpickling, pinning)"
    if queued >= POLICY.part_ratio:
        said += ", {queued_ratio:part} of it waiting for a CPU"
    if queued > POLICY.mostly_ratio:
        said += ": free CPUs would shorten it"
    own = Facts(rank=rank.rank, part_ratio=handed, handed_ns=handed_ns, queued_ratio=queued)
    return fact("handed_over", said, "stalls", **own)


def _larger_batches(trace: Trace, rank: RankFacts, making: Making, on: str) -> Evidence:
    often = f", {making.needs:.3g} times{{each_step}}" if making.needs > POLICY.one_each_ratio else ""
    said = (
        f"{on}making a batch takes {{batch_ns:time}}, its hand-off {{handed_ns:time}}{often}: larger batches help where"
        " they are small, and less to pickle where they hold many Python objects"
    )
    handed_ns = rank.per_step_ns("handoff") / making.needs
    own = Facts(batch_ns=making.batch_ns, handed_ns=handed_ns, batches_of_step=making.needs)
    return fact("fewer_larger_batches", said, "batches", phrases=step_words(trace), **own)


def _makers_not_recorded(trace: Trace, rank: int) -> Evidence | None:
    """Return evidence that an imported recording shows only the waits for batches, None if it shows their making."""
    batches = trace.batches
    own = batches["worker_id"][batches["rank"] == rank]
    if (own == UNSEEN_WORKER).any():
        said = "who made the batches is not in the recording: reading, decoding and hand-off cannot be told apart"
        return fact("makers_not_recorded", said, "batches", rank=rank)
    made = (batches["phase_code"][batches["rank"] == rank] == BatchPhase.FETCH).any()
    if (own == MAIN_PROCESS).any() and not (own >= 0).any() and not made:
        said = (
            "the step thread makes the batches itself (num_workers=0): this recording cannot tell reading from"
            " decoding; a few workers might hide both"
        )
        return fact("step_thread_not_recorded", said, "batches", rank=rank)
    return None


def _slow_file(trace: Trace, making: Making, fetch_ns: int, on: str) -> Evidence | None:
    """Return the file whose reads blocked longest while a rank's batches were made; of sockets only receiving counts.

    Reads that are only a small part of the time in storage are not evidence.
    """
    made, tracks, io = making.batches, trace.tracks, trace.notable_io
    flags = io["io_flags"]
    waited = ((flags & (IoFlag.BLOCKED | IoFlag.BLOCK_INPUT)) != 0) & (io["result_bytes"] > 0)
    wanted = waited & (((flags & (IoFlag.SOCKET | IoFlag.PIPE)) == 0) | (io["op_code"] == IoOp.RECV))
    rows = []
    for process in np.unique(made["process_id"]).tolist():
        own = made["process_id"] == process
        time = TimeSet.of(made["begin_ns"][own], made["end_ns"][own])
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
    if part > 0.5:  # the others are beside the point, and may be many short ones
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
