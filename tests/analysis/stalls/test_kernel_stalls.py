"""Ranks whose kernels are known, step by step, and how far brackets agree with them."""

from __future__ import annotations

import pytest
from analysis.table_text import expected, stall_text, step_text
from builders import MS, TraceBuilder
from device_rows import StreamBuilder

from stashtrace.analysis.registry import analyze
from stashtrace.analysis.stalls.budget import stall_intervals, stalls
from stashtrace.schema.kinds import CollectiveOp, CollectiveSource, CopyDirection, DeviceCall, DeviceWork, WaitOp

STEP = 100 * MS
COMM = DeviceWork.COMMUNICATION


def rank_with_gpu(build: TraceBuilder, number: int = 0, steps: int = 1) -> StreamBuilder:
    """Host and device in step: one update per 100 ms, a mark at each boundary."""
    rank = build.rank(number).lives(0, (steps * 100 + 10) * MS)
    compute = rank.gpu(0).stream("compute", compute=True)
    for at in range(steps):
        rank.phase("forward", at * STEP + 1 * MS, at * STEP + 2 * MS)
        rank.phase("optimizer", at * STEP + 98 * MS, at * STEP + 100 * MS)
        compute.step(at * STEP, at)
    compute.step(steps * STEP, steps)
    return compute


def test_the_order_of_the_kinds() -> None:
    build = TraceBuilder()
    compute, other = rank_with_gpu(build), rank_with_gpu(build, 1)
    side, copies = compute.gpu.stream("nccl"), compute.gpu.stream("copy")
    theirs = other.gpu.stream("nccl")
    compute.kernel(10 * MS, 30 * MS).kernel(80 * MS, 90 * MS)
    other.kernel(0, 35 * MS)
    side.kernel(20 * MS, 60 * MS, "ncclDevKernel_AllReduce", work=COMM, launch=(15 * MS, 16 * MS))
    theirs.kernel(35 * MS, 60 * MS, "ncclDevKernel_AllReduce", work=COMM, launch=(15 * MS, 16 * MS))
    copies.kernel(55 * MS, 70 * MS, "copy", work=DeviceWork.COPY, copy=CopyDirection.HOST_TO_DEVICE)
    build.device_collective(
        {0: (14 * MS, 17 * MS, 20 * MS, 60 * MS), 1: (14 * MS, 17 * MS, 35 * MS, 60 * MS)},
        streams={0: side, 1: theirs},
        source=CollectiveSource.PLUGIN,
    )
    trace = build.trace()
    assert stall_text(trace).splitlines()[0] == ("0 0: compute 30, straggler 5 <1, interconnect 25, h2d 10, launch 30")
    assert set(stalls(trace)["method"][stalls(trace)["step"] == 0]) == {"kernels"}
    assert stall_text(trace).splitlines()[1] == "1 0: compute 35, interconnect 25, launch 40"


def test_idle_time_by_what_the_host_did() -> None:
    build = TraceBuilder()
    compute = rank_with_gpu(build)
    rank = build.rank(0)
    rank.batch_wait(0, 0, 20 * MS, worker=0)
    rank.worker(0).fetch(0, 0, 15 * MS).io(0, 5 * MS, blocked=True)
    rank.phase("checkpoint", 40 * MS, 50 * MS)
    rank.wait(WaitOp.SLEEP, 60 * MS, 70 * MS)
    compute.kernel(20 * MS, 35 * MS).kernel(72 * MS, 80 * MS).kernel(90 * MS, 100 * MS)
    compute.gpu.call(DeviceCall.STREAM_SYNCHRONIZE, 75 * MS, 81 * MS, stream=compute)
    assert stall_text(build.trace()) == (
        "0 0: compute 33, fetch 5, prep 10, handoff 5, checkpoint 10, sync 10, launch 17, other 10"
    )


def test_a_read_inside_a_checkpoint_belongs_to_it() -> None:
    build = TraceBuilder()
    compute = rank_with_gpu(build)
    rank = build.rank(0)
    rank.phase("checkpoint_load", 20 * MS, 50 * MS)
    rank.io(25 * MS, 45 * MS, path="/model.pt", blocked=True)
    rank.io(60 * MS, 64 * MS, blocked=True)
    compute.kernel(0, 20 * MS).kernel(50 * MS, 60 * MS).kernel(64 * MS, 100 * MS)
    assert stall_text(build.trace()) == "0 0: compute 66, fetch 4, checkpoint 30"


def test_copies_inside_a_device_are_its_work_and_between_devices_its_link() -> None:
    build = TraceBuilder()
    compute = rank_with_gpu(build)
    compute.kernel(0, 20 * MS, "copy", work=DeviceWork.COPY, copy=CopyDirection.DEVICE_TO_DEVICE)
    compute.kernel(20 * MS, 50 * MS, "copy", work=DeviceWork.COPY, copy=CopyDirection.PEER)
    compute.kernel(50 * MS, 60 * MS, "memset", work=DeviceWork.MEMSET)
    compute.kernel(60 * MS, 100 * MS, "graph", work=DeviceWork.GRAPH)
    trace = build.trace()
    assert stall_text(trace) == "0 0: compute 70 [30..70], interconnect 30, other 0 [0..40]"
    assert analyze(trace, "hidden")["graph_opaque_ns"].tolist() == [40 * MS]


