"""Merge of a run of many small processes: CPU time, wall time and memory as their number doubles.

    python benchmarks/bench_many_processes.py [--processes 5000] [--repeats 3]

Each process has made forty calls and was killed, so that its ring is left. Packing, loading, timeline and summary, as
`stashtrace merge` does them; ratios of one run say whether the time grows with the processes or faster.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import itertools
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import harness

sys.path.insert(0, str(harness.ROOT / "tests/support"))
CALLS = 40


def write_run(folder: Path, count: int) -> None:
    """Files of ``count`` processes that were killed in the middle."""
    from stash_files import StashWriter, ms, write_run_json

    from stashtrace.format.liveness import own_boot_id

    for number in range(count):
        began = ms(number)
        stash = StashWriter(
            folder,
            pid=100_000 + number,
            ppid=100_000 if number else 1,
            boot_id=own_boot_id(),
            metadata={"start_ticks": began, "start_monotonic_ns": began, "start_realtime_ns": began + number},
        )
        path = stash.intern(f"/usr/lib/module_{number % 50}.py")
        stash.sync(number, number + 50)
        rows = [stash.row("io_op", begin_ticks=ms(number + k), duration_ticks=900, path_id=path) for k in range(CALLS)]
        stash.add("io_op", rows[: CALLS // 2])
        stash.add_ring("io_op", rows[CALLS // 2 :], capacity=32)
        stash.save()
    write_run_json(folder)


def measure(folder: Path) -> dict[str, float]:
    """Merge one run in this process."""
    from stashtrace.cli import main as stashtrace

    wall, cpu = time.perf_counter(), time.process_time()
    code = stashtrace(["merge", str(folder)])
    if code:
        raise SystemExit(code)
    return {
        "cpu_s": time.process_time() - cpu,
        "wall_s": time.perf_counter() - wall,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0,
    }


def main() -> None:
    """Measure, print, write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=5000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=harness.RESULTS)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure is not None:
        print(json.dumps(measure(given.measure)))
        return
    runs: dict[int, list[dict[str, float]]] = {given.processes // 4: [], given.processes // 2: [], given.processes: []}
    with tempfile.TemporaryDirectory(prefix="stashtrace-many-") as name:
        for _ in range(given.repeats):
            for count, found in runs.items():
                folder = Path(name) / "run"
                write_run(folder, count)
                done = subprocess.run(
                    [sys.executable, __file__, "--measure", folder], check=True, stdout=subprocess.PIPE, text=True
                )
                found.append(json.loads(done.stdout.splitlines()[-1]))
                shutil.rmtree(folder)
    figures: dict[str, Any] = {}
    for count, found in runs.items():
        for clock in ("cpu_s", "wall_s", "peak_bytes"):
            figures[f"processes_{count}_{clock}"] = harness.summary([one[clock] for one in found])
    counts = list(runs)
    for few, many in itertools.pairwise(counts):
        ratios = [b["cpu_s"] / a["cpu_s"] for a, b in zip(runs[few], runs[many], strict=True)]
        figures[f"cpu_ratio_{many}_over_{few}"] = harness.summary(ratios)
    command = f"python benchmarks/bench_many_processes.py --processes {given.processes} --repeats {given.repeats}"
    harness.write_result("many_processes", figures, command=command, modules=("numpy",), folder=given.out)
    print(json.dumps(harness.rounded(figures), indent=2))


if __name__ == "__main__":
    main()
