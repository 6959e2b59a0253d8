"""Stash's five steps with an unedited command: plan the runs, make them, and keep what they say.

    repetition 0: step 1 2 3 4 5      each a run of its own, in another order each time, so that what changes
    repetition 1: step 2 3 4 5 1      with time falls on all steps alike
    ...

What is kept alike in all of them: threads, processors of each rank, steps that are left out at the start. Called by
``stashtrace characterize``. Sharma et al., Stash, ICDCS 2023; ``docs/concepts/differential.md`` says what is done
otherwise, and why.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from stashtrace.errors import CaptureError, StashtraceError
from stashtrace.lab.characterize.answer import FAILED, MEASURED, NOT_MEASURED, SKIPPED, Characterization, StepRun
from stashtrace.lab.characterize.data import COLD, WARM, DataStates
from stashtrace.lab.characterize.differential import STEPS
from stashtrace.lab.characterize.figures import job_samples, step_figures, synthetic_data
from stashtrace.lab.characterize.hosts import HostTask, by_ssh, free_port, from_host, here, run_tasks
from stashtrace.lab.characterize.network import EmulatedHost, emulated_hosts
from stashtrace.lab.characterize.plan import Request, opened
from stashtrace.lab.characterize.ranks import SINGLE, TORCHRUN, Meeting, RankCommand, rank_command
from stashtrace.lab.page_cache import CacheState
from stashtrace.record.options import SYNTHETIC_BATCHES, RecordOptions
from stashtrace.schema.trace import Trace

#: Of these steps the data is synthetic.
SYNTHETIC_STEPS = (1, 2, 5)
CACHE_STEPS = {3: COLD, 4: WARM}
#: A step that fails so often is left alone.
_MOST_FAILURES = 2
#: Ranks are told to go on a little, so that the last step that counts is whole on each of them.
_MARGIN_STEPS = 2
_LOOK_ITERATIONS = 16
#: Epochs of unknown length have so many batches for each step of a run: one that accumulates gradients needs several.
_EPOCHS_STEPS = 10
_THIS_HOST = ("localhost", "127.0.0.1")

Progress = Callable[[float, str], None]


def characterize(request: Request, *, on_progress: Progress = lambda share, what: None) -> Characterization:
    """Make the runs that are missing, and return all.

    Raises
    ------
    UsageError
        If the command cannot be understood, or the directory holds another characterisation.
    CaptureError
        If the command fails even as it was typed.
    """
    return _Session(request, on_progress).go()


@dataclass(slots=True)
class _Clock:
    """How long the rest will take, from the runs so far."""

    runs_count: int
    done_count: int = 0
    spent_s: float = 0.0
    began_s: float = field(default_factory=time.monotonic)

    def text(self, what: str) -> tuple[float, str]:
        share = self.done_count / max(self.runs_count, 1)
        if not self.done_count:
            return share, what
        now = time.monotonic() - self.began_s
        left = max(self.spent_s / self.done_count * (self.runs_count - self.done_count) - now, 0.0)
        return share, f"{what}, about {_minutes(left)} left"


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds > 90 else f"{max(seconds, 1):.0f} s"


class _Session:
    """One call of ``characterize``."""

    def __init__(self, request: Request, on_progress: Progress) -> None:
        self.request = request
        self.command: RankCommand = rank_command(request.command, request.ranks)
        self.on_progress = on_progress
        self.found = opened(request)
        self.states: DataStates | None = None
        self.runs = request.out / "runs"
        self._failures: Counter[int] = Counter()  # of this call: the next one tries again

    def go(self) -> Characterization:
        request, found = self.request, self.found
        self._rule_out()
        wanted = [step for step in request.steps if step not in found.absent]
        order = [(repeat, step) for repeat in range(request.repeats) for step in _rotated(wanted, repeat)]
        missing = [key for key in order if not self._is_there(*key)]
        clock = _Clock(len(missing) + 1)
        look = self._look(clock)
        if any(step in CACHE_STEPS for _, step in missing):
            self.states = DataStates.of(look, request.data, drop_caches=request.drop_caches)
            found.facts["data"] = self.states.facts()
            self._note(*self.states.notes)
        for repeat, step in missing:
            if step not in found.absent and self._failures[step] < _MOST_FAILURES:
                self._make(step, repeat, clock)
            clock.done_count += 1
        found.save(request.out)
        return found

    # What will not be measured -----------------------------------------------------------------

    def _rule_out(self) -> None:
        request, found = self.request, self.found
        found.absent.clear()
        for step in STEPS:
            if step not in request.steps:
                found.absent[step] = (SKIPPED, "left out by --steps")
        if self.command.kind == SINGLE:
            found.absent.setdefault(1, (SKIPPED, "the command has one rank: step 2 is the same"))
            found.absent.setdefault(5, (SKIPPED, "the command has one rank"))
        elif request.network_command:
            return
        elif not request.hosts and request.emulated is None:
            why = "no second host: give --hosts A,B, --network-command, or --emulate-network 10gbit"
            found.absent.setdefault(5, (NOT_MEASURED, why))
        elif self.command.ranks % max(len(request.hosts), 2):
            why = f"{self.command.ranks} ranks cannot be shared out to {max(len(request.hosts), 2)} hosts"
            found.absent.setdefault(5, (NOT_MEASURED, why))
        elif 5 not in found.absent:
            try:
                self.command.on_hosts(1, Meeting(2, 0, "127.0.0.1", 1))
                with self._hosts():
                    pass
            except StashtraceError as error:
                found.absent[5] = (NOT_MEASURED, f"{error}" + (f" ({error.hint})" if error.hint else ""))

    def _is_there(self, repeat: int, step: int) -> bool:
        return any(run.repeat == repeat and run.status == MEASURED for run in self.found.of_step(step))

    # Runs ---------------------------------------------------------------------------------------

    def _look(self, clock: _Clock) -> Path:
        """The command as it was typed, for a few steps: whether it works, and what it reads."""
        directory = self.runs / "look"
        if self.found.facts.get("look") and directory.is_dir():
            clock.runs_count -= 1
            return directory
        self._tell(clock, "a first look at the job")
        shutil.rmtree(directory, ignore_errors=True)
        steps = self.request.warmup + _LOOK_ITERATIONS
        why = self._run(directory, self._one_host(self.command.ranks), steps, clock, "a first look at the job")
        hint = f"its output is in {directory}.log"
        if not why:
            try:
                trace = _loaded(directory)
                figures = step_figures(trace, self.request.warmup, _LOOK_ITERATIONS)
                why = self._wrong_ranks(figures.ranks_count, self.command.ranks)
                if why:
                    hint = (
                        "put {ranks} where the command takes their number, and say how many the job has:"
                        f" --ranks {figures.ranks_count} -- CMD ... {{ranks}} ..."
                    )
            except StashtraceError as error:
                why = str(error)
                hint = f"{error.hint}; {hint}" if error.hint else hint
        if why:
            raise CaptureError(f"the job does not run as it is: {why}", hint=hint)
        self.found.facts["look"] = {"steps_count": figures.steps_count, "step_ns": figures.step_ns}
        self.found.facts["device"] = "gpu" if figures.on_device else "cpu"
        samples = job_samples(trace)
        self.found.facts["batch_samples"] = self.request.batch_samples or samples.step_samples
        self.found.facts["epoch_samples"] = samples.epoch_samples
        self.found.save(self.request.out)
        return directory

    def _make(self, step: int, repeat: int, clock: _Clock) -> None:
        what = f"step {step}, run {repeat + 1} of {self.request.repeats}"
        self._tell(clock, what)
        name = f"step{step}-{repeat}"
        directory = self.runs / name
        shutil.rmtree(directory, ignore_errors=True)
        run = StepRun(step, repeat, FAILED, f"runs/{name}")
        self.found.runs = [old for old in self.found.runs if (old.step, old.repeat) != (step, repeat)] + [run]
        state: CacheState | None = None
        if step in CACHE_STEPS and self.states is not None:
            state = self.states.prepare(CACHE_STEPS[step])
            run.cache = state.sentence
            if not state.verified:
                self.found.runs.remove(run)
                self.found.absent[step] = (NOT_MEASURED, state.sentence)
                if self.found.of_step(step):
                    self._note(f"step {step}: run {repeat + 1} and those after it were not made: {state.sentence}")
                return
        ranks = 1 if step == 1 else self.command.ranks
        steps = self.request.warmup + self.request.iterations
        try:
            with self._hosts() if step == 5 else contextlib.nullcontext() as hosts:
                tasks = self._one_host(ranks) if hosts is None else self._many_hosts(hosts)
                if step in SYNTHETIC_STEPS:
                    tasks = [_on_synthetic_data(task, steps) for task in tasks]
                run.why = self._run(directory, tasks, steps, clock, what)
            if state is not None and self.states is not None:
                run.why = run.why or self.states.after(state)
            if not run.why:
                trace = _loaded(directory)
                run.figures = step_figures(trace, self.request.warmup, self.request.iterations)
                run.why = self._wrong_ranks(run.figures.ranks_count, ranks)
                if step in SYNTHETIC_STEPS and not run.why:
                    run.why = self._real_data(trace)
                if state is not None and not run.why:
                    run.why = self._wrong_files(step, state, trace)
        except StashtraceError as error:
            run.why = str(error)
        if run.why:
            run.figures = None
            self._failures[step] += 1
        else:
            run.status = MEASURED
            self._learn(step, run)
            self._say_if_short(step, run)
        self.found.save(self.request.out)

    def _learn(self, step: int, run: StepRun) -> None:
        figures = run.figures
        if figures is not None and step == 2:
            gradients = {"messages_count": figures.messages_count, "bytes": figures.message_bytes, "tensors_count": 0}
            self.found.facts["gradients"] = gradients
        if figures is not None and step == 5:
            self.found.facts["network_hosts_count"] = figures.hosts_count

    def _say_if_short(self, step: int, run: StepRun) -> None:
        figures, asked = run.figures, self.request.iterations
        if figures is None or (seen := figures.steps_count + figures.epochs_count) >= asked:
            return
        self._note_once(
            f"step {step}: the job ended", f"after {seen} of the {asked} training steps that were to be measured"
        )

    def _wrong_files(self, step: int, state: CacheState, trace: Trace) -> str:
        """Why what the run read was not in the state that its files were brought into, empty if it was."""
        assert self.states is not None
        why = self.states.of_others(state, trace)
        self.found.facts["data"] = self.states.facts()
        if not why and (said := self.states.read_again(state, trace, self.request.warmup)):
            self._note_once(f"step {step}:", said)
        return why

    def _note(self, *notes: str) -> None:
        self.found.notes = [*dict.fromkeys([*self.found.notes, *notes])]

    def _note_once(self, head: str, rest: str) -> None:
        """Say something of a step, of the first of its runs that it holds for."""
        if not any(note.startswith(head) for note in self.found.notes):
            self.found.notes.append(f"{head} {rest}")

    def _real_data(self, trace: Trace) -> str:
        """Why a step that should be on synthetic data was not, empty if it was."""
        told = synthetic_data(trace)
        if told.complete:
            self._note(*told.doubts)
        return "" if told.complete else told.sentence

    def _wrong_ranks(self, seen: int, asked: int) -> str:
        if seen == asked:
            return ""
        ranks = "1 rank" if seen == 1 else f"{seen} ranks"
        wanted = "1 was" if asked == 1 else f"{asked} were"
        return f"the command started {ranks} where {wanted} asked for: it does not follow the rank count"

    def _run(self, directory: Path, tasks: Sequence[HostTask], steps: int, clock: _Clock, what: str) -> str:
        clock.began_s = time.monotonic()
        try:
            why = run_tasks(
                tasks,
                directory,
                steps + _MARGIN_STEPS,
                self.request.timeout_s,
                name=f"characterize-{directory.name}",
                on_wait=lambda: self._tell(clock, what),
            )
        finally:
            clock.spent_s += time.monotonic() - clock.began_s
        return why

    def _tell(self, clock: _Clock, what: str) -> None:
        self.on_progress(*clock.text(what))

    # Hosts --------------------------------------------------------------------------------------

    def _one_host(self, ranks: int) -> list[HostTask]:
        return [HostTask(tuple(self.command.on_one_host(ranks)), self._environment(0, self.command.ranks), here)]

    @contextlib.contextmanager
    def _hosts(self) -> Iterator[tuple[EmulatedHost, ...] | tuple[str, ...]]:
        if self.request.emulated is None:
            yield self.request.hosts
            return
        with emulated_hosts(self.request.emulated) as made:
            yield made

    def _many_hosts(self, hosts: Sequence[EmulatedHost | str]) -> list[HostTask]:
        if self.request.network_command:
            return [HostTask(self.request.network_command, self._environment(0, self.command.ranks), here)]
        ranks = self.command.ranks // len(hosts)
        port = free_port()
        first = hosts[0]
        address = first.address if isinstance(first, EmulatedHost) else _address(first)
        tasks = []
        for number, host in enumerate(hosts):
            words = tuple(self.command.on_hosts(ranks, Meeting(len(hosts), number, address, port)))
            if isinstance(host, EmulatedHost):
                # Namespaces share the processors: each host gets its part of them, as its ranks had on one host.
                environment = self._environment(number * ranks, ranks) | host.environment
                tasks.append(HostTask(words, environment, _inside(host), host.name))
            else:
                wrap, home = (here, None) if host in _THIS_HOST else (by_ssh(host), from_host(host))
                far = home is not None
                tasks.append(HostTask(words, self._environment(0, ranks), wrap, host, bring_home=home, connected=far))
        return tasks

    def _environment(self, first: int, ranks: int) -> dict[str, str]:
        """Variables that make a rank the same in all steps."""
        out = {}
        if self.command.kind == TORCHRUN and self.command.ranks > 1 and "OMP_NUM_THREADS" not in os.environ:
            out["OMP_NUM_THREADS"] = "1"  # as torchrun does, but for one rank too
        cpus = sorted(os.sched_getaffinity(0))
        share = len(cpus) // self.command.ranks
        if self.request.pin and share:
            shares = [cpus[i * share : (i + 1) * share] for i in range(first, first + ranks)]
            out["STASHTRACE_CPU_SHARES"] = ";".join(",".join(map(str, own)) for own in shares)
        return out


def _on_synthetic_data(task: HostTask, steps: int) -> HostTask:
    """A stream that does not know its length ends too, or a job that validates first would never train."""
    name = "STASHTRACE_SYNTHETIC_EPOCH"
    epoch = {name: os.environ.get(name, str(_EPOCHS_STEPS * steps))}
    return replace(
        task, options=RecordOptions(synthetic_batches=SYNTHETIC_BATCHES), environment={**task.environment, **epoch}
    )


def _inside(host: EmulatedHost) -> Callable[[list[str], Mapping[str, str]], list[str]]:
    return lambda words, _: host.command(words)


def _address(host: str) -> str:
    """Where the other hosts find the first one."""
    if host not in _THIS_HOST:
        return host
    return os.uname().nodename


def _rotated(steps: Sequence[int], by: int) -> list[int]:
    by %= max(len(steps), 1)
    return [*steps[by:], *steps[:by]]


def _loaded(directory: Path) -> Trace:
    from stashtrace.loading.load import load_trace

    return load_trace(str(directory))
