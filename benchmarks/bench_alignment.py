"""Seconds that the alignment of many hosts takes, and how far it is off from the truth.

    python benchmarks/bench_alignment.py [--ranks 1024] [--collectives 1000] [--repeat 5]

Simulated hosts with offsets of +-10 ms and drifts of +-100 ppm take part in the same all-reduces: eight ranks to a
host, a host for each rank, and that again with one in a hundred operations matched wrongly. What is timed is everything
from the tables of collectives to the clock of each host, without reading files.
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
sys.path.insert(0, str(harness.ROOT / "tests/loading"))

from host_simulation import MS, US, Hosts, Job, S

from stashtrace.loading.clocks.align_recorded import align_tables


def main() -> None:
    """Time each case and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--collectives", type=int, default=1000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--out", type=Path, default=harness.RESULTS)
    options = parser.parse_args()
    figures: dict[str, Any] = {"ranks_count": options.ranks, "collectives_count": options.collectives}
    for name, per_host, wrong in (("8_ranks_a_host", 8, 0.0), ("1_rank_a_host", 1, 0.0), ("1_rank_wrong", 1, 0.01)):
        figures[name] = case(options, per_host, wrong)
        print(name, figures[name], file=sys.stderr)
    command = f"python benchmarks/bench_alignment.py --ranks {options.ranks} --collectives {options.collectives}"
    command += f" --repeat {options.repeat}"
    harness.write_result("alignment", figures, command=command, modules=("numpy",), folder=options.out)


def case(options: argparse.Namespace, per_host: int, wrong: float) -> dict[str, Any]:
    """Seconds of one layout of ranks on hosts, misses and stated errors."""
    rng = np.random.default_rng(0)
    count = max(2, options.ranks // per_host)
    hosts = Hosts.random(count, rng)
    job = Job(hosts, np.repeat(np.arange(count), per_host), rng)
    at = 5 * S + np.arange(options.collectives) * 100.0 * MS
    job.operate(at, np.arange(len(job.host_of)), jitter_ns=0.3 * MS, latency_ns=200 * US)
    table, groups, end = job.collectives(), job.group_table(), float(at[-1] + 1 * S)
    bad = np.flatnonzero((rng.random(options.collectives) < wrong)[table["sequence"]] & (table["process_id"] % 2 == 1))
    call, ended = table["call_ns"].copy(), table["end_ns"].copy()
    call[bad] += 100 * MS
    ended[bad] += 100 * MS
    table = table.replace(call_ns=call, end_ns=ended)
    own, lifes = np.full(count, 50), job.lifes(0, end)
    seconds = []
    for _ in range(options.repeat):
        begin = time.perf_counter()
        found = align_tables(table, groups, job.host_of, own, lifes)
        seconds.append(time.perf_counter() - begin)
    moments = np.linspace(0, end, 20)
    results = [hosts.miss(host, moments, offset) for host, offset in found.offsets.items()]
    misses = np.array([np.abs(miss).max() for miss, _ in results])
    return {
        "hosts_count": count,
        "rows_count": len(table),
        "seconds": harness.summary(seconds),
        "aligned_count": len(found.offsets) + 1,
        "rejected_count": found.rejected_count,
        "median_miss_ns": float(np.median(misses)),
        "largest_miss_ns": float(misses.max()),
        "median_error_ns": float(np.median([error.max() for _, error in results])),
        "inside_ratio": float(np.mean([(np.abs(miss) <= error).all() for miss, error in results])),
    }


if __name__ == "__main__":
    main()
