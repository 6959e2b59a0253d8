"""Runs without a stall worth a word: bound by computing, or not known to be.

``compute_bound``, ``not_told``: ``least_ratio`` is the lower bound of compute, of the rank that has least;
``cause_kind`` is ``python`` if the thread ran outside all phases. ``queued_ratio`` is the share of the step on the
rank where waiting for a CPU is most. ``work_not_read``: a recording lacks, or hides, work of a device.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace

from stashtrace.analysis.findings.claim_rows import Claim, Facts, fact
from stashtrace.analysis.findings.rules.stalls.blocked import facts_of
from stashtrace.analysis.findings.rules.stalls.policy import POLICY
from stashtrace.analysis.findings.stall_claims import stall_claim, verdict
from stashtrace.analysis.findings.summary_input import RunFacts
from stashtrace.schema.stall_kinds import COLUMNS
from stashtrace.schema.trace import DEVICE_WORK_NOT_READ
from stashtrace.units import percent_text, ranks_text


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
