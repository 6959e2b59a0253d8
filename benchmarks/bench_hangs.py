"""Do `stashtrace analyze hang` and its alarm name who keeps a live job from going on, and why?

    python benchmarks/bench_hangs.py [--only NAME ...] [--repeat N] [--write] [--keep FOLDER]

Jobs of two or three ranks on gloo (``hangs/job.py``) hang in 23 ways, each planted and so known; ten more only take
long. The command is asked again and again while the job lives. Of a hang it must name the rank and the reason, at the
latest 15 s after the last progress, and before that name nobody else; of a job that only takes long it may never say
that nothing gets on. Exit code 1 if one of them is reported wrongly or late.

``--write`` writes ``results/hangs.json`` and ``results/hangs.md``. About half an hour.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness

from stashtrace.record.peek import stacks

LIMIT_S, PATIENCE_S, START_S = 15.0, 40.0, 180.0
LAUNCH = harness.ROOT / "tests" / "ground_truth" / "launch_ranks.py"
JOB = harness.ROOT / "benchmarks" / "hangs" / "job.py"
#: What is said of the thread that holds the GIL: its name and its call need py-spy, which reads them of the process.
HOLDER = "another thread" if stacks.find_program() is None else "thread logger, which is asleep"
#: A line that claims a hang.
ALARM = re.compile(r"^(no progress|mismatched|.*: its process has ended|the job hung)")


@dataclass(frozen=True)
class Hang:
    """A planted hang: what the first line must say, and what any of the others must; ``rank`` is who is waited for."""

    first: str
    reason: str
    ranks: int = 2


def awaited(reason: str, *, ranks: int = 2) -> Hang:
    """A hang in which the last rank does not enter what the others wait in."""
    return Hang(rf"^no progress .*: rank {ranks - 1} has not entered (all-reduce|barrier) \d+ of", reason, ranks)


HANGS: Mapping[str, Hang] = {
    "read": awaited(r"rank 1 is inside read\(\) of \S*queue.fifo, in read_fifo"),
    "open": awaited(r"rank 1 is opening a file, in open_fifo"),
    "lock": awaited(r"rank 1 is waiting for a lock.*, in take_lock"),
    "gil": awaited(rf"the GIL of rank 1 is held by {HOLDER}.*, in \S*flush"),
    "dead_worker": awaited(r"a child process of rank 1 has ended"),
    "sigstop": awaited(r"process of rank 1 is stopped"),
    "recv": awaited(r"rank 1 is inside recv\(\) of a socket, in receive_of_socket"),
    "accept": awaited(r"rank 1 is inside (accept|poll)|rank 1 is in poll.*, in accept_on_socket"),
    "child": awaited(r"rank 1 is waiting for the child process sleep to end, in wait_for_child"),
    "flock": awaited(r"rank 1 is inside flock\(\) of \S*index.lock, in lock_file"),
    "sleep": awaited(r"rank 1 is asleep .*, in sleep_long"),
    "store": awaited(r"rank 1 is (in poll|inside recv).*, in wait_for_store"),
    "left_early": awaited(r"rank 1 is waiting for a lock.*, in join_thread"),
    "worker_read": awaited(r"worker 0 of rank 1 is inside read\(\) of \S*queue.fifo, in \S*__getitem__"),
    "worker_of_eight": awaited(r"worker 6 of rank 1 is inside read\(\) of \S*queue.fifo, in \S*__getitem__"),
    "worker_stopped": awaited(r"worker 0 of rank 1 is stopped"),
    "loop": Hang(
        r"^rank 1 has not entered all-reduce \d+ of .*, but its thread still runs",
        r"rank 1 ran for .*, in endless_loop",
    ),
    "two_groups": Hang(r"^no progress .*: ranks 0,1 wait for each other", r"rank 1 waits in all-reduce"),
    "chain": Hang(r"^no progress .*: rank 2 has not entered", r"rank 2 is asleep .*, in communicate_wrongly", 3),
    "message": Hang(
        r"^no progress .*: rank 2 has not (sent what rank 1 waits to receive|entered)",
        r"rank 2 is waiting for a lock.*, in communicate_wrongly",
        3,
    ),
    "swallowed": Hang(r"^mismatched collectives: as number \d+ of \S+, rank 0 called all-reduce, while rank 1", ""),
    "no_barrier": Hang(r"^mismatched collectives: as number \d+ of \S+, rank 0 called barrier, while rank 1", ""),
    "kinds": Hang(r"^mismatched collectives: as number \d+ of \S+, rank 0 called all-reduce, while rank 1", ""),
    "shapes": Hang(r"^mismatched message sizes in all-reduce \d+ of \S+: rank 0 4.10 KB, rank 1 8.19 KB", ""),
}
LONG = (
    *("long_checkpoint", "long_copy", "long_compilation", "long_metrics", "long_compression"),
    *("long_download", "long_evaluation", "long_read", "long_first_step", "long_first_batch"),
)


def main() -> int:
    """Run the jobs; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=(*HANGS, *LONG), default=(*HANGS, *LONG))
    parser.add_argument("--repeat", type=int, default=1, help="jobs of each kind")
    parser.add_argument("--write", action="store_true", help="write results/hangs.json and results/hangs.md")
    parser.add_argument("--keep", help="folder that keeps the runs and what was said")
    options = parser.parse_args()
    rows = []
    for name in options.only:
        for _ in range(options.repeat):
            with tempfile.TemporaryDirectory(prefix="hangs-") as scratch:
                folder = Path(options.keep, name) if options.keep else Path(scratch)
                shutil.rmtree(folder, ignore_errors=True)
                row = judge_hang(name, folder) if name in HANGS else judge_long(name, folder)
            rows.append(row)
            seconds = f"{row['seconds']:.1f} s" if row["seconds"] is not None else "-"
            print(
                f"{name:16} {'right' if row['right'] else 'WRONG'}  {seconds}  {row['said'][0] if row['said'] else ''}",
                flush=True,
            )
    hangs, longs = [[row for row in rows if (row["name"] in HANGS) is kind] for kind in (True, False)]
    print(f"{sum(r['right'] for r in hangs)} of {len(hangs)} hangs right within {LIMIT_S:.0f} s")
    print(f"{sum(not r['right'] for r in longs)} alarms in {len(longs)} jobs that take long")
    if options.write:
        write(rows)
    return 0 if all(row["right"] for row in rows) else 1


