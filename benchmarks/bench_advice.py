"""Is the advice to shard the optimizer true? Predicted from the recording of the plain job, then really done.

    python benchmarks/bench_advice.py [--repetitions 5]

`examples/sharded_adam.py` trains 20 M parameters with Adam on two ranks over gloo. Each repetition records the job
whose ranks all do the whole update, and predicts from that alone (`stashtrace analyze overlap_advice`); then the job
runs untraced as it was, with the update sharded, and with torch's fused Adam, timed by its clock. The order of
the three turns with the repetition. Judged are medians over repetitions, each of a run's median step without the first
five. Writes results/advice.md and .json; exit code 1 if the measured step lies outside the prediction by more than
the runs themselves differ.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import harness

import stashtrace

JOB = harness.ROOT / "examples" / "sharded_adam.py"
WARMUP_STEPS = 5
#: Configuration -> arguments of the job; the first is the one that is recorded.
CONFIGURATIONS = {
    "plain": ("--optimizer", "replicated"),
    "split_reorder": ("--optimizer", "sharded"),
    "fuse": ("--optimizer", "replicated", "--fused"),
}


def launched(folder: Path, steps: int, arguments: tuple[str, ...], *, traced: bool) -> None:
    """Run the job of two ranks, one thread each; its times go to ``folder/truth``, a recording to ``folder/run``."""
    tracer = [sys.executable, "-m", "stashtrace", "run", "--out", str(folder / "run"), "--"] if traced else []
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    job = [str(JOB), "--steps", str(steps), "--truth", str(folder / "truth"), *arguments]
    environment = dict(os.environ, PYTHONPATH=str(harness.ROOT), OMP_NUM_THREADS="1")
    done = subprocess.run(
        [*tracer, *launcher, *job], env=environment, capture_output=True, text=True, check=False, timeout=170
    )
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode}\n{done.stderr[-3000:]}")


def step_ms(folder: Path) -> float:
    """Median step of rank 0 by the job's clock."""
    lines = (folder / "truth" / "rank-0.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines][WARMUP_STEPS:]
    return statistics.median((row["end_ns"] - row["begin_ns"]) / 1e6 for row in rows)


def predicted_ms(folder: Path) -> dict[str, tuple[float, float]]:
    """Transformation -> least and most that the recording says it saves."""
    table = stashtrace.analyze(stashtrace.load(folder / "run"), "overlap_advice")
    return {
        row["transformation"]: (row["saving_low_ns"] / 1e6, row["saving_high_ns"] / 1e6)
        for row in table.rows()
        if row["op"] == "all_reduce" and row["validity"] != "none"
    }


def main() -> int:
    """Run, predict, compare, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", type=Path, default=harness.RESULTS)
    options = parser.parse_args()
    steps: dict[str, list[float]] = {name: [] for name in CONFIGURATIONS}
    savings: dict[str, list[tuple[float, float]]] = {"split_reorder": [], "fuse": []}
    recorded: list[float] = []
    names = list(CONFIGURATIONS)
    with tempfile.TemporaryDirectory(prefix="stashtrace-advice-") as room:
        for number in range(options.repetitions):
            folder = Path(room) / f"{number}-recorded"
            launched(folder, options.steps, CONFIGURATIONS["plain"], traced=True)
            recorded.append(step_ms(folder))
            for name, saving in predicted_ms(folder).items():
                savings.setdefault(name, []).append(saving)
            for name in names[number % 3 :] + names[: number % 3]:
                folder = Path(room) / f"{number}-{name}"
                launched(folder, options.steps, CONFIGURATIONS[name], traced=False)
                steps[name].append(step_ms(folder))
            reported = "  ".join(f"{name} {times[-1]:.1f} ms" for name, times in steps.items())
            print(f"repetition {number + 1}  recorded {recorded[-1]:.1f} ms  {reported}", file=sys.stderr)
    rows = [judged(name, steps, savings[name]) for name in ("split_reorder", "fuse")]
    quiet = recorded.index(min(recorded))
    for row in rows:
        row |= fastest(row["transformation"], steps, savings[row["transformation"]][quiet])
    command = f"python benchmarks/bench_advice.py --repetitions {options.repetitions}"
    figures = {
        "recorded_step_ms": harness.summary(recorded),
        "steps_ms": {name: harness.summary(times) for name, times in steps.items()},
        "rows": rows,
    }
    text = page(rows, steps, recorded, command)  # before a written result makes the checkout a changed one
    harness.write_result("advice", figures, command=command, modules=("torch", "numpy"), folder=options.out)
    (options.out / "advice.md").write_text(text, encoding="utf-8")
    for row in rows:
        print(row)
    return 0 if all(row["within"] for row in rows) else 1


def judged(name: str, steps: dict[str, list[float]], savings: list[tuple[float, float]]) -> dict[str, Any]:
    """Predicted and measured step of one transformation, and whether they differ by more than the runs do."""
    plain, real = (statistics.median(steps[which]) for which in ("plain", name))
    low, high = (statistics.median(pair[end] for pair in savings) for end in (0, 1))
    least, most = plain - high, plain - low
    spread = max(max(times) - min(times) for times in (steps["plain"], steps[name]))
    away = max(least - real, real - most, 0.0)
    return {
        "transformation": name,
        "plain_ms": plain,
        "predicted_low_ms": least,
        "predicted_high_ms": most,
        "measured_ms": real,
        "outside_ms": away,
        "outside_ratio": away / real,
        "spread_ms": spread,
        "within": away <= spread,
    }


def fastest(name: str, steps: dict[str, list[float]], saving: tuple[float, float]) -> dict[str, float]:
    """The same of the fastest run of each configuration, by the fastest recording: other jobs only add time."""
    plain = min(steps["plain"])
    return {
        "fastest_plain_ms": plain,
        "fastest_predicted_low_ms": plain - saving[1],
        "fastest_predicted_high_ms": plain - saving[0],
        "fastest_measured_ms": min(steps[name]),
    }


def page(rows: list[dict[str, Any]], steps: dict[str, list[float]], recorded: list[float], command: str) -> str:
    """The table for readers."""
    lines = [
        "# Advice about the optimizer, predicted and done",
        "",
        "`examples/sharded_adam.py`: 20 M parameters, Adam, two ranks over gloo on one host, one thread each. Each"
        " repetition predicts the step from the recording of the plain job, then runs it plain, sharded and with"
        " torch's fused Adam, untraced. Medians over repetitions, lowest to highest run in brackets.",
        "",
        f"`{command}`, commit {harness.versions('torch')['commit']}, {harness.machine()['cores_count']} cores.",
        "",
        "| transformation | plain step, ms | predicted, ms | measured, ms | outside | runs differ by, ms |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        own = steps[row["transformation"]]
        plain = f"{row['plain_ms']:.1f} ({min(steps['plain']):.1f} to {max(steps['plain']):.1f})"
        measured = f"{row['measured_ms']:.1f} ({min(own):.1f} to {max(own):.1f})"
        lines.append(
            f"| {row['transformation']} | {plain} | {row['predicted_low_ms']:.1f} to {row['predicted_high_ms']:.1f}"
            f" | {measured} | {row['outside_ratio']:.1%} | {row['spread_ms']:.1f} |"
        )
    lines += [
        "",
        f"Steps of the recorded runs, which the predictions are from: {statistics.median(recorded):.1f} ms"
        f" ({min(recorded):.1f} to {max(recorded):.1f}).",
        "",
    ]
    for row in rows:
        lines.append(
            f"- `{row['transformation']}`: {verdict(row)} Of the fastest runs: {row['fastest_plain_ms']:.1f} ms plain,"
            f" {row['fastest_predicted_low_ms']:.1f} to {row['fastest_predicted_high_ms']:.1f} ms predicted,"
            f" {row['fastest_measured_ms']:.1f} ms measured."
        )
    return "\n".join(lines) + "\n"


def verdict(row: dict[str, Any]) -> str:
    """One sentence on a row."""
    if row["outside_ms"] == 0:
        return "the measured step lies inside the prediction."
    if row["within"]:
        return (
            f"the measured step lies {row['outside_ms']:.1f} ms outside the prediction, less than runs of one"
            f" configuration differ among themselves ({row['spread_ms']:.1f} ms): these runs do not show how far it is"
            " off."
        )
    return f"the measured step lies {row['outside_ms']:.1f} ms outside the prediction, more than runs differ."


if __name__ == "__main__":
    sys.exit(main())
