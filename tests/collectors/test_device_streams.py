"""Per-thread default streams, and the kernel that reads %globaltimer, in jobs on the doubles."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from device import calls, fake_environment, run_ranks
from recorded import Recording, record
from test_nccl import needs_shared_memory, rows

from stashtrace.analysis.devices.device_identity import counted_gpu
from stashtrace.format.reader import open_run
from stashtrace.schema.kinds import Bracket, BracketFlag, StreamFlag

PER_THREAD = """
#include <cstddef>
extern "C" {
int cudaSetDevice(int); int cudaMalloc(void**, std::size_t); int cudaHostAlloc(void**, std::size_t, unsigned);
int cudaEventCreateWithFlags(void**, unsigned); int cudaStreamCreateWithFlags(void**, unsigned);
int cudaMemcpyAsync(void*, const void*, std::size_t, int, void*); int cudaDeviceSynchronize();
int cudaMemcpyAsync_ptsz(void*, const void*, std::size_t, int, void*); int cudaEventRecord_ptsz(void*, void*);
int cudaStreamWaitEvent_ptsz(void*, void*, unsigned); int cudaStreamSynchronize_ptsz(void*);
}
int main() {
  void *device, *host, *event, *other;
  int failed = cudaSetDevice(0) | cudaMalloc(&device, 1 << 20) | cudaHostAlloc(&host, 1 << 20, 0);
  failed |= cudaEventCreateWithFlags(&event, 0) | cudaStreamCreateWithFlags(&other, 1);
  failed |= cudaMemcpyAsync_ptsz(device, host, 1000, 1, nullptr);
  failed |= cudaMemcpyAsync_ptsz(device, host, 2000, 1, other);
  failed |= cudaEventRecord_ptsz(event, other) | cudaStreamWaitEvent_ptsz(nullptr, event, 0);
  failed |= cudaMemcpyAsync(device, host, 3000, 1, nullptr);
  failed |= cudaStreamSynchronize_ptsz(nullptr) | cudaDeviceSynchronize();
  return failed;
}
"""

MANY_THREADS = """
#include <cstddef>
#include <thread>
#include <vector>
extern "C" {
int cudaSetDevice(int); int cudaMalloc(void**, std::size_t); int cudaHostAlloc(void**, std::size_t, unsigned);
int cudaMemcpyAsync_ptsz(void*, const void*, std::size_t, int, void*); int cudaDeviceSynchronize();
}
int main() {
  void *device, *host;
  int failed = cudaSetDevice(0) | cudaMalloc(&device, 1 << 20) | cudaHostAlloc(&host, 1 << 20, 0);
  for (int round = 0; round < 300; ++round) {
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; ++i)
      threads.emplace_back([=] {  // ends with its copy still to come
        cudaSetDevice(0);
        cudaMemcpyAsync_ptsz(device, host, 1000, 1, nullptr);
      });
    for (std::thread& thread : threads) thread.join();
  }
  return failed | cudaDeviceSynchronize();
}
"""


def traced(text: str, folder: Path) -> Recording:
    """Build a program against the doubles and run it under the recorder."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    env = fake_environment(folder / "fakes", "devices 1")
    source, program = folder / "program.cpp", folder / "program"
    source.write_text(text, encoding="utf-8")
    command = [compiler, "-w", "-pthread", "-o", program, source, f"{env['LD_LIBRARY_PATH']}/libcudart.so.13"]
    subprocess.run([str(c) for c in command], check=True)
    return record([program], folder / "run", collectors=("cuda",), env=env)


def test_threads_that_end_give_their_default_streams_back(tmp_path: Path) -> None:
    recording = traced(MANY_THREADS, tmp_path)
    streams = [r for r in rows(recording, "stream_info") if r["stream_flags"] & StreamFlag.PER_THREAD]
    copies = [b for b in rows(recording, "device_bracket") if b["bracket_code"] == Bracket.COPY]
    assert len(copies) == len({b["stream_key"] for b in copies}) == 2400
    assert {b["stream_key"] for b in copies} == {r["stream_key"] for r in streams}
    assert not any(b["bracket_flags"] & BracketFlag.UNTIMED for b in copies)
    trace = recording.trace
    assert "too_many_streams" not in {trace.text(r["name_code"]) for r in trace.losses.rows()}


def test_stream_zero_of_per_thread_code_belongs_to_the_thread(tmp_path: Path) -> None:
    recording = traced(PER_THREAD, tmp_path)
    flags = {r["stream_key"]: r["stream_flags"] for r in rows(recording, "stream_info")}
    brackets = rows(recording, "device_bracket")
    copies = {b["size_bytes"]: flags[b["stream_key"]] for b in brackets if b["bracket_code"] == Bracket.COPY}
    assert copies[1000] & StreamFlag.PER_THREAD
    assert not copies[2000] & (StreamFlag.PER_THREAD | StreamFlag.LEGACY)
    assert copies[3000] & StreamFlag.LEGACY
    (wait,) = [b for b in brackets if b["bracket_code"] == Bracket.STREAM_WAIT]
    assert flags[wait["stream_key"]] & StreamFlag.PER_THREAD


