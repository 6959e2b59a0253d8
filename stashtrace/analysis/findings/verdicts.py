"""Verdicts: the stalls that are worth a claim, their order, and how certain each one is.

A verdict follows from the bounds of its stall. A stall that may be 0 is never claimed to be more, ``compute_bound``
needs a lower bound of compute, and every rank that is named is in the rows.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from stashtrace.analysis.findings import device_evidence
from stashtrace.analysis.findings.batch_making import inside
from stashtrace.analysis.findings.claim_rows import NOT_SAID, Claim, Evidence, claims_by, evidence_by, unsaid
from stashtrace.analysis.findings.host_work import HostWork, calls_of_others, host_work
from stashtrace.analysis.findings.lateness.late_claims import late_claims
from stashtrace.analysis.findings.loader_evidence import loading
from stashtrace.analysis.findings.places.file_claims import file_claims, without_files
from stashtrace.analysis.findings.rules.losses import cut_ranks
from stashtrace.analysis.findings.rules.policy import POLICY
from stashtrace.analysis.findings.summary_input import RankFacts, RunFacts
from stashtrace.analysis.findings.unexplained_time import (
    KNOWN_CALLS,
    annotations_in,
    dead_connections,
    file_calls,
    python_evidence,
    reads_outside_batches,
    time_of_kind,
)
from stashtrace.analysis.links.certainty import CERTAIN, NO_OPERATION, transfer_certainty
from stashtrace.analysis.stalls.on_host import CHECKPOINT_PHASES
from stashtrace.errors import guarded
from stashtrace.schema.kinds import Phase, ProcessRole, StallKind
from stashtrace.schema.stall_kinds import COLUMNS
from stashtrace.schema.trace import DEVICE_WORK_NOT_READ, HOST_NOT_RECORDED, OPERATORS_RECORDED
from stashtrace.units import ranks_text

#: Stalls below this share of the step are not worth a verdict.
WORTH_SAYING_RATIO = 0.03
#: An upper bound of time that may be 0 is worth a verdict above this share of the step.
_WORTH_DOUBTING_RATIO = 0.2
#: A bound nearer to the point than this counts as the point.
EXACT_RATIO = 0.05
#: Without a stall, a run is compute bound if its steps are compute for at least this share.
_COMPUTE_BOUND_RATIO = 0.9
#: Ranks that lose at least this part of what the worst rank loses are in one claim with it.
_LIKE_RATIO = 0.5
#: Kinds of the column ``host`` in which a device stands idle.
_OF_DEVICES = ("sync", "launch")
#: Columns with time in which nothing is seen to run; of a recording that was cut, it is no finding.
_IDLE_GROUPS = ("host", "other")


def verdicts(facts: RunFacts, beside: Sequence[Claim] = ()) -> list[Claim]:
    """Return claims about stalls, worst first; without a stall, one claim that says so.

    Validation and inference beside training have claims of their own with the name of their kind, weighted by their
    part of the time.

    ``beside``: verdicts about something else than a stall, for their place in the order.
    """
    if not facts.ranks:
        return []
    found = _stalls(facts)
    weighted = [(claim.share_ratio, claim) for claim in found if claim.kind != NOT_SAID]
    own_ns = sum(rank.wall_ns for rank in facts.ranks)
    for part in facts.others:
        weight = sum(rank.wall_ns for rank in part.ranks) / max(own_ns, 1)
        of_part = _stalls(part)
        found += of_part
        weighted += [
            (claim.share_ratio * weight, replace(claim, name=part.step_kind))
            for claim in of_part
            if claim.share_ratio * weight >= WORTH_SAYING_RATIO
        ]
    unsaid = [claim for claim in found if claim.kind == NOT_SAID]
    if not weighted and not unsaid:
        none = _no_stall(facts)
        weighted.append((none.share_ratio, none))
    weighted += [(claim.share_ratio, claim) for claim in beside]
    return [*_in_order(weighted), *unsaid]


def _in_order(weighted: Sequence[tuple[float, Claim]]) -> list[Claim]:
    """Sort claims by their weight; that others wait for a rank goes before what the rank alone does with the file."""
    own = {
        (claim.rank, claim.file): weight
        for weight, claim in weighted
        if claim.cause_kind == "on_file" and claim.items_count == 1
    }

    def place(pair: tuple[float, Claim]) -> tuple[float, bool]:
        weight, claim = pair
        return -max(weight, own.get((claim.cause_rank, claim.file), 0.0)), claim.kind != "late"

    return [claim for _, claim in sorted(weighted, key=place)]


def _stalls(facts: RunFacts) -> list[Claim]:
    """Return claims about the stalls of one kind of steps, worst first."""
    claims = claims_by("the time on one file", file_claims, facts)
    facts = without_files(facts)
    cut = cut_ranks(facts.trace)
    for group, claims_of in (
        ("data", _data),
        ("late", _late),
        ("link", _link),
        ("copy", _copy),
        ("save", _save),
        ("host", _host),
        ("other", _other),
    ):
        told = [r for r in facts.ranks if r.rank not in cut] if group in _IDLE_GROUPS else facts.ranks
        hit = [r for r in told if r.share(group) >= WORTH_SAYING_RATIO]
        hit.sort(key=lambda r: (-r.per_step_ns(*COLUMNS[group]), r.rank))
        while hit:
            # Ranks that lose much less have a claim of their own: one figure cannot stand for both. So have ranks that
            # other calls block.
            least = 0.0 if group == "late" else _LIKE_RATIO * hit[0].per_step_ns(*COLUMNS[group])
            same = [group != "other" or _main_call(r) == _main_call(hit[0]) for r in hit]
            alike = [
                r for r, is_same in zip(hit, same, strict=True) if is_same and r.per_step_ns(*COLUMNS[group]) >= least
            ]
            claims += _with_reasons(group, claims_of, facts, alike)
            said = {r.rank for r in alike}
            hit = [r for r in hit if r.rank not in said]
    if not any(claim.kind == "host" for claim in claims):
        claims += claims_by("how long devices may stand idle", _perhaps_host, facts)
    return sorted(claims, key=lambda claim: -claim.share_ratio)


def _with_reasons(
    group: str,
    claims_of: Callable[[RunFacts, Sequence[RankFacts]], list[Claim]],
    facts: RunFacts,
    hit: Sequence[RankFacts],
) -> list[Claim]:
    """Return the claims about a stall with what is behind it; where that fails, the claim with its figures alone."""

    def figures(line: str) -> list[Claim]:
        cause = max(COLUMNS[group], key=hit[0].per_step_ns) if group == "host" else ""
        kinds = (cause,) if cause == "python" else COLUMNS[group]
        return [replace(_claim(hit, group, kinds), cause_kind=cause, evidence=(unsaid(line),))]

    whose = ranks_text(sorted(rank.rank for rank in hit))
    return guarded(f"what is behind '{group}' of ranks {whose}", partial(claims_of, facts, hit), figures)


def confidence(point: float, low: float, high: float) -> str:
    """Return how certain a time with bounds is: ``exact``, ``at_least``, ``up_to`` or ``between``."""
    slack = max(point, high) * EXACT_RATIO
    if point - low <= slack and high - point <= slack:
        return "exact"
    if point - low <= slack:
        return "at_least"
    return "up_to" if high - point <= slack and low <= slack else "between"


def _claim(hit: Sequence[RankFacts], group: str, kinds: Sequence[str]) -> Claim:
    """Return a verdict about the time that ranks lose to some kinds, with the figures of the first, worst rank."""
    worst, least = hit[0], hit[-1]
    point, (low, high) = worst.per_step_ns(*kinds), worst.bounds_ns(*kinds)
    sure = confidence(point, low, high)
    # With steps of different lengths, the rank that loses most time need not lose the largest share.
    shares = [r.share(group) for r in hit] if sure == "exact" else [worst.share(group), least.share(group)]
    return Claim(
        "verdict",
        group,
        ranks=ranks_text(sorted(r.rank for r in hit)),
        rank=worst.rank,
        items_count=len(hit),
        share_ratio=max(shares) if sure == "exact" else shares[0],
        least_ratio=min(shares),
        stall_ns=point,
        low_ns=low,
        high_ns=high,
        least_ns=least.per_step_ns(*kinds),
        confidence=sure,
        method=worst.method,
    )


def _part_of(claim: Claim, part_ns: float) -> Claim:
    """Return a claim with the figures of a part of its time."""
    part = min(part_ns / max(claim.stall_ns, 1.0), 1.0)
    names = ("share_ratio", "least_ratio", "stall_ns", "low_ns", "high_ns", "least_ns")
    return replace(claim, **{name: part * getattr(claim, name) for name in names})


def _data(facts: RunFacts, hit: Sequence[RankFacts]) -> list[Claim]:
    plain = reads_outside_batches(facts.trace, hit[0].rank, facts.tables["steps"], hit[0].on_file_time)
    if plain is not None and plain[1].total_ns > 0.5 * sum(hit[0].kinds.get(kind, 0) for kind in COLUMNS["data"]):
        rows = file_calls(facts.trace, *plain, hit[0].steps_count, reads=True)
        file, call = (rows[0].name, rows[0].kind) if rows else ("", "")
        claim = _part_of(_claim(hit, "data", COLUMNS["data"]), plain[1].total_ns / max(hit[0].steps_count, 1))
        return [replace(claim, cause_kind="reads", file=file, call=call, evidence=tuple(rows))]
    why = loading(facts, hit[0])
    return [
        replace(
            _claim(hit, "data", COLUMNS["data"]),
            cause_kind=why.cause_kind,
            worker_id=why.worker_id,
            file=why.file,
            advice_code=why.advice_code,
            evidence=(*why.evidence, *dead_connections(facts.trace, hit[0].rank, facts.tables["steps"])),
        )
    ]


def _late(facts: RunFacts, hit: Sequence[RankFacts]) -> list[Claim]:
    return late_claims(facts, hit, lambda ranks: _claim(ranks, "late", COLUMNS["late"]))


def _link(facts: RunFacts, hit: Sequence[RankFacts]) -> list[Claim]:
    worst = hit[0]
    between_hosts = worst.per_step_ns("network") >= worst.per_step_ns("interconnect")
    place_known = any(facts.hosts) or bool((facts.trace.groups["crosses_hosts"] == 0).any())
    claim = _claim(hit, "link", COLUMNS["link"])
    steps = facts.tables["steps"]
    rows = [
        *evidence_by("whether all ranks had arrived", _company, facts, claim),
        *evidence_by("what was transferred", _transfers, facts, worst),
        *evidence_by("the bus bandwidth", device_evidence.bus_bandwidth, facts.trace, worst, steps),
    ]
    if worst.contention_ratio > POLICY.contention_verdict_ratio:
        rows.append(Evidence("transfers_share_cpus", "hidden", rank=worst.rank, part_ratio=worst.contention_ratio))
    place = "network" if between_hosts else "interconnect" if place_known else "unknown"
    call = next((row.name for row in rows if row.code == "bus_bandwidth"), "")
    return [replace(claim, cause_kind=place, call=call, evidence=tuple(rows))]


def _company(facts: RunFacts, claim: Claim) -> list[Evidence]:
    """Return evidence that every rank had arrived when a rank transferred, or why that is not certain."""
    table = transfer_certainty(facts.trace, warmup=facts.warmup_count == 0)
    own = np.flatnonzero(table["rank"] == claim.rank)
    doubts = own[~np.isin(table["reason"][own], (CERTAIN, NO_OPERATION))]
    doubtful = doubts[np.argsort(-table["link_ns"][doubts], kind="stable")]
    share = float(table["share_ratio"][doubtful].sum())
    bounded = claim.confidence in ("exact", "at_least")
    if bounded and share <= EXACT_RATIO:
        return [Evidence("all_arrived", "transfer_certainty", rank=claim.rank, part_ratio=1 - share)]
    reason = str(table["reason"][doubtful[0]]) if len(doubtful) else ""
    if reason == "ranks_missing" and facts.missing_ranks:
        missing = list(facts.missing_ranks)
        absent = Evidence("ranks_missing", "processes", items_count=len(missing), name=ranks_text(missing))
        return [absent]
    row = int(doubtful[0]) if len(doubtful) else -1
    return [Evidence("may_be_waiting", "transfer_certainty", row, rank=claim.rank, part_ratio=share, kind=reason)]


def _transfers(facts: RunFacts, rank: RankFacts) -> list[Evidence]:
    """Return the payload per step and its number of operations."""
    table, steps = facts.trace.collectives, facts.tables["steps"]
    mine = table.take(table["rank"] == rank.rank)
    # The host calls far ahead of a device, and the device's clock cuts the steps.
    moments = np.where(mine["device_begin_ns"] >= 0, mine["device_begin_ns"], mine["call_ns"])
    own = steps.take(steps["rank"] == rank.rank).sort_by("begin_ns")
    moved = mine.take((mine["message_bytes"] > 0) & inside(moments, own))
    if not len(moved):
        return []
    payload = float(moved["message_bytes"].sum()) / rank.steps_count
    return [
        Evidence(
            "payload", "collectives", rank=rank.rank, part_ratio=len(moved) / rank.steps_count, moved_bytes=payload
        )
    ]


def _copy(facts: RunFacts, hit: Sequence[RankFacts]) -> list[Claim]:
    rows = device_evidence.copies(facts.trace, hit[0], facts.tables["steps"])
    pageable = any(row.kind == "pageable" for row in rows)
    return [
        replace(
            _claim(hit, "copy", COLUMNS["copy"]),
            cause_kind="pageable" if pageable else "",
            advice_code="pin_memory" if pageable else "",
            evidence=tuple(rows),
        )
    ]


def _host(facts: RunFacts, hit: Sequence[RankFacts]) -> list[Claim]:
    worst = hit[0]
    cause = max(("sync", "launch", "python"), key=worst.per_step_ns)
    claim = _claim(hit, "host", COLUMNS["host"])
    if cause == "python":
        rows = python_evidence(facts.trace, worst.rank, facts.tables["steps"], worst.steps_count, worst.on_file_time)
        named = ("python_in", "compiles")
        name = next((row.name for row in rows if row.code in named and row.part_ratio >= 0.5), "")
        spent = worst.per_step_ns("python")
        claim = _part_of(claim, spent)
        ran_ns, worked_ns = worst.bounds_ns("compute", "python")[0], worst.per_step_ns("compute")
        if ran_ns < worked_ns + (1 - EXACT_RATIO) * spent:  # no clock of the thread says that it ran
            rows.insert(0, Evidence("python_or_blocked", "stalls", rank=worst.rank))
        return [replace(claim, cause_kind=cause, call=name, evidence=tuple(rows))]
    pauses = [row for row in _idle_reasons(facts, worst) if row.code == "pauses"]
    if pauses and pauses[0].amount_ns > 0.5 * claim.stall_ns:
        return [replace(claim, cause_kind="pauses", evidence=tuple(pauses))]
    work = host_work(facts.trace, worst.rank, facts.tables["steps"], worst.steps_count)
    if work is not None and work.time_ns > 0.5 * claim.stall_ns * worst.steps_count:
        return [_host_elsewhere(facts, worst, claim, work)]
    rows = _host_evidence(facts, worst, claim.stall_ns if cause == "sync" else 0.0)
    call = next((row.kind for row in rows if row.code in ("blocking_call", "draining_call")), "")
    return [replace(claim, cause_kind=cause, call=call, evidence=tuple(rows))]


def _host_elsewhere(facts: RunFacts, worst: RankFacts, claim: Claim, work: HostWork) -> Claim:
    """Return the claim about a device that waits for a host which stands in no call and launches nothing.

    A blocking call that drained the device is evidence: what keeps the device idle comes after it.
    """
    count = max(worst.steps_count, 1)
    code = "host_after_calls" if work.after_calls_ns > 0.5 * work.time_ns else "host_before_launch"
    part = work.time_ns / count / max(claim.stall_ns, 1.0)
    rows = [Evidence(code, "stalls", rank=worst.rank, amount_ns=work.time_ns / count, part_ratio=part), *work.rows]
    named = ("python_in", "compiles")
    name = next((row.name for row in rows if row.code in named and row.part_ratio >= 0.5), "")
    if code == "host_after_calls":
        if sum(row.part_ratio for row in work.rows) < 0.5:
            rows.append(Evidence("host_unknown", "stalls", rank=worst.rank))
        rows += _host_evidence(facts, worst, claim.stall_ns)
        drained = next((row.kind for row in rows if row.code in ("blocking_call", "draining_call")), "")
        warmup = facts.warmup_count == 0
        rows += calls_of_others(facts.trace, worst.rank, drained, facts.tables["steps"], warmup=warmup)
    else:
        rows += _host_evidence(facts, worst, 0.0)
    return replace(claim, cause_kind="launch", call=name, evidence=tuple(rows))


def _perhaps_host(facts: RunFacts) -> list[Claim]:
    """Return a claim about the host's part where only an upper bound is known, and that is large."""
    told = [r for r in facts.ranks if r.rank not in cut_ranks(facts.trace)]
    bound = {r.rank: r.bounds_ns(*_OF_DEVICES)[1] / max(r.wall_ns / max(r.steps_count, 1), 1) for r in told}
    hit = sorted((r for r in told if bound[r.rank] >= _WORTH_DOUBTING_RATIO), key=lambda r: -bound[r.rank])
    if not hit:
        return []
    claim = _claim(hit, "host", _OF_DEVICES)
    rows = _host_evidence(facts, hit[0], claim.high_ns)
    # A stall that may be 0 comes after real ones: its share stays that of the point.
    return [
        replace(claim, confidence="up_to", cause_kind="perhaps", least_ratio=bound[hit[0].rank], evidence=tuple(rows))
    ]


