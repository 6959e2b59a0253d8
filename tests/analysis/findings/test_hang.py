"""analyze hang: one row for each rank that the others wait for, with what a look at its processes adds."""

from __future__ import annotations

from typing import Any

import pytest
from builders import MS, S, TraceBuilder
from hung_jobs import ended, pending, started

from stashtrace.analysis.findings.ending.hang_table import ranks_to_look_at, threads_to_look_at
from stashtrace.analysis.findings.rules.ending.hangs import ending_claims
from stashtrace.analysis.registry import analyze
from stashtrace.errors import MissingDataError
from stashtrace.loading.peeks import with_peeks
from stashtrace.record.peek.model import ELSEWHERE, Peek, Progress, ThreadPeek, way_of_progress
from stashtrace.schema.kinds import CollectiveOp
from stashtrace.schema.strings import StringPool
from stashtrace.schema.trace import Trace
from stashtrace.summary.summary_text import describe_stuck

TP, PP = 0x11, 0x22
MISSING = "rank 2 has not entered all-reduce 3 of default_pg, 1.05 MB"


def one_missing() -> TraceBuilder:
    build = started()
    build.collective(pending(0, 1, 3))
    return build


def rows(trace: Trace) -> list[dict[str, Any]]:
    return list(analyze(trace, "hang").rows())


def seen(build: TraceBuilder, peek: Peek) -> Trace:
    return with_peeks(ended(build), {build.rank(2).process_id: peek.to_text()})


def a_peek(call: str = "", target: str = "", **more: Any) -> Peek:
    frames = ("wait at /usr/lib/python3.11/threading.py:327", "fetch at /job/train.py:41")
    thread = ThreadPeek(1002, "MainThread", "S", 10 * MS, call, target, frames=frames)
    reported = {"thread": thread, "thread_ran_ns": 0, "others_ran_ns": 0, "moved_bytes": 0} | more
    return Peek(4711, 100 * S, S, reported.pop("state", "S"), **reported)


def test_a_row_says_who_where_and_since_when() -> None:
    (row,) = rows(ended(one_missing()))
    assert (row["rank"], row["reason"], row["works"]) == (2, "not_entered", "")
    assert (row["group"], row["operation"], row["sequence"]) == ("default_pg", "all_reduce", 3)
    assert (row["since_ns"], row["waiting"], row["through"]) == (40 * S - 40 * MS, "0,1,3", "")
    assert (row["last_index"], row["activity"], row["place"], row["unseen"]) == (2, "unknown", "", "")


def test_of_a_chain_of_groups_the_root_has_the_row() -> None:
    """Rank 3 waits for rank 2 in one group, rank 2 for rank 0 in another, rank 0 has entered nothing."""
    build = started()
    build.group([2, 3], group=TP, name="tp")
    build.group([0, 2], group=PP, name="pp")
    build.collective(pending(3, at=50 * MS), group=TP, sequence=0)
    build.collective(pending(2, at=45 * MS), group=PP, sequence=0)
    build.collective(pending(1, at=60 * MS))
    trace = ended(build)
    (row,) = rows(trace)
    assert (row["rank"], row["group"], row["waiting"], row["through"]) == (0, "pp", "2", "1,3")
    assert ranks_to_look_at(trace) == [0]


def test_a_job_that_got_on_has_no_row() -> None:
    trace = ended(started(), 100 * MS)
    assert rows(trace) == []
    assert ranks_to_look_at(trace) == []
    with pytest.raises(MissingDataError):
        analyze(Trace(StringPool(), {}), "hang")


def test_a_circle_has_a_row_for_each() -> None:
    build = started(2)
    build.group([0, 1], group=TP, name="tp")
    build.collective(pending(0))
    build.collective(pending(1), group=TP, sequence=0)
    trace = ended(build)
    reported = [(row["rank"], row["reason"], row["group"], row["sequence"]) for row in rows(trace)]
    assert reported == [(0, "circle", "default_pg", 3), (1, "circle", "tp", 0)]
    assert ranks_to_look_at(trace) == [0, 1]


