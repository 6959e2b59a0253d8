"""Run a job of the bench under the tracer, and ask for its summary."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

from causes.members import Job

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).with_name("scripts")
LAUNCHER = ROOT / "tests" / "ground_truth" / "launch_ranks.py"
#: Longer than any job takes on a busy machine; a job that takes longer is a failure of its member.
PATIENCE_S = 400
_POLL_S = 0.1
#: Names a Python with torch and the packages that some jobs need in addition to it.
VARIABLE = "STASHTRACE_CAUSES_PYTHON"


def environment() -> dict[str, str]:
    """Return the environment of a job: one thread a rank, and this tree's package."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH", "")])]
    return dict(os.environ, PYTHONPATH=os.pathsep.join(paths), OMP_NUM_THREADS="1")


def command_of(job: Job, arguments: str, clock: Path) -> list[str]:
    """Return the command of a job as a person would type it."""
    script = [str(SCRIPTS / job.script), "--clock", str(clock), *arguments.split()]
    python = interpreter(job.needs)
    if job.launcher == "torchrun":
        torchrun = [python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={job.ranks}"]
        return [*torchrun, f"--max-restarts={job.restarts}", *script]
    if job.ranks == 1:
        return [python, *script]
    return [sys.executable, str(LAUNCHER), "--ranks", str(job.ranks), "--", python, *script]


@cache
def interpreter(module: str) -> str:
    """Return a Python that has a module: this one, or that of ``VARIABLE``; empty if neither has it."""
    for python in (sys.executable, os.environ.get(VARIABLE, "")):
        code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
        if not module or (python and subprocess.run([python, "-c", code], check=False).returncode == 0):
            return python
    return ""


def run(job: Job, folder: Path) -> Path:
    """Record a job and return its run directory.

    Raises
    ------
    RuntimeError
        If it fails and should not, or does not end.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tracer = [sys.executable, "-m", "stashtrace", "run", "--out", str(folder / "run"), "--"]
    code = _execute([*tracer, *command_of(job, job.arguments, folder / "clock")], folder, job)
    if code and not job.plan.ending:
        raise RuntimeError(f"exit code {code}\n{(folder / 'log.txt').read_text(errors='replace')[-3000:]}")
    return folder / "run"


def _execute(command: list[str], folder: Path, job: Job) -> int:
    """Run a command in a separate session, and kill it or its ranks where the job says so."""
    with open(folder / "log.txt", "wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=environment(),
            start_new_session=True,
        )
        try:
            if job.kill_after_s:
                _kill(process, folder / "clock", job)
            return process.wait(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"did not end within {PATIENCE_S} s") from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _kill(process: subprocess.Popen[bytes], clock: Path, job: Job) -> None:
    """Kill the ranks some time after their last step, or all of the session."""
    deadline = time.monotonic() + PATIENCE_S
    steps, changed = -1, time.monotonic()
    while time.monotonic() < min(changed + job.kill_after_s, deadline) and process.poll() is None:
        done = sum(path.stat().st_size for path in clock.glob("clock-*.jsonl"))
        begun = len(list(clock.glob("clock-*.jsonl"))) == job.ranks and done > 0
        if done != steps or not begun:
            steps, changed = done, time.monotonic()
        time.sleep(_POLL_S)
    if job.kills_all:
        os.killpg(process.pid, signal.SIGKILL)
        return
    for path in clock.glob("pid-*"):
        try:
            os.kill(int(path.read_text(encoding="ascii")), signal.SIGKILL)
        except ProcessLookupError:
            print(f"{job.name}: {path.name} has ended before it was killed", file=sys.stderr)


def summarize(path: Path, form: str) -> str:
    """Return the summary of a recording, as text or as JSON."""
    command = [sys.executable, "-m", "stashtrace", "summary", "--format", form, str(path)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    if done.returncode:
        raise RuntimeError(f"summary: exit code {done.returncode}: {done.stderr.strip()[-1000:]}")
    return done.stdout