def _host_evidence(facts: RunFacts, worst: RankFacts, stall_ns: float) -> list[Evidence]:
    steps, calls = facts.tables["steps"], partial(device_evidence.blocking_calls, warmup=facts.warmup_count == 0)
    return [
        *evidence_by("how far the host leads", device_evidence.host_lead, facts.trace, worst, steps),
        *evidence_by("calls that block", calls, facts.trace, worst, stall_ns),
    ]


def _save(facts: RunFacts, hit: Sequence[RankFacts]) -> list[Claim]:
    trace, worst = facts.trace, hit[0]
    phases, processes = trace.phases, trace.processes
    own = processes["process_id"][(processes["rank"] == worst.rank) & (processes["role_code"] == ProcessRole.RANK)]
    mine = phases.take(np.isin(phases["phase_code"], CHECKPOINT_PHASES) & np.isin(phases["process_id"], own))
    steps = facts.tables["steps"]
    mine = mine.take(inside(mine["begin_ns"], steps.take(steps["rank"] == worst.rank).sort_by("begin_ns")))
    lengths = mine["end_ns"] - mine["begin_ns"]
    loads = mine["phase_code"] == Phase.CHECKPOINT_LOAD
    after_ns = worst.kinds["checkpoint"] - int(lengths.sum())  # fsync and rename of what they wrote
    rows = [
        Evidence(
            "checkpoints",
            "phases",
            rank=worst.rank,
            items_count=len(mine),
            amount_ns=float(lengths.mean()) if len(mine) else -1,
            low_ns=after_ns / len(mine) if len(mine) and after_ns > EXACT_RATIO * lengths.sum() else -1,
            kind="" if not loads.any() else "loaded" if loads.all() else "saved or loaded",
        )
    ]
    return [replace(_claim(hit, "save", COLUMNS["save"]), evidence=tuple(rows) if len(mine) else ())]


