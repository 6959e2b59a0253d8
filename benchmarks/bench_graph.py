"""What a graph costs: build it, find its critical path, replay it; of one recording, repeated until it is long.

    python benchmarks/bench_graph.py ../shared/corpus/kineto/one_rank_of_many/df_index_rank1_of_2.json.gz --times 1 25

Each size runs in a separate process, on one core; seconds are medians of ``--runs``, memory is the largest that the
process had, less what it had with the trace loaded.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import stashtrace
from stashtrace.analysis.graph import build
from stashtrace.analysis.graph.critical_path import Course
from stashtrace.analysis.graph.critical_path_tables import CriticalPath
from stashtrace.analysis.steps.steps import steps
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

RESULTS = Path(__file__).parent / "results" / "graph.md"
_TABLES = ("kernels", "collectives", "device_calls", "spans", "phases", "batches")
#: Numbers that identify rows.
_NUMBERS = ("sequence", "collective_key", "span_id", "value", "batch_index", "correlation_id")
_MIB = 1 << 20


def repeated(trace: Trace, times: int) -> Trace:
    """The recording repeated that number of times, as one."""
    period = int(max(int(trace.kernels["end_ns"].max()), int(trace.spans["end_ns"].max()))) + 1_000_000
    changed = {name: _repeated(getattr(trace, name), times, period) for name in _TABLES}
    processes = trace.processes
    life = np.maximum(processes["end_ns"], period * times)
    return trace.replace(processes=processes.replace(end_ns=life), **changed)


def _repeated(table: Table, times: int, period: int) -> Table:
    """Times move along; numbers that identify rows go on."""
    columns: dict[str, Any] = {}
    for name in table.schema.names:
        values = table[name]
        made = np.tile(values, times)
        turn = np.repeat(np.arange(times), len(values))
        if name.endswith("_ns") and name not in ("cpu_ns", "runqueue_ns"):
            made = np.where(made >= 0, made + turn * period, made)
        elif name in _NUMBERS and len(values):
            made = made + turn * (int(values.max()) + 1)
        columns[name] = made
    return Table(table.schema, columns)


def measure(path: str, times: int, runs: int) -> dict[str, float]:
    """Seconds of each part, and memory."""
    trace = repeated(stashtrace.load(path), times)
    steps(trace)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    spent: dict[str, list[float]] = {"build": [], "critical path": [], "replay": [], "slack": []}
    for _ in range(runs):
        began = time.process_time()
        graph = build(trace)
        graph.plan  # noqa: B018  # the order of the nodes, made when first asked for
        built = time.process_time()
        graph.replay()
        done = time.process_time()
        CriticalPath.of(trace, graph)  # the table with names and ties, for which slack is needed too
        found = time.process_time()
        Course.of(graph).slack_ns  # noqa: B018
        ends = time.process_time()
        for name, (a, b) in {
            "build": (began, built),
            "replay": (built, done),
            "critical path": (done, found),
            "slack": (found, ends),
        }.items():
            spent[name].append(b - a)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "nodes": len(graph),
        "edges": len(graph.source),
        **{name: statistics.median(seconds) for name, seconds in spent.items()},
        "MiB": (peak - before) * 1024 / _MIB,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path")
    parser.add_argument("--times", type=int, nargs="+", default=[1, 25])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.path, options.one, options.runs)))
        return
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    rows = []
    for times in options.times:
        command = [sys.executable, __file__, options.path, "--one", str(times), "--runs", str(options.runs)]
        rows.append(json.loads(subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout))
    lines = [
        "| nodes | edges | build, s | replay, s | critical path, s | slack, s | memory besides the trace, MiB |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        seconds = " | ".join(f"{r[name]:.3f}" for name in ("build", "replay", "critical path", "slack"))
        lines.append(f"| {r['nodes']:,} | {r['edges']:,} | {seconds} | {r['MiB']:.0f} |")
    print("\n".join(lines))
    if options.write:
        names = " ".join(map(str, options.times))
        made_by = f"    python benchmarks/bench_graph.py {Path(options.path).name} --times {names} --write"
        text = ["# What a graph costs", "", "CPU seconds of one core, medians. Made by", "", made_by, ""]
        RESULTS.write_text("\n".join([*text, *lines]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
