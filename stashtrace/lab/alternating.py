"""Record two jobs alternately (before, after, after, before, ...), and compare them by as many runs as the gate needs.

What slows a machine down for some minutes (heat, neighbours, another job) then slows both jobs equally, and the order
within a round changes, so that a steady drift cancels. Each run is a separate process of ``stashtrace run``.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stashtrace.analysis.compare.change import RUN_TO_RUN_RATIO, RUNS_THAT_TELL, Side
from stashtrace.analysis.compare.gate_verdict import Condition, Gate, judge, other_work
from stashtrace.analysis.compare.steps_of_run import STEP, StepsOfRun
from stashtrace.errors import CaptureError, UsageError
from stashtrace.files.whole_files import new_log
from stashtrace.lab.characterize.run_on_hosts import last_words
from stashtrace.record.program import own_program
from stashtrace.report.blocks import Paragraph
from stashtrace.summary.gate_text import document

#: How long a recorder may take to end after it was asked to.
_PATIENCE_S = 20.0
#: A run to which other work on the machine may have added more than this part of its step is not used.
CONTENDED_RATIO = 0.05
#: The comparison is given up when this many times the wanted rounds were lost to other work.
_MOST_LOST = 4
#: The number of runs of one job that show the usual use of the CPUs by others.
_RUNS_THAT_TELL = 6


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
    #: Variables of the job, added to those of this process.
    environment: Mapping[str, str] = field(default_factory=dict)


def turns(rounds: int, jobs: Sequence[Job]) -> list[tuple[int, Job]]:
    """Return the runs in their order, each with the number of its round; every second round is the other way round.

    Examples
    --------
    >>> [f"{job.name}{number}" for number, job in turns(2, [Job("a", (), Path()), Job("b", (), Path())])]
    ['a0', 'b0', 'b1', 'a1']
    """
    return [(number, job) for number in range(rounds) for job in (jobs[::-1] if number % 2 else jobs)]


def record_alternately(
    rounds: int,
    jobs: Sequence[Job],
    out: Path,
    *,
    on_run: Callable[[int, int, str], None] = lambda done, whole, name: None,
) -> dict[str, list[Path]]:
    """Record each job ``rounds`` times, and return its run directories by its name, in the order of the rounds.

    What a job prints is in a file next to its run directory. ``out``: made if missing, else empty. ``on_run``: called
    before each run. Raises UsageError if a folder in which a job is to run is not there. Raises CaptureError if ``out``
    is in use or cannot be made, or a job fails.
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
    """Make a folder for runs. Raises CaptureError if it is in use or cannot be made."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()):
            raise CaptureError(f"{out} exists and is not empty", hint="choose another directory with -o")
    except OSError as error:
        raise CaptureError(f"cannot make {out}: {error.strerror}", hint="choose another directory with -o") from error


def record_job(job: Job, directory: Path) -> Path:
    """Record a job once, what it prints in a file next to ``directory``, an absolute path, and return that.

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
        _end(process, asked=isinstance(error, KeyboardInterrupt))
        raise
    require_success(directory.name, code, log)
    return directory


def require_success(what: str, code: int, log: Path) -> None:
    """Raise CaptureError, with what the log says of it, if a command failed. ``what``: the subject of the sentence."""
    if code:
        raise CaptureError(
            f"{what} ended with exit code {code}: {last_words(log) or 'it printed nothing'}",
            hint=f"its output is in {log}",
        )


def _end(process: subprocess.Popen[bytes], *, asked: bool) -> None:
    """End the recorder, which ends its job; Ctrl-C at a terminal has asked both already."""
    if not asked:
        process.terminate()
    try:
        process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


#: Where nothing was compared.
NOTHING_COMPARED = {"contended_runs_count": 0, "gate": None}


@dataclass(frozen=True, slots=True)
class Compared:
    """What the runs of two jobs say."""

    #: None if other work left too few runs.
    gate: Gate | None
    runs_count: int
    #: Runs that were not used since other work disturbed them.
    contended_count: int

    @property
    def verdict(self) -> str:
        """Verdict of the gate; inconclusive without one."""
        return self.gate.verdict if self.gate is not None else "inconclusive"

    def document(self) -> dict[str, Any]:
        """Return what programs read of it."""
        gate = document(self.gate) if self.gate is not None else None
        return {"contended_runs_count": self.contended_count, "gate": gate}


