"""RankSteps: the steps that one rank's rows show, before they are numbered among all ranks.

    host     | step 0 | step 1 | step 2 |                     boundaries, as for a rank without a device
    mark     m0       m1       m2       m3                    an event on the compute stream, numbered
    device   ..m0===========m1==========m2=========m3         step i = [GPU time of mark i, of mark i + 1)

Of the marks with one number the last counts. A boundary without a mark (validation, a mark that was lost) lies where
the host's lead of the marks around it says. Without marks but with kernels whose launches are known, a boundary lies
where the work launched before it ends.

Which forwards without gradients are steps, and which are part of the training step that follows:

    rank 0   F B U V V V V F B U     V = evaluation, or tokens of a text, on this rank alone
    rank 1   F B U . . . . F B U     it waits for rank 0 in its next step: that step is as long on both

The time of a job in lockstep is one number for all ranks, so what other ranks wait for inside a step belongs to the
step. Tokens that are generated one by one are not batches of an evaluation, also where all ranks generate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.intervals import Bools, Int64, int64, is_one_of, window_at
from stashtrace.analysis.steps.threads import StepThread
from stashtrace.analysis.steps.training_loop import FORWARD, QUIET_KINDS, WAIT, StepColumns, Tokens
from stashtrace.schema.groupby import GroupBy, RowsBy
from stashtrace.schema.kinds import Bracket, BracketFlag, DeviceClock, DeviceWork
from stashtrace.schema.trace import Trace


@dataclass(frozen=True, slots=True)
class RankSteps:
    """Steps of a rank. All that is compared with host times (numbers, collectives) uses those of its step thread."""

    thread: StepThread
    #: Begin and end on the host, and kind.
    columns: StepColumns
    sub_steps: Int64
    #: Number of each step among all ranks, as far as it is known.
    ordinal: Int64
    #: On the device, where the rank has one.
    begin_ns: Int64
    end_ns: Int64
    clock_code: int
    #: 1 where the event budget left a step without events.
    thinned: Int64
    #: Steps without gradients whose forwards are far shorter than those of training: tokens, not batches.
    brief: Bools
    #: Whether the steps came with their numbers.
    numbered: bool = False

    def take(self, rows: Int64) -> RankSteps:
        """Return some of the steps."""
        return self.join(rows, rows)

    def join(self, first: Int64, last: Int64) -> RankSteps:
        """Return steps of which each reaches from one step to another, and is what the last of them is."""
        columns = self.columns
        thinned = np.concatenate([[0], np.cumsum(self.thinned)])
        return replace(
            self,
            columns=StepColumns(columns.begin[first], columns.end[last], columns.kind[last]),
            sub_steps=self.sub_steps[last],
            ordinal=self.ordinal[last],
            begin_ns=self.begin_ns[first],
            end_ns=self.end_ns[last],
            thinned=int64(thinned[last + 1] > thinned[first]),
            brief=self.brief[last],
        )


_UNTIMED = int(BracketFlag.UNTIMED | BracketFlag.FAILED)
_NEVER_TIMED = int(BracketFlag.CAPTURED | BracketFlag.FAILED)
#: Brackets that have their events whatever the budget is; all others go without in the steps that it leaves out.
_ALWAYS_TIMED = (Bracket.STEP, Bracket.BATCH_WAIT, Bracket.MARK)
_BUDGET_LOSS = "event_budget"


@dataclass(frozen=True, slots=True)
class Marks:
    """Step marks of one process in order: when the host recorded each, when the device reached it."""

    call_ns: Int64
    device_ns: Int64


class DeviceSteps:
    """Marks and kernels of all processes, grouped once."""

    def __init__(self, trace: Trace) -> None:
        brackets = trace.device_brackets
        timed = (brackets["begin_ns"] >= 0) & ((brackets["bracket_flags"] & _UNTIMED) == 0)
        self._marks = brackets.take((brackets["bracket_code"] == Bracket.STEP) & timed)
        self._marks_by = RowsBy(self._marks["process_id"])
        kernels = trace.kernels
        launched = (kernels["launch_ns"] >= 0) & (kernels["work_code"] != DeviceWork.SYNCHRONIZATION)
        self._kernels = kernels.take(launched).sort_by("launch_ns")
        self._kernels_by = RowsBy(self._kernels["process_id"])
        losses = trace.losses
        over = np.unique(losses["process_id"][losses["name_code"] == trace.strings.find(_BUDGET_LOSS)])
        optional = np.isin(brackets["process_id"], over) & ~np.isin(brackets["bracket_code"], _ALWAYS_TIMED)
        self._optional = brackets.take(optional & ((brackets["bracket_flags"] & _NEVER_TIMED) == 0))
        self._optional_by = RowsBy(self._optional["process_id"])

    def marks(self, process_id: int) -> Marks:
        """Marks of a process, the last of each number."""
        table = self._marks.take(self._marks_by.rows(process_id)).sort_by("correlation_id", "call_ns", "begin_ns")
        table = table.take(GroupBy.runs(table["correlation_id"]).last).sort_by("call_ns", "begin_ns")
        return Marks(table["call_ns"], int64(np.maximum.accumulate(table["begin_ns"])))

    def unaided(self, process_id: int) -> StepColumns:
        """Steps by marks alone, in the host's time, for a process that recorded no phases."""
        call = self.marks(process_id).call_ns
        return StepColumns(call[:-1], call[1:], np.full(max(len(call) - 1, 0), "marked"))

    def thinned(self, process_id: int, begin: Int64, end: Int64) -> Int64:
        """1 for each step that the event budget left without events; steps are given as :meth:`on_device` does."""
        table, marks = self._optional.take(self._optional_by.rows(process_id)), self.marks(process_id)
        if not len(table) or not len(marks.call_ns):
            return np.zeros(len(begin), dtype=np.int64)
        # The host decides at a mark; so what it calls behind that mark belongs to the step that begins there.
        before = np.searchsorted(marks.call_ns, table["call_ns"], side="right") - 1
        at = np.where(before >= 0, window_at(marks.device_ns[before], begin, end), -1)
        by_step = GroupBy.numbered(at, len(begin))
        untimed = (table["bracket_flags"] & int(BracketFlag.UNTIMED)) != 0
        return int64(by_step.any(untimed) & ~by_step.any(~untimed))

    def on_device(self, process_id: int, host: StepColumns) -> tuple[Int64, Int64, int]:
        """Begin and end of each step, and the clock they are from: that of the device, or 0 for the host's."""
        if len(host.begin) == 0:
            return host.begin, host.end, 0
        boundary = int64(np.append(host.begin[:1], host.end))
        marks = self.marks(process_id)
        at = _by_marks(boundary, marks)
        if at is not None:
            at = np.maximum.accumulate(at)
            return int64(at[:-1]), int64(at[1:]), int(DeviceClock.EVENT)
        # Recordings of some steps have time between them that belongs to none.
        edges = self._by_kernels(process_id, int64(np.stack([host.begin, host.end], axis=1).reshape(-1)))
        if edges is None:
            return host.begin, host.end, 0
        edges = np.maximum.accumulate(edges)
        return int64(edges[::2]), int64(edges[1::2]), int(DeviceClock.CUPTI)

    def _by_kernels(self, process_id: int, boundary: Int64) -> Int64 | None:
        rows = self._kernels_by.rows(process_id)
        if len(rows) == 0:
            return None
        launch = self._kernels["launch_ns"][rows]
        done = np.maximum.accumulate(self._kernels["end_ns"][rows])
        before = np.searchsorted(launch, boundary) - 1
        return int64(np.where(before >= 0, np.maximum(boundary, done[np.maximum(before, 0)]), boundary))


