"""What a step thread does in its own code: annotations, compilations, garbage collection.

``python_in`` is an annotation or a timed call, ``python_collects`` garbage collection; ``part_ratio`` is its part of
the time.

A row ``compiles`` says which function was compiled in ``items_count`` of ``steps_count`` steps; ``spent_ns`` is the
mean over all of them, ``kind`` is ``again`` if it had been compiled before each time. ``compile_reason`` is what had
changed at the last one, in torch's words.
"""

from __future__ import annotations

import re

import numpy as np

from stashtrace.analysis.findings.claim_rows import Evidence, Facts, fact
from stashtrace.analysis.findings.rules.policy import POLICY
from stashtrace.analysis.findings.stall_claims import step_words
from stashtrace.analysis.intervals import TimeSet, window_at
from stashtrace.analysis.stalls.budget import rank_layers
from stashtrace.analysis.stalls.on_host import time_of_spans
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.analysis.steps.steps import rank_and_steps, steps_on_host
from stashtrace.analysis.steps.threads import StepThread
from stashtrace.schema.groupby import GroupBy, order_by
from stashtrace.schema.kinds import NAMED_SPANS, OPERATORS, SpanKind, StallKind
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

#: Evidence that names the code of a time.
NAMED_CODE = ("python_in", "compiles")


def time_of_kind(trace: Trace, rank: int, steps: Table, kind: StallKind) -> tuple[StepThread, TimeSet] | None:
    """Return a rank's step thread, and its time of one kind in the given steps; None for a rank without steps."""
    index = TraceIndex(trace)
    known = rank_and_steps(index.origin, steps, rank)
    return known and (known[0], rank_layers(index, known[0]).time_of(kind) & TimeSet.of_rows(known[1]))


def code_in(trace: Trace, thread: StepThread, time: TimeSet, steps: Table, steps_count: int) -> list[Evidence]:
    """Return what is known of the code that a step thread ran in a time: compilations, annotations, garbage."""
    index = TraceIndex(trace)
    compiling = time_of_spans(index, thread, SpanKind.COMPILE)
    rows = _compilations_in(trace, thread, compiling & time, steps, time.total_ns)
    rows += annotations_in(trace, thread, time, steps, compiling)
    collected = ((time_of_spans(index, thread, SpanKind.GC) & time) - compiling).total_ns
    if collected >= POLICY.part_ratio * time.total_ns:
        facts = Facts(rank=thread.rank, spent_ns=collected / max(steps_count, 1))
        part = collected / max(time.total_ns, 1)
        said = "{spent_ns:time}{a_step} of it is garbage collection"
        rows.append(fact("python_collects", said, "spans", phrases=step_words(trace), part_ratio=part, **facts))
    return rows


def annotations_in(
    trace: Trace, thread: StepThread, time: TimeSet, steps: Table, apart: TimeSet | None = None
) -> list[Evidence]:
    """Return the annotations, and timed calls, of the step thread that hold most of a time, inner ones first.

    One around whole steps says nothing of any part of them, and is left out. ``apart``: time that has names already.
    """
    in_steps = TimeSet.of_rows(steps, steps["rank"] == thread.rank)
    steps_count = int(np.count_nonzero(steps["rank"] == thread.rank))
    spans = trace.spans
    mine = (spans["track_id"] == thread.track_id) & np.isin(spans["kind_code"], NAMED_SPANS)
    table = spans.take(mine & (spans["name_code"] != trace.strings.find(OPERATORS)))
    rows: list[Evidence] = []
    names = GroupBy(table["name_code"])
    within, shortest = dict[int, TimeSet](), dict[int, int]()
    for code, rows_of_name in names.items():
        spent = TimeSet.of_rows(table, rows_of_name)
        if (spent & in_steps).total_ns < POLICY.whole_ratio * in_steps.total_ns:
            within[code] = spent & time
            shortest[code] = int(np.median((table["end_ns"] - table["begin_ns"])[rows_of_name]))
    left = time if apart is None else time - apart
    for code in sorted(within, key=lambda code: shortest[code]):
        spent = within[code] & left
        left -= spent
        if spent.total_ns >= POLICY.part_ratio * time.total_ns:
            known = Facts(rank=thread.rank, spent_ns=spent.total_ns / max(steps_count, 1), name=trace.text(code))
            part, said = spent.total_ns / max(time.total_ns, 1), "{spent_ns:time}{a_step} in {name}"
            rows.append(fact("python_in", said, "spans", phrases=step_words(trace), part_ratio=part, **known))
    return sorted(rows, key=lambda row: -row["spent_ns"])[: POLICY.names_count]


#: torch's words for a guard on a shape that failed.
_OF_SHAPES = re.compile(r"size mismatch|\.size\(|_shape")


def _compilations_in(trace: Trace, thread: StepThread, time: TimeSet, steps: Table, whole_ns: int) -> list[Evidence]:
    """Return what torch.compile compiled on a step thread in a time, the function that took longest first.

    ``whole_ns``: what the shares are of.
    """
    spans = trace.spans.take(TraceIndex(trace).spans.rows(thread.track_id))
    compiled = spans.take(spans["kind_code"] == SpanKind.COMPILE)
    spent = time.within(compiled["begin_ns"], compiled["end_ns"])
    own_steps = steps_on_host(trace, steps, thread.rank)
    at = window_at(compiled["begin_ns"], own_steps["begin_ns"], own_steps["end_ns"])
    chosen = (spent > 0) & (at >= 0)
    if not chosen.any():
        return []
    compiled, spent, at = compiled.take(chosen), spent[chosen], at[chosen]
    names, rows = GroupBy(compiled["name_code"]), list[Evidence]()
    sums = names.sum(spent)
    for place in order_by(-sums, names.values)[: POLICY.names_count].tolist():
        spent_ns, mine = float(sums[place]), np.flatnonzero(names.number == place)
        if spent_ns < POLICY.part_ratio * whole_ns:
            continue
        count, again = len(np.unique(at[mine])), bool((compiled["value"][mine] > 0).all())
        said = (
            f"{{name}} compiles{' again' if again else ''} in {{items_count}} of {{steps_count:step}}, {{each_ns:time}}"
            " each time"
        )
        facts = Facts(spent_ns=spent_ns / len(own_steps), part_ratio=spent_ns / max(whole_ns, 1), items_count=count)
        facts |= Facts(steps_count=len(own_steps), each_ns=spent_ns / max(count, 1), kind="again" if again else "")
        facts |= Facts(rank=thread.rank, name=trace.text(int(names.values[place])))
        reason = _reason(trace, spans, compiled.take(mine))
        rows.append(fact("compiles", said, "spans", **facts))
        if reason:
            avoid = "; torch._dynamo.mark_dynamic, dynamic=True, or inputs padded to few sizes would avoid it"
            said = f"{{name}}{avoid if _OF_SHAPES.search(reason) else ''}"
            rows.append(fact("compile_reason", said, "spans", rank=thread.rank, part_ratio=0.0, name=reason))
    return rows


def _reason(trace: Trace, spans: Table, compiled: Table) -> str:
    reasons = spans.take(spans["kind_code"] == SpanKind.COMPILE_REASON)
    reasons = reasons.take(np.isin(reasons["begin_ns"], compiled["begin_ns"])).sort_by("begin_ns")
    return trace.text(int(reasons["name_code"][-1])) if len(reasons) else ""
