"""Evidence of the function and line of the user's code in which the time of a verdict was spent."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from stashtrace.analysis.findings.claim_rows import Claim, Evidence, evidence_by
from stashtrace.analysis.findings.summary_input import RunFacts
from stashtrace.analysis.lines.between_ranks import lines_between_ranks
from stashtrace.analysis.lines.lines import CostlyLine, costliest_lines, costliest_worker_lines, line_that_differs
from stashtrace.analysis.lines.slow_lines import line_of_steps
from stashtrace.schema.stall_kinds import COLUMN_OF, KIND_NAMES
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
#: What a recording without lines says in their place.
_INSTEAD = ("python_unknown",)
#: What a rank or a worker spends longer, or at all: its line follows.
_BEFORE = (
    *("batch_time", "batch_part", "late_root", "late_surplus", "late_surplus_before", "late_also"),
    *("slow_steps", "changed_time", "grew_in"),
)


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
        of_workers = COLUMN_OF.get(claim.cause_kind) == "data"
        made = _of(costliest_worker_lines, facts, claim.cause_rank, "data", "late_made_in") if of_workers else []
        return made or _longer(facts, claim.cause_rank)
    if claim.kind == "data":
        made = _of(costliest_worker_lines, facts, claim.rank, "data", "made_in")
        return made or _of(costliest_lines, facts, claim.rank, "data", "spent_in")
    if claim.kind in _COLUMNS:
        kind = claim.cause_kind if claim.cause_kind in _KINDS_OF_HOST else _COLUMNS[claim.kind]
        return _of(costliest_lines, facts, claim.rank, kind, "spent_in")
    return []


def longer_lines(trace: Trace, rank: int, count: int) -> list[tuple[Row, CostlyLine]]:
    """Return the functions in which a rank is certainly longer than the others, each with the line that differs most.

    The first of each pair is a row of ``lines_between_ranks``.
    """
    table = lines_between_ranks(trace)
    rows = table.take((table["rank"] == rank) & (table["low_ns"] > 0))
    found = []
    for row in rows.take(slice(count)).rows():
        line = line_that_differs(trace, rank, row["function_code"], row["path_code"])
        found += [(row, line)] if line is not None else []
    return found


def _longer(facts: RunFacts, rank: int) -> list[Evidence]:
    return [
        Evidence(
            "longer_in",
            "lines_between_ranks",
            rank=rank,
            amount_ns=row["longer_ns"],
            low_ns=row["low_ns"],
            high_ns=row["high_ns"],
            name=place_and_leaf(line),
        )
        for row, line in longer_lines(facts.trace, rank, _LINES_AT_MOST)
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
            name=place_and_leaf(line),
        )
        for line in lines
    ]


def place_and_leaf(line: CostlyLine) -> str:
    """Return where a line is, with the call of a library in which most of its time was, in one pair of brackets."""
    return f"{line.place.removesuffix(')')}, in {line.leaf})" if line.leaf else line.place