def _main_call(rank: RankFacts) -> str:
    """Return the call that blocked the step thread for most of ``other``; empty if there is none."""
    call = max(rank.blocked_ns, key=rank.blocked_ns.__getitem__, default="")
    return call if rank.blocked_ns.get(call, 0) > 0.5 * rank.kinds.get("other", 0) else ""


def _other(facts: RunFacts, hit: Sequence[RankFacts]) -> list[Claim]:
    claims = _blocked(facts, hit)
    rows = dead_connections(facts.trace, hit[0].rank, facts.tables["steps"])
    return [replace(claim, evidence=(*claim.evidence, *rows)) for claim in claims]


def _blocked(facts: RunFacts, hit: Sequence[RankFacts]) -> list[Claim]:
    worst = hit[0]
    claim = _claim(hit, "other", COLUMNS["other"])
    blocked_ns, steps = worst.kinds.get("other", 0), max(worst.steps_count, 1)
    call = max(worst.blocked_ns, key=worst.blocked_ns.__getitem__, default="")
    calls_ns = worst.blocked_ns.get(call, 0)
    inside_it = Evidence("blocked_in", "waits", rank=worst.rank, kind=call, amount_ns=calls_ns / steps)
    if call in KNOWN_CALLS and calls_ns > 0.5 * blocked_ns:
        whole = calls_ns >= (1 - EXACT_RATIO) * blocked_ns
        cause = call if whole else f"{call}_partly"
        known = (
            time_of_kind(facts.trace, worst.rank, facts.tables["steps"], StallKind.OTHER) if call == "file" else None
        )
        rows = []
        if known is not None:
            rows = file_calls(facts.trace, known[0], known[1] - worst.on_file_time, worst.steps_count)
        file, name = (rows[0].name, rows[0].kind) if rows else ("", "")
        return [replace(claim, cause_kind=cause, file=file, call=name, evidence=(inside_it, *rows))]
    unseen = _unseen(facts, worst, claim)
    if unseen is not None:
        return [unseen]
    if worst.held_ns > 0.5 * blocked_ns:
        whole = worst.held_ns >= (1 - EXACT_RATIO) * blocked_ns
        held = Evidence("held", "device_brackets", rank=worst.rank, amount_ns=worst.held_ns / steps)
        rows = device_evidence.host_functions(facts.trace, worst, facts.tables["steps"])
        cause = "host_functions" if whole else "host_functions_partly"
        return [replace(claim, cause_kind=cause, evidence=(held, *rows))]
    # Waits too short to be recorded, and waits for a CPU after them, count as compute.
    high = claim.stall_ns + worst.contention_ratio * worst.step_ns
    claim = replace(claim, high_ns=max(claim.high_ns, high))
    claim = replace(claim, confidence=confidence(claim.stall_ns, claim.low_ns, claim.high_ns))
    silent = facts.trace.strings.find(HOST_NOT_RECORDED) in facts.trace.metadata["key_code"].tolist()
    if calls_ns > 0.5 * blocked_ns:
        cause = call if calls_ns >= (1 - EXACT_RATIO) * blocked_ns else f"{call}_partly"
        return [replace(claim, cause_kind=cause, evidence=(inside_it,))]
    if sum(worst.blocked_ns.values()) > 0.5 * blocked_ns:
        return [replace(claim, cause_kind="unknown", evidence=(inside_it,))]
    code = "nothing_recorded" if silent else "unknown_block"
    return [replace(claim, cause_kind="unknown", evidence=(Evidence(code, "stalls", rank=worst.rank),))]


