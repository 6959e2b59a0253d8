"""Is the first cause the planted one? Jobs with one or two planted causes, or none, by somebody who saw no code.

    python benchmarks/bench_first_cause.py [--set first|...|fifth] [--only NAME ...] [--keep FOLDER] [--write]

A job is right if the first row of ``causes`` has the ranks of a planted cause and its function (where its time is, who
calls that, or where another thread is waited for), or, where a setting or a kind of transfer is at fault, that;
``both``: the two planted causes are the first two rows. A job with nothing planted is right if no row takes work away
from some rank or some steps. Bars: 36 of 40 right, 8 of 10 both, 10 of 10 of those with nothing planted. --write puts
results/first_cause.md and .json. Exit code 1 if a bar is missed.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import harness

import stashtrace
from stashtrace.errors import MissingDataError
from stashtrace.replay.causes import causes

JOBS = harness.ROOT / "benchmarks" / "first_cause"
_BARS = {"right": (36, 40), "both": (8, 10), "nothing": (10, 10)}
#: The score that counts: no constant was chosen on these jobs before it.
FIRST_RUNS = {
    "first": (
        "The first run, on a busy machine (load 3 to 5): right 24 of the 30 with something planted, nobody blamed in 6"
        " of the 10 others; the first verdict of the summary was right in 23, what it advised first in 17, and it"
        " blamed nobody in the 10. Since then: what a replay saves of the recording decides what is a cause, the"
        " scatter of its steps only what is promised of another one; the share of a line that samples leave open counts"
        " as doubt; rare steps are those twice as long; broadcasts go whole; a function that is more than half of a"
        " kind stands for it."
    ),
    "second": (
        "The first run, on a quiet machine: right 17 of the 30 with something planted, nobody blamed in 8 of the 10"
        " others, both of two in 5 of 10. In five misses the rank and the kind of time were right and no function was"
        " named, in one a comprehension of the function; one job had lost a rank. Since then: a cause that is a kind of"
        " time has the function with most of it, samples of several lines add up as chance does, comprehensions are"
        " part of their function, what one rank generates is no rollout of the job, and a broadcast is needless only"
        " under DistributedDataParallel."
    ),
    "third": (
        "The first run, on a quiet machine: right 20 of the 30 with something planted, nobody blamed in 8 of the 10"
        " others, both of two in 4 of 10. In nine of the twelve misses waits for CPUs came first: two ranks, their"
        " workers and their backends on two cores. Since then: too few CPUs for ranks and workers is no cause, but said"
        " of the machine, what is said of several ranks has a function only if it is that of each, and the call of a"
        " backward pass is no place."
    ),
    "fourth": (
        "The first run, on a quiet machine: right 28 of the 30 with something planted, nobody blamed in 8 of the 10"
        " others, both of two in 6 of 10. In the two that were blamed a function of one rank was longer by its samples"
        " where all of its computation was as long as the other's; since then a function counts for no more than that."
    ),
    "fifth": (
        "The first run, on a quiet machine: right 21 of the 30 with something planted, nobody blamed in 10 of the 10"
        " others, both of two in 5 of 10. In two misses the sentence named the function as a caller or as where another"
        " thread is waited for, which counts since then; in two, more workers came first, without the function that"
        " makes batches, which is named since then; in one, torch threads that the script sets itself were not known."
    ),
}


def main() -> int:
    """Record, judge, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", choices=list(FIRST_RUNS), help="the jobs of one author (default: all)")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME")
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="leave the recordings here; judge those that are there"
    )
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    sets = [options.set] if options.set else list(FIRST_RUNS)
    truth = {name: {**one, "set": of} for of in sets for name, one in truths(of).items()}
    with tempfile.TemporaryDirectory() as scratch:
        folder = (options.keep or Path(scratch)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        rows = [judged(name, truth[name], folder) for name in options.only or sorted(truth)]
    counts = {key: (sum(bool(row[key]) for row in rows), sum(row[key] is not None for row in rows)) for key in _BARS}
    totals = ", ".join(f"{key} {right} of {of}" for key, (right, of) in counts.items())
    print(totals)
    if options.write:
        write(rows, totals)
    return int(any(right * _BARS[key][1] < _BARS[key][0] * of for key, (right, of) in counts.items()))


def truths(of: str) -> dict[str, dict[str, Any]]:
    """Return what was planted in the jobs of a set."""
    read: dict[str, dict[str, Any]] = json.loads((JOBS / of / "truth.json").read_text(encoding="utf-8"))
    return read


def recorded(name: str, truth: dict[str, Any], folder: Path) -> Path:
    """Return the recording of a job."""
    run = folder / f"{name}.stash"
    if not run.is_dir():
        torchrun = Path(sys.executable).with_name("torchrun")
        command = [sys.executable, "-m", "stashtrace", "run", "-o", str(run), "--", str(torchrun), "--standalone"]
        command += ["--nproc-per-node", str(truth["nproc"]), str(JOBS / truth["set"] / f"{name}.py")]
        subprocess.run(command, capture_output=True, timeout=300, cwd=folder, env={**os.environ}, check=True)
    return run


def judged(name: str, truth: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Hold the causes of one recording against what was planted."""
    trace = stashtrace.load(str(recorded(name, truth, folder)))
    everybody = ",".join(map(str, range(truth["nproc"])))
    try:
        found = [
            {
                "ranks": row["ranks"] or everybody,
                "what": row["op"] or row["kind"],
                "function": row["place"].partition(" (")[0],
                "named": [row[name].partition(" (")[0] for name in ("place", "waiter", "caller")],
                "level": row["level"],
                "saved_percent": [round(100 * row[name], 1) for name in ("low_ratio", "high_ratio")],
            }
            for row in causes(trace).rows()
            if not row["reason"]
        ]
    except MissingDataError:
        found = []
    planted = truth["causes"]
    hits = [[is_about(row, cause, everybody) for cause in planted] for row in found[:2]]
    # That all ranks wait for CPUs, or work unevenly in single steps, blames none of them.
    blames = [
        row for row in found if row["level"] in ("gone", "peers", "even", "usual") and row["what"] != "contention"
    ]
    blamed = [row for row in blames if row["level"] != "even" or row["ranks"] != everybody]
    row = {
        "name": name,
        "planted": "; ".join(f"{cause['ranks']} {cause['function'] or cause['what']}" for cause in planted)
        or "nothing",
        "found": "; ".join(f"{one['ranks']} {one['function'] or one['what']} ({one['level']})" for one in found),
        "right": (bool(hits) and any(hits[0])) if planted else not blamed,
        "both": (len(hits) == len(planted) and all(map(any, zip(*hits, strict=True)))) if len(planted) > 1 else None,
        "nothing": not blamed if not planted else None,
    }
    shown = ", ".join(f"{key} {'yes' if row[key] else 'NO'}" for key in _BARS if row[key] is not None)
    print(f"{name:<14} {shown}\n    planted {row['planted']}\n    found   {row['found']}", flush=True)
    return row


def is_about(row: dict[str, Any], cause: dict[str, Any], everybody: str) -> bool:
    """Return True if a row of ``causes`` names a planted cause."""
    ranks = everybody if cause["ranks"] == "all" else ",".join(map(str, cause["ranks"]))
    functions = [cause["function"], *cause.get("also_functions", [])] if cause["function"] else []
    named = bool({*row["named"]} & {name.replace(".<locals>", "") for name in functions})
    # Where a user's function calls what is at fault, or a setting is, either answer is right.
    return bool(row["ranks"] == ranks and (named or row["what"] in (cause["what"] or "").split("|")))


def write(rows: list[dict[str, Any]], totals: str) -> None:
    """Write the result and its page."""
    command = "python benchmarks/bench_first_cause.py --write"
    harness.write_result("first_cause", {"jobs": rows}, command=command, modules=("numpy", "torch"))
    facts, versions = harness.machine(), harness.versions("torch")
    table = ["| job | planted | causes | result |", "|---|---|---|---|"]
    for row in rows:
        result = ", ".join(key if row[key] else f"**not {key}**" for key in _BARS if row[key] is not None)
        table.append(f"| {row['name']} | {row['planted']} | {row['found']} | {result} |")
    page = [
        "# The first cause",
        "",
        " ".join((__doc__ or "").split("\n\n")[2].split()),
        "",
        f"`{command}`, commit {versions['commit']}, {facts['cores_count']} cores of {facts['cpu']}, torch"
        f" {versions['torch']}",
        "",
        f"**{totals}**",
        "",
        *(f"Jobs of the {of} author. {said}" for of, said in FIRST_RUNS.items()),
        "",
        *table,
        "",
    ]
    (harness.RESULTS / "first_cause.md").write_text("\n".join(page), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
