"""`stashtrace tune` on five small jobs with one planted fault each, and on a balanced one.

    python benchmarks/bench_tune.py [--job NAME ...] [--runs DIR] [--out DIR]

The jobs (`tuned_job.py`) have one rank; but for `threads`, it sleeps as if a device computed. The optimum is the best
of a grid of settings, which are recorded alternately. The job is tuned; then the job with what was kept, with the
optimum and as it was are recorded alternately. Bars: the tuned step is at most 10 % longer than that with the optimum,
the plant makes the step at least 1.3 times the optimum, and of the balanced job nothing is kept. Writes
results/tune.json, or into another folder, where rows of other jobs by the same commit stay; exit code 1 if a bar is
missed.
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
from functools import partial
from pathlib import Path
from typing import Any

import harness

sys.path.insert(0, str(harness.ROOT))

from stashtrace.cli.find_runs import read_runs
from stashtrace.lab.tune.run_job import TunedJob

JOB = Path(__file__).with_name("tuned_job.py")
STEPS, ROUNDS, GRID_ROUNDS = 60, 3, 2
#: The tuned step by the optimum at most, and the step as it was by the optimum at least.
BAR, PLANT = 1.1, 1.3
Settings = dict[str, str]
#: Name -> variables of the job as it is, and the settings of its grid on two cores.
JOBS: dict[str, tuple[Settings, list[Settings]]] = {
    "few_workers": ({}, [{"num_workers": count} for count in "346"]),
    "in_the_loop": ({}, [{"num_workers": count} for count in "124"]),
    "new_workers": ({}, [{"persistent_workers": "1"}, {"num_workers": "0"}]),
    "bursts": (
        {},
        [
            *({"num_workers": "1", "prefetch_factor": count} for count in ("8", "16")),
            *({"num_workers": count} for count in "46"),
        ],
    ),
    # As torchrun sets it for several ranks of a host.
    "threads": ({"OMP_NUM_THREADS": "1"}, [{"OMP_NUM_THREADS": count} for count in "24"]),
    "balanced": ({}, [{}]),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job", action="append", choices=list(JOBS), help="only these jobs")
    parser.add_argument("--runs", type=Path, help="keep the runs here")
    parser.add_argument("--out", type=Path, default=harness.RESULTS)
    given = parser.parse_args()
    rows = {row["name"]: row for row in harness.earlier_rows("tune", given.out)}
    with tempfile.TemporaryDirectory() as temporary:
        for name in given.job or JOBS:
            rows[name] = measure(name, (given.runs or Path(temporary)) / name)
    found = [rows[name] for name in JOBS if name in rows]
    missed = [row["name"] for row in found if not row["within_bar"]]
    command = " ".join(["python benchmarks/bench_tune.py", *(f"--job {row['name']}" for row in found)])
    figures = {"rows": found, "missed": missed}
    harness.write_result("tune", figures, command=command, modules=("numpy", "torch"), folder=given.out)
    return 1 if missed else 0


def measure(name: str, folder: Path) -> dict[str, Any]:
    """Find the optimum of a job, tune it, and compare what was kept with the optimum."""
    begun = time.monotonic()
    given, grid = JOBS[name]
    os.environ.update(given)
    command = [sys.executable, str(JOB), name]
    (folder / "compared").mkdir(parents=True)
    job = TunedJob(command, folder / "compared", until_step=STEPS, load=partial(read_runs, quiet=True))
    by_setting = alternated(job, grid, GRID_ROUNDS)
    optimum = grid[min(range(len(grid)), key=lambda number: sum(by_setting[number]))]
    words = ["tune", "--until-step", str(STEPS), "--format", "json", "-o", str(folder / "tuning")]
    tuning = [sys.executable, "-m", "stashtrace", *words, "--", *command]
    tuned = json.loads(subprocess.run(tuning, stdout=subprocess.PIPE, check=True).stdout)
    kept_ms, optimum_ms, before_ms = alternated(job, [tuned["settings"], optimum, {}], ROUNDS)
    for variable in given:
        del os.environ[variable]
    ratio, plant = sum(kept_ms) / sum(optimum_ms), sum(before_ms) / sum(optimum_ms)
    is_right = not tuned["settings"] if name == "balanced" else plant >= PLANT
    return {
        "name": name,
        "kept": tuned["settings"],
        "optimum": optimum,
        "grid": [{"settings": s, "step_ms": values} for s, values in zip(grid, by_setting, strict=True)],
        "before_ms": before_ms,
        "tuned_ms": kept_ms,
        "optimum_ms": optimum_ms,
        "ratio": ratio,
        "plant_ratio": plant,
        "within_bar": ratio <= BAR and is_right,
        "runs_count": tuned["runs_count"],
        "seconds": time.monotonic() - begun,
        "trials": [
            {
                key: trial[key]
                for key in ("name", "value", "predicted_low_ns", "predicted_high_ns", "measured", "verdict")
            }
            for trial in tuned["trials"]
        ],
    }


def alternated(job: TunedJob, settings: list[Settings], rounds: int) -> list[list[float]]:
    """Record a job with each of several settings in turn; return the mean steps in ms, by setting."""
    steps: list[list[float]] = [[] for _ in settings]
    for number in range(rounds):
        order = range(len(settings))
        for which in reversed(order) if number % 2 else order:
            steps[which].append(float(job.record(settings[which]).steps.of("step").mean()) / 1e6)
    return steps


if __name__ == "__main__":
    sys.exit(main())
