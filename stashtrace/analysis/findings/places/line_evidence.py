"""Evidence of the function and line of the user's code in which the time of a verdict was spent."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from stashtrace.analysis.findings.claim_rows import Claim, Evidence, evidence_by
from stashtrace.analysis.findings.summary_input import RunFacts
from stashtrace.analysis.lines.between_ranks import lines_between_ranks
from stashtrace.analysis.lines.lines import CostlyLine, costliest_lines, costliest_worker_lines, line_that_differs
from stashtrace.analysis.lines.place_times import STEP, WHERES, WORKER, place_times
from stashtrace.analysis.lines.slow_lines import line_of_steps
from stashtrace.schema.kinds import StallKind
from stashtrace.schema.stall_kinds import KIND_NAMES, kinds_of_word
from stashtrace.schema.trace import Trace

Row = dict[str, Any]

#: Columns of the budget whose time a line can stand for, by the kind of a verdict.
_COLUMNS = {"host": "host", "other": "other", "save": "save", "compute_bound": "compute"}
_KINDS_OF_HOST = ("python", "launch", "sync")
_LINES_AT_MOST = 2
#: Computing in a line of the user's own is said from this part of the step on; among so many of the costliest lines.
_COMPUTING_RATIO, _COMPUTING_LOOKED_AT = 0.1, 4
_OF_TORCH = "torch "
#: A line is said from this part of the time on, as far as its samples are sure of it.
_WORTH_RATIO = 0.15
#: What is said in place of lines where there are none.
_INSTEAD = ("python_unknown", "host_unknown")
#: No line certainly has more than this part: more samples would name none either.
_SPREAD_RATIO = 0.3
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
        kind = _time_of(claim)
        reasons = [_with_reason(facts.trace, kind, row) if row.code in _INSTEAD else row for row in claim.evidence]
        return replace(claim, evidence=tuple(reasons))
    kept = tuple(row for row in claim.evidence if row.code not in _INSTEAD)
    first = rows[0].code == "spent_in"  # what else is known says more of it; the others follow on what a rank does
    return replace(claim, evidence=(*rows, *kept) if first else _behind(kept, rows))


def _time_of(claim: Claim) -> str:
    """Return the kind of time, or the column, that a verdict is about."""
    return claim.cause_kind if claim.cause_kind in _KINDS_OF_HOST else _COLUMNS.get(claim.kind, claim.kind)


def _with_reason(trace: Trace, kind: str, unknown: Evidence) -> Evidence:
    """Return evidence of an unknown function with the reason as ``kind``, and with the samples in that kind of time."""
    if not len(trace.stack_samples):
        unread = np.isin(trace.losses["name_code"], [trace.strings.find(name) for name in _UNREAD])
        return replace(unknown, kind="not_read" if unread.any() else "not_sampled")
    times = place_times(trace)
    if times is None:
        return unknown
    in_steps = (times.rank == unknown.rank) & (times.where == WHERES.index(STEP))
    kinds = [StallKind[name.upper()] for name in kinds_of_word(kind)]
    count = int(times.samples_count[in_steps & np.isin(times.kind, kinds)].sum())
    if not times.samples_count[in_steps].any():
        return replace(unknown, kind="not_watched")
    lines = costliest_lines(trace, unknown.rank, kind, 1)
    is_spread = bool(lines) and lines[0].share_high < _SPREAD_RATIO
    return replace(unknown, kind="spread" if is_spread else "few_samples", items_count=count)


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
    if line is None or line.share_low < _WORTH_RATIO:
        return []
    return _evidence("slow_in", claim.cause_rank, [line])


def computing_claims(facts: RunFacts) -> list[Claim]:
    """Return a claim about the line of the user's own that computes most, where it is a good part of the steps.

    Computing is no stall, so no verdict is about it, unless there is none. A line that torch computes for is the model
    itself: not worth a sentence.
    """
    if not facts.ranks:
        return []
    most = max(facts.ranks, key=lambda rank: rank.per_step_ns("compute"))
    lines = costliest_lines(facts.trace, most.rank, "compute", _COMPUTING_LOOKED_AT)
    own = [line for line in lines if not line.leaf.startswith(_OF_TORCH)]
    if not own or own[0].low_ns < _COMPUTING_RATIO * most.step_ns:
        return []
    rows = _evidence("computes_in", most.rank, own[:1])
    return [Claim("beside", "computes_in", rank=most.rank, evidence=tuple(rows))]


def _behind(known: tuple[Evidence, ...], rows: tuple[Evidence, ...]) -> tuple[Evidence, ...]:
    """Put lines behind the rows that say what takes that time."""
    at = max((n + 1 for n, row in enumerate(known) if row.code in _BEFORE), default=0)
    return (*known[:at], *rows, *known[at:])


def _rows(facts: RunFacts, claim: Claim) -> list[Evidence]:
    if claim.kind == "late" and claim.cause_rank >= 0:
        # A step thread that waits for batches longer has no line of its own that is longer: its workers have.
        if claim.cause_kind == "data" and (
            made := _longer(facts, claim.cause_rank, WORKER, "late_made_longer")
            or _of(costliest_worker_lines, facts, claim.cause_rank, "data", "late_made_in")
        ):
            return made
        return _longer(facts, claim.cause_rank, STEP, "longer_in")
    if claim.kind == "data":
        made = _of(costliest_worker_lines, facts, claim.rank, "data", "made_in")
        return made or _of(costliest_lines, facts, claim.rank, "data", "spent_in")
    if claim.kind in _COLUMNS:
        return _of(costliest_lines, facts, claim.rank, _time_of(claim), "spent_in")
    return []


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


def _longer(facts: RunFacts, rank: int, where: str, code: str) -> list[Evidence]:
    return [
        Evidence(
            code,
            "lines_between_ranks",
            rank=rank,
            amount_ns=row["longer_ns"],
            low_ns=row["low_ns"],
            high_ns=row["high_ns"],
            name=line.place_and_leaf,
        )
        for row, line in longer_lines(facts.trace, rank, _LINES_AT_MOST, where=where)
    ]


def _of(find: Callable[..., Sequence[CostlyLine]], facts: RunFacts, rank: int, kind: str, code: str) -> list[Evidence]:
    lines = find(facts.trace, rank, kind, _LINES_AT_MOST)
    return _evidence(code, rank, [line for line in lines if line.share_low >= _WORTH_RATIO])


def _evidence(code: str, rank: int, lines: Sequence[CostlyLine]) -> list[Evidence]:
    return [
        Evidence(
            code,
            "lines",
            rank=rank,
            amount_ns=line.time_ns,
            low_ns=line.low_ns,
            high_ns=line.high_ns,
            part_ratio=line.share_low,
            name=line.place_and_leaf,
        )
        for line in lines
    ]
