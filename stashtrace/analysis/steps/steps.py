"""steps: begin and end of every training step of every rank, with one ordinal for all ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from stashtrace.analysis.intervals import Bools, Int64, int64, is_one_of, window_at
from stashtrace.analysis.steps.rank_steps import DeviceSteps, RankSteps, brief_steps, join_as, join_quiet, trains_of
from stashtrace.analysis.steps.threads import StepThread, step_threads
from stashtrace.analysis.steps.training_loop import (
    PHASES_OF_TOKENS,
    QUIET_KINDS,
    StepColumns,
    marked_steps,
    micro_batches,
    steps_of,
    tokens_of,
)
from stashtrace.analysis.steps.window import begun_before, fact_of_run, window_of
from stashtrace.errors import MissingDataError
from stashtrace.schema.events import STEPS
from stashtrace.schema.groupby import GroupBy, RowsBy, order_by
from stashtrace.schema.kinds import BatchPhase, CollectiveOp, PhaseFlag, SpanKind
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace, cached_on_trace

#: Steps at the head of a run that are left out by default, and the length that marks further ones.
WARMUP_STEPS, WARMUP_FACTOR = 5, 3

#: The first step of a short recording holds what came before it, the last one may be cut, or hold what comes once at
#: the end: the first is no step like the others where it is longer than these are in the middle by the first factor,
#: the last where it is shorter than the shortest by the second, or longer than the longest by the third.
_EDGE_FACTORS = (1.5, 0.2, 3.0)

#: A number of more digits is damage: added to another one it might not fit 64 bits.
_MOST_DIGITS = 15


@cached_on_trace
def steps(trace: Trace) -> Table:
    """Find the steps of every rank and number them the same way on all ranks.

    A step ends with the last optimizer update before the next forward or batch wait, and begins where the previous one
    ended; the first begins with its first batch wait or forward. Forwards under ``no_grad`` between updates are
    validation steps, from one to the next, unless only some ranks make them while the others wait, or they are far
    shorter than those of training: then they are part of the next training step. A rollout and its updates are one
    iteration; a rank that never trains does inference. Where the script calls ``stashtrace.step()``, those marks alone
    decide; imported steps (``ProfilerStep#N``) keep begin, end and number. The rules are in ``docs/concepts/steps.md``.
    A run that recorded ``--steps A:B`` alone is numbered from A. Columns: table ``steps`` of
    ``docs/reference/tables.md``.

    Parameters
    ----------
    trace : Trace
        Needs phases, batch waits or step marks.

    Raises
    ------
    MissingDataError
        If no rank has a step; the hint names the collectors to turn on.
    """
    if _are_numbered(trace):
        return Table(STEPS, {name: trace.numbered_steps[name] for name in STEPS.names})
    return _whole_ones(number_steps(local_steps(trace), trace.collectives, first_recorded_step(trace)), trace)


def _whole_ones(table: Table, trace: Trace) -> Table:
    """Return the steps up to the last one that is whole in a window."""
    window = window_of(trace)
    return table if window is None or window.last_step is None else table.take(table["step"] <= window.last_step)


def step_at(table: Table, rank: Int64, at_ns: Int64) -> Int64:
    """Step of each rank at a moment, by a table of ``steps``; -1 outside."""
    out = np.full(len(rank), -1, dtype=np.int64)
    own, by_rank = RowsBy(table["rank"]), RowsBy(rank)
    for value in by_rank.values.tolist():
        rows, mine = by_rank.rows(value), own.rows(value)
        at = window_at(at_ns[rows], table["begin_ns"][mine], table["end_ns"][mine])
        out[rows] = np.append(table["step"][mine], -1)[at]
    return out


def step_at_any(trace: Trace, rank: Int64, at_ns: Int64) -> Int64:
    """Step of each rank at a moment; -1 outside, and for all of them where no training loop was recorded."""
    table = steps_if_any(trace)
    return np.full(len(rank), -1, dtype=np.int64) if table is None else step_at(table, rank, at_ns)


def in_steps(rows: Table, steps: Table) -> Bools:
    """Whether the rank and step of each row are those of one of the steps; both tables have these columns."""
    return np.asarray(GroupBy(steps["rank"], steps["step"]).find(rows["rank"], rows["step"]) >= 0, dtype=np.bool_)


@cached_on_trace
def host_steps(trace: Trace) -> Table:
    """The same steps on the host's clock, as the loop went through them; columns and errors of :func:`steps`."""
    local = local_steps(trace)
    if not any(rank.clock_code for rank in local):
        return steps(trace)
    ranks = [replace(r, begin_ns=r.columns.begin, end_ns=r.columns.end, clock_code=0) for r in local]
    if not _are_numbered(trace):
        return _whole_ones(number_steps(ranks, trace.collectives, first_recorded_step(trace)), trace)
    known = steps(trace)
    begin, end = known["begin_ns"].copy(), known["end_ns"].copy()
    rows = RowsBy(known["rank"])
    for rank in ranks:
        at = rows.rows(rank.thread.rank)
        joined = join_as(rank, known["kind"][at])
        if len(at) == len(joined.begin_ns):  # else rows were lost after the steps had been numbered
            begin[at], end[at] = joined.begin_ns, joined.end_ns
    return known.replace(begin_ns=begin, end_ns=end, clock_code=np.zeros(len(known), dtype=np.int64))


def steps_on_host(trace: Trace, steps: Table, rank: int) -> Table:
    """Return those of some steps that a rank made, by the clock of its host, in order."""
    host, wanted = host_steps(trace), steps["step"][steps["rank"] == rank]
    return host.take((host["rank"] == rank) & np.isin(host["step"], wanted)).sort_by("begin_ns")


@cached_on_trace
def local_steps(trace: Trace) -> tuple[RankSteps, ...]:
    """Steps of each rank by its own rows alone, numbered from 0 on each unless they come with their numbers."""
    rows, devices = _Rows(trace), DeviceSteps(trace)
    ranks = tuple(_rank_steps(thread, rows, devices) for thread in step_threads(trace))
    rolls_out = [bool((rank.columns.kind == "iteration").any()) for rank in ranks]
    if len({rolls for rank, rolls in zip(ranks, rolls_out, strict=True) if trains_of(rank).any()}) < 2:
        return ranks
    # A job rolls out on each of its ranks. What one of them does alone, such as to write samples, is part of its steps.
    return tuple(
        _rank_steps(rank.thread, rows, devices, rollouts=False) if rolls else rank
        for rank, rolls in zip(ranks, rolls_out, strict=True)
    )


def number_steps(ranks: Sequence[RankSteps], collectives: Table, first: int) -> Table:
    """Number the steps of all ranks the same way: the cross-rank half of :func:`steps`.

    ``ranks``: from :func:`local_steps`, of the whole run. ``collectives``: of all ranks; needs rank, group_hash,
    sequence, op_code, call_ns. ``first``: number of the first step.
    """
    numbered = any(r.numbered for r in ranks)  # then every rank that has whole steps keeps their numbers
    ranks = list(ranks) if numbered else _number_among_all(ranks, _first_updates(ranks, collectives))
    if not any(len(r.columns.begin) for r in ranks):
        raise MissingDataError(
            "no rank finished a step", hint="record at least one optimizer step, or call stashtrace.step() in the loop"
        )
    ranks, matched = _check_by_collectives(collectives, ranks)
    per_rank = [len(r.columns.begin) for r in ranks]
    kind = np.concatenate([r.columns.kind for r in ranks])
    ordinal = np.concatenate([r.ordinal for r in ranks])
    begin = np.concatenate([r.begin_ns for r in ranks])
    end = np.concatenate([r.end_ns for r in ranks])
    skipped = int(ordinal.min()) if numbered else first
    warmup = _warmup(ordinal, end - begin, np.isin(kind, QUIET_KINDS), max(0, WARMUP_STEPS - skipped))
    columns = {
        "rank": np.repeat([r.thread.rank for r in ranks], per_rank),
        "step": ordinal + first,
        "begin_ns": begin,
        "end_ns": end,
        "process_id": np.repeat([r.thread.process_id for r in ranks], per_rank),
        "track_id": np.repeat([r.thread.track_id for r in ranks], per_rank),
        "sub_steps_count": np.concatenate([r.sub_steps for r in ranks]),
        "kind": kind.astype("U16"),
        "warmup": warmup,
        "matched_code": matched,
        "clock_code": np.repeat([r.clock_code for r in ranks], per_rank),
        "thinned": _thinned_equally(ordinal, np.concatenate([r.thinned for r in ranks]), warmup),
    }
    return Table(STEPS, columns)


def counted_steps(steps: Table, *, warmup: bool = False, kinds: Sequence[str] = ()) -> Table:
    """Steps that totals are made of: those with events, and without warm-up unless that is asked for.

    Where the event budget left a rank no step with events, its steps count all the same. With ``kinds`` only steps of
    these kinds count.
    """
    counted = is_counted(steps, warmup=warmup, kinds=kinds)
    return steps if counted.all() else steps.take(counted)


def is_counted(steps: Table, *, warmup: bool = False, kinds: Sequence[str] = ()) -> Bools:
    """Return the mask of the rows that :func:`counted_steps` keeps."""
    kept: Bools = np.ones(len(steps), dtype=bool) if warmup else steps["warmup"] == 0
    if kinds:
        kept = kept & is_one_of(steps["kind"], kinds)
    timed = kept & (steps["thinned"] == 0)
    if (timed == kept).all():  # as in all runs without a budget of events
        return kept
    return np.asarray(timed | (kept & ~np.isin(steps["rank"], np.unique(steps["rank"][timed]))))


def first_recorded_step(trace: Trace) -> int:
    """Number of the first step of a window, or that a run with ``--steps A:B`` recorded; 0 for a whole run."""
    if (window := window_of(trace)) is not None:
        return window.first_step
    first = fact_of_run(trace, "steps").partition(":")[0]
    return int(first) if first.isdecimal() and len(first) <= _MOST_DIGITS else 0


def _are_numbered(trace: Trace) -> bool:
    """Whether the trace is from a store whose steps were numbered; a rank of it may have had none."""
    return bool(len(trace.numbered_steps)) or fact_of_run(trace, "numbered_steps") not in ("", "0")


def ranks_and_steps(trace: Trace, steps: Table) -> Iterator[tuple[StepThread, Table]]:
    """Each rank's thread and steps; its life holds its steps even where the process table says less."""
    try:
        threads = step_threads(trace)
    except MissingDataError:
        if _are_numbered(trace):  # one rank of a store: it has no loop, others have
            return
        raise
    by_rank = RowsBy(steps["rank"])
    for thread in threads:
        rank_steps = steps.take(by_rank.rows(thread.rank))
        first = min([thread.begin_ns, *rank_steps["begin_ns"][:1].tolist()])
        last = max([thread.end_ns, *rank_steps["end_ns"][-1:].tolist()])
        yield replace(thread, begin_ns=first, end_ns=last), rank_steps


def rank_and_steps(trace: Trace, steps: Table, rank: int) -> tuple[StepThread, Table] | None:
    """Return the thread and the steps of a rank, as :func:`ranks_and_steps`; None if it has no thread."""
    return next((pair for pair in ranks_and_steps(trace, steps) if pair[0].rank == rank), None)


def steps_if_any(trace: Trace) -> Table | None:
    """Return the steps of a trace; None if nothing shows where they are."""
    try:
        return steps(trace)
    except MissingDataError:
        return None


class _Rows:
    """Rows that tokens are made of, grouped by thread once for all ranks."""

    def __init__(self, trace: Trace) -> None:
        self.window = window = window_of(trace)
        threads = step_threads(trace)
        phases, batches, spans = (
            table.take(~begun_before(table, threads, window)) if window is not None else table
            for table in (trace.phases, trace.batches, trace.spans)
        )
        self.phases = phases.take((phases["phase_flags"] & PhaseFlag.BACKGROUND) == 0)
        self.waits = batches.take(batches["phase_code"] == BatchPhase.WAIT)
        self.marks = spans.take(spans["kind_code"] == SpanKind.STEP_MARK)
        self.whole = spans.take(spans["kind_code"] == SpanKind.STEP).sort_by("begin_ns")
        self.phases_by, self.waits_by, self.marks_by, self.whole_by = (
            RowsBy(t["track_id"]) for t in (self.phases, self.waits, self.marks, self.whole)
        )


def _rank_steps(thread: StepThread, rows: _Rows, devices: DeviceSteps, *, rollouts: bool = True) -> RankSteps:
    """``rollouts``: forwards without gradients before updates may be those of iterations."""
    at, waits = rows.phases_by.rows(thread.track_id), rows.waits_by.rows(thread.track_id)
    columns_of_phases = {name: rows.phases[name][at] for name in PHASES_OF_TOKENS}
    tokens = tokens_of(columns_of_phases, rows.waits["begin_ns"][waits], rows.waits["end_ns"][waits])
    whole = rows.whole.take(rows.whole_by.rows(thread.track_id))
    if len(whole):
        whole = whole.take(np.sort(GroupBy(whole["value"]).first))
        # Rounded to microseconds, a step may seem to end after the next one begins.
        ends = np.minimum(whole["end_ns"], np.append(whole["begin_ns"][1:], whole["end_ns"][-1]))
        columns = StepColumns(whole["begin_ns"], ends, np.full(len(whole), "marked"))
    else:
        marks = rows.marks["end_ns"][rows.marks_by.rows(thread.track_id)]
        columns = marked_steps(tokens, marks) if len(marks) else steps_of(tokens, rollouts=rollouts)
    if not len(columns.begin):
        columns = devices.unaided(thread.process_id)
    elif rows.window is not None and thread.rank in rows.window.begins_ns:
        # The step began where the one before it ended, which is no longer there.
        begun = min(rows.window.begins_ns[thread.rank], int(columns.begin[0]))
        columns = replace(columns, begin=np.concatenate(([begun], columns.begin[1:])))
    ordinal = whole["value"] if len(whole) else int64(np.arange(len(columns.begin)))
    begin, end, clock = devices.on_device(thread.process_id, columns)
    thinned = devices.thinned(thread.process_id, begin, end)
    sub_steps = micro_batches(tokens, columns) if len(columns.begin) else int64([])
    brief = brief_steps(tokens, columns, sub_steps)
    return RankSteps(thread, columns, sub_steps, ordinal, begin, end, clock, thinned, brief, len(whole) > 0)


def _first_updates(ranks: Sequence[RankSteps], collectives: Table) -> list[int]:
    """Return the number among all ranks of each rank's first update, by updates and collectives alone."""
    if all(trains_of(rank).all() for rank in ranks):
        return [0] * len(ranks)
    trained = [rank.take(np.flatnonzero(trains_of(rank))) for rank in ranks]
    trained = [replace(rank, ordinal=int64(np.arange(len(rank.ordinal)))) for rank in trained]
    shifted, _ = _check_by_collectives(collectives, trained)
    return [int(rank.ordinal[0]) if len(rank.ordinal) else 0 for rank in shifted]


def _number_among_all(ranks: Sequence[RankSteps], first_updates: Sequence[int]) -> list[RankSteps]:
    """Common ordinals: updates match updates; validation that only some ranks do leaves a gap on the others."""
    ranks = join_quiet(ranks, first_updates)
    quiet = [~trains_of(r) for r in ranks]
    trains = max((int((~q).sum()) + offset for q, offset in zip(quiet, first_updates, strict=True)), default=0)
    before: list[Int64] = []  # per rank: validation steps before each update, and after the last
    for q, offset in zip(quiet, first_updates, strict=True):
        position = np.cumsum(~q)[q] + offset
        before.append(int64(np.bincount(position, minlength=trains + 1)))
    widest = np.max(before, axis=0) if before else int64([])
    passed = np.cumsum(widest)  # validation ordinals before update t
    numbered = []
    for rank, q, own, offset in zip(ranks, quiet, before, first_updates, strict=True):
        update_index = int64(np.cumsum(~q) - ~q) + offset
        nth = np.cumsum(q) - q - (np.cumsum(own) - own)[update_index]
        ordinal = np.where(q, update_index + (passed - widest)[update_index] + nth, update_index + passed[update_index])
        numbered.append(replace(rank, ordinal=int64(ordinal)))
    return numbered


def _check_by_collectives(table: Table, ranks: Sequence[RankSteps]) -> tuple[list[RankSteps], Int64]:
    """Shift the ordinals of ranks whose collectives say so, and return which steps agree.

    A collective has the same group and sequence on all its ranks, so it must lie in the same step. A rank recorded from
    a later step on is off by a constant: the most frequent difference, if more than half of the votes have it.
    """
    shared = ~np.isin(table["op_code"], (CollectiveOp.SEND, CollectiveOp.RECEIVE))
    order = np.flatnonzero(shared)
    order = order[order_by(*(table[c][order] for c in ("group_hash", "sequence", "rank", "call_ns")))]
    operations = GroupBy.runs(table["group_hash"][order], table["sequence"][order])
    leader = operations.first[operations.number]
    ordinal = np.full(len(order), -1, dtype=np.int64)
    by_rank = RowsBy(table["rank"][order])
    shifted, agreement = [], []
    for rank in ranks:
        columns, own_ordinal = rank.columns, rank.ordinal
        rows = by_rank.rows(rank.thread.rank)
        at = window_at(table["call_ns"][order[rows]], columns.begin, columns.end)
        rows, at = rows[at >= 0], at[at >= 0]
        ordinal[rows] = own_ordinal[at]
        voters = (leader[rows] != rows) & (ordinal[leader[rows]] >= 0)
        difference = (ordinal[leader[rows]] - ordinal[rows])[voters]
        matched = np.full(len(columns.begin), -1, dtype=np.int64)
        if len(difference):
            votes = GroupBy(difference)
            shift = int(votes.values[votes.sizes.argmax()]) if 2 * votes.sizes.max() > len(difference) else 0
            own_ordinal = own_ordinal + shift
            ordinal[rows] += shift
            matched[at[voters]] = 1
            matched[at[voters][difference != shift]] = 0
        shifted.append(replace(rank, ordinal=own_ordinal))
        agreement.append(matched)
    lowest = min((int(r.ordinal.min()) for r in shifted if len(r.ordinal)), default=0)
    if lowest < 0:
        shifted = [replace(r, ordinal=r.ordinal - lowest) for r in shifted]
    # The leading rank of a group cannot vote against itself: it agrees when others do with it.
    return shifted, _leaders_agree(shifted, agreement)


def _leaders_agree(ranks: list[RankSteps], agreement: list[Int64]) -> Int64:
    ordinals = np.concatenate([r.ordinal for r in ranks])
    matched = np.concatenate(agreement)
    if len(ordinals) == 0 or not (matched >= 0).any():
        return matched
    by_step = GroupBy(ordinals)
    voted = by_step.min(matched, where=matched >= 0, empty=-1)
    first = np.arange(len(ordinals)) < len(ranks[0].ordinal)
    return np.where(first & (matched < 0), voted[by_step.number], matched)


def _thinned_equally(ordinal: Int64, own: Int64, warmup: Int64) -> Int64:
    """A step that one rank left out is left out on all: of its collectives not every entry is known.

    Strides are powers of two, so steps remain that every rank has; were there none, each rank would keep its own.
    """
    shared = np.isin(ordinal, np.unique(ordinal[own == 1]))
    return np.where(shared, 1, 0) if (~shared & (warmup == 0)).any() else own


def _warmup(ordinal: Int64, length_ns: Int64, quiet: Bools, updates_head: int) -> Int64:
    """Mark the edges of the run: updates and validation apart, the slowest rank decides, for all ranks."""
    marks = np.zeros(len(ordinal), dtype=np.int64)
    for chosen, head in ((~quiet, updates_head), (quiet, 0)):
        by_step = GroupBy(ordinal[chosen])
        if len(by_step) < 3:
            continue
        slowest = by_step.max(length_ns[chosen])
        keep = head if len(by_step) > 2 * head else 0
        usual = int(np.median(slowest[keep:]))
        while keep < len(by_step) - 1 and slowest[keep] > WARMUP_FACTOR * usual:
            keep += 1
        left_out = by_step.number < keep
        if head and len(by_step) - keep > 2:
            inner = int(np.median(slowest[max(keep, 1) : -1]))
            if keep == 0 and slowest[0] > _EDGE_FACTORS[0] * inner:
                left_out |= by_step.number == 0
            others = slowest[max(keep, 1) : -1]
            if not _EDGE_FACTORS[1] * others.min() <= slowest[-1] <= _EDGE_FACTORS[2] * others.max():
                left_out |= by_step.number == len(by_step) - 1
        marks[chosen] = left_out
    return marks