def _unseen(facts: RunFacts, worst: RankFacts, claim: Claim) -> Claim | None:
    """Return the claim about time in which another tool's recording shows only that nothing ran; None for others."""
    rows = [row for row in _idle_reasons(facts, worst) if row.code != "pauses"]
    if rows and sum(row.amount_ns for row in rows) > 0.5 * worst.per_step_ns("other"):
        return replace(claim, cause_kind=rows[0].code, evidence=tuple(rows))
    if worst.method == "host" and _has_fact(facts, OPERATORS_RECORDED, worst.rank):
        known = time_of_kind(facts.trace, worst.rank, facts.tables["steps"], StallKind.OTHER)
        rows = annotations_in(facts.trace, *known, facts.tables["steps"]) if known is not None else []
        call = rows[0].name if rows and rows[0].part_ratio >= 0.5 else ""
        rows = rows or [Evidence("no_operator", "stalls", rank=worst.rank)]
        return replace(claim, cause_kind="no_operator", call=call, evidence=tuple(rows))
    return None


def _idle_reasons(facts: RunFacts, worst: RankFacts) -> list[Evidence]:
    return device_evidence.idle_reasons(facts.trace, worst, facts.tables["steps"])


def _has_fact(facts: RunFacts, key: str, rank: int) -> bool:
    """Return True if an importer recorded a fact of this name about a rank."""
    return bool(_facts_of(facts, key, rank))


