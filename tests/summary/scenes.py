"""Small runs with one thing wrong, built by hand: what the summary must say about each is in test_summary.py."""

from __future__ import annotations

from dataclasses import dataclass

from builders import MS, TraceBuilder

from stashtrace.analysis.findings.all_claims import claims_of
from stashtrace.analysis.findings.claim_rows import Claim, tables_of
from stashtrace.analysis.findings.summary_input import RunFacts, gather
from stashtrace.schema.trace import Trace
from stashtrace.summary.words import claim_text, evidence_texts, findings_of

STEPS = 12


@dataclass(frozen=True)
class Verdict:
    kind: str
    share: float
    text: str
    evidence: tuple[str, ...]


def verdicts(run: Trace | RunFacts) -> list[Verdict]:
    facts = gather(run) if isinstance(run, Trace) else run
    return [
        Verdict(f.row["kind"], f.row["share_ratio"], claim_text(f), tuple(evidence_texts(f)))
        for f in findings_of(*tables_of(claims_of(facts)))
        if f.row["section"] == "verdict"
    ]


def worded(*claims: Claim) -> list[str]:
    """Claims with their evidence, each as one text."""
    return ["; ".join([claim_text(f), *evidence_texts(f)]) for f in findings_of(*tables_of(claims))]


def job(
    ranks: int = 2,
    *,
    prep: dict[int, int] | None = None,
    fetch: dict[int, int] | None = None,
    sleep: dict[int, int] | None = None,
    transfer: int = 2,
    workers: int = 1,
    hosts: tuple[str, ...] = ("node00",),
) -> tuple[TraceBuilder, Trace]:
    """A data-parallel job of 12 steps: batch wait, forward 10 ms, backward 20 ms, all-reduce, optimizer 1 ms.

    ``prep``, ``fetch`` and ``sleep`` are extra milliseconds a step of a rank: in its worker on the CPU, in its worker
    blocked in storage, in its thread between backward and the all-reduce.
    """
    build = TraceBuilder(hosts)
    clock = dict.fromkeys(range(ranks), 0)
    for step in range(STEPS):
        entered: dict[int, int] = {}
        for rank in range(ranks):
            process, now = build.rank(rank), clock[rank]
            slow, blocked = (prep or {}).get(rank, 0) * MS, (fetch or {}).get(rank, 0) * MS
            wait = slow + blocked
            worker = process.worker(step % workers)
            begin = now if wait else now - 5 * MS
            worker.fetch(step, begin, begin + max(wait, 4 * MS), cpu=slow or 4 * MS, runqueue=0)
            if blocked:
                worker.io(begin, begin + blocked, path="/data/train-0117.tar", blocked=True, result_bytes=blocked // 25)
            process.batch_wait(step, now, now + wait + MS // 10, worker=step % workers)
            now += wait + MS // 10
            process.phase("forward", now, now + 10 * MS).phase("backward", now + 10 * MS, now + 30 * MS)
            entered[rank] = now + 30 * MS + (sleep or {}).get(rank, 0) * MS
        end = max(entered.values()) + transfer * MS
        build.meet(entered, end, message_bytes=40_000_000)
        for rank in entered:
            build.rank(rank).phase("optimizer", end, end + MS)
            clock[rank] = end + MS
    return build, build.trace("./stash-0412")
