"""What the hooks add to single calls on a GPU: copies, stream waits, event records, allocations.

    python benchmarks/gpu/bench_calls.py [--rounds 7] [--out FOLDER]

The same loops run in an untraced and a traced process, in turn; the figure is nanoseconds added per call and its ratio.
Host time only: the loops wait for the device after each block of calls, outside the clock. The result is written again
after each pair, so an interrupted series (exit code 130) leaves those that were whole.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT)]

CALLS, BLOCKS = 200, 50


def measure() -> dict[str, float]:
    """Nanoseconds per call of each loop: the median of the blocks. Runs in the measured process."""
    import statistics

    import torch

    other, event = torch.cuda.Stream(), torch.cuda.Event()
    pinned, pageable = torch.empty(1024).pin_memory(), torch.empty(1024)
    target = torch.empty(1024, device="cuda")
    loops = {
        "copy_pinned": lambda: target.copy_(pinned, non_blocking=True),
        "copy_pageable": lambda: target.copy_(pageable),
        "event_record": lambda: event.record(),
        "stream_wait": lambda: other.wait_event(event),
        "kernel_launch": lambda: target.add_(1),
        "item": lambda: target[0].item(),
    }
    found = {}
    for name, call in loops.items():
        times = []
        for block in range(BLOCKS + 5):
            torch.cuda.synchronize()
            begin = time.perf_counter_ns()
            for _ in range(CALLS):
                call()
            if block >= 5:
                times.append((time.perf_counter_ns() - begin) / CALLS)
        torch.cuda.synchronize()
        found[name] = statistics.median(times)
    return found


def run(traced: bool) -> dict[str, float]:
    """The loops in a separate process."""
    with tempfile.TemporaryDirectory(prefix="stashtrace-gpu-") as folder:
        command = [sys.executable, __file__, "--measure", f"{folder}/times.json"]
        if traced:
            tracer = [sys.executable, "-m", "stashtrace", "run", "--no-merge", "--out", f"{folder}/run", "--"]
            command = tracer + command
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            raise RuntimeError(f"exit code {done.returncode}\n{done.stderr[-3000:]}")
        times: dict[str, float] = json.loads(Path(folder, "times.json").read_text(encoding="utf-8"))
        return times


def main() -> int:
    """Run the pairs, write the result after each; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results"))
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        options.measure.write_text(json.dumps(measure()), encoding="utf-8")
        return 0

    pairs: list[tuple[dict[str, float], dict[str, float]]] = []
    try:
        for number in range(options.rounds):
            order = (False, True) if number % 2 else (True, False)
            own = {traced: run(traced) for traced in order}
            pairs.append((own[False], own[True]))
            print(f"pair {number + 1}/{options.rounds}", file=sys.stderr, flush=True)
            write(pairs, options)
    except KeyboardInterrupt:
        print(f"interrupted after {len(pairs)} of {options.rounds} pairs", file=sys.stderr)
        return 130
    return 0


def write(pairs: list[tuple[dict[str, float], dict[str, float]]], options: argparse.Namespace) -> None:
    """Write the result of the pairs so far; each figure's ``count`` says how many they are."""
    import harness

    figures = {}
    for name in pairs[0][0]:
        figures[f"{name}_added_ns"] = harness.summary([traced[name] - bare[name] for bare, traced in pairs])
        figures[f"{name}_ratio"] = harness.summary([traced[name] / bare[name] for bare, traced in pairs])
    command = f"python benchmarks/gpu/bench_calls.py --rounds {options.rounds}"
    harness.write_result("calls", figures, command=command, modules=("torch",), folder=options.out)


if __name__ == "__main__":
    sys.exit(main())
