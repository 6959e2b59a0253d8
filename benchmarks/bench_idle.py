"""What `stashtrace run --idle` costs a job while it records nothing: CPU time in pairs, and instructions.

    python benchmarks/bench_idle.py [--pairs 5] [--jobs example,reads,small_steps] [--instructions]

CPU time: of all ranks and their workers, from the tenth step to the last, traced over untraced, in pairs whose order
alternates. It spreads by more than what is to be measured, so the spread is given too. The medians of the steps of
small jobs spread less: their difference is what a step costs.

Instructions (``--instructions``, needs valgrind): of one process, counted by cachegrind, at two numbers of steps, so
that the start is left out; the recorder's thread, which wakes once a second, is left out here and measured asleep:
its CPU time in a process that does nothing. Cachegrind knows no AVX-512, so kernels of torch have more instructions
than they would have; all other parts are the same.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import harness
from bench_overhead import LAUNCHER, interval

sys.path.insert(0, str(harness.ROOT))
from stashtrace.record.environment import traced_environment
from stashtrace.record.follower import make_control
from stashtrace.record.options import RecordOptions

JOB = Path(__file__).resolve().parent / "idle_job.py"
#: Steps of a job in a pair.
STEPS = {"example": 300, "reads": 1000, "small_steps": 20_000, "small_ddp": 5_000}
#: Of a job whose instructions are counted: two numbers of steps.
COUNTED = {"reads": (20, 60), "small_steps": (50, 250), "small_ddp": (20, 80), "example": (12, 32)}
ASLEEP_S = 20


def main() -> None:
    """Measure, print, write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--jobs", default="example,reads,small_steps")
    parser.add_argument("--instructions", action="store_true")
    parser.add_argument("--out", type=Path, default=harness.RESULTS)
    options = parser.parse_args()
    jobs = options.jobs.split(",")
    with tempfile.TemporaryDirectory(prefix="stashtrace-idle-") as name:
        folder = Path(name)
        if options.instructions:
            figures = {job: instructions(folder, job, options.pairs) for job in jobs}
            result = {**figures, **asleep(folder)}
        else:
            result = {job: pairs(folder, job, options.pairs) for job in jobs}
    words = f"--pairs {options.pairs} --jobs {options.jobs}" + (" --instructions" if options.instructions else "")
    harness.write_result(
        "idle_instructions" if options.instructions else "idle",
        result,
        command=f"python benchmarks/bench_idle.py {words}",
        modules=("torch",),
        folder=options.out,
    )
    print(json.dumps(harness.rounded(result), indent=2))


# CPU time ---------------------------------------------------------------------------------------


def pairs(folder: Path, job: str, count: int) -> dict[str, object]:
    """Ratios of CPU time, traced over untraced, of that number of pairs."""
    ratios, step_ns, cpu_ns, added_ns = [], [], [], []
    run(folder, job, folder / f"{job}-warm", 20, traced=False)
    figures: dict[bool, Used] = {}
    for pair, traced in harness.in_pairs(count):
        used = figures[traced] = run(folder, job, folder / f"{job}-{pair}-{traced}", STEPS[job], traced=traced)
        if not traced:
            step_ns.append(used.median_step_ns)
            cpu_ns.append(used.cpu_ns / STEPS[job])
        if len(figures) == 2:
            ratios.append(figures[True].cpu_ns / figures[False].cpu_ns)
            added_ns.append(figures[True].median_step_ns - figures[False].median_step_ns)
            figures = {}
            print(f"{job}: pair {pair + 1}/{count}  CPU {ratios[-1]:.4f}", file=sys.stderr)
    return {
        "cpu_ratio": harness.summary(ratios),
        "cpu_ratio_interval_95": interval(ratios),
        "added_of_median_step_ns": harness.summary(added_ns),
        "untraced_median_step_ns": harness.summary(step_ns),
        "untraced_cpu_of_step_ns": harness.summary(cpu_ns),
        "steps_count": STEPS[job],
    }


