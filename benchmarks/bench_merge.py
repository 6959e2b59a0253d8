"""Events per second and peak memory of the merge: pack, load, attribute, write the timeline; and bytes per I/O call.

Run ``python benchmarks/bench_merge.py`` (a few minutes) or with ``--calls 50000000 --repeats 1 --name merge_50m`` for
the memory figure (needs 6 GB of disk). Each repetition writes a fresh synthetic run and measures it in a separate
process that is bound to one core; rates are per CPU second of that process, so a busy neighbour does not enter.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import numpy as np

ROOT = harness.ROOT
NATIVE = ROOT / "benchmarks" / "native"


def measure(directory: str) -> dict[str, float]:
    """Merge one run in this process; times are CPU seconds."""
    import stashtrace
    from stashtrace.format.compact import compact_run
    from stashtrace.format.reader import open_run

    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    figures: dict[str, float] = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        cpu, wall = time.process_time(), time.perf_counter()
        result = work()
        figures[f"{name}_cpu_s"] = time.process_time() - cpu
        figures[f"{name}_wall_s"] = time.perf_counter() - wall
        figures[f"{name}_peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0
        return result

    raw_bytes = _size(directory)
    report = timed("pack", lambda: compact_run(open_run(directory)))
    if report.problems or report.alive:
        raise SystemExit(f"not packed: {report.problems} {report.alive}")
    trace = timed("load", lambda: stashtrace.load(directory))
    timed("stalls", lambda: stashtrace.analyze(trace, "stalls"))
    timed("timeline", lambda: stashtrace.export(trace, "perfetto", os.path.join(directory, "timeline.pftrace")))
    os.unlink(os.path.join(directory, "timeline.pftrace"))
    calls = trace.io_rows_count
    events = calls + sum(len(trace.table(t)) for t in ("phases", "batches", "collectives", "collective_waits"))
    cpu = sum(v for k, v in figures.items() if k.endswith("_cpu_s"))
    figures |= {
        "events_count": events,
        "cpu_s": cpu,
        "events_per_cpu_s": events / cpu,
        "raw_bytes_per_io_call": raw_bytes / calls,
        "finished_bytes_per_io_call": _size(directory) / calls,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0,
    }
    for part in ("pack", "load", "stalls", "timeline"):
        figures[f"{part}_events_per_cpu_s"] = events / figures[f"{part}_cpu_s"]
    return figures


def varint_rows_per_cpu_s(folder: Path, rows: int = 2_000_000) -> float:
    """The yardstick: a plain varint loop over columns like those of I/O calls."""
    library = folder / "varint_loop.so"
    subprocess.run(
        ["g++", "-std=c++20", "-O2", "-fPIC", "-shared", "-o", library, NATIVE / "varint_loop.cpp"], check=True
    )
    loop = ctypes.CDLL(str(library)).varint_loop
    loop.restype = ctypes.c_uint64
    random = np.random.default_rng(0)
    begin = np.cumsum(random.integers(2_000, 20_000, rows))
    end = begin + random.integers(500, 2_000, rows)
    columns = [random.integers(0, 1 << bits, rows) for bits in (3, 10, 20, 14)]
    pointers = (ctypes.c_void_p * len(columns))(*(c.ctypes.data for c in columns))
    best = 0.0
    for _ in range(5):
        cpu = time.process_time()
        loop(
            ctypes.c_size_t(rows),
            ctypes.c_size_t(len(columns)),
            ctypes.c_void_p(begin.ctypes.data),
            ctypes.c_void_p(end.ctypes.data),
            pointers,
        )
        best = max(best, rows / (time.process_time() - cpu))
    return best


def _size(directory: str) -> int:
    return sum(os.path.getsize(os.path.join(directory, n)) for n in os.listdir(directory) if n.endswith(".stash"))


def repeat(calls: int, folder: Path) -> dict[str, float]:
    """One fresh run, merged in a separate process."""
    run = folder / "run"
    shutil.rmtree(run, ignore_errors=True)
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "",
    }
    # An installed package is compiled; a checkout might not be.
    subprocess.run([sys.executable, "-m", "compileall", "-q", ROOT / "stashtrace"], check=True, env=environment)
    steps = max(calls // (2 * 600), 10)
    subprocess.run(
        [
            sys.executable,
            "-m",
            "stashtrace.cli.synth",
            run,
            "--ranks",
            "2",
            "--calls-per-batch",
            "600",
            "--steps",
            str(steps),
            "--late-rank",
            "1",
            "--late",
            "7",
        ],
        check=True,
        env=environment,
        stderr=subprocess.DEVNULL,
    )
    done = subprocess.run(
        [sys.executable, __file__, "--measure", run], check=True, env=environment, stdout=subprocess.PIPE, text=True
    )
    shutil.rmtree(run)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> int:
    """Measure, print, write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=4_800_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--name", default="merge")
    parser.add_argument("--folder", type=Path, help="where the runs are written; a temporary folder by default")
    parser.add_argument("--measure", metavar="DIR", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(measure(given.measure)))
        return 0
    with tempfile.TemporaryDirectory(dir=given.folder) as scratch:
        folder = Path(scratch)
        runs, ratios = [], []
        for _ in range(given.repeats):
            runs.append(repeat(given.calls, folder))
            ratios.append(runs[-1]["events_per_cpu_s"] / varint_rows_per_cpu_s(folder))
    figures: dict[str, Any] = {name: harness.summary([run[name] for run in runs]) for name in runs[0]}
    figures["events_per_varint_row_ratio"] = harness.summary(ratios)
    command = f"python benchmarks/bench_merge.py --calls {given.calls} --repeats {given.repeats} --name {given.name}"
    path = harness.write_result(given.name, figures, command=command, modules=("numpy",))
    for name in ("events_per_cpu_s", "events_per_varint_row_ratio", "finished_bytes_per_io_call", "peak_bytes"):
        print(f"{name:32} {figures[name]['median']:,.5g}")
    print(path)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
