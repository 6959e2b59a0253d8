"""Events per second of each registered analysis, and intervals per second of the kernels, on one core.

    python benchmarks/bench_analysis.py [--ranks 2] [--steps 2000] [--calls-per-batch 600] [--repeat 5]

The run is synthetic (synth.py); an event is a row of any table that the trace holds. Loading is not counted.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import numpy as np

sys.path.insert(0, str(harness.ROOT))

from stashtrace._native import intervals
from stashtrace.analysis.registry import ANALYSES, analyze
from stashtrace.errors import MissingDataError
from stashtrace.schema.events import TABLES


def main() -> None:
    """Write the synthetic run, time everything, write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--calls-per-batch", type=int, default=600)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--out", type=Path, default=harness.RESULTS)
    options = parser.parse_args()
    figures: dict[str, Any] = kernels(options.repeat)
    with tempfile.TemporaryDirectory(prefix="stashtrace-analysis-") as folder:
        trace = made(Path(folder) / "run", options)
        events = sum(len(trace.table(name)) for name in TABLES)
        figures["events_count"] = events
        for name, _, _ in ANALYSES:
            try:
                times = [seconds(lambda name=name: analyze(trace, name)) for _ in range(options.repeat)]
            except MissingDataError as error:  # links, agreement: a run without devices
                print(f"{name:<18}left out: {error}", file=sys.stderr)
                continue
            figures[f"{name}_events_per_s"] = harness.summary([events / t for t in times])
            print(f"{name:<18}{events / min(times) / 1e6:8.1f} M events/s", file=sys.stderr)
    command = f"python benchmarks/bench_analysis.py --ranks {options.ranks} --steps {options.steps}"
    command += f" --calls-per-batch {options.calls_per_batch} --repeat {options.repeat}"
    harness.write_result("analysis", figures, command=command, modules=("numpy",), folder=options.out)


def made(path: Path, options: argparse.Namespace) -> Any:
    """The synthetic run, loaded."""
    from stashtrace.lab import synth
    from stashtrace.loading.load import load_trace

    job = synth.SyntheticJob(ranks=options.ranks, steps=options.steps, calls_per_batch=options.calls_per_batch)
    synth.write(path, job)
    return load_trace(str(path))


def kernels(repeat: int) -> dict[str, Any]:
    """Intervals of input per second of each kernel; two sets of a million each."""
    random = np.random.default_rng(0)
    count = 1_000_000
    sets = []
    for _ in range(2):
        begin = np.cumsum(random.integers(10, 30, count))
        sets.append((begin, begin + random.integers(1, 9, count)))
    (a, a_end), (b, b_end) = sets
    cases: dict[str, tuple[int, Callable[[], Any]]] = {
        "union": (count, lambda: intervals.union(a, a_end)),
        "intersect": (2 * count, lambda: intervals.intersect(a, a_end, b, b_end)),
        "subtract": (2 * count, lambda: intervals.subtract(a, a_end, b, b_end)),
        "coverage": (2 * count, lambda: intervals.coverage(a, a_end, b, b_end)),
        "join": (2 * count, lambda: intervals.join(a, a_end, b, b_end)),
        "paint": (2 * count, lambda: intervals.paint(sets)),
        "attribute": (2 * count, lambda: intervals.attribute(sets, b[:-100:100], b[100::100])),
    }
    figures = {}
    for name, (size, call) in cases.items():
        figures[f"{name}_intervals_per_s"] = harness.summary([size / seconds(call) for _ in range(repeat)])
        print(f"{name:<18}{figures[f'{name}_intervals_per_s']['max'] / 1e6:8.1f} M intervals/s", file=sys.stderr)
    return figures


def seconds(call: Callable[[], Any]) -> float:
    """Wall time of one call."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
