"""A machine with scripted devices for tests of the sampler: the double of NVML and a very small libcuda."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from collectors.recorded import NATIVE, Recording, record
from device import build

ROOT = Path(__file__).resolve().parents[2]
#: A program that uses device 0 (of those visible) for as many seconds as its argument says.
USES_DEVICE = """
import ctypes, sys, time
from stashtrace import _native
_native.start_drainer()
cuda = ctypes.CDLL("libcuda.so.1")
cuda.cuInit(0)
cuda.use_device(0)
time.sleep(float(sys.argv[1]))
"""


@functools.cache
def doubles(nvml: bool = True) -> Path:
    """Folder with libcuda.so.1 and, by default, libnvidia-ml.so.1."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    folder = Path(tempfile.mkdtemp(prefix="stashtrace-nvml-"))
    options = ["-std=c++20", "-O1", "-w", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]
    subprocess.run([compiler, *options, "-o", folder / "libcuda.so.1", NATIVE / "small_cuda.cpp"], check=True)
    if nvml:
        name = "libnvidia-ml.so.1"
        (folder / name).symlink_to(build("fake_nvml") / "fakes/nvml" / name)
    return folder


@dataclass(frozen=True)
class Sampled:
    """What a run left, by name of the quantity."""

    recording: Recording

    def series(self, quantity: str, device: int = 0, link: int = -1) -> tuple[np.ndarray, np.ndarray]:
        """Times and values of a quantity of a device, empty if there are none."""
        place = f"{uuid(device)}:{link}" if link >= 0 else uuid(device)
        return self.named(f"gpu_{quantity}.{place}")

    def named(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """The same of a track by its full name, of any process."""
        trace = self.recording.trace
        tracks = [t["track_id"] for t in trace.tracks.rows() if trace.text(t["name_code"]) == name]
        chosen = np.isin(trace.counters["track_id"], tracks)
        return trace.counters["ts_ns"][chosen], trace.counters["value"][chosen]

    def rate(self, quantity: str, device: int = 0, link: int = -1) -> float:
        """Typical growth per second, over half of the run: one sample with a wrong stamp does not decide."""
        ts, value = self.series(quantity, device, link)
        half = len(ts) // 2
        return float(np.median((value[half:] - value[:-half]) / (ts[half:] - ts[:-half])) * 1e9)

    def names(self) -> set[str]:
        """Quantities of devices that have samples."""
        trace = self.recording.trace
        texts = {trace.text(t["name_code"]) for t in trace.tracks.rows()}
        return {t.partition(".")[0].removeprefix("gpu_") for t in texts if t.startswith("gpu_")}

    def losses(self) -> list[tuple[str, int, str]]:
        """Reason, severity and advice of what this collector reported."""
        trace = self.recording.trace
        return [
            (trace.text(row["name_code"]), row["severity_code"], trace.text(row["advice_code"]))
            for row in trace.losses.rows()
            if trace.text(row["collector_code"]) == "nvml"
        ]


def uuid(device: int) -> str:
    """Of the device with this number, before CUDA_VISIBLE_DEVICES."""
    return f"GPU-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadae{device:02x}"


def sample(
    folder: Path,
    script: str,
    *,
    program: str = USES_DEVICE,
    arguments: Sequence[str] = ("1",),
    hz: int = 100,
    nvml: bool = True,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 180,
    missing: Sequence[str] = (),
    prefix: Sequence[str] = (),
) -> Sampled:
    """Run a program traced on the scripted machine, whose libraries lack the symbols that are `missing`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "script").write_text(script, encoding="utf-8")
    libraries = without(folder / "libraries", doubles(nvml), missing) if missing else doubles(nvml)
    environment = {
        "PYTHONPATH": str(ROOT),
        "LD_LIBRARY_PATH": str(libraries),
        "FAKE_SCRIPT": str(folder / "script"),
        "FAKE_CALLS": str(folder),
        "STASHTRACE_NVML_HZ": str(hz),
        **(env or {}),
    }
    command = [*prefix, sys.executable, "-c", program, *arguments]
    return Sampled(
        record(command, folder / "run", collectors=("nvml",), sample_ms=20, env=environment, timeout_s=timeout_s)
    )


def without(folder: Path, source: Path, symbols: Sequence[str]) -> Path:
    """A copy of the libraries in which symbols have another name."""
    folder.mkdir()
    for library in source.iterdir():
        data = library.read_bytes()
        for symbol in symbols:
            data = data.replace(b"\0" + symbol.encode() + b"\0", b"\0X" + symbol[1:].encode() + b"\0")
        (folder / library.name).write_bytes(data)
    return folder


def calls(folder: Path) -> dict[str, int]:
    """How often each function of the double was called, all processes added."""
    found: dict[str, int] = {}
    for file in folder.glob("nvml-*.txt"):
        for line in file.read_text(encoding="utf-8").splitlines():
            name, count = line.split()
            found[name] = found.get(name, 0) + int(count)
    return found
