"""Causes name the function and line of the user's code in which most of their time was spent."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from builders import MS, ProcessBuilder, TraceBuilder
from stack_rows import FORKED, TORCH, long_call, sample, stack_of

from stashtrace.replay.causes import causes
from stashtrace.schema.kinds import WaitOp

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


def test_a_long_call_is_said_with_its_line() -> None:
    build = TraceBuilder()
    rank = sleeper(build, 0)
    for step in range(12):
        long_call(rank, (step * 40 + 10) * MS, (step * 40 + 20) * MS, stack_of(rank, MAIN, *HOOK))
    assert next(causes(build.trace()).rows())["place"] == "hook (train.py:11)"


def test_a_function_with_most_of_the_samples_is_said_with_what_it_calls() -> None:
    build = TraceBuilder()
    rank = sleeper(build, 0, python_ms=10)
    parse, main = stack_of(rank, MAIN, *PARSE), stack_of(rank, MAIN)
    for step in range(12):
        sample(rank, step * 40 * MS + MS, main)
        for moment in (21, 24, 27):
            sample(rank, (step * 40 + moment) * MS, parse)
    (place,) = (row["place"] for row in causes(build.trace()).rows() if row["kind"] == "python")
    assert place == "parse (train.py:14, in json JSONDecoder.decode)"


def test_a_line_with_too_few_samples_is_not_said() -> None:
    build = TraceBuilder()
    rank = sleeper(build, 0, python_ms=10)
    sample(rank, MS, stack_of(rank, MAIN))
    sample(rank, 24 * MS, stack_of(rank, MAIN, *PARSE))
    sample(rank, 479 * MS, stack_of(rank, MAIN))
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
    first = next(causes(build.trace()).rows())
    assert (first["change"], first["place"]) == ("workers=3", "augment (data.py:57, in PIL resize)")
