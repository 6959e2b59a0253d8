"""Pieces of device work per second of each analysis of them, and what a rank costs as ranks grow, on one core.

    python benchmarks/bench_device_analysis.py [--work 2000000] [--repeat 5]

The work is made up: per rank two streams with gaps, one piece in ten communication, launches known. Imports and loading
are not counted.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import harness
import numpy as np

sys.path.insert(0, str(harness.ROOT))

from stashtrace.analysis.registry import analyze
from stashtrace.schema.events import TABLES
from stashtrace.schema.kinds import DeviceWork
from stashtrace.schema.strings import StringPool
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

ANALYSES = ("breakdown", "idle", "kernels", "launches", "copies")
NAMES = 200


def made(ranks: int, per_rank: int) -> Trace:
    """A trace of nothing but kernels."""
    strings = StringPool()
    codes = strings.codes(f"kernel {n}" for n in range(NAMES))
    number, rank = np.tile(np.arange(per_rank), ranks), np.repeat(np.arange(ranks), per_rank)
    begin = number * 10_000 + (number % 3) * 700
    columns: dict[str, Any] = {c.name: np.zeros(len(number), dtype=np.int64) for c in TABLES["kernels"].columns}
    columns |= {
        "begin_ns": begin,
        "end_ns": begin + 6_000 + number % 13 * 500,
        "process_id": rank,
        "rank": rank,
        "track_id": 2 * rank + number % 2,
        "launch_ns": begin - 5_000 - number % 5 * 3_000,
        "return_ns": begin - 2_000 - number % 5 * 3_000,
        "name_code": codes[number % NAMES],
        "work_code": np.where(number % 10 == 0, int(DeviceWork.COMMUNICATION), int(DeviceWork.KERNEL)),
    }
    return Trace(strings, {"kernels": Table(TABLES["kernels"], columns)})


def seconds(trace: Trace, name: str) -> float:
    """CPU time of one analysis."""
    begin = time.process_time()
    analyze(trace, name)
    return time.process_time() - begin


def main() -> None:
    """Time everything, write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=int, default=2_000_000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--out", type=Path, default=harness.RESULTS)
    options = parser.parse_args()
    figures: dict[str, Any] = {"work_count": options.work}
    per_rank = options.work // 1024
    traces = {"large": made(16, options.work // 16), "few": made(16, per_rank), "many": made(1024, per_rank)}
    for name in ANALYSES:
        found = {label: [seconds(trace, name) for _ in range(options.repeat)] for label, trace in traces.items()}
        figures[f"{name}_work_per_s"] = harness.summary([options.work / t for t in found["large"]])
        few, many = min(found["few"]) / 16, min(found["many"]) / 1024
        figures[f"{name}_per_rank_1024_to_16_ratio"] = many / few
        print(
            f"{name:<12}{options.work / min(found['large']) / 1e6:6.1f} M/s, a rank {few * 1e6:.0f} us, "
            f"of 1024 {many * 1e6:.0f} us",
            file=sys.stderr,
        )
    command = f"python benchmarks/bench_device_analysis.py --work {options.work} --repeat {options.repeat}"
    harness.write_result("device_analysis", figures, command=command, modules=("numpy",), folder=options.out)


if __name__ == "__main__":
    main()
