"""Which forwards without gradients are steps of their own, and which are part of the training step that follows.

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

from stashtrace.analysis.intervals import Int64, int64, is_one_of
from stashtrace.analysis.steps.rank_steps import RankSteps
from stashtrace.analysis.steps.training_loop import FORWARD, QUIET_KINDS, WAIT, Bools, StepColumns, Tokens

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
        own = alone[number] & (rank.count[:-1] > 0)
        begin, end = rank.begin[own], rank.middle[own]
        spent += int((end - begin).sum())
        covered += int(
            np.maximum(np.minimum(end, to_ns[number[own]]) - np.maximum(begin, from_ns[number[own]]), 0).sum()
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
