"""A rank that makes fewer steps than others is said to."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable

from builders import MS, TraceBuilder

from stashtrace.analysis.findings import summarize
from stashtrace.replay.causes import causes
from stashtrace.schema.kinds import WaitOp
from stashtrace.schema.trace import Trace
from stashtrace.summary.summary_document import document
from stashtrace.summary.summary_text import summary

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
            build.meet(entered, end)
        for rank in entered:
            ran = 22 * MS * step + 20 * MS
            build.rank(rank).phase("optimizer", end, end + 2 * MS, cpu=(ran, ran + 2 * MS), runqueue=(0, 0))
            clock[rank] = end + 2 * MS
    return build.trace()


def test_fewer_steps_are_said_and_are_no_shorter_time() -> None:
    trace = job(lambda rank, step: 40 if rank == 1 else 0, (80, 45))
    assert "; rank 1 made 45 of 80 steps" in " ".join(summary(trace, first=causes(trace)).split())
    (change,) = [row for row in document(summarize(trace))["findings"] if row["section"] == "time"]
    assert change["text"].endswith(": rank 1 makes no step then")
