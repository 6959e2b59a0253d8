"""Compilations of torch.compile in the steps, as evidence of a verdict.

A row ``compiles`` says which function was compiled in ``items_count`` of ``steps_count`` steps; ``spent_ns`` is the
mean over all of them, ``kind`` is ``again`` if it had been compiled before each time. ``compile_reason`` is what had
changed at the last one, in torch's words.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re

import numpy as np

from stashtrace.analysis.findings.claim_rows import Evidence, Facts, fact
from stashtrace.analysis.findings.rules.policy import POLICY
from stashtrace.analysis.intervals import TimeSet, window_at
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.analysis.steps.steps import host_steps
from stashtrace.analysis.steps.threads import StepThread
from stashtrace.schema.groupby import GroupBy, order_by
from stashtrace.schema.kinds import SpanKind
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

#: torch's words for a guard on a shape that failed.
_OF_SHAPES = re.compile(r"size mismatch|\.size\(|_shape")


def compilations_in(trace: Trace, thread: StepThread, time: TimeSet, steps: Table, whole_ns: int) -> list[Evidence]:
    """Return what torch.compile compiled on a step thread in a time, the function that took longest first.

    ``whole_ns``: what the shares are of.
    """
    spans = trace.spans.take(TraceIndex(trace).spans.rows(thread.track_id))
    compiled = spans.take(spans["kind_code"] == SpanKind.COMPILE)
    spent = time.within(compiled["begin_ns"], compiled["end_ns"])
    own_steps = _on_host(trace, steps, thread.rank)
    at = window_at(compiled["begin_ns"], own_steps["begin_ns"], own_steps["end_ns"])
    chosen = (spent > 0) & (at >= 0)
    if not chosen.any():
        return []
    compiled, spent, at = compiled.take(chosen), spent[chosen], at[chosen]
    names, rows = GroupBy(compiled["name_code"]), list[Evidence]()
    sums = names.sum(spent)
    for place in order_by(-sums, names.values)[: POLICY.compilations_named_count].tolist():
        spent_ns, mine = float(sums[place]), np.flatnonzero(names.number == place)
        if spent_ns < POLICY.compilation_ratio * whole_ns:
            continue
        count, again = len(np.unique(at[mine])), bool((compiled["value"][mine] > 0).all())
        said = (
            f"{{name}} compiles{' again' if again else ''} in {{items_count}} of {{steps_count:step}}, {{each_ns:time}}"
            " each time"
        )
        own = Facts(spent_ns=spent_ns / len(own_steps), part_ratio=spent_ns / max(whole_ns, 1), items_count=count)
        own |= Facts(steps_count=len(own_steps), each_ns=spent_ns / max(count, 1), kind="again" if again else "")
        own |= Facts(rank=thread.rank, name=trace.text(int(names.values[place])))
        reason = _reason(trace, spans, compiled.take(mine))
        rows.append(fact("compiles", said, "spans", **own))
        if reason:
            avoid = "; torch._dynamo.mark_dynamic, dynamic=True, or inputs padded to few sizes would avoid it"
            said = f"{{name}}{avoid if _OF_SHAPES.search(reason) else ''}"
            rows.append(fact("compile_reason", said, "spans", rank=thread.rank, part_ratio=0.0, name=reason))
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
