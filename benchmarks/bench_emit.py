"""What one record costs: two clock readings and ``emit`` against two clock readings and a 32-byte store.

Run ``python benchmarks/bench_emit.py``; it needs cmake and ninja and builds ``native/bench_emit.cpp``. Several
processes repeat the interleaved blocks of the native program; a figure is over those processes. The rows are really
drained to a run directory meanwhile, by a thread that competes for the same cores.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import harness


def build(folder: Path) -> Path:
    """Configure and compile the native benchmark; kept between runs."""
    bin_folder = str(Path(sys.executable).parent)
    cmake, ninja = (shutil.which(n) or shutil.which(n, path=bin_folder) or n for n in ("cmake", "ninja"))
    configure = [
        cmake,
        "-G",
        "Ninja",
        "-S",
        harness.ROOT,
        "-B",
        folder,
        f"-DCMAKE_MAKE_PROGRAM={ninja}",
        "-DSTASHTRACE_BUILD_PYTHON=OFF",
        "-DSTASHTRACE_BUILD_BENCHMARKS=ON",
    ]
    subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
    subprocess.run([cmake, "--build", folder, "--target", "bench_emit"], check=True, stdout=subprocess.DEVNULL)
    return folder / "bin" / "bench_emit"


def main() -> int:
    """Measure, print, write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=9)
    parser.add_argument("--blocks", type=int, default=200, help="of 4096 rows, each of three kinds")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="1, 2, 4, ... up to this")
    parser.add_argument("--no-write", action="store_true", help="print only")
    options = parser.parse_args()
    program = build(harness.ROOT / "build" / "bench")
    found: dict[int, list[dict[str, float]]] = {}
    for _ in range(options.processes):
        done = subprocess.run(
            [program, str(options.threads), str(options.blocks)], capture_output=True, text=True, check=True
        )
        for line in done.stdout.splitlines():
            row = json.loads(line)
            found.setdefault(row["threads"], []).append(row)
    figures = {
        f"{threads}_threads" if threads > 1 else "1_thread": {
            "two_stamps_ns": harness.summary([r["two_stamps_ns"] for r in rows]),
            "floor_ns": harness.summary([r["floor_ns"] for r in rows]),
            "emit_ns": harness.summary([r["emit_ns"] for r in rows]),
            "ratio": harness.summary([r["ratio"] for r in rows]),
            "drainer_cpu_ns_per_row": harness.summary([r["drainer_cpu_ns_per_row"] for r in rows]),
            "dropped_rows_count": sum(r["dropped_rows"] for r in rows),
        }
        for threads, rows in found.items()
    }
    for threads, values in harness.rounded(figures).items():
        for name, value in values.items():
            print(f"{threads:10} {name:24} {value}")
    if not options.no_write:
        command = " ".join(["python benchmarks/bench_emit.py", *sys.argv[1:]])
        path = harness.write_result("emit", figures, command=command)
        print(f"written to {path.relative_to(harness.ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
