"""The function and line of the user's code in which the time of a verdict was spent.

``spent_in`` is a line of the step thread, ``made_in`` and ``late_made_in`` one of the workers, each with the call of a
library in it: ``spent_ns`` lies between ``low_ns`` and ``high_ns``, which samples leave open. ``longer_in`` is a
function, with the line that differs most, in which a late rank certainly spends longer than the median of the others;
``late_made_longer`` the same of its workers, by batch. ``slow_in`` takes up most of what slow steps of a rank are
longer. ``computes_in`` is the line of the job's own that computes a good part of the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from stashtrace.analysis.findings.claim_rows import Claim, Evidence, Facts, claim, evidence_by, fact
from stashtrace.analysis.findings.rules.policy import POLICY
from stashtrace.analysis.findings.stall_claims import bounded_time, step_words, whose
from stashtrace.analysis.findings.summary_input import RunFacts
from stashtrace.analysis.lines.between_ranks import lines_between_ranks
from stashtrace.analysis.lines.lines import CostlyLine, costliest_lines, costliest_worker_lines, line_that_differs
from stashtrace.analysis.lines.place_times import STEP, WHERES, WORKER, place_times
from stashtrace.analysis.lines.slow_lines import line_of_steps
from stashtrace.schema.kinds import StallKind
from stashtrace.schema.stall_kinds import KIND_NAMES, kinds_of_word
from stashtrace.schema.trace import Trace
from stashtrace.text import count_noun

Row = dict[str, Any]

#: Columns of the budget whose time a line can stand for, by the kind of a verdict.
_COLUMNS = {"host": "host", "other": "other", "save": "save", "compute_bound": "compute"}
_KINDS_OF_HOST = ("python", "launch", "sync")
_OF_TORCH = "torch "
_MADE_IN = "the workers of rank {rank} spend {spent} a batch in {name}"
#: What is said in place of lines where there are none.
_INSTEAD = ("python_unknown", "host_unknown")
#: Losses of a process whose stacks cannot be read.
_UNREAD = ("no_stacks", "stacks_not_readable")
#: What a rank or a worker spends longer, or at all: its line follows.
_BEFORE = (*("batch_time", "batch_part", "late_root", "slow_steps", "changed_time", "grew_in"),)


def with_lines(facts: RunFacts, claim: Claim) -> Claim:
    """Return a verdict with the lines in which most of its time was spent, as far as stacks were recorded."""
    if claim.section != "verdict":
        return claim
    rows = tuple(evidence_by("in which lines", _rows, facts, claim))
    if not rows:
        return claim
    kept = tuple(row for row in claim.evidence if row.code not in _INSTEAD)
    first = rows[0].code == "spent_in"  # what else is known says more of it; the others follow on what a rank does
    return replace(claim, evidence=(*rows, *kept) if first else _behind(kept, rows))


def _time_of(claim: Claim) -> str:
    """Return the kind of time, or the column, that a verdict is about."""
    return claim.cause_kind if claim.cause_kind in _KINDS_OF_HOST else _COLUMNS.get(claim.kind, claim.kind)


@dataclass(frozen=True, slots=True)
class WhyNoLine:
    """Why no line is named of a time: in words, and as facts."""

    words: str
    facts: Facts = field(default_factory=dict)


def why_no_line(run: RunFacts, rank: int, kind: str) -> WhyNoLine:
    """Return why no line is named of a rank's time of some kind, and what would name it."""
    trace = run.trace
    untold = "no stacks were sampled, which name the line (`stashtrace run --stack-hz 50`, the default)"
    untold = "the recording does not say which function" if run.imported else untold
    if not len(trace.stack_samples):
        unread = np.isin(trace.losses["name_code"], [trace.strings.find(name) for name in _UNREAD])
        if unread.any():
            return WhyNoLine("its stacks could not be read here", Facts(reason="not_read"))
        return WhyNoLine(untold, Facts(reason="not_sampled"))
    times = place_times(trace)
    if times is None:
        return WhyNoLine(untold)
    in_steps = (times.rank == rank) & (times.where == WHERES.index(STEP))
    kinds = [StallKind[name.upper()] for name in kinds_of_word(kind)]
    count = int(times.samples_count[in_steps & np.isin(times.kind, kinds)].sum())
    if not times.samples_count[in_steps].any():
        why = "its step thread is none of those whose stacks were sampled"
        return WhyNoLine(why, Facts(reason="not_watched"))
    few = f"{count_noun(count, 'sample')} of its stack in this time" if count else "no sample of its stack in this time"
    lines = costliest_lines(trace, rank, kind, 1)
    if lines and lines[0].share_high < POLICY.spread_ratio:
        return WhyNoLine(f"{few}, spread over many lines", Facts(reason="spread", samples_count=count))
    why = f"{few}, too few to name a line" if count else few
    return WhyNoLine(why, Facts(reason="few_samples", samples_count=count))


def with_slow_line(facts: RunFacts, claim: Claim) -> Claim:
    """Return the claim about slow steps with the line that takes up most of what they are longer on its rank."""
    if claim.kind != "slow_steps" or claim.cause_rank < 0 or claim.cause_kind not in KIND_NAMES:
        return claim
    rows = evidence_by("in which line slow steps are longer", _slow_rows, facts, claim)
    return replace(claim, evidence=_behind(claim.evidence, tuple(rows)))


