"""What each rank did from its begin to its first counted step, which no figure of a step contains.

``start`` is said where it took longer than all counted steps: ``stall_ns`` of the rank that did most itself. A row
``start_part`` has the time in a part, as in the analysis ``start``; ``counted_steps_count`` are those of that rank.

process begins   import torch   init_process_group   first batch   warm-up     | first counted step
|....|-----------|..............|--------------------|-------------|-----------|
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stashtrace.analysis.collectives.matching import is_imported
from stashtrace.analysis.findings.claim_rows import Claim, Facts, claim, fact
from stashtrace.analysis.findings.rules.policy import POLICY
from stashtrace.analysis.intervals import NEVER, TimeSet
from stashtrace.analysis.stalls.batch_waits import batch_waits
from stashtrace.analysis.stalls.on_host import CHECKPOINT_PHASES, host_blocked, outer_phase_rows
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.analysis.steps.steps import counted_steps, host_steps
from stashtrace.analysis.steps.threads import StepThread, step_threads
from stashtrace.analysis.steps.window import window_of
from stashtrace.schema import columns as col
from stashtrace.schema.columns import RANK, schema
from stashtrace.schema.groupby import GroupBy, order_by
from stashtrace.schema.kinds import SpanKind
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace, run_facts

START = schema(
    "start",
    "What each rank did from its begin to its first counted step; the rows of a rank add up to that time",
    RANK,
    col.word(
        "part",
        "waits (for other ranks, and transfers), batches, compile, call, checkpoint, steps (those left out) or script",
        width=12,
    ),
    col.word("name", "of a call or a compilation: what, and where the script makes it; else empty"),
    col.ns("spent_ns", "time in it"),
    col.real("share_ratio", "of the start of this rank"),
)
#: Part of a start -> its words; calls and compilations are worded apart.
_WORDS = {
    "waits": "{amount_ns:time} waiting for other ranks",
    "batches": "{amount_ns:time} waiting for the first batches",
    "checkpoint": "{amount_ns:time} in checkpoints",
    "steps": "{amount_ns:time} in the steps that are left out",
}
_WAITS, _SCRIPT, _STEPS = "waits", "script", "steps"
Part = tuple[str, str, int]


def start(trace: Trace) -> Table:
    """List what each rank did from its begin to its first counted step.

    Where parts overlap, the first of these counts: waits for other ranks, waits for batches, compilations, calls of
    torch that were timed, checkpoints, the steps that are left out as warm-up, and the script for all the rest. What a
    rank takes longer than the quickest one in a call in which all ranks meet, it waits there for the last one. Columns:
    table ``start`` of ``docs/reference/tables.md``.

    Parameters
    ----------
    trace : Trace
        Needs steps. Recordings of other tools, and those of some steps alone, do not hold the start: no rows.

    Raises
    ------
    MissingDataError
        If no rank has steps.
    """
    index, rows = TraceIndex(trace), list[tuple[object, ...]]()
    lives = _starts(trace)
    meetings = _meetings(trace)
    divided = [list(_divide(index, thread, life)) for thread, life in lives]
    for name in meetings:
        least_ns = min((sum(ns for _, one, ns in parts if one == name) for parts in divided), default=0)
        divided = [_without_waiting(parts, name, least_ns) for parts in divided]
    for (thread, life), parts in zip(lives, divided, strict=True):
        rows += [(thread.rank, part, name, ns, ns / life.total_ns) for part, name, ns in parts]
    return Table.from_rows(START, rows)


def _starts(trace: Trace) -> list[tuple[StepThread, TimeSet]]:
    """Return the time of each rank from its begin to its first counted step; of no rank if the start was not recorded.

    Raises MissingDataError if no rank has steps.
    """
    counted, window = counted_steps(host_steps(trace)), window_of(trace)
    if is_imported(trace) or run_facts(trace).get("steps") or (window is not None and window.first_step > 0):
        return []
    begins = trace.processes.lookup("process_id", "begin_ns")
    ranks = GroupBy(counted["rank"])
    firsts = dict(zip(ranks.values.tolist(), ranks.min(counted["begin_ns"]).tolist(), strict=True))
    lives = ((t, begins[t.process_id], firsts[t.rank]) for t in step_threads(trace) if t.rank in firsts)
    return [(thread, TimeSet.of([begin], [first])) for thread, begin, first in lives if begin < first]


def _meetings(trace: Trace) -> list[str]:
    """Return the names of the timed calls in which all ranks meet."""
    spans = trace.spans
    meets = (spans["kind_code"] == SpanKind.OBJECTS) | (
        (spans["kind_code"] == SpanKind.LIBRARY) & (spans["value"] == 1)
    )
    return [trace.text(code) for code in np.unique(spans["name_code"][meets]).tolist()]


def _without_waiting(parts: list[Part], name: str, least_ns: int) -> list[Part]:
    """Return the parts of a start with what a call takes longer than on the quickest rank as waiting."""
    waited = sum(ns for _, one, ns in parts if one == name) - least_ns
    if waited <= 0:
        return parts
    waits = sum(ns for part, _, ns in parts if part == _WAITS) + waited
    rest = [one for one in parts if one[0] != _WAITS and one[1] != name]
    return [(_WAITS, "", waits), *([("call", name, least_ns)] if least_ns else []), *rest]


def start_claims(trace: Trace) -> list[Claim]:
    """Return a claim about a start that took longer than all counted steps together, with what most of it went to.

    It is that of the rank that did most itself: others wait for it, also inside the steps that are left out.
    """
    steps = counted_steps(host_steps(trace))
    longest_ns = max((life.total_ns for _, life in _starts(trace)), default=0)
    of_ranks = GroupBy(steps["rank"])
    if longest_ns <= of_ranks.sum(steps["end_ns"] - steps["begin_ns"]).min(initial=NEVER):
        return []  # no rank can have started for longer, whatever its start is made of
    table = start(trace)
    if not len(table):
        return []
    ranks = GroupBy(table["rank"])
    whole_ns = ranks.sum(table["spent_ns"])
    own_ns = whole_ns - ranks.sum(np.where(np.isin(table["part"], (_WAITS, _STEPS)), table["spent_ns"], 0))
    at = int(own_ns.argmax())
    rank = int(ranks.values[at])
    mine = steps.take(steps["rank"] == rank)
    counted_ns = int((mine["end_ns"] - mine["begin_ns"]).sum())
    if whole_ns[at] <= counted_ns:
        return []
    spent = table.take((table["rank"] == rank) & (table["part"] != _SCRIPT))
    order = order_by(-spent["spent_ns"], np.arange(len(spent)))[: POLICY.named_count]
    parts = []
    for row in spent.take(order).rows():
        if row["share_ratio"] >= POLICY.part_ratio:
            said = _WORDS.get(row["part"], "{amount_ns:time} in {name:short}")
            facts = Facts(rank=rank, amount_ns=row["spent_ns"], kind=row["part"], name=row["name"])
            parts.append(fact("start_part", said, "start", **facts))
    several = len(ranks) > 1
    said = (
        f"the start{' of rank {rank}' if several else ''} took {{stall_ns:time}} up to the first counted step, and"
        f" {'all {counted_steps_count:counted step}' if len(mine) > 1 else 'that step'} {{counted_steps_ns:time}}"
        f"{': {parts}' if parts else ''}"
    )
    facts = Facts(rank=rank if several else -1, stall_ns=float(whole_ns[at]))
    facts |= Facts(counted_steps_count=len(mine), counted_steps_ns=counted_ns)
    return [claim("machine", "start", said, parts=parts, **facts)]


def _divide(index: TraceIndex, thread: StepThread, life: TimeSet) -> Iterator[Part]:
    """Yield part, name and time of what a rank did in a time, each moment once."""
    left = life
    for part, name, time in _parts(index, thread):
        spent = left & time
        left -= spent
        if spent.total_ns > 0:
            yield part, name, spent.total_ns
    if left.total_ns > 0:
        yield _SCRIPT, "", left.total_ns


def _parts(index: TraceIndex, thread: StepThread) -> Iterator[tuple[str, str, TimeSet]]:
    phases, rows = index.trace.phases, index.phases.rows(thread.track_id)
    saves = rows[np.isin(phases["phase_code"][rows], CHECKPOINT_PHASES)]
    yield _WAITS, "", host_blocked(index, thread).time
    yield "batches", "", batch_waits(index, thread).time
    yield from _named(index, thread, SpanKind.COMPILE, "compile")
    yield from _named(index, thread, SpanKind.LIBRARY, "call")
    yield from _named(index, thread, SpanKind.OBJECTS, "call")
    yield "checkpoint", "", TimeSet.of_rows(phases, saves)
    yield _STEPS, "", TimeSet.of_rows(phases, outer_phase_rows(index, thread))


def _named(index: TraceIndex, thread: StepThread, kind: SpanKind, part: str) -> Iterator[tuple[str, str, TimeSet]]:
    """Yield the spans of a kind by name."""
    spans = index.trace.spans.take(index.spans.rows(thread.track_id))
    spans = spans.take(spans["kind_code"] == kind)
    for code, of_name in GroupBy(spans["name_code"]).items():
        yield part, index.trace.text(int(code)), TimeSet.of_rows(spans, of_name)
