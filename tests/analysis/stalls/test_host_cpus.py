"""Who used the CPUs of a host: samples with known sums, beside the figures that the gate and the summary take."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Mapping

import pytest
from builders import MS, ProcessBuilder, S, TraceBuilder

from stashtrace.analysis.compare.steps_of_run import steps_of_run
from stashtrace.analysis.stalls.sampled_cpus import host_cpus, runqueue_of_ranks
from stashtrace.schema.kinds import TrackKind

WHOLE = (0, 10 * S)


def sample(process: ProcessBuilder, name: str, values: Mapping[int, float], thread: int = 0) -> None:
    """Append the samples of a counter of a process or of one of its threads: ts_ns -> value."""
    track = process.build.track(process.process_id, thread, name, kind=TrackKind.COUNTER, unit="ns")
    for ts_ns, value in values.items():
        process.build.add("counters", ts_ns=ts_ns, track_id=track, value=value)


def host(build: TraceBuilder, *, user: float, idle: float, steal: float = 0.0, seconds: int = 10) -> None:
    """Two samples of the host's CPUs by rank 0, between which it spent so much time, ns."""
    for name, value in (("user", user), ("system", 0.0), ("idle", idle), ("iowait", 0.0), ("steal", steal)):
        sample(build.rank(0), f"host_{name}_ns_total", {0: 7.0 * S, seconds * S: 7.0 * S + value})


def test_other_programs_used_what_the_job_did_not() -> None:
    build = TraceBuilder()
    host(build, user=15 * S, idle=5 * S)
    for name, used in (("user", 5 * S), ("system", 1 * S)):
        sample(build.rank(0).lives(-5 * S, 10 * S), f"process_{name}_ns_total", {0: 2.0 * S, 10 * S: 2.0 * S + used})
    (cpu,) = host_cpus(build.trace(), WHOLE).values()
    assert cpu.count == pytest.approx(2.0)
    assert cpu.others_count == pytest.approx(0.9)


def test_a_worker_of_a_part_of_the_run_counts_with_what_it_used() -> None:
    """It lived from 4 s to 9 s, was sampled late, and used 3 s of CPU time: 0.3 CPUs, not 0.6."""
    build = TraceBuilder()
    host(build, user=15 * S, idle=5 * S)
    sample(build.rank(0).lives(-5 * S, 10 * S), "process_user_ns_total", {0: 0.0, 10 * S: 6.0 * S})
    worker = build.rank(0).worker(0).lives(4 * S, 9 * S)
    sample(worker, "process_user_ns_total", {4 * S + 100 * MS: 0.5 * S, 9 * S: 3.0 * S})
    (cpu,) = host_cpus(build.trace(), WHOLE).values()
    assert cpu.others_count == pytest.approx(0.6)


def test_what_a_process_used_before_the_window_is_not_in_it() -> None:
    build = TraceBuilder()
    host(build, user=15 * S, idle=5 * S)
    late = build.rank(0).lives(-5 * S, 10 * S)
    sample(late, "process_user_ns_total", {1 * S: 40.0 * S, 10 * S: 46.0 * S})
    (cpu,) = host_cpus(build.trace(), WHOLE).values()
    assert cpu.others_count == pytest.approx(0.9)


def test_all_threads_of_a_rank_and_its_workers_wait() -> None:
    build = TraceBuilder()
    rank, worker = build.rank(0).lives(-5 * S, 12 * S), build.rank(0).worker(0).lives(6 * S, 12 * S)
    sample(rank, "thread_runqueue_ns_total", {-5 * S: 0.0, 0: 1.0 * S, 10 * S: 3.0 * S}, thread=1)
    sample(rank, "thread_runqueue_ns_total", {0: 0.0, 20 * S: 1.0 * S}, thread=2)  # half of it inside
    sample(worker, "thread_runqueue_ns_total", {6 * S: 0.25 * S, 9 * S: 1.0 * S}, thread=3)  # began inside
    sample(
        build.rank(1).lives(-5 * S, 12 * S), "thread_runqueue_ns_total", {2 * S: 30.0 * S, 9 * S: 31.0 * S}, thread=4
    )
    waited = runqueue_of_ranks(build.trace(), WHOLE)
    assert waited[0] == pytest.approx((2.0 + 0.5 + 1.0) * S)
    # Sampled 2 s after the window begins, it may have waited for these 2 s, and for no more.
    assert waited[1] == pytest.approx((1.0 + 2.0) * S)


def test_a_run_tells_who_used_the_cpus_in_its_steps() -> None:
    """Twelve steps of 100 ms on two CPUs: others used 0.35 of them, the hypervisor took a tenth of what was asked."""
    build = TraceBuilder()
    rank, worker = build.rank(0).lives(0, 1200 * MS), build.rank(0).worker(0).lives(0, 1200 * MS)
    for step in range(12):
        begin = step * 100 * MS
        worker.fetch(step, begin, begin + 50 * MS, cpu=20 * MS, runqueue=15 * MS)
        rank.batch_wait(step, begin, begin + 50 * MS, worker=0)
        rank.phase("forward", begin + 50 * MS, begin + 60 * MS)
        rank.phase("backward", begin + 60 * MS, begin + 90 * MS)
        rank.phase("optimizer", begin + 90 * MS, begin + 100 * MS)
    every = range(0, 1201 * MS, 100 * MS)
    sample(rank, "process_user_ns_total", {at: 0.8 * at for at in every})
    sample(worker, "process_user_ns_total", {at: 0.2 * at for at in every})
    sample(worker, "thread_runqueue_ns_total", {at: 0.15 * at for at in every}, thread=9)
    sample(rank, "thread_runqueue_ns_total", {at: 0.05 * at for at in every}, thread=8)
    for name, part in (("user", 1.3), ("system", 0.05), ("idle", 0.5), ("iowait", 0.0), ("steal", 0.15)):
        sample(rank, f"host_{name}_ns_total", {at: part * at for at in every})
    run = steps_of_run(build.trace())
    assert run.cpus.others_count == pytest.approx(0.35)
    assert run.cpus.stolen_ratio == pytest.approx(0.1)
    assert run.cpus.wait_ns == pytest.approx(20 * MS)
    assert run.worker_wait_ns == pytest.approx(15 * MS, rel=0.2)


def test_a_run_without_samples_does_not_tell() -> None:
    build = TraceBuilder()
    rank = build.rank(0)
    for step in range(12):
        begin = step * 100 * MS
        rank.phase("forward", begin, begin + 60 * MS)
        rank.phase("backward", begin + 60 * MS, begin + 90 * MS)
        rank.phase("optimizer", begin + 90 * MS, begin + 100 * MS)
    run = steps_of_run(build.trace())
    assert (run.cpus, run.worker_wait_ns) == (None, None)
