"""How a job ended: the rank that failed first comes first, with what it raised, its exit code or its signal."""

from __future__ import annotations

import pytest
from builders import MS, S, TraceBuilder

from stashtrace import analyze
from stashtrace.analysis.findings import summarize
from stashtrace.report.document import report_facts
from stashtrace.report.page.page import markdown, page
from stashtrace.schema.kinds import SpanKind
from stashtrace.schema.trace import Trace
from stashtrace.summary.summary_document import document
from stashtrace.summary.summary_text import summary

BAD = "ValueError: bad batch 7 (in step, train.py:118)"
BROKEN = "RuntimeError: Connection closed by peer (in all_reduce, train.py:90)"


def job(*, exit_code: str = "1", steps: int = 3) -> TraceBuilder:
    build = TraceBuilder()
    build.group([0, 1, 2])
    for step in range(steps):
        at = step * 20 * MS
        for rank in range(3):
            process = build.rank(rank).phase("forward", at, at + 5 * MS).phase("backward", at + 5 * MS, at + 10 * MS)
            process.phase("optimizer", at + 11 * MS, at + 12 * MS)
        build.collective(dict.fromkeys(range(3), (at + 10 * MS, at + 11 * MS)))
    if exit_code:
        build.say("exit_code", exit_code)
    return build


def launched(build: TraceBuilder, said: dict[int, str], name: str = "torchrun", how: str = "exited") -> None:
    """A parent of the ranks that says how some of them ended."""
    parent = build.process(rank=-1, role=0, name=name)  # type: ignore[arg-type]
    for rank, text in said.items():
        build.say(f"{how} {1000 + build.rank(rank).process_id}", text, parent.process_id)


def raised(build: TraceBuilder, rank: int, at_ns: int, text: str) -> None:
    build.rank(rank).span(SpanKind.EXCEPTION, at_ns, at_ns, text)


def failed() -> Trace:
    """Rank 1 raises after three steps; the others wait for it for 30 s, and then raise because it is gone."""
    build = job()
    raised(build, 1, 70 * MS, BAD)
    build.collective({0: (70 * MS, 30 * S), 2: (70 * MS, 30 * S)}, sequence=3, status=1)
    raised(build, 0, 30 * S + MS, BROKEN)
    raised(build, 2, 30 * S + MS, BROKEN)
    return build.trace("./x")


def lines(trace: Trace) -> list[str]:
    return [" ".join(part.split()) for part in summary(trace).split("\n\n")[0].split("\n  ")]


def first(trace: Trace) -> str:
    found = document(summarize(trace))["findings"][0]
    return str(found["text"])


def test_the_exception_of_the_first_rank_is_the_first_sentence_everywhere() -> None:
    trace = failed()
    reported = f"the job ended with exit code 1: rank 1 raised {BAD} after 3 steps"
    assert first(trace) == reported
    assert " ".join(summary(trace).split()).startswith(reported)
    facts = report_facts(trace)
    assert facts["ending"][0]["text"] == reported
    assert facts["ending"][0]["evidence_text"] == [
        f"then ranks 0,2 raised {BROKEN}",
        "ranks 0,2 waited 29.9 s for it in all-reduce 3 of default_pg",
    ]
    shown = page(facts)
    assert shown.index("rank 1 raised ValueError") < shown.index("What slows it down")
    text = markdown(facts)
    assert text.index("rank 1 raised ValueError") < text.index("3 ranks")


def test_a_rank_that_raised_is_not_said_to_hang() -> None:
    assert "hung" not in summary(failed())


@pytest.mark.parametrize("recorded", [False, True])
def test_a_rank_that_is_gone_before_the_others_fail_comes_first(recorded: bool) -> None:
    """Nobody recorded how rank 1 ended: its records stop, and 10 ms later the others lose their connections to it."""
    build = job(exit_code="")
    build.collective({0: (60 * MS, 80 * MS), 2: (60 * MS, 80 * MS)}, sequence=3, status=1)
    for rank in (0, 2):
        raised(build, rank, 80 * MS + rank, BROKEN)
        build.rank(rank).lives(0, 300 * MS)
    build.rank(1).lives(0, 70 * MS)
    if recorded:
        launched(build, {0: "1 local rank 0"})
    claims = document(summarize(build.trace()))["findings"]
    if recorded:  # a parent that knows how ranks ended says nothing of this one: it ended well
        assert claims[0]["text"] == f"rank 0 raised {BROKEN} after 3 steps"
        return
    assert claims[0]["text"] == (
        "the records of rank 1 end first, after 3 steps, 10.0 ms before another rank failed; how it ended is not in the"
        " recording"
    )
    assert claims[0]["evidence_text"] == [f"then ranks 0,2 raised {BROKEN}"]


def test_endings_are_in_the_order_in_which_they_came() -> None:
    rows = list(analyze(failed(), "endings").rows())
    assert [(row["rank"], row["exception"], row["steps_count"]) for row in rows] == [
        (1, BAD, 3),
        (0, BROKEN, 3),
        (2, BROKEN, 3),
    ]


