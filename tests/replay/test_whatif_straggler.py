"""Nobody late: between two bounds where ranks take turns, and by the sample where their batches differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from builders import MS, US, TraceBuilder
from wait_chains import on, through_a_server

from stashtrace.analysis.graph import Graph, Resource, build
from stashtrace.analysis.steps.epochs import recorded_samples
from stashtrace.replay import Answer, Change, what_if
from stashtrace.schema.kinds import DeviceWork
from stashtrace.schema.trace import Trace

STEPS = 24


def job(
    work_ms: Callable[[int, int], int],
    *,
    ranks: int = 2,
    samples: dict[int, int] | None = None,
    reported: str = "{} 1000 1000",
) -> Trace:
    """Each rank computes for so long in each step (by rank and step), all reduce for 2 ms, and update for 1 ms."""
    build_ = TraceBuilder()
    clock = 0
    for step in range(STEPS):
        called = {}
        for rank in range(ranks):
            process, begin = build_.rank(rank), clock
            if samples:
                process.batch_wait(step, begin, begin + 1000, worker=-1, loader=1 + rank).fetch(
                    step, begin, begin + 1000, loader=1 + rank
                )
            called[rank] = begin + work_ms(rank, step) * MS
            process.phase("forward", begin + 1000, called[rank])
        end = max(called.values()) + 2 * MS
        build_.meet(called, end, update_ns=MS)
        clock = end + MS
    for rank, batch in (samples or {}).items():
        build_.say(f"dataloader {1 + rank:016x}", reported.format(batch), build_.rank(rank).process_id)
    return build_.trace()


def without(graph: Graph) -> Answer:
    return what_if(graph, [Change.parse("straggler=0")])


def test_a_rank_that_is_always_late() -> None:
    answer = without(build(job(lambda rank, step: 5 + 4 * rank)))
    assert answer.measured_ns == 12 * MS
    assert (answer.low_ns / MS, answer.high_ns / MS) == pytest.approx((8, 8), abs=0.02)


@pytest.mark.parametrize("apart", [0, 2])
def test_ranks_of_another_kind_are_no_peers_of_threads(apart: int) -> None:
    """Rank 1 works for 9 ms, the others for 5; one of these was recorded by its kernels."""
    graph = build(job(lambda rank, _: 9 if rank == 1 else 5, ranks=3))
    other = (graph.rank == apart) & graph.is_thread
    mixed = replace(graph, resource=np.where(other, int(Resource.HOST), graph.resource))
    assert what_if(mixed, [Change.parse("straggler=0")]).high_ns / MS == pytest.approx(5 + 2 + 1, rel=0.02)


def test_a_rank_that_is_late_now_and_then() -> None:
    """Every third step of rank 1 takes 9 ms instead of 3; ranks 0 and 2 always take 3."""
    answer = without(build(job(lambda rank, step: 3 + 6 * (rank == 1 and step % 3 == 0), ranks=3)))
    assert answer.measured_ns / MS == pytest.approx(8, abs=0.4)
    assert (answer.low_ns / MS, answer.high_ns / MS) == pytest.approx((6, 6), abs=0.01)


def nested(late_ms: int) -> Trace:
    """Ranks 0 and 1, and ranks 2 and 3, meet in the middle of each step, all at its end; rank 2 begins with more work.

    10 ms of work, an all-reduce of 1 ms, 20 ms of work, an all-reduce of 1 ms, an update of 1 ms. The hosts are ahead.
    """
    build_ = TraceBuilder()
    groups = {0x11: [0, 1], 0x22: [2, 3], 0x33: [0, 1, 2, 3]}
    for group, members in groups.items():
        build_.group(members, group=group, name=f"group {group}", backend="nccl")
    at = dict.fromkeys(range(4), 20 * MS)
    streams = {rank: build_.rank(rank).gpu().stream("compute", compute=True) for rank in at}
    for host in range(0, 12 * MS, MS):

        def work(rank: int, ms: int, name: str, host: int = host) -> None:
            streams[rank].kernel(at[rank], at[rank] + ms * MS, name, launch=(host + 100 * US, host + 110 * US))
            at[rank] += ms * MS

        def meet(group: int, host: int = host) -> None:
            members, called = groups[group], (host + 150 * US, host + 160 * US)
            end = max(at[rank] for rank in members) + MS
            for rank in members:
                name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
                streams[rank].kernel(at[rank], end, name, work=DeviceWork.COMMUNICATION, launch=called)
            times = {rank: (*called, at[rank], end) for rank in members}
            build_.device_collective(times, streams=streams, group=group, message_bytes=1 << 20)
            at.update(dict.fromkeys(members, end))

        for rank in at:
            process = build_.rank(rank).phase("forward", host, host + 300 * US)
            process.phase("backward", host + 300 * US, host + 600 * US)
            process.phase("optimizer", host + 600 * US, host + 900 * US)
            work(rank, 10 + (late_ms if rank == 2 else 0), "forward")
        meet(0x11)
        meet(0x22)
        for rank in at:
            work(rank, 20, "backward")
        meet(0x33)
        for rank in at:
            work(rank, 1, "adam")
    return build_.trace()


@pytest.mark.parametrize("late_ms", [5, 30])
def test_a_rank_that_is_late_for_several_groups_costs_all_of_its_lateness(late_ms: int) -> None:
    """It works longer before the first collective; with that gone nobody waits in any."""
    answer = without(build(nested(late_ms)))
    assert answer.measured_ns / MS == pytest.approx(33 + late_ms, abs=0.1)
    assert answer.saved_ns[0] / MS <= late_ms <= answer.saved_ns[1] / MS
    assert answer.middle_ns / MS == pytest.approx(33, abs=0.2)


def test_ranks_that_take_turns() -> None:
    """Each is late every other step. At best nobody ever is; no rank is slower than the other in general."""
    graph = build(job(lambda rank, step: 5 + 4 * (step % 2 == rank)))
    answer = without(graph)
    assert answer.measured_ns == 12 * MS
    assert (answer.low_ns / MS, answer.high_ns / MS) == pytest.approx((8, 12), abs=0.02)


def test_a_rank_with_more_samples_is_not_late() -> None:
    """Rank 1 trains on twice the samples of rank 0 and takes twice as long."""
    trace = job(lambda rank, step: 5 + 5 * rank, samples={0: 16, 1: 32})
    assert without(build(trace)).high_ns / MS == pytest.approx(13, abs=0.1)
    equal_samples = job(lambda rank, step: 5 + 5 * rank, samples={0: 16, 1: 16})
    assert without(build(equal_samples)).high_ns / MS == pytest.approx(8, abs=0.1)


def test_samples_that_cannot_be_read_count_as_unknown() -> None:
    trace = job(lambda rank, step: 5 + 5 * rank, samples={0: 16, 1: 32}, reported="{} many")
    assert recorded_samples(trace) == {}
    assert without(build(trace)).high_ns / MS == pytest.approx(8, abs=0.1)


def test_a_rank_that_is_slow_for_its_samples_is_late() -> None:
    """Twice the samples, in three times the time: at the pace of rank 0 it would take 10 ms.

    Its update of 1 ms is the same for any samples, but counts as if it were not.
    """
    trace = job(lambda rank, step: 5 + 10 * rank, samples={0: 16, 1: 32})
    assert 13 <= without(build(trace)).high_ns / MS <= 14.02


def test_what_scatters_stays_when_what_does_not_is_taken_away() -> None:
    """40 ms of rank 1 are always the same; what is left, 5 or 9 ms for five steps each, scatters as it did."""

    def work_ms(late_ms: int) -> Callable[[int, int], int]:
        return lambda rank, step: 5 + 4 * (step // 5 % 2) + late_ms * rank

    answer = without(build(job(work_ms(40))))
    alone = what_if(build(job(work_ms(0))), [])
    assert answer.middle_ns == pytest.approx(alone.measured_ns, rel=0.01)
    assert answer.noise_ns == pytest.approx(alone.noise_ns, rel=0.03)
    assert answer.noise_ns > 0.1 * answer.middle_ns


def test_the_mean_of_steps_that_do_not_scatter() -> None:
    answer = without(build(job(lambda rank, step: 5)))
    assert answer.noise_ns == pytest.approx(0.03 * 8 * MS, rel=0.01)
    low, high = answer.interval_ns
    assert high - low == pytest.approx(2 * answer.noise_ns, rel=0.01)


def late_on_two_cpus(transfer_us: Callable[[int], int]) -> Graph:
    """Two ranks on one host of two CPUs; rank 1 is 20 ms late, then a transfer takes so long, by step."""
    build_ = TraceBuilder()
    clock = 0
    for step in range(STEPS):
        called = {rank: clock + (5 + 20 * rank) * MS for rank in range(2)}
        end = called[1] + transfer_us(step) * 1000
        build_.meet(called, end)
        for rank, at in called.items():
            process = build_.rank(rank).phase("forward", clock + 1000, at)
            process.phase("optimizer", end, end + MS)
        clock = end + MS
    for name, rate in (("user", 0.5), ("system", 0), ("iowait", 0), ("steal", 0), ("idle", 1.5)):
        build_.counter(0, f"host_{name}_ns_total", {0: 0.0, clock: rate * clock}, unit="ns")
    return build(build_.trace())


def test_a_transfer_that_nobody_held_up_may_wait_for_a_cpu_when_all_come_together() -> None:
    """0.5 ms alone: as it was, or 1.5 ms longer, half of the longest turn of another thread."""
    answer = without(late_on_two_cpus(lambda step: 500))
    assert answer.high_ns - answer.low_ns == pytest.approx(1.5 * MS, rel=0.05)


def test_a_transfer_that_has_waited_for_a_cpu_waits_no_second_time() -> None:
    """Of four transfers one takes 0.5 ms, three take 4: only that one may be longer. It is in 4 of the 19 steps."""
    answer = without(late_on_two_cpus(lambda step: 4000 if step % 4 else 500))
    assert answer.steps_count == 19
    assert answer.high_ns - answer.low_ns == pytest.approx(1.5 * MS * 4 / 19, rel=0.02)


def test_a_server_without_steps_works_in_between() -> None:
    """Both ranks train for 31 ms; rank 1 can go on only when rank 2 has slept and the server has both gradients."""
    graph = build(through_a_server(on(2, 15)))
    assert graph.step_ns(graph.replay()).tolist() == graph.measured_step_ns.tolist()
    answer = without(graph)
    assert answer.measured_ns == pytest.approx(46.2 * MS, abs=0.05 * MS)
    assert (answer.low_ns / MS, answer.high_ns / MS) == pytest.approx((31.2, 31.2), abs=0.05)