def judge_hang(name: str, folder: Path) -> dict[str, Any]:
    """Run a job that hangs, and ask until the answer is right, or it is too late."""
    expected, said, wrong = HANGS[name], [""], ""
    with job(name, folder, expected.ranks) as began_s:
        while time.monotonic() - began_s < PATIENCE_S:
            said, shown_s = ask(folder)
            text = "\n".join(said)
            is_right = re.search(expected.first, text, re.MULTILINE) and re.search(expected.reason, text)
            if is_right:
                late = shown_s - began_s
                return {
                    "name": name,
                    "right": late <= LIMIT_S and not wrong,
                    "seconds": late,
                    "said": said,
                    "wrong": wrong,
                }
            if ALARM.match(said[0]) and not re.search(expected.first, said[0]):
                wrong = wrong or said[0]
    return {"name": name, "right": False, "seconds": None, "said": said, "wrong": wrong}


def judge_long(name: str, folder: Path) -> dict[str, Any]:
    """Run a job that takes long in one place, and ask as long as it is there."""
    answers: list[list[str]] = []
    with job(name, folder, 2) as began_s:
        while time.monotonic() - began_s < LIMIT_S - 2:
            answers.append(ask(folder)[0])
    alarms = [said for said in answers if any(ALARM.match(line) for line in said)]
    return {
        "name": name,
        "right": not alarms and bool(answers),
        "seconds": None,
        "said": (alarms or [max(answers, key=len, default=[""])])[0],
        "asked": len(answers),
    }


