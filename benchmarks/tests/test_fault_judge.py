"""The judge of benchmarks/bench_faults.py: what the clocks confirm, what they do not, and which faults are fair."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

pytest.importorskip("torch")
MS = 1_000_000


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[1]))
    monkeypatch.delitem(sys.modules, "bench_faults", raising=False)
    import bench_faults

    return bench_faults


def clock_of(bench: ModuleType, work_ms: list[list[float]], cpu_ms: list[list[float]]) -> object:
    """Clocks of steps of 100 ms in which each rank arrives after its work, of which so much was on a CPU."""
    begin = np.arange(len(work_ms[0])) * 100 * MS
    arrive = begin + np.array(work_ms) * MS
    return bench.Clocks(
        np.tile(begin, (len(work_ms), 1)), arrive.astype(np.int64), np.array(cpu_ms) * MS, np.arange(len(begin))
    )


def test_a_cause_is_confirmed_only_by_what_the_rank_did_longer(bench: ModuleType) -> None:
    clock = clock_of(bench, [[10, 10, 30], [30, 10, 10]], [[10, 10, 30], [12, 10, 10]])
    assert bench.unconfirmed(clock, 0, "compute") == ""
    assert bench.unconfirmed(clock, 1, "cpu_contention") == ""
    assert "2.0 ms more by the clocks, 20.0 ms late" in bench.unconfirmed(clock, 1, "compute")
    assert bench.unconfirmed(clock, 0, "fetch") == "nothing of the kind was done"
    always = clock_of(bench, [[10], [30]], [[10], [30]])
    assert bench.unconfirmed(always, 0, "compute") == "never last by the clocks"


def test_waits_are_means_per_step_for_the_last_rank(bench: ModuleType) -> None:
    clock = clock_of(bench, [[10, 10], [30, 10], [20, 16]], [[0, 0]] * 3)
    assert clock.waits_ns() == {(0, 1): 10 * MS, (2, 1): 5 * MS, (0, 2): 3 * MS, (1, 2): 3 * MS}
    assert clock.behind_ns(1).tolist() == [10 * MS, -6 * MS]
    assert bench.last_by_clock(clock, 1) == (1, 2)


@pytest.mark.parametrize(
    ("late_ms", "every", "spread_ms", "fair"),
    [(5.0, 1, 1.0, True), (4.9, 1, 1.0, False), (5.0, 1, 2.0, False), (14.9, 3, 1.0, False), (15.0, 3, 1.0, True)],
)
def test_a_fault_is_large_against_the_step_and_its_spread(
    bench: ModuleType, late_ms: float, every: int, spread_ms: float, fair: bool
) -> None:
    row = {"late_ms": late_ms, "step_ms": 100.0, "config": {"every": every}}
    assert bench.fair(row, spread_ms) is fair


def test_there_are_fifty_faults_of_every_kind_and_loop_on_every_rank(bench: ModuleType) -> None:
    controls = {(loop, ranks): (40.0, 1.0) for loop in bench.LOOPS for ranks in (2, 3, 4)}
    jobs = [config for _, config in bench.faults(controls)]
    assert len(jobs) == 50
    assert {job.kind for job in jobs} == set(bench.CAUSES)
    assert len({(job.kind, job.loop) for job in jobs}) == 24
    assert {job.rank for job in jobs} == {0, 1, 2, 3}
    assert all(0 <= job.rank < job.ranks for job in jobs)
    assert len({job.size_ms for job in jobs}) >= 3
    assert len(list(bench.quiet())) == 20