def test_an_exit_code_that_its_launcher_recorded() -> None:
    build = job()
    launched(build, {2: "3 local rank 2"})
    assert first(build.trace()) == "the job ended with exit code 1: rank 2 left with exit code 3 after 3 steps"


@pytest.mark.parametrize("command", ["/usr/bin/srun -n 3 python train.py", "mpirun -np 3 python train.py"])
def test_the_code_of_a_launcher_is_not_that_of_a_rank(command: str) -> None:
    build = job()
    build.say("command", command)
    name = command.split()[0].rpartition("/")[2]
    assert first(build.trace()) == f"{name} ended with exit code 1; how its ranks ended is not in the recording"
    raised(build, 1, 70 * MS, BAD)
    assert first(build.trace()) == f"{name} ended with exit code 1: rank 1 raised {BAD} after 3 steps"


def test_a_rank_that_was_killed() -> None:
    build = job()
    launched(build, {2: "SIGKILL kernel local rank 2"}, how="killed")
    raised(build, 0, 30 * S, BROKEN)
    assert first(build.trace()) == (
        "the job ended with exit code 1: rank 2 was killed by SIGKILL after 3 steps; the kernel ended a process for"
        " want of memory meanwhile"
    )


def test_ranks_that_the_launcher_ended_did_not_fail() -> None:
    build = job()
    launched(build, dict.fromkeys((0, 2), "SIGTERM launcher local rank"), how="killed")
    raised(build, 1, 70 * MS, BAD)
    trace = build.trace()
    assert first(trace) == f"the job ended with exit code 1: rank 1 raised {BAD} after 3 steps"
    assert document(summarize(trace))["findings"][0]["evidence_text"] == []


@pytest.mark.parametrize("code", ["", "0"])
def test_an_exception_is_said_whatever_the_command_returned(code: str) -> None:
    build = job(exit_code=code)
    raised(build, 1, 70 * MS, BAD)
    assert first(build.trace()) == f"rank 1 raised {BAD} after 3 steps"


def test_a_signal_has_its_name() -> None:
    build = job(exit_code="")
    build.say("signal", "9")
    assert first(build.trace()).startswith("the job was ended by signal 9 (SIGKILL)")


def test_a_job_that_ended_well_has_no_such_line() -> None:
    assert first(job(exit_code="0").trace()) == "3 ranks"


def test_what_ranks_raised_because_another_one_hangs_comes_second() -> None:
    """Ranks 0 and 2 raise after 30 s of waiting for rank 1, whose process goes on."""
    build = job()
    build.collective({0: (70 * MS, 30 * S), 2: (70 * MS, 30 * S)}, sequence=3, status=1)
    raised(build, 0, 30 * S + MS, "RuntimeError: [127.0.0.1]:4711 timed out (in step, train.py:90)")
    raised(build, 2, 30 * S + MS, "RuntimeError: [127.0.0.1]:4712 timed out (in step, train.py:90)")
    for rank in range(3):
        build.counter(rank, "process_user_ns_total", {at * S: 1.0 for at in range(31)})
    found = [row for row in document(summarize(build.trace()))["findings"] if row["section"] == "headline"]
    assert found[0]["text"] == "the job hung: rank 1 has not entered all-reduce 3 of default_pg, 1.05 MB"
    assert str(found[1]["text"]).startswith("the job ended with exit code 1: rank 0 raised RuntimeError: [127.0.0.1]")


def test_a_process_that_ended_without_a_word_did_not_hang() -> None:
    build = job()
    build.collective({0: (70 * MS, 30 * S), 2: (70 * MS, 30 * S)}, sequence=3, status=1)
    raised(build, 0, 30 * S, BROKEN)
    for rank in range(3):
        build.counter(rank, "process_user_ns_total", {at * S // 10: 1.0 for at in range(2 if rank == 1 else 300)})
    assert first(build.trace()) == (
        "rank 1 has not entered all-reduce 3 of default_pg, 1.05 MB: its process ended before the others, or was"
        " stopped"
    )


def test_a_rank_that_left_while_the_others_failed_is_named_with_its_code() -> None:
    """Its last record came behind the first exception, and it did not live as long as those that raised."""
    build = job()
    build.collective({0: (70 * MS, 30 * S), 2: (70 * MS, 30 * S)}, sequence=3, status=1)
    raised(build, 0, 30 * S, BROKEN)
    for rank in range(3):
        build.counter(rank, "process_user_ns_total", {at * S // 10: 1.0 for at in range(302 if rank == 1 else 320)})
    launched(build, {1: "3 local rank 1"}, name="mp.spawn")
    assert first(build.trace()) == (
        "rank 1 has not entered all-reduce 3 of default_pg, 1.05 MB: it left with exit code 3"
    )
