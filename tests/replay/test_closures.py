"""An optimizer that runs the whole step as its closure: what runs inside is no update, and bounds no saving."""

from __future__ import annotations

import pytest
from builders import MS, TraceBuilder

from stashtrace.analysis.graph import build
from stashtrace.analysis.registry import analyze
from stashtrace.analysis.steps.training_loop import update_times
from stashtrace.replay.advice import ReplayedAdvice, named_advice, overlap_advice
from stashtrace.schema.kinds import WaitOp
from stashtrace.schema.trace import Trace

STEPS, STEP_NS = 8, 30 * MS
UPDATE_NS = 2 * MS


def lightning_job() -> Trace:
    """Forward 4 ms, a sleep of 14 ms in the training step, backward 6 ms, an all-reduce of 4 ms, an update of 2 ms."""
    trace = TraceBuilder()
    for step in range(STEPS):
        at = step * STEP_NS
        for rank in range(2):
            process = trace.rank(rank)
            ran = step * 12 * MS
            process.phase("optimizer", at, at + STEP_NS, cpu=(ran, ran + 12 * MS))
            process.phase("forward", at, at + 4 * MS, cpu=(ran, ran + 4 * MS))
            process.wait(WaitOp.SLEEP, at + 4 * MS, at + 18 * MS)
            process.phase(
                "backward", at + 18 * MS, at + 28 * MS, cpu=(step * 12 * MS + 4 * MS, step * 12 * MS + 10 * MS)
            )
        trace.meet(dict.fromkeys(range(2), at + 24 * MS), at + 28 * MS, message_bytes=1 << 23)
    return trace.trace()


def test_the_update_is_what_follows_the_closure() -> None:
    trace = lightning_job()
    assert update_times(trace, 0).total_ns == STEPS * UPDATE_NS


def test_no_saving_exceeds_the_update() -> None:
    trace = lightning_job()
    table = overlap_advice(trace)
    of_update = [row for row in table.rows() if row["work"] == "update"]
    assert of_update
    assert max(row["work_ns"] for row in of_update) <= UPDATE_NS
    assert max(row["saving_high_ns"] for row in of_update) <= UPDATE_NS
    limited = named_advice(table, ReplayedAdvice(build(trace), trace).limited)
    assert all(item.saving_high_ns <= UPDATE_NS for item in limited if item.work == "update")


def test_a_sleep_in_a_closure_is_asleep() -> None:
    stalls = analyze(lightning_job(), "stalls")
    mine = (stalls["rank"] == 0) & (stalls["kind"] == "other")
    assert stalls["stall_ns"][mine].sum() / len(set(stalls["step"].tolist())) == pytest.approx(14 * MS, rel=0.02)


def test_an_update_without_a_closure_is_whole() -> None:
    trace = TraceBuilder()
    process = trace.rank(0)
    process.phase("forward", 0, 4 * MS).phase("backward", 4 * MS, 8 * MS).phase("optimizer", 8 * MS, 11 * MS)
    assert update_times(trace.trace(), 0).total_ns == 3 * MS
