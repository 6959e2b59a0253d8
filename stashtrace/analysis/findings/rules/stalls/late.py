"""Ranks that wait for late ones: how long, and for which rank.

``late`` says where the time of that column went and blames nobody: which work makes a step longer is what the table
``causes`` finds by taking it away. ``cause_rank`` is the rank at which most of the waiting ends, -1 if none has half of
it, and ``call`` the collective in which most time is lost.

``bubble`` is about the idle time that a pipeline of ``stages_count`` equal stages with ``batches_count`` micro-batches
has on each rank: (ranks of the pipeline - 1) x mean work / (micro-batches x stages per rank). Where the stages per rank
are not known, it is a lower bound with ``batches_count`` -1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stashtrace.analysis.findings.claim_rows import Claim, Evidence, Facts, evidence_by, fact
from stashtrace.analysis.findings.rules.policy import POLICY
from stashtrace.analysis.findings.stall_claims import stall_claim, step_words, verdict
from stashtrace.analysis.findings.summary_input import RankFacts, RunFacts
from stashtrace.analysis.intervals import Int64
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.analysis.stragglers.follow_waits import Roots, roots_of
from stashtrace.analysis.stragglers.pipeline_stages import Stages, stages_of
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import CollectiveOp
from stashtrace.schema.stall_kinds import COLUMNS
from stashtrace.text.units import operation, part_text


def late_claims(run: RunFacts, hit: Sequence[RankFacts]) -> list[Claim]:
    """Return the claim about ranks that wait for others; ``hit`` has the rank that waits most first."""
    base, roots, steps = stall_claim(hit, "late", COLUMNS["late"]), roots_of(run.trace), run.tables["steps"]
    said, others = "{who} {who:waits|wait} {lost} for other ranks{where}", "{who} {who:waits|wait} {share} {of_step} "
    waits = roots.waits
    counted = GroupBy(steps["rank"], steps["step"]).find(waits.rank, waits.step) >= 0
    parts = np.flatnonzero(counted[roots.source])
    rows = evidence_by("the bubble of the pipeline", _bubble, run) if len(parts) else []
    call, (mostly, part) = _operation(run, roots, parts), _awaited(roots, parts)
    words, short = {"where": f" in {operation(call)}" if call else ""}, f"{others}for other ranks"
    if mostly >= 0:
        said += f", {part_text(part)} of it for rank {{cause_rank}}"
        short = f"{others}mostly for rank {{cause_rank}}"
    return [verdict("late", said, run, base, rows, short=short, phrases=words, cause_rank=mostly, call=call)]


def _awaited(roots: Roots, parts: Int64) -> tuple[int, float]:
    """Return the rank at which most waiting ends, -1 if none has half of it, and its part."""
    ranks = GroupBy(roots.root_rank[parts])
    shares = ranks.sum(roots.part_ns[parts]) / max(float(roots.part_ns[parts].sum()), 1.0)
    most = int(shares.argmax()) if len(shares) else -1
    if most < 0 or shares[most] < POLICY.mostly_ratio:
        return -1, 0.0
    return int(ranks.values[most]), float(shares[most])


def _operation(run: RunFacts, roots: Roots, parts: Int64) -> str:
    """Return the collective in which most time was lost, empty if none is known."""
    table = TraceIndex(run.trace).trace.collectives
    row = roots.waits.row[roots.source[parts]]
    if not (row >= 0).any():
        return ""
    kinds = GroupBy(table["op_code"][row[row >= 0]])
    return CollectiveOp(int(kinds.values[kinds.sum(roots.part_ns[parts][row >= 0]).argmax()])).name.lower()


def _bubble(run: RunFacts) -> list[Evidence]:
    """Return what the ranks of a pipeline wait even if all its stages take as long; nothing without a pipeline."""
    stages = stages_of(run.trace, run.tables["steps"])
    if stages is None:
        return []
    waited = (*COLUMNS["late"], *COLUMNS["link"])
    works = [rank.step_ns - rank.per_step_ns(*waited) for rank in run.ranks if rank.rank in stages.of_rank]
    if not works:
        return []
    bubble_ns, step_ns = stages.bubble_ratio * float(np.mean(works)), np.mean([rank.step_ns for rank in run.ranks])
    ratio, micro = bubble_ns / max(float(step_ns), 1.0), stages.microbatches or -1
    count = stages.count * max(stages.each, 1)
    of = "a pipeline of {stages_count:stage} or more"
    if micro > 0:
        of = "a pipeline of {stages_count:stage} with {batches_count:micro-batch}{each_step}"
    said = (
        f"{of} has a bubble of about {{bubble_ns:time}}{{a_step}} ({{part_ratio:percent}}) on each rank even if all"
        " stages take as long; more micro-batches make it shorter"
    )
    facts = Facts(bubble_ns=bubble_ns, part_ratio=ratio, stages_count=count, batches_count=micro)
    longest = _longest_stage(run, stages, float(step_ns))
    if longest:
        others = "the other one" if len(set(stages.of_rank.values())) == 2 else "the others"
        uneven = f"stage {{stage_id}} computes {{longest_ns:time}}{{a_step}}, {others} {{others_ns:time}}"
        said = f"{uneven}: an even split makes the step shorter; {said}"
    return [fact("bubble", said, "pipeline", phrases=step_words(run.trace), **facts, **longest)]


def _longest_stage(run: RunFacts, stages: Stages, step_ns: float) -> Facts:
    """Return the stage each of whose ranks computes longer than any rank of the others, with the means of a step."""
    spent = {rank.rank: rank.per_step_ns(*COLUMNS["compute"]) for rank in run.ranks if rank.rank in stages.of_rank}
    places = GroupBy(np.array([stages.of_rank[rank] for rank in spent]))
    means = places.sum(np.array([*spent.values()])) / places.sizes
    if len(places) < 2 or stages.each != 1:
        return Facts()
    longest = int(means.argmax())
    of_stage, others = (np.array([*spent.values()])[(places.number == longest) == inside] for inside in (True, False))
    if of_stage.min() <= others.max() + POLICY.worth_saying_ratio * step_ns:
        return Facts()
    stage = int(places.values[longest])
    return Facts(stage_id=stage, longest_ns=float(of_stage.mean()), others_ns=float(others.mean()))