def _slow_rows(facts: RunFacts, claim: Claim) -> list[Evidence]:
    slow = facts.tables["spikes"]
    like = (slow["rank"] == claim.cause_rank) & (slow["kind"] == claim.cause_kind) & (slow["every_count"] == 0)
    line = line_of_steps(facts.trace, claim.cause_rank, claim.cause_kind, slow["step"][like])
    if line is None or line.share_low < POLICY.line_ratio:
        return []
    say = partial(fact, "slow_in", "{spent} of that in {name}")
    return [_of_line(facts.trace, say, claim.cause_rank, line)]


def computing_claims(facts: RunFacts) -> list[Claim]:
    """Return a claim about the line of the user's own that computes most, where it is a good part of the steps.

    Computing is no stall, so no verdict is about it, unless there is none. A line that torch computes for is the model
    itself: not worth a sentence.
    """
    if not facts.ranks:
        return []
    most = max(facts.ranks, key=lambda rank: rank.per_step_ns("compute"))
    lines = costliest_lines(facts.trace, most.rank, "compute", POLICY.lines_examined_count)
    own = [line for line in lines if not line.leaf.startswith(_OF_TORCH)]
    if not own or own[0].low_ns < POLICY.computing_ratio * most.step_ns:
        return []
    row = _of_line(facts.trace, partial(fact, "computes_in", ""), most.rank, own[0])
    words = {**step_words(facts.trace), "spent": bounded_time(own[0].time_ns, own[0].low_ns, own[0].high_ns)}
    said = "of its computing, rank {rank} spends {spent}{a_step} in {name}"
    return [claim("beside", "computes_in", said, [row], phrases=words, rank=most.rank)]


def _behind(known: tuple[Evidence, ...], rows: tuple[Evidence, ...]) -> tuple[Evidence, ...]:
    """Put lines behind the rows that say what takes that time."""
    at = max((n + 1 for n, row in enumerate(known) if row.code in _BEFORE), default=0)
    return (*known[:at], *rows, *known[at:])


def _rows(facts: RunFacts, claim: Claim) -> list[Evidence]:
    trace, rank, on = facts.trace, claim.cause_rank, whose(claim)
    if claim.kind == "late" and rank >= 0:
        # A step thread that waits for batches longer has no line of its own that is longer: its workers have.
        said = "the workers of rank {rank} spend {spent} a batch longer in {name}"
        if claim.cause_kind == "data" and (
            made := _longer(trace, rank, WORKER, partial(fact, "late_made_longer", said))
            or _costliest(costliest_worker_lines, trace, rank, "data", partial(fact, "late_made_in", _MADE_IN))
        ):
            return made
        return _longer(trace, rank, STEP, partial(fact, "longer_in", "it spends {spent}{a_step} longer in {name}"))
    if claim.kind == "data":
        made_in = partial(fact, "made_in", on + "its workers spend {spent} a batch in {name}")
        return _costliest(costliest_worker_lines, trace, claim.rank, "data", made_in) or spent_in(trace, claim, "data")
    return spent_in(trace, claim, _time_of(claim)) if claim.kind in _COLUMNS else []


def spent_in(trace: Trace, claim: Claim, kind: str) -> list[Evidence]:
    """Return the lines in which most of a kind of time, or of a column, of the rank of a claim was spent."""
    said = partial(fact, "spent_in", whose(claim) + "{spent}{a_step} in {name}")
    return _costliest(costliest_lines, trace, claim.rank, kind, said)


def longer_lines(trace: Trace, rank: int, count: int, *, where: str = STEP) -> list[tuple[Row, CostlyLine]]:
    """Return the functions in which a rank is certainly longer than the others, each with the line that differs most.

    The first of each pair is a row of ``lines_between_ranks``. ``where``: of its step thread, or of its workers.
    """
    table = lines_between_ranks(trace)
    rows = table.take((table["rank"] == rank) & (table["where"] == where) & (table["low_ns"] > 0))
    found = []
    for row in rows.take(slice(count)).rows():
        line = line_that_differs(trace, rank, row["function_code"], row["path_code"], where=where)
        found += [(row, line)] if line is not None else []
    return found


def _longer(trace: Trace, rank: int, where: str, say: Callable[..., Evidence]) -> list[Evidence]:
    return [
        _said(trace, say, "lines_between_ranks", rank, line, (row["longer_ns"], row["low_ns"], row["high_ns"]))
        for row, line in longer_lines(trace, rank, POLICY.names_count, where=where)
    ]


def _costliest(
    find: Callable[..., Sequence[CostlyLine]], trace: Trace, rank: int, kind: str, say: Callable[..., Evidence]
) -> list[Evidence]:
    lines = find(trace, rank, kind, POLICY.names_count)
    return [_of_line(trace, say, rank, line) for line in lines if line.share_low >= POLICY.line_ratio]


def _of_line(trace: Trace, say: Callable[..., Evidence], rank: int, line: CostlyLine) -> Evidence:
    bounds = (line.time_ns, line.low_ns, line.high_ns)
    return _said(trace, say, "lines", rank, line, bounds, part_ratio=line.share_low)


def _said(
    trace: Trace,
    say: Callable[..., Evidence],
    table: str,
    rank: int,
    line: CostlyLine,
    bounds: tuple[float, float, float],
    **more: Any,
) -> Evidence:
    """Return a line as evidence. ``bounds``: its time, and between what it lies."""
    words = {**step_words(trace), "spent": bounded_time(*bounds)}
    spent = dict(zip(("spent_ns", "low_ns", "high_ns"), bounds, strict=True))
    return say(table, phrases=words, rank=rank, name=line.place_and_leaf, **spent, **more)
