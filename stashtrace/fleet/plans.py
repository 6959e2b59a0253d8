"""Analyses that run rank by rank on a store, and how their parts become one table.

No analysis is implemented twice: a part is the analysis itself on a trace of one rank, whose store also holds the facts
that need all ranks. ``analyze`` runs the parts and calls ``joined``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stashtrace.analysis.stalls.budget import stall_totals
from stashtrace.analysis.stragglers.stragglers import LAST_RANKS, STRAGGLERS, alone_missing, last_counts
from stashtrace.schema.table import Table

Options = dict[str, Any]
#: For each part, the tables of the ranks that have one.
Parts = Sequence[Sequence[Table]]


@dataclass(frozen=True, slots=True)
class Plan:
    """Division of an analysis into parts."""

    #: Analyses, or ``module:function`` with the same signature, to run on each rank.
    parts: tuple[str, ...]
    #: Maps (parts of each analysis in order of ranks, all ranks, options of the user) to the result.
    joined: Callable[[Parts, Sequence[int], Options], Table]
    #: Maps options of the user to those of the parts.
    part_options: Callable[[Options], Options] = dict


def _concatenate(parts: Parts, ranks: Sequence[int], options: Options) -> Table:
    """Return the rows of all ranks, rank by rank."""
    return Table.concat(parts[0][0].schema, parts[0])


def _stalls(parts: Parts, ranks: Sequence[int], options: Options) -> Table:
    """Sum parts over ranks that are already summed over their steps."""
    return stall_totals(Table.concat(parts[0][0].schema, parts[0]), options["by"])


def _stragglers(parts: Parts, ranks: Sequence[int], options: Options) -> Table:
    """Sum times over the ranks that lost them; count the last rank of each collective once, among all ranks."""
    found = Table.concat(STRAGGLERS, parts[0])
    waited = Table.concat(LAST_RANKS, parts[1])
    last, alone = last_counts(waited), alone_missing(waited)
    listed = np.unique(np.concatenate([np.asarray(ranks, dtype=np.int64), found["rank"], last[last >= 0]]))
    counts = np.bincount(np.searchsorted(listed, last[last >= 0]), minlength=len(listed))
    sums = {"rank": listed, "last_count": counts}
    for name in ("caused_wait_ns", "wait_ns"):
        total = np.zeros(len(listed), dtype=np.int64)
        np.add.at(total, np.searchsorted(listed, found["rank"]), found[name])
        sums[name] = total
    sums["behind_second_ns"] = np.array([alone.get(rank, 0) for rank in listed.tolist()], dtype=np.int64)
    return Table(STRAGGLERS, sums)


def plan_of(name: str, options: Options) -> Plan | None:
    """Return the plan of an analysis with these options; None if it needs all ranks in one process."""
    if name == "stalls" and options.get("by", "step") != "step":
        return Plan(("stashtrace.analysis.stalls.budget:stalls_counted",), _stalls, _without_by)
    return PLANS.get(name)


def _without_by(options: Options) -> Options:
    return {name: value for name, value in options.items() if name != "by"}


_PER_RANK = (
    "steps",
    "stalls",
    "straggler_causes",
    "hidden",
    "collectives",
    "stall_intervals",
    "breakdown",
    "idle",
    "launches",
    "copies",
)

#: Analysis -> plan. Other analyses need all ranks in one process: ``stashtrace.load(store)``.
PLANS: dict[str, Plan] = {
    **{name: Plan((name,), _concatenate) for name in _PER_RANK},
    "stragglers": Plan(("stragglers", "stashtrace.analysis.stragglers.stragglers:last_ranks"), _stragglers),
}
