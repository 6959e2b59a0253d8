"""The line that slow steps are longer in: exactly for calls, by samples with their bounds."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
from builders import MS, ProcessBuilder, TraceBuilder
from stack_rows import long_call, sample, stack_of

from stashtrace.analysis.lines.slow_lines import line_of_steps
from stashtrace.schema.events import TABLES
from stashtrace.schema.kinds import StackCause, WaitOp
from stashtrace.schema.table import Table

MAIN, LOAD, PARSE = "main /jobs/train.py:23", "load /jobs/train.py:40", "parse /jobs/train.py:50"
SLOW = np.array([5, 9])


def steps(build: TraceBuilder, *, asleep_ms: int = 0, python_ms: int = 0) -> ProcessBuilder:
    """12 steps that compute for 20 ms; two of them sleep, or run Python, for longer than the 2 ms of the others."""
    rank = build.rank(0)
    at = ran = 0
    for step in range(12):
        is_slow = step in SLOW
        sleep, python = (extra if is_slow else 2 for extra in (asleep_ms or 2, python_ms or 2))
        rank.phase("forward", at, at + 10 * MS, cpu=(ran, ran + 10 * MS), runqueue=(0, 0))
        at, ran = at + 10 * MS, ran + 10 * MS
        rank.wait(WaitOp.SLEEP, at, at + sleep * MS)
        long_call(rank, at, at + sleep * MS, stack_of(rank, MAIN, LOAD), StackCause.WAIT)
        at += sleep * MS
        if step == 0:
            sample(rank, 0, stack_of(rank, MAIN))
        for moment in range(0, python, 4):
            sample(rank, at + moment * MS, stack_of(rank, MAIN, PARSE))
        at, ran = at + python * MS, ran + python * MS
        rank.phase("optimizer", at, at + 10 * MS, cpu=(ran, ran + 10 * MS), runqueue=(0, 0))
        at, ran = at + 10 * MS, ran + 10 * MS
        sample(rank, at - MS, stack_of(rank, MAIN))
    return rank


def test_a_call_is_longer_by_one_figure() -> None:
    build = TraceBuilder()
    steps(build, asleep_ms=42)
    line = line_of_steps(build.trace(), 0, "other", SLOW)
    assert line is not None
    assert (line.place, line.low_ns, line.high_ns) == ("load (train.py:40)", 40 * MS, 40 * MS)
    assert (line.share_low, line.share_high) == (1.0, 1.0)


def test_samples_leave_bounds_that_hold_what_was_planted() -> None:
    build = TraceBuilder()
    steps(build, python_ms=62)
    line = line_of_steps(build.trace(), 0, "python", SLOW)
    assert line is not None
    assert line.place == "parse (train.py:50)"
    assert 30 * MS < line.low_ns < 60 * MS <= line.high_ns <= 60 * MS + MS


def test_nothing_is_said_of_what_did_not_grow_or_without_stacks() -> None:
    build = TraceBuilder()
    steps(build, asleep_ms=42)
    assert line_of_steps(build.trace(), 0, "python", SLOW) is None
    assert line_of_steps(build.trace(), 7, "other", SLOW) is None
    without = build.trace().replace(**{name: Table.empty(TABLES[name]) for name in ("stack_samples", "stack_spans")})
    assert line_of_steps(without, 0, "other", SLOW) is None
