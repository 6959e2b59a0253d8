"""Record two jobs by turns: before, after, after, before, ...

What slows a machine down for some minutes (heat, neighbours, another job) then slows both jobs alike, and the order
within a round changes, so that a steady drift cancels. Each run is a process of ``stashtrace run`` of its own.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stashtrace.errors import CaptureError, UsageError
from stashtrace.lab.characterize.run_on_hosts import last_words
from stashtrace.record.program import own_program
from stashtrace.whole_files import new_log

#: So long a recorder may take to end after it was told to.
_PATIENCE_S = 20.0


@dataclass(frozen=True, slots=True)
class Job:
    """What to run."""

    #: Begins the names of its run directories: ``before`` or ``after``.
    name: str
    #: Program and its arguments.
    command: tuple[str, ...]
    #: In which it runs.
    folder: Path
    #: Options of ``stashtrace run``.
    options: tuple[str, ...] = ()
    #: Variables of the job beside those of this process.
    environment: Mapping[str, str] = field(default_factory=dict)


def turns(rounds: int, jobs: Sequence[Job]) -> list[tuple[int, Job]]:
    """Return the runs in their order, each with the number of its round; every second round is the other way round.

    Examples
    --------
    >>> [f"{job.name}{number}" for number, job in turns(2, [Job("a", (), Path()), Job("b", (), Path())])]
    ['a0', 'b0', 'b1', 'a1']
    """
    return [(number, job) for number in range(rounds) for job in (jobs[::-1] if number % 2 else jobs)]


def record_by_turns(
    rounds: int,
    jobs: Sequence[Job],
    out: Path,
    *,
    on_run: Callable[[int, int, str], None] = lambda done, whole, name: None,
) -> dict[str, list[Path]]:
    """Record each job ``rounds`` times, and return its run directories by its name, in the order of the rounds.

    What a job prints is in a file beside its run directory.

    ``out``: folder for the runs; made if missing, else empty. ``on_run``: called before each run with the number of
    runs done, of runs in all, and the name of the run. Raises UsageError if a folder in which a job is to run is not
    there. Raises CaptureError if ``out`` is in use or cannot be made, or a job fails.
    """
    for job in jobs:
        if not job.folder.is_dir():
            raise UsageError(
                f"{job.folder} is no folder to run a job in", hint="`git worktree add DIR COMMIT` makes one of a commit"
            )
    make_runs_folder(out)
    runs: dict[str, list[Path]] = {job.name: [] for job in jobs}
    order = turns(rounds, jobs)
    for done, (number, job) in enumerate(order):
        name = f"{job.name}-{number}"
        on_run(done, len(order), name)
        runs[job.name].append(record_job(job, (out / name).absolute()))
    return runs


def make_runs_folder(out: Path) -> None:
    """Make a folder for runs.

    Raises CaptureError if it is in use or cannot be made.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()):
            raise CaptureError(f"{out} exists and is not empty", hint="choose another directory with -o")
    except OSError as error:
        raise CaptureError(f"cannot make {out}: {error.strerror}", hint="choose another directory with -o") from error


def record_job(job: Job, directory: Path) -> Path:
    """Record a job once, what it prints in a file beside ``directory``, an absolute path, and return that.

    Raises CaptureError if the job fails.
    """
    log = directory.with_name(f"{directory.name}.log")
    words = own_program("stashtrace", "run", "--no-merge", "--out", str(directory), *job.options, "--", *job.command)
    with new_log(log) as output:
        process = subprocess.Popen(
            words,
            cwd=job.folder,
            env={**os.environ, **job.environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        code = process.wait()
    except BaseException as error:
        _end(process, told=isinstance(error, KeyboardInterrupt))
        raise
    if code:
        raise CaptureError(
            f"{directory.name} ended with exit code {code}: {last_words(log) or 'it printed nothing'}",
            hint=f"its output is in {log}",
        )
    return directory


def _end(process: subprocess.Popen[bytes], *, told: bool) -> None:
    """End the recorder, which ends its job; Ctrl-C at a terminal has told both already."""
    if not told:
        process.terminate()
    try:
        process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
