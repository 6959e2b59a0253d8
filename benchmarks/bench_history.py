"""A history of many runs: how long `stashtrace history` takes to read and to answer, and how right the answers are.

    python benchmarks/bench_history.py [--runs 1000 10000] [--repeats 3] [--nulls 100] [--folder DIR]

Made-up runs of 8 ranks on 200 hosts by 100 jobs, some 40 at a time on one file system. For each number of runs, in a
separate process: seconds, CPU seconds and peak memory of reading all files and of each question, files in the page
cache. Bar for 10,000 runs on two cores: 10 s and 1 GB for reading and all questions.

Then, over fleets of 60 runs with other seeds: how often the planted host, commit and writer are found alone, and, where
nothing was planted but lateness of alternating ranks, steps that vary and a rank that is late wherever it runs, how
often anything is named.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import harness

sys.path[:0] = [str(harness.ROOT), str(harness.ROOT / "tests/support")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--nulls", type=int, default=100, help="fleets with and without planted effects")
    parser.add_argument("--folder", type=Path, help="where histories are written; a temporary folder by default")
    parser.add_argument("--out", type=Path, default=harness.RESULTS)
    parser.add_argument("--measure", metavar="DIR", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measured(options.measure)))
        return
    figures: dict[str, Any] = {}
    for runs in options.runs:
        with tempfile.TemporaryDirectory(prefix="stashtrace-history-", dir=options.folder) as folder:
            figures |= one_size(Path(folder) / "history", runs, options.repeats)
    if options.nulls:
        figures |= rightness(options.nulls)
    listed = " ".join(map(str, options.runs))
    command = f"python benchmarks/bench_history.py --runs {listed} --repeats {options.repeats} --nulls {options.nulls}"
    harness.write_result("history", figures, command=command, modules=("numpy", "pyarrow"), folder=options.out)


def one_size(folder: Path, runs: int, repeats: int) -> dict[str, Any]:
    """Figures of one number of runs."""
    from made_up_history import MINUTE, SECOND, Fleet, Job, write_history

    jobs = tuple(
        Job(
            ("torchrun", f"train{at:03d}.py"),
            every_ns=30 * MINUTE if at % 10 == 0 else 0,
            write_ns=90 * SECOND if at % 10 == 0 else 0,
        )
        for at in range(100)
    )
    fleet = Fleet(
        seed=runs,
        runs=runs,
        jobs=jobs,
        hosts=200,
        commits=10,
        late_hosts={"node07": (0.8, 40_000_000, "fetch")},
        slow_commits={5: 0.18},
        write_slows=2.0,
        between_hours=0.05,
    )
    begin = time.perf_counter()
    write_history(folder, fleet)
    made_s = time.perf_counter() - begin
    sizes = [entry.stat().st_size for entry in os.scandir(folder)]
    found = [child("--measure", folder) for _ in range(repeats)]
    last = found[-1]
    if "node07" not in last["named"]:
        raise SystemExit(f"the late host is not among those that were named: {last['named']}")
    seconds = [one["read_s"] + sum(one["questions_s"].values()) for one in found]
    print(
        f"{runs:>6} runs: {min(seconds):6.2f} s, {last['peak_bytes'] / 1e6:.0f} MB, of it reading"
        f" {last['read_s']:.2f} s; {last['questions_s']}; made in {made_s:.0f} s",
        file=sys.stderr,
    )
    return {
        f"{runs}_runs_s": harness.summary(seconds),
        f"{runs}_runs_read_s": harness.summary([one["read_s"] for one in found]),
        **{
            f"{runs}_runs_{name}_s": harness.summary([one["questions_s"][name] for one in found])
            for name in last["questions_s"]
        },
        f"{runs}_runs_cpu_s": harness.summary([one["cpu_s"] for one in found]),
        f"{runs}_runs_peak_bytes": max(one["peak_bytes"] for one in found),
        f"{runs}_runs_file_mean_bytes": sum(sizes) / len(sizes),
        f"{runs}_runs_pairs_named_count": last["pairs"],
    }


def child(*arguments: object) -> dict[str, Any]:
    """What a separate process measured."""
    environment = {**os.environ, "PYTHONPATH": str(harness.ROOT)}
    command = [sys.executable, __file__, *map(str, arguments)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def measured(folder: str) -> dict[str, Any]:
    """Reading and every question, with all that they import."""
    begin = time.perf_counter()
    from stashtrace.lab.history.answers import answer
    from stashtrace.lab.history.gather import read_history
    from stashtrace.lab.history.run_files import Place
    from stashtrace.lab.history.run_totals import RunTotals
    from stashtrace.lab.recommend.instance_catalog import load_catalog

    totals = RunTotals(read_history(Place(folder)), load_catalog())
    read_s, spent = time.perf_counter() - begin, {}
    tables = {}
    for name in ("fleet", "hosts", "commits", "interference", "costs", "runs"):
        begin = time.perf_counter()
        tables[name] = answer(totals, name).table
        spent[name] = time.perf_counter() - begin
    used = os.times()
    return {
        "read_s": read_s,
        "questions_s": spent,
        "cpu_s": used.user + used.system,
        "peak_bytes": peak_bytes(),
        "named": [row["host"] for row in tables["hosts"].rows() if row["verdict"] in ("always", "often")],
        "pairs": len(tables["interference"]),
    }


def peak_bytes() -> int:
    """Most memory of this process; not ``ru_maxrss``, which begins with that of the process it was forked from."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def rightness(count: int) -> dict[str, Any]:
    """The number of fleets with the right answers, with planted effects and without."""
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        planted = list(pool.map(planted_fleet, range(count)))
        balanced = list(pool.map(balanced_fleet, range(1000, 1000 + count)))
    figures: dict[str, Any] = {"fleets_count": count}
    for name in ("host", "commit", "writer"):
        figures[f"{name}_found_alone_count"] = sum(one[name] for one in planted)
        figures[f"{name}_wrong_count"] = sum(one[f"{name}_wrong"] for one in planted)
        figures[f"balanced_{name}_named_count"] = sum(one[name] for one in balanced)
    print(figures, file=sys.stderr)
    return figures


