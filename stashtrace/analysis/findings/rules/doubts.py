"""What puts all figures in doubt: time that nothing explains, and steps without marks on their device.

``share_ratio`` of ``low_confidence`` is the unexplained part of the step time over all ranks. ``doubt`` has the part of
one kind of it, ``doubt_most`` that of the rank with most of what no call explains.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from stashtrace.analysis.findings.claim_rows import Claim, Facts, claim, fact
from stashtrace.analysis.findings.rules.policy import POLICY
from stashtrace.analysis.findings.summary_input import RunFacts
from stashtrace.units import ranks_text


def doubt_claims(facts: RunFacts) -> list[Claim]:
    """Return the warnings that precede all other figures."""
    claims = _unexplained(facts) if facts.unexplained_ratio > POLICY.unexplained_ratio else []
    timed = [r.rank for r in facts.ranks if r.host_timed]
    if timed:
        said = "LOW CONFIDENCE: no timed step marks on the device, steps are the host's"
        claims.append(claim("headline", "host_timed_steps", said, ranks=ranks_text(sorted(timed))))
    return claims


def _unexplained(facts: RunFacts) -> list[Claim]:
    small = POLICY.doubt_ratio
    doubts = {doubt: share for doubt, share in facts.doubts.items() if share >= small}
    parts = [
        fact("doubt", "{part_ratio:percent} {name}", "stalls", part_ratio=share, name=doubt)
        for doubt, share in doubts.items()
    ]
    said = "LOW CONFIDENCE: {parts}"
    rows = []
    worst = max(facts.ranks, key=lambda r: r.unexplained_ns / max(r.wall_ns, 1))
    most = worst.unexplained_ns / max(worst.wall_ns, 1)
    if "unexplained" in doubts and most - doubts["unexplained"] >= small:
        # Of several ranks the share is their mean: one of them may have much more, and another one none.
        said += ", the mean of all ranks ({most_ratio:percent} on rank {most_rank})"
        rows.append(fact("doubt_most", "", "stalls", rank=worst.rank, part_ratio=most))
    # Short waits, and waits for a CPU after them, count as compute: where CPUs are scarce more is unexplained.
    short = "unexplained" in doubts and any(r.contention_ratio > small for r in facts.ranks)
    said += "; it may be more, since CPUs were scarce" if short else ""
    sure = "at_least" if short else "exact"
    own = Facts(share_ratio=facts.unexplained_ratio, most_ratio=most, most_rank=worst.rank)
    return [claim("headline", "low_confidence", said, rows, parts=parts, confidence=sure, **own)]
