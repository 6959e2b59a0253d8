"""What a late rank does longer than a rank that waits for it: mean per step of every kind of time, also on the host.

    victim  |-- compute --|.. straggler ..|- link -|       surplus of late: launch + 4, straggler - 4, all others 0
    late    |-- compute --|--- launch ----|- link -|       4 is at least a quarter of what victim waited for late: why

``late`` compares windows of single operations; this compares whole budgets, for a verdict on a run.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stashtrace.analysis.intervals import Int64
from stashtrace.analysis.late.causes import BEFORE, CAUSES, rank_times
from stashtrace.analysis.stalls.index import TraceIndex
from stashtrace.analysis.steps.threads import step_threads
from stashtrace.errors import MissingDataError
from stashtrace.schema.stall_kinds import COLUMNS
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

#: Column of the summary, or kind of time of ``late`` that has none -> its kinds of time of ``late``; each kind is in
#: one group.
GROUPS: dict[str, tuple[str, ...]] = {
    **{column: kinds for column, kinds in COLUMNS.items() if column != "other"},
    **{kind: (kind,) for kind in ("gc", "sleep", "cpu_contention", "other")},
}
#: A surplus explains a wait if it is at least this share of it.
EXPLAINS_RATIO = 0.25


@dataclass(frozen=True, slots=True)
class LateSurplus:
    """Means per step, over the steps that both ranks have.

    Attributes
    ----------
    victim, late
        Ranks.
    steps_count
        Steps compared.
    wait_ns
        Straggler time of the victim in which it waited for the late rank.
    surplus_ns
        Kind of time (names of ``late``'s ``cause_kind``) -> time of the late rank minus that of the victim. The values
        sum to the difference in length of the steps.
    begins_later_ns
        How much later the late rank begins a step; median.
    """

    victim: int
    late: int
    steps_count: int
    wait_ns: float
    surplus_ns: dict[str, float]
    begins_later_ns: float

    def of(self, group: str) -> float:
        """Return the surplus of one of :data:`GROUPS` in ns."""
        return sum(self.surplus_ns[kind] for kind in GROUPS[group])

    @property
    def largest(self) -> str:
        """The group with the largest surplus, whether it explains the wait or not."""
        return max(GROUPS, key=self.of)

    @property
    def explains(self) -> str:
        """The group with the largest surplus, if that is at least a quarter of the wait; else empty."""
        most = self.of(self.largest)
        return self.largest if most > 0 and most >= EXPLAINS_RATIO * self.wait_ns else ""

    @property
    def kind(self) -> str:
        """The largest kind of the group that explains the wait, empty if none does."""
        return max(GROUPS[self.explains], key=lambda kind: self.surplus_ns[kind]) if self.explains else ""


def late_surplus(trace: Trace, causes: Table, steps: Table, victim: int, late: int) -> LateSurplus | None:
    """Compare the budgets of a rank that waits and of the one that it waits for.

    The work of the late rank *while* the other waits would mislead: a rank that waited for its batch computes then, as
    all ranks do. Over whole steps, time that all ranks have alike cancels out.

    Parameters
    ----------
    trace : Trace
        Needs steps of both ranks.
    causes : Table
        ``straggler_causes`` of the trace.
    steps : Table
        The steps to compare, rows of ``steps``; those that one of the ranks lacks are left out.
    victim, late : int
        Global ranks.

    Returns
    -------
    LateSurplus or None
        None if the ranks have no step in common.
    """
    own, other = (steps.take(steps["rank"] == rank) for rank in (late, victim))
    common, at_own, at_other = np.intersect1d(own["step"], other["step"], return_indices=True)
    if not len(common):
        return None
    index = TraceIndex(trace)
    try:
        threads = {thread.rank: thread for thread in step_threads(trace)}
    except MissingDataError:
        return None
    if late not in threads or victim not in threads:
        return None
    spent: list[Int64] = []
    for rank, table, at in ((late, own, at_own), (victim, other, at_other)):
        windows = table["begin_ns"][at], table["end_ns"][at]
        spent.append(rank_times(index, threads[rank]).within(*windows).sum(axis=0))
    waited = (causes["rank"] == victim) & (causes["cause_rank"] == late) & np.isin(causes["step"], common)
    count = len(common)
    return LateSurplus(
        victim,
        late,
        count,
        float(causes["stall_ns"][waited].sum()) / count,
        {kind: float(spent[0][n] - spent[1][n]) / count for n, kind in enumerate(CAUSES) if n != BEFORE},
        float(np.median(own["begin_ns"][at_own] - other["begin_ns"][at_other])),
    )
