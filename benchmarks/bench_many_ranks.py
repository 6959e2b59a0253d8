"""The summary of many ranks: its time and memory as ranks grow, from files and from a store.

    python benchmarks/bench_many_ranks.py [--ranks 64 256 1024] [--store-ranks 1024] [--steps 50] [--repeats 3]

For each number of ranks a made-up run is written, and ``stashtrace summary`` is run in a separate process: seconds
with all imports, seconds of CPU, peak memory. For ``--store-ranks`` the run is exported first and the summary reads the
store. Bar for 1,024 ranks of 50 steps from files: 8 s and 600 MB, goal 5 s; for 10,240 ranks from a store on two
cores: 60 s and 4 GB. One rank is late in every step; a summary that does not say so, and by how much, is not a result.
Files were just written, so they come from the page cache; an older store of ``--stores`` may not. Writes
results/many_ranks.md and .json.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import harness

sys.path.insert(0, str(harness.ROOT))

LATE_RANK, LATE_NS = 1, 7_000_000
#: A step is known to that much: lengths of calls are rounded to ticks of the clock.
_TRUE_WITHIN_NS = 50_000


def main() -> None:
    """Measure, print, write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="*", default=[64, 256, 1024], help="sizes of runs read from files")
    parser.add_argument("--store-ranks", type=int, nargs="*", default=[1024], help="sizes of runs read from a store")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where runs are written; a temporary folder by default")
    parser.add_argument(
        "--stores", type=Path, metavar="DIR", help="keep the stores there, and take those that are there already"
    )
    parser.add_argument("--out", type=Path, default=harness.RESULTS)
    parser.add_argument("--measure", metavar="RUN", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measured(options.measure)))
        return
    rows = [one_size(ranks, store, options) for ranks, store in sizes(options)]
    figures: dict[str, Any] = {"steps_count": options.steps}
    for row in rows:
        name = f"{row['ranks']}_ranks" + ("_of_a_store" if row["store"] else "")
        figures |= {f"{name}_{key}": row[key] for key in ("s", "cpu_s", "per_rank_s", "peak_bytes")}
    for few, many in itertools.pairwise([row for row in rows if not row["store"]]):
        ratio = many["per_rank_s"]["min"] / few["per_rank_s"]["min"]
        figures[f"per_rank_ratio_{many['ranks']}_over_{few['ranks']}"] = ratio
    listed, stores = (" ".join(map(str, numbers)) for numbers in (options.ranks, options.store_ranks))
    command = (
        f"python benchmarks/bench_many_ranks.py --ranks {listed} --store-ranks {stores} --steps {options.steps}"
        f" --repeats {options.repeats}"
    )
    path = harness.write_result(
        "many_ranks", figures, command=command, modules=("numpy", "pyarrow"), folder=options.out
    )
    path.with_suffix(".md").write_text(page(rows, command, options.steps), encoding="utf-8")


def sizes(options: argparse.Namespace) -> list[tuple[int, bool]]:
    """(ranks, whether from a store) of each measurement."""
    return [(ranks, False) for ranks in options.ranks] + [(ranks, True) for ranks in options.store_ranks]


def one_size(ranks: int, store: bool, options: argparse.Namespace) -> dict[str, Any]:
    """Figures of one number of ranks."""
    from stashtrace.exporters.store import store_run
    from stashtrace.lab import synth

    with tempfile.TemporaryDirectory(prefix="stashtrace-ranks-", dir=options.folder) as name:
        run = Path(name) / "run"
        kept = (options.stores or Path(name)) / f"{ranks}_ranks_{options.steps}_steps"
        if not (store and kept.exists()):
            job = synth.SyntheticJob(
                ranks=ranks, workers=2, steps=options.steps, calls_per_batch=60, late_rank=LATE_RANK, late_ns=LATE_NS
            )
            synth.write(run, job)
        if store:
            if not kept.exists():
                store_run(run, kept)
            shutil.rmtree(run, ignore_errors=True)
            run = kept
        found = [child(run) for _ in range(options.repeats)]
    row = {
        "ranks": ranks,
        "store": store,
        "s": harness.summary([one["seconds"] for one in found]),
        "cpu_s": harness.summary([one["cpu_s"] for one in found]),
        "per_rank_s": harness.summary([one["seconds"] / ranks for one in found]),
        "peak_bytes": max(one["peak_bytes"] for one in found),
    }
    print(line(row), file=sys.stderr)
    return row


def line(row: dict[str, Any]) -> str:
    """A row of the page."""
    source = "store" if row["store"] else "files"
    return (
        f"| {row['ranks']:,} | {source} | {row['s']['median']:.2f} | {row['s']['min']:.2f} |"
        f" {row['cpu_s']['median']:.2f} | {row['per_rank_s']['median'] * 1e3:.1f} | {row['peak_bytes'] / 1e6:,.0f} |"
    )


def page(rows: list[dict[str, Any]], command: str, steps: int) -> str:
    """The result as Markdown."""
    commit = harness.versions("numpy")["commit"]
    return "\n".join(
        [
            "# The summary of many ranks",
            "",
            f"`stashtrace summary` of a made-up run of {steps} steps, two loader workers a rank, in a separate",
            "process. Seconds hold the start of Python and all imports.",
            "",
            "| ranks | from | s (median) | s (least) | CPU s | ms a rank | peak MB |",
            "|---:|---|---:|---:|---:|---:|---:|",
            *map(line, rows),
            "",
            f"`{command}`, commit {commit}.",
            "",
        ]
    )


def child(run: Path) -> dict[str, float]:
    """What a separate process measured, with its start."""
    environment = {**os.environ, "PYTHONPATH": str(harness.ROOT)}
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, __file__, "--measure", str(run)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    seconds = time.perf_counter() - begin
    found: dict[str, float] = json.loads(done.stdout)
    return found | {"seconds": seconds}


def measured(run: str) -> dict[str, float]:
    """CPU time and peak memory of this process, which makes one summary and compares it with the truth."""
    from stashtrace.cli import main as stashtrace

    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        code = stashtrace(["summary", "--format", "json", run])
    if code:
        raise SystemExit(code)
    used = resource.getrusage(resource.RUSAGE_SELF)
    figures = {"cpu_s": used.ru_utime + used.ru_stime, "peak_bytes": peak_bytes()}
    check(json.loads(text.getvalue()))
    return figures


def peak_bytes() -> int:
    """Most memory of this process; not ``ru_maxrss``, which begins with that of the process it was forked from."""
    status = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return int(next(x for x in status if x.startswith("VmHWM")).split()[1]) * 1024


def check(summary: dict[str, Any]) -> None:
    """The lateness must be what was put in: a fast wrong answer is none."""
    late = [claim for claim in summary["findings"] if claim["section"] == "verdict" and claim["kind"] == "late"]
    if not late or late[0]["cause_rank"] != LATE_RANK or abs(late[0]["stall_ns"] - LATE_NS) > _TRUE_WITHIN_NS:
        raise SystemExit(f"the summary does not say that rank {LATE_RANK} is late by {LATE_NS} ns: {late}")


if __name__ == "__main__":
    main()
