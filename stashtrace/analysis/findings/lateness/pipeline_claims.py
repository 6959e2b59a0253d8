"""Claims about pipelines: a stage or a rank of a stage that works longer than its peers, or the bubble that stays.

A pipeline of equal stages waits too: each of its s ranks is idle for the work of s - 1 micro-batches. That is its
bubble, and nobody is late by it. Only work beyond that of the other stages, or of the other ranks of the stage, is.
Where each rank holds several stages, these are taken together: which of them a rank works in is not recorded.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stashtrace.analysis.findings.claim_rows import Claim, Evidence
from stashtrace.analysis.findings.lateness.culprits import Blame, lost_operation, name_behind
from stashtrace.analysis.findings.lateness.late_work_names import kind_in_words
from stashtrace.analysis.findings.lateness.step_noise import stands_out_of_noise
from stashtrace.analysis.findings.summary_input import RankFacts, RunFacts
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.analysis.steps.threads import step_threads
from stashtrace.analysis.stragglers.cause_names import Named
from stashtrace.analysis.stragglers.causes import CAUSES, Floats, rank_times
from stashtrace.analysis.stragglers.file_calls import longer_on_file
from stashtrace.analysis.stragglers.pipeline_stages import Stages, stages_of
from stashtrace.analysis.stragglers.surplus import GROUPS
from stashtrace.schema.trace import HOST_NOT_RECORDED
from stashtrace.units import ranks_text

#: Work beyond that of the peers is worth a claim from this part of the step on.
_WORTH_SAYING_RATIO = 0.03
#: Waiting of which the bubble is this part, on the rank that waits most, is called the bubble.
_IS_BUBBLE_RATIO = 0.5
#: Work of the ranks of one stage that varies by more than this part within a step is worth a sentence.
_UNEVEN_RATIO = 0.05
#: Cause of waits for a stage that computes longer than the others.
_UNEVEN_SPLIT = "stage"
#: Groups of time in which a rank waits for another or moves data: they are not its work.
_NO_WORK = ("late", "link", "cpu_contention")


@dataclass(frozen=True, slots=True)
class _Work:
    """What each rank works in a step."""

    ranks: tuple[int, ...]
    #: Keys of ``GROUPS``.
    groups: tuple[str, ...]
    #: By rank, step and group; the steps are those that all ranks have.
    spent_ns: Floats

    def of(self, ranks: Sequence[int]) -> Floats:
        """Return the time of some ranks, by rank, step and group."""
        return self.spent_ns[[self.ranks.index(rank) for rank in ranks]]


@dataclass(frozen=True, slots=True)
class _Pipeline:
    """What claims about a pipeline are made of."""

    facts: RunFacts
    hit: Sequence[RankFacts]
    found: Blame
    base: Callable[[Sequence[RankFacts]], Claim]
    stages: Stages
    work: _Work
    #: A rank with a claim of its own is no measure of its stage.
    apart: int = -1

    @property
    def step_ns(self) -> float:
        """Mean step of all ranks."""
        return float(np.mean([rank.step_ns for rank in self.facts.ranks]))

    def ranks(self, stage: int) -> list[int]:
        """Return the recorded ranks of a stage."""
        ranks = [rank for rank in self.stages.ranks(stage) if rank in self.work.ranks]
        return [rank for rank in ranks if rank != self.apart] or ranks

    def typical_ns(self, stage: int) -> Floats:
        """Return what a rank of a stage works by step and group: the median of its ranks, so a slow one has no say."""
        return np.asarray(np.median(self.work.of(self.ranks(stage)), axis=0), dtype=np.float64)

    def waiting(self, late: Sequence[int]) -> list[RankFacts]:
        """Return the ranks that wait, without those that are late."""
        return [rank for rank in self.hit if rank.rank not in late] or list(self.hit)


def pipeline_claims(
    facts: RunFacts, hit: Sequence[RankFacts], found: Blame, base: Callable[[Sequence[RankFacts]], Claim]
) -> list[Claim]:
    """Return claims about the waits of a pipeline, the ones that cost most first; none if the job has no pipeline."""
    stages = stages_of(facts.trace, facts.tables["steps"])
    if stages is None:
        return []
    work = _work(facts, stages)
    if work is None or not all(set(stages.ranks(stage)) & set(work.ranks) for stage in range(stages.count)):
        return []
    job = _Pipeline(facts, hit, found, base, stages, work)
    call = lost_operation(facts, found)
    slow = _slow_rank(job)
    job = replace(job, apart=slow.cause_rank) if slow is not None else job
    named = [claim for claim in (slow, _slow_stage(job)) if claim is not None]
    bubble = _bubble(job, [claim.cause_rank for claim in named if claim.cause_kind != _UNEVEN_SPLIT])
    if named:
        return [
            replace(claim, call=call, evidence=(*claim.evidence, bubble, *_stages_held(job, claim))) for claim in named
        ]
    most_ns = max(rank.per_step_ns("straggler") for rank in hit)
    kind = "bubble" if bubble.amount_ns >= _IS_BUBBLE_RATIO * most_ns else "uneven"
    return [replace(base(hit), call=call, cause_kind=kind, evidence=(bubble, *_stages_held(job), *_uneven(job)))]


def _stages_held(job: _Pipeline, claim: Claim | None = None) -> list[Evidence]:
    """Return how many stages a rank holds where these are several, and which the late rank of a claim does."""
    stages, rank = job.stages, claim.cause_rank if claim is not None else -1
    if stages.each == 1:
        return []
    numbers = stages.numbers(stages.of_rank[rank]) if rank in stages.of_rank else []
    name = ",".join(map(str, numbers))
    return [Evidence("stages_held", "pipeline", rank=rank, items_count=stages.each or -1, name=name)]


def _bubble(job: _Pipeline, late: Sequence[int]) -> Evidence:
    """Return the bubble that stays if all stages work alike; what late ranks do longer is no work that there must be.

    An even split moves work of a stage to the others, and leaves its sum as it is.
    """
    stages = job.stages
    works = np.array([job.typical_ns(stage).sum(axis=-1).mean() for stage in range(stages.count)])
    longer = np.isin(np.arange(stages.count), [stages.of_rank[rank] for rank in late if rank != job.apart])
    if longer.any() and not longer.all():
        works = np.where(longer, np.minimum(works, works[~longer].mean()), works)
    bubble_ns = stages.bubble_ratio * float(works.mean())
    return Evidence(
        "bubble",
        "pipeline",
        amount_ns=bubble_ns,
        items_count=stages.count * max(stages.each, 1),
        of_count=stages.microbatches or -1,
        part_ratio=bubble_ns / max(job.step_ns, 1.0),
    )


def _work(facts: RunFacts, stages: Stages) -> _Work | None:
    index, steps = TraceIndex(facts.trace), facts.tables["steps"]
    threads = {thread.rank: thread for thread in step_threads(facts.trace)}
    ranks = tuple(rank.rank for rank in facts.ranks if rank.rank in stages.of_rank and rank.rank in threads)
    tables = {rank: steps.take(steps["rank"] == rank).sort_by("step") for rank in ranks}
    common = np.unique(steps["step"])
    for table in tables.values():
        common = np.intersect1d(common, table["step"])
    if len(ranks) < 2 or not len(common):
        return None
    silent = facts.trace.strings.find(HOST_NOT_RECORDED) in facts.trace.metadata["key_code"].tolist()
    groups = tuple(g for g in GROUPS if g not in _NO_WORK and not (silent and g == "other"))
    spent = np.zeros((len(ranks), len(common), len(groups)))
    for place, rank in enumerate(ranks):
        table = tables[rank].take(np.isin(tables[rank]["step"], common))
        times = rank_times(index, threads[rank]).within(table["begin_ns"], table["end_ns"])
        for column, group in enumerate(groups):
            # Who computes more waits more for a CPU where these are scarce: both count as computing, as in the bars.
            kinds = (*GROUPS[group], *GROUPS["cpu_contention"]) if group == "compute" else GROUPS[group]
            spent[place, :, column] = times[:, [CAUSES.index(kind) for kind in kinds]].sum(axis=1)
    return _Work(ranks, groups, spent)


def _slow_rank(job: _Pipeline) -> Claim | None:
    """Return the claim about the rank that works longer than the other ranks of its stage by most, if one does."""
    found: list[tuple[float, int, Floats]] = []
    for stage in range(job.stages.count):
        ranks = job.ranks(stage)
        for rank in ranks if len(ranks) > 1 else ():
            peers = job.work.of([one for one in ranks if one != rank])
            longer = job.work.of([rank])[0] - np.median(peers, axis=0)
            found.append((float(longer.sum(axis=1).mean()), rank, longer))
    most, rank, longer = max(found, key=lambda one: one[0], default=(0.0, -1, np.zeros((1, 1))))
    if most < _WORTH_SAYING_RATIO * job.step_ns or not stands_out_of_noise(longer.sum(axis=1), len(job.work.ranks)):
        return None
    group = job.work.groups[int(longer.mean(axis=0).argmax())]
    return _claim(job, [rank], group, float(longer.mean(axis=0).max()), "stage")


def _slow_stage(job: _Pipeline) -> Claim | None:
    """Return the claim about the stage that works longest, if an even split would save what is worth saying."""
    stages, work = job.stages, job.work
    typical = np.stack([job.typical_ns(stage) for stage in range(stages.count)])  # by stage, step and group
    whole = typical.sum(axis=2)
    slowest = int(whole.mean(axis=1).argmax())
    others = np.delete(typical, slowest, axis=0).mean(axis=0)
    longer = typical[slowest] - others
    excess_ns = float(whole[slowest].mean() - whole.mean())
    # The first micro-batch passes through all ranks at whatever speed they have: an even split gains on all others.
    saved_ns = excess_ns * (stages.passes - 1) / stages.passes
    # A rank that would be idle in its steps while others work on loses no time by as much more work.
    idle_ns = job.step_ns - float(whole.mean())
    saved_ns = min(saved_ns, max(idle_ns - stages.bubble_ratio * float(whole.mean()), 0.0))
    group = work.groups[int(longer.mean(axis=0).argmax())]
    if max(saved_ns, excess_ns if group != "compute" else 0.0) < _WORTH_SAYING_RATIO * job.step_ns:
        return None
    if not stands_out_of_noise(longer.sum(axis=1), stages.count):
        return None
    ranks = job.ranks(slowest)
    if group != "compute":
        return _claim(job, ranks, group, float(longer.mean(axis=0).max()), "stages")
    column = work.groups.index("compute")
    row = Evidence(
        "slow_stage",
        "pipeline",
        rank=slowest,
        items_count=len(ranks),
        of_count=stages.count,
        amount_ns=float(typical[slowest, :, column].mean()),
        low_ns=float(others[:, column].mean()),
        part_ratio=saved_ns / max(job.step_ns, 1.0),
        name=ranks_text(ranks),
    )
    hardest = max(ranks, key=lambda rank: (float(work.of([rank]).sum(axis=2).mean()), -rank))
    claim = replace(job.base(job.waiting(ranks)), cause_kind=_UNEVEN_SPLIT, cause_rank=hardest)
    return replace(claim, evidence=(row, *_uneven(job)))


def _claim(job: _Pipeline, ranks: Sequence[int], group: str, longer_ns: float, peers: str) -> Claim:
    """Return the claim about ranks that do a kind of time longer than the others of their stage, or other stages."""
    kind, named = name_behind(job.facts, job.found, ranks[0], group)
    said, file = kind_in_words(job.facts, ranks[0], group), named.name if kind in ("fetch", "checkpoint") else ""
    others = job.ranks(job.stages.of_rank[ranks[0]]) if peers == "stage" else job.work.ranks
    on = longer_on_file(
        job.facts.trace, job.facts.tables["steps"], ranks[0], [rank for rank in others if rank not in ranks]
    )
    if on is not None and on.longer_ns >= longer_ns:  # all kinds of time of these calls together
        longer_ns, said, file = on.longer_ns, on.on.way, on.on.name
        named = Named(name=file, name_ns=-1)
    row = Evidence(
        "slow_rank",
        "pipeline",
        rank=ranks[0],
        worker_id=named.worker,
        of_count=job.stages.of_rank[ranks[0]],
        amount_ns=longer_ns,
        low_ns=named.name_ns,
        kind=said,
        name=named.name,
    )
    every = Evidence("slow_rank_peers", "pipeline", items_count=len(ranks), kind=peers, name=ranks_text(list(ranks)))
    return replace(
        job.base(job.waiting(ranks)),
        cause_rank=ranks[0],
        cause_kind=kind,
        worker_id=named.worker,
        file=file,
        evidence=(row, every),
    )


def _uneven(job: _Pipeline) -> list[Evidence]:
    """Return by how much the work of the ranks of one stage differs within a step, where that is worth saying."""
    ratios = []
    for stage in range(job.stages.count):
        ranks = job.ranks(stage)
        if len(ranks) > 1:
            whole = job.work.of(ranks).sum(axis=2)
            ratios.append(float((whole.std(axis=0) / np.maximum(whole.mean(axis=0), 1.0)).mean()))
    if not ratios or max(ratios) < _UNEVEN_RATIO:
        return []
    return [Evidence("stage_uneven", "pipeline", part_ratio=max(ratios))]
