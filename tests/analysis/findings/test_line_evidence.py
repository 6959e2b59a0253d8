"""Verdicts end in the function and line of the user's code in which their time was spent."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

from builders import MS, ProcessBuilder, TraceBuilder
from stack_rows import FORKED, TORCH, long_call, sample, stack_of

from stashtrace.analysis.findings import summarize
from stashtrace.replay.causes import causes
from stashtrace.schema.kinds import IoFlag, IoOp, WaitOp
from stashtrace.schema.trace import Trace
from stashtrace.summary.summary_document import document

MAIN = "main /jobs/train.py:23"
HOOK = (f"Tensor.backward {TORCH}/_tensor.py:6", "hook /jobs/train.py:11")
PARSE = ("parse /jobs/train.py:14", "JSONDecoder.decode /usr/lib/python3.11/json/decoder.py:337")


def sleeper(
    build: TraceBuilder, number: int, *, python_ms: int = 0, steps: int = 12, sleeps: bool = True
) -> ProcessBuilder:
    """A rank of steps of 40 ms: 20 computing, 10 asleep, or blocked in nothing recorded.

    The rest is Python of the loop if ``python_ms`` are.
    """
    rank = build.rank(number)
    for step in range(steps):
        now, ran = step * 40 * MS, step * (20 + python_ms) * MS
        rank.phase("forward", now, now + 10 * MS, cpu=(ran, ran + 10 * MS), runqueue=(0, 0))
        if sleeps:
            rank.wait(WaitOp.SLEEP, now + 10 * MS, now + 20 * MS)
        rank.phase(
            "optimizer",
            now + (20 + python_ms) * MS,
            now + 40 * MS,
            cpu=(ran + (10 + python_ms) * MS, ran + (20 + python_ms) * MS),
            runqueue=(0, 0),
        )
    return rank


def said(trace: Trace, kind: str) -> list[str]:
    shown: list[dict[str, Any]] = document(summarize(trace))["findings"]
    return next(row["evidence_text"] for row in shown if row["section"] == "verdict" and row["kind"] == kind)


def test_a_long_call_is_said_with_its_line_and_one_figure() -> None:
    build = TraceBuilder()
    rank = sleeper(build, 0)
    for step in range(12):
        long_call(rank, (step * 40 + 10) * MS, (step * 40 + 20) * MS, stack_of(rank, MAIN, *HOOK))
    assert "10.0 ms a step in hook (train.py:11)" in said(build.trace(), "other")
    assert next(causes(build.trace()).rows())["place"] == "hook (train.py:11)"


def test_samples_are_said_as_a_range_and_replace_the_sentence_that_no_function_is_known() -> None:
    build = TraceBuilder()
    rank = sleeper(build, 0, python_ms=10)
    without = said(build.trace(), "host")
    parse, main = stack_of(rank, MAIN, *PARSE), stack_of(rank, MAIN)
    for step in range(12):
        sample(rank, step * 40 * MS + MS, main)
        for moment in (21, 24, 27):
            sample(rank, (step * 40 + moment) * MS, parse)
    found = said(build.trace(), "host")
    assert any("no stacks were sampled, which name the line" in text for text in without)
    assert not any("no module calls" in text for text in found)
    (text,) = [text for text in found if "parse" in text]
    assert text.endswith(" a step in parse (train.py:14, in json JSONDecoder.decode)")
    assert " to " in text or text.startswith("10.0 ms")


def test_python_without_a_line_says_why() -> None:
    """Too few samples; many lines; a thread that is not sampled; stacks that cannot be read; none were sampled."""

    def reason(samples: int, functions: int, *, of_rank: int = 0, lost: str = "") -> str:
        build = TraceBuilder()
        ranks = [sleeper(build, number, python_ms=10, steps=24) for number in (0, 1)]
        for number in range(samples):
            at = ((number + 10) % 24) * 40 * MS + (21 + number // 24) * MS
            sample(ranks[of_rank], at, stack_of(ranks[of_rank], MAIN, f"f{number % functions} /jobs/train.py:{number}"))
        if of_rank == 0 and samples:
            sample(ranks[0], 401 * MS, stack_of(ranks[0], MAIN))
        if lost:
            build.loss(lost)
        return said(build.trace(), "host")[0]

    of = "Python, or operators that no module calls: "
    assert reason(2, 2) == f"{of}2 samples of its stack in this time, too few to name a line"
    assert reason(90, 30) == f"{of}71 samples of its stack in this time, spread over many lines"
    assert reason(40, 1, of_rank=1) == f"{of}its step thread is none of those whose stacks were sampled"
    assert reason(0, 1, lost="no_stacks") == f"{of}its stacks could not be read here"
    assert reason(0, 1) == (
        f"{of}no stacks were sampled, which name the line (`stashtrace run --stack-hz 50`, the default)"
    )


def test_a_blocked_time_with_a_line_does_not_send_to_the_timeline() -> None:
    build = TraceBuilder()
    rank = sleeper(build, 0, sleeps=False)
    found = said(build.trace(), "other")
    assert any(text.endswith("; the timeline shows where") for text in found)
    for step in range(12):
        for moment in (1, 12, 15, 18, 25, 39):
            sample(rank, (step * 40 + moment) * MS, stack_of(rank, MAIN, *PARSE))
    found = said(build.trace(), "other")
    assert any("parse (train.py:14" in text for text in found)
    assert not any("the timeline shows where" in text for text in found)


def test_a_line_with_too_few_samples_is_not_said() -> None:
    build = TraceBuilder()
    rank = sleeper(build, 0, python_ms=10)
    sample(rank, MS, stack_of(rank, MAIN))
    sample(rank, 24 * MS, stack_of(rank, MAIN, *PARSE))
    sample(rank, 479 * MS, stack_of(rank, MAIN))
    assert not any("parse" in text for text in said(build.trace(), "host"))
    assert not any("parse" in row["place"] for row in causes(build.trace()).rows())


def test_where_the_workers_make_batches() -> None:
    build = TraceBuilder()
    rank = build.rank(0)
    worker = rank.worker(0)
    augment = stack_of(
        worker, *FORKED, "augment /jobs/data.py:57", f"resize {TORCH.replace('torch', 'PIL')}/Image.py:9"
    )
    for step in range(12):
        now = step * 40 * MS
        rank.batch_wait(step, now, now + 30 * MS, worker=0)
        rank.phase("forward", now + 30 * MS, now + 38 * MS, cpu=(step * 10 * MS, step * 10 * MS + 8 * MS))
        rank.phase("optimizer", now + 38 * MS, now + 40 * MS, cpu=(step * 10 * MS + 8 * MS, step * 10 * MS + 10 * MS))
        worker.fetch(step, now, now + 29 * MS, worker=0, cpu=29 * MS)
        for moment in (3, 9, 15, 21, 27):
            sample(worker, now + moment * MS, augment)
    (text,) = [text for text in said(build.trace(), "data") if "augment" in text]
    assert text.startswith("its workers spend ")
    assert text.endswith(" a batch in augment (data.py:57, in PIL resize)")


def test_a_recording_without_stacks_says_what_it_said() -> None:
    build = TraceBuilder()
    rank = build.rank(0)
    for step in range(12):
        now, ran = step * 20 * MS, step * 12 * MS
        rank.phase("forward", now, now + 8 * MS, cpu=(ran, ran + 8 * MS), runqueue=(0, 0))
        rank.io(now + 8 * MS, now + 16 * MS, op=IoOp.RECV, blocked=True, flags=int(IoFlag.SOCKET))
        rank.phase("optimizer", now + 16 * MS, now + 20 * MS, cpu=(ran + 8 * MS, ran + 12 * MS), runqueue=(0, 0))
    (text,) = said(build.trace(), "other")
    assert text.endswith("; the timeline shows where")
    for step in range(12):
        long_call(rank, (step * 20 + 8) * MS, (step * 20 + 16) * MS, stack_of(rank, MAIN))
    assert said(build.trace(), "other") == [
        "8.00 ms a step in main (train.py:23)",
        "the process at the other end of the connection keeps it waiting",
    ]
