"""Predictions of other buckets and measured runs: one job of DistributedDataParallel, several ``bucket_cap_mb``.

    python benchmarks/bench_buckets.py

A job of two ranks over gloo, whose layers take a known time (they sleep, as if a device computed) and whose gradients
are sent for real, is recorded with each size of buckets, several times in turn. Other work on the machine can only make
a run slower, so the fastest recording of each size counts: from it the step with each other size is predicted, and held
against the fastest one measured with that. What recordings of the same size differ by is printed, too. Writes
results/buckets.md and .json.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import harness

import stashtrace
from stashtrace.analysis.graph import build
from stashtrace.replay import Change, gradient_buckets, what_if

CAPS = (1.0, 4.0, 8.0, 16.0, 64.0)
#: Sixteen layers of 40 MB; those near the output are large and quick, as in networks that end in dense layers.
JOB = """
import os, subprocess, sys, time
if "RANK" not in os.environ:
    ranks = [subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, "RANK": str(r)}) for r in (0, 1)]
    sys.exit(max(rank.wait() for rank in ranks))
import torch
import torch.distributed as dist

class Sleep(torch.autograd.Function):
    @staticmethod
    def forward(context, x, weight, seconds):
        context.seconds, context.size = seconds, weight.shape
        time.sleep(seconds / 2)
        return x * 1.0
    @staticmethod
    def backward(context, grad):
        time.sleep(context.seconds)
        return grad, torch.ones(context.size), None

class Layer(torch.nn.Module):
    def __init__(self, size, seconds):
        super().__init__()
        self.weight, self.seconds = torch.nn.Parameter(torch.zeros(size)), seconds
    def forward(self, x):
        return Sleep.apply(x, self.weight, self.seconds)

torch.set_num_threads(1)
dist.init_process_group("gloo", rank=int(os.environ["RANK"]), world_size=2)
sizes = [65536 * k for k in (1, 1, 2, 4, 3, 6, 8, 5, 10, 12, 7, 14, 16, 9, 24, 32)]
layers = [Layer(size, 0.002 + 0.0005 * (15 - n)) for n, size in enumerate(sizes)]
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.zeros(4, requires_grad=True)
for _ in range(int(sys.argv[1])):
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
dist.destroy_process_group()
"""


def _port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def recorded(folder: Path, job: Path, cap: float, steps: int) -> Path:
    """Run directory of the job with buckets of one size."""
    words = [
        sys.executable,
        "-m",
        "stashtrace",
        "run",
        "--out",
        str(folder),
        "--",
        sys.executable,
        str(job),
        str(steps),
    ]
    extra = {
        "STASHTRACE_BUCKET_MB": f"{cap:g}",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_port()),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(harness.ROOT),
    }
    done = subprocess.run(words, env=os.environ | extra, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"bucket_cap_mb={cap:g} ended with {done.returncode}\n{done.stderr[-2000:]}")
    return folder


def main() -> int:
    """Record, predict, compare, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=45)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--out", type=Path, default=harness.RESULTS)
    options = parser.parse_args()
    runs: dict[float, list[Path]] = {cap: [] for cap in CAPS}
    with tempfile.TemporaryDirectory() as place:
        job = Path(place) / "job.py"
        job.write_text(JOB, encoding="utf-8")
        for turn in range(options.repeat):
            for cap in CAPS:
                runs[cap].append(recorded(Path(place) / f"{cap:g}-{turn}", job, cap, options.steps))
        rows, measured = predictions(runs)
    total = in_words(rows, max(max(times) / min(times) - 1 for times in measured.values()))
    print(total)
    command = "python benchmarks/bench_buckets.py"
    harness.write_result("buckets", {"rows": rows}, command=command, modules=("numpy", "torch"), folder=options.out)
    lines = [
        "# Predictions of other buckets",
        "",
        f"`{command}`, commit {harness.versions('torch')['commit']}.",
        "",
        f"**{total}**",
        "",
        "| from | to | from, ms | predicted, ms | measured, ms | middle off |",
        "|---|---|---|---|---|---|",
        *[
            f"| {r['from_mb']:g} | {r['to_mb']:g} | {r['from_ms']:.1f} | {r['low_ms']:.1f} to {r['high_ms']:.1f}"
            f" | {r['measured_ms']:.1f} | {r['error_ratio']:+.1%} |"
            for r in rows
        ],
    ]
    (options.out / "buckets.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0


def in_words(rows: list[dict[str, Any]], apart: float) -> str:
    """What the table says; ``apart`` is by how much recordings of one size differ."""
    reported, open_ = ([row for row in rows if row["tells_latency"] is known] for known in (True, False))
    away = np.array([abs(row["error_ratio"]) for row in reported])
    return (
        f"{len(reported)} predictions from runs whose messages show what is latency: the middle of the interval is"
        f" {np.median(away):.1%} off in the median, {away.max():.1%} at most. Of {len(open_)} from runs that leave it"
        f" open, whose intervals are wider, {sum(row['inside'] for row in open_)} hold the measured step. Recordings of"
        f" one size differ by up to {apart:.1%}."
    )


def predictions(runs: dict[float, list[Path]]) -> tuple[list[dict[str, Any]], dict[float, list[float]]]:
    """A row for each pair of sizes, and measured steps by size, in ms."""
    graphs = {}
    for folders in runs.values():
        for folder in folders:
            trace = stashtrace.load(folder)
            graphs[folder] = (trace, build(trace))
    measured = {
        cap: [what_if(graphs[run][1], []).measured_ns / 1e6 for run in folders] for cap, folders in runs.items()
    }
    rows = []
    for cap, folders in runs.items():
        for other in runs:
            if other == cap:
                continue
            trace, graph = graphs[folders[int(np.argmin(measured[cap]))]]
            change = Change.parse(f"bucket_mb={other:g}")
            buckets = gradient_buckets(trace, graph)
            reported = what_if(graph, [change], buckets=buckets)
            low, high, real = reported.low_ns / 1e6, reported.high_ns / 1e6, min(measured[other])
            rows.append(
                {
                    "from_mb": cap,
                    "to_mb": other,
                    "from_ms": reported.measured_ns / 1e6,
                    "low_ms": low,
                    "high_ms": high,
                    "measured_ms": real,
                    "error_ratio": (low + high) / 2 / real - 1,
                    "inside": bool(low <= real <= high),
                    "tells_latency": buckets.cost.alpha_ns[0] == buckets.cost.alpha_ns[1],
                }
            )
    return rows, measured


if __name__ == "__main__":
    sys.exit(main())
