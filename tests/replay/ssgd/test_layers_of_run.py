"""Layers of a recorded run: its messages, and that their replay is as long as its steps were."""

from __future__ import annotations

import numpy as np
import pytest
from builders import MS, US, TraceBuilder
from replay.ddp_runs import BACKWARD_NS, FORWARD_NS, MIB, SIZES, STEPS, UPDATE_NS, ddp_run, step_ns, transfer_ns

from stashtrace.errors import MissingDataError
from stashtrace.replay.ssgd import Ring
from stashtrace.replay.ssgd.iteration_study import study
from stashtrace.replay.ssgd.tasks import WAIT_FREE
from stashtrace.replay.ssgd.workload import layers_of_run
from stashtrace.schema.kinds import CollectiveOp, DeviceWork, Phase
from stashtrace.schema.trace import Trace


def test_a_message_is_a_layer_with_the_computation_before_it() -> None:
    iterations, ranks = layers_of_run(ddp_run(1).trace())
    assert ranks == 2
    assert len(iterations) == STEPS - 5  # the first steps are warm-up
    one = iterations[0]
    assert one.gradient_bytes.tolist() == list(SIZES)[::-1]
    assert one.backward_ns.tolist() == list(BACKWARD_NS)[::-1]
    assert one.communication_ns.tolist() == [transfer_ns(size) for size in SIZES[::-1]]
    assert one.forward_ns.sum() == pytest.approx(FORWARD_NS)
    assert one.update_ns == UPDATE_NS


@pytest.mark.parametrize("cap", [0.25, 1, 2])
def test_its_replay_is_as_long_as_its_steps(cap: float) -> None:
    iterations, ranks = layers_of_run(ddp_run(cap * MIB).trace())
    found = study(iterations, [1], measured_ranks=ranks)
    assert found.measured_ns == pytest.approx(step_ns(cap * MIB), abs=20)
    assert found.measured_exposed_ns == pytest.approx(
        step_ns(cap * MIB) - FORWARD_NS - sum(BACKWARD_NS) - UPDATE_NS, abs=20
    )
    fitted = next(row for row in found.rows if row.variant is WAIT_FREE and not row.merged)
    assert fitted.speedups[-1].iteration_ns == pytest.approx(step_ns(cap * MIB), rel=1e-4)
    assert found.ring.message_line(2) == pytest.approx((400_000, 1.0), rel=1e-6)


def test_the_best_of_one_size_is_that_of_the_run_itself() -> None:
    """Start-ups of 3 ms, and every cap from 1/8 MiB to all in one tried by the arithmetic of the job."""
    iterations, ranks = layers_of_run(ddp_run(1, latency_ns=3 * MS).trace())
    found = study(iterations, [2], measured_ranks=ranks)
    every = [step_ns(eighths / 8 * MIB, latency_ns=3 * MS) for eighths in range(1, 80)]
    assert step_ns(found.cap_mib * MIB, latency_ns=3 * MS) == min(every)
    assert found.exposed_ns(found.merged) <= found.exposed_ns(found.capped) < found.exposed_ns(found.layerwise)
    assert found.exposed_ns(found.capped) == pytest.approx(
        min(every) - FORWARD_NS - sum(BACKWARD_NS) - UPDATE_NS, abs=20
    )


def test_runs_without_such_messages_are_refused() -> None:
    alone = TraceBuilder()
    alone.rank(0).phase("forward", 0, MS).phase("optimizer", MS, 2 * MS)
    with pytest.raises(MissingDataError, match="no collective was recorded"):
        layers_of_run(alone.trace())
    waited = ddp_run(MIB)
    for row in waited.rows["collectives"]:
        process = waited.rank(row["rank"])
        process.collective_wait(row["collective_key"], row["call_ns"] + 1, row["call_ns"] + 2)
    with pytest.raises(MissingDataError, match="callers wait"):
        layers_of_run(waited.trace())
    late = ddp_run(MIB)
    for row in late.rows["phases"]:
        if row["phase_code"] == Phase.BACKWARD:
            row["end_ns"] = row["begin_ns"] + 1
    with pytest.raises(MissingDataError, match="inside a counted backward pass"):
        layers_of_run(late.trace())


def test_other_operations_are_no_gradients() -> None:
    """The fifth message is an all-to-all: what was computed before it belongs to the sixth."""
    run = ddp_run(1)
    for row in run.rows["collectives"]:
        if row["message_bytes"] == SIZES[4]:
            row["op_code"] = int(CollectiveOp.ALL_TO_ALL)
    iterations, _ = layers_of_run(run.trace())
    one = iterations[0]
    assert SIZES[4] not in one.gradient_bytes.tolist()
    assert len(one) == len(SIZES) - 1
    assert one.backward_ns.sum() == sum(BACKWARD_NS)


def device_run(ahead_ms: int) -> Trace:
    """Steps of 20 ms of two devices: messages at 8 and 10 ms of 2 ms each; their hosts are so far ahead of them."""
    build = TraceBuilder()
    build.group(range(2), backend="nccl")
    for step in range(10):
        called, at = step * 20 * MS, (step * 20 + ahead_ms) * MS
        streams = {rank: build.rank(rank).gpu().stream("nccl") for rank in range(2)}
        for size_bytes, ready in ((1 << 22, at + 8 * MS), (1 << 24, at + 10 * MS)):
            times = dict.fromkeys(range(2), (called + 150 * US, called + 160 * US, ready, ready + 2 * MS))
            build.device_collective(times, streams=streams, message_bytes=size_bytes)
            for stream in streams.values():
                stream.kernel(
                    ready,
                    ready + 2 * MS,
                    "ncclDevKernel_AllReduce",
                    work=DeviceWork.COMMUNICATION,
                    launch=(called + 151 * US, called + 152 * US),
                )
        for rank in range(2):
            process, begin = build.rank(rank), called
            compute = process.gpu().stream("compute", compute=True)
            for phase, (first, last) in (("forward", (2, 4)), ("backward", (4, 10)), ("optimizer", (12, 20))):
                process.phase(phase, begin, begin + 100 * US)
                compute.kernel(at + first * MS, at + last * MS, phase, launch=(begin + US, begin + 2 * US))
                begin += 100 * US
    return build.trace()


@pytest.mark.parametrize("ahead_ms", [0, 5, 15, 30, 45])
def test_a_host_ahead_of_its_device_makes_no_iteration_longer(ahead_ms: int) -> None:
    iterations, ranks = layers_of_run(device_run(ahead_ms))
    found = study(iterations, [2], ring=Ring(1_000.0, 0.1), measured_ranks=ranks)
    assert (found.measured_ns, found.measured_exposed_ns) == (20 * MS, 2 * MS)
    assert iterations[0].backward_ns[0] == 2 * MS
    assert iterations[0].communication_ns.tolist() == [2 * MS, 2 * MS]


def test_messages_of_unknown_cost_are_refused() -> None:
    iterations, ranks = layers_of_run(ddp_run(100 * MIB).trace())
    with pytest.raises(MissingDataError, match="too similar in size"):
        study(iterations, [2], measured_ranks=ranks)
    iterations, ranks = layers_of_run(ddp_run(1).trace())
    for number, one in enumerate(iterations):
        one.communication_ns[:] = 1e6 + 1e5 * ((np.arange(len(one)) * 7 + number) % 5)
    with pytest.raises(MissingDataError, match="lost in the scatter"):
        study(iterations, [2], measured_ranks=ranks)