def test_operations_that_differ_in_kind_in_size_and_in_order() -> None:
    build = started()
    build.collective(pending(0, 2, 3))
    build.collective(pending(1), op=CollectiveOp.BARRIER, sequence=3)
    (row,) = rows(ended(build))
    assert (row["rank"], row["reason"], row["operation"], row["sequence"]) == (1, "mismatch", "barrier", 3)

    build = started(2)
    for rank, sizes in ((0, (4_000_000, 8_000_000)), (1, (8_000_000, 4_000_000))):
        for number, size in enumerate(sizes, 3):
            build.collective(pending(rank, at=(40 + number) * MS), message_bytes=size, sequence=number)
    said = describe_stuck(ended(build))
    assert said[0] == "mismatched message sizes in all-reduce 3 of default_pg: rank 0 4.00 MB, rank 1 8.00 MB"
    assert said[1] == "  as number 4 they call them the other way round: the order differs between ranks"


def test_a_backend_that_ended_the_rank_at_once_hides_no_mismatch() -> None:
    build = started(2)
    build.collective(pending(0), message_bytes=4_000_000)
    build.collective(pending(1), message_bytes=8_000_000, sequence=3)
    build.say("exit_code", "250")
    assert describe_stuck(ended(build, 60 * MS)) == [
        "the job ended with exit code 250",
        "mismatched message sizes in all-reduce 3 of default_pg: rank 0 4.00 MB, rank 1 8.00 MB",
    ]


IN_READ = "the step thread of rank 2 is inside read() of /data/shard-0017.tar, in fetch (/job/train.py:41)"


@pytest.mark.parametrize(
    ("peek", "head", "said"),
    [
        (a_peek("read", "/data/shard-0017.tar"), MISSING, IN_READ),
        (
            a_peek("futex"),
            MISSING,
            "the step thread of rank 2 is waiting for a lock, a condition or another thread, in fetch (",
        ),
        (a_peek(state="T"), MISSING, "the process of rank 2 is stopped by a signal (SIGSTOP) or a debugger"),
        (a_peek(state="", thread=None), f"{MISSING}: its process has ended", ""),
        (
            a_peek(thread_ran_ns=980 * MS),
            f"{MISSING}, but its thread still runs",
            "the step thread of rank 2 ran for 98 % of the 1.00 s in which it was watched, in fetch (/job/train.py:41):"
            " it computes, or loops",
        ),
        (a_peek("write", "/model.pt", moved_bytes=9 << 20), f"{MISSING}, but it still reads or writes files", ""),
        (
            a_peek("wait", "cc1", others_ran_ns=900 * MS),
            f"{MISSING}, but a child or another thread of it still runs",
            "child process cc1",
        ),
        (
            a_peek(state=ELSEWHERE, thread=None, unseen=("it runs on node7, and this was asked on node1",)),
            MISSING,
            "rank 2: it runs on node7, and this was asked on node1",
        ),
    ],
)
def test_what_a_peek_adds(peek: Peek, head: str, said: str) -> None:
    lines = describe_stuck(seen(one_missing(), peek), lives=True)
    assert lines[0].partition(": ")[2].startswith(head) or lines[0].startswith(head), lines
    assert said in "\n".join(lines)


def test_who_holds_the_gil() -> None:
    holder = ThreadPeek(1009, "logger", "S", 1, "fsync", "/logs/rank2.log", frames=("emit at /job/logs.py:7",))
    trace = seen(one_missing(), a_peek("futex", holder=holder, others_ran_ns=900 * MS))
    lines = describe_stuck(trace, lives=True)
    assert lines[0].startswith("no progress")
    held = "the GIL of rank 2 is held by thread logger, which is inside fsync() of /logs/rank2.log"
    assert f"  {held}, in emit (/job/logs.py:7)" in lines
    assert rows(trace)[0]["gil_thread"] == "logger"


