"""Work that costs no step time: what the step hides, checkpoints in the background, and files that copies served.

``hidden`` becomes a stall if what hides it becomes faster. ``background_saves`` are the checkpoints that threads of the
ranks of ``name`` wrote while steps went on: their mean, and the longest. ``staged`` counts opens.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np

from stashtrace.analysis.findings.claim_rows import Claim, Evidence, Facts, claim, fact
from stashtrace.analysis.findings.rules.policy import POLICY
from stashtrace.analysis.findings.summary_input import RunFacts
from stashtrace.analysis.io.staging import staged_opens, used_copies
from stashtrace.schema.kinds import Phase, PhaseFlag
from stashtrace.schema.trace import Trace
from stashtrace.units import ranks_text

_HIDDEN = ("loading", "communication", "copy", "checkpoint")


def hidden_claims(facts: RunFacts) -> list[Claim]:
    """Return a claim about the work that the steps hide."""
    if not facts.ranks:
        return []
    table = facts.tables["hidden"]
    counted = table.take(np.isin(table["step"], facts.tables["steps"]["step"]))
    if not len(counted):
        return []
    least_ns = POLICY.hidden_ratio * float(counted["wall_ns"].mean())
    amounts = {name: float(counted[f"hidden_{name}_ns"].mean()) for name in _HIDDEN}
    rows = [
        fact("hidden", "{kind} {amount_ns:time}", "hidden", amount_ns=ns, kind=name)
        for name, ns in amounts.items()
        if ns >= least_ns
    ]
    saves = _background_saves(facts.trace)
    said = "hidden behind the step: {parts} a step" if rows else ""
    return [claim("beside", "hidden", said, saves, parts=rows)] if rows or saves else []


def _background_saves(trace: Trace) -> list[Evidence]:
    phases = trace.phases
    mine = phases.take(
        (phases["phase_code"] == Phase.CHECKPOINT) & ((phases["phase_flags"] & PhaseFlag.BACKGROUND) != 0)
    )
    if not len(mine):
        return []
    lengths = mine["end_ns"] - mine["begin_ns"]
    rank_of = dict(zip(trace.processes["process_id"].tolist(), trace.processes["rank"].tolist(), strict=True))
    each = " each, the longest {longest_ns:time}" if len(mine) > 1 else ""
    said = f"{{name:ranks}} wrote {{items_count:checkpoint}} in the background: {{amount_ns:time}}{each}"
    own = Facts(items_count=len(mine), amount_ns=float(lengths.mean()), longest_ns=int(lengths.max()))
    ranks = ranks_text(sorted({rank_of[process] for process in mine["process_id"].tolist()}))
    return [fact("background_saves", said, "phases", name=ranks, **own)]


def staged_claims(trace: Trace) -> list[Claim]:
    """Return a claim about staged copies and whether the job opened them."""
    if not used_copies(trace):
        return []
    count = staged_opens(trace)
    said = "no open was served by a copy: the job opens the files under names that are not in the list, or not at all"
    said = "staged: {items_count:open} served by copies" if count else said
    return [claim("beside", "staged", said, items_count=count)]
