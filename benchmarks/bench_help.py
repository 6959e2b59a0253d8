"""What `stashtrace --help` costs over a bare interpreter.

    python benchmarks/bench_help.py [--pairs 21] [--out FOLDER]

Bar 0.15 s, goal 0.05 s. The two are run in turns, so that load hits both equally; the figure is the difference
within a pair. The bare interpreter is `python -c pass` and imports its site as the other does.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import harness

BAR_S, GOAL_S = 0.15, 0.05


def seconds(*words: str) -> float:
    """Wall time of one interpreter."""
    environment = {**os.environ, "PYTHONPATH": str(harness.ROOT)}
    begin = time.perf_counter()
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL, env=environment)
    return time.perf_counter() - begin


def main() -> None:
    """Measure, print, write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=21)
    parser.add_argument("--out", type=Path, default=harness.RESULTS)
    options = parser.parse_args()
    seconds("-c", "pass")
    seconds("-m", "stashtrace", "--help")  # compiles
    pairs = [(seconds("-c", "pass"), seconds("-m", "stashtrace", "--help")) for _ in range(options.pairs)]
    figures = {
        "bare_interpreter_s": harness.summary([bare for bare, _ in pairs]),
        "help_over_bare_s": harness.summary([help_ - bare for bare, help_ in pairs]),
        "bar_s": BAR_S,
        "goal_s": GOAL_S,
    }
    path = harness.write_result("help", figures, command="python benchmarks/bench_help.py", folder=options.out)
    added = figures["help_over_bare_s"]
    print(f"--help takes {added['median'] * 1e3:.1f} ms over a bare interpreter (p75 {added['p75'] * 1e3:.1f}): {path}")


if __name__ == "__main__":
    main()
