"""Devices that stand idle because of their host, and time that a host spends in code of the loop.

``host``: ``cause_kind`` is ``sync`` (the host is in a blocking call), ``launch`` (it launches late, for example after a
blocking call that drained the device; ``call`` is the annotation that covers most of it), ``pauses`` (the device pauses
between works that had been launched), ``python`` (code of the loop, in ``call`` mostly) or ``perhaps`` (only a bound is
known, whose share is ``least_ratio``).

A blocking call may drain a device in each step of every rank. What makes the device stand idle is then what the host
does between the return of that call and its next launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from stashtrace.analysis.findings.claim_rows import Claim, Evidence, evidence_by
from stashtrace.analysis.findings.rules.losses import cut_ranks
from stashtrace.analysis.findings.rules.policy import POLICY
from stashtrace.analysis.findings.rules.stalls import devices
from stashtrace.analysis.findings.rules.stalls.loop_code import NAMED_CODE, code_in, time_of_kind
from stashtrace.analysis.findings.stall_claims import part_of, stall_claim, verdict
from stashtrace.analysis.findings.summary_input import RankFacts, RunFacts
from stashtrace.analysis.intervals import TimeSet
from stashtrace.analysis.stalls.budget import rank_layers
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.analysis.steps.steps import rank_and_steps
from stashtrace.analysis.steps.threads import StepThread
from stashtrace.schema.kinds import StallKind
from stashtrace.schema.stall_kinds import COLUMNS
from stashtrace.text.units import duration_text, percent_text, shortened

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
    free = _elsewhere(run, worst)
    if free is not None and free[1].total_ns > POLICY.mostly_ratio * base.stall_ns * worst.steps_count:
        return [_works_elsewhere(run, worst, base, *free)]
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
    """Word time outside the phases: that it is outside is certain, that it is Python and no operator is not."""
    known = time_of_kind(run.trace, worst.rank, run.tables["steps"], StallKind.PYTHON)
    rows = code_in(run.trace, *known, run.tables["steps"], worst.steps_count) if known is not None else []
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
    name, short = _most_named(rows), "outside forward, backward and optimizer"
    where = f", mostly in {shortened(name, POLICY.name_characters)}" if name else ""
    compiling = sum(row["part_ratio"] for row in rows if row.code == "compiles")
    if compiling >= POLICY.mostly_ratio:
        mostly = "" if compiling >= POLICY.whole_ratio else "mostly "
        where = f"{mostly}in {shortened(name, POLICY.name_characters) or 'torch.compile'}"
        outside, short = "", "in torch.compile"
    said = f"{{who}} {{items_count:spends|spend}} {point}{{a_step}} ({share}) {outside}{{where}}"
    upto = "up to " if several else ""
    short = f"{{who}} {{items_count:spends|spend}} {upto}{{share_ratio:percent}} {{of_step}} {short}"
    words = {"where": where}
    return verdict("host", said, run, base, rows, short=short, phrases=words, cause_kind="python", call=name)


def _most_named(rows: Sequence[Evidence]) -> str:
    """Return the annotation, or the compiled function, that most of a time is in."""
    known = (row for row in rows if row.code in NAMED_CODE and row["part_ratio"] >= POLICY.mostly_ratio)
    return next((str(row["name"]) for row in known), "")


def _elsewhere(run: RunFacts, worst: RankFacts) -> tuple[StepThread, TimeSet, TimeSet] | None:
    """Return when a device waited for a host in no blocking call that had not launched the next work.

    Also the step thread, and the part of that time that follows on a blocking call; None for a rank without steps.
    """
    index = TraceIndex(run.trace)
    known = rank_and_steps(index.origin, run.tables["steps"], worst.rank)
    if known is None:
        return None
    made = rank_layers(index, known[0])
    free = made.marked.get("host_elsewhere", TimeSet.empty()) & TimeSet.of_rows(known[1])
    return known[0], free & made.time_of(StallKind.SYNC, StallKind.LAUNCH), free & made.time_of(StallKind.SYNC)


def _works_elsewhere(
    run: RunFacts, worst: RankFacts, base: Claim, thread: StepThread, time: TimeSet, after_calls: TimeSet
) -> Claim:
    """Return the claim about such a host; a blocking call that drained the device is evidence."""
    is_after = after_calls.total_ns > POLICY.mostly_ratio * time.total_ns
    rows = code_in(run.trace, thread, time, run.tables["steps"], worst.steps_count)
    rows += _host_evidence(run, worst, base.stall_ns if is_after else 0.0)
    name, several = _most_named(rows), base.items_count > 1
    until = "between blocking calls and the next launches" if is_after else "before the next launch"
    doing = " to launch work"
    if name:
        doing = f", which {'are' if several else 'is'} mostly in {{name}} {until}"
    elif is_after:
        doing = f", which mostly {'do' if several else 'does'} something else {until}"
    said = f"{{devices}} {{devices:waits|wait}} {{lost}} for {_hosts(base)}{doing}"
    words = {"name": shortened(name, POLICY.name_characters), "in": shortened(name, POLICY.short_name_characters)}
    hosts = "their hosts are" if several else "its host is"
    short = f"{{devices}} {{devices:waits|wait}} {{share}} {{of_step}}: {hosts} in {{in}}" if name else _IDLE_SHORT
    return verdict("host", said, run, base, rows, short=short, phrases=words, cause_kind="launch", call=name)


def perhaps_host(run: RunFacts) -> list[Claim]:
    """Return a claim about the host's part where only an upper bound is known, and that is large."""
    whole = [r for r in run.ranks if r.rank not in cut_ranks(run.trace)]
    bound = {r.rank: r.bounds_ns(*_OF_DEVICES)[1] / max(r.wall_ns / max(r.steps_count, 1), 1) for r in whole}
    hit = sorted((r for r in whole if bound[r.rank] >= POLICY.worth_doubting_ratio), key=lambda r: -bound[r.rank])
    if not hit:
        return []
    base = stall_claim(hit, "host", _OF_DEVICES)
    rows = _host_evidence(run, hit[0], base.high_ns)
    untold = "timing events cannot tell, `stashtrace run --kernels` can"
    untold = "this recording cannot tell" if run.imported else untold
    said = "{devices} may stand idle for up to {high_ns:time}{a_step} ({least_ratio:percent}) because of the host: "
    # A stall that may be 0 comes after real ones: its share stays that of the point.
    figures: dict[str, Any] = {"confidence": "up_to", "cause_kind": "perhaps", "least_ratio": bound[hit[0].rank]}
    return [verdict("host", said + untold, run, base, rows, **figures)]


def _host_evidence(run: RunFacts, worst: RankFacts, stall_ns: float) -> list[Evidence]:
    steps, calls = run.tables["steps"], partial(devices.blocking_calls, warmup=run.warmup_count == 0)
    return [
        *evidence_by("how far the host leads", devices.host_lead, run.trace, worst, steps),
        *evidence_by("calls that block", calls, run.trace, worst, stall_ns),
    ]
