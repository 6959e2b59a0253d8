"""A hanging run: which rank has not entered which collective."""

from __future__ import annotations

import pytest
from builders import MS, S, TraceBuilder
from scenes import job

from stashtrace.analysis.findings.ending.last_activity import newest_ns
from stashtrace.schema.kinds import CollectiveOp, ProcessRole, TrackKind, WaitOp
from stashtrace.summary.summary_text import describe_stuck, summary


def hanging(missing: tuple[int, ...], ranks: int = 4) -> TraceBuilder:
    build = TraceBuilder()
    for step in range(3):
        build.collective(dict.fromkeys(range(ranks), (step * 10 * MS, step * 10 * MS + MS)))
    build.collective({r: (40 * MS, -1) for r in range(ranks) if r not in missing}, sequence=3, message_bytes=26_214_400)
    build.counter(0, "process_user_ns_total", {31 * S + 40 * MS: 1.0})
    return build


def test_names_the_rank_that_is_not_there() -> None:
    assert describe_stuck(hanging((2,)).trace()) == [
        "the job hung: rank 2 has not entered all-reduce 3 of default_pg, 26.2 MB",
        "  ranks 0,1,3 wait in it for 31.0 s",
        "  rank 2 last called number 2",
        "  the last thing that rank 2 finished is all-reduce, 31.0 s before the records end",
    ]


def test_a_job_that_lives_is_not_said_to_hang() -> None:
    said = describe_stuck(hanging((2,)).trace(), lives=True)
    assert said[0] == "no progress for 31.0 s: rank 2 has not entered all-reduce 3 of default_pg, 26.2 MB"


def working(how: str) -> TraceBuilder:
    """Rank 2 does not enter the collective, and works on."""
    build = hanging((2,))
    process = build.rank(2)
    at = [second * S for second in range(1, 31)]
    if how == "runs":
        native = 1000 + process.process_id
        track = build.track(process.process_id, native, "thread_run_ns_total", kind=TrackKind.COUNTER, unit="ns")
        for moment in at:
            build.add("counters", ts_ns=moment, track_id=track, value=moment * 0.7)
    elif how == "moves":
        build.counter(process.process_id, "process_write_bytes_total", {moment: moment * 0.2 for moment in at})
    else:
        process.phase("forward", 28 * S, 29 * S)
    return build


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("runs", "its thread still runs"),
        ("moves", "it still reads or writes files"),
        ("records", "its records go on"),
    ],
)
def test_a_rank_that_works_on_does_not_hang(how: str, said: str) -> None:
    lines = describe_stuck(working(how).trace(), lives=True)
    assert lines[0] == f"rank 2 has not entered all-reduce 3 of default_pg, 26.2 MB, but {said}"
    assert lines[1] == "  ranks 0,1,3 wait in it for 31.0 s"


def test_files_that_grow_slowly_are_no_progress() -> None:
    """The recorder's own grow while a rank stands still, in a long wait by more than a heartbeat."""
    build = hanging((2,))
    growth = {second * S: second * 100_000.0 for second in range(1, 31)}
    build.counter(build.rank(2).process_id, "process_write_bytes_total", growth)
    build.say("signal", "9")
    assert describe_stuck(build.trace())[0].startswith("the job hung: rank 2 has not entered all-reduce 3")


def test_a_rank_that_looped_when_the_job_was_ended_hung() -> None:
    for how, head in (("runs", "the job hung: rank 2 has"), ("moves", "rank 2 has not")):
        build = working(how)
        build.say("signal", "9")
        assert any(line.startswith(head) for line in describe_stuck(build.trace()))


def test_polls_and_sleeps_are_no_work() -> None:
    build = hanging((2,))
    for second in range(1, 31):
        build.rank(2).wait(WaitOp.SLEEP, second * S, second * S + 900 * MS)
    assert describe_stuck(build.trace())[0].startswith("the job hung: rank 2 has not entered")


def test_a_rank_that_never_came() -> None:
    build = TraceBuilder()
    build.group([0, 1])
    build.collective({0: (0, -1)}, op=CollectiveOp.BARRIER, message_bytes=0)
    build.counter(0, "process_user_ns_total", {5 * S: 1.0})
    assert describe_stuck(build.trace()) == [
        "the job hung: rank 1 has not entered barrier 0 of default_pg",
        "  rank 0 waits in it for 5.00 s",
        "  rank 1 has called no collective of this group",
    ]


def test_a_healthy_run_waits_for_nobody() -> None:
    assert describe_stuck(job()[1]) == []


def test_activity_is_read_from_samples() -> None:
    trace = hanging((2,)).trace()
    assert newest_ns(trace) == 31 * S + 40 * MS


def test_the_summary_of_a_job_that_hung_says_where() -> None:
    build = hanging((2,))
    build.say("exit_code", "1")
    shown = summary(build.trace("./x"))
    # No rank failed by itself: the code is that of whoever ended a job that hung.
    assert shown.startswith("the job hung: rank 2 has not entered all-reduce 3 of")
    assert "\nthe job ended with exit code 1\n" in shown


def test_the_memory_limit_that_ended_a_job_is_in_the_first_line() -> None:
    build, _ = job()
    facts = {"exit_code": "137", "signal": "9", "memory_kills_count": "1", "memory_limit_bytes": "4000000000"}
    for key, value in facts.items():
        build.say(key, value)
    first = " ".join(summary(build.trace("./x")).split("\n\n")[0].split())
    assert "the job was ended by signal 9 (SIGKILL)" in first
    assert "the kernel ended 1 process of the job's cgroup, whose memory limit of 4.00 GB was reached" in first


def test_of_a_job_that_broke_off_the_first_rank_to_end_is_named() -> None:
    build, _ = job()
    build.say("exit_code", "1")
    trace = build.trace("./x")
    processes = trace.processes
    ends = processes["end_ns"].copy()
    is_one = (processes["rank"] == 1) & (processes["role_code"] == ProcessRole.RANK)
    ends[:] = ends.max()
    ends[is_one] -= 70 * MS
    shown = summary(trace.replace(processes=processes.replace(end_ns=ends)))
    assert "  the records of rank 1 end first, 70.0 ms before those of rank 0\n" in shown
    assert "end first" not in summary(job()[1])
