"""Where a job stood still: the ranks at which all waits end, and nobody else."""

from __future__ import annotations

import re

import pytest
from builders import MS, S, TraceBuilder
from corpus import corpus
from hung_jobs import ended, pending, started

import stashtrace
from stashtrace.analysis.findings import summarize
from stashtrace.analysis.findings.ending.stuck import NOT_FINISHED, Stuck, find_stuck
from stashtrace.analysis.findings.rules.ending.hangs import stuck_at_end
from stashtrace.schema.kinds import CollectiveOp, ElementType, SpanKind, TrackKind
from stashtrace.schema.trace import Trace
from stashtrace.summary.summary_text import summary
from stashtrace.summary.words import claim_text, evidence_texts, findings_of
from stashtrace.text.units import ranks_in

TP = 0x11


def stuck(build: TraceBuilder, end_ns: int = 40 * S) -> Stuck | None:
    return find_stuck(ended(build, end_ns), end_ns)


def sentences(trace: Trace) -> list[str]:
    tables = summarize(trace)
    return [claim_text(f) for f in findings_of(tables.findings, tables.evidence) if f.row["section"] == "headline"]


def evidence(trace: Trace) -> list[str]:
    tables = summarize(trace)
    return evidence_texts(findings_of(tables.findings, tables.evidence)[0])


def test_a_device_that_did_not_finish_what_others_finished() -> None:
    build = started(2)
    build.collective({0: (40 * MS, 41 * MS), 1: (40 * MS, -1, -1)})
    build.collective(pending(0, 1, at=50 * MS))
    found = stuck(build)
    (root,) = found.roots
    assert (root.rank, root.lack, root.operation.sequence) == (1, NOT_FINISHED, 3)


def test_a_message_that_is_not_sent() -> None:
    build = started()
    build.collective({1: (40 * MS, -1, -1)}, op=CollectiveOp.RECEIVE, sequence=0, peer_rank=0)
    found = stuck(build)
    assert [(root.rank, root.operation.operation) for root in found.roots] == [(0, "receive")]


def test_messages_that_met_wait_for_nobody_else() -> None:
    build = started(2)
    build.collective({1: (40 * MS, -1, -1)}, op=CollectiveOp.RECEIVE, sequence=0, peer_rank=0)
    build.collective({0: (40 * MS, -1, -1)}, op=CollectiveOp.SEND, sequence=0, peer_rank=1)
    assert stuck(build) is None


def test_ranks_that_wait_for_each_other() -> None:
    build = started(2)
    build.group([0, 1], group=TP, name="tp")
    build.collective(pending(0))
    build.collective(pending(1), group=TP, sequence=0)
    trace = ended(build)
    assert sentences(trace)[0] == "the job hung: ranks 0,1 wait for each other"
    assert evidence(trace) == [
        "rank 0 waits in all-reduce 3 of default_pg",
        "rank 1 waits in all-reduce 0 of tp",
    ]


def test_all_inside_and_none_leaves() -> None:
    build = started(2)
    build.collective(pending(0, 1))
    assert sentences(ended(build))[0].startswith("the job hung inside all-reduce 3 of default_pg: its members have")


def test_collectives_of_different_kinds_are_named() -> None:
    build = started()
    build.collective(pending(0, 2, 3))
    build.collective(pending(1), op=CollectiveOp.BARRIER, sequence=3)
    assert sentences(ended(build))[0] == (
        "mismatched collectives: as number 3 of default_pg, ranks 0,2,3 called all-reduce, while rank 1 called barrier"
    )


def test_a_backend_that_ends_one_rank_at_once_leaves_the_other_an_end() -> None:
    """Gloo aborts the rank that gave fewer bytes (``gloo/transport/tcp/pair.cc``); the other's call returns."""
    build = started(2)
    build.collective({0: (40 * MS, 90 * MS, 90 * MS)}, message_bytes=405_544)
    build.collective(pending(1), message_bytes=16, sequence=3)
    assert sentences(ended(build))[0] == (
        "mismatched message sizes in all-reduce 3 of default_pg: rank 0 406 KB, rank 1 16 B"
    )


@pytest.mark.parametrize("failed_s", [0.1, 30.0])
def test_a_rank_that_fails_inside_at_once_is_a_crash_and_one_that_fails_late_a_hang(failed_s: float) -> None:
    build = started(2)
    build.collective(pending(0, 1))
    failed_ns = 40 * MS + round(failed_s * S)
    build.rank(1).span(SpanKind.EXCEPTION, failed_ns, failed_ns, "RuntimeError: no memory")
    said = " ".join(sentences(ended(build)))
    assert ("hung" in said) == (failed_s > 1)
    assert "rank 1 raised RuntimeError: no memory" in said


