"""A verdict says in which steps its time lies, where that is not in all of them alike."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable

import pytest
from builders import MS, TraceBuilder

from stashtrace.analysis.findings import summarize
from stashtrace.schema.kinds import WaitOp
from stashtrace.schema.trace import Trace
from stashtrace.summary.summary_document import document
from stashtrace.summary.words.policy import POLICY

#: Milliseconds that a rank sleeps in a step.
Sleeps = Callable[[int, int], int]


def job(sleeps: Sleeps, steps: tuple[int, int] = (60, 60), *, file: str = "") -> Trace:
    """Make two ranks that compute 20 ms a step, sleep, and meet in an all-reduce while both make steps.

    With a ``file`` they read it instead of sleeping: a half of that time blocked, a half copying.
    """
    build = TraceBuilder()
    clock = [0, 0]
    for step in range(max(steps)):
        entered = {}
        for rank in (0, 1):
            if step >= steps[rank]:
                continue
            process, now = build.rank(rank), clock[rank]
            ran = 22 * MS * step
            process.phase("forward", now, now + 5 * MS, cpu=(ran, ran + 5 * MS), runqueue=(0, 0))
            process.phase("backward", now + 5 * MS, now + 20 * MS, cpu=(ran + 5 * MS, ran + 20 * MS), runqueue=(0, 0))
            asleep = sleeps(rank, step) * MS
            if asleep and file:
                middle, end = now + 20 * MS + asleep // 2, now + 20 * MS + asleep
                process.io(now + 20 * MS, middle, path=file, blocked=True, result_bytes=1 << 20)
                process.io(middle, end, path=file, blocked=False, result_bytes=1 << 20)
            elif asleep:
                process.wait(WaitOp.SLEEP, now + 20 * MS, now + 20 * MS + asleep)
            entered[rank] = now + 20 * MS + asleep
        end = max(entered.values()) + MS
        if len(entered) == 2:
            keys = build.collective({rank: (at, end) for rank, at in entered.items()})
            for rank, at in entered.items():
                build.rank(rank).collective_wait(keys[rank], at, end)
        for rank in entered:
            ran = 22 * MS * step + 20 * MS
            build.rank(rank).phase("optimizer", end, end + 2 * MS, cpu=(ran, ran + 2 * MS), runqueue=(0, 0))
            clock[rank] = end + 2 * MS
    return build.trace()


def verdicts(trace: Trace) -> dict[str, str]:
    """Return the sentences by kind of verdict."""
    return {row["kind"]: row["text"] for row in document(summarize(trace))["findings"] if row["section"] == "verdict"}


@pytest.mark.parametrize(
    ("sleeps", "where"),
    [
        (lambda step: 40 if step >= 40 else 0, "only from step 40 on, 40.0 ms a step there"),
        (lambda step: 40 if step < 40 else 0, "only up to step 39, 40.0 ms a step there"),
        (lambda step: 40 if 20 <= step < 35 else 0, "only in steps 20 to 34, 40.0 ms a step there"),
        (lambda step: 0 if 20 <= step < 35 else 40, "not in steps 20 to 34, 40.0 ms a step in the others"),
        (lambda step: 40 if step >= 40 else 8, "mostly from step 40 on, 40.0 ms a step there"),
        (lambda step: 200 if step % 10 == 9 else 0, "only in every 10th step (9, 19, ...), 200 ms a step there"),
    ],
)
def test_a_time_that_some_steps_have_is_said_with_them(sleeps: Callable[[int], int], where: str) -> None:
    said = verdicts(job(lambda rank, step: sleeps(step) if rank == 1 else 0))
    assert said["other"].startswith("rank 1 spends ")
    assert said["other"].endswith(f"; {where}")
    assert said["late"].endswith(f", all of it for rank 1; {where}")


def test_a_time_that_grows_is_said_to() -> None:
    said = verdicts(job(lambda rank, step: step if rank == 1 else 0))
    assert said["other"].split("; ")[-1] == "growing by 55.0 ms over the run"  # five steps are warm-up


def test_a_time_of_each_step_is_said_alone() -> None:
    said = verdicts(job(lambda rank, step: 30 + step % 3 if rank == 1 else 0))
    assert ";" not in said["other"]


def test_ranks_that_have_a_time_by_turns_are_said_to() -> None:
    said = verdicts(job(lambda rank, step: 30 if step % 2 == rank else 0))
    assert said["other"].endswith("; they take turns: in each step only one of them")


def test_a_time_of_one_step_is_said_with_it() -> None:
    said = verdicts(job(lambda rank, step: 900 if step == 50 and rank == 0 else 0))
    assert said["other"].endswith("; all of it in step 50 alone")


def test_fewer_steps_are_said_and_are_no_shorter_time() -> None:
    trace = job(lambda rank, step: 40 if rank == 1 else 0, (80, 45))
    assert verdicts(trace)["other"].endswith("; rank 1 made 45 of 80 steps")
    (change,) = [row for row in document(summarize(trace))["findings"] if row["section"] == "time"]
    assert change["text"].endswith(": rank 1 makes no step then")


def test_the_headline_keeps_the_steps() -> None:
    shown = document(summarize(job(lambda rank, step: 40 if rank == 1 and step >= 40 else 0)))["headline"]
    assert shown.endswith("; only from step 40 on")
    assert len(shown) <= POLICY.headline_characters
