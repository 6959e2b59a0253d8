"""Is the forecast of `stashtrace whatif-cache` true? The example, recorded with half cached, then really run.

    python benchmarks/bench_whatif_cache.py [--repetitions 3] [--workers 1 2] [--data DIR]

Each repetition records one epoch with half of the files in the page cache (the rest evicted, checked by mincore),
forecasts the step at other shares, and runs an epoch at each, untraced and timed by the script's clock. Judged are
medians over the interleaved repetitions. Then several epochs in a memory cgroup, where the kernel chooses what stays:
the step must lie between the forecasts of `minio` and `lru`. Exit code 1 if a figure is off by more than 10 %.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/support"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import harness
from ground_truth import cached_share, machine

import stashtrace
from stashtrace.lab.cache_forecast import Inputs, cache_forecast, inputs_of, replayed_ns

TOLERANCE_RATIO = 0.10
RECORDED_SHARE = 0.5
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
CACHE_BYTES, EPOCHS = 400_000_000, 4


def main() -> int:
    """Run, judge, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--data", type=Path, help="folder that keeps the image set (default: a temporary one)")
    parser.add_argument("--out", type=Path, default=harness.RESULTS)
    options = parser.parse_args()
    runs: dict[tuple[int, float], list[dict[str, float]]] = {}
    limited: list[dict[str, Any]] = []
    missing = ""
    with tempfile.TemporaryDirectory(prefix="stashtrace-cache-") as name:
        folder = options.data or Path(name) / "images"
        cached_share.write_images(folder)
        os.sync()
        for number in range(options.repetitions):
            for workers in options.workers:
                out = Path(name) / f"{number}-{workers}"
                inputs = recorded(folder, out / "recorded", workers, number)
                for share in SHARES:
                    run = measured(folder, out / str(share), workers, share, number, inputs)
                    runs.setdefault((workers, share), []).append(run)
                    head = f"repetition {number + 1}  {workers} workers  {share:.0%} cached"
                    print(f"{head}  {progress_line(run)}", file=sys.stderr)
        for workers in options.workers:
            try:
                limited.append(in_cgroup(folder, Path(name) / f"limited-{workers}", workers))
            except machine.Missing as error:
                missing = str(error)
    rows = [judged(workers, share, found) for (workers, share), found in runs.items()]
    command = f"python benchmarks/bench_whatif_cache.py --repetitions {options.repetitions}"
    figures = {
        "recorded_share": RECORDED_SHARE,
        "tolerance_ratio": TOLERANCE_RATIO,
        "steps_count": cached_share.EPOCH_STEPS,
        "rows": rows,
        "memory_cgroup": limited,
        "not_possible_here": missing,
    }
    harness.write_result("whatif_cache", figures, command=command, modules=("torch", "numpy"), folder=options.out)
    for row in [*rows, *limited]:
        print(row)
    return 0 if all(row["within"] for row in [*rows, *limited]) else 1


def recorded(folder: Path, out: Path, workers: int, seed: int) -> Inputs:
    """What `whatif-cache` reads from one traced epoch."""
    out.mkdir(parents=True)
    cached_share.one_epoch(folder, out, RECORDED_SHARE, workers=workers, seed=seed, traced=True)
    rates = stashtrace.analyze(stashtrace.load(out / "run"), "loader_rates")
    shutil.rmtree(out)
    return inputs_of(rates)


def measured(folder: Path, out: Path, workers: int, share: float, seed: int, inputs: Inputs) -> dict[str, float]:
    """One real epoch and its forecast."""
    out.mkdir(parents=True)
    # Other files than the recorded run had, and no tracer.
    truth = cached_share.one_epoch(folder, out, share, workers=workers, seed=seed + 1000)
    shutil.rmtree(out)
    row = next(iter(cache_forecast(inputs, [truth.resident], "minio").rows()))
    return {
        "real": truth.step_ns,
        "forecast": row["step_ns"],
        "resident": truth.resident,
        "recorded": inputs.measured_step_ns,
        "replayed": replayed_ns(inputs),
    }


def judged(workers: int, share: float, runs: list[dict[str, float]]) -> dict[str, Any]:
    """Medians of the repetitions, and whether they agree."""
    middle = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    real, forecast = middle["real"], middle["forecast"]
    each = [run["forecast"] / run["real"] - 1 for run in runs]
    return {
        "workers": workers,
        "cached_share": share,
        "resident_share": middle["resident"],
        "real_step_ms": real / 1e6,
        "real_min_ms": min(r["real"] for r in runs) / 1e6,
        "real_max_ms": max(r["real"] for r in runs) / 1e6,
        "forecast_step_ms": forecast / 1e6,
        "error_ratio": forecast / real - 1,
        "each_error_ratio": each,
        "recorded_step_ms": middle["recorded"] / 1e6,
        "replayed_step_ms": middle["replayed"] / 1e6,
        "within": abs(forecast / real - 1) <= TOLERANCE_RATIO,
    }


def in_cgroup(folder: Path, out: Path, workers: int) -> dict[str, Any]:
    """Several epochs with little page cache, and the forecasts from that very run."""
    out.mkdir(parents=True)
    truth = cached_share.in_little_memory(folder, out, CACHE_BYTES, workers=workers, epochs=EPOCHS)
    inputs = inputs_of(stashtrace.analyze(stashtrace.load(out / "run"), "loader_rates"))
    share = truth.resident
    best, worst = (next(iter(cache_forecast(inputs, [share], policy).rows())) for policy in ("minio", "lru"))
    low, high = best["step_ns"] / 1e6, worst["step_ns"] / 1e6
    real = truth.step_ns / 1e6
    return {
        "workers": workers,
        "cache_bytes": CACHE_BYTES,
        "resident_share": share,
        "real_step_ms": real,
        "minio_step_ms": low,
        "lru_step_ms": high,
        "hit_ratio": inputs.measured_hit_ratio,
        "minio_hit_ratio": best["hit_ratio"],
        "lru_hit_ratio": worst["hit_ratio"],
        "within": low * (1 - TOLERANCE_RATIO) <= real <= high * (1 + TOLERANCE_RATIO),
    }


def progress_line(run: dict[str, float]) -> str:
    """One line while it runs."""
    at = {name: run[name] / 1e6 for name in ("real", "forecast", "recorded", "replayed")}
    return "  ".join(f"{name} {value:.1f} ms" for name, value in at.items())


if __name__ == "__main__":
    sys.exit(main())
