"""The stalls that are worth a claim, and their order; checkpoints, and runs without a stall worth a word.

A verdict follows from the bounds of its stall. A stall that may be 0 is never claimed to be more, ``compute_bound``
needs a lower bound of compute, and every rank that is named is in the rows.

``save``: ``checkpoints`` has the number of calls in the steps and their mean; ``after_ns`` is what other calls on their
files (open, fsync, rename) take for each.

``compute_bound``, ``not_told``: ``least_ratio`` is the lower bound of compute, of the rank that has least;
``cause_kind`` is ``python`` if the thread ran outside all phases. ``queued_ratio`` is the share of the step on the
rank where waiting for a CPU is most. ``work_not_read``: a recording lacks, or hides, work of a device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from stashtrace.analysis.findings.batch_making import inside
from stashtrace.analysis.findings.claim_rows import NOT_SAID, Claim, Evidence, Facts, claims_by, fact, unsaid
from stashtrace.analysis.findings.rules.losses import cut_ranks
from stashtrace.analysis.findings.rules.policy import POLICY
from stashtrace.analysis.findings.rules.stalls.batches import data_claims
from stashtrace.analysis.findings.rules.stalls.blocked import blocked_claims, facts_of, main_call
from stashtrace.analysis.findings.rules.stalls.devices import copy_claims
from stashtrace.analysis.findings.rules.stalls.host import host_claims, perhaps_host
from stashtrace.analysis.findings.rules.stalls.late import late_claims
from stashtrace.analysis.findings.rules.stalls.link import link_claims
from stashtrace.analysis.findings.stall_claims import stall_claim, verdict
from stashtrace.analysis.findings.summary_input import RankFacts, RunFacts
from stashtrace.analysis.stalls.on_host import CHECKPOINT_PHASES
from stashtrace.errors import guarded
from stashtrace.schema.kinds import Phase, ProcessRole
from stashtrace.schema.stall_kinds import COLUMNS
from stashtrace.schema.trace import DEVICE_WORK_NOT_READ
from stashtrace.text.units import percent_text, ranks_text


def _save_claims(run: RunFacts, hit: Sequence[RankFacts]) -> list[Claim]:
    """Return the claim about ranks that checkpoints stop."""
    said = "checkpoints {who:stop|stop} {who} for {amount}{a_step} on average ({share})"
    short, base = "{who} {who:stops|stop} {share} {of_step} for checkpoints", stall_claim(hit, "save", COLUMNS["save"])
    return [verdict("save", said, run, base, _checkpoints(run, hit[0]), short=short)]


def _checkpoints(run: RunFacts, rank: RankFacts) -> list[Evidence]:
    phases, processes, steps = run.trace.phases, run.trace.processes, run.tables["steps"]
    of_rank = processes["process_id"][(processes["rank"] == rank.rank) & (processes["role_code"] == ProcessRole.RANK)]
    mine = phases.take(np.isin(phases["phase_code"], CHECKPOINT_PHASES) & np.isin(phases["process_id"], of_rank))
    mine = mine.take(inside(mine["begin_ns"], steps, rank.rank))
    if not len(mine):
        return []
    lengths = mine["end_ns"] - mine["begin_ns"]
    loads = mine["phase_code"] == Phase.CHECKPOINT_LOAD
    kind = "" if not loads.any() else " loaded" if loads.all() else " saved or loaded"
    known = Facts(rank=rank.rank, checkpoints_count=len(mine), mean_ns=float(lengths.mean()))
    said = f"{{checkpoints_count:checkpoint}}{kind} in these steps, {{mean_ns:time}} on average"
    after_ns = rank.kinds["checkpoint"] - int(lengths.sum())  # fsync and rename of what they wrote
    if after_ns > POLICY.exact_ratio * lengths.sum():
        known |= Facts(after_ns=after_ns / len(mine))
        said += ", and {after_ns:time} each in other calls on their files"
    return [fact("checkpoints", said, "phases", **known)]


def no_stall(run: RunFacts) -> Claim:
    """Return the claim that the run is compute bound, or, if that is not certain, how much of the steps is unknown."""
    worst = min(run.ranks, key=lambda r: r.bounds_ns("compute")[0] / max(r.step_ns, 1))
    base = stall_claim([worst], "compute", COLUMNS["compute"])
    least = base.low_ns / max(worst.step_ns, 1)
    said = "the recording of rank {rank} lacks or hides work of a device: {name}"
    unread = [
        fact("work_not_read", said, "metadata", rank=rank.rank, name=", ".join(names))
        for rank in run.ranks
        if (names := facts_of(run, DEVICE_WORK_NOT_READ, rank.rank))
    ]
    queued = max(rank.contention_ratio for rank in run.ranks)
    waits = queued >= POLICY.worth_saying_ratio
    queue = Facts(queued_ratio=queued) if waits else Facts()
    base = replace(base, ranks=ranks_text(sorted(r.rank for r in run.ranks)), least_ratio=least)
    if least >= POLICY.compute_bound_ratio and not unread:
        bound = "" if base.confidence == "exact" else f" (at least {int(100 * least)} % of every step)"
        but = f" except waiting for a CPU (up to {percent_text(queued)})" if waits else ""
        return verdict(
            "compute_bound", f"no stall above 3 %{but}: compute bound{bound}", run, base, unread[:1], **queue
        )
    if not unread and worst.bounds_ns("compute", "python")[0] >= POLICY.compute_bound_ratio * worst.step_ns:
        said = (
            "no stall above 3 % was seen: the thread of rank {rank} ran all the step; no phase is recorded, so whether"
            " it ran operators or other Python is not known"
        )
        return verdict("not_told", said, run, base, unread[:1], cause_kind="python", **queue)
    low, high = (percent_text(b / max(base.stall_ns, 1) * base.share_ratio) for b in (base.low_ns, base.high_ns))
    said = (
        f"no stall above 3 % was seen, but there may be some: between {low} and {high} of the step of rank {{rank}}"
        " is compute, and this recording cannot tell the rest from it"
    )
    return verdict("not_told", said, run, base, unread[:1], **queue)


#: Column of the budget -> its rule, and its sentence without what is behind the time.
_RULES: dict[str, tuple[Callable[[RunFacts, Sequence[RankFacts]], list[Claim]], str]] = {
    "data": (data_claims, "{who} {who:waits|wait} {lost} for batches"),
    "late": (late_claims, "{who} {who:waits|wait} {lost} for other ranks"),
    "link": (link_claims, "{who} {who:spends|spend} {lost} in transfers between ranks"),
    "copy": (copy_claims, "{who} {who:waits|wait} {lost} for copies between host and device"),
    "save": (_save_claims, "checkpoints {who:stop|stop} {who} for {amount}{a_step} on average ({share})"),
    "host": (host_claims, "{devices} {devices:stands|stand} idle for {lost} because of the host"),
    "python": (host_claims, "{who} {who:spends|spend} {lost} outside forward, backward and optimizer"),
    "other": (blocked_claims, "{who} {who:is|are} blocked {lost}"),
}
#: Columns with time in which nothing is seen to run; of a recording that was cut, it is no finding.
_IDLE_GROUPS = ("host", "other")


def verdicts(facts: RunFacts, others: Sequence[Claim] = ()) -> list[Claim]:
    """Return claims about stalls, worst first; without a stall, one claim that says so.

    Validation and inference next to training have separate claims with the name of their kind, weighted by their part
    of the time.

    ``others``: verdicts about something else than a stall, for their place in the order.
    """
    if not facts.ranks:
        return []
    found = _stalls(facts)
    weighted = [(claim.share_ratio, claim) for claim in found if claim.kind != NOT_SAID]
    own_ns = sum(rank.wall_ns for rank in facts.ranks)
    for part in facts.others:
        weight = sum(rank.wall_ns for rank in part.ranks) / max(own_ns, 1)
        of_part = _stalls(part)
        found += of_part
        weighted += [
            (claim.share_ratio * weight, _in_steps_of(claim, part.step_kind))
            for claim in of_part
            if claim.share_ratio * weight >= POLICY.worth_saying_ratio
        ]
    unsaid = [claim for claim in found if claim.kind == NOT_SAID]
    if not weighted and not unsaid:
        none = no_stall(facts)
        weighted.append((none.share_ratio, none))
    weighted += [(claim.share_ratio, claim) for claim in others]
    weighted.sort(key=lambda pair: (-pair[0], pair[1].kind != "late"))
    return [*(claim for _, claim in weighted), *unsaid]


def _in_steps_of(claim: Claim, kind: str) -> Claim:
    """Return a claim about the steps of another kind, of which its sentences say so."""
    short = claim.facts.get("short", "")
    facts = {**claim.facts, **({"short": f"in {kind} steps, {short}"} if short else {})}
    return replace(claim, name=kind, text=f"in {kind} steps, {claim.text}", facts=facts)


def _stalls(facts: RunFacts) -> list[Claim]:
    """Return claims about the stalls of one kind of steps, worst first."""
    claims: list[Claim] = []
    cut = cut_ranks(facts.trace)
    for group in ("data", "late", "link", "copy", "save", "host", "other"):
        whole = [r for r in facts.ranks if r.rank not in cut] if group in _IDLE_GROUPS else facts.ranks
        hit = [r for r in whole if r.share(group) >= POLICY.worth_saying_ratio]
        hit.sort(key=lambda r: (-r.per_step_ns(*COLUMNS[group]), r.rank))
        while hit:
            # Ranks that lose much less have a separate claim: one figure cannot stand for both. So have ranks that
            # other calls block.
            least = 0.0 if group == "late" else POLICY.like_ratio * hit[0].per_step_ns(*COLUMNS[group])
            same = [group != "other" or main_call(r) == main_call(hit[0]) for r in hit]
            similar = [
                r for r, is_same in zip(hit, same, strict=True) if is_same and r.per_step_ns(*COLUMNS[group]) >= least
            ]
            claims += _with_reasons(group, facts, similar)
            said = {r.rank for r in similar}
            hit = [r for r in hit if r.rank not in said]
    if not any(claim.kind == "host" for claim in claims):
        claims += claims_by("how long devices may stand idle", perhaps_host, facts)
    return sorted(claims, key=lambda claim: -claim.share_ratio)


def _with_reasons(group: str, facts: RunFacts, hit: Sequence[RankFacts]) -> list[Claim]:
    """Return the claims about a stall with what is behind it; where that fails, the claim with its figures alone."""

    def figures(line: str) -> list[Claim]:
        cause = max(COLUMNS[group], key=hit[0].per_step_ns) if group == "host" else ""
        kinds = (cause,) if cause == "python" else COLUMNS[group]
        said = _RULES["python" if cause == "python" else group][1]
        return [verdict(group, said, facts, stall_claim(hit, group, kinds), [unsaid(line)], cause_kind=cause)]

    whose = ranks_text(sorted(rank.rank for rank in hit))
    return guarded(f"what is behind '{group}' of ranks {whose}", partial(_RULES[group][0], facts, hit), figures)
