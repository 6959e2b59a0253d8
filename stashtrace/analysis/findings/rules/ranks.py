"""Which ranks and steps there are, and which are missing or left out.

``ranks`` has the number of hosts in ``hosts``, -1 where one is not named, and in ``job_processes`` that of processes
of the job by its files, where fewer ranks have records of their own. ``name`` of ``warmup`` is ``cut`` if the last step
is left out too, because the recording ends within it; that of ``no_steps`` is ``lost`` if steps may be among the lost
records.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from stashtrace.analysis.findings.claim_rows import Claim, claim, fact
from stashtrace.analysis.findings.rules.files import stated_processes
from stashtrace.analysis.findings.rules.losses import loss_claims
from stashtrace.analysis.findings.rules.policy import POLICY
from stashtrace.analysis.findings.summary_input import RunFacts
from stashtrace.schema.trace import Trace
from stashtrace.units import ranks_text


def rank_claims(facts: RunFacts) -> list[Claim]:
    """Return a claim about how many ranks there are, and one about those that left no record."""
    # Ranks whose host is not named may be on any.
    named = facts.hosts_count > 0 and all(facts.hosts)
    rows = [fact("hosts", "", "processes", items_count=facts.hosts_count if named else -1)]
    stated = stated_processes(facts.trace)
    if stated > facts.ranks_count:
        rows.append(fact("job_processes", "", "metadata", processes_count=stated))
    said = "{processes_count:process}" if stated > facts.ranks_count else "{items_count:rank}"
    claims = [claim("headline", "ranks", said, rows, items_count=facts.ranks_count)]
    if facts.missing_ranks:
        missing = ranks_text(list(facts.missing_ranks))
        said = "{items_count} ranks of the job left no record here"
        if len(missing) < POLICY.missing_ranks_characters:
            said = "rank{items_count:|s} {ranks} of the job left no record here ({items_count} missing)"
        name, count = "imported" if facts.imported else "", len(facts.missing_ranks)
        claims.append(claim("headline", "ranks_missing", said, ranks=missing, items_count=count, name=name))
    return claims


def warmup_claims(facts: RunFacts) -> list[Claim]:
    """Return a claim about steps at the edges of the recording that are left out."""
    if not facts.warmup_count:
        return []
    first = facts.warmup_count - facts.cut_count
    left = [*(["first {items_count}" if first > 1 else "the first"] if first else []), *["the last"] * facts.cut_count]
    name = "cut" if facts.cut_count else ""
    return [claim("headline", "warmup", f"{' and '.join(left)} left out", items_count=first, name=name)]


def no_steps_claim(trace: Trace) -> Claim:
    """Return the claim that there are no steps; if records were lost, steps may be among them."""
    if any(one.section == "headline" for one in loss_claims(trace)):
        said = "no training steps among the records that are left"
        return claim("headline", "no_steps", said, name="lost", items_count=0)
    return claim("headline", "no_steps", "no training steps seen", items_count=0)