def test_collectives_of_different_element_types_are_named() -> None:
    """Before their sizes, which differ because the types do; ended ones and unknown types say nothing."""
    build = started(3)
    for rank in range(3):
        build.collective({rank: (35 * MS, 36 * MS)}, sequence=3, element=ElementType.INT64 if rank else 1)
    for rank, element in enumerate((ElementType.FLOAT32, ElementType.BFLOAT16, ElementType.FLOAT32)):
        build.collective(pending(rank), message_bytes=4096 // (1 + rank % 2), sequence=4, element=element)
    assert sentences(ended(build))[0] == (
        "mismatched element types in all-reduce 4 of default_pg: ranks 0,2 float32, rank 1 bfloat16"
    )
    table = stashtrace.analyze(build.trace(), "collectives")
    assert sorted(table["element_type"][table["sequence"] == 4].tolist()) == ["bfloat16", "float32", "float32"]
    assert set(table["element_type"][table["sequence"] == 0].tolist()) == {""}


def test_an_unknown_element_type_is_no_mismatch() -> None:
    build = started(2)
    build.collective(pending(0), element=ElementType.FLOAT32)
    build.collective(pending(1), sequence=3)
    found = stuck(build)
    assert found.mismatch is None


def test_a_wait_that_ended_with_the_job_is_still_reported() -> None:
    build = started(2)
    build.collective({0: (40 * MS, 4 * S)}, sequence=3)  # ended by the connection that broke
    found = stuck(build)
    assert [root.rank for root in found.roots] == [1]


def test_a_root_that_is_done_waits_for_nobody() -> None:
    build = TraceBuilder()
    build.group([0, 1])
    build.collective({0: (0, MS)}, op=CollectiveOp.BROADCAST)
    assert stuck(build) is None


def test_a_job_that_ended_well_did_not_hang() -> None:
    build = started()
    build.collective(pending(0, 1, 3))
    build.say("exit_code", "0")
    assert not any("hung" in text for text in sentences(ended(build)))


def test_a_wait_as_long_as_those_of_its_steps_is_no_hang() -> None:
    build = TraceBuilder()
    build.group([0, 1])
    for step in range(8):
        for rank in (0, 1):
            at = step * 4 * S
            build.rank(rank).phase("forward", at, at + S).phase("backward", at + S, at + 2 * S)
            build.rank(rank).phase("optimizer", at + 3 * S, at + 3 * S + MS)
        build.collective({0: (at + 2 * S, at + 3 * S), 1: (at + 2 * S, at + 3 * S)})
    build.collective({0: (34 * S, -1, -1)})
    assert stuck_at_end(ended(build, 37 * S)) is None


def test_what_the_rank_did_last_is_said() -> None:
    """Rank 1 stands still after a backward, where it stepped its optimizer before, and its thread does not run."""
    build = TraceBuilder()
    build.group([0, 1])
    for step in range(6):
        at = step * 20 * MS
        for rank in (0, 1):
            process = build.rank(rank).phase("forward", at, at + 5 * MS).phase("backward", at + 5 * MS, at + 10 * MS)
            if step < 5:
                process.phase("optimizer", at + 11 * MS, at + 12 * MS)
        if step < 5:
            build.collective({0: (at + 10 * MS, at + 11 * MS), 1: (at + 10 * MS, at + 11 * MS)})
    build.collective({0: (110 * MS, -1, -1)})
    process = build.rank(1)
    native = 1000 + process.process_id
    track = build.track(process.process_id, native, "thread_run_ns_total", kind=TrackKind.COUNTER, unit="ns")
    for second in range(1, 31):
        build.add("counters", ts_ns=second * S, track_id=track, value=5e9)
    trace = build.trace()
    assert sentences(trace)[0] == "the job hung: rank 1 has not entered all-reduce 5 of default_pg, 1.05 MB"
    assert evidence(trace) == [
        "rank 0 waits in it for 29.9 s",
        "rank 1 last called number 4",
        "the last thing that rank 1 finished is a backward, 29.9 s before the records end",
        "in the steps before, all-reduce came next",
        "since then its thread has not run: it sleeps, or is inside a call that has not returned",
    ]
    for call, reported in (
        ("read /data/queue.fifo", "since then it is inside read() of /data/queue.fifo"),
        ("futex", "since then it is waiting for a lock, a condition or another thread"),
        ("", "since then its thread has not run: it sleeps, or is inside a call that has not returned"),
    ):
        build.say("stands_in", call, process.process_id)
        assert evidence(build.trace())[-1] == reported


@pytest.mark.parametrize("name", ["hang_gpu_error_1st", "hang_lock_gil_1st"])
def test_the_injected_ranks_of_dumps_are_named_and_nobody_else(name: str) -> None:
    folder = corpus(f"flight_recorder/{name}")
    first = (folder / "fault_injection.log").read_text(encoding="utf-8").splitlines()[0]
    injected = [int(number) for number in re.findall(r"\d+", first)]
    trace = stashtrace.load(folder)
    hung = [row for row in summarize(trace).findings.rows() if row["kind"] == "hung"]
    assert sorted(rank for row in hung for rank in ranks_in(row["ranks"])) == injected
    shown = summary(trace)
    assert shown.startswith("the job hung: ")
    assert "no steps are recorded" not in shown
    rows = list(stashtrace.analyze(trace, "hang").rows())
    assert [(row["rank"], row["since_ns"], row["activity"]) for row in rows] == [(r, -1, "unknown") for r in injected]
