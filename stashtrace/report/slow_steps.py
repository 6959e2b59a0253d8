"""Slow steps as the page shows them: those of the analysis ``spikes``, the costliest first, in the summary's words."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import numpy as np

from stashtrace.analysis.findings.claim_rows import tables_of
from stashtrace.analysis.findings.rules.steps.slow import claim_of_step
from stashtrace.analysis.findings.spikes.policy import POLICY
from stashtrace.analysis.steps.step_time import step_lengths
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace
from stashtrace.summary.words import evidence_texts, findings_of

#: Slow steps listed.
LISTED = 10


def slow_steps(trace: Trace, steps: Table, slow: Table) -> dict[str, Any]:
    """Return the slow steps of a run, those that cost most first.

    ``steps``: the counted steps of all ranks. ``slow``: rows of ``spikes`` of any steps. Returns ``steps_count``,
    ``too_few`` (no step can be called slow), ``slow_count``, ``excess_ns`` (of all slow steps over what such steps
    usually take), ``whole_ns`` (of all counted steps) and ``listed``: per slow step ``step``, ``length_ns``,
    ``usual_ns``, ``excess_ns``, ``begin_ns``, ``end_ns`` and ``texts`` (whose time grew, then the evidence).
    """
    by_step = GroupBy(steps["step"])
    slow = slow.take(np.isin(slow["step"], by_step.values))
    excess_ns = slow["length_ns"] - slow["usual_ns"]
    costliest = np.argsort(-excess_ns, kind="stable")[:LISTED]
    loading = np.unique(trace.batches["rank"]).tolist()
    begin_ns, end_ns = by_step.min(steps["begin_ns"]), by_step.max(steps["end_ns"])
    listed = []
    for at in costliest.tolist():
        place = int(by_step.find(slow["step"][at : at + 1])[0])
        (said,) = findings_of(*tables_of([claim_of_step(slow.take(np.array([at])), loading, {})]))
        listed.append(
            {name: int(slow[name][at]) for name in ("step", "length_ns", "usual_ns")}
            | {"excess_ns": int(excess_ns[at]), "begin_ns": int(begin_ns[place]), "end_ns": int(end_ns[place])}
            | {"texts": [said.row["facts"]["grew"], *evidence_texts(said)]}
        )
    return {
        "steps_count": len(by_step),
        "too_few": len(by_step) <= POLICY.least_steps,
        "slow_count": len(slow),
        "excess_ns": int(excess_ns.sum()),
        "whole_ns": round(float(step_lengths(steps).sum())),
        "listed": listed,
    }
