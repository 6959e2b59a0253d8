"""What tracing costs the example job: paired, interleaved runs, and the tracer's share of the CPU.

    python benchmarks/bench_overhead.py [--pairs 6] [--steps 400]

Three answers, because on a shared machine the first one alone says little. (1) The ratio traced / untraced of the
CPU time and the wall time of the training loop, per pair, with a bootstrap interval over pairs; the order inside a
pair alternates. (2) What starting costs, once per job: the same pairs with one step only, in CPU seconds. A job of
seconds would show little else in its ratio, a job of hours would not see it. (3) The tracer's CPU time as the
run itself recorded it (its threads by the kernel's clock, its probes by their clock, records of hooks x the cost of
one), in percent of the job's CPU time.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import harness

ROOT = Path(__file__).resolve().parents[1]
LAUNCHER = ROOT / "tests" / "ground_truth" / "launch_ranks.py"
EXAMPLE = ROOT / "examples" / "train_ddp.py"
sys.path.insert(0, str(ROOT))


def main() -> None:
    """Run the pairs, write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--out", type=Path, default=harness.RESULTS)
    options = parser.parse_args()
    cpu_ratios, loop_ratios, shares, starts_s = [], [], [], []
    with tempfile.TemporaryDirectory(prefix="stashtrace-overhead-") as name:
        folder = Path(name)
        job(folder, folder / "warm", 1, traced=False)
        for pair in range(options.pairs):
            figures, short = {}, {}
            for traced in (False, True) if pair % 2 else (True, False):
                out = folder / f"{pair}-{traced}"
                short[traced] = job(folder, folder / f"{pair}-{traced}-start", 1, traced=traced)
                figures[traced] = job(folder, out, options.steps, traced=traced)
                if traced:
                    shares.append(own_share_percent(out / "run"))
            starts_s.append(short[True][0] - short[False][0])
            cpu_ratios.append(figures[True][0] / figures[False][0])
            loop_ratios.append(figures[True][1] / figures[False][1])
            print(
                f"pair {pair + 1}/{options.pairs}  CPU {cpu_ratios[-1]:.4f}  loop {loop_ratios[-1]:.4f}"
                f"  start {starts_s[-1]:.3f} s  own share {shares[-1]:.2f} %",
                file=sys.stderr,
            )
    result = {
        "cpu_ratio": harness.summary(cpu_ratios),
        "cpu_ratio_interval_95": interval(cpu_ratios),
        "loop_ratio": harness.summary(loop_ratios),
        "loop_ratio_interval_95": interval(loop_ratios),
        "start_cpu_s": harness.summary(starts_s),
        "start_cpu_s_interval_95": interval(starts_s),
        "own_cpu_share_percent": harness.summary(shares),
        "steps_count": options.steps,
    }
    command = f"python benchmarks/bench_overhead.py --pairs {options.pairs} --steps {options.steps}"
    harness.write_result("overhead", result, command=command, modules=("torch", "numpy"), folder=options.out)
    print(json.dumps(harness.rounded(result), indent=2))


def job(folder: Path, out: Path, steps: int, *, traced: bool) -> tuple[float, float]:
    """CPU seconds of the whole process tree and seconds of the training loop (rank 0, after three steps)."""
    out.mkdir()
    command = [
        sys.executable,
        str(LAUNCHER),
        "--",
        sys.executable,
        str(EXAMPLE),
        "--data",
        str(folder / "data"),
        "--steps",
        str(steps),
        "--log-every",
        "1000",
        "--truth",
        str(out / "truth"),
    ]
    if traced:
        command = [sys.executable, "-m", "stashtrace", "run", "--no-merge", "--out", str(out / "run"), "--", *command]
    environment = dict(os.environ, PYTHONPATH=str(ROOT))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, cwd=out, env=environment, capture_output=True, text=True, check=False, timeout=600)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode}\n{done.stderr[-3000:]}")
    rows = [json.loads(line) for line in (out / "truth" / "rank-0.jsonl").read_text().splitlines()]
    loop_ns = rows[-1]["end_ns"] - rows[min(3, len(rows) - 1)]["begin_ns"]
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, loop_ns / 1e9


def interval(ratios: list[float]) -> tuple[float, float]:
    """95 % bootstrap interval of the median over pairs."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(4000))
    return medians[100], medians[3899]


def own_share_percent(run_directory: Path) -> float:
    """Tracer's CPU time in percent of the job's, as the summary of the run states it."""
    import stashtrace
    from stashtrace.analysis.findings.rules.trust import own_cost

    trace = stashtrace.load(run_directory)
    return 100 * own_cost(trace).least_ratio


if __name__ == "__main__":
    main()
