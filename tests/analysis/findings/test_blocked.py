"""In which calls a rank was blocked: sockets and pipes are said by their names."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from builders import MS, TraceBuilder

from stashtrace.analysis.findings import summarize
from stashtrace.schema.kinds import IoFlag, IoOp, WaitOp
from stashtrace.schema.trace import Trace
from stashtrace.summary.summary_document import document


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
