"""What a traced 4 KiB ``pread`` costs, and a hook that only forwards, and one that does the least a tracer can.

Run ``python benchmarks/bench_hook.py``; it needs gcc and a built ``libstashtrace.so``. One process calls the three
preads in turn, block by block (see ``native/pread_loop.c``), several processes repeat that. Added = traced or
minimal minus forwarding, per round; the ratio is of the two medians, the interval is that of the processes.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import harness

from stashtrace.record.environment import LIBRARY_PATH, traced_environment
from stashtrace.record.options import RecordOptions

NATIVE = Path(__file__).resolve().parent / "native"
FILE_BYTES = 4 << 20
WARM_UP_CALLS = 40_000  # as in pread_loop.c


def build(folder: Path) -> tuple[Path, list[Path]]:
    """Compile the loop and the two yardsticks."""
    loop = folder / "pread_loop"
    subprocess.run(["gcc", "-O2", "-o", loop, NATIVE / "pread_loop.c", "-ldl"], check=True)
    libraries = []
    for name in ("forward_hook", "minimal_hook"):
        library = folder / f"{name}.so"
        subprocess.run(["gcc", "-O2", "-fPIC", "-shared", "-o", library, NATIVE / f"{name}.c", "-ldl"], check=True)
        libraries.append(library)
    return loop, libraries


def one_process(
    loop: Path, libraries: list[Path], data: Path, run_dir: Path, calls: int, rounds: int
) -> list[list[float]]:
    """ns per call and round: traced, forwarding, minimal."""
    environment = traced_environment(
        os.environ, RecordOptions(collectors=("posix_io",)), run_dir=run_dir, run_id="be9c"
    )
    done = subprocess.run(
        [loop, data, str(calls), str(rounds), *libraries], env=environment, capture_output=True, text=True, check=True
    )
    return [[float(x) for x in line.split()] for line in done.stdout.splitlines()]


def main() -> int:
    """Measure, print, write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--calls", type=int, default=500, help="per block; a quarter of a ring is 8192 rows")
    parser.add_argument("--no-write", action="store_true", help="print only")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder_name:
        folder = Path(folder_name)
        loop, libraries = build(folder)
        data = folder / "data"
        data.write_bytes(os.urandom(FILE_BYTES))
        added: dict[str, list[float]] = {"traced": [], "minimal": []}
        ratios, bare, ring_bytes = [], [], 0.0
        for number in range(options.processes):
            run_dir = folder / f"run-{number}"
            run_dir.mkdir()
            rounds = one_process(loop, libraries, data, run_dir, options.calls, options.rounds)
            traced = [r[0] - r[1] for r in rounds]
            minimal = [r[2] - r[1] for r in rounds]
            bare.extend(r[1] for r in rounds)
            added["traced"].extend(traced)
            added["minimal"].extend(minimal)
            ratios.append(statistics.median(traced) / statistics.median(minimal))
            ring_bytes = recorded_bytes_per_call(run_dir, options)
    figures = {
        "forwarded_pread_ns": harness.summary(bare),
        "added_traced_ns": harness.summary(added["traced"]),
        "added_minimal_ns": harness.summary(added["minimal"]),
        "ratio_of_medians": statistics.median(added["traced"]) / statistics.median(added["minimal"]),
        "ratio_per_process": harness.summary(ratios),
        "bytes_per_record_in_ring": 32,
        "stash_file_bytes_per_call": ring_bytes,
        "library_bytes": LIBRARY_PATH.stat().st_size,
    }
    for name, value in harness.rounded(figures).items():
        print(f"{name:28} {value}")
    if not options.no_write:
        arguments = " ".join(sys.argv[1:])
        path = harness.write_result("hook", figures, command=f"python benchmarks/bench_hook.py {arguments}".strip())
        print(f"written to {path.relative_to(harness.ROOT)}")
    return 0


def recorded_bytes_per_call(run_dir: Path, options: argparse.Namespace) -> float:
    """Bytes that the drainer wrote per traced call, before any merge."""
    written = sum(p.stat().st_size for p in run_dir.glob("*.stash"))
    return written / (options.calls * options.rounds + WARM_UP_CALLS)


if __name__ == "__main__":
    sys.exit(main())
