"""Devices that stand idle because of their host, and time that a host spends in code of the loop.

``host``: ``cause_kind`` is ``sync`` (the host is in a blocking call), ``launch`` (it launches late, for example after a
blocking call that drained the device; ``call`` is the annotation that covers most of it), ``pauses`` (the device pauses
between works that had been launched), ``python`` (code of the loop, in ``call`` mostly) or ``perhaps`` (only a bound is
known, whose share is ``least_ratio``).

A blocking call may drain a device in each step of every rank. What makes the device stand idle is then what the host
does between the return of that call and its next launch: ``host_after_calls`` has that time, ``host_before_launch``
time in which the host was in no blocking call either and that no such call came before. ``host_in_phase`` is the phase
that covers most of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from stashtrace.analysis.findings.claim_rows import Claim, Evidence, Facts, evidence_by, fact
from stashtrace.analysis.findings.rules.losses import cut_ranks
from stashtrace.analysis.findings.rules.policy import POLICY
from stashtrace.analysis.findings.rules.stalls import devices
from stashtrace.analysis.findings.rules.stalls.loop_code import (
    NAMED_CODE,
    code_in,
    mostly_in_file,
    python_evidence,
)
from stashtrace.analysis.findings.stall_claims import part_of, stall_claim, step_words, verdict
from stashtrace.analysis.findings.summary_input import RankFacts, RunFacts
from stashtrace.analysis.intervals import TimeSet
from stashtrace.analysis.stalls.budget import rank_layers
from stashtrace.analysis.stalls.idle_calls import idle_calls
from stashtrace.analysis.stalls.on_host import outer_phase_rows
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.analysis.steps.steps import rank_and_steps
from stashtrace.analysis.steps.threads import StepThread
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import Phase, StallKind
from stashtrace.schema.stall_kinds import COLUMNS
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace
from stashtrace.text import count_noun
from stashtrace.units import duration_text, number, percent_text, shortened

#: Kinds of the column ``host`` in which a device stands idle.
_OF_DEVICES = ("sync", "launch")
_CALLS = ("blocking_call", "draining_call")
_IDLE_SHORT = "{devices} {devices:stands|stand} idle for {share} {of_step} because of the host"


def host_claims(run: RunFacts, hit: Sequence[RankFacts]) -> list[Claim]:
    """Return the claim about ranks whose host keeps the device idle, or runs code of the loop."""
    worst, base = hit[0], stall_claim(hit, "host", COLUMNS["host"])
    cause = max(("sync", "launch", "python"), key=worst.per_step_ns)
    if cause == "python":
        return [_python(run, worst, base)]
    pauses = [row for row in devices.idle_reasons(run, worst) if row.code == "pauses"]
    if pauses and pauses[0]["idle_ns"] > POLICY.mostly_ratio * base.stall_ns:
        said = (
            "{devices} {devices:pauses|pause} for {lost} between works that were launched already: short kernels, not a"
            " late host"
        )
        return [verdict("host", said, run, base, pauses, cause_kind="pauses")]
    work = _host_work(run.trace, worst.rank, run.tables["steps"], worst.steps_count)
    if work is not None and work.time_ns > POLICY.mostly_ratio * base.stall_ns * worst.steps_count:
        return [_elsewhere(run, worst, base, work)]
    rows = _host_evidence(run, worst, base.stall_ns if cause == "sync" else 0.0)
    if cause == "launch":
        said = f"{{devices}} {{devices:waits|wait}} {{lost}} for {_hosts(base)} to launch work"
        return [verdict("host", said, run, base, rows, short=_IDLE_SHORT, cause_kind=cause)]
    inside, why = next((row for row in rows if row.code == "blocking_call"), None), " after the host has waited for it"
    if inside is not None:
        most = "" if inside["covered_ns"] >= POLICY.whole_ratio * base.stall_ns else ", mostly"
        why = f"{most} while the host is inside {{inside}}"
    elif any(row.code == "draining_call" for row in rows):
        why = " after blocking calls that drained it"
    said = f"{{devices}} {{devices:stands|stand}} idle for {{lost}}{why}"
    words = {"inside": inside["call"] if inside is not None else ""}
    call = next((row["call"] for row in rows if row.code in _CALLS), "")
    return [verdict("host", said, run, base, rows, short=_IDLE_SHORT, phrases=words, cause_kind=cause, call=call)]


def _hosts(base: Claim) -> str:
    return "its host" if base.items_count == 1 else "their hosts"


def _python(run: RunFacts, worst: RankFacts, base: Claim) -> Claim:
    """Word time outside the phases: that it lies there is certain, that it is Python and no operator is not."""
    rows = python_evidence(run, worst)
    name = _most_named(rows)
    spent = worst.per_step_ns("python")
    base = part_of(base, spent)
    ran_ns, worked_ns = worst.bounds_ns("compute", "python")[0], worst.per_step_ns("compute")
    outside = "in code of the loop outside forward, backward and optimizer"
    if ran_ns < worked_ns + (1 - POLICY.exact_ratio) * spent:  # no clock of the thread says that it ran
        outside = "outside forward, backward and optimizer, in code of the loop or blocked"
    several = base.items_count > 1
    point, share = duration_text(base.stall_ns), percent_text(base.share_ratio)
    if several and base.least_ns < base.stall_ns:
        point, share = f"{duration_text(base.least_ns)} to {point}", f"{share} on rank {base.rank}"
    where, short = mostly_in_file(rows), "outside forward, backward and optimizer"
    collects = next((row for row in rows if row.code == "python_collects"), None)
    if name:
        where = f", mostly in {shortened(name, POLICY.name_characters)}"
    elif collects is not None and collects["part_ratio"] >= POLICY.mostly_ratio:
        where = f", {duration_text(collects['spent_ns'])} of it in garbage collection"
        short = "in code of the loop, mostly in garbage collection"
    compiled = [row for row in rows if row.code == "compiles"]
    if compiled and sum(row["part_ratio"] for row in compiled) >= POLICY.mostly_ratio:
        outside, where, short = "", _in_compilations(compiled), "in torch.compile"
    said = f"{{who}} {{items_count:spends|spend}} {point}{{a_step}} ({share}) {outside}{{where}}"
    upto = "up to " if several else ""
    short = f"{{who}} {{items_count:spends|spend}} {upto}{{share_ratio:percent}} {{of_step}} {short}"
    words = {"where": where}
    return verdict("host", said, run, base, rows, short=short, phrases=words, cause_kind="python", call=name)


def _most_named(rows: Sequence[Evidence]) -> str:
    """Return the annotation, or the compiled function, that most of a time is in."""
    known = (row for row in rows if row.code in NAMED_CODE and row["part_ratio"] >= POLICY.mostly_ratio)
    return next((str(row["name"]) for row in known), "")


def _in_compilations(compiled: Sequence[Evidence]) -> str:
    """Say that a time goes to torch.compile, and in how many steps: ``in torch.compile, in 12 of 45 steps``."""
    first = compiled[0]
    mostly = "" if sum(row["part_ratio"] for row in compiled) >= POLICY.whole_ratio else "mostly "
    again = " again" if first["kind"] == "again" else ""
    often = f"in {first['items_count']} of {count_noun(first['steps_count'], 'step')}"
    return f"{mostly}in {shortened(first['name'], POLICY.name_characters)}, which compiles{again} {often}"


def _elsewhere(run: RunFacts, worst: RankFacts, base: Claim, work: _HostWork) -> Claim:
    """Return the claim about a device that waits for a host which stands in no call and launches nothing.

    A blocking call that drained the device is evidence: what keeps the device idle comes after it.
    """
    each_ns = work.time_ns / max(worst.steps_count, 1)
    own = Facts(rank=worst.rank, idle_ns=each_ns, part_ratio=each_ns / max(base.stall_ns, 1.0))
    name, several = _most_named(work.rows), base.items_count > 1
    rows, until = list[Evidence](), "before the next launch"
    if work.after_calls_ns > POLICY.mostly_ratio * work.time_ns:
        rows += [fact("host_after_calls", "", "stalls", **own), *work.rows]
        rows += _host_evidence(run, worst, base.stall_ns)
        calls = [row for row in rows if row.code in _CALLS]
        rows += _calls_of_others(run, worst.rank, calls[0]["call"] if calls else "")
        until = "between a blocking call and the next launch"
        first = next((row for row in calls if row.code == "draining_call"), calls[0] if calls else None)
        if first is not None and first["calls_count"] > POLICY.several_calls_count:
            until = f"between blocking calls ({number(first['calls_count'])}{{each_step}}) and the next launches"
    else:
        rows += [fact("host_before_launch", "", "stalls", **own), *work.rows, *_host_evidence(run, worst, 0.0)]
        if not name:
            until = ""
    of_name = next((row["part_ratio"] for code in NAMED_CODE for row in rows if row.code == code), 1.0) if name else 1.0
    mostly = "" if of_name * own["part_ratio"] >= POLICY.whole_ratio else "mostly "
    doing = " to launch work"
    if name:
        doing = f", which {'are' if several else 'is'} {mostly}in {{name}} {until}"
    elif until:
        doing = f", which {mostly}{'do' if several else 'does'} something else {until}"
    said = f"{{devices}} {{devices:waits|wait}} {{lost}} for {_hosts(base)}{doing}"
    words = {"name": shortened(name, POLICY.name_characters), "in": shortened(name, POLICY.short_name_characters)}
    hosts = "their hosts are" if several else "its host is"
    short = f"{{devices}} {{devices:waits|wait}} {{share}} {{of_step}}: {hosts} in {{in}}" if name else _IDLE_SHORT
    return verdict("host", said, run, base, rows, short=short, phrases=words, cause_kind="launch", call=name)


def perhaps_host(run: RunFacts) -> list[Claim]:
    """Return a claim about the host's part where only an upper bound is known, and that is large."""
    told = [r for r in run.ranks if r.rank not in cut_ranks(run.trace)]
    bound = {r.rank: r.bounds_ns(*_OF_DEVICES)[1] / max(r.wall_ns / max(r.steps_count, 1), 1) for r in told}
    hit = sorted((r for r in told if bound[r.rank] >= POLICY.worth_doubting_ratio), key=lambda r: -bound[r.rank])
    if not hit:
        return []
    base = stall_claim(hit, "host", _OF_DEVICES)
    rows = _host_evidence(run, hit[0], base.high_ns)
    untold = "timing events cannot tell, `stashtrace run --kernels` can"
    untold = "this recording cannot tell" if run.imported else untold
    said = "{devices} may stand idle for up to {high_ns:time}{a_step} ({least_ratio:percent}) because of the host: "
    # A stall that may be 0 comes after real ones: its share stays that of the point.
    own: dict[str, Any] = {"confidence": "up_to", "cause_kind": "perhaps", "least_ratio": bound[hit[0].rank]}
    return [verdict("host", said + untold, run, base, rows, **own)]


