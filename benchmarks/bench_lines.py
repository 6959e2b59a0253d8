"""Does a recording name the line? Jobs with one planted host stall each, whose function and line are known.

    python benchmarks/bench_lines.py [--only NAME ...] [--keep FOLDER] [--write]

The jobs in benchmarks/lines were written by two people who had not seen the code that finds lines: the first 20
before it was mended by what they showed, the second 20 after that. Each measures what it planted with its own clock
(``TRUTH rank=... planted_ms_per_step=...``). A job is right if, on each rank that it was planted on, a planted line
of the planted function comes first among the lines of that kind of time; the amount is right if what the job measured
lies within the bounds of these lines, to 5 %, of all steps: also the first ones, which ``lines`` does not count.
``said``: the summary names such a line. Where a thread waits for another one (`cartpole_replay`, `lidar_sweeps`,
`lock_contended`), a row has the line of that one and the line that waits for it: the planted line may be either.
Bars: 19 of 20 right, 18 amounts. --write puts results/lines.md and .json. Exit code 1 if a bar is missed.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import harness

import stashtrace
from stashtrace.analysis.lines.lines import lines
from stashtrace.analysis.lines.user_frames import place_of
from stashtrace.analysis.steps.steps import counted_steps, steps
from stashtrace.replay.causes import summary
from stashtrace.schema.trace import Trace

JOBS = harness.ROOT / "benchmarks" / "lines"
SETS = ("first", "second")
_BARS = {"right": 19, "amount": 18}
_OF_JOBS = 20
#: The job's clock and the recorder's read at different places of a call.
_SLACK_RATIO = 0.05
#: No constant was chosen on these jobs, and the score that counts is the first one.
FIRST_RUN = (
    "The first run, on a busy machine (load 3 to 5): right 18 of 20, amount 16, said 16. Wrong: a coroutine that sleeps"
    " is on no stack (`asyncio_prepare`: the line that runs the loop is named), and in `collate_slow` another line of"
    " the same function came first. Amounts outside the bounds: these two, a save of which part lies in other calls"
    " (`checkpoint_fsync`, 14.7 ms of which 10.2 to 13.3 were found), and a mean of the job that holds a first batch"
    " twelve times as long, which is no counted step here (`regex_tokenizer`). Not said: these two and two hooks whose"
    " Python counts as computing; since then the summary says the user's line that computes most."
)
_TRUTH = re.compile(r"TRUTH rank=(\d+) .*?planted_ms_per_step=([\d.]+)")


def main() -> int:
    """Record, judge, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME")
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="leave the recordings here; judge those that are there"
    )
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    truth = {name: {**of, "set": which} for which in SETS for name, of in _truth(which).items()}
    names = options.only or sorted(truth)
    with tempfile.TemporaryDirectory() as scratch:
        folder = (options.keep or Path(scratch)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        rows = [judged(name, truth[name], folder) for name in names]
    counts = {key: sum(row[key] for row in rows) for key in ("right", "amount", "said")}
    totals = ", ".join(f"{key} {count} of {len(rows)}" for key, count in counts.items())
    print(totals)
    if options.write:
        write(rows, totals)
    return int(any(counts[key] * _OF_JOBS < bar * len(rows) for key, bar in _BARS.items()))


def _truth(which: str) -> dict[str, Any]:
    truth: dict[str, Any] = json.loads((JOBS / which / "truth.json").read_text(encoding="utf-8"))
    return truth


def recorded(name: str, which: str, folder: Path) -> tuple[Path, str]:
    """Return the recording of a job and what the job said."""
    run, said = folder / f"{name}.stash", folder / f"{name}.txt"
    if not run.is_dir():
        torchrun = Path(sys.executable).with_name("torchrun")
        command = [sys.executable, "-m", "stashtrace", "run", "-o", str(run), "--", str(torchrun), "--standalone"]
        command += ["--nproc-per-node", "2", str(JOBS / which / f"{name}.py")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=folder, env={**os.environ})
        said.write_text(done.stderr, encoding="utf-8")
    return run, said.read_text(encoding="utf-8")


def judged(name: str, truth: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Hold one recording against what was planted."""
    run, said = recorded(name, truth["set"], folder)
    planted = {int(rank): float(ms) for rank, ms in _TRUTH.findall(said)}
    trace = stashtrace.load(str(run))
    table = [row | named(trace, row) | of_all_steps(trace, row) for row in lines(trace).rows()]
    where = "worker" if truth["where"] == "worker" else "step"
    found = [of_rank(table, truth, rank, where) for rank in truth["ranks"]]
    right = all(one["first"] for one in found)
    amount = all(
        one["low_ms"] * (1 - _SLACK_RATIO) <= planted.get(rank, -1.0) <= one["high_ms"] * (1 + _SLACK_RATIO)
        for rank, one in zip(truth["ranks"], found, strict=True)
    )
    text = " ".join(summary(trace).split())
    first, last = line_range(truth)
    names = [f"{truth['file']}:{line}" for line in range(first, last + 1)]
    row = {
        "name": name,
        "planted": f"{truth['function']} ({truth['file']}:{first}) on {truth['ranks']}, {truth['where']}",
        "right": right,
        "amount": amount,
        "said": any(one in text for one in names),
        "planted_ms": {rank: planted.get(rank, -1.0) for rank in truth["ranks"]},
        "found": found,
    }
    shown = [
        "right" if right else "WRONG",
        "amount right" if amount else "amount WRONG",
        "said" if row["said"] else "not said",
    ]
    print(f"{name:<20} {', '.join(shown)}", flush=True)
    if not (right and amount and row["said"]):
        print(f"    planted {row['planted']}: {row['planted_ms']}")
        for one in found:
            print(f"    found {one}")
    return row


def line_range(truth: dict[str, Any]) -> tuple[int, int]:
    """Return the first and the last line that is right: those that the job marks."""
    text = (JOBS / truth["set"] / truth["file"]).read_text(encoding="utf-8").splitlines()
    marked = [number for number, line in enumerate(text, 1) if line.endswith("# <- here")]
    return marked[0], marked[-1]


def named(trace: Trace, row: dict[str, Any]) -> dict[str, str]:
    """Return the texts of a row of ``lines``."""
    function, path = trace.text(row["function_code"]), trace.text(row["path_code"])
    waiting = trace.text(row["waiting_function_code"]), Path(trace.text(row["waiting_path_code"])).name
    return {
        "function": function,
        "file": Path(path).name,
        "place": place_of(function, path, row["line"]),
        "places": [(function, Path(path).name, row["line"]), (*waiting, row["waiting_line"])],
    }


def of_all_steps(trace: Trace, row: dict[str, Any]) -> dict[str, float]:
    """Return the bounds of a row as means of all steps of its rank: a job counts the first ones, too."""
    found = steps(trace)
    found = found.take((found["rank"] == row["rank"]) & (found["kind"] == (row["step_kind"] or "train")))
    share = {"step": len(counted_steps(found)) / max(len(found), 1), "start": 1 / max(len(found), 1), "worker": 1.0}
    return {f"{name}_of_all_ns": row[f"{name}_ns"] * share[row["where"]] for name in ("low", "high")}


def of_rank(table: list[dict[str, Any]], truth: dict[str, Any], rank: int, where: str) -> dict[str, Any]:
    """Return whether the planted line is the first of its kind on a rank, and the bounds of its function."""
    first_line, last_line = line_range(truth)
    own = [row for row in table if row["rank"] == rank and row["where"] == where]
    right = {(truth["function"], truth["file"], line) for line in range(first_line, last_line + 1)}
    planted = [row for row in own if right & set(row["places"])]
    planted_function = (truth["function"], truth["file"])
    mine = [row for row in own if planted_function in {place[:2] for place in row["places"]}]
    kind = max(mine, key=lambda row: row["time_ns"], default={"kind": ""})["kind"]
    of_kind = [row for row in own if row["kind"] == kind and row["function"]]
    top = max(of_kind, key=lambda row: row["time_ns"], default=None)
    is_first = top is not None and top in planted
    if where == "step":
        of_start = [row for row in table if row["rank"] == rank and row["where"] == "start"]
        planted += [row for row in of_start if right & set(row["places"])]
    low, high = (sum(row[name] for row in planted) / 1e6 for name in ("low_of_all_ns", "high_of_all_ns"))
    most = max(own, key=lambda row: row["time_ns"], default={"place": "", "kind": ""})
    return {
        "rank": rank,
        "kind": kind,
        "first": is_first,
        "top_of_kind": top["place"] if top else "",
        "low_ms": round(low, 2),
        "high_ms": round(high, 2),
        "costliest": f"{most['place']} ({most['kind']})",
    }


def write(rows: list[dict[str, Any]], totals: str) -> None:
    """Write the result and its page."""
    command = "python benchmarks/bench_lines.py --write"
    harness.write_result("lines", {"jobs": rows}, command=command, modules=("numpy", "torch"))
    facts, versions = harness.machine(), harness.versions("torch")
    table = ["| job | planted | result | planted, ms | bounds, ms | kind |", "|---|---|---|---|---|---|"]
    for row in rows:
        result = ", ".join(key if row[key] else f"**not {key}**" for key in ("right", "amount", "said"))
        bounds = "; ".join(f"rank {one['rank']}: {one['low_ms']} to {one['high_ms']}" for one in row["found"])
        planted = "; ".join(f"rank {rank}: {ms}" for rank, ms in row["planted_ms"].items())
        kinds = ", ".join(sorted({one["kind"] for one in row["found"]}))
        table.append(f"| {row['name']} | `{row['planted']}` | {result} | {planted} | {bounds} | {kinds} |")
    page = [
        "# Which line",
        "",
        " ".join((__doc__ or "").split("\n\n")[2].split()),
        "",
        f"`{command}`, commit {versions['commit']}, {facts['cores_count']} cores of {facts['cpu']}, torch"
        f" {versions['torch']}",
        "",
        f"**{totals}**",
        "",
        FIRST_RUN,
        "",
        *table,
        "",
    ]
    (harness.RESULTS / "lines.md").write_text("\n".join(page), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
