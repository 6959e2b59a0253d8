"""How often the trigger of growing stalls is wrong, and how late it is right, on made-up jobs.

    python benchmarks/bench_growth.py [--jobs 100]

Balanced jobs of 8 ranks whose sequences vary in length (``tests/support/varying_job.py``), each of 10,000 steps: what
the trigger says there is a false alarm. In further jobs one rank reads 20 ms longer from step 900 on. The seeds begin
at ``FIRST_SEED``, far from those of the tests, which the trigger's limits were chosen with.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import harness

sys.path[:0] = [str(harness.ROOT), str(harness.ROOT / "tests" / "support")]
from varying_job import growths, varying_job  # noqa: E402

FIRST_SEED = 7_000_000
STEPS = 10_000
SPREADS = (0.3, 0.6, 1.0)
CORRELATIONS = (0.0, 0.9)
SLOWER_SINCE, SLOWER_STEPS, SLOWER_JOBS = 900, 1600, 20


def main() -> None:
    """Count, print, write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=100, help="balanced jobs of each kind")
    parser.add_argument("--out", type=Path, default=harness.RESULTS)
    options = parser.parse_args()
    rows = []
    for number, (memory, spread) in enumerate((m, s) for m in CORRELATIONS for s in SPREADS):
        first = FIRST_SEED + number * 100_000
        rows.append({"correlation": memory, "spread": spread, **measure(first, options.jobs, spread, memory)})
        print(json.dumps(rows[-1]), file=sys.stderr)
    command = f"python benchmarks/bench_growth.py --jobs {options.jobs}"
    harness.write_result("growth", {"kinds": rows}, command=command, modules=("numpy",), folder=options.out)


def measure(first_seed: int, jobs: int, spread: float, memory: float) -> dict[str, object]:
    """False alarms of balanced jobs, and steps until slower reads are reported."""
    alarms = sum(len(growths(varying_job(first_seed + n, STEPS, spread=spread, memory=memory))) for n in range(jobs))
    late, others = [], 0
    for number in range(SLOWER_JOBS):
        job = varying_job(
            first_seed + 50_000 + number,
            SLOWER_STEPS,
            spread=spread,
            memory=memory,
            slower_reads_ms=20.0,
            since=SLOWER_SINCE,
        )
        found = growths(job)
        right = [
            g.step - SLOWER_SINCE for g in found if (g.kind, g.ranks) == ("fetch", (3,)) and g.step >= SLOWER_SINCE
        ]
        others += len(found) - len(right[:1])
        late += right[:1]
    return {
        "steps_count": jobs * STEPS,
        "false_alarms_count": alarms,
        "false_alarms_of_10000_steps": alarms / jobs,
        "slower_jobs_count": SLOWER_JOBS,
        "slower_found_count": len(late),
        "steps_until_found_max": max(late, default=-1),
        "steps_until_found_min": min(late, default=-1),
        "other_alarms_count": others,
    }


if __name__ == "__main__":
    main()
