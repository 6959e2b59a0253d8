"""Seconds that late and late_ranks take on many ranks, and that per rank.

    python benchmarks/bench_late.py [--ranks 16,1024] [--collectives 1000] [--repeat 3]

Made up in memory: each rank has three phases and an all-reduce a step, and in each step another rank is 20 ms late.
Every analysis begins with a trace of which nothing is known yet: steps, matching and budgets are part of the time.
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
sys.path.insert(0, str(harness.ROOT / "tests/support"))

from builders import MS, WORLD, TraceBuilder

from stashtrace.analysis.registry import analyze
from stashtrace.schema.events import TABLES
from stashtrace.schema.kinds import CollectiveOp, Phase
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

STEP_NS = 100 * MS


def main() -> None:
    """Time both analyses for each number of ranks and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="16,1024", help="comma separated")
    parser.add_argument("--collectives", type=int, default=1000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--out", type=Path, default=harness.RESULTS)
    options = parser.parse_args()
    figures: dict[str, Any] = {"collectives_count": options.collectives}
    for ranks in map(int, options.ranks.split(",")):
        base, tables, guilty = made(ranks, options.collectives)
        for name in ("late", "late_ranks"):
            times = []
            for _ in range(options.repeat):
                trace = Trace(base.strings, tables)
                begin = time.perf_counter()
                found = analyze(trace, name)
                times.append(time.perf_counter() - begin)
                if name == "late":
                    assert (found["late_rank"] == guilty[found["step"]]).all()
                    assert set(found["cause_kind"].tolist()) == {"compute"}
            figures[f"{name}_{ranks}_ranks"] = {
                "seconds": harness.summary(times),
                "us_per_rank_and_collective": 1e6 * min(times) / (ranks * options.collectives),
            }
            print(name, ranks, [round(t, 2) for t in times], file=sys.stderr)
    command = f"python benchmarks/bench_late.py --ranks {options.ranks} --collectives {options.collectives}"
    command += f" --repeat {options.repeat}"
    harness.write_result("late", figures, command=command, modules=("numpy",), folder=options.out)


def made(ranks: int, steps: int) -> tuple[Trace, dict[str, Table], Any]:
    """Tables of a job, the trace that has its processes and strings, and the late rank of each step."""
    build = TraceBuilder()
    build.group(range(ranks))
    for number in range(ranks):
        build.rank(number).lives(0, steps * STEP_NS)
    base = build.trace()
    random = np.random.default_rng(0)
    guilty = random.integers(0, ranks, steps)
    rank, step = np.repeat(np.arange(ranks), steps), np.tile(np.arange(steps), ranks)
    start = step * STEP_NS
    forward_end = start + 10 * MS + np.where(rank == guilty[step], 20 * MS, 0) + random.integers(0, MS, len(rank))
    who = {
        "process_id": np.array([build.ranks[r].process_id for r in range(ranks)])[rank],
        "track_id": np.array([build.ranks[r].track_id for r in range(ranks)])[rank],
    }
    phases = [
        table("phases", **who, begin_ns=begin, end_ns=end, phase_code=np.full(len(rank), int(phase)))
        for phase, begin, end in (
            (Phase.FORWARD, start, forward_end),
            (Phase.BACKWARD, forward_end, start + 60 * MS),
            (Phase.OPTIMIZER, start + 60 * MS, start + 95 * MS),
        )
    ]
    call, end, key = forward_end + 5 * MS, start + 50 * MS, np.arange(len(rank))
    tables = {name: base.table(name) for name in TABLES}
    tables["phases"] = Table.concat(TABLES["phases"], phases)
    tables["collectives"] = table(
        "collectives",
        **who,
        collective_key=key,
        rank=rank,
        communicator_track_id=np.full(len(rank), -1),
        group_hash=np.full(len(rank), WORLD, dtype=np.uint64),
        sequence=step,
        message_bytes=np.full(len(rank), 1 << 20),
        op_code=np.full(len(rank), int(CollectiveOp.ALL_REDUCE)),
        call_ns=call,
        return_ns=call,
        end_ns=end,
    )
    tables["collective_waits"] = table("collective_waits", **who, begin_ns=call, end_ns=end, collective_key=key)
    return base, tables, guilty


def table(name: str, **columns: Any) -> Table:
    """A table whose other columns hold what its schema says for unknown."""
    rows = len(next(iter(columns.values())))
    return Table(TABLES[name], {c.name: columns.get(c.name, np.full(rows, c.missing)) for c in TABLES[name].columns})


if __name__ == "__main__":
    main()
