"""Forwards without gradients that a rank makes alone in its training steps, as for a text or an evaluation."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np

from stashtrace.analysis.findings.summary_input import RunFacts
from stashtrace.analysis.intervals import Int64, window_at
from stashtrace.analysis.steps.steps import host_steps, in_steps
from stashtrace.analysis.stragglers.surplus import compared_steps
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import Phase, PhaseFlag
from stashtrace.schema.table import Table


def quiet_alone_ns(facts: RunFacts, rank: int, peers: list[int]) -> float:
    """Return how long a rank takes for them in a step on average, with what lies between them; 0 if others make some.

    They are those before all else that its steps consist of.
    """
    steps = facts.tables["steps"]
    if not (facts.trace.phases["phase_flags"] & PhaseFlag.NO_GRAD).any():
        return 0.0
    if (steps["clock_code"] != 0).any():  # phases are on the host's clock
        on_host = host_steps(facts.trace)
        steps = on_host.take(in_steps(on_host, steps))
    tables = compared_steps(facts.trace, steps, rank, peers)
    if not tables:
        return 0.0
    spent = {one: _leading_ns(facts.trace.phases, own) for one, own in tables.items()}
    if any(own.any() for one, own in spent.items() if one != rank):
        return 0.0
    return float(spent[rank].mean())


def _leading_ns(phases: Table, steps: Table) -> Int64:
    """Return the length of the run of forwards without gradients that each step of a rank begins with."""
    flags = phases["phase_flags"]
    own = (phases["track_id"] == steps["track_id"][0]) & ((flags & (PhaseFlag.BACKGROUND | PhaseFlag.NESTED)) == 0)
    own &= np.isin(phases["phase_code"], (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.UPDATE_SKIPPED))
    rows = phases.take(own).sort_by("begin_ns")
    at = window_at(rows["begin_ns"], steps["begin_ns"], steps["end_ns"])
    rows, at = rows.take(at >= 0), at[at >= 0]
    quiet = (rows["phase_code"] == Phase.FORWARD) & ((rows["phase_flags"] & PhaseFlag.NO_GRAD) != 0)
    by_step = GroupBy.numbered(at, len(steps))
    none = np.iinfo(np.int64).max
    trains_ns = by_step.min(rows["begin_ns"], where=~quiet, empty=none)
    leading = quiet & (rows["begin_ns"] < trains_ns[at])
    begin = by_step.min(rows["begin_ns"], where=leading, empty=0)
    end = np.zeros(len(steps), dtype=np.int64)
    np.maximum.at(end, at[leading], rows["end_ns"][leading])
    return np.asarray(end - begin)
