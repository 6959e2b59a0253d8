"""Ranks that wait for late ones: how long, at which ranks these waits end, and what those did longer.

``late`` says where the time of that column went and blames nobody: which work makes a step longer is what the table
``causes`` finds by taking it away. ``cause_rank`` is the rank at which most of the waiting ends, -1 if none has half of
it, ``cause_kind`` what it did longer before most of that, and ``call`` the collective in which most time is lost.

``late_root`` is a rank at which ``part_ratio`` of all waiting ends, ``late_work`` a ``kind`` of time that it did longer
before ``part_ratio`` of that; ``reads`` are blocking reads where there is no loader, ``unrecorded`` time in which
nothing of the host was recorded. ``bubble`` is about the idle time that a pipeline of ``stages_count`` equal stages
with ``batches_count`` micro-batches has on each rank: (ranks of the pipeline - 1) x mean work / (micro-batches x stages
per rank). Where the stages per rank are not known, it is a lower bound with ``batches_count`` -1.
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
from stashtrace.analysis.stragglers.causes import CAUSES, GROUP_OF
from stashtrace.analysis.stragglers.follow_waits import Roots, roots_of
from stashtrace.analysis.stragglers.pipeline_stages import stages_of
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import CollectiveOp
from stashtrace.schema.stall_kinds import COLUMNS
from stashtrace.schema.trace import HOST_NOT_RECORDED, OPERATORS_RECORDED
from stashtrace.units import operation, part_text

#: What a late rank did longer, as a column of ``straggler_roots`` groups it, or as its recording allows to say it.
LATE_WORK = {
    "compute": "computed",
    "data": "waited for batches",
    "link": "was in transfers",
    "late": "waited for other ranks",
    "copy": "waited for copies between host and device",
    "save": "saved or loaded checkpoints",
    "host": "had its device idle because of its host",
    "sleep": "slept",
    "gc": "collected garbage",
    "compile": "was in torch.compile",
    "cpu_contention": "waited for a CPU",
    "other": "was blocked",
    "python": "ran code of the loop",
    "reads": "was blocked in reads of files",
    "unrecorded": "was without records",
}


def late_claims(run: RunFacts, hit: Sequence[RankFacts]) -> list[Claim]:
    """Return the claim about ranks that wait for others; ``hit`` has the rank that waits most first."""
    base, roots, steps = stall_claim(hit, "late", COLUMNS["late"]), roots_of(run.trace), run.tables["steps"]
    said, others = "{who} {who:waits|wait} {lost} for other ranks{where}", "{who} {who:waits|wait} {share} {of_step} "
    waits = roots.waits
    counted = GroupBy(steps["rank"], steps["step"]).find(waits.rank, waits.step) >= 0
    parts = np.flatnonzero(counted[roots.source])
    if not len(parts):
        return [verdict("late", said, run, base, short=f"{others}for other ranks", phrases={"where": ""})]
    rows = [*_roots(run, roots, parts), *evidence_by("the bubble of the pipeline", _bubble, run)]
    call, first = _operation(run, roots, parts), rows[0] if rows and rows[0].code == "late_root" else None
    mostly = first["rank"] if first is not None and 2 * first["part_ratio"] >= 1 else -1
    did = next((row["kind"] for row in rows if row.code == "late_work" and row["rank"] == mostly), "")
    words, short = {"where": f" in {operation(call)}" if call else ""}, f"{others}for other ranks"
    if first is not None and mostly >= 0:
        said += f", {part_text(first['part_ratio'])} of it for rank {{cause_rank}}"
        short = f"{others}mostly for rank {{cause_rank}}"
    own = Facts(cause_rank=mostly, cause_kind=did, call=call)
    return [verdict("late", said, run, base, rows, short=short, phrases=words, **own)]


def _roots(run: RunFacts, roots: Roots, parts: Int64) -> list[Evidence]:
    """Return the ranks at which most waiting ends, largest first, each with what it did longer before."""
    spent, kinds = roots.part_ns[parts], roots.kinds_ns()[parts]
    by_root = GroupBy(roots.root_rank[parts])
    shares = by_root.sum(spent) / max(float(spent.sum()), 1.0)
    rows: list[Evidence] = []
    for at in np.argsort(-shares, kind="stable").tolist():
        rank = int(by_root.values[at])
        if rank >= 0 and shares[at] >= POLICY.root_ratio and len(rows) < POLICY.named_count:
            did = kinds[by_root.number == at].sum(axis=0)
            work = _work(run, rank, did / max(float(did.sum()), 1.0))
            why = [f"{LATE_WORK[one['kind']]} longer ({part_text(one['part_ratio'])} of that)" for one in work]
            said = f"rank {{rank}} makes {{part_ratio:part}} of the waiting{': it ' if why else ''}{', '.join(why)}"
            part = float(shares[at])
            rows += [fact("late_root", said, "straggler_roots", rank=rank, part_ratio=part), *work]
    return rows


def _work(run: RunFacts, rank: int, parts: Int64) -> list[Evidence]:
    groups: dict[str, float] = {}
    for kind, part in zip((*CAUSES, ""), parts.tolist(), strict=True):
        group = GROUP_OF.get(kind, "")
        groups[group] = groups.get(group, 0.0) + part
    least = POLICY.root_kind_ratio
    largest = sorted(((part, group) for group, part in groups.items() if group and part >= least), reverse=True)
    return [
        fact("late_work", "", "straggler_roots", rank=rank, part_ratio=part, kind=kind_in_words(run, rank, group))
        for part, group in largest[: POLICY.names_count]
    ]


def kind_in_words(facts: RunFacts, rank: int, group: str) -> str:
    """Return what a rank does longer, any of ``LATE_WORK``, as its recording allows to say it."""
    codes = [facts.trace.strings.find(key) for key in (HOST_NOT_RECORDED, OPERATORS_RECORDED)]
    unseen = np.isin(facts.trace.metadata["key_code"], [code for code in codes if code >= 0]).any()
    if group == "other" and unseen:  # time without a record need not be a wait
        return "unrecorded"
    if group == "data" and not (facts.trace.batches["rank"] == rank).any():
        return "reads"  # without a loader there are no batches to wait for
    return group


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
    own = Facts(bubble_ns=bubble_ns, part_ratio=ratio, stages_count=count, batches_count=micro)
    return [fact("bubble", said, "pipeline", phrases=step_words(run.trace), **own)]
