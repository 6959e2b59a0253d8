"""Which analyses a store can answer rank by rank, and how the parts become one table.

No analysis is written a second time: a part is the analysis itself on a trace of one rank, which knows from its store
what only all ranks together can tell. ``analyze`` runs the parts and calls ``joined``.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stashtrace.analysis.late.stragglers import LAST_RANKS, STRAGGLERS, alone_missing, last_counts
from stashtrace.analysis.stalls.budget import stall_totals
from stashtrace.schema.table import Table

Options = dict[str, Any]
#: Tables of each part, of the ranks that have any.
Parts = Sequence[Sequence[Table]]


@dataclass(frozen=True, slots=True)
class Plan:
    """How an analysis is divided.

    Attributes
    ----------
    parts : tuple of str
        Analyses, or ``module:function`` of the same form, to run on each rank.
    part_options : callable
        Options of the user -> those of the parts.
    joined : callable
        (parts of each analysis in order of ranks, all ranks, options of the user) -> result.
    """

    parts: tuple[str, ...]
    joined: Callable[[Parts, Sequence[int], Options], Table]
    part_options: Callable[[Options], Options] = dict


def _concatenated(parts: Parts, ranks: Sequence[int], options: Options) -> Table:
    """Rows of all ranks, rank by rank."""
    return Table.concat(parts[0][0].schema, parts[0])


def _stalls(parts: Parts, ranks: Sequence[int], options: Options) -> Table:
    """Sums over ranks that were summed over their steps."""
    return stall_totals(Table.concat(parts[0][0].schema, parts[0]), options["by"])


def _stragglers(parts: Parts, ranks: Sequence[int], options: Options) -> Table:
    """Times summed over the ranks that lost them; who was last is counted once per collective, among all ranks."""
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
    """How an analysis with these options is divided; None if it needs all ranks in one process."""
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

#: Analysis -> plan. What is not here needs all ranks in one process: ``stashtrace.load(store)``.
PLANS: dict[str, Plan] = {
    **{name: Plan((name,), _concatenated) for name in _PER_RANK},
    "stragglers": Plan(("stragglers", "stashtrace.analysis.late.stragglers:last_ranks"), _stragglers),
}
