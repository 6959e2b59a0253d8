"""Checkpoints that stop the step.

``save``: ``checkpoints`` has the number of calls in the steps and their mean; ``after_ns`` is what other calls on their
files (open, fsync, rename) take for each.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stashtrace.analysis.findings.batch_making import inside
from stashtrace.analysis.findings.claim_rows import Claim, Evidence, Facts, fact
from stashtrace.analysis.findings.rules.stalls.policy import POLICY
from stashtrace.analysis.findings.stall_claims import stall_claim, verdict
from stashtrace.analysis.findings.summary_input import RankFacts, RunFacts
from stashtrace.analysis.stalls.on_host import CHECKPOINT_PHASES
from stashtrace.schema.kinds import Phase, ProcessRole
from stashtrace.schema.stall_kinds import COLUMNS


def save_claims(run: RunFacts, hit: Sequence[RankFacts]) -> list[Claim]:
    """Return the claim about ranks that checkpoints stop."""
    said = "checkpoints {who:stop|stop} {who} for {amount}{a_step} on average ({share})"
    short, base = "{who} {who:stops|stop} {share} {of_step} for checkpoints", stall_claim(hit, "save", COLUMNS["save"])
    return [verdict("save", said, run, base, _checkpoints(run, hit[0]), short=short)]


def _checkpoints(run: RunFacts, rank: RankFacts) -> list[Evidence]:
    phases, processes, steps = run.trace.phases, run.trace.processes, run.tables["steps"]
    own = processes["process_id"][(processes["rank"] == rank.rank) & (processes["role_code"] == ProcessRole.RANK)]
    mine = phases.take(np.isin(phases["phase_code"], CHECKPOINT_PHASES) & np.isin(phases["process_id"], own))
    mine = mine.take(inside(mine["begin_ns"], steps.take(steps["rank"] == rank.rank).sort_by("begin_ns")))
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
