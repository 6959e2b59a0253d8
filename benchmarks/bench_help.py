"""What `stashtrace --help` costs over a bare interpreter: paired and interleaved, so that load hits both alike.

    python benchmarks/bench_help.py [--json FILE]

Bar 0.15 s, goal 0.05 s. The bare interpreter is `python -c pass`; both import what their site does.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time

PAIRS = 15


def seconds(*words: str) -> float:
    """Wall time of one interpreter."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def main() -> None:
    """Measure, print, and write what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="file for the numbers")
    options = parser.parse_args()
    seconds("-c", "pass")
    seconds("-m", "stashtrace", "--help")
    pairs = [(seconds("-c", "pass"), seconds("-m", "stashtrace", "--help")) for _ in range(PAIRS)]
    bare = statistics.median(b for b, _ in pairs)
    added = sorted(h - b for b, h in pairs)
    result = {
        "bare_s": round(bare, 4),
        "added_s": round(statistics.median(added), 4),
        "added_low_s": round(added[PAIRS // 10], 4),
        "added_high_s": round(added[-1 - PAIRS // 10], 4),
        "bar_s": 0.15,
        "goal_s": 0.05,
        "pairs": PAIRS,
    }
    print(json.dumps(result, indent=1))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
