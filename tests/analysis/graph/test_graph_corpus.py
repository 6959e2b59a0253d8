"""Graphs of traces that others recorded: the replay is the recording, and little of it is left unexplained."""

from __future__ import annotations

import pytest
from corpus import corpus

import stashtrace
from stashtrace.analysis.graph import Graph, Resource, build
from stashtrace.replay import Change, what_if
from stashtrace.schema.kinds import DeviceWork
from stashtrace.schema.trace import Trace

#: The first is a whole job of eight ranks; of the others single ranks were published.
TRACES = (
    "kineto/dlrm8_v100",
    "kineto/one_rank_of_many/df_index_rank1_of_2.json.gz",
    "kineto/one_rank_of_many/diff_control_rank3_of_8.json.gz",
    "kineto/one_rank_of_many/mi300_resnet_ckpt_rank0_of_8.json.gz",
    "kineto/one_rank_of_many/nccl_meta_rank0_of_2.json.gz",
    "kineto/one_gpu/tb_r50_nw0.pt.trace.json.gz",
    "kineto/one_gpu/tb_r50_nw4.pt.trace.json.gz",
    "kineto/one_gpu/param_resnet.json.gz",
    "nsys/h100_2gpu_1s.sqlite",
)
#: What of the way through a step no edge explains, at most.
MOST_GAP_RATIO = 0.05


def trace_of(name: str) -> Trace:
    path = corpus(name)
    files = [str(p) for p in sorted(path.glob("rank*.pt.trace.json.gz"))] if path.is_dir() else str(path)
    return stashtrace.load(files)


@pytest.fixture(scope="module", params=TRACES)
def recorded(request: pytest.FixtureRequest) -> tuple[Trace, Graph]:
    trace = trace_of(request.param)
    return trace, build(trace)


def test_the_replay_is_the_recording(recorded: tuple[Trace, Graph]) -> None:
    _, graph = recorded
    answer = what_if(graph, [])
    assert answer.error_ratio < 1e-6
    assert answer.gap_ratio < MOST_GAP_RATIO
    assert sum(answer.before_ns.values()) == pytest.approx(answer.measured_ns, rel=1e-6)
    assert len(graph.plan.cut()) == 0


def test_everything_that_ran_on_a_device_is_in_the_graph(recorded: tuple[Trace, Graph]) -> None:
    trace, graph = recorded
    kernels = trace.kernels
    ran = (kernels["work_code"] != DeviceWork.SYNCHRONIZATION) & (kernels["end_ns"] >= kernels["begin_ns"])
    on_streams = graph.row[(graph.resource == Resource.STREAM) & (graph.row >= 0)]
    assert sorted(set(on_streams.tolist())) == ran.nonzero()[0].tolist()


def test_ranks_of_one_host_that_wait_for_their_late_ones() -> None:
    """DLRM on eight V100s: rank 1 waits 11 ms of 20, rank 7 1.5 ms of 12.5; transfers take 0.2 ms."""
    graph = build(trace_of("kineto/dlrm8_v100"))
    transfers = graph.resource == Resource.TRANSFER
    assert graph.work_ns[transfers].sum() < 0.3e6
    assert not graph.doubtful[transfers].any()
    base = what_if(graph, [])
    assert base.before_ns["late"] == pytest.approx(5.66e6, rel=0.02)
    equal = what_if(graph, [Change.parse("straggler=0")])
    assert equal.high_ns < 0.9 * base.measured_ns
    assert equal.after_ns["late"] < 0.4 * base.before_ns["late"]
    # A link that is ten times as fast saves no more than its transfers take.
    faster = what_if(graph, [Change.parse("interconnect.bandwidth=x10")])
    assert base.measured_ns - faster.low_ns <= 0.3e6


def test_batches_made_by_the_loop_itself_and_the_same_job_with_workers() -> None:
    """ResNet-50 without loader workers, and with four: what they save, less what they cost the host.

    With batches for nothing the step would take 119 ms. With four workers it took 133: its loop launched more slowly.
    """
    alone, workers = (build(trace_of(f"kineto/one_gpu/tb_r50_nw{n}.pt.trace.json.gz")) for n in (0, 4))
    predicted, measured = what_if(alone, [Change.parse("prep=0")]), what_if(workers, [])
    assert predicted.high_ns == pytest.approx(118.6e6, rel=0.01)
    assert measured.measured_ns == pytest.approx(132.9e6, rel=0.01)
    assert measured.before_ns["host"] - predicted.after_ns["host"] == pytest.approx(12e6, rel=0.1)


def test_a_host_far_ahead_of_its_device_is_not_on_the_critical_path() -> None:
    """MI300X: the device is busy for 97 % of the time, most of it with transfers; launches lie milliseconds before."""
    graph = build(trace_of("kineto/one_rank_of_many/mi300_resnet_ckpt_rank0_of_8.json.gz"))
    base, faster = what_if(graph, []), what_if(graph, [Change.parse("interconnect.bandwidth=x2")])
    assert base.before_ns["link"] > 0.6 * base.measured_ns
    assert faster.low_ns < 0.7 * base.measured_ns
    assert faster.high_ns == base.measured_ns  # seven of eight ranks left no record: it may all be waiting for them
