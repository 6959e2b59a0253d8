"""nvml on a real device: what it offers, that bytes moved are bytes counted, what a sample costs there."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import numpy as np
import pytest
from collectors.nvml_doubles import ROOT, Sampled
from collectors.recorded import record

pytestmark = pytest.mark.gpu

#: Copies 256 MiB to the device again and again for two seconds, with the driver alone.
COPIES = """
import ctypes, json, time
from stashtrace import _native
_native.start_drainer()
cuda = ctypes.CDLL("libcuda.so.1")
device, context, pointer = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
size = ctypes.c_size_t(256 << 20)
assert cuda.cuInit(0) == 0 and cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0 and cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), size) == 0
host = ctypes.create_string_buffer(size.value)
time.sleep(1.5)
copied, end = 0, time.monotonic() + 2
while time.monotonic() < end:
    assert cuda.cuMemcpyHtoD_v2(pointer, host, size) == 0
    copied += size.value
time.sleep(0.5)
print(copied)
"""


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Sampled:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        pytest.skip("no driver on this machine")
    count = ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value == 0:
        pytest.skip("no device on this machine")
    folder = tmp_path_factory.mktemp("gpu")
    environment = {"PYTHONPATH": str(ROOT), "STASHTRACE_NVML_HZ": "100"}
    command: list[str | Path] = [sys.executable, "-c", COPIES]
    return Sampled(record(command, folder / "run", collectors=("nvml",), sample_ms=20, env=environment))


def _series(sampled: Sampled, quantity: str) -> tuple[np.ndarray, np.ndarray]:
    trace = sampled.recording.trace
    name = next(
        (
            trace.text(t["name_code"])
            for t in trace.tracks.rows()
            if trace.text(t["name_code"]).startswith(f"gpu_{quantity}.")
        ),
        None,
    )
    if name is None:
        pytest.skip(f"{quantity} is not offered here: {sampled.losses()}")
    return sampled.named(name)


def test_bytes_copied_are_counted_as_received_over_pcie(copied: Sampled) -> None:
    _, value = _series(copied, "pcie_receive_bytes_total")
    assert value[-1] - value[0] == pytest.approx(int(copied.recording.stdout), rel=0.1)


@pytest.mark.parametrize(
    ("quantity", "low", "high"),
    [
        ("power_watts", 5, 2000),
        ("temperature_celsius", 5, 110),
        ("sm_clock_hz", 1e8, 4e9),
        ("memory_used_bytes", 2**28, 2**40),
        ("busy_ratio", 0, 1),
        ("sm_active_ratio", 0, 1),
        ("dram_active_ratio", 0, 1),
    ],
)
def test_values_are_plausible(copied: Sampled, quantity: str, low: float, high: float) -> None:
    _, value = _series(copied, quantity)
    assert low <= value.min() <= value.max() <= high


def test_cost_at_100_hz(copied: Sampled) -> None:
    ts, cpu_ns = copied.named("nvml_sampler_cpu_ns_total")
    assert cpu_ns[-1] - cpu_ns[0] < 0.01 * (ts[-1] - ts[0])
