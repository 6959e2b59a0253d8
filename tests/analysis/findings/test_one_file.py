"""What a rank is blocked in: calls on one file are one cause with all of their time, sockets and pipes have names."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from typing import Any

import pytest
from builders import MS, ProcessBuilder, TraceBuilder
from summary.scenes import Verdict, verdicts
from wait_chains import Job

from stashtrace.analysis.findings import summarize
from stashtrace.analysis.findings.all_claims import claims_of
from stashtrace.analysis.findings.claim_rows import Claim
from stashtrace.analysis.findings.summary_input import gather
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.analysis.steps.threads import step_threads
from stashtrace.analysis.stragglers.cause_names import file_calls
from stashtrace.analysis.stragglers.late import late
from stashtrace.replay.causes import causes
from stashtrace.report.wait_text import wait_text
from stashtrace.schema.kinds import IoFlag, IoOp, WaitOp
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace
from stashtrace.summary.summary_document import document

STEPS, STEP = 24, 100 * MS
LOG, SHARD = "/logs/train.slowlog", "/data/shard-0000.bin"
Fill = Callable[[ProcessBuilder, int], None]


def write_log(rank: ProcessBuilder, at: int) -> None:
    """30 ms in calls on one file: 6 ms that an open blocks, 8 ms of copies, 16 ms that fsync blocks."""
    rank.io(at, at + 6 * MS, op=IoOp.OPEN, path=LOG, blocked=True)
    rank.io(at + 6 * MS, at + 14 * MS, op=IoOp.WRITE, path=LOG)
    rank.io(at + 14 * MS, at + 30 * MS, op=IoOp.FSYNC, path=LOG, blocked=True)


def alone(fill: Fill, *, ran: int, gap: int) -> Trace:
    """One rank: in each step a gap of which the thread runs for ``ran``, then phases up to 100 ms."""
    build = TraceBuilder()
    rank, cpu = build.rank(0), 0
    for number in range(STEPS + 1):
        begin = number * STEP
        rank.step_mark(begin)
        if number == STEPS:
            break
        fill(rank, begin)
        cpu += ran
        for kind, since, until in (("forward", gap, 95 * MS), ("optimizer", 95 * MS, STEP)):
            rank.phase(kind, begin + since, begin + until, cpu=(cpu, cpu + until - since), runqueue=(0, 0))
            cpu += until - since
    rank.lives(0, STEPS * STEP)
    return build.trace()


def two(fill: Fill, *, ran: int, gap: int) -> Trace:
    """Two ranks: rank 0 has a gap of ``gap`` before its forward of 20 ms, and rank 1 waits for it in an all-reduce."""
    build = TraceBuilder()
    cpu, end = [0, 0], gap + 25 * MS
    for number in range(STEPS):
        begin, entered = number * STEP, {}
        for rank in range(2):
            process, more = build.rank(rank), 0 if rank else gap
            process.step_mark(begin)
            if rank == 0:
                fill(process, begin)
                cpu[rank] += ran
            clocks = (cpu[rank], cpu[rank] + 20 * MS)
            process.phase("forward", begin + more, begin + more + 20 * MS, cpu=clocks, runqueue=(0, 0))
            cpu[rank] = clocks[1]
            entered[rank] = begin + more + 20 * MS
        build.meet(entered, begin + end)
        for rank in range(2):
            clocks = (cpu[rank], cpu[rank] + STEP - end)
            build.rank(rank).phase("optimizer", begin + end, begin + STEP, cpu=clocks, runqueue=(0, 0))
            cpu[rank] = clocks[1]
            build.rank(rank).lives(0, STEPS * STEP)
    return build.trace()


def claims(trace: Trace) -> list[Claim]:
    return [claim for claim in claims_of(gather(trace)) if claim.section == "verdict"]


def sentences(found: list[Verdict]) -> list[str]:
    return [text for verdict in found for text in (verdict.text, *verdict.evidence)]


def cause(trace: Trace) -> dict[str, Any]:
    (found,) = causes(trace).rows()
    return found


def test_the_parts_of_three_kinds_are_one_cause() -> None:
    found = cause(alone(write_log, ran=8 * MS, gap=30 * MS))
    assert (found["file"], found["file_call"], found["files_count"]) == (LOG, "fsync", 1)
    assert found["work_ns"] == 30 * MS


@pytest.mark.parametrize("journal", ["/data/runs.db-journal", "/data/runs.db-wal"])
def test_a_database_and_its_journal_are_one_file(journal: str) -> None:
    def fill(rank: ProcessBuilder, at: int) -> None:
        for path, begin in ((journal, at), ("/data/runs.db", at + 15 * MS)):
            rank.io(begin, begin + 5 * MS, op=IoOp.PWRITE, path=path)
            rank.io(begin + 5 * MS, begin + 15 * MS, op=IoOp.FSYNC, path=path, blocked=True)

    trace = alone(fill, ran=10 * MS, gap=30 * MS)
    found = cause(trace)
    assert (found["file"], found["files_count"], found["work_ns"]) == ("/data/runs.db", 1, 30 * MS)
    assert verdicts(trace)[0].text == "rank 0 is blocked 20.0 ms a step (20 %) in calls on files"


def test_a_cached_file_is_named() -> None:
    """Reads of 25 ms that the page cache serves block nobody, and are no row of ``notable_io`` in a large run."""

    def fill(rank: ProcessBuilder, at: int) -> None:
        rank.io(at, at + 25 * MS, op=IoOp.FREAD, path="/data/features-1.npy")

    trace = alone(fill, ran=30 * MS, gap=30 * MS)
    assert cause(trace)["file"] == "/data/features-1.npy"
    (verdict,) = verdicts(trace)
    assert verdict.text.startswith("rank 0 spends 30.0 ms a step (30 %) in code of the loop outside")


class _OnDisk:
    """The calls of a trace as a large run leaves them: only those that blocked are in memory."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self.rows_count = len(table)
        self.counts = [len(table)]
        self.begin_ns, self.end_ns = int(table["begin_ns"].min()), int(table["end_ns"].max())
        self.notable = table.take((table["io_flags"] & int(IoFlag.BLOCKED)) != 0)
        self.passes = 0

    def whole(self) -> Table:
        raise AssertionError("the calls of a large run stay on disk")

    def pieces(self, process_ids: Collection[int] | None = None) -> Iterator[Table]:
        self.passes += 1
        half = self.rows_count // 2
        for rows in (range(half), range(half, self.rows_count)):
            yield self._table.take(slice(rows.start, rows.stop))


