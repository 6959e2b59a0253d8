"""CPUs: who used those of a host, by samples with known sums; and how long threads waited for one, by column."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from builders import MS, ProcessBuilder, S, TraceBuilder

from stashtrace.analysis.compare.steps_of_run import steps_of_run
from stashtrace.analysis.findings.blocked_calls import blocked_calls
from stashtrace.analysis.findings.rules.contention import contention_claims
from stashtrace.analysis.findings.summary_input import gather
from stashtrace.analysis.stalls.budget import stalls
from stashtrace.analysis.stalls.cpu_waits import cpu_waits
from stashtrace.analysis.stalls.hidden import hidden
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.analysis.stalls.sampled_cpus import host_cpus, runqueue_of_ranks
from stashtrace.analysis.steps.steps import counted_steps, ranks_and_steps
from stashtrace.schema.kinds import TrackKind, WaitOp
from stashtrace.schema.trace import Trace

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


def test_a_run_says_who_used_the_cpus_in_its_steps() -> None:
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


def test_a_run_without_samples_does_not_say() -> None:
    build = TraceBuilder()
    rank = build.rank(0)
    for step in range(12):
        begin = step * 100 * MS
        rank.phase("forward", begin, begin + 60 * MS)
        rank.phase("backward", begin + 60 * MS, begin + 90 * MS)
        rank.phase("optimizer", begin + 90 * MS, begin + 100 * MS)
    run = steps_of_run(build.trace())
    assert (run.cpus, run.worker_wait_ns) == (None, None)


STEPS = 12
#: Of a step of 100 ms: forward 0 to 50, nothing to 60, backward 60 to 100 with a wait for rank 1 from 80 on.
FORWARD, BACKWARD = (0, 50), (60, 100)


def job(in_forward: int, between: int, in_backward: int, *, asleep: bool = False) -> Trace:
    """Rank 0 waits for a CPU for the given ms in each part of a step; rank 1 comes 20 ms late to the all-reduce."""
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
def test_each_wait_is_part_of_a_column_that_holds_at_least_it(
    given: tuple[int, int, int], expected: dict[str, float]
) -> None:
    waits = waits_of(job(*given))
    assert waits == pytest.approx(expected, abs=0.1)
    assert sum(waits.values()) == pytest.approx(sum(given), rel=0.02)


def test_a_sleep_that_ends_late_for_want_of_a_cpu_is_reported_once() -> None:
    """Asleep for 6 of the 10 ms between: 4 ms of the waits belong to the loop, and 4 lie in the sleep."""
    trace = job(0, 8, 0, asleep=True)
    counted = counted_steps(TraceIndex(trace).steps)
    assert waits_of(trace) == pytest.approx({"host": 4, "other": 4}, abs=0.1)
    assert set(blocked_calls(trace, stalls(trace), counted, least_ratio=0.01)[0]) == {"asleep"}


def test_the_summary_names_the_columns_with_the_longest_first() -> None:
    (claim,) = contention_claims(gather(job(40, 0, 36)))
    assert "waited for a CPU for 76 % of the step (counted as compute and late)" in claim.text
    assert hidden(job(40, 0, 36))["cpu_contention_ns"].max() == pytest.approx(76 * MS, rel=0.01)
