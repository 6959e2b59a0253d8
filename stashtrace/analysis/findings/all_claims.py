"""All claims of a summary in reading order: headline, verdicts, the machine, what is hidden, trust, losses."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from stashtrace.analysis.findings.claim_rows import NOT_SAID, Claim, Evidence, claims_by, not_said
from stashtrace.analysis.findings.cpu_claims import contention_claims
from stashtrace.analysis.findings.device_evidence import agreement_evidence
from stashtrace.analysis.findings.ending.end_claims import ending_claims, failure_claims
from stashtrace.analysis.findings.ending.killed import killed
from stashtrace.analysis.findings.lost_record_claims import loss_claims
from stashtrace.analysis.findings.once.start import start_claims
from stashtrace.analysis.findings.over_time.affected_steps import UNEVEN_STEPS, in_steps, made_steps
from stashtrace.analysis.findings.over_time.change_claims import change_claims, steps_evidence
from stashtrace.analysis.findings.places.line_evidence import computing_claims, with_lines, with_slow_line
from stashtrace.analysis.findings.spikes.spike_claims import spike_claims
from stashtrace.analysis.findings.summary_input import RunFacts
from stashtrace.analysis.findings.trust import (
    emulated_claims,
    left_out_claims,
    outlived_claims,
    scope_claims,
    trust_claims,
    without_steps,
)
from stashtrace.analysis.findings.verdicts import verdicts
from stashtrace.analysis.io.staging import staged_opens, used_copies
from stashtrace.analysis.steps.training_loop import QUIET_KINDS
from stashtrace.errors import guarded
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import IoOp, Phase, PhaseFlag, SpanKind
from stashtrace.schema.trace import PROCESSES, WHOLE_RECORDING, Trace
from stashtrace.units import ranks_text

_LOW_CONFIDENCE_RATIO = 0.05
#: Doubts below this share of the steps are not named.
_SMALL_RATIO = 0.00995
_STEAL_RATIO = 0.02
_HIDDEN_RATIO = 0.01
_HIDDEN = ("loading", "communication", "copy", "checkpoint")
_FILES_AT_MOST = 3
#: Calls that move bytes; the others open, close and look up.
_MOVING_OPS = (
    *(IoOp.READ, IoOp.WRITE, IoOp.PREAD, IoOp.PWRITE, IoOp.READV, IoOp.WRITEV, IoOp.PREADV, IoOp.PWRITEV),
    *(IoOp.FREAD, IoOp.FWRITE, IoOp.SENDFILE, IoOp.RECV, IoOp.SEND, IoOp.FSYNC, IoOp.FFLUSH, IoOp.MSYNC),
)
#: Opens, closes and look-ups are named from this share of the time in I/O on.
_METADATA_RATIO = 0.25


def claims_of(facts: RunFacts) -> list[Claim]:
    """Return every claim of a run; ``rows.tables_of`` makes tables of them."""
    trace = facts.trace
    losses = claims_by("what was lost", loss_claims, trace)
    lost = [claim for claim in losses if claim.section == "headline"]
    crowded = claims_by("who waits for a CPU", contention_claims, facts)
    ending = claims_by("how the job ended", ending_claims, trace)
    claims = [
        *ending,
        *lost,
        *_headline(facts),
        *claims_by("the verdicts", verdicts, facts, [claim for claim in crowded if claim.section == "verdict"]),
    ]
    if facts.ranks:
        claims = _claims_of_steps(facts, claims)
    elif not facts.not_said:
        known = lost or any(claim.kind in ("hung", "awaited") for claim in ending)
        claims += [*claims_by("the files of the run", files_claims, trace), *([] if known else [without_steps(trace)])]
    claims += [claim for claim in crowded if claim.section == "machine"]
    for what, detect in _DETECTORS.items():
        claims += claims_by(what, detect, facts)
    return [
        *claims,
        *(claim for claim in losses if claim.section == "loss"),
        *(claim for claim in crowded if claim.kind == NOT_SAID),
        *map(not_said, facts.not_said),
    ]


def _claims_of_steps(facts: RunFacts, claims: list[Claim]) -> list[Claim]:
    """Say of claims in which steps their time lies, and add those about changes of the steps."""
    trace, tables = facts.trace, facts.tables
    before = claims
    claims = guarded("in which steps", lambda: in_steps(facts, before), lambda line: [*before, not_said(line)])
    claims = [with_lines(facts, claim) for claim in claims]
    of_all = [Evidence("whole_recording", "steps")] if one_recording(trace) else []
    of_all += [Evidence("of_another_tool", "metadata")] if facts.imported else []
    claims = [replace(c, evidence=(*c.evidence, *of_all)) if c.section == "verdict" else c for c in claims]
    loading = np.unique(trace.batches["rank"]).tolist()
    claims += claims_by("how the steps change", change_claims, tables["over_time"], loading)
    slow = claims_by("slow steps", spike_claims, tables["spikes"], tables["over_time"], tables["steps"], loading)
    return [*claims, *(with_slow_line(facts, claim) for claim in slow)]


def _agreement(facts: RunFacts) -> list[Claim]:
    if "agreement" not in facts.tables or not len(facts.tables["agreement"]):
        return []
    row = agreement_evidence(facts.tables["agreement"])[0]
    return [Claim("trust", "agreement", name=row.kind, items_count=row.items_count, share_ratio=row.part_ratio)]


def _headline(facts: RunFacts) -> list[Claim]:
    claims = []
    if facts.unexplained_ratio > _LOW_CONFIDENCE_RATIO:
        doubts = {doubt: share for doubt, share in facts.doubts.items() if share >= _SMALL_RATIO}
        rows = [Evidence("doubt", "stalls", part_ratio=share, name=doubt) for doubt, share in doubts.items()]
        worst = max(facts.ranks, key=lambda r: r.unexplained_ns / max(r.wall_ns, 1))
        most = worst.unexplained_ns / max(worst.wall_ns, 1)
        if "unexplained" in doubts and most - doubts["unexplained"] >= _SMALL_RATIO:
            rows.append(Evidence("doubt_most", "stalls", rank=worst.rank, part_ratio=most))
        # Short waits, and waits for a CPU after them, count as compute: where CPUs are scarce more is unexplained.
        short = "unexplained" in doubts and any(r.contention_ratio > _SMALL_RATIO for r in facts.ranks)
        confidence = "at_least" if short else "exact"
        claims.append(
            Claim(
                "headline",
                "low_confidence",
                share_ratio=facts.unexplained_ratio,
                confidence=confidence,
                evidence=tuple(rows),
            )
        )
    if any(r.host_timed for r in facts.ranks):
        timed = ranks_text(sorted(r.rank for r in facts.ranks if r.host_timed))
        claims.append(Claim("headline", "host_timed_steps", ranks=timed))
    # Ranks whose host is not named may be on any.
    named = facts.hosts_count > 0 and all(facts.hosts)
    hosts = Evidence("hosts", "processes", items_count=facts.hosts_count if named else -1)
    stated = _stated_processes(facts.trace)
    of_job = [Evidence("job_processes", "metadata", items_count=stated)] if stated > facts.ranks_count else []
    claims.append(Claim("headline", "ranks", items_count=facts.ranks_count, evidence=(hosts, *of_job)))
    if facts.missing_ranks:
        missing = ranks_text(list(facts.missing_ranks))
        name = "imported" if facts.imported else ""
        claims.append(
            Claim("headline", "ranks_missing", ranks=missing, items_count=len(facts.missing_ranks), name=name)
        )
    if facts.ranks:
        return [*claims, *claims_by("the steps", _steps, facts)]
    return claims if facts.not_said else [*claims, _no_steps(facts)]


def _no_steps(facts: RunFacts) -> Claim:
    """Return the claim that there are no steps; if records were lost, steps may be among them."""
    lost = any(claim.section == "headline" for claim in loss_claims(facts.trace))
    return Claim("headline", "no_steps", name="lost" if lost else "", items_count=0)


def _steps(facts: RunFacts) -> list[Claim]:
    """Return one claim per kind of step: number over all ranks, and length."""
    table = facts.tables["step_kinds"]
    claims = []
    for number, row in enumerate(table.rows()):
        if row["rank"] >= 0:
            continue
        name = "recording" if row["kind"] == "marked" and one_recording(facts.trace) else row["kind"]
        rows = [Evidence("median_step", "step_kinds", number, amount_ns=row["median_ns"])]
        if row["kind"] in facts.tables["steps"]["kind"] and row["kind"] not in QUIET_KINDS:
            rows += steps_evidence(facts.tables["over_time"])
        fewest, most = steps_of_ranks(facts, row["kind"])
        if most - fewest > UNEVEN_STEPS:
            rows.append(Evidence("fewest_steps", "step_kinds", number, items_count=fewest))
        if row["kind"] == "iteration":
            share = row["rollout_ns"] / max(row["mean_ns"], 1)
            rows.append(Evidence("rollout", "step_kinds", number, amount_ns=row["rollout_ns"], part_ratio=share))
        claims.append(
            Claim(
                "headline",
                "steps",
                name=name,
                items_count=row["steps_count"],
                stall_ns=row["mean_ns"],
                evidence=tuple(rows),
            )
        )
    if facts.warmup_count:
        name = "cut" if facts.cut_count else ""
        claims.append(Claim("headline", "warmup", name=name, items_count=facts.warmup_count - facts.cut_count))
    return claims


def steps_of_ranks(facts: RunFacts, kind: str) -> tuple[int, int]:
    """Return the smallest and the largest number of counted steps of a kind that a rank made which made any."""
    table = facts.tables["step_kinds"]
    counts = table["steps_count"][(table["kind"] == kind) & (table["rank"] >= 0)]
    return (int(counts.min()), int(counts.max())) if len(counts) else (0, 0)


def _uneven(facts: RunFacts) -> list[Claim]:
    """Return a claim about ranks that made fewer steps than others."""
    made = made_steps(facts) if facts.ranks else {}
    if not made or max(made.values()) - min(made.values()) <= UNEVEN_STEPS:
        return []
    ranks: dict[int, list[int]] = {}
    for rank, count in sorted(made.items(), key=lambda item: (-item[1], item[0])):
        ranks.setdefault(count, []).append(rank)
    rows = [Evidence("made_steps", "steps", items_count=count, name=ranks_text(of)) for count, of in ranks.items()]
    return [Claim("machine", "uneven_steps", items_count=max(made.values()), evidence=tuple(rows))]


def one_recording(trace: Trace) -> bool:
    """Return True if nothing marks a step, so that the importer made one of the whole recording."""
    spans = trace.spans
    marks = np.isin(spans["kind_code"], (SpanKind.STEP, SpanKind.STEP_MARK))
    return bool(np.isin(trace.strings.find(WHOLE_RECORDING), spans["name_code"][marks]))


def _steal(facts: RunFacts) -> list[Claim]:
    hosts = facts.trust.hosts
    worst = max(hosts, key=lambda host: hosts[host].steal_ratio, default="")
    if not worst or hosts[worst].steal_ratio <= _STEAL_RATIO:
        return []
    return [Claim("machine", "steal", name=worst, share_ratio=hosts[worst].steal_ratio)]


def _claims_of_thinned_steps(facts: RunFacts) -> list[Claim]:
    if not facts.thinned_count:
        return []
    every = Evidence("all_steps", "steps", items_count=facts.steps_count + facts.thinned_count)
    return [Claim("machine", "thinned", items_count=facts.steps_count, evidence=(every,))]


def killed_claims(trace: Trace) -> list[Claim]:
    """Return a claim about ranks and workers that a signal ended, except by their launcher or loader on purpose."""
    table = killed(trace)
    rows = [
        Evidence(
            "killed",
            "killed",
            number,
            rank=row["rank"],
            worker_id=row["worker_id"],
            of_count=row["pid"],
            kind=row["sender"],
            name=row["signal"],
        )
        for number, row in enumerate(table.rows())
        if row["sender"] in ("unknown", "kernel")
    ]
    return [Claim("machine", "killed", items_count=len(rows), evidence=tuple(rows))] if rows else []


def _restarts(trace: Trace) -> list[Claim]:
    """Return a claim about the other starts of an elastic job, whose ranks these are not."""
    rows = trace.losses.take(trace.losses["name_code"] == trace.strings.find("other_starts"))
    texts = [trace.text(code) for code in rows["advice_code"].tolist()]
    return [Claim("machine", "restarts", items_count=int(rows["lost_count"].sum()), name=texts[0])] if texts else []


def _hosts(facts: RunFacts) -> list[Claim]:
    """Return a claim about the ranks of each host, if there are several hosts."""
    hosts = facts.hosts
    if len(hosts) < 2:
        return []
    rows = []
    for host, ranks in hosts.items():
        known = sorted({r for r in ranks if r >= 0})
        others = sum(r < 0 for r in ranks)
        rows.append(
            Evidence("host", "processes", items_count=len(known), of_count=others, kind=ranks_text(known), name=host)
        )
    return [Claim("machine", "hosts", items_count=len(hosts), evidence=tuple(rows))]


def _hidden(facts: RunFacts) -> list[Claim]:
    """Return a claim about work hidden by the step, which becomes a stall if what hides it becomes faster."""
    if not facts.ranks:
        return []
    table = facts.tables["hidden"]
    counted = table.take(np.isin(table["step"], facts.tables["steps"]["step"]))
    if not len(counted):
        return []
    wall = float(counted["wall_ns"].mean())
    amounts = {name: float(counted[f"hidden_{name}_ns"].mean()) for name in _HIDDEN}
    rows = [
        Evidence("hidden", "hidden", amount_ns=ns, kind=name)
        for name, ns in amounts.items()
        if ns >= _HIDDEN_RATIO * wall
    ]
    rows += _background_saves(facts)
    return [Claim("beside", "hidden", evidence=tuple(rows))] if rows else []


def _background_saves(facts: RunFacts) -> list[Evidence]:
    """Return evidence of the checkpoints that other threads wrote while steps went on."""
    phases = facts.trace.phases
    saves = (phases["phase_code"] == Phase.CHECKPOINT) & ((phases["phase_flags"] & PhaseFlag.BACKGROUND) != 0)
    mine = phases.take(saves)
    if not len(mine):
        return []
    lengths = mine["end_ns"] - mine["begin_ns"]
    rank_of = dict(
        zip(facts.trace.processes["process_id"].tolist(), facts.trace.processes["rank"].tolist(), strict=True)
    )
    ranks = ranks_text(sorted({rank_of[process] for process in mine["process_id"].tolist()}))
    mean, longest = float(lengths.mean()), int(lengths.max())
    return [Evidence("background_saves", "phases", items_count=len(mine), amount_ns=mean, high_ns=longest, name=ranks)]


def _copies(facts: RunFacts) -> list[Claim]:
    """Return a claim about staged copies and whether the job opened them."""
    return [Claim("beside", "staged", items_count=staged_opens(facts.trace))] if used_copies(facts.trace) else []


#: What further claims are about -> who finds them, in reading order.
_DETECTORS: dict[str, Callable[[RunFacts], list[Claim]]] = {
    "the time before the first step": lambda facts: start_claims(facts.trace) if facts.ranks else [],
    "ranks with fewer steps": _uneven,
    "what the hypervisor took": _steal,
    "steps without timing events": _claims_of_thinned_steps,
    "what was left out": lambda facts: scope_claims(facts.trace),
    "emulated computing": lambda facts: emulated_claims(facts.trace),
    "killed processes": lambda facts: killed_claims(facts.trace),
    "other starts of the job": lambda facts: _restarts(facts.trace),
    "processes that still ran": lambda facts: outlived_claims(facts.trace),
    "the hosts": _hosts,
    "what the step hides": _hidden,
    "where it computes": computing_claims,
    "staged copies": _copies,
    "how far to trust it": lambda facts: trust_claims(facts.trace, facts.trust),
    "how brackets and kernels agree": _agreement,
}


def limit_claims(trace: Trace) -> list[Claim]:
    """Collect what was lost or left out, and how the job failed; empty for a complete recording.

    The claims are those of the summary, for answers without it. They need the tables of losses, processes and phases,
    and no analysis.
    """
    losses = loss_claims(trace)
    whole = [Claim("headline", "steps", name="recording", items_count=1)] if one_recording(trace) else []
    return [
        *(claim for claim in losses if claim.section == "headline"),
        *whole,
        *left_out_claims(trace),
        *killed_claims(trace),
        *failure_claims(trace),
        *(claim for claim in losses if claim.section == "loss"),
    ]


def files_claims(trace: Trace) -> list[Claim]:
    """Return claims about the files of a run without steps: all I/O, and the files that took longest."""
    summed = trace.io_totals
    if not trace.io_rows_count and not len(summed):
        if trace.strings.find("imported") in trace.metadata["key_code"].tolist():
            return []  # the other tool may record no files
        return [Claim("files", "no_files")]
    looked_up = int(summed["other_ns"].sum())
    moved = int(summed["read_bytes"].sum() + summed["write_bytes"].sum())
    size = len(trace.strings)
    files = GroupBy.numbered(summed["path_code"], size)
    spent = files.sum(summed["read_ns"] + summed["write_ns"] + summed["other_ns"])
    calls = files.sum(summed["opens_count"] + summed["reads_count"] + summed["writes_count"])
    for io in trace.io_pieces():
        moved += int(np.maximum(io["result_bytes"], 0).sum())
        files = GroupBy.numbered(io["path_code"], size)
        spent += files.sum(io["end_ns"] - io["begin_ns"])
        calls += files.sizes
        looked_up += int((io["end_ns"] - io["begin_ns"])[~np.isin(io["op_code"], _MOVING_OPS)].sum())
    processes = _stated_processes(trace) or len(np.unique(trace.processes["process_id"]))
    whole = Evidence(
        "io_calls", "io", amount_ns=spent.sum(), items_count=int(calls.sum()), of_count=processes, moved_bytes=moved
    )
    used = np.flatnonzero(calls)
    longest = used[np.argsort(-spent[used], kind="stable")[:_FILES_AT_MOST]].tolist()
    rows = [
        Evidence("file_calls", "io", amount_ns=spent[c], items_count=int(calls[c]), name=trace.text(c)) for c in longest
    ]
    share = looked_up / max(int(spent.sum()), 1)
    if share >= _METADATA_RATIO:
        rows.insert(0, Evidence("metadata_calls", "io", amount_ns=looked_up, part_ratio=share))
    return [Claim("files", "files", items_count=int(calls.sum()), evidence=(whole, *rows))]


def _stated_processes(trace: Trace) -> int:
    """Return how many processes the files say the job had, 0 if they do not say; files of single processes add up."""
    stated = trace.metadata["value_code"][trace.metadata["key_code"] == trace.strings.find(PROCESSES)]
    return sum(int(text) for text in map(trace.text, stated.tolist()) if text.isdecimal())
