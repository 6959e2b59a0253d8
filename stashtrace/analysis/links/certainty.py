"""How much of the link time of each rank is certain: after every rank of the operation had entered.

    rank 0     [ enter ............................. end ]      rank 1 left no record: it may have entered at any time
    rank 2             [ enter ..................... end ]      before the end
    link time          |---------- ranks_missing --------|

The bounds of ``stalls`` give the same by step; this table adds the reasons.
"""

from __future__ import annotations

import numpy as np

from stashtrace.analysis.collectives.device_collectives import with_untimed
from stashtrace.analysis.collectives.matching import group_table, ranks_present
from stashtrace.analysis.intervals import Int64, TimeSet, int64
from stashtrace.analysis.stalls.budget import rank_layers
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.analysis.steps.steps import counted_steps, ranks_and_steps
from stashtrace.analysis.steps.threads import StepThread
from stashtrace.schema import columns as col
from stashtrace.schema.groupby import GroupBy, RowsBy
from stashtrace.schema.kinds import SYNCHRONISING_OPS, StallKind
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

TRANSFER_CERTAINTY = col.schema(
    "transfer_certainty",
    "Link time of the counted steps of a rank, by whether every rank of the operation is known to have entered by then",
    col.RANK,
    col.word(
        "reason",
        "certain; ranks_missing, members_unknown, operation_unknown, matched_by_order, untimed or no_operation: part of"
        " it may be waiting for other ranks",
        width=24,
    ),
    col.ns("link_ns", "network and interconnect time of the rank in its counted steps; the reasons sum to it"),
    col.real("share_ratio", "of the link time of the rank"),
    col.number("collectives_count", "operations with a transfer in the counted steps that have this reason"),
)

CERTAIN = "certain"
#: Why a rank may have entered later than the known ones; the first reason that applies explains an instant.
REASONS = ("operation_unknown", "members_unknown", "ranks_missing", "untimed", "matched_by_order", CERTAIN)
NO_OPERATION = "no_operation"
_LINKS = (StallKind.NETWORK, StallKind.INTERCONNECT)


def transfer_certainty(trace: Trace, *, warmup: bool = False) -> Table:
    """Divide the link time of each rank by whether all ranks of the operation are known to have entered before.

    ``certain``: all had entered. ``ranks_missing``: members of the group left no record of this operation.
    ``members_unknown``: the members of the group are not recorded. ``operation_unknown``: it is unknown what the
    operation waits for (a kernel of sends and receives, an unknown root). ``untimed``: the device times of a rank are
    missing. ``matched_by_order``: its rows were matched by their order, and do not end together. ``no_operation``: a
    communication kernel whose operation is not in the trace. Columns: table ``transfer_certainty`` of
    ``docs/reference/tables.md``.

    Parameters
    ----------
    trace : Trace
        Needs steps.
    warmup : bool
        Whether the warm-up steps count.

    Raises
    ------
    MissingDataError
        If no rank has steps.
    """
    index = TraceIndex(trace)
    counted = counted_steps(index.steps, warmup=warmup)
    reason, by_rank = _reasons(index), RowsBy(counted["rank"])
    rows: list[tuple[object, ...]] = []
    for thread, _ in ranks_and_steps(index.origin, index.steps):
        steps = counted.take(by_rank.rows(thread.rank))
        rows += _of_rank(index, thread, TimeSet.of_rows(steps), reason)
    return Table.from_rows(TRANSFER_CERTAINTY, rows)


def _of_rank(index: TraceIndex, thread: StepThread, window: TimeSet, reason: Int64) -> list[tuple[object, ...]]:
    link = rank_layers(index, thread).time_of(*_LINKS) & window
    rows = index.collectives.rows(thread.process_id)
    matched = index.in_flight
    begin = np.maximum(matched.last_enter_ns[rows], index.entered_ns[rows])
    # An operation that never ended lasts as long as the rank; without the entry of a rank, it never transferred.
    end = np.minimum(matched.end_ns[rows], thread.end_ns)
    named: list[tuple[str, int, int]] = []
    for code, name in enumerate(REASONS):
        chosen = (reason[rows] == code) & (end > begin)
        if not chosen.any():
            continue
        moving = TimeSet.of(begin[chosen], end[chosen])
        spent = link & moving
        link = link - moving
        count = int(np.count_nonzero(window.within(begin[chosen], end[chosen]) > 0))
        named.append((name, spent.total_ns, count))
    named.append((NO_OPERATION, link.total_ns, 0))
    total = max(sum(ns for _, ns, _ in named), 1)
    return [(thread.rank, name, ns, ns / total, count) for name, ns, count in named if ns > 0]


def _reasons(index: TraceIndex) -> Int64:
    """Return the index in ``REASONS`` of each collective."""
    trace, table = index.trace, index.trace.collectives
    groups = group_table(trace)
    size = GroupBy(table["group_hash"]).map(lambda group: groups[group].size)
    unsaid = ~np.isin(table["op_code"], SYNCHRONISING_OPS)
    devices = index.on_devices
    unseen = devices.timed & with_untimed(trace, devices.given & ~devices.timed)
    why = [unsaid, size < 0, ranks_present(table) < size, unseen]
    partial = index.in_flight.partial
    code = np.select(why, range(len(why)), REASONS.index("matched_by_order"))
    return int64(np.where(partial, code, REASONS.index(CERTAIN)))
