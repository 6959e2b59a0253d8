"""Do the five steps find what was injected, and nothing else? Does a step that is measured twice differ from itself?

    python benchmarks/characterize_truth.py [--series 3] [--repeat 5] [--iterations 40] [--null 10 [--null-only]]

A job without overlap (`tests/ground_truth/five_steps_job.py`) is characterised as it is, and again with CPU burnt in
its data set, with a disk of limited speed, and with a slower link. The difference of each stall between the two
answers is compared with the injected time by the job's clock (of the link: bytes by rate). Needs root for the disk and
the link; what cannot be injected here is named in the result.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import harness

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = map(str, (ROOT / "tests", ROOT / "tests/support"))

from ground_truth.five_steps_truth import BURNT, READ, exposed_ms  # noqa: E402
from ground_truth.machine import Missing, slow_disk  # noqa: E402

JOB = ROOT / "tests" / "ground_truth" / "five_steps_job.py"
BATCH, FILE_BYTES, RANKS, WIDTH = 4, 256 << 10, 2, 512
BURN_MS = 6.0
WARMUP = 10
DISK_BYTES_PER_S = 20_000_000
LINKS = {"base": "1gbit", "slow": "200mbit"}
GRADIENT_BYTES = 4 * (256 * WIDTH + WIDTH + WIDTH * WIDTH + WIDTH)
STALLS = ("interconnect", "network", "prep", "fetch")


def command(data: Path, *more: object) -> list[str]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    return [*torchrun, str(JOB), "--data", str(data), "--width", str(WIDTH), *map(str, more)]


def characterize(
    out: Path, words: list[str], options: argparse.Namespace, *more: str, join: Callable[[], None] | None = None
) -> dict[str, Any]:
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    run = [
        sys.executable,
        "-m",
        "stashtrace",
        "characterize",
        "--out",
        str(out),
        "--format",
        "json",
        "--repeat",
        str(options.repeat),
        "--iterations",
        str(options.iterations),
        "--warmup",
        str(WARMUP),
        *more,
        "--",
        *words,
    ]
    done = subprocess.run(run, env=environment, capture_output=True, text=True, check=False, preexec_fn=join)
    if done.returncode:
        raise SystemExit(done.stderr)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def lost_ms(answer: dict[str, Any]) -> dict[str, float]:
    return {name: answer["stalls"][name]["lost_ns"] / 1e6 for name in STALLS if name in answer["stalls"]}


def injected(options: argparse.Namespace, folder: Path, data: Path) -> list[dict[str, Any]]:
    link = ("--emulate-network", LINKS["base"])
    base = characterize(folder / "base", command(data), options, *link)

    def own_clock(case: str, step: int, column: int) -> float:
        return exposed_ms(folder / case, step, (column,), WARMUP, options.iterations)

    def from_disk(case: str) -> float:
        return own_clock(case, 3, READ) - own_clock(case, 4, READ)

    cases: dict[str, tuple[str, Callable[[], float], Callable[[], dict[str, Any]]]] = {
        "burnt CPU": (
            "prep",
            lambda: own_clock("cpu", 4, BURNT) - own_clock("base", 4, BURNT),
            lambda: characterize(folder / "cpu", command(data, "--burn-ms", BURN_MS), options, *link),
        ),
        "slow disk": (
            "fetch",
            lambda: from_disk("disk") - from_disk("base"),
            lambda: throttled(options, folder, data, link),
        ),
        "slow link": (
            "network",
            lambda: link_ms("slow") - link_ms("base"),
            lambda: characterize(folder / "link", command(data), options, "--emulate-network", LINKS["slow"]),
        ),
    }
    rows = []
    for name, (stall, truth, run) in cases.items():
        try:
            answer = run()
        except Missing as missing:
            rows.append({"injected": name, "missing": str(missing)})
            continue
        before, after = lost_ms(base), lost_ms(answer)
        truth_ms = truth()
        moved = {s: after[s] - before[s] for s in STALLS if s in after and s in before}
        rows.append(
            {
                "injected": name,
                "stall": stall,
                "injected_ms": truth_ms,
                "moved_ms": moved,
                "error_ratio": (moved.get(stall, 0.0) - truth_ms) / truth_ms,
                "elsewhere_ratio": max((abs(v) for s, v in moved.items() if s != stall), default=0.0) / truth_ms,
                "steps_ms": {k: v["value_ns"] / 1e6 for k, v in answer["steps"].items() if v["value_ns"]},
            }
        )
        print(json.dumps(rows[-1]), file=sys.stderr)
    return rows


def spread(series: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """What all series say of each fault: the median of its error, the least and the largest, and the most elsewhere."""
    rows = []
    for same in zip(*series, strict=True):
        found = [row for row in same if "missing" not in row]
        errors = sorted(row["error_ratio"] for row in found)
        row = {"injected": same[0]["injected"], "series": len(found)}
        if found:
            row |= {
                "error_ratio": median(errors),
                "error_ratio_min": errors[0],
                "error_ratio_max": errors[-1],
                "elsewhere_ratio_max": max(row["elsewhere_ratio"] for row in found),
            }
        rows.append(row)
    return rows


def link_ms(name: str) -> float:
    """Ring all-reduce of two ranks: each sends its gradients once."""
    rate = {"mbit": 1e6, "gbit": 1e9}[LINKS[name][-4:]] * float(LINKS[name][:-4])
    return GRADIENT_BYTES * 8 / rate * 2 * (RANKS - 1) / RANKS * 1e3


def throttled(options: argparse.Namespace, folder: Path, data: Path, link: tuple[str, ...]) -> dict[str, Any]:
    with slow_disk(data, DISK_BYTES_PER_S) as limit:
        limit.begin()
        return characterize(folder / "disk", command(data), options, *link, join=limit.join)


def null_test(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Two characterizations of one job: what one says of a step, as if it were the other's next step."""
    from stashtrace.lab.characterize.run_figures import stalls

    answers = [
        characterize(folder / f"null{i}", command(folder / "data"), options, "--emulate-network", LINKS["base"])
        for i in range(2 * options.null)
    ]
    rows, held, agree = [], 0, dict.fromkeys(STALLS, 0)
    for first, second in zip(answers[::2], answers[1::2], strict=True):
        runs = [[run["step_ns"] for run in answer["steps"]["t2_ns"]["runs"]] for answer in (first, second)]
        twice = stalls({1: runs[0], 2: runs[1]})["interconnect"].clean
        held += twice.holds_zero
        intervals = {name: [interval(answer, name) for answer in (first, second)] for name in STALLS}
        for name, (a, b) in intervals.items():
            agree[name] += bool(a and b and a[0] <= b[1] and b[0] <= a[1])
        rows.append({"one_step_twice": [twice.low, twice.high], **intervals})
    return {"repetitions": options.null, "intervals_with_zero": held, "intervals_that_meet": agree, "pairs": rows}


def interval(answer: dict[str, Any], stall: str) -> list[float] | None:
    said = answer["stalls"].get(stall)
    return [said["low"], said["high"]] if said and said["low"] is not None else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--series", type=int, default=1, help="times that all faults are injected")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=40)
    parser.add_argument("--null", type=int, default=0, help="pairs of characterizations of the same job")
    parser.add_argument("--null-only", action="store_true", help="inject nothing")
    parser.add_argument("--folder", type=Path, help="on a disk, not in memory")
    parser.add_argument("--name", default="characterize_truth")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(dir=ROOT, prefix=".truth-")))
        result: dict[str, Any] = {}
        if not options.null_only:
            series = [injected(options, folder / str(number), folder / "data") for number in range(options.series)]
            result = {"injected": spread(series), "series": series}
        if options.null or options.null_only:
            result["null"] = null_test(options, folder)
    asked = " ".join(["python benchmarks/characterize_truth.py", *sys.argv[1:]])
    harness.write_result(options.name, result, command=asked, modules=("numpy", "torch"))


if __name__ == "__main__":
    main()
