"""What a job feels while the run directory hangs: how long its thread stands still.

    python benchmarks/bench_hanging_disk.py [--hang-s 8] [--repeat 3] [--out FOLDER]

The disk is made to hang with a lease (``F_SETLEASE``) on the job's ``.stash``: whoever opens the file to write waits
until the lease is given back, as on a server that does not answer. The job makes I/O calls as fast as it can, with a
small ring, so that the ring is full at once; it measures how long twenty calls take, and what takes over 40 ms counts
as a standstill. Three scenes: a process that has a thread of the recorder (a job with torch or a device), one that
drains itself, and the first one without any hang, which says how much of this the machine does by itself.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import harness

sys.path.insert(0, str(harness.ROOT))
JOB = """
import json, os, sys, time
zero = os.open("/dev/zero", os.O_RDONLY)
print("recording", flush=True)
sys.stdin.readline()
stood_s, begin = [], time.monotonic()
end = begin + float(sys.argv[1])
while begin < end:
    for _ in range(20):
        os.pread(zero, 16, 0)
    now = time.monotonic()
    if now - begin > 0.04:
        stood_s.append(now - begin)
    begin = now
print(json.dumps(stood_s), flush=True)
"""
LEASE_LASTS_S = 40  # the kernel takes it back after 45 s


def standstills(folder: Path, drainer: str, hang_s: float, rest_s: float) -> list[float]:
    """Seconds of each standstill of a job whose run directory hangs for ``hang_s`` and is well for ``rest_s`` more."""
    from stashtrace.record.environment import traced_environment

    environment = traced_environment({}, run_dir=folder, run_id="0123456789abcdef")
    environment |= {"STASHTRACE_DRAINER": drainer, "STASHTRACE_RING_BYTES": "65536"}
    command = [sys.executable, "-I", "-S", "-c", JOB, str(hang_s + rest_s)]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdin is not None
        assert job.stdout is not None
        job.stdout.readline()
        lease = _lease(next(folder.glob(f"*.{job.pid}.*.stash"))) if hang_s > 0 else -1
        job.stdin.write("go\n")
        job.stdin.flush()
        if lease >= 0:
            time.sleep(hang_s)
            os.close(lease)  # gives it back
        return [float(each) for each in json.loads(job.stdout.readline())]


def _lease(path: Path) -> int:
    """A descriptor that keeps everybody from opening the file to write; tried again while the recorder has it open."""
    descriptor = os.open(path, os.O_RDONLY)
    for _ in range(1000):
        try:
            fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            return descriptor
        except BlockingIOError:
            time.sleep(0.001)
    raise RuntimeError(f"no lease on {path.name}")


def main() -> None:
    """Run the scenes in turn, write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hang-s", type=float, default=8.0, help=f"at most {LEASE_LASTS_S}")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--out", type=Path, default=harness.RESULTS)
    options = parser.parse_args()
    if not 0 < options.hang_s <= LEASE_LASTS_S:
        parser.error(f"--hang-s must be above 0 and at most {LEASE_LASTS_S}")
    signal.signal(signal.SIGIO, lambda *_: None)  # the kernel asks for the lease
    figures: dict[str, object] = {"hang_s": options.hang_s}
    for scene, drainer, hang_s in (
        ("with_own_thread", "thread", options.hang_s),
        ("drains_itself", "self", options.hang_s),
        ("no_hang", "thread", 0.0),
    ):
        rounds = []
        for _ in range(options.repeat):
            with tempfile.TemporaryDirectory() as folder:
                rounds.append(standstills(Path(folder), drainer, hang_s, 2.0 if hang_s else options.hang_s))
        figures[scene] = {
            "longest_s": harness.summary([max(each, default=0.0) for each in rounds]),
            "total_s": harness.summary([sum(each) for each in rounds]),
            "standstills_count": harness.summary([len(each) for each in rounds]),
        }
        print(scene, [[round(s, 3) for s in each] for each in rounds], flush=True)
    command = "python benchmarks/bench_hanging_disk.py"
    print(harness.write_result("hanging_disk", figures, command=command, folder=options.out))


if __name__ == "__main__":
    main()