def test_a_collective_without_device_stamps_takes_those_of_its_kernel() -> None:
    build = TraceBuilder()
    streams = {}
    for number, begin in ((0, 10), (1, 40)):
        compute = rank_with_gpu(build, number)
        streams[number] = side = compute.gpu.stream("nccl")
        side.kernel(begin * MS, 60 * MS, "ncclDevKernel", work=COMM, launch=(5 * MS, 6 * MS))
    build.device_collective(dict.fromkeys((0, 1), (4 * MS, 7 * MS, -1, -1)), streams=streams)
    trace = build.trace()
    assert stall_text(trace).splitlines()[0] == "0 0: straggler 30 <1, interconnect 20, launch 50"
    assert analyze(trace, "hidden")["untimed_count"].tolist() == [0, 0]


def test_communication_of_nobody_knows_which_collective_is_bounded() -> None:
    build = TraceBuilder()
    rank_with_gpu(build).kernel(10 * MS, 60 * MS, "ncclDevKernel", work=COMM)
    assert stall_text(build.trace()) == (
        "0 0: straggler 0 [0..50], network 0 [0..50], interconnect 50 [0..50], launch 50"
    )


def test_a_collective_of_the_host_leaves_the_device_idle() -> None:
    build = TraceBuilder()
    for number, call in ((0, 40), (1, 70)):
        compute = rank_with_gpu(build, number)
        compute.kernel(0, call * MS).kernel(90 * MS, 100 * MS)
    build.meet({0: 40 * MS, 1: 70 * MS}, 90 * MS, op=CollectiveOp.BARRIER)
    assert stall_text(build.trace()) == expected(
        """
        0 0: compute 50, straggler 30, interconnect 20
        1 0: compute 80, interconnect 20
        """
    )


def test_method_is_that_of_each_step() -> None:
    build = TraceBuilder()
    compute = rank_with_gpu(build, steps=5)
    for step in (1, 2, 3):
        for at in range(0, 90, 10):
            compute.kernel(step * STEP + at * MS, step * STEP + (at + 9) * MS)
    # Deep mode began in the middle of step 0 and ended at the begin of step 4.
    compute.kernel(95 * MS, 99 * MS).kernel(401 * MS, 404 * MS)
    trace = build.trace()
    table = stalls(trace, warmup=True)
    methods = {s: set(table["method"][table["step"] == s].tolist()) for s in range(-1, 5)}
    assert methods == {-1: {"host"}, 0: {"brackets"}, 1: {"kernels"}, 2: {"kernels"}, 3: {"kernels"}, 4: {"brackets"}}
    assert set(stalls(trace, by="rank", warmup=True)["method"]) <= {"mixed", "kernels", "brackets"}
    assert stall_text(trace).splitlines()[1] == "0 1: compute 81, launch 19"
    assert sorted(set(stall_intervals(trace)["step"].tolist())) == [-1, 0, 1, 2, 3, 4]


def test_steps_of_imported_kernels_end_with_the_work_launched_before() -> None:
    build = TraceBuilder()
    rank = build.rank(0).lives(0, 300 * MS)
    compute = rank.gpu(0).stream("compute")
    for at in range(3):
        rank.phase("forward", at * 10 * MS, (at * 10 + 2) * MS)
        rank.phase("optimizer", (at * 10 + 5) * MS, (at * 10 + 10) * MS)
        compute.kernel(at * 60 * MS + 5 * MS, (at + 1) * 60 * MS, launch=(at * 10 * MS, at * 10 * MS + 1 * MS))
    trace = build.trace()
    assert step_text(trace) == "0 0: 0-60 train\n0 1: 60-120 train\n0 2: 120-180 train"
    assert set(stalls(trace)["method"][stalls(trace)["step"] >= 0]) == {"kernels"}


@pytest.mark.parametrize("watched", [True, False])
def test_agreement_of_brackets_with_kernels(watched: bool) -> None:
    build = TraceBuilder()
    compute = rank_with_gpu(build, steps=2)
    copies = compute.gpu.stream("copy")
    for step in range(2):
        base = step * STEP
        compute.kernel(base, base + 40 * MS).kernel(base + 60 * MS, base + 99 * MS)
        copies.kernel(base + 40 * MS, base + 60 * MS, "copy", work=DeviceWork.COPY, copy=1)
        if watched:
            compute.copy(base + 40 * MS, base + 58 * MS)
    table = analyze(build.trace(), "agreement")
    row = next(r for r in table.rows() if r["kind"] == "h2d" and r["step"] == 1)
    assert row["kernels_ns"] == 20 * MS
    assert row["brackets_ns"] == (18 * MS if watched else 0)
    assert row["difference_ratio"] == pytest.approx(-0.02 if watched else -0.2)
    launch = next(r for r in table.rows() if r["kind"] == "launch" and r["step"] == 1)
    assert launch["low_ns"] <= launch["kernels_ns"] <= launch["high_ns"]


def test_agreement_needs_both() -> None:
    build = TraceBuilder()
    rank_with_gpu(build)
    assert len(analyze(build.trace(), "agreement")) == 0