def few_rounds_paragraph(compared: Iterable[Compared | None]) -> Paragraph | None:
    """Return what too few rounds cannot show; None where all comparisons had enough."""
    gates = [one.gate for one in compared if one is not None and one.gate is not None]
    if not any(change.source == "steps" and change.allowance_ns for gate in gates for change in gate.changes):
        return None
    return Paragraph(
        f"Fewer than {RUNS_THAT_TELL} rounds do not show how much equal runs differ: these bounds come from the steps"
        f" of single runs, widened by {100 * RUN_TO_RUN_RATIO:g} % of the step."
        f" `--rounds {RUNS_THAT_TELL}` measures that difference."
    )


def stages(rounds: int, count: int) -> tuple[int, ...]:
    """Return the numbers of rounds after which a comparison is judged, until it decides.

    Examples
    --------
    >>> stages(3, 2)
    (3, 6)
    """
    return tuple(rounds * number for number in range(1, count + 1))


def compare_alternately(
    before: Callable[[], StepsOfRun],
    after: Callable[[], StepsOfRun],
    conditions: Sequence[Condition],
    *,
    rounds: Sequence[int],
    names: tuple[str, str] = ("before", "after"),
    allowed: Sequence[str] = (),
) -> Compared:
    """Record two jobs alternately until the gate decides.

    ``before``, ``after``: make one run each. ``rounds``: the rounds after which the runs are judged; the last
    judgement stands. ``names``: of the sides, in sentences. ``allowed``: as in :func:`judge`. Raises what a run raises.
    """
    pairs: list[tuple[StepsOfRun, StepsOfRun]] = []
    gate = None
    for wanted in rounds:
        while len(usable := _undisturbed(pairs)) < wanted:
            if len(pairs) - len(usable) >= _MOST_LOST * wanted:
                return Compared(gate, 2 * len(pairs), len(_contended(pairs)))
            if len(pairs) % 2:  # the order changes, so that a steady drift cancels
                second = after()
                pairs.append((before(), second))
            else:
                pairs.append((before(), after()))
        old, new = (Side(name, tuple(runs)) for name, runs in zip(names, zip(*usable, strict=True), strict=True))
        gate = judge(old, new, conditions, allowed=allowed, by_turns=True)
        if gate.verdict != "inconclusive":
            break
    return Compared(gate, 2 * len(pairs), len(_contended(pairs)))


def is_contended(run: StepsOfRun, quietest: StepsOfRun) -> bool:
    """Return whether other work may have made the step of a run longer than in the quietest one.

    False where one of the runs does not show how much CPU time went to others: then the job itself may have waited.
    """
    other = other_work(Side("", (quietest,)), Side("", (run,)))
    return other.is_known and other.added_ns > CONTENDED_RATIO * float(run.of(STEP).mean())


def _undisturbed(pairs: Sequence[tuple[StepsOfRun, StepsOfRun]]) -> list[tuple[StepsOfRun, StepsOfRun]]:
    """Return the rounds of which neither run was disturbed."""
    lost = _contended(pairs)
    return [pair for pair in pairs if not lost.intersection(map(id, pair))]


def _contended(pairs: Sequence[tuple[StepsOfRun, StepsOfRun]]) -> set[int]:
    """Return the runs, by ``id``, that other work disturbed, compared with the quietest run.

    That is the quietest of both jobs, until there are enough of each that not all of one can have met other work by
    chance: a job may start programs that are not recorded.
    """
    found: set[int] = set()
    everything = [run for pair in pairs for run in pair]
    for runs in zip(*pairs, strict=True):
        candidates = runs if len(pairs) >= _RUNS_THAT_TELL else everything
        known = [(run.cpus, run) for run in candidates if run.cpus is not None]
        if known:
            _, quietest = min(known, key=lambda one: one[0].by_others)
            found |= {id(run) for run in runs if is_contended(run, quietest)}
    return found
