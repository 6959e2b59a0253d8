"""What burnt CPU costs the job of the five steps by its clock, untraced and traced, and why that varies.

    python benchmarks/bench_burnt_job.py [--repetitions 5] [--steps 60]

Each rank of `tests/ground_truth/five_steps_job.py` has one processor. The job runs alternately without and with CPU
burnt for each sample, untraced and traced, with gloo's threads at the priority of the training thread and above it.
`growth` is what its step grew by beyond what was burnt (the slower rank), as a share of that; `backward_ms` has the
all-reduce.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean, median
from typing import Any

import harness

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = map(str, (ROOT / "tests", ROOT / "tests/support"))

from ground_truth.five_steps_truth import BACKWARD, BURNT, END, rows_of_rank  # noqa: E402

JOB = ROOT / "tests" / "ground_truth" / "five_steps_job.py"
BURN_MS, WARMUP, RANKS = 6.0, 10, 2
PRIORITIES = {"same": ("--same-priority",), "above": ()}


def run(folder: Path, name: str, traced: bool, steps: int, words: tuple[str, ...]) -> dict[str, float]:
    """One run: means over its steps, in ms, of the slower rank."""
    out = folder / name
    # Each rank is kept on the processor of its number, as `characterize` does.
    job = [
        "torchrun",
        "--standalone",
        "--nproc-per-node",
        str(RANKS),
        "--no-python",
        "bash",
        "-c",
        'exec taskset -c "$LOCAL_RANK" "$@"',
        "job",
        sys.executable,
        str(JOB),
        "--data",
        str(folder / "data"),
        "--steps",
        str(steps),
        *words,
    ]
    tracer = [sys.executable, "-m", "stashtrace", "run", "--out", str(out), "--"]
    paths = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    environment = os.environ | paths | {"OMP_NUM_THREADS": "1"}
    if not traced:
        environment["STASHTRACE_DIR"] = str(out)  # where the job writes what its clock says; nothing is preloaded
    done = subprocess.run(
        [*(tracer if traced else []), *job], env=environment, check=False, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    ranks = [rows_of_rank(Path(f"{out}.truth-{rank}")) for rank in range(RANKS)]
    whole = ranks[0][-1][END] - ranks[0][WARMUP - 1][END]

    def slower(column: int) -> float:
        return fmean(max(rank[i][column] for rank in ranks) for i in range(WARMUP, steps)) / 1e6

    return {"step_ms": whole / (steps - WARMUP) / 1e6, "burnt_ms": slower(BURNT), "backward_ms": slower(BACKWARD)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = [
        {"priority": priority, "traced": traced, "runs": {"without": [], "burnt": []}}
        for priority, traced in itertools.product(PRIORITIES, (False, True))
    ]
    with tempfile.TemporaryDirectory(dir=ROOT, prefix=".truth-") as name:
        for number in range(options.repetitions):
            for place, (row, case) in enumerate(itertools.product(rows, ("without", "burnt"))):
                burn = ("--burn-ms", str(BURN_MS)) if case == "burnt" else ()
                words = (*PRIORITIES[row["priority"]], *burn)
                row["runs"][case].append(run(Path(name), f"{number}-{place}", row["traced"], options.steps, words))
    for row in rows:
        without, burnt = row["runs"]["without"], row["runs"]["burnt"]
        injected = median(r["burnt_ms"] for r in burnt) - median(r["burnt_ms"] for r in without)
        moved = median(r["step_ms"] for r in burnt) - median(r["step_ms"] for r in without)
        row |= {"burnt_ms": injected, "step_grew_ms": moved, "growth": moved / injected - 1}
        row |= {f"backward_{case}_ms": median(r["backward_ms"] for r in row["runs"][case]) for case in row["runs"]}
    asked = " ".join(["python benchmarks/bench_burnt_job.py", *sys.argv[1:]])
    harness.write_result("burnt_job", {"cases": rows}, command=asked, modules=("numpy", "torch"))


if __name__ == "__main__":
    main()
