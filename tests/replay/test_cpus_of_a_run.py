"""CPUs that are left for the nodes of a run: as many as with which the unchanged run takes no longer than it took."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from builders import MS, TraceBuilder

from stashtrace.analysis.graph import build
from stashtrace.replay.causes import causes
from stashtrace.replay.sharing import cpus_left
from stashtrace.replay.whatif import ReplayedRun
from stashtrace.schema.kinds import WaitOp
from stashtrace.schema.trace import Trace

STEPS, CPUS = 30, 2.0


def job(*, helper: str) -> Trace:
    """Two ranks on two CPUs compute for 40 ms and then wait for 40 ms for a lock.

    ``helper``: when threads of the job that have no nodes use a CPU each: ``waiting``, while the step threads wait for
    the lock; ``none``: never.
    """
    trace, now = TraceBuilder(), 0
    trace.group(range(2))
    for _ in range(STEPS):
        middle, end = now + 40 * MS, now + 80 * MS
        for number in range(2):
            rank = trace.rank(number)
            rank.phase("forward", now, middle, cpu=(now, middle), runqueue=(0, 0))
            rank.wait(WaitOp.SEMAPHORE, middle, end)
        trace.meet(dict.fromkeys(range(2), end), end + 2 * MS)
        for number in range(2):
            trace.rank(number).phase("optimizer", end + 2 * MS, end + 3 * MS, cpu=(middle, middle), runqueue=(0, 0))
        now = end + 3 * MS
    computed = 2 * STEPS * 41 * MS
    used = (computed + (2 * STEPS * 40 * MS if helper == "waiting" else 0)) / now
    for name, rate in (("user", used), ("system", 0), ("iowait", 0), ("steal", 0), ("idle", CPUS - used)):
        trace.counter(0, f"host_{name}_ns_total", {0: 0.0, now: rate * now}, unit="ns")
    for number in range(2):
        trace.counter(number, "process_user_ns_total", {0: 0.0, now: used * now / 2}, unit="ns")
    return trace.trace("./run")


@pytest.mark.parametrize("helper", ["none", "waiting"])
def test_threads_that_run_while_steps_wait_take_no_cpu_from_them(helper: str) -> None:
    run = ReplayedRun(build(job(helper=helper)))
    (left,) = cpus_left(run.graph, run._apart_ratio).values()
    assert left >= 1.7, "each of two ranks computes on a CPU of its own"
    first = next(iter(causes(job(helper=helper)).rows()))
    assert (first["kind"], first["level"]) == ("other", "gone")
    assert first["saved_ns"] == pytest.approx(40 * MS, rel=0.05)
    # Without the wait the threads may need their CPUs while the ranks compute.
    assert (first["saved_low_ns"] > 30 * MS) == (helper == "none")
