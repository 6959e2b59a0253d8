"""Timeline and summary of a run of 10^8 I/O calls: wall time, CPU time and memory.

    python benchmarks/bench_large_timeline.py [--calls 100000000] [--repeats 3] [--runs reads burst]

Bar: 60 s of wall time from the files to the timeline, and 2 GB. The runs, all merged, 2 GB of disk together and 4 GB
for a while:

    reads      8 threads read without end, no call blocked
    writes     one thread writes to one file without end
    burst      the calls of half a minute, in a run of years: all in one time bin
    training   two ranks, a sixth of the calls of their workers blocked, 70,000 steps and more

Each is measured in a separate process. Takes ten minutes.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import numpy as np

sys.path.insert(0, str(harness.ROOT / "tests/support"))
MOST_WALL_S, MOST_BYTES = 60.0, 2e9
SEGMENT_ROWS = 1 << 16
#: Calls of a worker per batch of the training run.
BATCH_CALLS = 600


class Writer:
    """One merged process file, written segment by segment."""

    def __init__(self, folder: Path) -> None:
        from stash_files import START_NS, StashWriter, write_run_json

        from stashtrace.format.container import FLAG_MERGED, pack_head
        from stashtrace.format.project import current_layouts

        self.stash = StashWriter(folder, env={"RANK": "0"})
        self.stash.sync(0, 30_000)
        self.begin_ns = START_NS
        self.paths = np.array([self.stash.intern(f"/data/shard-{i:03}.tar") for i in range(100)])
        self.layout = current_layouts()["io_op"]
        self.random = np.random.default_rng(0)
        self._out = self.stash.path.open("wb")
        self._out.write(pack_head(self.stash.schema_records, self.stash.metadata, flags=FLAG_MERGED))
        self._out.write(b"".join(self.stash.segments))
        write_run_json(folder)

    def calls(self, thread: int, first: int, begin_ns: np.ndarray, **columns: Any) -> None:
        """A segment of one thread's calls, each of some 100 ns."""
        from stashtrace.format.codec import encode
        from stashtrace.format.container import pack_segment

        count = len(begin_ns)
        rows = np.zeros(count, dtype=self.layout.dtype)
        rows["begin_ticks"] = begin_ns
        rows["duration_ticks"] = self.random.integers(80, 140, count)
        for name, values in columns.items():
            rows[name] = values
        codec, payload = encode(rows)
        self._out.write(
            pack_segment(
                payload,
                record_id=self.layout.record_id,
                codec=codec,
                tid=self.stash.pid + thread,
                ring_id=1 + thread,
                row_count=count,
                first_sequence=first,
            )
        )

    def loop(self, threads: int, calls: int, columns: Callable[[int], dict[str, Any]], first_thread: int = 0) -> None:
        """Threads that call without end, one every 300 ns."""
        each, at = calls // threads, [self.begin_ns] * threads
        for first in range(0, each, SEGMENT_ROWS):
            count = min(SEGMENT_ROWS, each - first)
            for thread in range(threads):
                begin = at[thread] + np.cumsum(self.random.integers(150, 450, count))
                at[thread] = int(begin[-1])
                self.calls(first_thread + thread, first, begin, **columns(count))

    def reads(self, count: int) -> dict[str, Any]:
        """64 reads of a file at a time."""
        from stashtrace.schema.kinds import IoOp

        paths = np.repeat(self.random.choice(self.paths, -(-count // 64)), 64)[:count]
        offsets = self.random.integers(0, 1 << 20, count) * 4096
        return {"op_code": int(IoOp.PREAD), "result_bytes": 4096, "offset_bytes": offsets, "path_id": paths}

    def close(self) -> None:
        """Nothing more comes."""
        self._out.close()


def write_reads(folder: Path, calls: int) -> None:
    """See the top of this file."""
    writer = Writer(folder)
    writer.loop(8, calls, writer.reads)
    writer.close()


def write_writes(folder: Path, calls: int) -> None:
    """See the top of this file."""
    from stashtrace.schema.kinds import IoOp

    writer = Writer(folder)
    same = {"op_code": int(IoOp.WRITE), "result_bytes": 1, "offset_bytes": -1, "path_id": int(writer.paths[0])}
    writer.loop(1, calls, lambda count: same)
    writer.close()


def write_burst(folder: Path, calls: int) -> None:
    """See the top of this file."""
    from stashtrace.schema.kinds import IoOp

    writer = Writer(folder)
    rare = writer.begin_ns + np.arange(1000) * 10 * 86_400 * 10**9
    writer.calls(0, 0, rare, op_code=int(IoOp.STAT))
    writer.loop(1, calls, writer.reads, first_thread=1)
    writer.close()


def write_training(folder: Path, calls: int) -> None:
    """See the top of this file."""
    from stashtrace.format.compact import compact_run
    from stashtrace.format.reader import open_run
    from stashtrace.lab import synth

    steps = -(-calls // (2 * BATCH_CALLS))
    synth.write(folder, synth.SyntheticJob(steps=steps, calls_per_batch=BATCH_CALLS, late_rank=1, late_ns=7_000_000))
    if problems := compact_run(open_run(folder)).problems:
        raise SystemExit(f"not packed: {problems}")


RUNS = {"reads": write_reads, "writes": write_writes, "burst": write_burst, "training": write_training}


def measure(folder: Path, what: str) -> dict[str, float]:
    """Load a run and write its timeline, or print its summary, in this process."""
    wall, cpu = time.perf_counter(), time.process_time()
    figures: dict[str, float] = {}
    if what == "timeline":
        import stashtrace

        trace = stashtrace.load(folder)
        figures = {"load_wall_s": time.perf_counter() - wall, "load_cpu_s": time.process_time() - cpu}
        written = stashtrace.export(trace, "perfetto", folder / "timeline.pftrace.gz")
        figures["timeline_slices_count"] = written.rows_count
        written.path.unlink()
    else:
        from stashtrace.cli import main as stashtrace_command

        if code := stashtrace_command(["analyze", "summary", str(folder)]):
            raise SystemExit(code)
    return {
        **figures,
        f"{what}_wall_s": time.perf_counter() - wall,
        f"{what}_cpu_s": time.process_time() - cpu,
        f"{what}_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0,
    }


def apart(folder: Path, what: str) -> dict[str, float]:
    """The same in a separate process."""
    command = [sys.executable, __file__, "--measure", what, str(folder)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> int:
    """Measure, print, write the result; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=100_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=list(RUNS))
    parser.add_argument("--out", type=Path, default=harness.RESULTS)
    parser.add_argument("--measure", nargs=2, metavar=("WHAT", "RUN"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure is not None:
        print(json.dumps(measure(Path(given.measure[1]), given.measure[0])))
        return 0
    figures: dict[str, Any] = {"calls_count": given.calls}
    missed = []
    for name in given.runs:
        with tempfile.TemporaryDirectory(prefix="stashtrace-large-") as scratch:
            folder = Path(scratch) / "run"
            RUNS[name](folder, given.calls)
            figures[f"{name}_disk_bytes"] = sum(path.stat().st_size for path in folder.glob("*.stash"))
            found = [{**apart(folder, "timeline"), **apart(folder, "summary")} for _ in range(given.repeats)]
            shutil.rmtree(folder)
        for figure in found[0]:
            figures[f"{name}_{figure}"] = harness.summary([one[figure] for one in found])
        wall, peak = figures[f"{name}_timeline_wall_s"]["median"], figures[f"{name}_timeline_peak_bytes"]["max"]
        missed += [name] if wall > MOST_WALL_S or peak > MOST_BYTES else []
        print(f"{name:10} timeline {wall:6.1f} s, {peak / 1e6:6.0f} MB", flush=True)
    command = f"python benchmarks/bench_large_timeline.py --calls {given.calls} --repeats {given.repeats}"
    if len(given.runs) < len(RUNS):
        command += f" --runs {' '.join(given.runs)}"
    print(harness.write_result("large_timeline", figures, command=command, modules=("numpy",), folder=given.out))
    if missed:
        print("above the bar:", *missed)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
