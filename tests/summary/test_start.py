"""The start of a job: what it went to, said where it took longer than the steps, and never part of a step."""

from __future__ import annotations

import pytest
from builders import MS, S, TraceBuilder
from summary.scenes import worded

from stashtrace.analysis.findings.all_claims import claims_of
from stashtrace.analysis.findings.summary_input import gather
from stashtrace.analysis.registry import analyze
from stashtrace.schema.kinds import SpanKind
from stashtrace.schema.trace import Trace

STEPS = 30


def job(*, first_batch: int = 4 * S, step: int = 20 * MS) -> Trace:
    """Two ranks: 2 s of imports, 500 ms of init_process_group; rank 0's first batch takes seconds; then equal steps."""
    build = TraceBuilder()
    build.group(range(2))
    begin = 3 * S + first_batch
    for number in range(2):
        rank = build.rank(number)
        rank.lives(0, begin + STEPS * step)
        rank.span(SpanKind.LIBRARY, S // 2, 2 * S + S // 2, "import torch")
        rank.span(SpanKind.LIBRARY, 2 * S + S // 2, 3 * S, "init_process_group (train.py:5)")
        rank.batch_wait(0, 3 * S, 3 * S + (first_batch if number == 0 else MS))
    for count in range(STEPS):
        at = begin + count * step
        for number in range(2):
            rank = build.rank(number)
            if count:
                rank.batch_wait(count, at - MS, at)
            rank.phase("forward", at, at + 10 * MS)
            rank.phase("backward", at + 10 * MS, at + 15 * MS)
            rank.phase("optimizer", at + 15 * MS, at + step - MS)
        build.meet(dict.fromkeys(range(2), at + 12 * MS), at + 13 * MS)
    return build.trace()


def test_who_waits_in_a_call_for_a_rank_that_came_late_is_not_said_to_take_long_there() -> None:
    """Rank 1 is 6 s later at init_process_group, where rank 0 waits for it."""
    build, step = TraceBuilder(), 20 * MS
    for number in range(2):
        rank = build.rank(number)
        begin = 1 * S + 6 * S * number
        rank.lives(0, 8 * S + 30 * step).span(SpanKind.LIBRARY, S // 2, begin, "import torch")
        rank.span(SpanKind.LIBRARY, begin, 8 * S, "init_process_group (train.py:5)", 1)
        for count in range(30):
            at = 8 * S + count * step
            rank.phase("forward", at, at + 10 * MS).phase("optimizer", at + 10 * MS, at + step - MS)
    trace = build.trace()
    table = analyze(trace, "start")
    parts = {(row["rank"], row["part"], row["name"]): row["spent_ns"] for row in table.rows()}
    assert parts[0, "call", "init_process_group (train.py:5)"] == S
    assert parts[0, "waits", ""] == 6 * S
    (text,) = said(trace)
    assert text.startswith("the start of rank 1 took 8.")
    assert "6.50 s in import torch, 1.00 s in init_process_group (train.py:5)" in text


def said(trace: Trace) -> list[str]:
    return worded(*(claim for claim in claims_of(gather(trace)) if claim.kind == "start"))


def test_the_parts_of_a_start_add_up_to_it() -> None:
    trace = job()
    table, steps = analyze(trace, "start"), analyze(trace, "steps")
    for number in range(2):
        own = table.take(table["rank"] == number)
        counted = steps["begin_ns"][(steps["rank"] == number) & (steps["warmup"] == 0)]
        assert own["spent_ns"].sum() == counted.min()
        assert own["share_ratio"].sum() == pytest.approx(1)
    mine = table.take(table["rank"] == 0)
    parts = {(row["part"], row["name"]): row["spent_ns"] for row in mine.rows()}
    assert parts["call", "import torch"] == 2 * S
    assert parts["call", "init_process_group (train.py:5)"] == S // 2
    assert parts["batches", ""] == pytest.approx(4 * S, rel=0.01)
    assert parts["script", ""] >= S // 2


def test_a_start_longer_than_the_steps_is_said_with_its_largest_parts() -> None:
    (text,) = said(job())
    assert text.startswith("the start of rank 0 took 7.")
    assert "4.0" in text
    assert "waiting for the first batches" in text
    assert text.index("waiting for the first batches") < text.index("in import torch")
    assert "in init_process_group (train.py:5)" in text


def test_a_start_shorter_than_the_steps_is_no_line() -> None:
    assert said(job(first_batch=10 * MS, step=500 * MS)) == []


def test_no_step_contains_the_first_batch() -> None:
    steps = analyze(job(), "steps")
    counted = steps.take(steps["warmup"] == 0)
    assert (counted["end_ns"] - counted["begin_ns"]).max() < 40 * MS
