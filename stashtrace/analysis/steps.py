"""steps: begin and end of every training step of every rank, with one ordinal for all ranks."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.device_steps import DeviceSteps
from stashtrace.analysis.loop_tokens import StepColumns, Tokens, marked_steps, micro_batches, steps_of, tokens_of
from stashtrace.analysis.step_threads import StepThread, step_threads
from stashtrace.analysis.timeset import Int64, RowsBy, int64
from stashtrace.errors import MissingDataError
from stashtrace.model.kinds import BatchPhase, CollectiveOp, PhaseFlag, SpanKind
from stashtrace.model.schemas import STEPS
from stashtrace.model.table import Table
from stashtrace.model.trace import Trace

#: Steps at the head of a run that are left out by default, and the length that marks further ones.
WARMUP_STEPS, WARMUP_FACTOR = 5, 3


@dataclass(frozen=True, slots=True)
class _RankSteps:
    """Steps of a rank. All that is compared with host times (numbers, collectives) uses those of its step thread."""

    thread: StepThread
    columns: StepColumns
    sub_steps: Int64
    ordinal: Int64


def steps(trace: Trace) -> Table:
    """Find the steps of every rank and number them alike on all ranks.

    A step ends with the last optimizer update before the next forward or batch wait, and begins where the previous one
    ended; the first begins with its first batch wait or forward. Forwards under ``no_grad`` between updates are
    validation steps, from one to the next. Where the script calls ``stashtrace.step()``, those marks alone decide;
    imported steps (``ProfilerStep#N``) keep begin, end and number.
    The rules are in ``docs/concepts/steps.md``. A run
    that recorded ``--steps A:B`` alone is numbered from A.

    Parameters
    ----------
    trace : Trace
        Needs phases, batch waits or step marks.

    Columns
    -------
    rank, step, begin_ns, end_ns, process_id, track_id, sub_steps_count, kind, warmup, matched_code,
    clock_code, thinned

    Raises
    ------
    MissingDataError
        If no rank has a step; the hint names the collectors to turn on.
    """
    return _steps(trace, on_device=True)


def host_steps(trace: Trace) -> Table:
    """The same steps on the host's clock, as the loop went through them; columns and errors of :func:`steps`."""
    return _steps(trace, on_device=False)


def _steps(trace: Trace, on_device: bool) -> Table:
    rows, devices = _Rows(trace), DeviceSteps(trace)
    found = [_rank_steps(t, rows, devices) for t in step_threads(trace)]
    found = found if rows.numbered else _number(found)
    if not any(len(r.columns.begin) for r in found):
        raise MissingDataError(
            "no rank finished a step", hint="record at least one optimizer step, or call stashtrace.step() in the loop"
        )
    found, matched = _check_by_collectives(trace, found)
    per_rank = [len(r.columns.begin) for r in found]
    kind = np.concatenate([r.columns.kind for r in found])
    ordinal = np.concatenate([r.ordinal for r in found])
    there = [devices.on_device(r.thread.process_id, r.columns) for r in found]
    placed = there if on_device else [(r.columns.begin, r.columns.end, 0) for r in found]
    begin = np.concatenate([p[0] for p in placed])
    end = np.concatenate([p[1] for p in placed])
    first = first_recorded_step(trace)
    skipped = int(ordinal.min()) if rows.numbered else first
    warmup = _warmup(ordinal, end - begin, kind == "validation", max(0, WARMUP_STEPS - skipped))
    thinned = [devices.thinned(r.thread.process_id, *p[:2]) for r, p in zip(found, there, strict=True)]
    columns = {
        "rank": np.repeat([r.thread.rank for r in found], per_rank),
        "step": ordinal + first,
        "begin_ns": begin,
        "end_ns": end,
        "process_id": np.repeat([r.thread.process_id for r in found], per_rank),
        "track_id": np.repeat([r.thread.track_id for r in found], per_rank),
        "sub_steps_count": np.concatenate([r.sub_steps for r in found]),
        "kind": kind.astype("U16"),
        "warmup": warmup,
        "matched_code": matched,
        "clock_code": np.repeat([p[2] for p in placed], per_rank),
        "thinned": _thinned_alike(ordinal, np.concatenate(thinned), warmup),
    }
    return Table(STEPS, columns)


def counted_steps(found: Table, *, warmup: bool = False) -> Table:
    """Steps that totals are made of: those with events, and without warm-up unless that is asked for.

    Where the event budget left a rank no step with events, its steps count all the same.
    """
    kept = found if warmup else found.take(found["warmup"] == 0)
    timed = kept["thinned"] == 0
    return kept.take(timed | ~np.isin(kept["rank"], np.unique(kept["rank"][timed])))


def first_recorded_step(trace: Trace) -> int:
    """Number of the first step that a run with ``--steps A:B`` recorded, 0 for a whole run."""
    facts = trace.metadata.take(trace.metadata["process_id"] == -1)
    for row in facts.rows():
        if trace.text(row["key_code"]) == "steps":
            first = trace.text(row["value_code"]).partition(":")[0]
            return int(first) if first.isdecimal() else 0
    return 0


def ranks_and_steps(trace: Trace, found: Table) -> Iterator[tuple[StepThread, Table]]:
    """Each rank's thread and steps; its life holds its steps even where the process table says less."""
    by_rank = RowsBy(found["rank"])
    for thread in step_threads(trace):
        own = found.take(by_rank.rows(thread.rank))
        first = min([thread.begin_ns, *own["begin_ns"][:1].tolist()])
        last = max([thread.end_ns, *own["end_ns"][-1:].tolist()])
        yield replace(thread, begin_ns=first, end_ns=last), own


class _Rows:
    """What tokens are made of, grouped by thread once for all ranks."""

    def __init__(self, trace: Trace) -> None:
        phases, batches, spans = trace.phases, trace.batches, trace.spans
        self.phases = phases.take((phases["phase_flags"] & PhaseFlag.BACKGROUND) == 0)
        self.waits = batches.take(batches["phase_code"] == BatchPhase.WAIT)
        self.marks = spans.take(spans["kind_code"] == SpanKind.STEP_MARK)
        self.whole = spans.take(spans["kind_code"] == SpanKind.STEP).sort_by("begin_ns")
        self.phases_by, self.waits_by, self.marks_by, self.whole_by = (
            RowsBy(t["track_id"]) for t in (self.phases, self.waits, self.marks, self.whole)
        )

    @property
    def numbered(self) -> bool:
        """Whether the steps come with their numbers: every rank that has whole steps keeps them."""
        return len(self.whole) > 0


def _rank_steps(thread: StepThread, rows: _Rows, devices: DeviceSteps) -> _RankSteps:
    own, waits = rows.phases_by.rows(thread.track_id), rows.waits_by.rows(thread.track_id)
    columns_of_phases = {n: rows.phases[n][own] for n in rows.phases.columns}
    tokens = tokens_of(columns_of_phases, rows.waits["begin_ns"][waits], rows.waits["end_ns"][waits])
    whole = rows.whole.take(rows.whole_by.rows(thread.track_id))
    if len(whole):
        whole = whole.take(np.sort(np.unique(whole["value"], return_index=True)[1]))  # of equal numbers the first
        columns = StepColumns(whole["begin_ns"], whole["end_ns"], np.full(len(whole), "marked"))
        return _RankSteps(thread, columns, _sub_steps(tokens, columns), whole["value"])
    marks = rows.marks["end_ns"][rows.marks_by.rows(thread.track_id)]
    columns = marked_steps(tokens, marks) if len(marks) else steps_of(tokens)
    if not len(columns.begin):
        columns = devices.unaided(thread.process_id)
    return _RankSteps(thread, columns, _sub_steps(tokens, columns), int64(np.arange(len(columns.begin))))


def _sub_steps(tokens: Tokens, columns: StepColumns) -> Int64:
    return micro_batches(tokens, columns) if len(columns.begin) else int64([])


def _number(ranks: list[_RankSteps]) -> list[_RankSteps]:
    """Common ordinals: updates match updates; validation that only some ranks do leaves a gap on the others."""
    quiet = [r.columns.kind == "validation" for r in ranks]
    trains = max((int((~q).sum()) for q in quiet), default=0)
    before: list[Int64] = []  # per rank: validation steps before each update, and after the last
    for q in quiet:
        position = np.cumsum(~q)[q]
        before.append(int64(np.bincount(position, minlength=trains + 1)))
    widest = np.max(before, axis=0) if before else int64([])
    passed = np.cumsum(widest)  # validation ordinals before update t
    numbered = []
    for rank, q, own in zip(ranks, quiet, before, strict=True):
        update_index = np.cumsum(~q) - ~q
        nth = np.cumsum(q) - q - (np.cumsum(own) - own)[update_index]
        ordinal = np.where(q, update_index + (passed - widest)[update_index] + nth, update_index + passed[update_index])
        numbered.append(_RankSteps(rank.thread, rank.columns, rank.sub_steps, int64(ordinal)))
    return numbered


def _check_by_collectives(trace: Trace, ranks: list[_RankSteps]) -> tuple[list[_RankSteps], Int64]:
    """Shift the ordinals of ranks whose collectives say so, and tell which steps agree.

    A collective has the same group and sequence on all its ranks, so it must lie in the same step. A rank recorded from
    a later step on is off by a constant: the most frequent difference, if more than half of the votes have it.
    """
    table = trace.collectives
    shared = ~np.isin(table["op_code"], (CollectiveOp.SEND, CollectiveOp.RECEIVE))
    order = np.flatnonzero(shared)
    order = order[np.lexsort([table[c][order] for c in ("call_ns", "rank", "sequence", "group_hash")])]
    group, sequence = table["group_hash"][order], table["sequence"][order]
    new = np.ones(len(order), dtype=bool)
    new[1:] = (group[1:] != group[:-1]) | (sequence[1:] != sequence[:-1])
    leader = np.flatnonzero(new)[np.cumsum(new) - 1] if len(order) else int64([])
    ordinal = np.full(len(order), -1, dtype=np.int64)
    by_rank = RowsBy(table["rank"][order])
    shifted, agreement = [], []
    for rank in ranks:
        columns, own_ordinal = rank.columns, rank.ordinal
        rows = by_rank.rows(rank.thread.rank)
        call = table["call_ns"][order[rows]]
        at = np.searchsorted(columns.begin, call, side="right") - 1
        inside = (at >= 0) & (call < np.append(columns.end, 0)[at])
        rows, at = rows[inside], at[inside]
        ordinal[rows] = own_ordinal[at]
        voters = (leader[rows] != rows) & (ordinal[leader[rows]] >= 0)
        difference = (ordinal[leader[rows]] - ordinal[rows])[voters]
        matched = np.full(len(columns.begin), -1, dtype=np.int64)
        if len(difference):
            values, votes = np.unique(difference, return_counts=True)
            shift = int(values[votes.argmax()]) if 2 * votes.max() > votes.sum() else 0
            own_ordinal = own_ordinal + shift
            ordinal[rows] += shift
            wrong = np.bincount(at[voters], difference != shift, len(matched)) > 0
            matched[at[voters]] = 1
            matched[wrong] = 0
        shifted.append(_RankSteps(rank.thread, columns, rank.sub_steps, own_ordinal))
        agreement.append(matched)
    lowest = min((int(r.ordinal.min()) for r in shifted if len(r.ordinal)), default=0)
    if lowest < 0:
        shifted = [_RankSteps(r.thread, r.columns, r.sub_steps, r.ordinal - lowest) for r in shifted]
    # The leading rank of a group cannot vote against itself: it agrees when others do with it.
    return shifted, _leaders_agree(shifted, agreement)


def _leaders_agree(ranks: list[_RankSteps], agreement: list[Int64]) -> Int64:
    ordinals = np.concatenate([r.ordinal for r in ranks])
    matched = np.concatenate(agreement)
    if len(ordinals) == 0 or not (matched >= 0).any():
        return matched
    voted = np.full(int(ordinals.max()) + 1, 2, dtype=np.int64)
    np.minimum.at(voted, ordinals[matched >= 0], matched[matched >= 0])
    voted[voted == 2] = -1
    first = np.zeros(len(ordinals), dtype=bool)
    first[: len(ranks[0].ordinal)] = True
    return np.where(first & (matched < 0), voted[ordinals], matched)


def _thinned_alike(ordinal: Int64, own: Int64, warmup: Int64) -> Int64:
    """A step that one rank left out is left out on all: of its collectives not every entry is known.

    Strides are powers of two, so steps remain that every rank has; were there none, each rank would keep its own.
    """
    shared = np.isin(ordinal, np.unique(ordinal[own == 1]))
    return np.where(shared, 1, 0) if (~shared & (warmup == 0)).any() else own


def _warmup(ordinal: Int64, length_ns: Int64, quiet: npt.NDArray[np.bool_], updates_head: int) -> Int64:
    """Mark the head of the run: updates and validation apart, the slowest rank decides, alike on all ranks."""
    marks = np.zeros(len(ordinal), dtype=np.int64)
    for chosen, head in ((~quiet, updates_head), (quiet, 0)):
        numbers, inverse = np.unique(ordinal[chosen], return_inverse=True)
        if len(numbers) < 3:
            continue
        slowest = np.zeros(len(numbers), dtype=np.int64)
        np.maximum.at(slowest, inverse, length_ns[chosen])
        keep = head if len(numbers) > 2 * head else 0
        limit = WARMUP_FACTOR * int(np.median(slowest[keep:]))
        while keep < len(numbers) - 1 and slowest[keep] > limit:
            keep += 1
        marks[chosen] = inverse < keep
    return marks
