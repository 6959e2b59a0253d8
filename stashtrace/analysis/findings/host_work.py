"""What a host did while its device had no work and nothing was launched: the rank's part of ``sync`` and ``launch``.

A blocking call may drain a device in each step of every rank. What makes the device stand idle is then what the host
does between the return of that call and its next launch.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stashtrace.analysis.findings.claim_rows import Evidence
from stashtrace.analysis.findings.unexplained_time import code_in
from stashtrace.analysis.intervals import TimeSet
from stashtrace.analysis.stalls.budget import rank_layers
from stashtrace.analysis.stalls.idle_calls import idle_calls
from stashtrace.analysis.stalls.on_host import outer_phase_rows
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.analysis.steps.steps import ranks_and_steps
from stashtrace.analysis.steps.threads import StepThread
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import Phase, StallKind
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

#: A phase is named if it holds at least this part of the time.
_WORTH_NAMING = 0.05


@dataclass(frozen=True, slots=True)
class HostWork:
    """Time in which a device waited for a host that was in no blocking call and had not launched the next work."""

    #: All of it in the counted steps, and the part that follows on a blocking call that drained the device.
    time_ns: int
    after_calls_ns: int
    #: What the host did then: annotations, files, garbage collection, phases.
    rows: list[Evidence]


def host_work(trace: Trace, rank: int, steps: Table, steps_count: int) -> HostWork | None:
    """Return what the host of a rank did while its device waited for it; None if it never did."""
    index = TraceIndex(trace)
    for thread, own in ranks_and_steps(index.origin, steps):
        if thread.rank != rank:
            continue
        made = rank_layers(index, thread)
        free = made.beside.get("host_elsewhere", TimeSet.empty()) & TimeSet.of_rows(own)
        after_calls, launching = (free & made.time_of(kind) for kind in (StallKind.SYNC, StallKind.LAUNCH))
        time = after_calls | launching
        if not len(time):
            return None
        rows = code_in(trace, thread, time, steps, steps_count) + _phases(index, thread, time, steps_count)
        return HostWork(time.total_ns, after_calls.total_ns, rows)
    return None


def calls_of_others(trace: Trace, rank: int, call: str, steps: Table, *, warmup: bool) -> list[Evidence]:
    """Return how often the median of the other ranks makes the same call in a step; nothing if none does."""
    table = idle_calls(trace, warmup=warmup)
    counts = GroupBy(steps["rank"])
    others = counts.values[counts.values != rank]
    made = [
        float(table["calls_count"][(table["rank"] == other) & (table["call"] == call)].sum()) / count
        for other, count in zip(others.tolist(), counts.sizes[counts.values != rank].tolist(), strict=True)
    ]
    if not any(made):
        return []
    return [
        Evidence(
            "calls_of_others",
            "idle_calls",
            rank=int(others[0]) if len(others) == 1 else -1,
            part_ratio=float(np.median(made)),
            kind=call,
        )
    ]


def _phases(index: TraceIndex, thread: StepThread, time: TimeSet, steps_count: int) -> list[Evidence]:
    """Return the phases of the step thread that hold most of a time; annotations may lie inside them."""
    phases, rows = index.trace.phases, outer_phase_rows(index, thread)
    codes = GroupBy(phases["phase_code"][rows])
    spent = codes.sum(time.within(phases["begin_ns"][rows], phases["end_ns"][rows]))
    found = [
        Evidence(
            "host_in_phase",
            "phases",
            rank=thread.rank,
            amount_ns=float(ns) / max(steps_count, 1),
            part_ratio=float(ns) / max(time.total_ns, 1),
            kind=Phase(code).name.lower(),
        )
        for code, ns in zip(codes.values.tolist(), spent.tolist(), strict=True)
        if ns >= _WORTH_NAMING * time.total_ns
    ]
    return sorted(found, key=lambda row: -row.amount_ns)[:1]
