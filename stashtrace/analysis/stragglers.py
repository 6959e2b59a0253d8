"""stragglers: which rank the others wait for, by the exposed time of the budget."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np

from stashtrace.analysis.device_matching import on_devices
from stashtrace.analysis.matching import match
from stashtrace.analysis.methods import rank_layers
from stashtrace.analysis.steps import ranks_and_steps
from stashtrace.analysis.steps import steps as find_steps
from stashtrace.analysis.timeset import Int64, TimeSet, int64
from stashtrace.analysis.trace_index import TraceIndex
from stashtrace.errors import MissingDataError
from stashtrace.model.kinds import SYNCHRONISING_OPS
from stashtrace.model.schemas import LAST_RANKS, STRAGGLERS
from stashtrace.model.table import Table
from stashtrace.model.trace import Trace


def stragglers(trace: Trace) -> Table:
    """Count how often each rank is last, and what the others lose by it.

    Times are straggler stalls inside steps, warm-up included; waiting that was hidden behind compute is not in them.
    Who was last is not counted where ranks of different hosts entered closer together than ``alignment`` can tell.

    Parameters
    ----------
    trace : Trace
        Needs steps and collectives.

    Columns
    -------
    rank, last_count, caused_wait_ns, wait_ns

    Raises
    ------
    MissingDataError
        If no rank has steps, or no collective was recorded.
    """
    if len(trace.collectives) == 0:
        raise MissingDataError("no collective was recorded", hint="run more than one rank with torch_distributed on")
    index = TraceIndex(trace)
    causes, lengths, victims = [], [], []
    for thread, own in ranks_and_steps(trace, find_steps(trace)):
        late = rank_layers(index, thread).late
        inside = TimeSet.of(own["begin_ns"], own["end_ns"]).within(late.begin, late.end)
        causes.append(late.tag)
        lengths.append(inside)
        victims.append(np.full(len(inside), thread.rank))
    cause, length, victim = (int64(np.concatenate([int64([]), *c])) for c in (causes, lengths, victims))
    last = last_counts(last_ranks(trace))
    ranks = np.unique(np.concatenate([trace.ranks, victim, cause[cause >= 0], last[last >= 0]]))
    return Table(
        STRAGGLERS,
        {
            "rank": ranks,
            "last_count": _per_rank(ranks, last, np.ones(len(last), dtype=np.int64)),
            "caused_wait_ns": _per_rank(ranks, cause, length),
            "wait_ns": _per_rank(ranks, victim, length),
        },
    )


def _per_rank(ranks: Int64, rank: Int64, value: Int64) -> Int64:
    out = np.zeros(len(ranks), dtype=np.int64)
    known = rank >= 0
    np.add.at(out, np.searchsorted(ranks, rank[known]), value[known])
    return out


def last_ranks(trace: Trace) -> Table:
    """Who entered last, of each operation that needs all of its group and for which this row's rank had to wait.

    Entries on different hosts that are closer than the error of their clocks have no order, and no last rank.

    Columns
    -------
    rank, group_hash, sequence, last_rank
    """
    table, matched, devices = trace.collectives, match(trace), on_devices(trace)
    timed, there = devices.timed, devices.matched
    own = np.where(timed, devices.enter_ns, table["call_ns"])
    last_enter = np.where(timed, there.last_enter_ns, matched.last_enter_ns)
    last_rank = np.where(timed, there.last_rank, matched.last_rank)
    by_clock = np.where(timed, there.by_clock, matched.by_clock)
    ordered = np.where(timed, there.ordered, matched.ordered)
    rows = np.flatnonzero(np.isin(table["op_code"], SYNCHRONISING_OPS) & by_clock & ordered & (last_enter > own))
    order = rows[np.lexsort((table["sequence"][rows], table["group_hash"][rows]))]
    columns = {name: table[name][order] for name in ("rank", "group_hash", "sequence")}
    return Table(LAST_RANKS, {**columns, "last_rank": last_rank[order]})


def last_counts(found: Table) -> Int64:
    """The last rank of each operation of ``last_ranks``, once however many waited for it."""
    # Ranks may differ in what they saw; the lowest is believed, in whatever order the rows came.
    found = found.sort_by("group_hash", "sequence", "rank", "last_rank")
    group, sequence = found["group_hash"], found["sequence"]
    new = np.ones(len(found), dtype=bool)
    new[1:] = (group[1:] != group[:-1]) | (sequence[1:] != sequence[:-1])
    return int64(found["last_rank"][new])
