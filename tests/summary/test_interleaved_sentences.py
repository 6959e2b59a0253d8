"""Sentences about pipelines whose ranks hold several stages each: the planted cause, or the bubble without a blame."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
from typing import Any

import pytest
from interleaved import interleaved
from scenes import Verdict, verdicts
from wait_chains import noisy, on

from stashtrace.analysis.registry import analyze
from stashtrace.schema.trace import Trace
from stashtrace.summary.summary_text import summary


def late(trace: Trace) -> Verdict:
    (found,) = (v for v in verdicts(trace) if v.kind == "late")
    return found


def row(trace: Trace) -> dict[str, Any]:
    table = analyze(trace, "findings")
    return next(r for r in table.rows() if r["kind"] == "late" and r["section"] == "verdict")


def step_ns(trace: Trace) -> float:
    table = analyze(trace, "steps")
    return float((table["end_ns"] - table["begin_ns"])[table["step"] > 3].mean())


@pytest.mark.parametrize(("ranks", "chunks", "microbatches"), [(2, 2, 4), (4, 2, 8), (3, 3, 6)])
def test_the_bubble_of_equal_stages_blames_nobody(ranks: int, chunks: int, microbatches: int) -> None:
    trace = interleaved(ranks, chunks, microbatches, noisy(ranks, 0.3))
    found = late(trace)
    assert "most of it is the bubble that such a pipeline has" in found.text
    assert (row(trace)["cause_rank"], row(trace)["cause_kind"]) == (-1, "bubble")
    who = f"a pipeline of {ranks * chunks} stages, {chunks} on each rank, with {microbatches} micro-batches a step"
    (said,) = [line for line in found.evidence if who in line]
    # A micro-batch takes 12 ms on a stage, and about 3 times 0.24 ms more.
    ms = float(re.search(r"bubble of ([\d.]+) ms", said)[1])  # type: ignore[index]
    assert ms == pytest.approx((ranks - 1) * 12.7, rel=0.1)
    assert "by turns" not in found.text


@pytest.mark.parametrize(("rank", "numbers"), [(0, "0 and 4"), (1, "1 and 5"), (3, "3 and 7")])
def test_the_slow_rank_is_named_with_its_stages_and_what_an_even_split_saves(rank: int, numbers: str) -> None:
    trace = interleaved(4, 2, 8, on(rank, 2.0))
    found = late(trace)
    # 16 forwards and backwards of 18 ms, and an update of 1 ms; on the others 12 ms each.
    head = f"rank {rank} (stages {numbers}) computes 289 ms a step, the others 193 ms: an even split would save "
    assert found.text.startswith(head)
    even = interleaved(4, 2, 8, lambda step, rank: 0.5)
    saved = float(re.search(r"would save (\d+) %", found.text)[1]) / 100  # type: ignore[index]
    assert saved == pytest.approx(1 - step_ns(even) / step_ns(trace), abs=0.015)
    assert row(trace)["cause_rank"] == rank


def test_a_rank_that_works_while_it_would_be_idle_holds_up_nobody() -> None:
    """Rank 0 computes a quarter longer, in the time of its bubble: an even split would save 1.5 % of the step."""
    trace, even = interleaved(4, 2, 8, on(0, 1.0)), interleaved(4, 2, 8, lambda step, rank: 0.25)
    assert step_ns(even) / step_ns(trace) == pytest.approx(0.985, abs=0.001)
    assert "most of it is the bubble that such a pipeline has" in late(trace).text


def test_a_slow_stage_is_work_of_the_rank_that_holds_it() -> None:
    trace = interleaved(4, 2, 8, work_of_stage=lambda stage: 2.0 if stage == 6 else 0.0)
    assert late(trace).text.startswith("rank 2 (stages 2 and 6) computes 241 ms a step, the others 193 ms:")


def test_a_rank_that_sleeps_once_a_step_sleeps() -> None:
    found = late(interleaved(3, 2, 6, sleeps=on(1, 40.0)))
    assert found.text.startswith(
        "rank 1 (stages 1 and 4) sleeps 40.0 ms a step longer than the other ranks; ranks 0,2 wait"
    )


def test_a_slow_rank_among_those_that_hold_the_same_stages() -> None:
    found = late(interleaved(3, 2, 6, on(3, 2.0), replicas=2))
    assert found.text.startswith("rank 3 (stages 1 and 4) computes 72.0 ms a step longer than the others of its stages")


def test_where_nobody_knows_how_many_stages_two_ranks_hold_neither_number_is_said() -> None:
    found = late(interleaved(2, 2, 4, noisy(5, 0.3), phases=False))
    (said,) = [line for line in found.evidence if "bubble" in line]
    assert said.startswith("a pipeline of 2 ranks that hold several stages each has a bubble of at least 1")
    assert "micro-batches a step" not in said


def test_the_summary_leads_to_the_tables_of_pipelines() -> None:
    shown = summary(interleaved(4, 2, 8, noisy(2, 0.3)))
    assert "stages     stashtrace analyze pipeline " in shown


def test_the_table_numbers_ranks_by_their_place() -> None:
    table = analyze(interleaved(4, 2, 8, steps=6), "pipeline")
    assert {(r["rank"], r["stage_index"]) for r in table.rows()} == {(rank, rank) for rank in range(4)}
