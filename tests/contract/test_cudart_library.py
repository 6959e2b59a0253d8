"""The real libcudart of CUDA 12 and 13 on the doubled driver, behind our hooks.

The runtime opens the driver, looks some 440 functions up by cuGetProcAddress, then asks cuGetExportTable for tables
that are documented nowhere. One of them proves to the runtime that the driver is NVIDIA's; the double has none and
imitates none, so calls that need a device are refused. What is tested is all before that: the look-ups pass our hook,
a program hears the same with the recorder as without, and what was refused is recorded as refused.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from collectors.recorded import plain_environment, record
from collectors.test_look_ups import forms, known_until, look_up, split
from contract.real_interfaces import compiler, cuda_runtimes
from device import fake_environment

from stashtrace.schema.kinds import DeviceCall

#: Calls the runtime through its import table and prints each answer. Handles are null: nothing could make any.
PROGRAM = r"""
#include <cstddef>
#include <cstdio>
extern "C" {
int cudaDriverGetVersion(int*); int cudaRuntimeGetVersion(int*); int cudaGetDeviceCount(int*); int cudaGetLastError();
int cudaMalloc(void**, std::size_t); int cudaFree(void*); int cudaDeviceSynchronize(); int cudaStreamSynchronize(void*);
int cudaMemcpy(void*, const void*, std::size_t, int); int cudaMemcpyAsync(void*, const void*, std::size_t, int, void*);
int cudaMemsetAsync(void*, int, std::size_t, void*); int cudaEventCreate(void**); int cudaEventRecord(void*, void*);
int cudaStreamWaitEvent(void*, void*, unsigned); int cudaStreamCreate(void**); int cudaEventDestroy(void*);
int cudaHostAlloc(void**, std::size_t, unsigned); int cudaGraphLaunch(void*, void*); const char* cudaGetErrorName(int);
int cudaGetDriverEntryPoint(const char*, void**, unsigned long long, int*);
int cudaGetDriverEntryPoint_ptsz(const char*, void**, unsigned long long, int*);
int cudaGetDriverEntryPointByVersion(const char*, void**, unsigned, unsigned long long, int*);
int cudaGetDriverEntryPointByVersion_ptsz(const char*, void**, unsigned, unsigned long long, int*);
}
int main() {
  int version = 0, count = 0;
  void *pointer = nullptr, *event = nullptr, *stream = nullptr;
  char host[64] = {};
  const int driver = cudaDriverGetVersion(&version);
  std::printf("%d %d ", driver, version);
  const int runtime = cudaRuntimeGetVersion(&version);
  std::printf("%d %d\n", runtime, version);
  const int refused = cudaGetDeviceCount(&count);
  std::printf("count %d %s\n", refused, cudaGetErrorName(refused));
  std::printf("malloc %d\n", cudaMalloc(&pointer, 1 << 20));
  std::printf("host %d\n", cudaHostAlloc(&pointer, 1 << 20, 0));
  std::printf("stream %d\n", cudaStreamCreate(&stream));
  std::printf("event %d\n", cudaEventCreate(&event));
  std::printf("record %d\n", cudaEventRecord(event, stream));
  std::printf("wait %d\n", cudaStreamWaitEvent(stream, event, 0));
  std::printf("copy %d\n", cudaMemcpy(pointer, host, 64, 1));
  std::printf("copy_async %d\n", cudaMemcpyAsync(pointer, host, 64, 1, stream));
  std::printf("memset %d\n", cudaMemsetAsync(pointer, 0, 64, stream));
  std::printf("graph %d\n", cudaGraphLaunch(nullptr, stream));
  std::printf("synchronize %d\n", cudaStreamSynchronize(stream));
  std::printf("device %d\n", cudaDeviceSynchronize());
  std::printf("free %d\n", cudaFree(pointer));
  std::printf("destroy %d\n", cudaEventDestroy(event));
  int found = -1;
  std::printf("entry %d\n", cudaGetDriverEntryPoint("cuMemCreate", &pointer, 0, &found));
  std::printf("entry_ptsz %d\n", cudaGetDriverEntryPoint_ptsz("cuMemCreate", &pointer, 0, &found));
  std::printf("version %d\n", cudaGetDriverEntryPointByVersion("cuMemCreate", &pointer, 12000, 0, &found));
  std::printf("version_ptsz %d\n", cudaGetDriverEntryPointByVersion_ptsz("cuMemCreate", &pointer, 12000, 0, &found));
  std::printf("found %d %d\n", found, pointer != nullptr);
  std::printf("last %d\n", cudaGetLastError());
}
"""
MAJORS = [12, 13]


def runtimes_of(major: int) -> list[Path]:
    found = [path for path in cuda_runtimes() if path.name == f"libcudart.so.{major}"]
    if not found:
        name = "nvidia-cuda-runtime-cu12" if major == 12 else "nvidia-cuda-runtime"
        pytest.skip(f"no libcudart.so.{major}: the wheel {name} is not installed")
    return found


def programs(major: int, tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """The program on each runtime of a release, with a separate folder."""
    for number, library in enumerate(runtimes_of(major)):
        folder = tmp_path / str(number)
        folder.mkdir()
        yield program_on(library, folder), folder


def program_on(library: Path, tmp_path: Path) -> Path:
    source, program = tmp_path / "program.cpp", tmp_path / "program"
    source.write_text(PROGRAM, encoding="utf-8")
    command = [compiler(), "-std=c++20", "-w", "-o", program, source, library, f"-Wl,-rpath,{library.parent}"]
    subprocess.run(command, check=True)
    return program


def machine(tmp_path: Path) -> dict[str, str]:
    """The doubled driver alone, newer than both runtimes; look-ups are written down."""
    doubles = fake_environment(tmp_path / "doubles", f"driver {known_until() - 10}", libraries=["cuda"])
    return doubles | {"FAKE_LOOK_UPS": str(tmp_path / "looked_up.txt")}


@pytest.mark.parametrize("major", MAJORS)
def test_a_program_hears_the_same_with_the_recorder(major: int, tmp_path: Path) -> None:
    for program, folder in programs(major, tmp_path):
        env = machine(folder)
        bare = subprocess.run(
            [program], env=plain_environment(env), capture_output=True, text=True, check=True, timeout=180
        )
        driver, version, runtime, own = (int(word) for word in bare.stdout.splitlines()[0].split())
        assert (driver, version, runtime) == (0, known_until() - 10, 0)
        assert own // 1000 == major
        answers = {line.split()[0]: int(line.split()[1]) for line in bare.stdout.splitlines()[1:]}
        for hook in (False, True):
            run = record([program], folder / f"run{hook}", collectors=("cuda",), env=env, lookup_hook=hook)
            assert run.stdout == bare.stdout
            assert run.stderr == bare.stderr
            rows = [(DeviceCall(row["call_code"]).name, row["status_code"]) for row in run.trace.device_calls.rows()]
            # Once each, not a second time by the driver's functions: what the runtime was asked, and how it ended.
            expected = {
                "ALLOCATE": "malloc",
                "ALLOCATE_HOST": "host",
                "STREAM_SYNCHRONIZE": "synchronize",
                "FREE": "free",
                "DEVICE_SYNCHRONIZE": "device",
                "GRAPH_LAUNCH": "graph",
            }
            assert {call: answers[name] for call, name in expected.items()}.items() <= dict(rows).items()
            assert all(sum(call == name for name, _ in rows) == 1 for call in expected)


@pytest.mark.parametrize("major", MAJORS)
def test_every_look_up_of_a_recorded_function_is_answered(major: int, tmp_path: Path) -> None:
    for program, folder in programs(major, tmp_path):
        subprocess.run([program], env=os.environ | machine(folder), capture_output=True, check=True, timeout=180)
        asked = split((folder / "looked_up.txt").read_text(encoding="utf-8"))
        assert len(asked) > 400
        answers, run = look_up(folder, asked)
        recorded = {form.name for form in forms()} | {"cuGetProcAddress"}
        hooked = {one for one, answer in zip(asked, answers, strict=True) if answer == "hooked"}
        assert hooked == {one for one in asked if one[0] in recorded}
        # It asks by signature: what is recorded of a runtime's calls hangs on all of these.
        assert {("cuStreamWaitEvent", 3020, 0), ("cuEventRecord", 2000, 0), ("cuMemAlloc", 3020, 0)} <= hooked
        assert list(run.directory.glob("*.stash")) == [], "nothing was asked for in a version that is not known"
