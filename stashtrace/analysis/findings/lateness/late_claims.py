"""The claim that ranks wait for late ones: how long, at which ranks these waits end, and what those did longer.

It says where the time of the column ``late`` went and blames nobody: which work makes a step longer is what ``causes``
finds by taking it away.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from stashtrace.analysis.findings.claim_rows import Claim, Evidence, evidence_by
from stashtrace.analysis.findings.lateness import costliest_wait
from stashtrace.analysis.findings.lateness.costliest_wait import kind_in_words
from stashtrace.analysis.findings.summary_input import RankFacts, RunFacts
from stashtrace.analysis.intervals import Int64
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.analysis.stragglers.causes import CAUSES
from stashtrace.analysis.stragglers.follow_waits import Roots, roots_of
from stashtrace.analysis.stragglers.pipeline_stages import stages_of
from stashtrace.analysis.stragglers.surplus import GROUP_OF
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import CollectiveOp
from stashtrace.schema.stall_kinds import COLUMNS

#: So many ranks at which waits end are said, each with this part of the waiting or more.
_ROOTS_AT_MOST, _ROOT_RATIO = 3, 0.1
#: What such a rank did longer is said for so many kinds of time, of this part of its waiting or more.
_KINDS_AT_MOST, _KIND_RATIO = 2, 0.2


def late_claims(facts: RunFacts, hit: Sequence[RankFacts], base: Callable[[Sequence[RankFacts]], Claim]) -> list[Claim]:
    """Return the claim about ranks that wait for others; ``hit`` has the rank that waits most first."""
    claim, roots, steps = base(hit), roots_of(facts.trace), facts.tables["steps"]
    waits = roots.waits
    counted = GroupBy(steps["rank"], steps["step"]).find(waits.rank, waits.step) >= 0
    parts = np.flatnonzero(counted[roots.source])
    if not len(parts):
        return [claim]
    rows = [*_roots(facts, roots, parts), *evidence_by("the bubble of the pipeline", _bubble, facts)]
    call, first = _operation(facts, roots, parts), rows[0] if rows and rows[0].code == "late_root" else None
    mostly = first.rank if first is not None and 2 * first.part_ratio >= 1 else -1
    did = next((row.kind for row in rows if row.code == "late_work" and row.rank == mostly), "")
    if mostly >= 0:
        victim = next((rank.rank for rank in hit if rank.rank != mostly), hit[0].rank)
        rows += evidence_by("the costliest wait", costliest_wait.worst_wait, facts, mostly, victim, call)
    return [replace(claim, cause_rank=mostly, cause_kind=did, call=call, evidence=tuple(rows))]


def _roots(facts: RunFacts, roots: Roots, parts: Int64) -> list[Evidence]:
    """Return the ranks at which most waiting ends, largest first, each with what it did longer before."""
    spent, kinds = roots.part_ns[parts], roots.kinds_ns()[parts]
    by_root = GroupBy(roots.root_rank[parts])
    shares = by_root.sum(spent) / max(float(spent.sum()), 1.0)
    rows: list[Evidence] = []
    for at in np.argsort(-shares, kind="stable").tolist():
        rank = int(by_root.values[at])
        if rank >= 0 and shares[at] >= _ROOT_RATIO and len(rows) < _ROOTS_AT_MOST:
            rows.append(Evidence("late_root", "straggler_roots", rank=rank, part_ratio=float(shares[at])))
            did = kinds[by_root.number == at].sum(axis=0)
            rows += _work(facts, rank, did / max(float(did.sum()), 1.0))
    return rows


def _work(facts: RunFacts, rank: int, parts: Int64) -> list[Evidence]:
    groups: dict[str, float] = {}
    for kind, part in zip((*CAUSES, ""), parts.tolist(), strict=True):
        group = GROUP_OF.get(kind, "")
        groups[group] = groups.get(group, 0.0) + part
    largest = sorted(((part, group) for group, part in groups.items() if group and part >= _KIND_RATIO), reverse=True)
    return [
        Evidence("late_work", "straggler_roots", rank=rank, part_ratio=part, kind=kind_in_words(facts, rank, group))
        for part, group in largest[:_KINDS_AT_MOST]
    ]


def _operation(facts: RunFacts, roots: Roots, parts: Int64) -> str:
    """Return the collective in which most time was lost, empty if none is known."""
    table = TraceIndex(facts.trace).trace.collectives
    row = roots.waits.row[roots.source[parts]]
    if not (row >= 0).any():
        return ""
    kinds = GroupBy(table["op_code"][row[row >= 0]])
    return CollectiveOp(int(kinds.values[kinds.sum(roots.part_ns[parts][row >= 0]).argmax()])).name.lower()


def _bubble(facts: RunFacts) -> list[Evidence]:
    """Return what the ranks of a pipeline wait even if all its stages take as long; nothing without a pipeline."""
    stages = stages_of(facts.trace, facts.tables["steps"])
    if stages is None:
        return []
    waited = (*COLUMNS["late"], *COLUMNS["link"])
    works = [rank.step_ns - rank.per_step_ns(*waited) for rank in facts.ranks if rank.rank in stages.of_rank]
    if not works:
        return []
    bubble_ns, step_ns = stages.bubble_ratio * float(np.mean(works)), np.mean([rank.step_ns for rank in facts.ranks])
    return [
        Evidence(
            "bubble",
            "pipeline",
            amount_ns=bubble_ns,
            items_count=stages.count * max(stages.each, 1),
            of_count=stages.microbatches or -1,
            part_ratio=bubble_ns / max(float(step_ns), 1.0),
        )
    ]
