"""How and where the job ran.

``uneven_steps`` has a row ``made_steps`` for each number of steps, with the ranks of ``name`` that made it, and
``hosts`` one (``host``) for each host. ``thinned`` means that ``--event-budget`` left steps without timing events.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from stashtrace.analysis.findings.claim_rows import Claim, Evidence, Facts, claim, fact
from stashtrace.analysis.findings.rules.policy import POLICY
from stashtrace.analysis.findings.rules.steps.affected import made_steps
from stashtrace.analysis.findings.rules.steps.policy import POLICY as STEPS
from stashtrace.analysis.findings.summary_input import RunFacts
from stashtrace.schema.trace import Trace, run_facts
from stashtrace.units import ranks_text


def uneven_claims(facts: RunFacts) -> list[Claim]:
    """Return a claim about ranks that made fewer steps than others."""
    made = made_steps(facts) if facts.ranks else {}
    if not made or max(made.values()) - min(made.values()) <= STEPS.uneven_count:
        return []
    ranks: dict[int, list[int]] = {}
    for rank, count in sorted(made.items(), key=lambda item: (-item[1], item[0])):
        ranks.setdefault(count, []).append(rank)
    rows = list[Evidence]()
    for count, of in ranks.items():
        said = "{name:ranks} made {items_count:step}" if len(rows) < POLICY.step_counts_named_count else ""
        rows.append(fact("made_steps", said, "steps", items_count=count, name=ranks_text(of)))
    unnamed = len(rows) - POLICY.step_counts_named_count
    more = f" and {unnamed} other numbers" if unnamed > 0 else ""
    said = f"the ranks did not make the same number of steps: {{parts}}{more}"
    return [claim("machine", "uneven_steps", said, parts=rows, items_count=max(made.values()))]


def steal_claims(facts: RunFacts) -> list[Claim]:
    """Return a claim about the CPU time that the hypervisor of a host took for others."""
    hosts = facts.trust.hosts
    worst = max(hosts, key=lambda host: hosts[host].steal_ratio, default="")
    if not worst or hosts[worst].steal_ratio <= POLICY.steal_ratio:
        return []
    said = "host steal: the hypervisor took {share_ratio:percent} of the CPU time of {name}"
    return [claim("machine", "steal", said, name=worst, share_ratio=hosts[worst].steal_ratio)]


def thinned_claims(facts: RunFacts) -> list[Claim]:
    """Return a claim about steps that the event budget left without timing events."""
    if not facts.thinned_count:
        return []
    said = "only {items_count} of {all_count} steps have timing events (--event-budget); the shares are of these"
    whole = fact("all_steps", "", "steps", all_count=facts.steps_count + facts.thinned_count)
    return [claim("machine", "thinned", said, [whole], items_count=facts.steps_count)]


def emulated_claims(trace: Trace) -> list[Claim]:
    """Return a claim about benchmarks that sleep instead of computing: the compute of their steps is not real."""
    rows = trace.metadata.take(trace.metadata["key_code"] == trace.strings.find("emulated_compute"))
    said = "compute is emulated: {name} sleeps for as long as a real step would compute"
    names = sorted({trace.text(code) for code in rows["value_code"].tolist()})
    return [claim("machine", "emulated_compute", said, name=name) for name in names[:1]]


def restart_claims(trace: Trace) -> list[Claim]:
    """Return a claim about the other starts of an elastic job, whose ranks these are not."""
    rows = trace.losses.take(trace.losses["name_code"] == trace.strings.find("other_starts"))
    texts = [trace.text(code) for code in rows["advice_code"].tolist()]
    count = int(rows["lost_count"].sum())
    return [claim("machine", "restarts", "{name}", items_count=count, name=text) for text in texts[:1]]


def outlived_claims(trace: Trace) -> list[Claim]:
    """Return a claim about processes of the command that still ran when the recording was closed."""
    pids = [pid for pid in run_facts(trace).get("outlived_by", "").split(", ") if pid]
    who, it = ("a process", "it") if len(pids) == 1 else ("{items_count} processes", "they")
    said = f"{who} still ran when the recording was closed (pid {{name}}): what {it} did later is not in it"
    return [claim("machine", "outlived", said, items_count=len(pids), name=", ".join(pids))] if pids else []


def host_claims(facts: RunFacts) -> list[Claim]:
    """Return a claim about the ranks of each host, if there are several hosts."""
    hosts = facts.hosts
    if len(hosts) < 2:
        return []
    rows = list[Evidence]()
    for host, ranks in hosts.items():
        known, others = sorted({r for r in ranks if r >= 0}), sum(r < 0 for r in ranks)
        named = ranks_text(known)
        short = len(named) <= POLICY.ranks_of_host_characters
        parts = ["rank{ranks_count:|s} {ranks}" if short else "{ranks_count:rank}"] if known else []
        if others:
            parts.append("{others_count:other process}" if known else "{others_count:process} without a rank")
        said = f"{{host}} {' and '.join(parts)}" if len(rows) < POLICY.hosts_named_count else ""
        own = Facts(host=host or "(not named)", ranks=named, ranks_count=len(known), others_count=others)
        rows.append(fact("host", said, "processes", **own))
    unnamed = len(rows) - POLICY.hosts_named_count
    said = f"hosts: {{parts}}{f' and {unnamed} more' if unnamed > 0 else ''}"
    return [claim("machine", "hosts", said, parts=rows, items_count=len(hosts))]
