"""The doubles keep the rules of what they stand for; every other test of devices rests on that."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from device import NEEDED, calls, fake_environment, run_ranks, symbols_after

MS = 1e-3  # of the unit of `elapsed`, milliseconds: a microsecond


def play(program: str | Mapping[int, str], folder: Path, script: str = "", ranks: int = 1, **options: Any) -> list[Any]:
    """Run untraced, with computed times; (values, failed calls) of each rank."""
    options.setdefault("clock", "virtual")
    run = run_ranks(ranks, program, folder, script, traced=False, **options)
    return [(result["results"], result["errors"]) for result in run.results()]


def alone(program: str, folder: Path, script: str = "", **options: Any) -> tuple[list[float], dict[str, int]]:
    ((values, errors),) = play(program, folder, script, **options)
    return values, errors


# Streams and events


def test_an_event_is_reached_behind_the_work_before_it(tmp_path: Path) -> None:
    values, errors = alone(
        """
        record event=1; kernel 3ms; record event=2; kernel 1500us; record event=3
        query event=3
        sync event=3
        query event=3
        elapsed from=1 to=2; elapsed from=2 to=3; elapsed from=3 to=1
        """,
        tmp_path,
    )
    assert errors == {}
    assert values == [600, 0, 3.0, 1.5, -4.5]


def test_event_times_step_and_drift(tmp_path: Path) -> None:
    program = "record event=1; kernel 100300ns; record event=2; sync device; elapsed from=1 to=2"
    assert alone(program, tmp_path / "step")[0] == [pytest.approx(0.1005, abs=1e-6)]
    program = "record event=1; kernel 1s; record event=2; sync device; elapsed from=1 to=2"
    assert alone(program, tmp_path / "drift", "event.drift 50ppm")[0] == [pytest.approx(1000.05, abs=1e-3)]


def test_streams_run_beside_each_other_until_one_waits(tmp_path: Path) -> None:
    values, errors = alone(
        """
        record event=1 stream=1
        kernel 5ms stream=1; kernel 2ms stream=2; record event=2 stream=2
        wait stream=2 for=1; record event=3 stream=2; kernel 1ms stream=2; record event=4 stream=2
        sync device
        elapsed from=1 to=2; elapsed from=1 to=3; elapsed from=1 to=4
        """,
        tmp_path,
    )
    assert (values, errors) == ([2.0, 5.0, 6.0], {})


def test_the_legacy_stream_joins_blocking_streams_alone(tmp_path: Path) -> None:
    values, _ = alone(
        """
        stream 1 blocking
        record event=1
        kernel 4ms stream=1; kernel 9ms stream=2
        record event=2 stream=0
        kernel 1ms stream=0; record event=3 stream=1
        sync device
        elapsed from=1 to=2; elapsed from=1 to=3
        """,
        tmp_path,
    )
    assert values == [4.0, 5.0]


def test_work_takes_real_time_with_the_real_clock(tmp_path: Path) -> None:
    begin = time.monotonic()
    values, _ = alone(
        "record event=1; repeat 5 { kernel 20ms }; record event=2; sync device; elapsed from=1 to=2",
        tmp_path,
        clock="real",
    )
    # From the first event to the first kernel the host needs its time; the work itself is exact.
    assert 100 <= values[0] < (time.monotonic() - begin) * 1e3


def test_a_full_queue_holds_the_launching_thread(tmp_path: Path) -> None:
    program = "kernel 500ms stream=1; record event=1 stream=1; repeat 20 { kernel 1us stream=1 }; query event=1; leave"
    for limit, answer in ((16, 0), (64, 600)):  # held until the first kernel was done, or not
        assert alone(program, tmp_path / str(limit), f"launch.queue {limit}", clock="real")[0] == [answer]


# Copies and memory


@pytest.mark.parametrize(
    ("copy", "milliseconds"),
    [("h2d 64MB pinned", 2.0), ("h2d 64MB pageable", 8.0), ("d2h 64MB pinned", 4.0), ("d2d 64MB", 0.064)],
)
def test_copies_take_what_the_rate_says(copy: str, milliseconds: float, tmp_path: Path) -> None:
    script = "rate.h2d.pinned 32GB\nrate.h2d.pageable 8GB\nrate.d2h.pinned 16GB\nrate.d2d 1TB"
    program = f"record event=1; copy {copy}; record event=2; sync device; elapsed from=1 to=2"
    assert alone(program, tmp_path, script) == ([pytest.approx(milliseconds, abs=MS)], {})


def test_only_a_copy_of_pinned_memory_returns_at_once(tmp_path: Path) -> None:
    program = "copy h2d 64MB {0} stream=1; query stream=1"
    rates = "rate.h2d.pinned 100MB\nrate.h2d.pageable 100MB"
    for memory, answer in (("pinned", 600), ("pageable", 0)):
        assert alone(program.format(memory), tmp_path / memory, rates, clock="real")[0] == [answer]


def test_memory_runs_out_and_comes_back(tmp_path: Path) -> None:
    _, errors = alone("allocate 6GB id=1; allocate 6GB id=2; free id=1; allocate 6GB id=3", tmp_path, "memory 10GB")
    assert errors == {"cudaMalloc 2": 1}


# Capture and graphs

CAPTURED = "capture stream=1 graph=1 {{ kernel 2ms stream=1; {0}; kernel 1ms stream=1 }}"


def test_a_graph_runs_at_each_launch_and_not_at_capture(tmp_path: Path) -> None:
    values, errors = alone(
        CAPTURED.format("wait stream=2 for=1; kernel 5ms stream=2; kernel 1ms stream=1; wait stream=1 for=2")
        + "; record event=1; repeat 3 { launch graph=1 }; record event=2; sync device; elapsed from=1 to=2",
        tmp_path,
    )
    assert (values, errors) == ([3 * (2 + 5 + 1)], {})


@pytest.mark.parametrize(
    ("inside", "first"),
    [
        ("query stream=1", None),  # its code is a result
        ("sync stream=1", "cudaStreamSynchronize 900"),
        ("allocate 1MB", "cudaMalloc 900"),
        ("copy h2d 1MB pageable stream=1", "cudaMemcpyAsync 900"),
        ("thread { query event=7 }", None),
        ("thread { allocate 1MB }", "cudaMalloc 900"),
    ],
)
def test_calls_that_break_a_capture(inside: str, first: str | None, tmp_path: Path) -> None:
    values, errors = alone("record event=7; sync device; " + CAPTURED.format(inside), tmp_path)
    assert errors.get("cudaStreamEndCapture 901") == 1
    assert first is None or first in errors
    assert first is not None or values == [900]


def test_thread_local_capture_suffers_no_other_thread(tmp_path: Path) -> None:
    program = "record event=7; sync device; " + CAPTURED.format("thread { query event=7; allocate 1MB }")
    assert alone(program.replace("graph=1 {", "graph=1 local {"), tmp_path / "local") == ([0], {})
    assert alone(program.replace("graph=1 {", "graph=1 relaxed {"), tmp_path / "relaxed") == ([0], {})


def test_an_event_recorded_in_a_capture_has_no_time(tmp_path: Path) -> None:
    values, errors = alone(CAPTURED.format("record event=3 stream=1") + "; query event=3", tmp_path)
    assert (values, errors) == ([907], {})


def test_streams_that_did_not_come_back_end_a_capture(tmp_path: Path) -> None:
    _, errors = alone(CAPTURED.format("wait stream=2 for=1; kernel 1ms stream=2"), tmp_path)
    assert errors == {"cudaStreamEndCapture 904": 1}


def test_the_legacy_stream_is_out_of_bounds_beside_a_blocking_capture(tmp_path: Path) -> None:
    _, errors = alone("stream 1 blocking; " + CAPTURED.format("kernel 1ms stream=0"), tmp_path / "blocking")
    assert errors["cudaLaunchKernelExC 906"] == 1
    assert "cudaStreamEndCapture 901" in errors
    assert alone(CAPTURED.format("kernel 1ms stream=0"), tmp_path / "other")[1] == {}


# Collectives between processes


def test_a_collective_ends_when_the_last_rank_has_entered_and_the_bytes_have_moved(tmp_path: Path) -> None:
    program = """
        allreduce 1MB stream=2; sync stream=2
        rank 1 kernel 7ms stream=2
        record event=1 stream=2; allreduce 10MB stream=2; record event=2 stream=2; sync stream=2
        elapsed from=1 to=2
        """
    (early, _), (late, _) = play(program, tmp_path, "nccl.bandwidth 5GB\nnccl.latency 20us", ranks=2)
    # Virtual clocks of two processes: both stood at the end of the first operation.
    assert late == [pytest.approx(2.02, abs=MS)]
    assert early == [pytest.approx(9.02, abs=MS)]


@pytest.mark.parametrize("clock", ["virtual", "real"])
def test_time_grows_with_bytes_and_operation_counts_what_moves(clock: str, tmp_path: Path) -> None:
    names = ("allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "bcast")
    timed = "record event=1 stream=2; {0} {1} stream=2; record event=2 stream=2; sync stream=2; elapsed from=1 to=2"
    program = "allreduce 4KB stream=2; sync stream=2; meet\n"
    program += "".join(timed.format(name, size) + "; meet\n" for name in names for size in ("8MB", "80MB"))
    for values, errors in play(program, tmp_path, "nccl.bandwidth 10GB", ranks=2, clock=clock):
        assert errors == {}
        expected = [0.81, 8.01] * len(names)
        tolerance = MS if clock == "virtual" else 2000  # a real peer may come late
        assert all(0 <= a - b + MS < tolerance + 2 * MS for a, b in zip(values, expected, strict=True)), values


def test_groups_and_messages(tmp_path: Path) -> None:
    program = {
        0: "group { send 10MB peer=1 stream=2; recv 10MB peer=1 stream=2 }; send 10MB peer=1 stream=2",
        1: "group { recv 10MB peer=0 stream=2; send 10MB peer=0 stream=2 }; recv 10MB peer=0 stream=2",
    }
    around = (
        "allreduce 4KB stream=2; sync device; record event=1 stream=2; {0}; record event=2 stream=2; sync device;"
        "elapsed from=1 to=2"
    )
    done = play({rank: around.format(text) for rank, text in program.items()}, tmp_path, "nccl.latency 0us", ranks=2)
    # Both directions of the exchange at once, then one more message.
    assert done == [([pytest.approx(2.0, abs=MS)], {})] * 2


def test_communicators_split_shrink_and_end(tmp_path: Path) -> None:
    program = """
        allreduce 4KB stream=2
        rank 0 comm split new=1 color=0
        rank 1 comm split new=1 color=1
        rank 2 comm split new=1 color=0
        allreduce 4KB stream=3 comm=1
        rank 0 comm shrink new=2 without=1
        rank 2 comm shrink new=2 without=1
        rank 0 allreduce 4KB stream=4 comm=2
        rank 2 allreduce 4KB stream=4 comm=2
        sync device
        comm finalize comm=1; comm destroy comm=1
        """
    assert [errors for _, errors in play(program, tmp_path, ranks=3)] == [{}, {}, {}]
    assert calls(tmp_path, "nccl")["ncclCommShrink"] == 2


def test_work_in_flight_outlives_its_communicator(tmp_path: Path) -> None:
    program = "allreduce 4KB stream=2; sync device; allreduce 500MB stream=2; comm destroy comm=0"
    program += "; query stream=2; sync device"
    assert play(program, tmp_path, ranks=2, clock="real") == [([600], {})] * 2


def test_abort_frees_a_rank_whose_peer_never_comes(tmp_path: Path) -> None:
    first = "allreduce 4KB stream=2; sync device; "
    alone_in_it = "allreduce 1MB stream=2; sleep 50ms; query stream=2; comm abort; sync device"
    program = {0: first + alone_in_it, 1: first + "leave"}
    assert play(program, tmp_path, ranks=2, clock="real") == [([600], {}), ([], {})]


def test_non_blocking_communicators_launch_later(tmp_path: Path) -> None:
    program = "comm init new=0 nonblocking; allreduce 10MB stream=2; sync device"
    assert play(program, tmp_path, "nccl.nonblocking.delay 50ms", ranks=2, clock="real") == [([], {})] * 2
    assert calls(tmp_path, "nccl")["ncclCommGetAsyncError"] > 4


def test_eight_ranks_a_thousand_collectives(tmp_path: Path) -> None:
    program = "allreduce 4KB stream=2; sync device\nrepeat 500 { allreduce 1MB stream=2; allgather 1MB stream=3 }"
    assert play(program, tmp_path, ranks=8, clock="real") == [([], {})] * 8
    assert calls(tmp_path, "nccl")["ncclAllGather"] == 8 * 500


# The plugin


@pytest.mark.parametrize(("nccl_version", "api"), [(22707, 4), (22809, 5), (22907, 6), (23102, 7)])
def test_the_plugin_is_called_as_nccl_calls_it(nccl_version: int, api: int, tmp_path: Path) -> None:
    log = tmp_path / "log"
    env = {"NCCL_PROFILER_PLUGIN": "witness", "FAKE_PLUGIN_LOG": str(log)}
    program = "comm init new=0; group { allreduce 1MB stream=2; allgather 1MB stream=2 }"
    program += "; allreduce 1MB stream=2; sync device"
    play(
        program,
        tmp_path,
        "nccl.channels 1\nglobaltimer.offset 0",
        ranks=2,
        clock="real",
        env=env,
        nccl_version=nccl_version,
        libraries=(*NEEDED, "plugin"),
    )
    lines = (tmp_path / "log-0").read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith(f"init v{api} comm ")
    assert lines[0].endswith("name - nodes 1 size 2 rank 0")
    assert lines[-1] == "finalize"
    assert lines[0].split()[3] == (tmp_path / "log-1").read_text(encoding="utf-8").split()[3]  # one hash for all ranks
    started = {line.split()[2]: line for line in lines if line.startswith("start")}
    stopped = [line.split()[1] for line in lines if line.startswith("stop")]
    assert sorted(stopped) == sorted(started)  # each once
    colls = [line.split() for line in started.values() if line.split()[1] == "Coll"]
    assert [(c[5], c[7]) for c in colls] == [("AllReduce", "0"), ("AllGather", "0"), ("AllReduce", "1")]
    assert {started[c[4]].split()[1] for c in colls} == {"CollApi" if api >= 5 else "Group"}
    channels = [line.split() for line in started.values() if line.split()[1] == "KernelCh"]
    assert [c[4] for c in channels] == [c[2] for c in colls]
    stops = [int(line.split()[3]) for line in lines if line.startswith("state") and line.split()[2] == "22"]
    for channel, stop in zip(channels, stops, strict=True):
        assert 0 < int(channel[6]) < stop
        assert stop % 512 == 0
    # A task is stopped when it is enqueued: before its channel begins.
    assert lines.index(f"stop {colls[0][2]}") < lines.index(" ".join(channels[0]))
    assert sum("KernelLaunch" in line for line in lines) == (2 if api >= 5 else 0)


def test_replayed_tasks_belong_to_the_call_that_was_captured(tmp_path: Path) -> None:
    env = {"NCCL_PROFILER_PLUGIN": "witness", "FAKE_PLUGIN_LOG": str(tmp_path / "log")}
    program = "comm init new=0; capture stream=1 graph=1 { allreduce 1MB stream=1 }"
    program += "; repeat 3 { launch graph=1 stream=1 }; sync device"
    play(program, tmp_path, ranks=2, clock="real", env=env, libraries=(*NEEDED, "plugin"))
    lines = (tmp_path / "log-0").read_text(encoding="utf-8").splitlines()
    (api,) = [line.split()[2] for line in lines if line.startswith("start CollApi")]
    tasks = [line.split() for line in lines if line.startswith("start Coll ")]
    assert [task[4] for task in tasks] == [api] * 3


def test_proxy_steps_cover_the_transfer_between_nodes(tmp_path: Path) -> None:
    env = {"NCCL_PROFILER_PLUGIN": "witness", "FAKE_PLUGIN_LOG": str(tmp_path / "log")}
    play(
        "allreduce 1MB stream=2; sync device",
        tmp_path,
        "nccl.nodes 2\nnccl.steps 3",
        ranks=2,
        clock="real",
        env=env,
        libraries=(*NEEDED, "plugin"),
    )
    lines = (tmp_path / "log-0").read_text(encoding="utf-8").splitlines()
    assert "nodes 2" in lines[0]
    assert sum(line.startswith("start ProxyOp") for line in lines) == 2
    assert sum(line.startswith("start ProxyStep") for line in lines) == 2 * 3
    states = [line.split()[2] for line in lines if line.startswith("state")]
    assert {"8", "20", "9", "10", "11", "12", "19", "22"} <= set(states)


def test_an_old_nccl_loads_no_plugin(tmp_path: Path) -> None:
    env = {"NCCL_PROFILER_PLUGIN": "witness", "FAKE_PLUGIN_LOG": str(tmp_path / "log")}
    play(
        "allreduce 1MB stream=2; sync device",
        tmp_path,
        ranks=2,
        env=env,
        nccl_version=21805,
        libraries=(*NEEDED, "plugin"),
    )
    assert not (tmp_path / "log-0").exists()


# Faults


def test_calls_fail_as_the_script_says(tmp_path: Path) -> None:
    script = "fail cuEventRecord 719 every 3\nfail cudaMalloc 2 at 3\nfail cudaStreamSynchronize 700 after 1"
    program = "repeat 9 { record event=1 }; repeat 3 { allocate 1MB }; repeat 4 { sync stream=0 }"
    _, errors = alone(program, tmp_path, script)
    assert errors == {"cudaEventRecord 719": 3, "cudaMalloc 2": 1, "cudaStreamSynchronize 700": 3}
    assert calls(tmp_path, "cuda")["cuEventRecord"] == 9


def test_a_machine_without_driver_or_device(tmp_path: Path) -> None:
    _, errors = alone("kernel 1ms", tmp_path / "driver", libraries=("cudart", "nccl"))
    assert {"cudaGetDeviceCount 35", "cudaLaunchKernelExC 35"} <= set(errors)
    _, errors = alone("kernel 1ms", tmp_path / "device", env={"CUDA_VISIBLE_DEVICES": ""})
    assert "cudaGetDeviceCount 100" in errors


def test_symbols_can_be_missing(tmp_path: Path) -> None:
    assert "ncclAlltoAll" in symbols_after(22707)
    assert "ncclAllReduceConfig" in symbols_after(23007)
    assert "ncclAllReduce" not in symbols_after(21800)
    script = "import ctypes, sys; l = ctypes.CDLL(sys.argv[1]); print([hasattr(l, n) for n in sys.argv[2:]])"
    fake_environment(tmp_path, missing=("cuStreamGetId",), nccl_version=22707)
    for library, names, expected in (
        (
            "libnccl.so.2",
            ("ncclAlltoAll", "pncclAlltoAll", "ncclCommShrink", "ncclAllReduce", "pncclAllReduce"),
            [False, False, True, True, True],
        ),
        ("libcuda.so.1", ("cuStreamGetId", "cuStreamGetFlags"), [False, True]),
    ):
        done = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path / "libraries" / library), *names],
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == str(expected)
