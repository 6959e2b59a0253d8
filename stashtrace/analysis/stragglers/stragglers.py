"""stragglers: which rank the others wait for, by the exposed time of the budget."""

from __future__ import annotations

import numpy as np

from stashtrace.analysis.collectives.device_collectives import on_devices
from stashtrace.analysis.collectives.matching import match
from stashtrace.analysis.intervals import NEVER, Int64, TimeSet, int64
from stashtrace.analysis.stalls.budget import straggler_causes
from stashtrace.analysis.steps.steps import step_at_any
from stashtrace.errors import MissingDataError
from stashtrace.schema import columns as col
from stashtrace.schema.groupby import GroupBy, order_by
from stashtrace.schema.kinds import SYNCHRONISING_OPS
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

STRAGGLERS = col.schema(
    "stragglers",
    "Who is late, and what it costs the others",
    col.RANK,
    col.number("last_count", "collectives that this rank entered last, without messages"),
    col.ns("caused_wait_ns", "straggler time of the others while they waited for this rank, also for messages"),
    col.ns("wait_ns", "straggler time of this rank"),
    col.ns(
        "behind_second_ns",
        "this rank alone was missing: entry after the second latest, in steps, time once, without messages",
    ),
)
LAST_RANKS = col.schema(
    "last_ranks",
    "Who entered a collective last, one row per rank that took part",
    col.RANK,
    col.Column("group_hash", "u8", "", "same on every rank of the group", role="id"),
    col.number("sequence", "number within the group", detail=4),
    col.rank("last_rank", "the rank that was waited for"),
    col.number("step", "step in which this rank entered, -1 outside", missing=-1),
    col.moment("last_enter_ns", "entry of the last rank, -1 if it never entered", missing=-1),
    col.ns("wait_ns", "from the entry of this rank to that, -1 if it never entered", missing=-1),
    col.number("partial", "1 if a member's row is missing"),
)


def stragglers(trace: Trace) -> Table:
    """Count how often each rank is last, and what the others lose by it.

    ``caused_wait_ns`` and ``wait_ns`` are straggler stalls inside steps, warm-up included, without waits hidden behind
    compute. An operation has no last rank if ranks of different hosts entered within the error of ``alignment``.

    ``behind_second_ns`` is the time in which only this rank was missing: from the entry of the second latest rank of an
    operation to its own, in operations inside steps; a moment counts once however many operations wait. It is the most
    that the job gains if this rank alone is never late again, less where the others had other work meanwhile.
    Operations without a record of every member are not counted. Columns: table ``stragglers`` of
    ``docs/reference/tables.md``.

    Parameters
    ----------
    trace : Trace
        Needs steps and collectives.

    Raises
    ------
    MissingDataError
        If no rank has steps, or no collective was recorded.
    """
    if len(trace.collectives) == 0:
        raise MissingDataError("no collective was recorded", hint="run more than one rank with torch_distributed on")
    inside = straggler_causes(trace, warmup=True)
    inside = inside.take(inside["step"] >= 0)
    cause, length, victim = inside["cause_rank"], inside["stall_ns"], inside["rank"]
    waited = last_ranks(trace)
    last, alone = last_counts(waited), alone_missing(waited)
    ranks = np.unique(np.concatenate([trace.ranks, victim, cause[cause >= 0], last[last >= 0]]))

    def by_rank(rank: Int64) -> GroupBy:
        return GroupBy.numbered(np.where(rank >= 0, np.searchsorted(ranks, rank), -1), len(ranks))

    return Table(
        STRAGGLERS,
        {
            "rank": ranks,
            "last_count": by_rank(last).sizes,
            "caused_wait_ns": by_rank(cause).sum(length),
            "wait_ns": by_rank(victim).sum(length),
            "behind_second_ns": int64([alone.get(rank, 0) for rank in ranks.tolist()]),
        },
    )


def last_ranks(trace: Trace) -> Table:
    """Return the rank that entered last in each operation that needs its whole group; one row per participating rank.

    Entries on different hosts that are closer than the error of their clocks have no order, and no last rank: such
    operations have no rows. Columns: table ``last_ranks`` of ``docs/reference/tables.md``.
    """
    table, devices = trace.collectives, on_devices(trace)
    matched = devices.over(match(trace))
    rows = np.flatnonzero(np.isin(table["op_code"], SYNCHRONISING_OPS) & matched.by_clock & matched.ordered)
    rows = rows[order_by(table["group_hash"][rows], table["sequence"][rows])]
    own, last_enter = np.where(devices.timed, devices.enter_ns, table["call_ns"])[rows], matched.last_enter_ns[rows]
    never = last_enter >= NEVER
    return Table(
        LAST_RANKS,
        {
            **{name: table[name][rows] for name in ("rank", "group_hash", "sequence")},
            "last_rank": matched.last_rank[rows],
            "step": step_at_any(trace, table["rank"][rows], own),
            "last_enter_ns": np.where(never, -1, last_enter),
            "wait_ns": np.where(never, -1, np.maximum(last_enter - own, 0)),
            "partial": matched.partial[rows],
        },
    )


def last_counts(entries: Table) -> Int64:
    """Return the last rank of each operation of ``last_ranks``, once however many ranks waited for it."""
    # Records of ranks may differ; the lowest rank that waited decides, so the order of rows does not matter.
    waits = entries.take(entries["wait_ns"] != 0).sort_by("group_hash", "sequence", "rank", "last_rank")
    return int64(waits["last_rank"][GroupBy.runs(waits["group_hash"], waits["sequence"]).first])


def alone_missing(entries: Table) -> dict[int, int]:
    """Return the ns in which only one rank was missing, by rank, from ``last_ranks`` of all ranks; without zeros."""
    entries = entries.sort_by("group_hash", "sequence", "wait_ns", "rank", "last_rank", "last_enter_ns")
    operations = GroupBy.runs(entries["group_hash"], entries["sequence"])
    # Operations that a rank never entered, or with a missing row, are left out.
    whole = (entries["wait_ns"][operations.first] >= 0) & (operations.sum(entries["partial"]) == 0)
    second = operations.first[whole & (operations.sizes > 1)] + 1  # the last to enter stands first
    second = second[entries["step"][second] >= 0]
    gap, until = entries["wait_ns"][second], entries["last_enter_ns"][second]
    by_rank = GroupBy(entries["last_rank"][second])
    rows = by_rank.items()
    return {rank: TimeSet.of(until[at] - gap[at], until[at]).total_ns for rank, at in rows}