def _tables(fleet: Any) -> dict[str, list[dict[str, Any]]]:
    from made_up_history import write_history

    from stashtrace.lab.history.answers import answer
    from stashtrace.lab.history.gather import read_history
    from stashtrace.lab.history.run_files import Place
    from stashtrace.lab.history.run_totals import RunTotals
    from stashtrace.lab.recommend.instance_catalog import load_catalog

    folder = Path(tempfile.mkdtemp(prefix="stashtrace-history-"))
    try:
        write_history(folder, fleet)
        totals = RunTotals(read_history(Place(str(folder))), load_catalog())
        found = {name: list(answer(totals, name).table.rows()) for name in ("hosts", "commits", "interference")}
    finally:
        shutil.rmtree(folder)
    found["hosts"] = [row for row in found["hosts"] if row["verdict"] in ("always", "often")]
    found["commits"] = [row for row in found["commits"] if row["verdict"] in ("slower", "faster")]
    return found


def planted_fleet(seed: int) -> dict[str, bool]:
    """A late host, a slow commit, a writer that slows reads: which of them are found, and whether others are named."""
    from made_up_history import commit, fleet_with_three_plants

    fleet = fleet_with_three_plants(seed)
    found = _tables(fleet)
    hosts = {row["host"] for row in found["hosts"]}
    commits = {(row["commit"], row["verdict"]) for row in found["commits"]}
    writers = {row["other_job"] for row in found["interference"]}
    return {
        "host": hosts == {"node07"},
        "host_wrong": bool(hosts - {"node07"}),
        "commit": commits == {(commit(3), "slower")},
        "commit_wrong": bool(commits - {(commit(3), "slower")}),
        "writer": writers == {"torchrun writer.py"},
        "writer_wrong": bool(writers - {"torchrun writer.py"}),
    }


def balanced_fleet(seed: int) -> dict[str, bool]:
    """Whether anything is named where nothing was planted."""
    from made_up_history import MINUTE, SECOND, Fleet, Job

    turns = Job(("torchrun", "turns.py"), scatter=0.06, run_scatter=0.03)
    rank = Job(("torchrun", "rank.py"), busy_rank=seed % 4, busy_ns=30_000_000, run_scatter=0.02)
    long = Job(
        ("torchrun", "b.py"), hosts=3, scatter=0.03, run_scatter=0.05, every_ns=15 * MINUTE, write_ns=60 * SECOND
    )
    fleet = Fleet(
        seed=seed,
        runs=60,
        jobs=(turns, rank, long),
        commits=8,
        between_hours=0.5,
        hosts=8,
        sorted_hosts=bool(seed % 2),
    )
    found = _tables(fleet)
    return {
        "host": bool(found["hosts"]),
        "commit": bool(found["commits"]),
        "writer": bool(found["interference"]),
    }


if __name__ == "__main__":
    main()