class Used(NamedTuple):
    """CPU time of all ranks, and the median step of the first one."""

    cpu_ns: int
    median_step_ns: int


def run(folder: Path, job: str, out: Path, steps: int, *, traced: bool) -> Used:
    """Run a job."""
    out.mkdir()
    command = [sys.executable, str(JOB), job, str(steps), str(out / "cpu"), str(folder)]
    if job == "example":
        command = [sys.executable, str(LAUNCHER), "--", *command]
    if traced:
        words = ["-m", "stashtrace", "run", "--idle", "--no-merge", "--out", str(out / "run"), "--"]
        command = [sys.executable, *words, *command]
    environment = dict(os.environ, PYTHONPATH=str(harness.ROOT), OMP_NUM_THREADS="1")
    done = subprocess.run(command, cwd=out, env=environment, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode}\n{done.stderr[-3000:]}")
    rows = [[int(word) for word in path.read_text().split()] for path in sorted(out.glob("cpu-*"))]
    return Used(sum(row[0] for row in rows), rows[0][2])


# Instructions -----------------------------------------------------------------------------------


def instructions(folder: Path, job: str, repetitions: int) -> dict[str, object]:
    """Instructions of a step, untraced and in an idle run, each the median of some differences."""
    few, many = COUNTED[job]
    count(folder, job, few, traced=False)  # writes its data
    found = {}
    for traced in (False, True):
        per_step = []
        for _ in range(repetitions):
            grown = count(folder, job, many, traced=traced) - count(folder, job, few, traced=traced)
            per_step.append(grown / (many - few))
        found[traced] = per_step
        print(f"{job}: traced {traced}: {per_step}", file=sys.stderr)
    added = statistics.median(found[True]) - statistics.median(found[False])
    return {
        "untraced_of_step": harness.summary(found[False]),
        "idle_of_step": harness.summary(found[True]),
        "added_of_step": added,
        "added_ratio": added / statistics.median(found[False]),
    }


def count(folder: Path, job: str, steps: int, *, traced: bool) -> int:
    """Instructions of a whole process, user mode."""
    environment = dict(os.environ, PYTHONPATH=str(harness.ROOT), OMP_NUM_THREADS="1", PYTHONHASHSEED="0")
    environment |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    with tempfile.TemporaryDirectory(dir=folder) as name:
        if traced:
            environment = idle_environment(environment, Path(name), drainer="off")
        words = ["valgrind", "--tool=cachegrind", "--cache-sim=no", f"--cachegrind-out-file={name}/out"]
        words += [sys.executable, str(JOB), job, str(steps), f"{name}/cpu", str(folder)]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    found = re.search(r"I\s+refs:\s+([\d,]+)", done.stderr)
    if done.returncode or found is None:
        raise RuntimeError(f"exit code {done.returncode}\n{done.stderr[-3000:]}")
    return int(found[1].replace(",", ""))


def idle_environment(environment: dict[str, str], run_dir: Path, **more: str) -> dict[str, str]:
    """The environment of a process of an idle run, without a launcher."""
    make_control(run_dir)
    traced = traced_environment(environment, RecordOptions(idle=True), run_dir=run_dir, run_id="1d1e")
    return dict(traced) | {f"STASHTRACE_{name.upper()}": value for name, value in more.items()}


def asleep(folder: Path) -> dict[str, object]:
    """CPU time of a process that has loaded torch and does nothing, a second."""
    code = (
        "import sys, time, torch; time.sleep(2); before = time.process_time_ns(); "
        f"time.sleep({ASLEEP_S}); print((time.process_time_ns() - before) / {ASLEEP_S})"
    )
    found = []
    for number in range(3):
        run_dir = folder / f"asleep-{number}"
        run_dir.mkdir()
        environment = idle_environment(dict(os.environ, PYTHONPATH=str(harness.ROOT)), run_dir)
        words = [sys.executable, "-c", code]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
        found.append(float(done.stdout))
    return {"asleep_cpu_ns_of_second": harness.summary(found)}


if __name__ == "__main__":
    main()
