"""What doctor says about GPUs, with small doubles of the vendor's libraries on the path and without."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from stashtrace.record import doctor_gpu
from stashtrace.record.doctor_gpu import Check, gpu_checks, version_text

DRIVER = """
#include <string.h>
#include <stdlib.h>
#include <unistd.h>
int cuInit(unsigned flags) {
  if (getenv("FAKE_HANG")) sleep(60);
  return getenv("FAKE_INIT") ? atoi(getenv("FAKE_INIT")) : 0;
}
int cuDriverGetVersion(int* out) { *out = 13010; return 0; }
int cuDeviceGetCount(int* out) { *out = 2; return 0; }
int cuDeviceGet(int* out, int index) { *out = index; return 0; }
int cuDeviceGetName(char* name, int bytes, int device) { strncpy(name, "NVIDIA Double", bytes); return 0; }
int cuDeviceTotalMem_v2(size_t* out, int device) { *out = (size_t)80 << 30; return 0; }
int cuDeviceGetAttribute(int* out, int attribute, int device) { *out = attribute == 75 ? 9 : 0; return 0; }
int cuCtxCreate_v2(void) { abort(); }
int cuDevicePrimaryCtxRetain(void) { abort(); }
"""
NVML = """
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
"""
NUMBER = "int {function}(int* out) {{ *out = {value}; return 0; }}\n"


@pytest.fixture(scope="session")
def compiler() -> str:
    found = shutil.which("gcc") or shutil.which("cc")
    if found is None:
        pytest.skip("no C compiler for the doubles")
    return found


class Machine:
    """A folder of doubles, and the environment of a job that finds them."""

    def __init__(self, compiler: str, folder: Path) -> None:
        self._compiler, self._folder = compiler, folder
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(("NCCL_", "CUDA_", "NSYS_"))}
        self.environment["LD_LIBRARY_PATH"] = str(folder)

    def add(self, name: str, source: str) -> None:
        file = self._folder / f"{name}.c"
        file.write_text(source, encoding="utf-8")
        command = [self._compiler, "-shared", "-fPIC", str(file), f"-Wl,-soname,{name}", "-o", str(self._folder / name)]
        subprocess.run(command, check=True, capture_output=True)

    def with_gpu(self) -> Machine:
        self.add("libcuda.so.1", DRIVER)
        self.add("libnvidia-ml.so.1", NVML)
        return self

    def number(self, name: str, function: str, value: int) -> Machine:
        self.add(name, NUMBER.format(function=function, value=value))
        return self

    def checks(self, **variables: str) -> dict[str, Check]:
        return {check.name: check for check in gpu_checks(self.environment | variables)}


@pytest.fixture
def machine(compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    # What is installed next to the tests must not matter.
    monkeypatch.setattr(doctor_gpu, "_package", lambda name: "")
    monkeypatch.setattr(doctor_gpu, "nccl_candidates", lambda: ["libnccl.so.2"])
    monkeypatch.setattr(doctor_gpu, "_process_names", set)
    return Machine(compiler, tmp_path)


def test_without_a_driver_one_line_says_so(machine: Machine) -> None:
    machine.add("libcuda.so.1", "int nothing_of_a_driver;\n")
    found = machine.checks()
    assert set(found) == {"GPU"}
    assert found["GPU"].state == "invisible"


def test_names_devices_and_versions(machine: Machine) -> None:
    machine.with_gpu().number("libcudart.so.13", "cudaRuntimeGetVersion", 13000)
    machine.number("libcudart.so.12", "cudaRuntimeGetVersion", 12090)
    found = machine.checks()
    assert found["GPU"].state == "measured"
    assert found["GPU"].detail == "2 x NVIDIA Double (80 GiB, 9.0), driver for CUDA 13.1"
    assert found["GPU counters"].detail == "libnvidia-ml.so.1 answers"
    assert "libcudart 13.0" in found["CUDA runtime"].detail
    assert "libcudart 12.9" in found["CUDA runtime"].detail
    assert found["GPU clocks"].state == "inferred"


@pytest.mark.parametrize(("code", "words"), [("100", "no device"), ("803", "too old"), ("999", "999")])
def test_a_driver_that_refuses_is_named_with_its_answer(machine: Machine, code: str, words: str) -> None:
    found = machine.with_gpu().checks(FAKE_INIT=code)
    assert found["GPU"].state == "invisible"
    assert words in found["GPU"].detail
    assert "nvidia-smi" in found["GPU"].meaning
    assert "GPU counters" not in found


def test_a_driver_that_hangs_costs_a_time_limit(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_gpu, "_PROBE_S", 1.0)
    machine.with_gpu().number("libnccl.so.2", "ncclGetVersion", 22809)
    found = machine.checks(FAKE_HANG="1")
    assert "no answer" in found["GPU"].detail
    assert "2.28.9" in found["NCCL"].detail, "what was known before is kept"


def test_missing_parts_are_said(machine: Machine) -> None:
    machine.add("libcuda.so.1", DRIVER)
    machine.add("libnvidia-ml.so.1", "int nvmlInit_v2(void) { return 9; }\n")
    found = machine.checks()
    assert found["GPU counters"].detail == "nvmlInit answers 9"
    assert found["NCCL"].state == "invisible"


@pytest.mark.parametrize(
    ("version", "interface"),
    [(22708, "v4"), (22809, "v5"), (22907, "v6"), (23007, "v6"), (23102, "v7"), (23203, "v7"), (22304, "no profiler")],
)
def test_nccl_and_the_interface_it_speaks(machine: Machine, version: int, interface: str) -> None:
    nccl = machine.number("libnccl.so.2", "ncclGetVersion", version).checks()["NCCL"]
    assert version_text(version) in nccl.detail
    assert interface in nccl.detail


def test_a_plugin_of_the_user_is_said_to_be_chained(machine: Machine) -> None:
    machine.number("libnccl.so.2", "ncclGetVersion", 22809)
    assert "mine.so" in machine.checks(NCCL_PROFILER_PLUGIN="mine.so")["NCCL plugin"].detail
    assert "NCCL plugin" not in machine.checks()


#: What makes NCCL's stamps the only device times.
STAMPS = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}


@pytest.mark.parametrize(("version", "named"), [(22809, False), (22907, True), (23102, True), (23203, True)])
def test_the_hazard_of_broadcasts(machine: Machine, version: int, named: bool) -> None:
    machine.number("libnccl.so.2", "ncclGetVersion", version)
    assert ("broadcasts" in machine.checks(**STAMPS)) == named
    assert "broadcasts" not in machine.checks(**STAMPS, NCCL_ALLGATHERV_ENABLE="0")
    assert "broadcasts" not in machine.checks(), "timed by events, which nothing mixes up"


def test_the_hazard_of_a_small_shm(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.number("libnccl.so.2", "ncclGetVersion", 22907)
    monkeypatch.setattr(doctor_gpu, "_shm_bytes", lambda: 64 << 20)
    small = machine.checks(**STAMPS)
    assert "--shm-size" in small["NCCL and shm"].meaning
    assert "broadcasts" not in small, "without stamps none is mixed up"
    assert "NCCL and shm" not in machine.checks()
    monkeypatch.setattr(doctor_gpu, "_shm_bytes", lambda: 8 << 30)
    assert "NCCL and shm" not in machine.checks(**STAMPS)


EVENTS, CHANNELS, CALLS = "timed by events", "per channel", "times of their calls alone"


@pytest.mark.parametrize(
    ("version", "variables", "words"),
    [
        (22809, {}, EVENTS),
        (22304, {}, EVENTS),
        (22809, STAMPS, CHANNELS),
        (22304, STAMPS, CALLS),
        (22809, STAMPS | {"STASHTRACE_FORCE_EVENTS": "1"}, EVENTS),
        (22809, STAMPS | {"STASHTRACE_NCCL_SOURCE": "events"}, CALLS),
        (22809, {"STASHTRACE_NCCL_SOURCE": "plugin"}, CHANNELS),
        (22304, {"STASHTRACE_NCCL_SOURCE": "plugin"}, CALLS),
    ],
)
def test_times_of_collectives_are_promised_of_the_source_that_is_used(
    machine: Machine, version: int, variables: dict[str, str], words: str
) -> None:
    found = machine.with_gpu().number("libnccl.so.2", "ncclGetVersion", version).checks(**variables)
    assert words in found["NCCL"].meaning
    if "timing events" in found and "STASHTRACE_FORCE_EVENTS" not in variables:
        assert words in found["timing events"].meaning


def test_one_connection_turns_timing_events_off(machine: Machine) -> None:
    assert "timing events" in machine.checks(CUDA_DEVICE_MAX_CONNECTIONS="1")
    assert "timing events" not in machine.checks(CUDA_DEVICE_MAX_CONNECTIONS="8")


@pytest.mark.parametrize(("version", "state"), [(28, "ok"), (130001, "ok"), (140000, "invisible"), (None, "partly")])
def test_whether_deep_mode_would_work(machine: Machine, version: int | None, state: str) -> None:
    machine.with_gpu()
    if version is None:
        machine.add("libcupti.so.13", "int nothing;\n")
        machine.add("libcupti.so.12", "int nothing;\n")
    else:
        machine.number("libcupti.so.13", "cuptiGetVersion", version)
    assert machine.checks()["kernels"].state == state


def test_other_users_of_cupti(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.with_gpu().number("libcupti.so.13", "cuptiGetVersion", 130001)
    assert machine.checks(NSYS_PROFILING_SESSION_ID="1")["kernels"].state == "invisible"
    monkeypatch.setattr(doctor_gpu, "_process_names", lambda: {"nsys", "python"})
    assert "nsys is running" in machine.checks()["kernels"].detail


def test_what_stays_invisible_of_cupy_and_others(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"cupy-cuda13x": "14.2.0", "triton": "3.5.0"}
    monkeypatch.setattr(doctor_gpu, "_package", lambda name: versions.get(name, ""))
    found = machine.with_gpu().checks()
    assert found["CUDA runtime"].state == "partly"
    assert "--lookup-hook" in found["CUDA runtime"].meaning
    assert "triton" in found["driver calls"].detail


def test_a_torch_without_cuda_is_named(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_gpu, "_package", lambda name: "2.13.0+cpu" if name == "torch" else "")
    assert "CUDA build" in machine.with_gpu().checks()["CUDA runtime"].meaning


def test_every_line_fits_its_column(machine: Machine) -> None:
    machine.with_gpu().number("libnccl.so.2", "ncclGetVersion", 22907)
    found = machine.checks(CUDA_DEVICE_MAX_CONNECTIONS="1", NCCL_PROFILER_PLUGIN="x", CUDA_INJECTION64_PATH="y")
    for check in found.values():
        assert len(check.name) < 14
        assert check.detail
        assert check.meaning
        assert not check.meaning.endswith(".")


def test_this_machine_is_described_without_a_context() -> None:
    names = [check.name for check in gpu_checks()]
    assert names[0] == "GPU"