@needs_shared_memory
def test_globaltimer_is_read_before_the_first_communicator(tmp_path: Path) -> None:
    program = "allreduce 20MB stream=1; sync stream=1; sleep 50ms; allreduce 20MB stream=1; sync stream=1"
    run = run_ranks(
        2,
        program,
        tmp_path / "job",
        "globaltimer.offset 5e15\nglobaltimer.drift 50",
        collectors=("cuda", "nccl"),
        env={"STASHTRACE_NCCL_SOURCE": "plugin"},
    )
    assert calls(tmp_path / "job", "cuda")["cuModuleLoadData"] == 2, "once per context"
    for process in open_run(run.directory).processes:
        raw = process.load()
        readings = raw.records["device_clock"].rows
        first = min(r["before_ticks"] for r in readings if r["clock_code"] == 2)
        assert first < min(raw.records["nccl_comm"].rows["end_ticks"])
    placed = list(run.trace.collectives.rows())
    assert len(placed) == 4
    ended_ns = run.trace.processes["end_ns"].max()
    for row in placed:
        assert row["call_ns"] - 200_000 < row["device_begin_ns"] < row["device_end_ns"] < ended_ns


@pytest.mark.parametrize("source", ["auto", "events"])
def test_no_kernel_is_loaded_where_no_stamps_are_asked_for(source: str, tmp_path: Path) -> None:
    program = "allreduce 1MB stream=1; sync stream=1; comm init new=1; allreduce 1MB comm=1 stream=1; sync stream=1"
    run = run_ranks(2, program, tmp_path, collectors=("cuda", "nccl"), nccl_source=source)
    assert [result["errors"] for result in run.results()] == [{}, {}]
    assert calls(tmp_path, "cuda").get("cuModuleLoadData", 0) == 0
    assert all(row["device_begin_ns"] > 0 for row in run.trace.collectives.rows()), "events time them"


def test_every_device_of_a_process_has_its_globaltimer_read(tmp_path: Path) -> None:
    program = "comm all new=10; sleep 50ms"
    run = run_ranks(
        1, program, tmp_path, "devices 2", collectors=("cuda", "nccl"), env={"STASHTRACE_NCCL_SOURCE": "plugin"}
    )
    assert [result["errors"] for result in run.results()] == [{}]
    (process,) = open_run(run.directory).processes
    readings = process.load().records["device_clock"].rows
    assert {int(r["device_index"]) for r in readings if r["clock_code"] == 2} == {0, 1}
    assert calls(tmp_path, "cuda")["cuModuleLoadData"] == 2, "once per context"


def test_a_device_whose_first_communicator_comes_late_has_its_globaltimer_read(tmp_path: Path) -> None:
    """No kernel of NCCL can wait on it yet, and NCCL itself loads kernels there for its first communicator."""
    program = "allreduce 1MB stream=1; sync stream=1; device 1; comm all new=10; sleep 50ms"
    run = run_ranks(
        1, program, tmp_path, "devices 2", collectors=("cuda", "nccl"), env={"STASHTRACE_NCCL_SOURCE": "plugin"}
    )
    assert [result["errors"] for result in run.results()] == [{}]
    (process,) = open_run(run.directory).processes
    readings = process.load().records["device_clock"].rows
    assert {int(r["device_index"]) for r in readings if r["clock_code"] == 2} == {0, 1}
    assert calls(tmp_path, "cuda")["cuModuleLoadData"] == 2, "once per context"


def test_no_kernel_is_loaded_on_a_device_where_one_of_nccl_may_wait(tmp_path: Path) -> None:
    """At the first communicator the driver does not name the device: no kernel is loaded then, so none later."""
    name_device = "repeat 10 { allocate 1KB; free }"
    program = f"allreduce 1MB stream=1; {name_device}; sync stream=1; comm all new=10; sleep 50ms"
    script = "fail cuCtxGetDevice 201 first 6"
    env = {"STASHTRACE_NCCL_SOURCE": "events"}
    run = run_ranks(1, program, tmp_path, script, collectors=("cuda", "nccl"), env=env)
    assert [result["errors"] for result in run.results()] == [{}]
    assert "cuModuleLoadData" not in calls(tmp_path, "cuda"), "while a kernel of NCCL waits it can deadlock"
    assert [row["device_index"] for row in run.trace.device_calls.rows()][-1] == 0, "by then it is known"


def test_samples_of_a_mig_instance_are_those_of_its_gpu(tmp_path: Path) -> None:
    """CUDA reports the UUID of the instance, NVML lists the GPU."""
    instance, gpu = "MIG-b0b1b2b3-b4b5-b6b7-b8b9-babbbcbdbe01", "GPU-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadae01"
    run = run_ranks(
        1,
        "copy h2d 1MB stream=1; sync stream=1; sleep 1s",
        tmp_path,
        "devices 2\ndevice 1 mig 1\n",
        collectors=("cuda", "nvml"),
        env={"CUDA_VISIBLE_DEVICES": instance},
    )
    assert [result["errors"] for result in run.results()] == [{}]
    trace = run.trace
    (device,) = trace.devices.rows()
    assert (trace.text(device["uuid_code"]), trace.text(device["gpu_uuid_code"])) == (instance, gpu)
    assert counted_gpu(trace, device) == gpu
    assert f"gpu_pcie_transmit_bytes_total.{gpu}" in {trace.text(track["name_code"]) for track in trace.tracks.rows()}


def test_refused_globaltimer_harms_nothing(tmp_path: Path) -> None:
    program = "repeat 2 { allreduce 1MB stream=1 }; sync stream=1"
    run = run_ranks(
        2,
        program,
        tmp_path / "job",
        "fail cuModuleLoadData 218",
        collectors=("cuda", "nccl"),
        nccl_source="plugin",
    )
    assert [result["errors"] for result in run.results()] == [{}, {}]
    trace = run.trace
    assert "no_globaltimer" in {trace.text(r["name_code"]) for r in trace.losses.rows()}
    assert len(list(trace.collectives.rows())) == 4
