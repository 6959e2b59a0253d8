"""Does a job become faster by what its first cause promises? The cause is removed for real, and both are measured.

    python benchmarks/bench_promises.py [--only NAME ...] [--jobs 20] [--pairs 3] [--keep FOLDER] [--write]

Jobs of benchmarks/first_cause whose first cause is the planted one and goes wholly (nothing of it is left, or what the
other ranks or the other steps take): FIX=1, or the number of the planted cause, runs them without it. Each pair is a
recording with the cause and one without, in turns; one during which other programs used a quarter of a CPU is made
again, three times at most. The promise is that of the first recording: the mean step becomes
shorter by ``saved_low_ns`` to ``saved_high_ns``. Measured is the mean over the pairs of how much shorter the mean step
is; ``inside``: it lies within the promise. Half of something is no promise that such a job could hold, and is left out.
Bar: 9 of 10. --write puts results/promises.md and .json. Exit code 1 if the bar is missed.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import harness
from bench_first_cause import FIRST_RUNS, JOBS, is_about, truths

import stashtrace
from stashtrace.analysis.compare.cpu_use import cpu_use
from stashtrace.analysis.steps.step_time import step_time_of, step_time_steps
from stashtrace.analysis.steps.steps import steps
from stashtrace.errors import MissingDataError
from stashtrace.replay.causes import causes

_BAR_RATIO = 0.9
_WHOLE = ("gone", "peers", "even", "usual")
_OTHERS_COUNT, _ATTEMPTS = 0.25, 3


def main() -> int:
    """Record, judge, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME")
    parser.add_argument("--jobs", type=int, default=20, help="number that is judged (default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=3, help="recordings of each (default: %(default)s)")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="leave the recordings here; use those there")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    truth = {name: {**one, "set": of} for of in FIRST_RUNS for name, one in truths(of).items() if one["causes"]}
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = (options.keep or Path(scratch)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        for name in options.only or in_turns(truth):
            row = judged(name, truth[name], folder, options.pairs)
            rows += [row] if row else []
            if len(rows) == options.jobs:
                break
    inside = sum(row["inside"] for row in rows)
    totals = f"inside {inside} of {len(rows)}"
    print(totals)
    if options.write:
        write(rows, totals, options.pairs)
    return int(inside < _BAR_RATIO * len(rows))


def in_turns(truth: dict[str, dict[str, Any]]) -> list[str]:
    """Return the jobs by name, one of each set in turns."""
    of_sets = [sorted(name for name, one in truth.items() if one["set"] == of) for of in FIRST_RUNS]
    return [name for place in range(max(map(len, of_sets))) for names in of_sets for name in names[place : place + 1]]


def judged(name: str, truth: dict[str, Any], folder: Path, pairs: int) -> dict[str, Any] | None:
    """Hold the promise of a job against what its fix saves; None where the first cause is none that the fix removes."""
    first = stashtrace.load(str(recorded(name, truth, folder / f"{name}-0.stash")))
    try:
        cause = next(row for row in causes(first).rows() if not row["reason"])
    except (MissingDataError, StopIteration):
        return None
    everybody = ",".join(map(str, range(truth["nproc"])))
    found = {
        "ranks": cause["ranks"] or everybody,
        "what": cause["op"] or cause["kind"],
        "function": cause["place"].partition(" (")[0],
    }
    numbers = [number for number, one in enumerate(truth["causes"], 1) if is_about(found, one, everybody)]
    if cause["level"] not in _WHOLE or not numbers:
        return None
    with_ns, without_ns = [], []
    for pair in range(pairs):
        with_ns.append(mean_step_ns(recorded(name, truth, folder / f"{name}-{pair}.stash")))
        without_ns.append(mean_step_ns(recorded(name, truth, folder / f"{name}-{pair}-fixed.stash", fix=numbers[0])))
    saved = [before - after for before, after in zip(with_ns, without_ns, strict=True)]
    measured_ns = sum(saved) / pairs
    row = {
        "name": name,
        "cause": f"{found['ranks']} {found['function'] or found['what']} ({cause['level']})",
        "step_ms": with_ns[0] / 1e6,
        "promised_ms": [cause["saved_low_ns"] / 1e6, cause["saved_high_ns"] / 1e6],
        "measured_ms": measured_ns / 1e6,
        "measured_from_to_ms": [min(saved) / 1e6, max(saved) / 1e6],
        "inside": bool(cause["saved_low_ns"] <= measured_ns <= cause["saved_high_ns"]),
    }
    print(f"{name:<16} {'inside' if row['inside'] else 'OUTSIDE':<8} {_amounts(row)}", flush=True)
    return row


def recorded(name: str, truth: dict[str, Any], run: Path, fix: int = 0) -> Path:
    """Return a recording of a job; ``fix``: the number of the planted cause that is removed, 0 for none."""
    torchrun = Path(sys.executable).with_name("torchrun")
    for _ in range(_ATTEMPTS):
        if run.is_dir() and _others_count(run) < _OTHERS_COUNT:
            break
        shutil.rmtree(run, ignore_errors=True)
        command = [sys.executable, "-m", "stashtrace", "run", "-o", str(run), "--", str(torchrun), "--standalone"]
        command += ["--nproc-per-node", str(truth["nproc"]), str(JOBS / truth["set"] / f"{name}.py")]
        environment = {**os.environ, "FIX": str(fix)}
        subprocess.run(command, capture_output=True, timeout=300, cwd=run.parent, env=environment, check=True)
    return run


def _others_count(run: Path) -> float:
    """Return how many CPUs other programs used in the counted steps of a run; 0 where that is not known."""
    trace = stashtrace.load(str(run))
    used = cpu_use(trace, step_time_steps(steps(trace)))
    return used.others_count if used is not None else 0.0


def mean_step_ns(run: Path) -> float:
    """Return the mean of the counted steps of a run, as its summary has it."""
    found = step_time_of(stashtrace.load(str(run)))
    if found is None:
        raise SystemExit(f"{run}: no counted step")
    return float(found.mean_ns)


def _amounts(row: dict[str, Any]) -> str:
    least, most = row["promised_ms"]
    low, high = row["measured_from_to_ms"]
    return f"promised {least:.1f} to {most:.1f}, measured {row['measured_ms']:.1f} ({low:.1f} to {high:.1f}) ms"


def write(rows: list[dict[str, Any]], totals: str, pairs: int) -> None:
    """Write the result and its page."""
    command = f"python benchmarks/bench_promises.py --jobs {len(rows)} --pairs {pairs} --write"
    harness.write_result("promises", {"jobs": rows}, command=command, modules=("numpy", "torch"))
    facts, versions = harness.machine(), harness.versions("torch")
    table = ["| job | first cause | step, ms | promised, ms | measured, ms (from, to) | |", "|---|---|---|---|---|---|"]
    for row in rows:
        (least, most), (low, high) = row["promised_ms"], row["measured_from_to_ms"]
        table.append(
            f"| {row['name']} | {row['cause']} | {row['step_ms']:.1f} | {least:.1f} to {most:.1f}"
            f" | {row['measured_ms']:.1f} ({low:.1f} to {high:.1f}) | {'inside' if row['inside'] else '**outside**'} |"
        )
    page = [
        "# Promises, kept or not",
        "",
        " ".join((__doc__ or "").split("\n\n")[2].split()),
        "",
        f"`{command}`, commit {versions['commit']}, {facts['cores_count']} cores of {facts['cpu']}, torch"
        f" {versions['torch']}",
        "",
        f"**{totals}**",
        "",
        *table,
        "",
    ]
    (harness.RESULTS / "promises.md").write_text("\n".join(page), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
