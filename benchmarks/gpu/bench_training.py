"""What tracing costs a training step on a GPU, compared with torch.profiler on the same job.

    python benchmarks/gpu/bench_training.py [--rounds 5] [--models resnet gpt] [--variants default] [--out FOLDER]

Each round runs every variant once, in changing order: untraced, stashtrace as it is by default, the same without device
events, deep mode (every kernel, of all steps), and torch.profiler. The figure is the ratio of the median block of a
variant to that of the untraced run of its round; the bar for the default mode is 1.01, the goal 1.003. The result of a
model is written again after each round, so an interrupted series (exit code 130) leaves the rounds that were whole.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT)]

import harness  # noqa: E402

WORKLOAD = Path(__file__).with_name("workloads.py")
HOST_ONLY = "posix_io,waits,proc,torch_dataloader,torch_step,torch_distributed,annotations"
#: Variant -> options of `stashtrace run` (None: untraced) and of the workload.
VARIANTS: dict[str, tuple[list[str] | None, list[str]]] = {
    "untraced": (None, []),
    "default": ([], []),
    "host_only": (["--collectors", HOST_ONLY], []),
    "kernels": (["--kernels", "--kernels-steps", "0:1000000"], []),
    "torch_profiler": (None, ["--profiler", "torch"]),
}


def run(model: str, variant: str, folder: Path, options: argparse.Namespace) -> float:
    """Seconds of the median block of one run."""
    tracer, extra = VARIANTS[variant]
    times = folder / "times.json"
    command = [sys.executable, str(WORKLOAD), model, "--steps", str(options.steps), "--times", str(times), *extra]
    if options.cpu:
        command += ["--device", "cpu", "--tiny", "--workers", "1", "--warmup", "2"]
    if tracer is not None:
        command = [
            sys.executable,
            "-m",
            "stashtrace",
            "run",
            "--no-merge",
            "--out",
            str(folder / "run"),
            *tracer,
            "--",
            *command,
        ]
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise RuntimeError(f"{model} {variant}: exit code {done.returncode}\n{done.stderr[-3000:]}")
    return statistics.median(json.loads(times.read_text(encoding="utf-8")))


def write(model: str, seconds: dict[str, list[float]], options: argparse.Namespace) -> None:
    """Write the result of a model's rounds so far; each figure's ``count`` says how many they are."""
    figures = {"step_seconds_untraced": harness.summary(seconds["untraced"]), "steps_count": options.steps}
    for variant in list(seconds)[1:]:
        ratios = [own / bare for own, bare in zip(seconds[variant], seconds["untraced"], strict=True)]
        figures[f"{variant}_ratio"] = harness.summary(ratios)
    if options.cpu:
        print(json.dumps({model: harness.rounded(figures)}, indent=2))
        return
    variants = " ".join(list(seconds)[1:])
    command = f"python benchmarks/gpu/bench_training.py --rounds {options.rounds} --steps {options.steps}"
    command += f" --models {model} --variants {variants}"
    harness.write_result(f"training_{model}", figures, command=command, modules=("torch",), folder=options.out)


def measure(model: str, variants: list[str], options: argparse.Namespace) -> None:
    """Run the rounds of one model."""
    seconds: dict[str, list[float]] = {variant: [] for variant in variants}
    for number in range(options.rounds):
        own: dict[str, float] = {}
        for variant in random.Random(number).sample(variants, len(variants)):
            with tempfile.TemporaryDirectory(prefix="stashtrace-gpu-") as folder:
                own[variant] = run(model, variant, Path(folder), options)
        for variant in variants:
            seconds[variant].append(own[variant])
        reported = "  ".join(f"{v} {own[v] * 1e3:.2f} ms" for v in variants)
        print(f"{model} round {number + 1}/{options.rounds}: {reported}", file=sys.stderr, flush=True)
        write(model, seconds, options)


def main() -> int:
    """Run the rounds, write one result per model; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--models", nargs="+", choices=("resnet", "gpt"), default=["resnet", "gpt"])
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--cpu", action="store_true", help="tiny models without a device: tries the script, no result")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results"))
    options = parser.parse_args()
    variants = ["untraced", *(v for v in options.variants if v != "untraced")]
    try:
        for model in options.models:
            measure(model, variants, options)
    except KeyboardInterrupt:
        print("interrupted; the rounds that were whole are written", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
