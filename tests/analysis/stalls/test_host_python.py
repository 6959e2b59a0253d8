"""Code of the loop outside forward, backward and optimizer: a separate kind, named by annotation or file."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from analysis.table_text import stall_text
from builders import MS, ProcessBuilder, TraceBuilder
from summary.scenes import Verdict, verdicts

from stashtrace.analysis.stalls.budget import stalls
from stashtrace.analysis.stragglers.late import late
from stashtrace.replay.causes import causes
from stashtrace.schema.kinds import IoOp, WaitOp
from stashtrace.schema.trace import Trace
from stashtrace.summary.words.cause_templates import cause_text

STEPS, STEP = 8, 100 * MS


def loop(fill: Callable[[ProcessBuilder, int], None] | None = None, *, ran: int = 30 * MS, gap: int = 30 * MS) -> Trace:
    """Steps of 100 ms: a gap, of which ``ran`` is on a CPU, then forward and backward, then the optimizer."""
    build = TraceBuilder()
    rank, cpu = build.rank(0), 0
    for number in range(STEPS + 1):
        begin = number * STEP
        rank.step_mark(begin)
        if number == STEPS:
            break
        if fill is not None:
            fill(rank, begin)
        cpu += ran
        for kind, since, until in (
            ("forward", gap, 50 * MS),
            ("backward", 50 * MS, 95 * MS),
            ("optimizer", 95 * MS, STEP),
        ):
            clocks = (cpu, cpu + until - since)
            rank.phase(kind, begin + since, begin + until, cpu=clocks, runqueue=(0, 0))
            cpu = clocks[1]
    rank.lives(0, STEPS * STEP)
    return build.trace()


def the_verdict(trace: Trace) -> Verdict:
    (verdict,) = verdicts(trace)
    return verdict


def the_cause(trace: Trace) -> str:
    return cause_text(next(iter(causes(trace).rows())), "RUN")


def test_what_runs_between_the_phases_is_host_python() -> None:
    trace = loop()
    assert stall_text(trace).splitlines()[1] == "0 1: compute 70 [70..100], python 30 [0..30]"
    table = stalls(trace)
    own = table.take((table["kind"] == "python") & (table["step"] == 1))
    assert (own["low_ns"][0], own["high_ns"][0]) == (0, 30 * MS), "operators that no module calls look the same"
    verdict = the_verdict(trace)
    assert verdict.kind == "host"
    assert verdict.text == (
        "rank 0 spends 30.0 ms a step (30 %) in code of the loop outside forward, backward and optimizer"
    )


def test_an_annotation_names_it() -> None:
    trace = loop(lambda rank, at: rank.annotate("tokenize", at + 2 * MS, at + 29 * MS) and None)
    verdict = the_verdict(trace)
    assert verdict.text.endswith(", mostly in tokenize")
    assert verdict.evidence == ("27.0 ms a step in tokenize",)


def test_a_file_names_it() -> None:
    """Writes that the page cache takes at once block nobody; they are time in write()."""

    def log(rank: ProcessBuilder, at: int) -> None:
        for n in range(5):
            rank.io(at + 5 * n * MS, at + 5 * (n + 1) * MS, op=IoOp.WRITE, path="/logs/train.slowlog")

    trace = loop(log)
    assert the_verdict(trace).text.startswith("rank 0 spends 30.0 ms a step (30 %) in code of the loop outside forward")
    assert the_cause(trace).startswith("rank 0 writes train.slowlog 30.0 ms a step (30 %); this code twice as fast: ")


def test_blocked_writes_name_the_file() -> None:
    def log(rank: ProcessBuilder, at: int) -> None:
        rank.io(at, at + 25 * MS, op=IoOp.WRITE, path="/logs/train.slowlog", blocked=True)

    trace = loop(log, ran=2 * MS, gap=27 * MS)
    assert stall_text(trace).splitlines()[1] == "0 1: compute 73 [73..75], python 2 [0..2], other 25"
    assert the_verdict(trace).text == "rank 0 is blocked 25.0 ms a step (25 %) in calls on files"
    assert the_cause(trace).startswith(
        "rank 0 writes train.slowlog 25.0 ms a step (25 %); without this wait: saves 25.0"
    )


@pytest.mark.parametrize("has_loader", [False, True])
def test_reads_without_a_loader_name_the_file(has_loader: bool) -> None:
    """Nothing waits for batches where there is none, and where the loader is quick."""

    def read(rank: ProcessBuilder, at: int) -> None:
        rank.io(at, at + 25 * MS, path="/data/corpus.bin", blocked=True)
        if has_loader:
            rank.batch_wait(at // STEP, at + 25 * MS, at + 26 * MS, worker=0)

    trace = loop(read, ran=2 * MS, gap=27 * MS)
    verdict = the_verdict(trace)
    assert verdict.text == "rank 0 is blocked 25.0 ms a step (25 %) in reads of files"
    assert the_cause(trace).startswith("rank 0 reads corpus.bin 25.0 ms a step (25 %); without waits for storage")
    assert "batches" not in verdict.text + " ".join(verdict.evidence)
    assert "workers" not in " ".join(verdict.evidence)


def test_garbage_collection_is_named() -> None:
    trace = loop(lambda rank, at: rank.gc(at, at + 24 * MS) and None)
    assert the_verdict(trace).evidence == ("24.0 ms a step of it is garbage collection",)
    assert the_cause(trace).startswith("rank 0 collects garbage ")


def test_little_of_it_is_no_verdict() -> None:
    trace = loop(ran=2 * MS, gap=2 * MS)
    assert the_verdict(trace).text == "no stall above 3 %: compute bound"


def test_a_loop_without_phases_is_not_compute_bound() -> None:
    """A thread that ran all the time between marks of steps: in operators or in Python, nothing shows which."""
    build = TraceBuilder()
    rank = build.rank(0)
    for number in range(STEPS + 1):
        rank.step_mark(number * STEP)
    for number in range(STEPS):
        rank.annotate("work", number * STEP, (number + 1) * STEP - 1)
    rank.lives(0, STEPS * STEP)
    verdict = the_verdict(build.trace())
    assert verdict.kind == "not_told"


def test_a_sleep_is_still_a_sleep() -> None:
    trace = loop(lambda rank, at: rank.wait(WaitOp.SLEEP, at, at + 28 * MS) and None, ran=2 * MS)
    assert stall_text(trace).splitlines()[1] == "0 1: compute 70 [70..72], python 2 [0..2], other 28"
    assert "asleep" in the_verdict(trace).text


def test_a_rank_late_by_it_is_reported_so() -> None:
    """Rank 1 tokenizes 30 ms more than rank 0 before each all-reduce."""
    build = TraceBuilder()
    for number in range(STEPS):
        begin, entered = number * STEP, {}
        for rank in range(2):
            process, more = build.rank(rank), 30 * MS * rank
            ahead = number * (30 + 60) * MS + number * 30 * MS * rank
            process.phase("forward", begin + more, begin + more + 20 * MS, cpu=(ahead + more, ahead + more + 20 * MS))
            if more:
                process.annotate("tokenize", begin, begin + more)
            entered[rank] = begin + more + 20 * MS
        build.meet(entered, begin + 55 * MS, update_ns=5 * MS)
    for rank in range(2):
        build.rank(rank).lives(0, STEPS * STEP)
    table = late(build.trace())
    rows = [row for row in table.rows() if row["step"] > 0]
    assert {(row["late_rank"], row["cause_kind"], row["cause_name"]) for row in rows} == {(1, "python", "tokenize")}


def test_a_rank_late_by_reads_does_not_wait_for_batches() -> None:
    """Rank 1 reads a file for 30 ms before each all-reduce (in 7 of 8 steps); there is no loader."""
    build = TraceBuilder()
    for number in range(STEPS):
        begin, entered = number * STEP, {}
        for rank in range(2):
            process, more = build.rank(rank), 30 * MS * rank
            process.phase("forward", begin + more, begin + more + 20 * MS)
            if more:
                process.io(begin, begin + more, path="/data/shard-0017.tar", blocked=True)
            entered[rank] = begin + more + 20 * MS
        build.meet(entered, begin + 95 * MS, update_ns=5 * MS)
    for rank in range(2):
        build.rank(rank).lives(0, STEPS * STEP)
    said = [sentence for verdict in verdicts(build.trace()) for sentence in (verdict.text, *verdict.evidence)]
    assert any(one.startswith("rank 1 is blocked 26.2 ms a step (27 %) in reads of files") for one in said)
    (late,) = (verdict for verdict in verdicts(build.trace()) if verdict.kind == "late")
    assert late.text.endswith(", all of it for rank 1")
    assert not any("batch" in sentence or "worker" in sentence for sentence in said)


@pytest.mark.parametrize(("op", "kind"), [(WaitOp.SEMAPHORE, "other"), (WaitOp.COND_WAIT, "compute")])
def test_a_lock_of_python_is_no_computation_where_it_has_a_name(op: WaitOp, kind: str) -> None:
    """A loop without phases waits 60 of 100 ms inside an annotation, as for a pool: a thread of torch's may compute."""
    build = TraceBuilder()
    rank = build.rank(0)
    for number in range(STEPS + 1):
        begin = number * STEP
        rank.step_mark(begin)
        if number < STEPS:
            rank.annotate("gather", begin, begin + 90 * MS)
            rank.wait(op, begin + 10 * MS, begin + 70 * MS)
    table = stalls(build.trace())
    spent = table["stall_ns"][table["kind"] == kind].sum() / len(set(table["step"].tolist()))
    assert spent >= 60 * MS
