"""How many records are lost when a process that records is killed: it must be none.

    python benchmarks/bench_kill.py [--out FOLDER]

A child reads 4 KiB pieces of one file and keeps its count in a shared page. It is killed after 1,000, 10,000
and 100,000 calls, with SIGKILL (an out-of-memory killer) and SIGTERM (what torchrun sends the other ranks). Lost are
the calls that the child counted and the run does not hold.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import mmap
import signal
import struct
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import harness

sys.path.insert(0, str(harness.ROOT))
CHILD = """
import mmap, os, struct, sys
page = mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 4096)
data, count = os.open(sys.argv[2], os.O_RDONLY), 0
while True:
    os.pread(data, 4096, 0)
    count += 1
    struct.pack_into("<q", page, 0, count)
"""
CALLS = (1_000, 10_000, 100_000)


def lost_records(folder: Path, calls: int, number: signal.Signals) -> tuple[int, int]:
    """Kill a child that has made at least ``calls`` calls; return the calls it made and the calls lost."""
    import numpy as np

    import stashtrace
    from stashtrace.record.environment import traced_environment
    from stashtrace.schema.kinds import IoOp

    run, counter, data = folder / "run", folder / "counter", folder / "data"
    run.mkdir()
    counter.write_bytes(bytes(4096))
    data.write_bytes(bytes(4096))
    environment = traced_environment({}, run_dir=run, run_id="0123456789abcdef")
    with open(counter, "r+b") as file, mmap.mmap(file.fileno(), 4096) as page:
        command = [sys.executable, "-c", CHILD, str(counter), str(data)]
        child = subprocess.Popen(command, env=environment)
        while child.poll() is None and struct.unpack_from("<q", page)[0] < calls:
            time.sleep(0.001)
        child.send_signal(number)
        if child.wait() != -number:
            raise RuntimeError(f"the child ended with {child.returncode}, not by {number.name}")
        made = struct.unpack_from("<q", page)[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the missing run.json of a run without launcher
        trace = stashtrace.load(run)
    paths = trace.strings.texts(trace.io["path_code"])
    kept = int(np.count_nonzero((trace.io["op_code"] == IoOp.PREAD) & (paths == str(data))))
    return made, max(0, made - kept)


def main() -> None:
    """Kill, count, write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=harness.RESULTS)
    options = parser.parse_args()
    figures: dict[str, object] = {}
    for number in (signal.SIGKILL, signal.SIGTERM):
        for calls in CALLS:
            with tempfile.TemporaryDirectory() as folder:
                made, lost = lost_records(Path(folder), calls, number)
            figures[f"{number.name.lower()}_after_{calls}"] = {"calls_count": made, "lost_count": lost}
            print(f"{number.name} after {made:,} calls: {lost} records lost")
    print(harness.write_result("kill", figures, command="python benchmarks/bench_kill.py", folder=options.out))


if __name__ == "__main__":
    main()
