"""Verdicts: the stalls that are worth a claim, and their order.

A verdict follows from the bounds of its stall. A stall that may be 0 is never claimed to be more, ``compute_bound``
needs a lower bound of compute, and every rank that is named is in the rows.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from stashtrace.analysis.findings.claim_rows import NOT_SAID, Claim, claims_by, unsaid
from stashtrace.analysis.findings.rules.losses import cut_ranks
from stashtrace.analysis.findings.rules.stalls.batches import data_claims
from stashtrace.analysis.findings.rules.stalls.blocked import blocked_claims, main_call
from stashtrace.analysis.findings.rules.stalls.checkpoints import save_claims
from stashtrace.analysis.findings.rules.stalls.compute import no_stall
from stashtrace.analysis.findings.rules.stalls.devices import copy_claims
from stashtrace.analysis.findings.rules.stalls.host import host_claims, perhaps_host
from stashtrace.analysis.findings.rules.stalls.late import late_claims
from stashtrace.analysis.findings.rules.stalls.link import link_claims
from stashtrace.analysis.findings.rules.stalls.policy import POLICY
from stashtrace.analysis.findings.stall_claims import stall_claim, verdict
from stashtrace.analysis.findings.summary_input import RankFacts, RunFacts
from stashtrace.errors import guarded
from stashtrace.schema.stall_kinds import COLUMNS
from stashtrace.units import ranks_text

#: Column of the budget -> its rule, and its sentence without what is behind the time.
_RULES: dict[str, tuple[Callable[[RunFacts, Sequence[RankFacts]], list[Claim]], str]] = {
    "data": (data_claims, "{who} {who:waits|wait} {lost} for batches"),
    "late": (late_claims, "{who} {who:waits|wait} {lost} for other ranks"),
    "link": (link_claims, "{who} {who:spends|spend} {lost} in transfers between ranks"),
    "copy": (copy_claims, "{who} {who:waits|wait} {lost} for copies between host and device"),
    "save": (save_claims, "checkpoints {who:stop|stop} {who} for {amount}{a_step} on average ({share})"),
    "host": (host_claims, "{devices} {devices:stands|stand} idle for {lost} because of the host"),
    "python": (host_claims, "{who} {who:spends|spend} {lost} outside forward, backward and optimizer"),
    "other": (blocked_claims, "{who} {who:is|are} blocked {lost}"),
}
#: Columns with time in which nothing is seen to run; of a recording that was cut, it is no finding.
_IDLE_GROUPS = ("host", "other")


def verdicts(facts: RunFacts, beside: Sequence[Claim] = ()) -> list[Claim]:
    """Return claims about stalls, worst first; without a stall, one claim that says so.

    Validation and inference beside training have claims of their own with the name of their kind, weighted by their
    part of the time.

    ``beside``: verdicts about something else than a stall, for their place in the order.
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
    weighted += [(claim.share_ratio, claim) for claim in beside]
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
        told = [r for r in facts.ranks if r.rank not in cut] if group in _IDLE_GROUPS else facts.ranks
        hit = [r for r in told if r.share(group) >= POLICY.worth_saying_ratio]
        hit.sort(key=lambda r: (-r.per_step_ns(*COLUMNS[group]), r.rank))
        while hit:
            # Ranks that lose much less have a claim of their own: one figure cannot stand for both. So have ranks that
            # other calls block.
            least = 0.0 if group == "late" else POLICY.like_ratio * hit[0].per_step_ns(*COLUMNS[group])
            same = [group != "other" or main_call(r) == main_call(hit[0]) for r in hit]
            alike = [
                r for r, is_same in zip(hit, same, strict=True) if is_same and r.per_step_ns(*COLUMNS[group]) >= least
            ]
            claims += _with_reasons(group, facts, alike)
            said = {r.rank for r in alike}
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