def test_workers_that_do_not_simply_wait_for_work_are_reported() -> None:
    build = one_missing()
    main = build.rank(2).process_id
    own = [build.rank(2).worker(number).process_id for number in range(4)]
    trace = ended(build)
    assert [process for process, _ in threads_to_look_at(trace, 2)] == [main, *own]
    peeks = {
        main: a_peek("poll"),
        own[0]: a_peek("read", "/data/shard-0003.tar"),
        own[1]: a_peek("poll"),
        own[2]: a_peek("read", "pipe:[77]"),
        own[3]: a_peek("futex"),
    }
    trace = with_peeks(trace, {process: peek.to_text() for process, peek in peeks.items()})
    assert rows(trace)[0]["workers"] == "0 read /data/shard-0003.tar, 3 futex"
    said = describe_stuck(trace)
    assert "  worker 0 of rank 2 is inside read() of /data/shard-0003.tar, in fetch (/job/train.py:41)" in said
    lock = "waiting for a lock, a condition or another thread"
    assert f"  worker 3 of rank 2 is {lock}, in fetch (/job/train.py:41)" in said


@pytest.mark.parametrize("works_s", [90, 110])
def test_a_look_at_a_process_that_has_gone_on_since_says_nothing_of_its_end(works_s: int) -> None:
    """The look was taken 100 s after the origin of the trace."""
    build = one_missing()
    build.rank(2).phase("forward", works_s * S, works_s * S + MS)
    build.say("origin_monotonic_ns", "0")
    process = build.rank(2).process_id
    trace = with_peeks(ended(build, 200 * S), {process: a_peek("futex").to_text()})
    assert rows(trace)[0]["activity"] == ("futex" if works_s < 100 else "unknown")


def test_the_row_and_the_sentences_name_the_same() -> None:
    trace = seen(one_missing(), a_peek("read", "/data/shard-0017.tar"))
    (row,) = rows(trace)
    assert (row["activity"], row["target"]) == ("read", "/data/shard-0017.tar")
    assert row["place"] == "fetch at /job/train.py:41"


def stepping(end: int) -> TraceBuilder:
    """Two ranks make steps of 2 s without a collective, and nothing after 16 s."""
    build = TraceBuilder()
    for rank in (0, 1):
        process = build.rank(rank)
        for step in range(8):
            at = step * 2 * S
            process.phase("forward", at, at + S).phase("backward", at + S, at + 2 * S - MS)
            process.phase("optimizer", at + 2 * S - MS, at + 2 * S)
    build.counter(0, "process_user_ns_total", {end: 1.0})
    return build


def test_ranks_that_stand_still_without_a_collective() -> None:
    trace = stepping(46 * S).trace()
    assert ranks_to_look_at(trace) == [0, 1]
    lines = describe_stuck(trace, lives=True)
    assert lines[0] == "no progress for 30.0 s: ranks 0,1 get on with nothing, and no rank waits for another"
    (claim,) = ending_claims(trace, lives=True, in_part=True)
    assert claim.text.endswith("and no rank that is seen from here waits for another")
    assert [(row["rank"], row["reason"], row["since_ns"]) for row in rows(trace)] == [
        (0, "still", 30 * S),
        (1, "still", 30 * S),
    ]


def test_a_pause_is_no_hang_before_ten_seconds_nor_while_one_rank_works() -> None:
    assert describe_stuck(stepping(25 * S).trace()) == []
    build = stepping(46 * S)
    process = build.rank(1).process_id
    trace = with_peeks(build.trace(), {process: a_peek("write", "/model.pt", moved_bytes=9 << 20).to_text()})
    assert describe_stuck(trace) == []


@pytest.mark.parametrize(
    ("field", "grows", "way"),
    [
        ("entered_count", 1, "entered"),
        ("rows_count", 1, "records"),
        ("moved_bytes", 1 << 20, "moves"),
        ("moved_bytes", (1 << 20) - 1, ""),
        ("received_count", 20, "moves"),
        ("received_count", 5, ""),
        ("thread_run_ns", 60 * MS, "runs"),
        ("thread_run_ns", 40 * MS, ""),
        ("others_run_ns", 60 * MS, "others"),
        ("device_run_ns", 60 * MS, "device"),
    ],
)
def test_the_decision_is_made_of_two_moments(field: str, grows: int, way: str) -> None:
    assert way_of_progress(Progress(0, **{field: 7}), Progress(S, **{field: 7 + grows})) == way
    assert way_of_progress(Progress(0), Progress(S, **{field: 7 + grows})) == ""
