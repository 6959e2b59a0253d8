"""What counts as time between launches: not what came before the first one, nor calls that allocate or free."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from builders import MS, US, TraceBuilder

from stashtrace.analysis.graph import build
from stashtrace.replay import Change, what_if
from stashtrace.schema.kinds import DeviceCall
from stashtrace.schema.trace import Trace

STEPS, STEP = 6, 50 * MS


def job(*, head_ns: int = 0, freeing_ns: int = 0, steps: int = STEPS) -> Trace:
    """A host that launches a kernel of 5 ms every 10 ms, and in each step frees memory for so long.

    Before its first launch the recording has ``head_ns`` of the first step in which no device works.
    """
    trace = TraceBuilder()
    rank = trace.rank(0)
    gpu = rank.gpu(0)
    stream = gpu.stream("compute", compute=True)
    for step in range(steps):
        begin = step * (STEP + freeing_ns) + (head_ns if step else 0)
        end = (step + 1) * (STEP + freeing_ns) + head_ns
        at = begin + (head_ns if step == 0 else 0)
        if freeing_ns:
            gpu.call(DeviceCall.FREE, at + 2 * MS, at + 2 * MS + freeing_ns)
        for kernel in range(5):
            called = at + freeing_ns + 3 * MS + kernel * 9 * MS
            stream.kernel(called + 10 * US, called + 5 * MS, "gemm", launch=(called, called + 5 * US))
        rank.phase("forward", begin + 1, end - MS).phase("optimizer", end - MS, end)
    return trace.trace()


def saved_ns(trace: Trace) -> float:
    answer = what_if(build(trace), [Change.parse("launch=x0.5")])
    return answer.replayed_ns - answer.middle_ns


def test_half_the_time_between_launches_is_saved() -> None:
    """Of a step of 50 ms the host takes all, the device half."""
    assert saved_ns(job()) == pytest.approx(STEP / 2, rel=0.1)


def test_calls_that_free_memory_are_no_time_between_launches() -> None:
    assert saved_ns(job(freeing_ns=40 * MS)) == pytest.approx(saved_ns(job()), rel=0.05)


def test_what_was_before_the_first_launch_stays() -> None:
    trace = job(head_ns=900 * MS, steps=1)
    whole = what_if(build(trace), [Change.parse("launch=x0.5")])
    assert whole.replayed_ns == pytest.approx(950 * MS, rel=0.02)
    assert whole.replayed_ns - whole.middle_ns == pytest.approx(STEP / 2, rel=0.15)
