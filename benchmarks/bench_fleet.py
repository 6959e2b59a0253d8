"""Budgets of many ranks: a store of made-up ranks, analysed rank by rank on this machine's cores.

    python benchmarks/bench_fleet.py [--ranks 16 128 1024] [--spans 20000] [--repeats 3]

For each number of ranks: seconds and peak memory of ``stashtrace analyze stalls --by rank`` over the whole store, in a
separate process, seconds per rank, and once what writing the store took. Bar for 1,024 ranks of 20,000 spans on two
cores: 60 s and 8 GB (goal 20 s and 4 GB); cost per rank flat within 20 %. The first figures are in a store whose
files were just written, so they come from the page cache.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
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

#: Rows of a step of one rank: a batch wait, three phases, a collective, its wait; the rest are calls of a worker.
_ROWS_OF_A_STEP = 6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[16, 128, 1024])
    parser.add_argument("--spans", type=int, default=20_000, help="rows of each rank")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where stores are written; a temporary folder by default")
    parser.add_argument("--out", type=Path, default=harness.RESULTS)
    parser.add_argument("--measure", metavar="STORE", help=argparse.SUPPRESS)
    parser.add_argument("--write", nargs=2, metavar=("RUN", "STORE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure or options.write:
        print(json.dumps(measured(options.measure) if options.measure else written(*options.write)))
        return
    figures: dict[str, Any] = {"spans_per_rank_count": options.spans}
    for ranks in options.ranks:
        with tempfile.TemporaryDirectory(prefix="stashtrace-fleet-", dir=options.folder) as folder:
            figures |= one_size(Path(folder), ranks, options)
    sizes = [figures[f"{ranks}_ranks_per_rank_s"]["median"] for ranks in options.ranks]
    figures["dearest_by_cheapest_rank_ratio"] = max(sizes) / min(sizes)
    listed = " ".join(map(str, options.ranks))
    command = f"python benchmarks/bench_fleet.py --ranks {listed} --spans {options.spans} --repeats {options.repeats}"
    harness.write_result("fleet", figures, command=command, modules=("numpy", "pyarrow", "dask"), folder=options.out)


def one_size(folder: Path, ranks: int, options: argparse.Namespace) -> dict[str, Any]:
    """Figures of one number of ranks."""
    from stashtrace.lab import synth

    steps = options.spans // _ROWS_OF_A_STEP
    # Without workers: the spans are those of the rank itself, as its budget is made of them.
    job = synth.SyntheticJob(ranks=ranks, workers=0, steps=steps, calls_per_batch=0, late_rank=1, late_ns=7_000_000)
    synth.write(folder / "run", job)
    made = child("--write", folder / "run", folder / "store")
    shutil.rmtree(folder / "run")
    found = [child("--measure", folder / "store") for _ in range(options.repeats)]
    check(found[-1]["rows"], job)
    seconds = [f["seconds"] for f in found]
    print(
        f"{ranks:>5} ranks: {min(seconds):7.2f} s, {found[-1]['peak_bytes'] / 1e9:.2f} GB, "
        f"{min(seconds) / ranks * 1e3:.1f} ms a rank; store {made['seconds']:.1f} s, "
        f"{made['peak_bytes'] / 1e9:.2f} GB",
        file=sys.stderr,
    )
    return {
        f"{ranks}_ranks_s": harness.summary(seconds),
        f"{ranks}_ranks_per_rank_s": harness.summary([s / ranks for s in seconds]),
        f"{ranks}_ranks_cpu_s": harness.summary([f["cpu_s"] for f in found]),
        f"{ranks}_ranks_peak_bytes": max(f["peak_bytes"] for f in found),
        f"{ranks}_ranks_store_written_s": made["seconds"],
        f"{ranks}_ranks_store_written_peak_bytes": made["peak_bytes"],
    }


def child(*arguments: object) -> dict[str, Any]:
    """What a separate process measured."""
    command = [sys.executable, __file__, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(harness.ROOT)}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def written(run: str, store: str) -> dict[str, Any]:
    """A store written, its time and memory."""
    from stashtrace.exporters.store import store_run

    begin = time.perf_counter()
    store_run(run, Path(store))
    return {"seconds": time.perf_counter() - begin, "peak_bytes": peak_bytes()}


def measured(store: str) -> dict[str, Any]:
    """One analysis, its time with everything that it imports, and its memory."""
    begin = time.perf_counter()
    from stashtrace.fleet.analyze import analyze

    table, _ = analyze(store, "stalls", by="rank", processes=True)
    seconds = time.perf_counter() - begin
    own, others = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    late = table.take(table["kind"] == "straggler")
    # Of workers the kernel reports the largest alone.
    workers = (os.cpu_count() or 1) * others.ru_maxrss * 1024 if others.ru_utime > 1 else 0
    return {
        "seconds": seconds,
        "cpu_s": own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime,
        "peak_bytes": peak_bytes() + workers,
        "rows": [[int(r), int(s)] for r, s in zip(late["rank"], late["stall_ns"] // late["steps_count"], strict=True)],
    }


def peak_bytes() -> int:
    """Most memory of this process; not ``ru_maxrss``, which begins with that of the process it was forked from."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def check(rows: list[list[int]], job: Any) -> None:
    """The stalls must be those that were put in: a fast wrong answer is none."""
    found = dict(map(tuple, rows))
    wrong = [r for r in range(job.ranks) if abs(found.get(r, 0) - job.straggler_ns(r)) > 50_000]
    if wrong:
        raise SystemExit(f"the budget of rank {wrong[0]} is not the truth: {found.get(wrong[0])}")


if __name__ == "__main__":
    main()