def test_calls_that_stay_on_disk_count_and_are_read_once() -> None:
    made = alone(write_log, ran=8 * MS, gap=30 * MS)
    outline: Any = _OnDisk(made.io)
    tables = {name: made.table(name) for name in made._tables if name != "io"}
    trace = Trace(made.strings, tables, io_outline=outline)
    index = TraceIndex(trace)
    (thread,) = step_threads(trace)
    assert file_calls(index, thread).time.total_ns == STEPS * 30 * MS
    once = outline.passes
    file_calls(index, thread)
    assert outline.passes == once, "the calls of a thread are kept with the trace"


def test_many_files_none_of_which_takes_most() -> None:
    def fill(rank: ProcessBuilder, at: int) -> None:
        rank.io(at, at + 15 * MS, path=f"/data/shard-{at // STEP:04}.bin", blocked=True)
        rank.io(at + 15 * MS, at + 25 * MS, path=f"/data/shard-{at // STEP:04}.bin")

    trace = alone(fill, ran=10 * MS, gap=25 * MS)
    assert [(row["kind"], row["file"], row["work_ns"]) for row in causes(trace).rows()] == [
        ("fetch", "", 15 * MS),
        ("python", "", 10 * MS),
    ]
    assert verdicts(trace)[0].text == "rank 0 is blocked 15.0 ms a step (15 %) in reads of files"


def test_calls_of_sockets_are_no_files() -> None:
    def fill(rank: ProcessBuilder, at: int) -> None:
        rank.io(at, at + 10 * MS, op=IoOp.RECV, path="/run/peer.sock", flags=int(IoFlag.SOCKET), blocked=True)
        rank.io(at + 10 * MS, at + 25 * MS, path="/run/peer.sock", flags=int(IoFlag.SOCKET))

    assert not [row for row in causes(alone(fill, ran=15 * MS, gap=25 * MS)).rows() if row["file"]]


