"""Ranks whose loop spends much of its steps in calls on one file, which the budget has in several kinds of time."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Mapping

from stashtrace.analysis.findings.rules.stalls.policy import POLICY
from stashtrace.analysis.intervals import TimeSet
from stashtrace.analysis.stalls.batch_waits import batch_waits
from stashtrace.analysis.stalls.budget import rank_layers
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.analysis.steps.steps import ranks_and_steps
from stashtrace.analysis.stragglers.file_calls import OnFile, on_file
from stashtrace.schema.kinds import StallKind
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

#: Kinds with verdicts of their own. The first two name what blocked, also a file; of the last the cause is the file.
_BLOCKED, _RAN = (StallKind.FETCH, StallKind.OTHER), StallKind.PYTHON


def files_of_ranks(trace: Trace, steps: Table, kinds: Mapping[int, Mapping[str, int]]) -> dict[int, OnFile]:
    """Return what the loops of ranks do with a file, where that is a cause of its own.

    It is if the calls on it make up most of a kind of time that is worth a verdict, and either take clearly more than
    their part of that kind, or are mostly time in which the thread ran.

    ``trace``: needs steps. ``steps``: counted rows of ``steps``. ``kinds``: rank -> nanoseconds by kind over these
    steps.
    """
    index, found = TraceIndex(trace), dict[int, OnFile]()
    for thread, own in ranks_and_steps(index.origin, steps):
        wall_ns = int((own["end_ns"] - own["begin_ns"]).sum())
        spent = {kind: kinds.get(thread.rank, {}).get(kind.name.lower(), 0) for kind in (*_BLOCKED, _RAN)}
        if max(spent.values()) < POLICY.worth_saying_ratio * wall_ns:
            continue
        on = on_file(index, thread, own)
        if on is None or on.time.total_ns < POLICY.worth_saying_ratio * wall_ns:
            continue
        layers, inside = rank_layers(index, thread), TimeSet.of_rows(own)
        reads = (layers.time_of(StallKind.FETCH) & inside) - batch_waits(index, thread).time
        spent[StallKind.FETCH] = reads.total_ns  # waits for batches are no cause of the loop's own
        mostly = [
            kind
            for kind, ns in spent.items()
            if ns >= POLICY.worth_saying_ratio * wall_ns and on.parts_ns.get(kind, 0) >= POLICY.mostly_ratio * ns
        ]
        if not mostly:
            continue
        largest = max(mostly, key=lambda kind: on.parts_ns[kind])
        if largest == _RAN or on.time.total_ns > POLICY.clearly_ratio * on.parts_ns[largest]:
            found[thread.rank] = on
    return found
