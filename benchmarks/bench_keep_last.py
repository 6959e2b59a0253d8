"""A day of a job that is followed with ``--keep-last``: what its files take, and the memory of the follower.

    python benchmarks/bench_keep_last.py [--hours 24] [--keep 500]

A made-up job of two ranks with a worker each makes a step a second (tests/live/made_job.py); one step in 2,000 is slow,
so that windows are sealed. A separate process lets its files grow by ten seconds a round, as a job would, and this
one follows them with the code of ``run --live``: it accounts for the steps, drops the earlier ones, seals windows.
Written are the bytes on disk, by what they belong to, and the resident memory, at the end of each hour. Bar: the
recording, the table of steps and the memory are bounded: no later hour exceeds what the first six reached by more than
a tenth. Windows are counted apart: there are 20 at most. Writes results/keep_last.json; exit code 1 if the bar is
missed.

``--ratio`` takes another figure: what the run directory takes against the full recording of the same steps. The job
then has the shape of the example: as many bytes a step as ``examples/train_ddp.py`` records on this machine, which is
run twice for that. It makes ``--hours`` of steps of a second, of which ``--keep`` are kept. Compared is what
the whole directory takes, with windows and the table of steps, with the bytes that the processes wrote: a file of
which rows are dropped stays as long as it was. The made-up rows are too similar to say anything of sizes after a
merge. Bar: a hundredth. Writes results/keep_last_ratio.json.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import harness

for folder in ("", "tests/live", "tests/support"):
    sys.path.insert(0, str(harness.ROOT / folder))

SECOND = 1_000_000_000
ROUND_NS = 10 * SECOND
HOUR_S = 3600
SLOW_EVERY = 2_000
RANKS = 2
#: A step of this nominal length takes a second: batches are made while others are used.
STEP_MS = 1_800.0
#: The limit of the table of closed steps, lowered from 64 MiB so that a day of this small job reaches it.
TABLE_BYTES = 1 << 20
MOST_GROWTH_RATIO = 1.1
#: Bar of ``--ratio``, the job whose shape is taken, and the lengths of two runs whose difference is a step's bytes.
MOST_RATIO = 0.01
EXAMPLE = harness.ROOT / "examples" / "train_ddp.py"
SHORT_STEPS = (60, 160)


def main() -> int:
    """Follow the job; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=int, default=24)
    parser.add_argument("--keep", type=int, default=500)
    parser.add_argument("--out", type=Path, default=harness.RESULTS)
    parser.add_argument("--ratio", action="store_true", help="take the ratio to the full recording instead")
    parser.add_argument("--job", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--reads", type=int, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job is not None:
        be_the_job(options.job, options.hours, options.reads)
        return 0
    if options.ratio:
        return take_ratio(options.hours, options.keep, options.out)
    with tempfile.TemporaryDirectory(prefix="stashtrace-keep-last-") as name:
        hours = follow(Path(name), options.hours, options.keep)
    exceeded = {figure: growth(hours, figure) for figure in ("recording_bytes", "live_steps_bytes", "memory_bytes")}
    figures = {
        "hours_count": options.hours,
        "steps_kept_count": options.keep,
        "hours": hours,
        **{f"{figure}_later_over_first_ratio": ratio for figure, ratio in exceeded.items()},
    }
    command = "python benchmarks/bench_keep_last.py"
    print(harness.write_result("keep_last", figures, command=command, modules=("numpy",), folder=options.out))
    return 1 if max(exceeded.values()) > MOST_GROWTH_RATIO else 0


def take_ratio(hours_count: int, keep: int, out: Path) -> int:
    """Compare the run directory with the full recording of the same steps; the exit code."""
    example_bytes = bytes_of_a_step(example_recording)
    reads = 1 + round((example_bytes - bytes_of_a_step(made_recording)) / (bytes_of_a_read() or 1))
    with tempfile.TemporaryDirectory(prefix="stashtrace-keep-last-") as name:
        folder = Path(name)
        hours = follow(folder, hours_count, keep, reads)
        full_bytes = sum(path.stat().st_size for path in (folder / "run").glob("*.stash"))
        # After the last step, not at the last full hour.
        kept_bytes = sum(path.stat().st_blocks * 512 for path in (folder / "run").rglob("*") if path.is_file())
    figures = {
        "hours_count": hours_count,
        "steps_kept_count": keep,
        "example_step_bytes": example_bytes,
        "step_bytes": full_bytes / (hours_count * HOUR_S + 60),
        "full_bytes": full_bytes,
        "kept_bytes": kept_bytes,
        "kept_over_full_ratio": kept_bytes / full_bytes,
        "last_hour": hours[-1],
    }
    command = f"python benchmarks/bench_keep_last.py --ratio --hours {hours_count} --keep {keep}"
    print(harness.write_result("keep_last_ratio", figures, command=command, modules=("torch", "numpy"), folder=out))
    return 1 if kept_bytes > MOST_RATIO * full_bytes else 0


def bytes_of_a_step(record: Callable[[Path, int], None]) -> float:
    """Return what one more step adds to the files of a recording, not merged."""
    sizes = []
    for steps_count in SHORT_STEPS:
        with tempfile.TemporaryDirectory(prefix="stashtrace-keep-last-") as name:
            record(Path(name) / "job", steps_count)
            sizes.append(sum(path.stat().st_size for path in Path(name).rglob("*.stash")))
    return (sizes[1] - sizes[0]) / (SHORT_STEPS[1] - SHORT_STEPS[0])


def example_recording(folder: Path, steps_count: int) -> None:
    """Record the example."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    harness.run_job([*launch, str(EXAMPLE), "--steps", str(steps_count)], folder, traced=True)


def made_recording(folder: Path, steps_count: int, reads: int = 1) -> None:
    """Write a recording of the made-up job, as its processes would."""
    from growing_files import grow
    from made_job import write_job

    write_job(folder, ranks_count=RANKS, steps_count=steps_count, step_ms=STEP_MS, reads_count=reads)
    for _ in grow(folder, folder.parent / "grown", steps_count * SECOND):
        pass
    shutil.rmtree(folder)


def bytes_of_a_read() -> float:
    """Return what one more read a batch adds to each step."""
    more = 100
    return (bytes_of_a_step(partial(made_recording, reads=1 + more)) - bytes_of_a_step(made_recording)) / more


def growth(hours: list[dict[str, Any]], figure: str) -> float:
    """The most of the later hours over the most of the first six."""
    values = [hour[figure] for hour in hours]
    return float(max(values) / max(values[:6]))


def follow(folder: Path, hours_count: int, keep: int, reads: int = 1) -> list[dict[str, Any]]:
    """Let the job grow and follow it; return what was there at the end of each hour."""
    from stashtrace.live import followed
    from stashtrace.live.state import EventLog

    words = [sys.executable, __file__, "--job", str(folder), "--hours", str(hours_count), "--reads", str(reads)]
    job = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert job.stdin is not None
    assert job.stdout is not None
    clock = Clock()
    followed.time = clock  # the job's time, not that of this machine
    run, hours, begin_s = None, [], time.process_time()
    for line in job.stdout:
        clock.now_ns = int(line)
        if run is None:
            first_ns = clock.now_ns
            wanted = followed.FollowOptions(keep, table_bytes=TABLE_BYTES)
            run = followed.FollowedRun(folder / "run", EventLog(folder / "run", None), wanted)
            run.accounts.run = type(run.accounts.run)(str(folder / "run"))  # whose processes are of another boot
        run.round()
        if clock.now_ns - first_ns >= (len(hours) + 1) * HOUR_S * SECOND:
            hours.append(look(run, folder / "run", time.process_time() - begin_s))
            print(hours[-1], file=sys.stderr, flush=True)
        job.stdin.write("\n")
        job.stdin.flush()
    if job.wait():
        raise RuntimeError(f"the job ended with {job.returncode}")
    return hours


class Clock(types.SimpleNamespace):
    """The module ``time`` with the time of the made-up job."""

    now_ns = 0
    process_time_ns = staticmethod(time.process_time_ns)

    def monotonic_ns(self) -> int:
        """CLOCK_MONOTONIC of the job's machine."""
        return self.now_ns

    def monotonic(self) -> float:
        """The same in seconds."""
        return self.now_ns / 1e9

    def time_ns(self) -> int:
        """CLOCK_REALTIME of the job's machine."""
        from stash_files import REALTIME_OFFSET_NS

        return self.now_ns + REALTIME_OFFSET_NS

    def time(self) -> float:
        """The same in seconds."""
        return self.time_ns() / 1e9


def look(run: Any, directory: Path, cpu_s: float) -> dict[str, Any]:
    """What the files take on disk, by what they belong to, and the memory of this process."""
    sizes = {"recording": 0, "windows": 0, "live_steps": 0, "other": 0}
    for path in directory.rglob("*"):
        if path.is_file():
            place = "other"
            if "windows" in path.parts:
                place = "windows"
            elif path.suffix in (".stash", ".ring"):
                place = "recording"
            elif path.suffix == ".rows":
                place = "live_steps"
            sizes[place] += path.stat().st_blocks * 512
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "steps_count": min(run.accounts.closed.values()) + 1,
        "disk_bytes": sum(sizes.values()),
        **{f"{place}_bytes": size for place, size in sizes.items()},
        "memory_bytes": pages * 4096,
        "windows_count": len(list((directory / "windows").glob("*"))),
        "cpu_s": cpu_s,
    }


def be_the_job(folder: Path, hours_count: int, reads: int) -> None:
    """Make the job's files, then let them grow by a round for each line of standard input."""
    from growing_files import grow
    from made_job import write_job

    steps_count = hours_count * HOUR_S + 60
    late = {(step % RANKS, step): 2_000.0 for step in range(SLOW_EVERY, steps_count, SLOW_EVERY)}
    shape: dict[str, Any] = {"step_ms": STEP_MS, "late_ms": late, "reads_count": reads}
    write_job(folder / "job", ranks_count=RANKS, steps_count=steps_count, **shape)
    for now_ns in grow(folder / "job", folder / "run", ROUND_NS):
        print(now_ns, flush=True)
        if not sys.stdin.readline():
            return


if __name__ == "__main__":
    sys.exit(main())
