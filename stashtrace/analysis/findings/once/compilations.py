"""Compilations of torch.compile in the steps: of which function, in how many steps, and why again."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np

from stashtrace.analysis.findings.claim_rows import Evidence
from stashtrace.analysis.intervals import TimeSet, window_at
from stashtrace.analysis.stalls.on_host import compilation_time
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.analysis.steps.steps import host_steps
from stashtrace.analysis.steps.threads import StepThread, step_threads
from stashtrace.schema.groupby import GroupBy, order_by
from stashtrace.schema.kinds import SpanKind
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

#: Functions that are named, each with at least this part of the time.
_FEW, _WORTH_NAMING = 2, 0.05


def compilations_of(trace: Trace, rank: int, steps: Table) -> list[Evidence]:
    """Return the compilations of a rank in its steps; nothing for a rank without any."""
    index = TraceIndex(trace)
    for thread in step_threads(trace):
        if thread.rank == rank:
            time = compilation_time(index, thread)
            return compilations_in(trace, thread, time, steps, time.total_ns)
    return []


def compilations_in(trace: Trace, thread: StepThread, time: TimeSet, steps: Table, whole_ns: int) -> list[Evidence]:
    """Return what torch.compile compiled on a step thread in a time, the function that took longest first.

    A row ``compile_reason`` follows a function that was compiled before: what had changed, by the last compilation.
    ``whole_ns``: what the shares are of.
    """
    spans = trace.spans.take(TraceIndex(trace).spans.rows(thread.track_id))
    compiled = spans.take(spans["kind_code"] == SpanKind.COMPILE)
    spent = time.within(compiled["begin_ns"], compiled["end_ns"])
    own = _on_host(trace, steps, thread.rank)
    at = window_at(compiled["begin_ns"], own["begin_ns"], own["end_ns"])
    chosen = (spent > 0) & (at >= 0)
    if not chosen.any():
        return []
    compiled, spent, at = compiled.take(chosen), spent[chosen], at[chosen]
    names, rows = GroupBy(compiled["name_code"]), list[Evidence]()
    sums = names.sum(spent)
    for place in order_by(-sums, names.values)[:_FEW].tolist():
        if sums[place] < _WORTH_NAMING * whole_ns:
            continue
        mine = np.flatnonzero(names.number == place)
        rows.append(
            Evidence(
                "compiles",
                "spans",
                rank=thread.rank,
                amount_ns=float(sums[place]) / len(own),
                part_ratio=float(sums[place]) / max(whole_ns, 1),
                items_count=len(np.unique(at[mine])),
                of_count=len(own),
                kind="again" if (compiled["value"][mine] > 0).all() else "",
                name=trace.text(int(names.values[place])),
            )
        )
        reason = _reason(trace, spans, compiled.take(mine))
        if reason:
            rows.append(Evidence("compile_reason", "spans", rank=thread.rank, part_ratio=0.0, name=reason))
    return rows


def _on_host(trace: Trace, steps: Table, rank: int) -> Table:
    """Return a rank's steps by the clock of its host, which stamps compilations."""
    host = host_steps(trace)
    wanted = steps["step"][steps["rank"] == rank]
    return host.take((host["rank"] == rank) & np.isin(host["step"], wanted)).sort_by("begin_ns")


def _reason(trace: Trace, spans: Table, compiled: Table) -> str:
    reasons = spans.take(spans["kind_code"] == SpanKind.COMPILE_REASON)
    reasons = reasons.take(np.isin(reasons["begin_ns"], compiled["begin_ns"])).sort_by("begin_ns")
    return trace.text(int(reasons["name_code"][-1])) if len(reasons) else ""
