"""All claims of a summary in reading order: headline, verdicts, the machine, what is hidden, trust, losses."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from stashtrace.analysis.findings.claim_rows import NOT_SAID, Claim, claims_by, not_said
from stashtrace.analysis.findings.rules import headline, machine
from stashtrace.analysis.findings.rules.contention import contention_claims
from stashtrace.analysis.findings.rules.ending.failures import failure_claims, killed_claims
from stashtrace.analysis.findings.rules.ending.hangs import ending_claims
from stashtrace.analysis.findings.rules.files import files_claims, without_steps
from stashtrace.analysis.findings.rules.losses import loss_claims
from stashtrace.analysis.findings.rules.stalls.verdicts import verdicts
from stashtrace.analysis.findings.rules.start import start_claims
from stashtrace.analysis.findings.rules.steps.changes import change_claims
from stashtrace.analysis.findings.rules.steps.slow import slow_claims
from stashtrace.analysis.findings.rules.trust import agreement_claims, trust_claims, unordered_claims
from stashtrace.analysis.findings.stall_claims import one_recording
from stashtrace.analysis.findings.summary_input import RunFacts
from stashtrace.schema.trace import Trace


def claims_of(facts: RunFacts) -> list[Claim]:
    """Return every claim of a run; ``rows.tables_of`` makes tables of them."""
    trace = facts.trace
    losses = claims_by("what was lost", loss_claims, trace)
    lost = [claim for claim in losses if claim.section == "headline"]
    crowded = claims_by("who waits for a CPU", contention_claims, facts)
    ending = claims_by("how the job ended", ending_claims, trace)
    claims = [
        *ending,
        *lost,
        *_headline(facts),
        *claims_by("the verdicts", verdicts, facts, [claim for claim in crowded if claim.section == "verdict"]),
    ]
    if facts.ranks:
        claims = _claims_of_steps(facts, claims)
    elif not facts.not_said:
        known = lost or any(claim.kind in ("hung", "awaited") for claim in ending)
        claims += [*claims_by("the files of the run", files_claims, trace), *([] if known else [without_steps(trace)])]
    claims += [claim for claim in crowded if claim.section == "machine"]
    for what, detect in _DETECTORS.items():
        claims += claims_by(what, detect, facts)
    return [
        *claims,
        *(claim for claim in losses if claim.section == "loss"),
        *(claim for claim in crowded if claim.kind == NOT_SAID),
        *map(not_said, facts.not_said),
    ]


def _claims_of_steps(facts: RunFacts, claims: list[Claim]) -> list[Claim]:
    """Add the claims about changes of the steps, and about slow ones."""
    trace, tables = facts.trace, facts.tables
    loading = np.unique(trace.batches["rank"]).tolist()
    claims = claims + claims_by("how the steps change", change_claims, tables["over_time"])
    return claims + claims_by(
        "slow steps", slow_claims, tables["spikes"], tables["over_time"], tables["steps"], loading
    )


def _headline(facts: RunFacts) -> list[Claim]:
    claims = [*headline.doubt_claims(facts), *headline.rank_claims(facts)]
    if facts.ranks:
        return [*claims, *claims_by("the steps", headline.steps_claims, facts)]
    return claims if facts.not_said else [*claims, headline.no_steps_claim(facts.trace)]


#: What further claims are about -> who finds them, in reading order.
_DETECTORS: dict[str, Callable[[RunFacts], list[Claim]]] = {
    "the time before the first step": lambda facts: start_claims(facts.trace) if facts.ranks else [],
    "ranks with fewer steps": machine.uneven_claims,
    "what the hypervisor took": machine.steal_claims,
    "steps without timing events": machine.thinned_claims,
    "what was left out": lambda facts: machine.left_out_claims(facts.trace) + unordered_claims(facts.trace),
    "emulated computing": lambda facts: machine.emulated_claims(facts.trace),
    "killed processes": lambda facts: killed_claims(facts.trace),
    "other starts of the job": lambda facts: machine.restart_claims(facts.trace),
    "processes that still ran": lambda facts: machine.outlived_claims(facts.trace),
    "the hosts": machine.host_claims,
    "what the step hides": machine.hidden_claims,
    "staged copies": lambda facts: machine.staged_claims(facts.trace),
    "how far to trust it": lambda facts: trust_claims(facts.trace, facts.trust),
    "how brackets and kernels agree": lambda facts: agreement_claims(facts.tables.get("agreement")),
}


def limit_claims(trace: Trace) -> list[Claim]:
    """Collect what was lost or left out, and how the job failed; empty for a complete recording.

    The claims are those of the summary, for answers without it. They need the tables of losses, processes and phases,
    and no analysis.
    """
    losses = loss_claims(trace)
    whole = [headline.recording_claim()] if one_recording(trace) else []
    return [
        *(claim for claim in losses if claim.section == "headline"),
        *whole,
        *machine.left_out_claims(trace),
        *killed_claims(trace),
        *failure_claims(trace),
        *(claim for claim in losses if claim.section == "loss"),
    ]