def _host_evidence(run: RunFacts, worst: RankFacts, stall_ns: float) -> list[Evidence]:
    steps, calls = run.tables["steps"], partial(devices.blocking_calls, warmup=run.warmup_count == 0)
    return [
        *evidence_by("how far the host leads", devices.host_lead, run.trace, worst, steps),
        *evidence_by("calls that block", calls, run.trace, worst, stall_ns),
    ]


@dataclass(frozen=True, slots=True)
class _HostWork:
    """Time in which a device waited for a host that was in no blocking call and had not launched the next work."""

    #: All of it in the counted steps, and the part that follows on a blocking call that drained the device.
    time_ns: int
    after_calls_ns: int
    #: What the host did then: annotations, files, garbage collection, phases.
    rows: list[Evidence]


def _host_work(trace: Trace, rank: int, steps: Table, steps_count: int) -> _HostWork | None:
    """Return what the host of a rank did while its device waited for it; None if it never did."""
    index = TraceIndex(trace)
    known = rank_and_steps(index.origin, steps, rank)
    if known is None:
        return None
    thread, own = known
    made = rank_layers(index, thread)
    free = made.beside.get("host_elsewhere", TimeSet.empty()) & TimeSet.of_rows(own)
    after_calls, launching = (free & made.time_of(kind) for kind in (StallKind.SYNC, StallKind.LAUNCH))
    time = after_calls | launching
    if not len(time):
        return None
    rows = code_in(trace, thread, time, steps, steps_count) + _phases(index, thread, time, steps_count)
    return _HostWork(time.total_ns, after_calls.total_ns, rows)


