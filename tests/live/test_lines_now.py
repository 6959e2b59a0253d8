"""The costliest lines of the newest steps: those of the tables, only where somebody is late or stacks are known."""

from __future__ import annotations

from builders import MS, TraceBuilder
from stack_rows import long_call, stack_of

from stashtrace.analysis.lines.between_ranks import lines_between_ranks
from stashtrace.live.followed import said_of
from stashtrace.live.newest import lines_now
from stashtrace.live.state import LineNow
from stashtrace.schema.kinds import StackCause, WaitOp
from stashtrace.schema.trace import Trace
from stashtrace.summary.words import Finding

LATE = Finding({"section": "verdict", "kind": "late", "cause_rank": 1}, ())


def job(*, stacks: bool = True, steps: int = 40) -> Trace:
    """Two ranks whose loop parses for 50 ms a step and sleeps in `hook`, 2 ms on rank 0 and 30 ms on rank 1."""
    build = TraceBuilder()
    for number, asleep in enumerate((2 * MS, 30 * MS)):
        rank = build.rank(number)
        main = "main /jobs/late.py:23"
        parse, hook = stack_of(rank, main, "parse /jobs/late.py:14"), stack_of(rank, main, "hook /jobs/late.py:11")
        for step in range(steps):
            at = step * 100 * MS
            rank.phase("forward", at, at + 50 * MS).phase("backward", at + 50 * MS, at + 90 * MS)
            rank.wait(WaitOp.SLEEP, at + 50 * MS, at + 50 * MS + asleep)
            rank.phase("optimizer", at + 90 * MS, at + 100 * MS)
            if stacks:
                long_call(rank, at, at + 50 * MS, parse)
                long_call(rank, at + 50 * MS, at + 50 * MS + asleep, hook)
                long_call(rank, at + 50 * MS + asleep, at + 100 * MS, stack_of(rank, main), StackCause.GARBAGE)
    return build.trace()


def test_the_costliest_line_and_that_of_a_late_rank() -> None:
    trace = job()
    row = next(lines_between_ranks(trace).rows())
    assert lines_now(trace, [LATE]) == [
        LineNow("most", -1, "step", "compute", "parse (late.py:14)", *[50 * MS] * 3),
        LineNow("late", 1, "step", "other", "hook (late.py:11)", 28 * MS, row["low_ns"], row["high_ns"]),
    ]
    assert [line.why for line in lines_now(trace, [])] == ["most"]


def test_without_stacks_there_are_none() -> None:
    trace = job(stacks=False)
    assert lines_now(trace, [LATE]) == []
    verdicts, lines = said_of(trace)
    assert verdicts
    assert lines == []


def test_they_come_with_the_verdicts() -> None:
    assert [line.place for line in said_of(job())[1]][:1] == ["parse (late.py:14)"]
    assert said_of(TraceBuilder().trace()) == ([], []), "no step, no sentence"
