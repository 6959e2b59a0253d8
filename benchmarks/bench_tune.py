"""`stashtrace tune` on five small jobs with one planted fault each, and on a balanced one.

    python benchmarks/bench_tune.py [--job NAME ...] [--runs DIR] [--out DIR]

The jobs (`tuned_job.py`) have one rank, which sleeps as if a device computed. Each is tuned; then the job with what was
kept and the job with the planted optimum are recorded by turns. Bars: the tuned step is at most 10 % longer than that
with the optimum, and of the balanced job nothing is kept. Writes results/tune.json, or into another folder, where rows
of other jobs by the same commit stay; exit code 1 if a bar is missed.
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
STEPS, ROUNDS, BAR = 60, 3, 1.1
#: Name -> variables of the job as it is, and the settings of the planted optimum on two cores.
JOBS: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "few_workers": ({}, {"num_workers": "4"}),
    "in_the_loop": ({}, {"num_workers": "2"}),
    "new_workers": ({}, {"persistent_workers": "1"}),
    "bursts": ({}, {"num_workers": "1", "prefetch_factor": "16"}),
    "threads": ({"OMP_NUM_THREADS": "16"}, {"OMP_NUM_THREADS": "2"}),
    "balanced": ({}, {}),
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
    """Tune a job, and compare what was kept with the planted optimum."""
    begun = time.monotonic()
    given, optimum = JOBS[name]
    os.environ.update(given)
    words = ["tune", "--until-step", str(STEPS), "--format", "json", "-o", str(folder / "tuning")]
    command = [sys.executable, str(JOB), name]
    tuning = [sys.executable, "-m", "stashtrace", *words, "--", *command]
    done = subprocess.run(tuning, stdout=subprocess.PIPE, check=True)
    tuned = json.loads(done.stdout)
    (folder / "compared").mkdir(parents=True)
    job = TunedJob(command, folder / "compared", until_step=STEPS, load=partial(read_runs, quiet=True))
    steps: dict[str, list[float]] = {"tuned": [], "optimum": []}
    for number in range(ROUNDS):
        for which in ("tuned", "optimum") if number % 2 else ("optimum", "tuned"):
            run = job.record(tuned["settings"] if which == "tuned" else optimum)
            steps[which].append(float(run.steps.of("step").mean()))
    for variable in given:
        del os.environ[variable]
    ratio = sum(steps["tuned"]) / sum(steps["optimum"])
    return {
        "name": name,
        "kept": tuned["settings"],
        "step_before_ms": tuned["step_before_ns"] / 1e6,
        "tuned_ms": [value / 1e6 for value in steps["tuned"]],
        "optimum_ms": [value / 1e6 for value in steps["optimum"]],
        "ratio": ratio,
        "within_bar": ratio <= BAR and (name != "balanced" or not tuned["settings"]),
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


if __name__ == "__main__":
    sys.exit(main())
