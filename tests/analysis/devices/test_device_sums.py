"""launches, kernels, copies, bandwidth and kernel_diff on drawn and built traces."""

from __future__ import annotations

import numpy as np
import pytest
from builders import MS, US, TraceBuilder
from device_text import device_trace
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from stashtrace.analysis.devices.kernels import kernel_diff
from stashtrace.analysis.devices.launches import FULL_QUEUE, waiting
from stashtrace.analysis.registry import analyze
from stashtrace.errors import MissingDataError
from stashtrace.schema.kinds import CollectiveOp, CopyDirection
from stashtrace.schema.trace import Trace


def only(trace: Trace, name: str, **options) -> dict:
    rows = list(analyze(trace, name, **options).rows())
    assert len(rows) == 1
    return rows[0]


def test_launches_of_a_stream() -> None:
    trace = device_trace("""
        rank 0 host    : ABC.........DD
        rank 0 stream a: ..AAABBBC......DDX
    """)
    row = only(trace, "launches")
    assert trace.text(row["stream_code"]) == "stream a"
    assert (row["launches_count"], row["orphans_count"]) == (4, 1)
    # A 2, B 4, C 6, D 3
    assert (row["latency_ns"], row["longest_latency_ns"], row["call_ns"]) == (3 * US, 6 * US, US)
    assert row["launch_bound_ratio"] == pytest.approx(2 / 4)  # A and D found the stream empty
    assert row["longest_queue_count"] == 2
    assert row["mean_queue_count"] == pytest.approx((4 - 1 + 6 + 3) / 16)  # the window begins with A
    assert row["full_queue_ns"] == 0


def test_launches_by_step_and_stream() -> None:
    trace = device_trace("""
        rank 0 host    : A.o.B.C
        rank 0 step    : |...|...|
        rank 0 stream a: AAA.BB.C
        rank 0 stream b: ..oo
    """)
    table = analyze(trace, "launches", by="step")
    found = {(trace.text(r["stream_code"]), r["step"]): r["launches_count"] for r in table.rows()}
    assert found == {("stream a", 0): 1, ("stream a", 1): 2, ("stream b", 0): 1, ("stream b", 1): 0}


def test_a_full_queue_is_timed() -> None:
    build = TraceBuilder()
    stream = build.rank(0).gpu(0).stream("a")
    for number in range(FULL_QUEUE + 10):
        stream.kernel((2000 + number) * US, (2001 + number) * US, launch=(number * US, (number + 1) * US))
    row = only(build.trace(), "launches")
    assert row["longest_queue_count"] == FULL_QUEUE + 9  # the window begins with the first
    assert row["full_queue_ns"] == 10 * US  # until 11 of them have begun


def test_the_kernels_of_a_graph_are_one_launch() -> None:
    build = TraceBuilder()
    stream = build.rank(0).gpu(0).stream("a")
    for number in range(2000):
        stream.kernel((10 + number) * US, (11 + number) * US, launch=(0, US), graph_key=number + 1)
    row = only(build.trace(), "launches")
    assert (row["launches_count"], row["longest_latency_ns"], row["launch_bound_ratio"]) == (1, 10 * US, 1)
    assert (row["longest_queue_count"], row["full_queue_ns"]) == (0, 0)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=30))
@settings(max_examples=examples(200), deadline=None)
def test_what_waits_adds_up_to_the_latencies(pairs: list[tuple[int, int]]) -> None:
    launch = np.array([a for a, _ in pairs], dtype=np.int64)
    begin = launch + np.array([b for _, b in pairs], dtype=np.int64)
    moments, depth = waiting(launch, begin)
    assert (np.diff(moments) > 0).all()
    assert (depth >= 0).all()
    assert not len(depth) or depth[-1] == 0
    assert int((depth[:-1] * np.diff(moments)).sum()) == int((begin - launch).sum())


