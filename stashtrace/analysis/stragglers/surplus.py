"""Time of each kind that a rank takes longer than its peers, as a mean per step, also on the host.

    peers   |-- compute --|.. straggler ..|- link -|       surplus of the late rank: launch + 4, straggler - 4,
    late    |-- compute --|--- launch ----|- link -|       all others 0

``late`` and ``follow_waits`` compare windows before single operations; this compares whole steps, for a figure that a
reader can check against the budgets of the ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.analysis.steps.threads import step_threads
from stashtrace.analysis.stragglers.causes import BEFORE, CAUSES, COMPARED, queue_per_work, rank_times, with_queue
from stashtrace.schema.stall_kinds import COLUMNS
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

#: Column of the summary, or kind of time of ``late`` that has none -> its kinds of time of ``late``; each kind is in
#: one group.
GROUPS: dict[str, tuple[str, ...]] = {
    **{column: tuple(k for k in kinds if k != "python") for column, kinds in COLUMNS.items() if column != "other"},
    **{kind: (kind,) for kind in ("python", "gc", "compile", "sleep", "cpu_contention", "other")},
}
GROUP_OF = {kind: group for group, kinds in GROUPS.items() for kind in kinds}


def surplus_over_peers(trace: Trace, steps: Table, rank: int, peers: Sequence[int]) -> dict[str, float]:
    """Return by how much a rank does each kind of time longer than the median of its peers, as a mean over its steps.

    ``trace``: needs steps of the rank. ``steps``: the steps to compare, rows of ``steps``. ``rank``: global rank.
    ``peers``: ranks to compare with, of which at most 15 are taken, spread evenly. A step without one of them is left
    out. Returns kind (names of ``late``'s ``cause_kind``) -> ns a step; empty if the ranks have no step in common.
    """
    by_step = surplus_by_step(trace, compared_steps(trace, steps, rank, peers))
    return {kind: float(longer.mean()) for kind, longer in by_step.items()}


def surplus_by_step(trace: Trace, compared: dict[int, Table]) -> dict[str, npt.NDArray[np.float64]]:
    """Return by how much a rank does each kind of time longer than the median of its peers, in each step.

    ``compared``: what ``compared_steps`` returns. Returns kind, as ``surplus_over_peers`` does -> ns in each of the
    steps; empty if there are none.
    """
    if not compared:
        return {}
    index = TraceIndex(trace)
    threads = {thread.rank: thread for thread in step_threads(trace)}
    spent = [rank_times(index, threads[one]).within(own["begin_ns"], own["end_ns"]) for one, own in compared.items()]
    typical = np.median(np.stack(spent[1:]), axis=0)
    longer = spent[0] - typical
    # In single steps waits for a CPU are as chance has it: how long they are for each piece of work, the means say.
    longer = with_queue(longer, queue_per_work(longer.mean(axis=0), typical.mean(axis=0)))
    return {kind: longer[:, n] for n, kind in enumerate(CAUSES) if n != BEFORE}


def compared_steps(trace: Trace, steps: Table, rank: int, peers: Sequence[int]) -> dict[int, Table]:
    """Return the steps that a rank and the peers that it is compared with all have, the rank first; empty if none."""
    known_ranks = {thread.rank for thread in step_threads(trace)}
    known = [peer for peer in peers if peer in known_ranks and peer != rank]
    if rank not in known_ranks or not known:
        return {}
    places = np.unique(np.linspace(0, len(known) - 1, min(COMPARED, len(known))).astype(np.int64))
    tables = {one: steps.take(steps["rank"] == one) for one in (rank, *(known[place] for place in places.tolist()))}
    common = reduce(np.intersect1d, (table["step"] for table in tables.values()))
    if not len(common):
        return {}
    return {one: own.take(np.isin(own["step"], common)).sort_by("step") for one, own in tables.items()}