@contextmanager
def job(name: str, folder: Path, ranks: int, *options: str, at_step: int = 8) -> Iterator[float]:
    """Start a job and wait until it hangs; yield when that was; end all of its processes. ``options``: of ``run``."""
    (folder / "files").mkdir(parents=True)
    launch = [
        sys.executable,
        str(LAUNCH),
        "--ranks",
        str(ranks),
        "--",
        sys.executable,
        str(JOB),
        name,
        str(folder / "files"),
        str(at_step),
    ]
    command = [sys.executable, "-m", "stashtrace", "run", *options, "--out", str(folder / "run"), "--", *launch]
    environment = {**os.environ, "PYTHONPATH": str(harness.ROOT)}
    with open(folder / "output", "wb") as output:
        started = subprocess.Popen(command, env=environment, stdout=output, stderr=output, start_new_session=True)
    try:
        begin = time.monotonic()
        while not (folder / "files" / "began").exists():
            if time.monotonic() - begin > START_S or started.poll() is not None:
                raise RuntimeError(f"{name} did not begin: {(folder / 'output').read_text(errors='replace')[-2000:]}")
            time.sleep(0.1)
        yield int((folder / "files" / "began").read_text()) / 1e9
    finally:
        with suppress(ProcessLookupError):  # it may have ended by itself
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()


def ask(folder: Path) -> tuple[list[str], float]:
    """Return the lines of `analyze hang`, and when they were there."""
    command = [sys.executable, "-m", "stashtrace", "analyze", "hang", str(folder / "run")]
    environment = {**os.environ, "PYTHONPATH": str(harness.ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
    return done.stdout.splitlines() or [""], time.monotonic()


def write(rows: list[dict[str, Any]]) -> None:
    """Write the result and its page."""
    result = {
        "command": "python benchmarks/bench_hangs.py --write",
        "date": time.strftime("%Y-%m-%d"),
        "machine": harness.machine(),
        "versions": harness.versions("torch", "numpy"),
        "limit_s": LIMIT_S,
        "jobs": [{**row, "said": [shown(line) for line in row["said"]]} for row in rows],
    }
    (harness.RESULTS / "hangs.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    (harness.RESULTS / "hangs.md").write_text(page(result), encoding="utf-8")


def shown(line: str) -> str:
    """Return a line without the folders of this machine."""
    return re.sub(r"/\S*/(?=[\w.]+)", "…/", line)


def page(result: Mapping[str, Any]) -> str:
    """Return the page of a result."""
    rows = result["jobs"]
    hangs, longs = [[row for row in rows if (row["name"] in HANGS) is kind] for kind in (True, False)]
    times = sorted(row["seconds"] for row in hangs if row["seconds"] is not None)
    facts = harness.page_facts(harness.RESULTS / "hangs.json")
    made = f"`{facts['command']}`, {facts['date']}, {facts['cores']} cores, torch {facts['torch']}"
    right, alarms = (sum(row["right"] is kind for row in part) for part, kind in ((hangs, True), (longs, False)))
    lines = [
        "# Jobs that stand still",
        "",
        f"{made}, load {result['machine']['load_average'][0]}. Jobs on gloo hang in a planted way, and",
        "`stashtrace analyze hang` is asked again and again while they live.",
        "",
        f"**{right} of {len(hangs)}** hangs: rank and reason are right within {result['limit_s']:.0f} s of the last",
        f"progress: median {times[len(times) // 2]:.1f} s, longest {times[-1]:.1f} s, of which the look is one.",
        f"**{alarms}** alarms in {len(longs)} jobs that only take long.",
        "",
    ]
    for title, part in (("Hangs", hangs), ("Jobs that only take long", longs)):
        lines += [f"## {title}", "", "| job | reported | after | what was said |", "|---|---|---|---|"]
        for row in part:
            after = f"{row['seconds']:.1f} s" if row["seconds"] is not None else ""
            said = "<br>".join(line.strip().replace("|", "\\|") for line in row["said"])
            lines.append(f"| {row['name']} | {'right' if row['right'] else 'wrong'} | {after} | {said} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
