"""Run every benchmark, one after the other, and say which failed.

    python benchmarks/run_all.py [--only hook merge ...] [--list]

Each ``bench_*.py`` runs in a separate process with its default options and writes its result below
``benchmarks/results``. About an hour, on a machine that does nothing else: two benchmarks side by side would measure
each other. Exit code 1 if one failed, or missed its bar.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


def benchmarks() -> dict[str, Path]:
    """Name -> file, in alphabetical order."""
    return {path.stem.removeprefix("bench_"): path for path in sorted(FOLDER.glob("bench_*.py"))}


def main() -> int:
    """Run what was chosen; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=sorted(benchmarks()), default=sorted(benchmarks()))
    parser.add_argument("--list", action="store_true", help="print the names and end")
    options = parser.parse_args()
    if options.list:
        print("\n".join(benchmarks()))
        return 0
    failed = []
    for name in options.only:
        begin = time.monotonic()
        print(f"== {name}", flush=True)
        code = subprocess.run([sys.executable, str(benchmarks()[name])], check=False).returncode
        print(f"== {name}: exit code {code} after {time.monotonic() - begin:.0f} s", flush=True)
        if code:
            failed.append(name)
    print(f"{len(options.only) - len(failed)} of {len(options.only)} benchmarks passed", *failed)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
