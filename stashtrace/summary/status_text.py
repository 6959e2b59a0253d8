"""A run that is still going, or hangs: the collectives that some ranks have not entered, and the newest budgets."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stashtrace.analysis.findings.claim_rows import tables_of
from stashtrace.analysis.findings.rules.ending.hangs import ending_claims
from stashtrace.analysis.steps.step_time import StepTime
from stashtrace.schema.stall_kinds import words_of
from stashtrace.schema.trace import Trace
from stashtrace.summary.words import claim_text, evidence_texts
from stashtrace.summary.words.template_parts import findings_of
from stashtrace.text import count_noun
from stashtrace.units import duration_text, percent_text

#: So many steps are the newest ones.
NEWEST_STEPS = 10


def describe_stuck(trace: Trace, *, lives: bool = False) -> list[str]:
    """Return lines about how the job failed or stands still: who is waited for, who waits, what was done last.

    Of one that still ``lives`` it is not said that it hung.
    """
    lines = []
    for finding in findings_of(*tables_of(ending_claims(trace, lives=lives))):
        lines.append(claim_text(finding))
        lines += [f"  {sentence}" for sentence in evidence_texts(finding)]
    return lines


@dataclass(frozen=True, slots=True)
class Newest:
    """The newest steps of a rank."""

    #: Steps that the rank has made, and how many of them are the newest ones.
    made_count: int
    newest_count: int
    #: Mean length of the newest.
    step_ns: int
    #: Share of each kind of time in them.
    shares: dict[str, float]


def newest_steps(trace: Trace) -> dict[int, Newest]:
    """Return what the newest steps of each rank went to; the warm-up is among them while the run is young."""
    from stashtrace.analysis.registry import analyze
    from stashtrace.errors import MissingDataError

    try:
        steps, stalls = analyze(trace, "steps"), analyze(trace, "stalls", warmup=True)
    except MissingDataError:
        return {}
    found = {}
    for rank in np.unique(steps["rank"]).tolist():
        own = steps.take(steps["rank"] == rank).sort_by("step")
        newest = own["step"][-NEWEST_STEPS:]
        wall = int((own["end_ns"] - own["begin_ns"])[-NEWEST_STEPS:].sum())
        rows = stalls.take((stalls["rank"] == rank) & np.isin(stalls["step"], newest))
        shares = {
            str(k): int(rows["stall_ns"][rows["kind"] == k].sum()) / max(wall, 1) for k in np.unique(rows["kind"])
        }
        found[rank] = Newest(len(own), len(newest), wall // max(len(newest), 1), shares)
    return found


def newest_text(newest: Newest) -> str:
    """Word how far a rank is, and what its newest steps went to."""
    kinds = sorted(newest.shares.items(), key=lambda item: -item[1])
    budget = ", ".join(f"{words_of(kind)} {percent_text(share)}" for kind, share in kinds if share >= 0.005)
    which = f"the newest {newest.newest_count}" if newest.newest_count > 1 else "the newest"
    return f"{count_noun(newest.made_count, 'step')}, {which} of {duration_text(newest.step_ns)}, of which {budget}"


def step_time_text(step: StepTime) -> str:
    """Word the step time of a run as its summary does: ``95 steps of 69.4 ms (5 left out)``."""
    left_out = f" ({step.left_out_count} left out)" if step.left_out_count else ""
    return f"{count_noun(step.steps_count, 'step')} of {duration_text(step.mean_ns)}{left_out}"
