"""slowdown of recorded pipelines: equal stages lose nothing by their bubble, and an even split is what it says."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import pytest
from interleaved import interleaved
from wait_chains import none, on

from stashtrace.analysis.registry import analyze
from stashtrace.schema.trace import Trace

SHAPES = [(4, 1, 8), (2, 2, 4), (4, 2, 8)]


def rows(trace: Trace) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["cause"], row["name"]): row for row in analyze(trace, "slowdown").rows()}


@pytest.mark.parametrize("one_group", [False, True])
@pytest.mark.parametrize(("ranks", "chunks", "microbatches"), SHAPES)
def test_equal_stages_are_not_slowed_down_by_their_bubble(
    ranks: int, chunks: int, microbatches: int, one_group: bool
) -> None:
    """In one group the two sides of a message need not have one number."""
    found = rows(interleaved(ranks, chunks, microbatches, none, one_group=one_group))
    assert found["all", ""]["slowdown_ratio"] == pytest.approx(1.0, abs=0.01)
    assert all(row["slowdown_ratio"] < 1.01 for row in found.values())


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize(("ranks", "chunks", "microbatches"), SHAPES)
@pytest.mark.parametrize("one_group", [False, True])
def test_ranks_that_are_alike_share_the_work_of_the_slow_one(
    ranks: int, chunks: int, microbatches: int, replicas: int, one_group: bool
) -> None:
    slow = ranks * replicas - 1
    found = rows(interleaved(ranks, chunks, microbatches, on(slow, 4.0), replicas=replicas, one_group=one_group))
    even = rows(interleaved(ranks, chunks, microbatches, lambda step, rank: 4.0 / ranks / replicas, replicas=replicas))
    whole = found["all", ""]
    assert whole["ideal_step_ns"] == pytest.approx(even["all", ""]["step_ns"], rel=0.02)
    assert whole["slowdown_ratio"] > 1.1
    worst = max((row for (cause, _), row in found.items() if cause == "rank"), key=lambda row: row["recovered_ratio"])
    assert worst["name"] == str(slow)
    assert found["rank", str(slow)]["recovered_ratio"] > 0.7
    assert found["rank", "0"]["slowdown_ratio"] < 1.05