def _calls_of_others(run: RunFacts, rank: int, call: str) -> list[Evidence]:
    """Return how often the median of the other ranks makes the same call in a step; nothing if none does."""
    table = idle_calls(run.trace, warmup=run.warmup_count == 0)
    counts = GroupBy(run.tables["steps"]["rank"])
    others = counts.values[counts.values != rank]
    made = [
        float(table["calls_count"][(table["rank"] == other) & (table["call"] == call)].sum()) / count
        for other, count in zip(others.tolist(), counts.sizes[counts.values != rank].tolist(), strict=True)
    ]
    if not any(made):
        return []
    one = int(others[0]) if len(others) == 1 else -1
    said = f"{'rank {rank} makes' if one >= 0 else 'the other ranks make'} {{calls_count:number}} of these calls"
    own = Facts(rank=one, calls_count=float(np.median(made)), call=call)
    return [fact("calls_of_others", f"{said}{{each_step}}", "idle_calls", phrases=step_words(run.trace), **own)]


def _phases(index: TraceIndex, thread: StepThread, time: TimeSet, steps_count: int) -> list[Evidence]:
    """Return the phases of the step thread that hold most of a time; annotations may lie inside them."""
    phases, rows = index.trace.phases, outer_phase_rows(index, thread)
    codes = GroupBy(phases["phase_code"][rows])
    spent = codes.sum(time.within(phases["begin_ns"][rows], phases["end_ns"][rows]))
    said, words, found = "{spent_ns:time}{a_step} of it in the {phase}", step_words(index.trace), list[Evidence]()
    for code, ns in zip(codes.values.tolist(), spent.tolist(), strict=True):
        if ns >= POLICY.part_ratio * time.total_ns:
            own = Facts(rank=thread.rank, spent_ns=float(ns) / max(steps_count, 1), phase=Phase(code).name.lower())
            part = float(ns) / max(time.total_ns, 1)
            found.append(fact("host_in_phase", said, "phases", phrases=words, part_ratio=part, **own))
    return sorted(found, key=lambda row: -row["spent_ns"])[:1]
