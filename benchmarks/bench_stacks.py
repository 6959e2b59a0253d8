"""What a sample of a Python stack costs: CPU time of the thread that takes them, and bytes of the file.

    python benchmarks/bench_stacks.py [--repeats 3]

A process computes 40 frames deep in steps of 20 ms, for 8 s, recorded alternately with no samples, 50 and 1,000 a
second. The CPU clock of the sampling thread (``/proc/self/task``) is read before and after. For comparison a thread
only sleeps, as often as one that samples: what is left is the sample. Bars: 20 us a sample, 0.1 % of a CPU at 50 Hz.
Writes results/stacks.json.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import harness

SECONDS = 8
#: Name of the thread of ours that samples.
SAMPLER = "stashtrace proc"
RATES_HZ = (0, 50, 1000)


def main() -> None:
    """Measure, or be the job of one measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=harness.RESULTS)
    parser.add_argument("--job", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        job()
        return
    found: dict[int, list[dict[str, float]]] = {hz: [] for hz in RATES_HZ}
    sleeps: dict[int, list[float]] = {hz: [] for hz in RATES_HZ[1:]}
    for _ in range(options.repeats):
        for hz in RATES_HZ:
            found[hz].append(recorded(hz))
            if hz:
                sleeps[hz].append(sleeping_us(hz))
    figures: dict[str, object] = {"frames_count": 40}
    for hz in RATES_HZ[1:]:
        pairs = list(zip(found[0], found[hz], strict=True))
        figures |= {
            f"at_{hz}_hz_of_a_cpu_ratio": harness.summary([with_["cpu"] - none["cpu"] for none, with_ in pairs]),
            f"at_{hz}_hz_a_sample_us": harness.summary(
                [(with_["cpu"] - none["cpu"]) * 1e6 * with_["seconds"] / with_["samples"] for none, with_ in pairs]
            ),
            f"at_{hz}_hz_a_sleep_us": harness.summary(sleeps[hz]),
            f"at_{hz}_hz_a_sample_bytes": harness.summary(
                [(with_["bytes"] - none["bytes"]) / with_["samples"] for none, with_ in pairs]
            ),
        }
    command = f"python benchmarks/bench_stacks.py --repeats {options.repeats}"
    harness.write_result("stacks", figures, command=command, folder=options.out)
    print(json.dumps(harness.rounded(figures), indent=2))


def recorded(hz: int) -> dict[str, float]:
    """Record a job; return the part of a CPU that its sampling thread took, its samples and the bytes of its file."""
    import stashtrace

    with tempfile.TemporaryDirectory(prefix="stashtrace-stacks-") as name:
        run = Path(name) / "run"
        words = [
            sys.executable,
            "-m",
            "stashtrace",
            "run",
            "--stack-hz",
            str(hz),
            "--out",
            str(run),
            "--",
        ]
        environment = dict(os.environ, PYTHONPATH=str(harness.ROOT))
        done = subprocess.run(
            [*words, sys.executable, str(Path(__file__).resolve()), "--job"],
            cwd=name,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        reported: dict[str, float] = json.loads(done.stdout.splitlines()[0])
        size = sum(path.stat().st_size for path in run.glob("*.stash"))
        return {**reported, "samples": len(stashtrace.load(run).stack_samples), "bytes": size}


def job() -> None:
    """Compute for a while, and say what the sampling thread took meanwhile."""
    import stashtrace

    def computes() -> None:
        limit = time.perf_counter() + 0.02
        while time.perf_counter() < limit:
            sum(range(200))

    def deep(frames: int, function: Callable[[], None]) -> None:
        if frames:
            deep(frames - 1, function)
        else:
            function()

    def steps(seconds: float) -> float:
        begin = time.monotonic()
        while time.monotonic() < begin + seconds:
            deep(36, computes)
            stashtrace.step()
        return time.monotonic() - begin

    steps(1)
    before = cpu_s(SAMPLER)
    seconds = steps(SECONDS)
    print(json.dumps({"cpu": (cpu_s(SAMPLER) - before) / seconds, "seconds": seconds}))


def cpu_s(name: str) -> float:
    """CPU time of the thread of this process that has this name."""
    for task in Path("/proc/self/task").iterdir():
        if (task / "comm").read_text().strip() == name:
            return int((task / "schedstat").read_text().split()[0]) / 1e9
    raise RuntimeError(f"no thread is called {name}")


def sleeping_us(hz: int) -> float:
    """CPU time of one sleep of a thread that does nothing else."""
    taken: list[float] = []

    def sleeps() -> None:
        begin = time.thread_time()
        for _ in range(2 * hz):
            time.sleep(1 / hz)
        taken.append((time.thread_time() - begin) * 1e6 / (2 * hz))

    thread = threading.Thread(target=sleeps)
    thread.start()
    thread.join()
    return taken[0]


if __name__ == "__main__":
    main()
