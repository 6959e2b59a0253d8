"""What sampling devices costs: CPU time of the sampler's thread as a share of one core, on the double of NVML.

    python benchmarks/bench_nvml.py [--repeats 5] [--seconds 4] [--out FOLDER]

Bar 1 % of a core at 100 Hz. The double's work is in the figures, so they bound our part from above; what a call
into a real driver costs only a device can show.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import harness

sys.path.insert(0, str(harness.ROOT))

RATES_HZ = (10, 100, 1000)
BAR_RATIO = 0.01
SCRIPT = "devices 8\nnvlink_tx 25GB\nnvlink_rx 20GB\npcie_tx 2GB\npcie_rx 3GB\n"
PROGRAM = """
import ctypes, sys, time
from stashtrace import _native
_native.start_drainer()
cuda = ctypes.CDLL("libcuda.so.1")
cuda.cuInit(0)
for device in range(int(sys.argv[1])):
    cuda.use_device(device)
time.sleep(float(sys.argv[2]))
"""


def doubles(folder: Path) -> None:
    """Build libcuda.so.1 and libnvidia-ml.so.1 as the tests do."""
    for name, source in (
        ("libcuda.so.1", harness.ROOT / "tests/collectors/native/small_cuda.cpp"),
        ("libnvidia-ml.so.1", harness.ROOT / "tests/fakes/fake_nvml.cpp"),
    ):
        subprocess.run(
            [
                "g++",
                "-std=c++20",
                "-O2",
                "-w",
                "-shared",
                "-fPIC",
                "-I",
                str(harness.ROOT / "csrc"),
                "-I",
                str(source.parent),
                f"-Wl,-soname,{name}",
                "-o",
                str(folder / name),
                str(source),
            ],
            check=True,
        )


def share_of_a_core(folder: Path, run: Path, hz: int, devices: int, seconds: float) -> tuple[float, float]:
    """CPU time of the sampler by wall time, and the samples a second that it reached."""
    from stashtrace.loading.load import load_trace
    from stashtrace.record.environment import traced_environment
    from stashtrace.record.options import RecordOptions

    run.mkdir()
    (folder / "script").write_text(SCRIPT, encoding="utf-8")
    base = {k: v for k, v in os.environ.items() if not k.startswith("STASHTRACE_")}
    base |= {
        "PYTHONPATH": str(harness.ROOT),
        "LD_LIBRARY_PATH": str(folder),
        "FAKE_SCRIPT": str(folder / "script"),
        "SMALL_CUDA_DEVICES": str(devices),
    }
    environment = traced_environment(base, RecordOptions(collectors=("nvml",), nvml_hz=hz), run_dir=run, run_id="be9c")
    subprocess.run([sys.executable, "-c", PROGRAM, str(devices), str(seconds)], env=environment, check=True)
    trace = load_trace(run)
    names = {t["track_id"]: trace.text(t["name_code"]) for t in trace.tracks.rows()}
    series = {name: trace.counters.take(trace.counters["track_id"] == track) for track, name in names.items()}
    cost = series["nvml_sampler_cpu_ns_total"]
    moved = next(table for name, table in series.items() if name.startswith("gpu_nvlink_transmit"))
    wall_ns = cost["ts_ns"][-1] - cost["ts_ns"][0]
    reached = (len(moved) - 1) / (moved["ts_ns"][-1] - moved["ts_ns"][0]) * 1e9
    return float((cost["value"][-1] - cost["value"][0]) / wall_ns), float(reached)


def main() -> None:
    """Measure, print, write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--out", type=Path, default=harness.RESULTS)
    options = parser.parse_args()
    figures: dict[str, object] = {"bar_at_100_hz_ratio": BAR_RATIO, "seconds_each": options.seconds}
    with tempfile.TemporaryDirectory(prefix="stashtrace-bench-") as name:
        folder = Path(name)
        doubles(folder)
        for devices in (1, 8):
            for hz in RATES_HZ:
                found = [
                    share_of_a_core(folder, folder / f"run-{devices}-{hz}-{i}", hz, devices, options.seconds)
                    for i in range(options.repeats)
                ]
                key = f"{devices}_devices_{hz}_hz"
                figures[f"{key}_core_share_ratio"] = harness.summary([share for share, _ in found])
                figures[f"{key}_reached_hz"] = harness.summary([reached for _, reached in found])
                median = figures[f"{key}_core_share_ratio"]["median"]  # type: ignore[index]
                print(f"{devices} device(s) at {hz:4} Hz: {median * 100:.2f} % of a core")
    command = f"python benchmarks/bench_nvml.py --repeats {options.repeats} --seconds {options.seconds:g}"
    path = harness.write_result("nvml_sampler", figures, command=command, folder=options.out)
    print(path)


if __name__ == "__main__":
    main()
