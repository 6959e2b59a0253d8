"""Evidence about waits for batches: the work of their makers, the slowest file, the begin of epochs.

How many workers would help is no closed formula: ``replay.causes`` answers that.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stashtrace.analysis.findings.batch_making import DATA_KINDS, Making, is_starved, making_of
from stashtrace.analysis.findings.claim_rows import Evidence
from stashtrace.analysis.findings.summary_input import RankFacts, RunFacts
from stashtrace.analysis.intervals import TimeSet
from stashtrace.analysis.stalls.batch_waits import MAIN_PROCESS, UNSEEN_WORKER, batch_waits
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex, blocked_by_guess
from stashtrace.analysis.steps.epochs import epoch_begins
from stashtrace.analysis.steps.threads import step_threads
from stashtrace.analysis.stragglers.file_calls import as_one_database
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import BatchPhase, IoFlag, IoOp, SpanKind
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace
from stashtrace.units import ranks_text

#: Parts of a wait, or of the making of a batch, below this share are left out.
_WORTH_NAMING = 0.05
#: The begin of epochs is named from the first share of the waits on; above the second it is their reason.
_EPOCHS_MATTER, _EPOCHS_RULE = 0.25, 0.5
#: Blocked reads explain the time in storage if they are at least this share of it.
_WORTH_BLAMING = 0.25
#: If more than this share of a wait is hand-over, that is its cause.
_HANDED_RATIO = 0.5
#: The mean batch says little of most batches if it takes this many times as long as the median one.
_SKEWED_RATIO = 1.5
#: Workers that make batches for this part of the time do nothing else.
_ALWAYS_RATIO = 0.9


@dataclass(frozen=True, slots=True)
class Loading:
    """Reason why a rank waited for batches; the fields are those of a claim."""

    cause_kind: str = ""
    worker_id: int = -1
    file: str = ""
    advice_code: str = ""
    evidence: list[Evidence] = field(default_factory=list)


def loading(facts: RunFacts, rank: RankFacts) -> Loading:
    """Collect the evidence about the waits of one rank."""
    trace, steps = facts.trace, facts.tables["steps"]
    unrecorded = _makers_not_recorded(trace, rank.rank)
    if unrecorded is not None:
        return Loading(evidence=[unrecorded])
    wait_ns = rank.per_step_ns(*DATA_KINDS)
    handed = rank.per_step_ns("handoff") / wait_ns
    fetched = rank.per_step_ns("fetch") / wait_ns >= _WORTH_NAMING
    making = making_of(trace, rank.rank, steps)
    rows: list[Evidence] = []
    epochs = _epochs(facts, rank.rank)
    between = min(epochs["wait_ns"] / max(wait_ns * rank.steps_count, 1), 1.0) if epochs else 0.0
    if epochs and between >= _EPOCHS_MATTER:
        rows += _epoch_rows(rank, epochs, between)
    sampler = _sampler(trace, rank.rank, steps, wait_ns * rank.steps_count)
    if sampler is not None and sampler.part_ratio > _EPOCHS_RULE:
        return Loading("sampler", evidence=[sampler])
    rows += [sampler] if sampler is not None else []
    slow = _slow_file(trace, making, rank.kinds["fetch"]) if making is not None and fetched else None
    if between > _EPOCHS_RULE:  # meanwhile its workers were starting
        advice = "persistent_workers" if epochs and epochs["anew_count"] > 0 else ""
        return Loading("epochs", advice_code=advice, evidence=rows + ([slow] if slow else []))
    if handed >= _WORTH_NAMING:
        rows.append(
            Evidence("handed_over", "stalls", rank=rank.rank, part_ratio=handed, amount_ns=rank.per_step_ns("handoff"))
        )
    if making is None:
        return Loading(
            "handoff" if handed > _HANDED_RATIO else "", evidence=[Evidence("makers_left_no_records"), *rows]
        )
    parts = _parts(making)
    if making.idle_workers:
        rows.append(
            Evidence(
                "workers_without_data",
                "batches",
                rank=rank.rank,
                items_count=len(making.idle_workers),
                of_count=making.workers + len(making.idle_workers),
                name=ranks_text(list(making.idle_workers)),
            )
        )
    if handed < 1 - _WORTH_NAMING:
        rows += [*parts, *_spread(making)]
    if blocked_by_guess(trace):
        rows.append(Evidence("blocked_by_guess", "io"))
    if slow:
        rows.append(slow)
    elif making.faults_count > 0 and fetched:
        rows.append(Evidence("page_faults", "batches", part_ratio=making.faults_count))
    # Workers that always make batches limit the step: the hand-over of a batch is then hidden behind the next batch.
    busy = making.workers > 0 and making.needs * making.batch_ns >= _ALWAYS_RATIO * making.workers * rank.step_ns
    if handed > _HANDED_RATIO and not busy:
        if is_starved(making):
            queued_ns = making.parts_ns["queue"]
            starved = Evidence("handoff_starved", "batches", amount_ns=queued_ns, high_ns=making.batch_ns)
            return Loading("handoff", evidence=[*rows, starved])
        return Loading("handoff", evidence=rows + _handed_over(rank, making), advice_code="fewer_larger_batches")
    cause = max(parts[1:], key=lambda row: row.amount_ns).kind if len(parts) > 1 else ""
    cause = "handoff" if handed > _HANDED_RATIO else cause
    return Loading(cause, file=slow.name if slow else "", evidence=rows)


def _epoch_rows(rank: RankFacts, epochs: dict[str, Any], between: float) -> list[Evidence]:
    """Return what the begin of epochs costs, which is this part of the waits."""
    count, anew = epochs["begins_count"], epochs["anew_count"] > 0
    rows = [
        Evidence(
            "epochs_start_workers" if anew else "epochs_first_batch",
            "epoch_begins",
            rank=rank.rank,
            amount_ns=epochs["wait_ns"] / count,
            items_count=count,
            of_count=rank.steps_count,
            part_ratio=between,
        ),
        Evidence("epochs_workers", "epoch_begins", items_count=epochs["workers_count"]),
    ]
    if epochs["workers_end_ns"] >= _WORTH_NAMING * epochs["wait_ns"]:
        each_ns = epochs["workers_end_ns"] / count
        rows.append(Evidence("epochs_workers_end", "epoch_begins", amount_ns=each_ns, items_count=count))
    return rows


def _epochs(facts: RunFacts, rank: int) -> dict[str, Any]:
    """Return the row of ``epoch_begins`` for loaders with workers in the counted steps, empty if there is none."""
    serves = facts.step_kind or "training"
    for row in epoch_begins(facts.trace, rank, facts.tables["steps"]).rows():
        if row["serves"] == serves and row["workers_count"] > 0:
            return row
    return {}


def _sampler(trace: Trace, rank: int, steps: Table, wait_ns: float) -> Evidence | None:
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
        if not len(sums) or sums.max() < _WORTH_NAMING * wait_ns:
            return None
        longest = int(sums.argmax())
        mine = spent[names.number == longest]
        times = int(np.count_nonzero(mine >= _WORTH_NAMING * mine.max()))  # another call may only have lost the CPU
        return Evidence(
            "sampler_time",
            "spans",
            rank=rank,
            amount_ns=float(sums[longest]) / times,
            items_count=times,
            of_count=len(own),
            part_ratio=float(sums[longest]) / max(wait_ns, 1),
            name=trace.text(int(names.values[longest])),
        )
    return None


def _parts(making: Making) -> list[Evidence]:
    """Return how long a batch takes to make, and the parts of that time, longest first."""
    several = making.needs if making.needs > 1.05 else -1
    means_ns = list(making.by_worker_ns.values()) or [-1.0]
    slowest = max(making.by_worker_ns, key=making.by_worker_ns.__getitem__, default=-1)
    head = Evidence(
        "batch_time",
        "batches",
        worker_id=slowest,
        items_count=making.workers,
        amount_ns=making.batch_ns,
        low_ns=min(means_ns),
        high_ns=max(means_ns),
        part_ratio=several,
    )
    named = sorted(making.parts_ns.items(), key=lambda item: -item[1])
    return [head] + [
        Evidence("batch_part", "batches", kind=part, amount_ns=ns, part_ratio=ns / making.batch_ns)
        for part, ns in named
        if ns >= _WORTH_NAMING * making.batch_ns
    ]


def _spread(making: Making) -> list[Evidence]:
    """Return how far batches differ where the mean says little of most of them."""
    if making.median_ns * _SKEWED_RATIO > making.batch_ns:
        return []
    return [Evidence("batch_spread", "batches", amount_ns=making.median_ns, high_ns=making.longest_ns)]


def _handed_over(rank: RankFacts, making: Making) -> list[Evidence]:
    handed_ns = rank.per_step_ns("handoff") / making.needs
    return [
        Evidence(
            "fewer_larger_batches", "batches", amount_ns=handed_ns, part_ratio=making.needs, low_ns=making.batch_ns
        )
    ]


def _makers_not_recorded(trace: Trace, rank: int) -> Evidence | None:
    """Return evidence that an imported recording shows only the waits for batches, None if it shows their making."""
    batches = trace.batches
    own = batches["worker_id"][batches["rank"] == rank]
    if (own == UNSEEN_WORKER).any():
        return Evidence("makers_not_recorded", "batches", rank=rank)
    made = (batches["phase_code"][batches["rank"] == rank] == BatchPhase.FETCH).any()
    if (own == MAIN_PROCESS).any() and not (own >= 0).any() and not made:
        return Evidence("step_thread_not_recorded", "batches", rank=rank)
    return None


def _slow_file(trace: Trace, making: Making, fetch_ns: int) -> Evidence | None:
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
    if length.sum() < _WORTH_BLAMING * fetch_ns:
        return None
    paths = GroupBy(as_one_database(trace, blocked["path_code"]))
    spent = paths.sum(length)
    part = float(spent.max() / spent.sum())
    if part > 0.5:  # the others are beside the point, and may be many short ones
        mostly = np.flatnonzero(paths.number == spent.argmax())
        blocked, length = blocked.take(mostly), length[mostly]
    rate = float(blocked["result_bytes"].sum()) / (length.sum() / 1e9)
    return Evidence(
        "blocked_reads",
        "io",
        amount_ns=float(length.mean()),
        # A socket's answers do not show its rate: the time is the delay before the first of them.
        rate_bytes_per_s=-1.0 if (blocked["op_code"] == IoOp.RECV).mean() > 0.5 else rate,
        part_ratio=part,
        items_count=len(paths),
        name=trace.text(paths.values[spent.argmax()]) if part > 0.5 else "",
    )