def test_a_late_rank_is_longer_by_all_its_calls() -> None:
    trace = two(write_log, ran=8 * MS, gap=30 * MS)
    (found,) = causes(trace).rows()
    assert (found["ranks"], found["file"], found["work_ns"]) == ("0", LOG, 30 * MS)
    said = sentences(verdicts(trace))
    assert not any("batch" in text or "no known cause" in text for text in said)
    claim = claims(trace)[0]
    assert claim.kind == "late", "the wait of rank 1 is shorter than these calls, and says more"
    assert claim.cause_rank == 0


def test_the_waits_name_the_file_and_all_its_time() -> None:
    table = late(two(write_log, ran=8 * MS, gap=30 * MS))
    rows = [row for row in table.rows() if row["step"] > 0]
    assert {(row["late_rank"], row["cause_name"]) for row in rows} == {(0, LOG)}
    assert {row["named_ns"] for row in rows} == {30 * MS}
    assert "it spent 30.0 ms in calls on train.slowlog" in wait_text(rows[0])


def test_a_chain_is_longer_by_all_its_calls() -> None:
    job_of_three = Job(3)
    for pair in ((0, 1), (1, 2)):
        job_of_three.build.group(list(pair), group=10 + pair[0], name=f"pair{pair[0]}")
    for _ in range(STEPS):
        job_of_three.read(0, 20)
        for rank in range(3):
            job_of_three.compute(rank, 5)
            if rank < 2:
                job_of_three.send(rank, rank + 1, group=10 + rank)
        for rank in range(3):
            job_of_three.update(rank)
    trace = job_of_three.trace()
    (found,) = causes(trace).rows()
    assert (found["ranks"], os.path.basename(found["file"]), found["work_ns"]) == ("0", "shard-0000.bin", 20 * MS)


def waiting(op: IoOp, flags: IoFlag, path: str = "") -> Trace:
    """Make a rank that computes for 12 ms of each step of 20 ms, and is blocked in one call for the rest."""
    build = TraceBuilder()
    rank = build.rank(0)
    for step in range(12):
        now, ran = step * 20 * MS, step * 12 * MS
        rank.phase("forward", now, now + 8 * MS, cpu=(ran, ran + 8 * MS), runqueue=(0, 0))
        rank.io(now + 8 * MS, now + 16 * MS, op=op, path=path, blocked=True, flags=int(flags))
        rank.phase("optimizer", now + 16 * MS, now + 20 * MS, cpu=(ran + 8 * MS, ran + 12 * MS), runqueue=(0, 0))
    return build.trace()


@pytest.mark.parametrize(
    ("trace", "said"),
    [
        (
            waiting(IoOp.RECV, IoFlag.SOCKET),
            "rank 0 is blocked 8.00 ms a step (40 %) in calls of sockets (recv, send, connect)",
        ),
        (
            waiting(IoOp.READ, IoFlag.PIPE),
            "rank 0 is blocked 8.00 ms a step (40 %) in calls of pipes",
        ),
    ],
    ids=("socket", "pipe"),
)
def test_sockets_and_pipes_are_named(trace: Trace, said: str) -> None:
    shown = document(summarize(trace))
    (verdict,) = [row for row in shown["findings"] if row["section"] == "verdict"]
    assert verdict["text"] == said
    # What it waits for is known: nothing of the step is unexplained.
    assert not [row for row in shown["findings"] if row["kind"] == "low_confidence"]
    assert shown["headline"] == said


def test_ranks_that_are_blocked_in_different_calls_have_a_claim_each() -> None:
    """Rank 0 sleeps for 8 ms of each step, rank 1 waits as long for a lock."""
    build = TraceBuilder()
    for number, op in enumerate((WaitOp.SLEEP, WaitOp.COND_WAIT)):
        rank = build.rank(number)
        for step in range(12):
            now, ran = step * 20 * MS, step * 12 * MS
            rank.phase("forward", now, now + 8 * MS, cpu=(ran, ran + 8 * MS), runqueue=(0, 0))
            rank.wait(op, now + 8 * MS, now + 16 * MS)
            rank.phase("optimizer", now + 16 * MS, now + 20 * MS, cpu=(ran + 8 * MS, ran + 12 * MS), runqueue=(0, 0))
    rows = [row for row in document(summarize(build.trace()))["findings"] if row["kind"] == "other"]
    assert {(row["cause_kind"], row["ranks"]) for row in rows} == {("asleep", "0"), ("lock", "1")}
