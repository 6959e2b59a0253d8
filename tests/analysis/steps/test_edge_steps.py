"""The first and the last step of a recording, where they are not like the others, and ranks with different numbers."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from builders import MS, TraceBuilder

from stashtrace.analysis.registry import analyze
from stashtrace.schema.trace import Trace
from stashtrace.summary.summary_text import summary


def loop(*lengths: list[int]) -> Trace:
    """Make a trace of one rank for each list of step lengths in ms."""
    build = TraceBuilder()
    for rank, own in enumerate(lengths):
        at = 0
        for length in (one * MS for one in own):
            build.rank(rank).phase("forward", at, at + length // 2).phase("backward", at + length // 2, at + length - 1)
            build.rank(rank).phase("optimizer", at + length - 1, at + length)
            at += length
    return build.trace()


@pytest.mark.parametrize(
    ("lengths", "left_out"),
    [
        ([49, 19, 19, 18], [1, 0, 0, 0]),
        ([22, 19, 19, 18], [0, 0, 0, 0]),
        ([20, 19, 19, 1], [0, 0, 0, 1]),
        ([20, 19, 19, 9], [0, 0, 0, 0]),
        ([49, 19, 19, 18, 1], [1, 0, 0, 0, 1]),
        ([49, 19], [0, 0]),
        ([10] * 20 + [1], [1] * 5 + [0] * 15 + [1]),
        ([10] * 20 + [40], [1] * 5 + [0] * 15 + [1]),  # what comes once, at the end
        ([10] * 20 + [25], [1] * 5 + [0] * 16),
        ([150, 12] * 10, [1] * 5 + [0] * 15),  # the last is like every other one
    ],
)
def test_edges_that_are_not_like_the_others_are_left_out(lengths: list[int], left_out: list[int]) -> None:
    assert analyze(loop(lengths), "steps")["warmup"].tolist() == left_out


def test_the_summary_says_which_were_left_out() -> None:
    assert "3 steps of 18.7 ms (the first left out)" in summary(loop([49, 19, 19, 18]))
    assert "3 steps of 19.3 ms (the last left out)" in summary(loop([20, 19, 19, 1]))
    assert "15 steps of 10.0 ms (first 5 and the last left out)" in summary(loop([10] * 20 + [1]))


def test_ranks_with_different_numbers_of_steps_are_told() -> None:
    shown = " ".join(summary(loop([10] * 160, [10] * 120, [10] * 160)).split())
    assert "115 to 155 steps of 10.0 ms (first 5 left out)" in shown
    assert "the ranks did not make the same number of steps: ranks 0,2 made 160 steps, rank 1 made 120 steps" in shown


def test_a_step_more_or_less_is_where_the_job_was_stopped() -> None:
    shown = summary(loop([10] * 60, [10] * 59))
    assert "55 steps of 10.0 ms" in shown
    assert "the same number" not in shown