def _facts_of(facts: RunFacts, key: str, rank: int) -> list[str]:
    trace = facts.trace
    own = trace.processes["process_id"][trace.processes["rank"] == rank]
    stated = trace.metadata.take(trace.metadata["key_code"] == trace.strings.find(key))
    return [trace.text(code) for code in stated["value_code"][np.isin(stated["process_id"], own)].tolist()]


def _no_stall(facts: RunFacts) -> Claim:
    """Return the claim that the run is compute bound, or, if that is not certain, how much of the steps is unknown."""
    worst = min(facts.ranks, key=lambda r: r.bounds_ns("compute")[0] / max(r.step_ns, 1))
    claim = _claim([worst], "compute", COLUMNS["compute"])
    least = claim.low_ns / max(worst.step_ns, 1)
    unread = [
        Evidence("work_not_read", "metadata", rank=rank.rank, name=", ".join(names))
        for rank in facts.ranks
        if (names := _facts_of(facts, DEVICE_WORK_NOT_READ, rank.rank))
    ]
    kind = "compute_bound" if least >= _COMPUTE_BOUND_RATIO and not unread else "not_told"
    if (
        kind == "not_told"
        and not unread
        and worst.bounds_ns("compute", "python")[0] >= _COMPUTE_BOUND_RATIO * worst.step_ns
    ):
        claim = replace(claim, cause_kind="python")  # the thread ran, and nothing shows operators
    queued = max(rank.contention_ratio for rank in facts.ranks)
    waits = (Evidence("waits_for_cpu", "hidden", part_ratio=queued),) if queued >= WORTH_SAYING_RATIO else ()
    claim = replace(claim, evidence=(*waits, *unread[:1]))
    return replace(claim, kind=kind, ranks=ranks_text(sorted(r.rank for r in facts.ranks)), least_ratio=least)
