"""Predictions of `stashtrace whatif` beside the real thing: jobs with a late rank, and the same job without it.

    python benchmarks/bench_faults.py --runs DIR
    python benchmarks/bench_whatif.py DIR

For each faulty job the step time with ``straggler=0`` is predicted from its recording alone, and held against the mean
of the measured ones of the jobs without a fault, of the same loop, ranks and workers; faulty jobs without such controls
are left out. What the controls differ by is printed beside. Writes results/whatif.md and .json.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import harness

import stashtrace
from stashtrace.analysis.graph import build
from stashtrace.replay import Answer, Change, what_if


def answer_of(folder: Path, *changes: str) -> Answer:
    """What a recorded job would be with some changes."""
    return what_if(build(stashtrace.load(folder / "run")), map(Change.parse, changes))


def config_of(folder: Path) -> dict[str, Any]:
    """How a job was started."""
    found: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return found


def main() -> int:
    """Predict, compare, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="folder that bench_faults.py --runs kept")
    parser.add_argument("--out", type=Path, default=harness.RESULTS)
    options = parser.parse_args()
    folders = sorted(path.parent for path in options.runs.glob("*/config.json"))
    same = ("loop", "ranks", "workers", "steps", "lengths")
    real: dict[tuple[Any, ...], list[float]] = {}
    for folder in folders:
        if folder.name.startswith("control-"):
            config = config_of(folder)
            key = tuple(config[name] for name in same)
            real.setdefault(key, []).append(answer_of(folder).measured_ns / 1e6)
    rows = []
    for folder in folders:
        config = config_of(folder)
        key = tuple(config[name] for name in same)
        if not config["kind"] or key not in real:
            continue
        told, without = answer_of(folder, "straggler=0"), float(np.mean(real[key]))
        rows.append(
            {
                "job": folder.name,
                "measured_ms": told.measured_ns / 1e6,
                "predicted_ms": told.high_ns / 1e6,
                "control_ms": without,
                "error_ratio": told.high_ns / 1e6 / without - 1,
                "gap_ratio": told.gap_ratio,
            }
        )
    error = np.array([row["error_ratio"] for row in rows])
    away = np.abs(error)
    apart = max(max(times) / min(times) - 1 for times in real.values())
    total = (
        f"{len(rows)} predictions: median error {np.median(away):.1%}, worst {away.max():.1%}, within 5 % in"
        f" {int((away <= 0.05).sum())}; {int((error < 0).sum())} are shorter than the real step; controls of one kind"
        f" differ by up to {apart:.1%}"
    )
    print(total)
    command = "python benchmarks/bench_whatif.py DIR"
    harness.write_result("whatif", {"rows": rows}, command=command, modules=("numpy", "torch"), folder=options.out)
    lines = [
        "# What-if predictions", "",
        (__doc__ or "").split("\n\n")[2].replace("\n", " ").split(" Writes")[0] + ".", "",
        f"`python benchmarks/bench_faults.py --runs DIR`, then `{command}`, commit"
        f" {harness.versions('torch')['commit']}. Only `straggler=0` is held against jobs so far.", "",
        f"**{total}**", "",
        "| job | with the fault, ms | predicted, ms | without it, ms | error | unexplained |",
        "|---|---|---|---|---|---|",
        *[
            f"| {r['job']} | {r['measured_ms']:.1f} | {r['predicted_ms']:.1f} | {r['control_ms']:.1f}"
            f" | {r['error_ratio']:+.1%} | {r['gap_ratio']:.1%} |"
            for r in rows
        ],
    ]  # fmt: skip
    (options.out / "whatif.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