def test_kernels_by_name_over_ranks() -> None:
    trace = device_trace("""
        rank 0 stream a: AAA.A..BB
        rank 0 stream b: .nnnn
        rank 1 stream a: AAAAA.B
    """)
    table = analyze(trace, "kernels")
    rows = [{**r, "name": trace.text(r["name_code"])} for r in table.rows()]
    assert [(r["name"], r["work"], r["calls_count"], r["total_ns"] // US) for r in rows] == [
        ("A", "kernel", 3, 9),
        ("n", "communication", 1, 4),
        ("B", "kernel", 2, 3),
    ]
    first = rows[0]
    assert tuple(first[n] // US for n in ("mean_ns", "median_ns", "min_ns", "max_ns")) == (3, 3, 1, 5)
    assert first["share_ratio"] == pytest.approx(9 / 16)
    assert [(r["ranks_count"], r["slowest_rank"], r["slowest_ns"] // US) for r in rows] == [
        (2, 1, 5),
        (1, 0, 4),
        (2, 0, 2),
    ]
    apart = analyze(trace, "kernels", by="rank")
    assert apart["rank"].tolist() == [0, 0, 0, 1, 1]
    assert np.bincount(apart["rank"], apart["share_ratio"]) == pytest.approx([1, 1])


def test_copies_by_direction_and_memory() -> None:
    trace = device_trace(
        """
        rank 0 stream a: ....AAAA........
        rank 0 stream b: cc.cccc..dd.....
    """,
        size_bytes=4_000_000,
    )
    down, up = analyze(trace, "copies").rows()
    assert (down["direction"], down["host_memory"], down["copies_count"]) == ("host_to_device", "pinned", 2)
    assert (down["total_bytes"], down["copy_ns"], down["exposed_ns"]) == (8_000_000, 6 * US, 3 * US)
    assert down["mean_bytes_per_s"] == pytest.approx(8e6 / 6e-6)
    assert down["best_bytes_per_s"] == pytest.approx(4e6 / 2e-6)
    assert (up["direction"], up["host_memory"], up["exposed_ns"]) == ("device_to_host", "pageable", 2 * US)


def test_copies_of_brackets_where_there_are_no_kernels() -> None:
    build = TraceBuilder()
    build.rank(0).gpu(0).stream("side").copy(0, MS, size_bytes=12 << 20, pinned=False)
    build.rank(0).gpu(0).stream("side").copy(2 * MS, 3 * MS, direction=CopyDirection.DEVICE_TO_DEVICE)
    rows = list(analyze(build.trace(), "copies").rows())
    assert [(r["direction"], r["host_memory"], r["exposed_ns"], r["method"]) for r in rows] == [
        ("host_to_device", "pageable", -1, "brackets"),
        ("device_to_device", "none", -1, "brackets"),
    ]


SIZES = [
    (CollectiveOp.ALL_REDUCE, 1 << 20, 2 * 3 / 4 * (1 << 20)),
    (CollectiveOp.ALL_GATHER, 4 << 20, 3 / 4 * (4 << 20)),
    (CollectiveOp.REDUCE_SCATTER, 1 << 20, 3 / 4 * (1 << 20)),
    (CollectiveOp.ALL_TO_ALL, 1 << 20, 3 / 4 * (1 << 20)),
    (CollectiveOp.BROADCAST, 1 << 20, 1 << 20),
]


@pytest.mark.parametrize(("op", "size", "carried"), SIZES)
def test_bandwidth_as_nccl_defines_it(op: CollectiveOp, size: int, carried: float) -> None:
    build = TraceBuilder()
    build.device_collective(dict.fromkeys(range(4), (0, US, MS, 3 * MS)), op=op, message_bytes=1 << 20)
    row = only(build.trace(), "bandwidth")
    assert (row["op"], row["group_size"], row["calls_count"]) == (op.name.lower(), 4, 4)
    assert (row["size_class_bytes"], row["total_bytes"]) == (size, 4 * size)
    assert (row["duration_ns"], row["transfer_ns"]) == (2 * MS, 2 * MS)
    assert row["algorithm_bytes_per_s"] == pytest.approx(size / 2e-3)
    assert row["bus_bytes_per_s"] == pytest.approx(carried / 2e-3)
    assert row["best_bus_bytes_per_s"] == pytest.approx(carried / 2e-3)


def test_bandwidth_without_waiting_for_the_last_rank() -> None:
    build = TraceBuilder()
    build.device_collective({0: (0, US, MS, 5 * MS), 1: (0, US, 4 * MS, 5 * MS)}, message_bytes=3 << 19)
    row = only(build.trace(), "bandwidth")
    assert row["size_class_bytes"] == 1 << 20
    assert row["bus_bytes_per_s"] == pytest.approx((3 << 20) / 5e-3)
    assert row["transfer_bus_bytes_per_s"] == pytest.approx((3 << 20) / 2e-3)
    apart = analyze(build.trace(), "bandwidth", by="rank")
    assert apart["rank"].tolist() == [0, 1]
    assert apart["bus_bytes_per_s"].tolist() == pytest.approx([(3 << 19) / 4e-3, (3 << 19) / 1e-3])


def test_bandwidth_of_unknown_sizes_is_unknown() -> None:
    build = TraceBuilder()
    build.device_collective(dict.fromkeys(range(2), (0, US, MS, 3 * MS)), message_bytes=0)
    row = only(build.trace(), "bandwidth")
    assert (row["size_class_bytes"], row["total_bytes"], row["bus_bytes_per_s"]) == (-1, -1, 0)


def training(gemm_us: int, extra: str = "") -> Trace:
    """Eight steps of 100 us: gemm (with some noise), a copy, and what ``extra`` names."""
    random = np.random.default_rng(gemm_us)
    build = TraceBuilder()
    rank = build.rank(0)
    stream = rank.gpu(0).stream("a", compute=True)
    for step in range(12):
        at = step * 100 * US
        rank.phase("forward", at, at + 50 * US).phase("optimizer", at + 50 * US, at + 100 * US)
        length = gemm_us * US + int(random.integers(-200, 200))
        stream.kernel(at + US, at + US + length, "gemm", launch=(at, at + 1))
        stream.kernel(at + 60 * US, at + 70 * US, "relu", launch=(at + 1, at + 2))
        if extra:
            stream.kernel(at + 80 * US, at + 90 * US, extra, launch=(at + 2, at + 3))
    return build.trace()


def test_diff_of_kernels() -> None:
    table = kernel_diff(training(20), training(30, extra="layer_norm"))
    rows = {r["name"]: r for r in table.rows()}
    assert rows["gemm"]["verdict"] == "slower"
    assert rows["gemm"]["change_ns"] == pytest.approx(10 * US, rel=0.05)
    assert rows["gemm"]["before_calls_count"] == rows["gemm"]["after_calls_count"] == 1
    assert (rows["layer_norm"]["verdict"], rows["layer_norm"]["before_mean_ns"]) == ("appeared", -1)
    assert (rows["relu"]["verdict"], rows["relu"]["change_ns"]) == ("no difference", 0)
    assert table["name"][0] == "all"
    assert rows["all"]["change_ns"] == pytest.approx(20 * US, rel=0.05)
    back = {r["name"]: r["verdict"] for r in kernel_diff(training(30, extra="layer_norm"), training(20)).rows()}
    assert (back["gemm"], back["layer_norm"]) == ("faster", "vanished")


def test_diff_of_a_run_with_itself_is_none() -> None:
    table = kernel_diff(training(20), training(20))
    assert set(table["verdict"].tolist()) == {"no difference"}
    assert not table["change_ns"].any()


def test_diff_of_runs_without_steps_is_per_rank() -> None:
    first = device_trace("rank 0 stream a: AAAA.BB\nrank 1 stream a: AAAA")
    second = device_trace("rank 0 stream a: AA\nrank 1 stream a: AAAA.n")
    rows = {(r["name"], r["work"]): r for r in kernel_diff(first, second).rows()}
    assert rows["A", "kernel"]["before_ns"] == 4 * US
    assert rows["A", "kernel"]["after_ns"] == 3 * US
    assert rows["B", "kernel"]["verdict"] == "vanished"
    assert rows["all", "communication"]["verdict"] == "appeared"


def test_diff_needs_kernels() -> None:
    with pytest.raises(MissingDataError):
        kernel_diff(training(20), TraceBuilder().trace())
