"""Claims about waits for late ranks: the rank and the work that made them, or that nobody in particular did.

In a pipeline the stages come first (``pipeline_claims``). Elsewhere a claim names each rank at whose work most waits
end (``culprits``); a rank that only passes a wait on is never named. Where no rank stands out, the claim is that ranks
wait for each other by turns.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from stashtrace.analysis.findings.claim_rows import Claim, Evidence, evidence_by
from stashtrace.analysis.findings.lateness import costliest_wait
from stashtrace.analysis.findings.lateness.culprits import (
    Blame,
    Culprit,
    blame,
    culprits,
    lost_operation,
    only_root,
)
from stashtrace.analysis.findings.lateness.late_work_names import QUIET, kind_in_words
from stashtrace.analysis.findings.lateness.pipeline_claims import pipeline_claims
from stashtrace.analysis.findings.lateness.uneven_steps import Unlike, unlike_ranks
from stashtrace.analysis.findings.once.compilations import compilations_of
from stashtrace.analysis.findings.over_time.affected_steps import few_steps
from stashtrace.analysis.findings.summary_input import RankFacts, RunFacts
from stashtrace.analysis.stragglers.surplus import EXPLAINS_RATIO, GROUPS, compared_steps, surplus_by_step
from stashtrace.units import ranks_text

#: Largest number of claims about late ranks.
_LATE_AT_MOST = 2
#: Ranks that wait for each other are the subject of a claim if the named ones leave this part of the waiting.
_LEFT_RATIO = 0.5
#: Waiting that lies in less than this part of the steps lies in few of them.
_FEW_RATIO = 0.15
#: Two ranks wait for each other by turns if the one that waits less waits for this part of what the other does.
_LIKE_RATIO = 0.5
#: What is longer when a rank comes later by turns is said for at most so many kinds, of at least this share.
_KINDS_AT_MOST, _KIND_RATIO = 3, 0.15
#: Transfers have a verdict of their own from this share of the step on.
_WORTH_SAYING_RATIO = 0.03

#: Make the claim about the late time of some ranks, the one that waits most first.
Base = Callable[[Sequence[RankFacts]], Claim]


def late_claims(facts: RunFacts, hit: Sequence[RankFacts], base: Base) -> list[Claim]:
    """Return claims about the ranks that wait for others; ``hit`` has the rank that waits most first."""
    found = blame(facts)
    if found is None:
        return [base(hit)]
    of_stages = pipeline_claims(facts, hit, found, base)
    if of_stages:
        return of_stages
    named = culprits(facts, found)[:_LATE_AT_MOST]
    claims = [_culprit_claim(facts, hit, one, base) for one in named]
    if sum(one.share_ratio for one in named) <= _LEFT_RATIO:
        unlike = [] if named else unlike_ranks(facts)
        if unlike:
            claims.append(_unlike_claim(facts, hit, found, base, unlike))
        else:
            claims += _by_turns(facts, hit, found, base, {one.rank for one in named})
    return claims[:_LATE_AT_MOST]


def _culprit_claim(facts: RunFacts, hit: Sequence[RankFacts], culprit: Culprit, base: Base) -> Claim:
    """Return the claim about a rank that others wait for."""
    behind = {rank for link in culprit.links for rank in link.ranks}
    waiting = [rank for rank in hit if rank.rank in behind] or [rank for rank in hit if rank.rank != culprit.rank]
    waiting = waiting or list(hit)
    worst, claim = waiting[0], base(waiting)
    rows = [
        *_root_rows(facts, culprit, worst),
        *(compilations_of(facts.trace, culprit.rank, facts.tables["steps"]) if culprit.kind == "compile" else []),
        Evidence(
            "late_part", "straggler_roots", rank=worst.rank, part_ratio=min(culprit.part_of.get(worst.rank, 0), 1)
        ),
        *_few_rows(facts, culprit),
        *_also_rows(facts, culprit),
        *_unknown_work(facts, culprit, worst),
        *_often_rows(facts, culprit),
        *evidence_by(
            "the costliest wait", costliest_wait.worst_wait, facts, culprit.rank, worst.rank, culprit.operation
        ),
        *_transfer_rows(worst),
    ]
    reads = culprit.kind in ("fetch", "checkpoint") or culprit.on is not None
    return replace(
        claim,
        cause_rank=culprit.rank,
        cause_kind=culprit.kind,
        worker_id=culprit.named.worker,
        file=culprit.named.name if reads else "",
        call=culprit.operation,
        evidence=tuple(rows),
    )


def _root_rows(facts: RunFacts, culprit: Culprit, worst: RankFacts) -> list[Evidence]:
    """Return what a root of waits does longer, and who waits for it through whom."""
    rows = [Evidence("late_root", "straggler_roots", rank=culprit.rank, part_ratio=culprit.share_ratio)]
    rows += [_surplus_row(facts, culprit)] if culprit.group else []
    rows += [
        Evidence(
            "late_link",
            "straggler_roots",
            rank=link.late,
            items_count=len(link.ranks),
            amount_ns=link.wait_ns,
            kind=link.operation,
            name=ranks_text(list(link.ranks)),
        )
        for link in culprit.links
    ]
    low, high = worst.bounds_ns("straggler")
    point = max(worst.per_step_ns("straggler"), 1.0)
    scale = (low / point, high / point)
    total = Evidence("late_sum", "straggler_roots", amount_ns=culprit.wait_ns, kind=culprit.kind)
    return [*rows, replace(total, low_ns=culprit.wait_ns * scale[0], high_ns=culprit.wait_ns * scale[1])]


def _surplus_row(facts: RunFacts, culprit: Culprit) -> Evidence:
    """Return what a root does longer than the only other rank, or than the median of the others."""
    others = [rank.rank for rank in facts.ranks if rank.rank != culprit.rank]
    row = Evidence("late_surplus_before") if culprit.before_waits else Evidence("late_surplus")
    kind = QUIET if culprit.is_quiet else kind_in_words(facts, culprit.rank, culprit.group)
    return replace(
        row,
        source_table="straggler_roots",
        rank=culprit.rank,
        of_count=others[0] if len(others) == 1 else -1,
        worker_id=culprit.named.worker,
        amount_ns=culprit.longer_ns,
        low_ns=culprit.named.name_ns,
        kind=culprit.on.way if culprit.on is not None else kind,
        name=culprit.named.name,
    )


def _few_rows(facts: RunFacts, culprit: Culprit) -> list[Evidence]:
    """Return the few steps in which a root does longer what it does longer, if most of that lies in them."""
    if not culprit.group or culprit.before_waits or culprit.on is not None or culprit.is_quiet:
        return []
    steps, ranks = facts.tables["steps"], [rank.rank for rank in facts.ranks]
    compared = compared_steps(facts.trace, steps, culprit.rank, ranks)
    by_kind = surplus_by_step(facts.trace, compared)
    longer = sum((by_kind[kind] for kind in GROUPS[culprit.group] if kind in by_kind), np.zeros(1))
    few, part = few_steps(np.maximum(longer, 0))
    if not len(few):
        return []
    return [
        Evidence(
            "late_in_few_steps",
            "straggler_roots",
            rank=culprit.rank,
            items_count=len(few),
            of_count=len(longer),
            part_ratio=part,
            name=str(compared[culprit.rank]["step"][few[0]]),
        )
    ]


def _also_rows(facts: RunFacts, culprit: Culprit) -> list[Evidence]:
    known = replace(_surplus_row(facts, culprit), worker_id=-1, low_ns=-1, name="")
    return [
        replace(known, code="late_also", kind=kind_in_words(facts, culprit.rank, group), amount_ns=ns)
        for group, ns in culprit.also.items()
    ]


def _unknown_work(facts: RunFacts, culprit: Culprit, worst: RankFacts) -> list[Evidence]:
    """Return what is known of a late rank that does nothing longer since both were level: it may have begun later."""
    if culprit.kind:
        return []
    steps = facts.tables["steps"]
    first = [steps["begin_ns"][steps["rank"] == rank][:1].tolist() for rank in (culprit.rank, worst.rank)]
    if all(first):
        later = first[0][0] - first[1][0]
        if later >= EXPLAINS_RATIO * worst.kinds.get("straggler", 0) > 0:
            return [Evidence("late_begins_later", "steps", rank=culprit.rank, of_count=worst.rank, amount_ns=later)]
    return [Evidence("late_work_unknown", "straggler_roots", rank=culprit.rank)]


def _often_rows(facts: RunFacts, culprit: Culprit) -> list[Evidence]:
    times, steps = culprit.often
    if steps < costliest_wait.SEVERAL or 2 * times < steps:
        return []
    every = "late_often" if steps == facts.steps_count else "late_often_of_worst"
    return [Evidence(every, "straggler_roots", rank=culprit.rank, items_count=times, of_count=steps)]


def _transfer_rows(worst: RankFacts) -> list[Evidence]:
    link_ns = worst.per_step_ns("network", "interconnect")
    if link_ns <= 0 or worst.share("link") >= _WORTH_SAYING_RATIO:
        return []
    low, high = worst.bounds_ns("network", "interconnect")
    return [Evidence("transfers", "stalls", rank=worst.rank, amount_ns=link_ns, low_ns=low, high_ns=high)]


def _unlike_claim(
    facts: RunFacts, hit: Sequence[RankFacts], found: Blame, base: Base, unlike: Sequence[Unlike]
) -> Claim:
    """Return the claim about ranks with more work, of which now one and now another comes last, or with less."""
    late = unlike[0].longer_ns > 0
    chosen = {one.rank for one in unlike}
    waiting = [rank for rank in hit if (rank.rank in chosen) != late] or list(hit)
    rows = tuple(
        Evidence(
            "unlike_rank",
            "stalls",
            rank=one.rank,
            amount_ns=abs(one.longer_ns),
            kind=kind_in_words(facts, one.rank if late else -1, one.group),
        )
        for one in unlike
    )
    claim = replace(base(waiting), call=lost_operation(facts, found), evidence=rows)
    if not late:
        return replace(claim, cause_kind="early")
    return replace(claim, cause_rank=unlike[0].rank, cause_kind=unlike[0].kind)


def _by_turns(facts: RunFacts, hit: Sequence[RankFacts], found: Blame, base: Base, named: set[int]) -> list[Claim]:
    """Return the claim that ranks wait for each other and none of them stands out."""
    left = [rank for rank in hit if rank.rank not in named] or list(hit)
    claim = replace(base(left), call=lost_operation(facts, found))
    unknown = float(found.by_step_ns[found.ranks < 0].sum())
    if unknown > _LEFT_RATIO * found.whole_ns:
        return [claim]
    rows = [_wait_row("waits_for_other", rank) for rank in sorted(left, key=lambda one: one.rank)]
    kinds = [(kind, share) for kind, share in found.kinds().items() if kind and share >= _KIND_RATIO]
    rows += [
        Evidence("late_by_turns", "straggler_roots", kind=kind_in_words(facts, -1, kind), part_ratio=share)
        for kind, share in kinds[:_KINDS_AT_MOST]
    ]
    steps_count = int(np.unique(facts.tables["steps"]["step"]).size)
    long, part = found.few_steps()
    if part >= _LEFT_RATIO and long <= _FEW_RATIO * steps_count:
        few = Evidence("late_few", "straggler_roots", items_count=long, of_count=steps_count, part_ratio=part)
        return [replace(claim, cause_kind="few", evidence=(few, *rows))]
    one = only_root(facts, found)
    if one is not None and steps_count >= costliest_wait.SEVERAL:
        times = Evidence(
            "late_one",
            "straggler_roots",
            rank=one.rank,
            items_count=one.often[0],
            of_count=steps_count,
            part_ratio=one.share_ratio,
        )
        work = [replace(_surplus_row(facts, one), code="late_one_work")] if one.group else []
        return [replace(claim, cause_kind="few", evidence=(times, *work))]
    kind = "once" if steps_count < costliest_wait.SEVERAL else "alternates"
    others = [rank for rank in facts.ranks if rank.rank != left[0].rank]
    if len(others) == 1:  # whoever comes last is always the same one
        waits_ns = sorted(rank.per_step_ns("straggler") for rank in (left[0], others[0]))
        if kind == "alternates" and waits_ns[0] < _LIKE_RATIO * waits_ns[1]:
            kind = "chance"
        if len(left) == 1:
            rows.append(_wait_row("other_rank", others[0]))
    return [replace(claim, cause_kind=kind, evidence=tuple(rows))]


def _wait_row(code: str, rank: RankFacts) -> Evidence:
    waits_ns = rank.per_step_ns("straggler")
    return Evidence(code, "stalls", rank=rank.rank, amount_ns=waits_ns, part_ratio=rank.share("late"))
