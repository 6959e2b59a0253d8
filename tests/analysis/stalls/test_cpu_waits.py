"""Waits for a CPU by column: first where the thread could run, then where it sleeps, never more than a column holds."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from builders import MS, TraceBuilder

from stashtrace.analysis.findings.blocked_calls import blocked_calls
from stashtrace.analysis.findings.rules.contention import contention_claims
from stashtrace.analysis.findings.summary_input import gather
from stashtrace.analysis.stalls.budget import stalls
from stashtrace.analysis.stalls.cpu_waits import cpu_waits
from stashtrace.analysis.stalls.hidden import hidden
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.analysis.steps.steps import counted_steps, ranks_and_steps
from stashtrace.schema.kinds import WaitOp
from stashtrace.schema.trace import Trace

STEPS = 12
#: Of a step of 100 ms: forward 0 to 50, nothing to 60, backward 60 to 100 with a wait for rank 1 from 80 on.
FORWARD, BACKWARD = (0, 50), (60, 100)


def job(in_forward: int, between: int, in_backward: int, *, asleep: bool = False) -> Trace:
    """Rank 0 waits for a CPU for so many ms in each part of a step; rank 1 comes 20 ms late to the all-reduce."""
    build = TraceBuilder()
    whole = in_forward + between + in_backward
    for rank in (0, 1):
        for step in range(STEPS):
            begin, queue = step * 100, step * whole if rank == 0 else 0
            parts = (in_forward, in_forward + between, whole) if rank == 0 else (0, 0, 0)
            build.rank(rank).phase(
                "forward",
                *((begin + at) * MS for at in FORWARD),
                runqueue=(queue * MS, (queue + parts[0]) * MS),
            )
            build.rank(rank).phase(
                "backward",
                *((begin + at) * MS for at in BACKWARD),
                runqueue=((queue + parts[1]) * MS, (queue + parts[2]) * MS),
            )
    for step in range(STEPS):
        end = (step + 1) * 100
        if asleep:
            build.rank(0).wait(WaitOp.SLEEP, (end - 48) * MS, (end - 42) * MS)
        build.collective({0: ((end - 20) * MS, end * MS, end * MS), 1: ((end - 1) * MS, end * MS, end * MS)})
    return build.trace()


def waits_of(trace: Trace) -> dict[str, float]:
    """The waits of rank 0 by column, in ms of a step."""
    index = TraceIndex(trace)
    (found,) = [
        (cpu_waits(index, thread, own), len(own))
        for thread, own in ranks_and_steps(trace, counted_steps(index.steps))
        if thread.rank == 0
    ]
    waits, steps_count = found
    return {name: ns / MS / steps_count for name, ns in waits.items() if ns}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((30, 0, 0), {"compute": 30}),
        ((0, 0, 15), {"compute": 15}),
        ((0, 0, 30), {"compute": 20, "late": 9.5, "link": 0.5}),
        ((40, 0, 36), {"compute": 60, "late": 15.2, "link": 0.8}),
    ],
)
def test_each_wait_is_part_of_a_column_that_holds_as_much(
    given: tuple[int, int, int], expected: dict[str, float]
) -> None:
    waits = waits_of(job(*given))
    assert waits == pytest.approx(expected, abs=0.1)
    assert sum(waits.values()) == pytest.approx(sum(given), rel=0.02)


def test_a_sleep_that_ends_late_for_want_of_a_cpu_is_told_once() -> None:
    """Asleep for 6 of the 10 ms between: 4 ms of the waits are the loop's own, and 4 lie in the sleep."""
    trace = job(0, 8, 0, asleep=True)
    counted = counted_steps(TraceIndex(trace).steps)
    assert waits_of(trace) == pytest.approx({"host": 4, "other": 4}, abs=0.1)
    assert set(blocked_calls(trace, stalls(trace), counted, least_ratio=0.01)[0]) == {"asleep"}


def test_the_summary_names_the_columns_with_the_longest_first() -> None:
    (claim,) = contention_claims(gather(job(40, 0, 36)))
    assert "waited for a CPU for 76 % of the step (counted as compute and late)" in claim.text
    assert hidden(job(40, 0, 36))["cpu_contention_ns"].max() == pytest.approx(76 * MS, rel=0.01)
