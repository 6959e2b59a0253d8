"""The graph of ranks whose kernels are known, on jobs whose arithmetic is plain.

Each step of a rank, in microseconds; the host waits for the device at its end:

    host      0 launch gemm 10, all-reduce 20, update 30, cudaDeviceSynchronize 50 ... 905, then 95 of Python
    compute   [gemm 20 .. 20 + its length]                       [update 804 .. 900]
    nccl                                  [all-reduce .. 802]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from analysis.devices.device_simulation import Job
from builders import MS
from importers.kineto_files import device, host, launch, step, write

import stashtrace
from stashtrace.analysis.graph import EdgeKind, Graph, Resource, build
from stashtrace.analysis.steps import steps
from stashtrace.errors import MissingDataError
from stashtrace.replay import Answer, Change, what_if
from stashtrace.replay.replayed_budget import step_budget
from stashtrace.schema.kinds import CollectiveSource, DeviceCall, StallKind
from stashtrace.schema.trace import Trace

US = 1000
STEP = 1000.0
#: What torch says of the tensors of a collective.
TENSORS = {"Input Dims": [[256]], "Input type": ["float"]}
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)"


def step_events(n: int, gemm: float, *, world: int = 2, begin: float = 0.0, all_reduce_end: float = 802) -> list[Any]:
    """One step of one rank; ``begin`` later than the others, all times but the end of the all-reduce move along."""
    at, key = STEP * n, 10 * n + 1
    sync = at + 50 + begin
    return [
        step(n, at + begin, STEP - begin),
        launch(key, at + begin + 10),
        device("gemm<float>", at + begin + 20, gemm, correlation=key),
        host("record_param_comms", at + begin + 18, 10),
        host("nccl:all_reduce", at + begin + 19, 8, cat="user_annotation", **TENSORS),
        launch(key + 1, at + begin + 20),
        device(ALL_REDUCE, at + begin + gemm + 22, all_reduce_end - begin - gemm - 22, stream=20, correlation=key + 1),
        host("Optimizer.step#SGD.step", at + begin + 28, 12, cat="user_annotation"),
        launch(key + 2, at + begin + 30),
        device("sgd", at + all_reduce_end + 2, 96, correlation=key + 2),
        launch(key + 3, sync, at + all_reduce_end + 103 - sync, name="cudaDeviceSynchronize"),
    ]


def job(folder: Path, gemms: Sequence[float], *, steps: int = 3, **options: Any) -> Graph:
    folder.mkdir(exist_ok=True)
    for rank, gemm in enumerate(gemms):
        events = [event for n in range(steps) for event in step_events(n, gemm, **options)]
        info = {"backend": "nccl", "rank": rank, "world_size": len(gemms)}
        write(folder / f"rank{rank}.json", events, distributedInfo=info, deviceProperties=[{"id": 0, "name": "H100"}])
    return build(stashtrace.load(folder))


def alone(folder: Path, work: Callable[[float, int], Sequence[Any]], **about: Any) -> Graph:
    """One rank of three steps: in each, what ``work`` makes of its begin and the first of its ten correlations."""
    events = [event for n in range(3) for event in (step(n, STEP * n, STEP), *work(STEP * n, 10 * n + 1))]
    return build(stashtrace.load(write(folder / "rank0.json", events, **about)))


def step_us(graph: Graph, *changes: str) -> tuple[float, float]:
    answer = asked(graph, *changes)
    return answer.low_ns / US, answer.high_ns / US


def asked(graph: Graph, *changes: str) -> Answer:
    return what_if(graph, map(Change.parse, changes))


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    """Rank 1 computes for 600 us, rank 0 for 300: it joins the all-reduce at 322, rank 1 at 622."""
    return job(tmp_path_factory.mktemp("late"), (300, 600))


def test_compression_of_what_lies_on_devices_costs_what_their_memory_takes(late: Graph) -> None:
    """10 MB in 180 us: at best half of that goes; at worst all is latency, and slow memory is passed three times."""
    graph = replace(late, moved_bytes=np.where(late.is_transfer, 10_000_000, late.moved_bytes))
    passes_us = 3 * 10_000_000 / 100 / US
    assert step_us(graph, "compression=fp16") == pytest.approx((1000 - 90, 1000 + passes_us + 10), abs=0.5)


def test_the_replay_is_the_run_and_nothing_is_left_unexplained(late: Graph) -> None:
    replayed = late.replay()
    assert (late.step_ns(replayed) == late.measured_step_ns).all()
    assert sorted(set(late.measured_step_ns.tolist())) == [-1, 1000 * US]
    assert asked(late).gap_ratio == 0
    assert len(late.plan.cut()) == 0


def test_a_collective_is_one_transfer_that_begins_with_its_last_member(late: Graph) -> None:
    transfers = late.resource == Resource.TRANSFER
    assert (late.begin_ns[transfers] % (1000 * US)).tolist() == [622 * US] * 3
    assert late.work_ns[transfers].tolist() == [180 * US] * 3
    communicates = (late.resource == Resource.STREAM) & (late.kind == StallKind.INTERCONNECT)
    assert (late.work_ns[communicates] == 0).all()


@pytest.mark.parametrize(
    ("changes", "expected_us"),
    [
        ((), (1000, 1000)),
        (("compute=x0.5",), (652, 652)),  # gemm 300, update 48
        (("straggler=0",), (700, 700)),
        (("interconnect.bandwidth=x2",), (910, 1000)),  # all of one size: it may be latency alone
        (("interconnect.bandwidth=x0.5",), (1000, 1180)),
        (("launch=x0.5",), (947.5, 947.5)),  # 10 to the first launch, 95 behind the last wait
        (("compute=x0.5", "straggler=0"), (502, 502)),
    ],
)
def test_what_if(late: Graph, changes: tuple[str, ...], expected_us: tuple[float, float]) -> None:
    assert step_us(late, *changes) == pytest.approx(expected_us, abs=0.01)


def test_the_budget_is_that_of_the_run_and_adds_up(late: Graph) -> None:
    before, after = asked(late).before_ns, asked(late, "straggler=0").after_ns
    # Mean of two ranks: rank 0 computes 396, waits 300 for the other and 180 for the link; 124 are the host's.
    assert {name: ns / US for name, ns in before.items() if ns} == {
        "compute": 546,
        "late": 150,
        "link": 180,
        "host": 124,
    }
    assert {name: ns / US for name, ns in after.items() if ns} == {"compute": 396, "link": 180, "host": 124}


def test_hidden_communication_costs_nothing_until_nothing_hides_it(tmp_path: Path) -> None:
    """A second kernel hides the all-reduce: what follows on the host waits for it only where it has to."""

    def work(at: float, key: int) -> list[Any]:
        return [
            launch(key, at + 10),
            device("gemm<float>", at + 20, 100, correlation=key),
            host("nccl:all_reduce", at + 18, 8, cat="user_annotation", **TENSORS),
            launch(key + 1, at + 20),
            device(ALL_REDUCE, at + 122, 200, stream=20, correlation=key + 1),
            launch(key + 2, at + 26),
            device("gemm<float>", at + 120, 480, correlation=key + 2),
            host("Optimizer.step#SGD.step", at + 28, 12, cat="user_annotation"),
            launch(key + 3, at + 30),
            device("sgd", at + 600, 100, correlation=key + 3),
            launch(key + 4, at + 50, 655, name="cudaDeviceSynchronize"),
        ]

    graph = alone(tmp_path, work, distributedInfo={"backend": "nccl", "rank": 0, "world_size": 1})
    transfers = graph.resource == Resource.TRANSFER
    assert graph.work_ns[transfers].tolist() == [200 * US] * 3
    for factor, expected_us in ((2, 1000), (3, 1122), (4, 1322)):  # hidden for 478 us
        longer = np.where(transfers, factor * graph.work_ns, graph.work_ns)
        assert set(graph.step_ns(graph.replay(work_ns=longer)).tolist()) - {-1} == {expected_us * US}


def test_ranks_that_began_their_only_step_apart(tmp_path: Path) -> None:
    """Rank 1 began 200 us after rank 0, and does the same."""
    for rank, begin in enumerate((0.0, 200.0)):
        info = {"backend": "nccl", "rank": rank, "world_size": 2}
        write(tmp_path / f"rank{rank}.json", step_events(0, 300, begin=begin), distributedInfo=info)
    graph = build(stashtrace.load(tmp_path))
    assert graph.measured_step_ns.tolist() == [1000 * US, 800 * US]
    assert asked(graph).error_ratio == 0
    # Both join at 322, and the transfer takes what it took: from 522 to 802.
    assert step_us(graph, "straggler=0") == (800, 800)


def test_kernels_of_one_launch_are_a_graph_and_none_is_lost(tmp_path: Path) -> None:
    def work(at: float, key: int) -> list[Any]:
        kernels = [
            device(f"k{i}", at + 20 + 100 * i, 100, correlation=key, **{"graph node id": i + 1}) for i in range(5)
        ]
        wait = launch(key + 1, at + 50, 475, name="cudaDeviceSynchronize")
        return [launch(key, at + 10, name="cudaGraphLaunch"), *kernels, wait]

    graph = alone(tmp_path, work)
    kernels = (graph.resource == Resource.STREAM) & (graph.work_ns > 0)
    assert np.count_nonzero(kernels) == 15
    assert not graph.decided.any()  # of one stream nobody has to choose
    assert step_us(graph, "compute=x0.5") == (750, 750)


def test_work_of_another_stream_is_waited_for(tmp_path: Path) -> None:
    """A copy on a separate stream, then a kernel that begins as it has ended."""

    def work(at: float, key: int) -> list[Any]:
        return [
            launch(key, at + 10, name="cudaMemcpyAsync"),
            device("Memcpy HtoD (Pinned -> Device)", at + 20, 400, cat="gpu_memcpy", stream=9, correlation=key),
            launch(key + 1, at + 16),
            device("gemm<float>", at + 423, 200, correlation=key + 1),
            launch(key + 2, at + 50, 578, name="cudaDeviceSynchronize"),
        ]

    graph = alone(tmp_path, work)
    assert (graph.edge_kind == EdgeKind.ORDER).sum() == 3
    assert step_us(graph, "h2d=x0.5") == (800, 800)
    assert asked(graph, "h2d=x0.5").bottleneck == "host"


def test_a_wait_for_a_whole_device_is_for_whatever_is_last(tmp_path: Path) -> None:
    """A copy that ends before the kernel, until it takes twice as long."""

    def work(at: float, key: int) -> list[Any]:
        return [
            launch(key, at + 10, name="cudaMemcpyAsync"),
            device("Memcpy HtoD (Pinned -> Device)", at + 20, 400, cat="gpu_memcpy", stream=9, correlation=key),
            launch(key + 1, at + 16),
            device("gemm<float>", at + 26, 500, correlation=key + 1),
            launch(key + 2, at + 50, 481, name="cudaDeviceSynchronize"),
        ]

    graph = alone(tmp_path, work)
    sync = graph.edge_kind == EdgeKind.SYNC
    assert graph.decided[sync].all()
    assert set(graph.edge_kind[graph.decided].tolist()) == {EdgeKind.SYNC, EdgeKind.STREAM}
    ends = np.isin(graph.target, graph.ends)  # a step ends on the stream that is last
    assert graph.decided[ends & (graph.edge_kind == EdgeKind.STREAM)].all()
    assert not graph.decided[~ends & ~sync].any()
    for factor, last in ((1, "compute"), (2, "h2d")):
        copies = (graph.kind == StallKind.H2D) & (graph.resource == Resource.STREAM)
        replayed = graph.replay(np.where(copies, factor * graph.work_ns, graph.work_ns))
        bound = replayed.binding[graph.target[sync]]
        assert {StallKind(k).name.lower() for k in graph.kind[graph.source[bound]].tolist()} == {last}
    assert step_us(graph, "h2d=x0.5") == (1000, 1000)
    assert step_us(graph, "h2d=x2") == (820 + 469, 820 + 469)  # what the host does behind the wait stays


def test_a_faster_loop_that_makes_its_batches_itself(tmp_path: Path) -> None:
    name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"

    def work(at: float, key: int) -> list[Any]:
        return [
            host(name, at + 5, 600, cat="user_annotation"),
            launch(key, at + 610),
            device("gemm<float>", at + 620, 200, correlation=key),
            launch(key + 1, at + 650, 175, name="cudaDeviceSynchronize"),
        ]

    graph = alone(tmp_path, work)
    assert step_us(graph, "prep=x0.5") == (700, 700)
    assert {k: v / US for k, v in asked(graph).before_ns.items() if v} == {"compute": 200, "data": 600, "host": 200}


def test_a_member_that_was_not_recorded_makes_the_answer_an_interval(tmp_path: Path) -> None:
    """One of two ranks: what a transfer takes longer than the shortest of its size may be a wait for the other."""
    events = [e for n, end in enumerate((802, 802, 602)) for e in step_events(n, 300, all_reduce_end=end)]
    info = {"backend": "nccl", "rank": 0, "world_size": 2}
    graph = build(stashtrace.load(write(tmp_path / "rank0.json", events, distributedInfo=info)))
    transfers = graph.resource == Resource.TRANSFER
    assert graph.doubtful[transfers].all()
    assert graph.work_ns[transfers].tolist() == [480 * US, 480 * US, 280 * US]
    low, high = step_us(graph, "interconnect.bandwidth=x2")
    # Steps 1 and 2 of 1000 us each: at best their transfers halve; at worst they are latency, and waits.
    assert (low, high) == (1000 - (240 + 140) / 2, 1000)


PLAIN = Job()
TWO_HOSTS = ("a", "b")
#: A job on virtual devices, a change, and the job that has it in truth.
CHANGES = {
    "link": (replace(PLAIN, transfer_ms=25), "interconnect.bandwidth=x2", replace(PLAIN, transfer_ms=12.5)),
    "hidden link": (PLAIN, "interconnect.bandwidth=x0.04", replace(PLAIN, transfer_ms=25)),
    "network": (
        replace(PLAIN, transfer_ms=25, hosts=TWO_HOSTS),
        "network.bandwidth=x2",
        replace(PLAIN, transfer_ms=12.5, hosts=TWO_HOSTS),
    ),
    "link on the compute stream": (
        replace(PLAIN, transfer_ms=25, on_compute_stream=True),
        "interconnect.bandwidth=x2",
        replace(PLAIN, transfer_ms=12.5, on_compute_stream=True),
    ),
    "copy": (replace(PLAIN, copy_ms=45), "h2d=x0.5", replace(PLAIN, copy_ms=22.5)),
    "straggler": (replace(PLAIN, late_ms=20), "straggler=0", PLAIN),
    "straggler timed by NCCL": (
        replace(PLAIN, late_ms=20, source=CollectiveSource.PLUGIN),
        "straggler=0",
        replace(PLAIN, source=CollectiveSource.PLUGIN),
    ),
    "loader": (replace(PLAIN, batch_ms=60), "prep=x0.5", replace(PLAIN, batch_ms=30)),
    "launch": (replace(PLAIN, idle_us=3000), "launch=x0.5", replace(PLAIN, idle_us=1500)),
}
#: A simulated device and its host are exact to this.
EXACT = 0.03


@pytest.mark.parametrize("kernels", [False, True], ids=["events", "kernels"])
@pytest.mark.parametrize("name", CHANGES)
def test_what_is_predicted_is_what_the_changed_job_takes(name: str, kernels: bool) -> None:
    job, change, changed = CHANGES[name]
    answer = asked(build(job.trace(kernels=kernels)), change)
    truth = asked(build(changed.trace(kernels=kernels))).measured_ns
    assert answer.error_ratio == 0
    assert answer.low_ns * (1 - EXACT) <= truth <= answer.high_ns * (1 + EXACT)
    # All messages are of one size, so how much of a transfer is latency is not known: one of both ends is the truth.
    nearest = min(abs(answer.low_ns - truth), abs(answer.high_ns - truth))
    if kernels or not change.startswith("prep"):
        assert nearest <= EXACT * truth


@pytest.mark.parametrize("rank", [0, 1])
def test_a_late_rank_where_one_rank_alone_has_kernels(rank: int) -> None:
    """Rank 1 computes for 20 ms longer; the other rank was timed by events."""
    trace = replace(PLAIN, late_ms=20).trace(kernels=True)
    some = build(trace.replace(kernels=trace.kernels.take(trace.kernels["rank"] == rank)))
    late, truth = asked(some, "straggler=0"), asked(build(PLAIN.trace(kernels=True))).measured_ns
    assert set(np.unique(some.resource).tolist()) >= {Resource.STREAM, Resource.DEVICE}
    assert truth * (1 - EXACT) <= late.high_ns <= late.replayed_ns * (1 + EXACT)


def test_events_do_not_show_how_long_a_hidden_copy_takes() -> None:
    with pytest.raises(MissingDataError, match="they show waits") as raised:
        asked(build(PLAIN.trace(kernels=False)), "h2d=x2")
    assert "--kernels" in str(raised.value.hint)


@pytest.mark.parametrize("change", ["h2d=x1", "prep=x1", "launch=x1", "compute=x1"])
def test_a_change_of_nothing_changes_no_wait_of_a_device(change: str) -> None:
    graph = build(replace(PLAIN, copy_ms=45, batch_ms=60).trace(kernels=False))
    answer = asked(graph, change)
    assert answer.low_ns == answer.high_ns == answer.measured_ns


@pytest.mark.parametrize("change", ["copy=5ms", "prep=5ms", "launch=1ms"])
def test_events_do_not_show_what_a_time_is_now(change: str) -> None:
    with pytest.raises(MissingDataError, match="show waits") as raised:
        asked(build(replace(PLAIN, copy_ms=45, batch_ms=60).trace(kernels=False)), change)
    assert raised.value.hint == f"{change.partition('=')[0]}=x0.5, or 0"


def test_a_host_that_waits_for_its_device_all_the_time(tmp_path: Path) -> None:
    """Its kernels were launched as the recording began, all at once, and it waits for them until after the end."""
    for rank in (0, 1):
        events = [event for n in range(3) for event in step_events(n, 300)]
        info = {"backend": "nccl", "rank": rank, "world_size": 2}
        write(tmp_path / f"rank{rank}.json", events, distributedInfo=info, deviceProperties=[{"id": 0, "name": "H100"}])
    trace = stashtrace.load(tmp_path)
    assert (trace.device_calls["call_code"] == DeviceCall.DEVICE_SYNCHRONIZE).all()
    calls = trace.device_calls.take(np.arange(2))
    assert calls["process_id"].tolist() == [0, 1]
    calls = calls.replace(begin_ns=np.zeros(len(calls), dtype=np.int64), end_ns=np.full(len(calls), 10**9))
    kernels = trace.kernels.replace(launch_ns=np.zeros(len(trace.kernels), dtype=np.int64))
    graph = build(trace.replace(device_calls=calls, kernels=kernels))
    assert (graph.step_ns(graph.replay()) == graph.measured_step_ns).all()
    on_streams = graph.row[(graph.resource == Resource.STREAM) & (graph.row >= 0)]
    assert sorted(set(on_streams.tolist())) == list(range(len(kernels)))


def test_steps_that_end_in_disorder_have_a_budget() -> None:
    """By damaged times step 3 ends after step 4 does: no part of the time counts twice."""
    graph = build(PLAIN.trace(kernels=True))
    later = graph.ends_lag_ns + np.where(graph.ends_step == 3, 30 * MS, 0)
    budget = step_budget(replace(graph, ends_lag_ns=later), graph.replay(), np.arange(1, PLAIN.steps))
    whole = (graph.end_ns[graph.ends[graph.ends_step == PLAIN.steps - 1]]).mean()
    assert 0 < sum(budget.values()) * (PLAIN.steps - 1) <= whole


def test_only_steps_with_all_their_kernels_are_part_of_the_graph() -> None:
    """Deep mode is on for some steps: others have no work to replay."""
    trace = PLAIN.trace(kernels=True)
    kernels = trace.kernels
    some = (kernels["begin_ns"] >= 60 * MS) & (kernels["begin_ns"] < 130 * MS)
    graph = build(trace.replace(kernels=kernels.take(some)))
    assert 1 <= len(np.unique(graph.ends_step)) < PLAIN.steps
    assert asked(graph).error_ratio == 0


def test_the_steps_of_all_ranks_are_looked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the devices' clocks and on the hosts', not once for each rank: that would cost the square of their number."""
    looked = []

    def counted(trace: Trace) -> list[steps.RankSteps]:
        looked.append(trace)
        return local_steps(trace)

    local_steps = steps.local_steps
    monkeypatch.setattr(steps, "local_steps", counted)
    assert len(np.unique(job(tmp_path, (300, 400, 500, 600)).ends_rank)) == 4
    assert len(looked) == 2