def _by_marks(boundary: Int64, marks: Marks) -> Int64 | None:
    """Device time of each boundary from the mark nearest to it on the host; None if too few have one."""
    if len(marks.call_ns) < 2:
        return None
    middle = boundary[:-1] + (boundary[1:] - boundary[:-1]) // 2
    nearest = np.searchsorted(middle, marks.call_ns, side="right")
    reach = max(int(np.diff(boundary).max()) // 2, 1)
    near = np.abs(marks.call_ns - boundary[nearest]) <= reach
    at = np.full(len(boundary), -1, dtype=np.int64)
    # Marks inside a step (an iteration of several updates) are farther from its ends than those of the ends.
    rows = np.flatnonzero(near)
    rows = rows[np.argsort(-np.abs(marks.call_ns - boundary[nearest])[rows], kind="stable")]
    at[nearest[rows]] = marks.device_ns[rows]
    known = np.flatnonzero(at >= 0)
    if len(known) < 2 or 2 * len(known) < len(boundary):
        return None
    lead = np.interp(np.arange(len(boundary)), known, (at[known] - boundary[known]).astype(np.float64))
    return np.where(at >= 0, at, boundary + int64(np.rint(lead)))


#: A batch without gradients takes a good part of the forward of a batch in training; a token takes less than this.
_TOKEN = 0.25


def trains_of(rank: RankSteps) -> Bools:
    """Return the mask of the steps that train."""
    return ~is_one_of(rank.columns.kind, QUIET_KINDS)


def brief_steps(tokens: Tokens, steps: StepColumns, sub_steps: Int64) -> Bools:
    """Return the mask of the steps without gradients and batch wait whose forwards are far shorter than training's."""
    count = len(steps.begin)
    quiet = is_one_of(steps.kind, QUIET_KINDS)
    if not quiet.any() or quiet.all():
        return np.zeros(count, dtype=bool)
    at = np.searchsorted(steps.end, tokens.begin, side="right")
    inside = (at < count) & (tokens.begin >= steps.begin[0])
    at, kind, no_grad = at[inside], tokens.kind[inside], tokens.no_grad[inside]
    length = (tokens.end - tokens.begin)[inside]
    waited = np.bincount(at[kind == WAIT], minlength=count) > 0
    forward = (kind == FORWARD) & (no_grad == quiet[at])
    spent = np.bincount(at[forward], length[forward], count)
    trained = ~quiet & (spent > 0)
    if not trained.any():
        return np.zeros(count, dtype=bool)
    usual = float(np.median(spent[trained] / sub_steps[trained]))
    return np.asarray(quiet & ~waited & (spent < _TOKEN * usual), dtype=bool)


def join_quiet(ranks: Sequence[RankSteps], first_updates: Sequence[int]) -> list[RankSteps]:
    """Join the steps without gradients that are part of a training step to it.

    ``ranks``: of all ranks. ``first_updates``: number of each rank's first update among all ranks.
    """
    runs = [_Runs.of(rank, first) for rank, first in zip(ranks, first_updates, strict=True)]
    training = [run for run in runs if run.updates]
    if not any(run.count.any() for run in training):
        return list(ranks)
    tokens = _all_brief(training)
    alone = _runs_of_few_ranks(training)
    joined = []
    for rank, run in zip(ranks, runs, strict=True):
        if not run.updates:
            joined.append(rank)
            continue
        inner = slice(run.first, run.first + run.updates)
        gaps = tokens[inner] | alone[inner]
        here = run.count[:-1] > 0
        # What a job does in its training steps it does behind its last update in a step that was never finished.
        rank = _join(rank, np.append(gaps, here.any() and not (here & ~gaps).any()))
        joined.append(_end_in_tokens(rank) if _brief_behind(training) else rank)
    return joined


def join_as(rank: RankSteps, kinds: npt.NDArray[np.str_]) -> RankSteps:
    """Join steps as they were joined where they were numbered, by the kinds that they have there."""
    known, own = _count_quiet(~np.isin(kinds, QUIET_KINDS)), _count_quiet(trains_of(rank))
    if len(known) != len(own):
        return rank
    rank = _join(rank, (known == 0) & (own > 0))
    return _end_in_tokens(rank) if known[-1] == 1 and kinds[-1] == "inference" else rank


@dataclass(frozen=True, slots=True)
class _Runs:
    """Runs of steps without gradients of a rank: before each update, and behind the last."""

    #: Number of the first update among all ranks, and how many there are.
    first: int
    updates: int
    #: Steps of each run, and how many of them are brief.
    count: Int64
    brief: Int64
    #: Of each run: begin, begin of the step that trains behind it, and end of that.
    begin: Int64
    middle: Int64
    end: Int64

    @classmethod
    def of(cls, rank: RankSteps, first: int) -> _Runs:
        """Find the runs of a rank."""
        trains = trains_of(rank)
        rows = np.flatnonzero(trains)
        count = _count_quiet(trains)
        brief = np.bincount(_run_of(trains)[rank.brief & ~trains], minlength=len(rows) + 1)
        begin = rank.begin_ns[rows - count[:-1]]
        return cls(first, len(rows), count, int64(brief), begin, rank.begin_ns[rows], rank.end_ns[rows])


def _run_of(trains: Bools) -> Int64:
    return int64(np.cumsum(trains) - trains)


def _count_quiet(trains: Bools) -> Int64:
    return int64(np.bincount(_run_of(trains)[~trains], minlength=int(trains.sum()) + 1))


def _all_brief(ranks: Sequence[_Runs]) -> Bools:
    """Return before which updates the run of each rank that has one is of tokens.

    The forwards of a rank that waits in them are long in training, and would make each batch look like a token.
    """
    found, others = _nowhere(ranks), _nowhere(ranks)
    for rank in ranks:
        own, count = slice(rank.first, rank.first + rank.updates), rank.count[:-1]
        brief = 2 * rank.brief[:-1] > count
        found[own] |= brief
        others[own] |= (count > 0) & ~brief
    return found & ~others


def _brief_behind(ranks: Sequence[_Runs]) -> bool:
    counts = [(int(rank.brief[-1]), int(rank.count[-1])) for rank in ranks if rank.count[-1]]
    return bool(counts) and all(2 * brief > count for brief, count in counts)


def _runs_of_few_ranks(ranks: Sequence[_Runs]) -> Bools:
    """Return before which updates only some ranks have a run, where the others wait for these in the same step."""
    here, missing = _nowhere(ranks), _nowhere(ranks)
    lowest, highest = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    from_ns, to_ns = np.full(len(here), lowest), np.full(len(here), highest)
    start = min(rank.first for rank in ranks)
    for rank in ranks:
        number = rank.first + np.arange(rank.updates)
        here[number] |= rank.count[:-1] > 0
        # Before the first update of a rank that was recorded later there may have been one.
        lacks = (rank.count[:-1] == 0) & ((number > rank.first) | (rank.first == start))
        missing[number[lacks]] = True
        from_ns[number[lacks]] = np.maximum(from_ns[number[lacks]], rank.begin[lacks])
        to_ns[number[lacks]] = np.minimum(to_ns[number[lacks]], rank.end[lacks])
    alone = here & missing
    spent = covered = 0
    for rank in ranks:
        number = rank.first + np.arange(rank.updates)
        chosen = alone[number] & (rank.count[:-1] > 0)
        begin, end = rank.begin[chosen], rank.middle[chosen]
        spent += int((end - begin).sum())
        covered += int(
            np.maximum(np.minimum(end, to_ns[number[chosen]]) - np.maximum(begin, from_ns[number[chosen]]), 0).sum()
        )
    return alone if 2 * covered >= spent else _nowhere(ranks)


def _nowhere(ranks: Sequence[_Runs]) -> Bools:
    return np.zeros(max(rank.first + rank.updates for rank in ranks), dtype=bool)


def _join(rank: RankSteps, gaps: Bools) -> RankSteps:
    """Join the runs before these updates to the steps that end with them; a run behind the last one is left out."""
    trains = trains_of(rank)
    joined = gaps[_run_of(trains)]
    if not (joined & ~trains).any():
        return rank
    last = np.flatnonzero(trains | ~joined)
    before = np.concatenate([[-1], last[:-1]])
    return _renumber(rank.join(int64(np.where(trains[last], before + 1, last)), int64(last)))


def _end_in_tokens(rank: RankSteps) -> RankSteps:
    """Join what was generated behind the last update to one step of inference."""
    trains = trains_of(rank)
    count = int(_count_quiet(trains)[-1])
    if not count:
        return rank
    head = np.arange(len(trains) - count)
    joined = rank.join(int64(np.append(head, len(head))), int64(np.append(head, len(trains) - 1)))
    columns = joined.columns
    kind = np.append(columns.kind[:-1], "inference").astype(columns.kind.dtype)
    return _renumber(replace(joined, columns=StepColumns(columns.begin, columns.end, kind)))


def _renumber(rank: RankSteps) -> RankSteps:
    return replace(rank, ordinal=int64(np.arange(len(rank.ordinal))))
