"""Stash's five configurations of an unedited command: plan the runs, make them, and keep their results.

    repetition 0: configuration 1 2 3 4 5      each a separate run, in another order each time, so that what
    repetition 1: configuration 2 3 4 5 1      changes with time falls on all configurations equally
    ...

What is equal in all of them: threads, processors of each rank, training steps that are left out at the start.
Sharma et al., Stash, ICDCS 2023; ``docs/concepts/differential.md`` says what is
done otherwise, and why.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stashtrace.analysis.steps.epochs import job_samples
from stashtrace.errors import CaptureError, StashtraceError
from stashtrace.lab.characterize.answer import (
    FAILED,
    MEASURED,
    NOT_MEASURED,
    SKIPPED,
    Characterization,
    ConfigurationRun,
    RunInvalidError,
)
from stashtrace.lab.characterize.network import EmulatedHost, emulated_hosts
from stashtrace.lab.characterize.request import (
    SINGLE,
    TORCHRUN,
    CharacterizationRequest,
    Rendezvous,
    open_characterization,
    rank_command,
)
from stashtrace.lab.characterize.run_figures import CONFIGURATIONS, Figures, step_figures, synthetic_data
from stashtrace.lab.characterize.run_on_hosts import HostTask, by_ssh, free_port, from_host, here, run_tasks
from stashtrace.lab.job_files import FileSet, file_set, files_read, reading
from stashtrace.lab.machine import Quietest, measured_quietly
from stashtrace.lab.page_cache import COLD, WARM, CacheState, check, make_cold, make_warm, memory_room
from stashtrace.lab.processes import Progress, ProgressCallback, cores_of_ranks, no_progress
from stashtrace.loading.load import load_trace
from stashtrace.record.options import SYNTHETIC_BATCHES, RecordOptions
from stashtrace.schema.trace import Trace
from stashtrace.text.prose import count_noun, list_some
from stashtrace.text.units import bytes_text, percent_text

_SYNTHETIC = (1, 2, 5)
_CACHE_STATES = {3: COLD, 4: WARM}
#: A configuration that fails so often is left alone.
_MOST_FAILURES = 2
_TRIAL_STEPS = 16
#: Batches of an epoch of unknown length for each step of a run: one that accumulates gradients needs several.
_EPOCHS_STEPS = 10
_THIS_HOST = ("localhost", "127.0.0.1")


def characterize(request: CharacterizationRequest, *, on_progress: ProgressCallback = no_progress) -> Characterization:
    """Make the runs that are missing, and return all.

    Raises UsageError if the command cannot be understood, or the directory holds another characterization. Raises
    CaptureError if the command fails even as it was typed.
    """
    return Characterizer(request, on_progress).run()


class Characterizer:
    """One call of ``characterize``. ``answer``: what is known so far; kept in its file after each run."""

    def __init__(self, request: CharacterizationRequest, on_progress: ProgressCallback) -> None:
        self.request = request
        self.command = rank_command(request.command, request.ranks)
        self.answer = open_characterization(request)
        self._on_progress = on_progress
        self._data: DataStates | None = None
        self._runs = request.out / "runs"
        self._failures: Counter[int] = Counter()  # of this call: the next one tries again
        known = [(run.figures.cpus, run.figures.step_ns) for run in self.answer.runs if run.figures is not None]
        self._quietest = Quietest((cpus, step_ns) for cpus, step_ns in known if cpus is not None)

    def run(self) -> Characterization:
        """Make the runs that are missing."""
        request, answer = self.request, self.answer
        self.skip_unmeasurable()
        wanted = [configuration for configuration in request.configurations if configuration not in answer.absent]
        missing = [
            (repeat, configuration)
            for repeat in range(request.repeats)
            for configuration in _rotate(wanted, repeat)
            if not self._is_measured(configuration, repeat)
        ]
        trial = self._runs / "look"
        tried = bool(answer.facts.get("look")) and trial.is_dir()
        progress = Progress(self._on_progress, len(missing) + (not tried))
        if not tried:
            self.trial_run(trial, progress)
        if any(configuration in _CACHE_STATES for _, configuration in missing):
            self._data = DataStates.from_trial(trial, request.data, drop_caches=request.drop_caches)
            answer.facts["data"] = self._data.facts()
            self._note(*self._data.notes)
        for repeat, configuration in missing:
            if configuration not in answer.absent and self._failures[configuration] < _MOST_FAILURES:
                self.run_configuration(configuration, repeat, progress)
            progress.finish()
        answer.save(request.out)
        return answer

    def skip_unmeasurable(self) -> None:
        """Mark the configurations that were not asked for, or that the command or this machine cannot have."""
        request, absent = self.request, self.answer.absent
        absent.clear()
        for configuration in CONFIGURATIONS:
            if configuration not in request.configurations:
                absent[configuration] = (SKIPPED, "left out by --steps")
        if self.command.kind == SINGLE:
            absent.setdefault(1, (SKIPPED, "the command has one rank: configuration 2 is the same"))
            absent.setdefault(5, (SKIPPED, "the command has one rank"))
        elif 5 not in absent and not request.network_command:
            try:
                self._require_hosts()
            except StashtraceError as error:
                absent[5] = (NOT_MEASURED, f"{error}" + (f" ({error.hint})" if error.hint else ""))

    def _require_hosts(self) -> None:
        """Raise an error unless the command can be spread over the hosts of configuration 5."""
        request, hosts_count = self.request, max(len(self.request.hosts), 2)
        if not request.hosts and request.emulated is None:
            raise CaptureError("no second host: give --hosts A,B, --network-command, or --emulate-network 10gbit")
        if self.command.ranks % hosts_count:
            raise CaptureError(f"{self.command.ranks} ranks cannot be shared out to {hosts_count} hosts")
        self.command.on_hosts(1, Rendezvous(2, 0, "127.0.0.1", 1))
        with self._hosts():
            pass

    def _is_measured(self, configuration: int, repeat: int) -> bool:
        return any(run.repeat == repeat and run.status == MEASURED for run in self.answer.runs_of(configuration))

    # Runs ---------------------------------------------------------------------------------------

    def trial_run(self, directory: Path, progress: Progress) -> None:
        """Run the command as it was typed, for a few training steps: whether it works, and what it trains on.

        Raises CaptureError if it does not work.
        """
        request, facts = self.request, self.answer.facts
        tasks = self._tasks_here(self.command.ranks)
        try:
            self._run_tasks(tasks, directory, _TRIAL_STEPS, progress, "a trial run of the job")
            trace = load_trace(directory)
            figures = step_figures(trace, request.warmup, _TRIAL_STEPS)
            _require_ranks(figures, self.command.ranks)
        except StashtraceError as error:
            hint = "; ".join(filter(None, (error.hint, f"its output is in {directory}.log")))
            raise CaptureError(f"the job does not run as it is: {error}", hint=hint) from error
        self._disturbance(figures)
        samples = job_samples(trace)
        facts["look"] = {"steps_count": figures.steps_count, "step_ns": figures.step_ns}
        facts["device"] = "gpu" if figures.on_device else "cpu"
        facts["batch_samples"] = request.batch_samples or samples.step_samples
        facts["epoch_samples"] = samples.epoch_samples
        self.answer.save(request.out)
        progress.finish()

    def run_configuration(self, configuration: int, repeat: int, progress: Progress) -> None:
        """Make one run, and again one that other work on the machine disturbed; keep its figures, or why it failed."""
        _, taken, still = measured_quietly(lambda: self._run_once(configuration, repeat, progress), self._disturbance)
        which = f"configuration {configuration}, run {repeat + 1}:"
        if still:
            self._note(f"{which} {still}, as in a first attempt: its step may be longer for that")
        elif taken:
            self._note(f"{which} made again, since {taken} in a first attempt")

    def _disturbance(self, figures: Figures | None) -> str:
        return self._quietest.disturbance(figures.cpus, figures.step_ns) if figures is not None else ""

    def _run_once(self, configuration: int, repeat: int, progress: Progress) -> Figures | None:
        """Make one run; keep its figures and return them, or keep why it failed."""
        name = f"step{configuration}-{repeat}"
        run = ConfigurationRun(configuration, repeat, FAILED, f"runs/{name}")
        state: CacheState | None = None
        what = f"configuration {configuration}, run {repeat + 1} of {self.request.repeats}"
        progress.report(what)
        if configuration in _CACHE_STATES and self._data is not None:
            state = self._data.prepare(_CACHE_STATES[configuration])
            run.cache = state.sentence
            if not state.verified:
                self._leave_out(configuration, repeat, state)
                return None
        self.answer.add(run)
        try:
            run.figures = self._measure(configuration, self._runs / name, state, progress, what)
        except StashtraceError as error:
            run.why = str(error)
            self._failures[configuration] += 1
        else:
            run.status = MEASURED
            self._keep_facts(configuration, run.figures)
        self.answer.save(self.request.out)
        return run.figures

    def _measure(
        self, configuration: int, directory: Path, state: CacheState | None, progress: Progress, what: str
    ) -> Figures:
        """Figures of a run that did what the configuration asks for."""
        request, ranks = self.request, 1 if configuration == 1 else self.command.ranks
        with self._hosts() if configuration == 5 else contextlib.nullcontext() as hosts:
            tasks = self._tasks_here(ranks) if hosts is None else self._tasks_on(hosts)
            if configuration in _SYNTHETIC:
                tasks = [_on_synthetic_data(task, request.warmup + request.iterations) for task in tasks]
            self._run_tasks(tasks, directory, request.iterations, progress, what)
        if state is not None and self._data is not None:
            self._data.require_still_warm(state)
        trace = load_trace(directory)
        figures = step_figures(trace, request.warmup, request.iterations)
        _require_ranks(figures, ranks)
        if configuration in _SYNTHETIC:
            self._require_synthetic_data(trace)
        if state is not None and self._data is not None:
            try:
                self._data.require_prepared_files(state, trace)
            finally:
                self.answer.facts["data"] = self._data.facts()
            if note := self._data.reread_note(state, trace, request.warmup):
                self._note_once(f"configuration {configuration}:", note)
        return figures

    def _run_tasks(
        self, tasks: Sequence[HostTask], directory: Path, steps_count: int, progress: Progress, what: str
    ) -> None:
        progress.report(what)
        run_tasks(
            tasks,
            directory,
            self.request.warmup + steps_count,
            self.request.timeout_s,
            name=f"characterize-{directory.name}",
            on_wait=lambda: progress.report(what),
        )

    def _require_synthetic_data(self, trace: Trace) -> None:
        """Raise RunInvalidError unless every rank replayed batches; note what makes their steps longer."""
        data = synthetic_data(trace)
        if not data.complete:
            raise RunInvalidError(data.sentence)
        self._note(*data.doubts)

    def _leave_out(self, configuration: int, repeat: int, state: CacheState) -> None:
        """Make no more runs of a configuration whose cache state cannot be reached; those that were made stand."""
        key = (configuration, repeat)
        self.answer.runs = [run for run in self.answer.runs if (run.configuration, run.repeat) != key]
        self.answer.absent[configuration] = (NOT_MEASURED, state.sentence)
        if self.answer.runs_of(configuration):
            self._note(
                f"configuration {configuration}: run {repeat + 1} and those after it were not made: {state.sentence}"
            )

    def _keep_facts(self, configuration: int, figures: Figures) -> None:
        """Keep what a measured run says of the job, without its step time."""
        facts, asked = self.answer.facts, self.request.iterations
        if configuration == 2:
            messages = {"messages_count": figures.messages_count, "bytes": figures.message_bytes, "tensors_count": 0}
            facts["gradients"] = messages
        if configuration == 5:
            facts["network_hosts_count"] = figures.hosts_count
        seen = figures.steps_count + figures.epochs_count
        if seen < asked:
            self._note_once(
                f"configuration {configuration}: the job ended",
                f"after {seen} of the {asked} training steps that were to be measured",
            )

    def _note(self, *notes: str) -> None:
        self.answer.notes = [*dict.fromkeys([*self.answer.notes, *notes])]

    def _note_once(self, head: str, rest: str) -> None:
        """Note something about a configuration, for the first of its runs that it holds for."""
        if not any(note.startswith(head) for note in self.answer.notes):
            self.answer.notes.append(f"{head} {rest}")

    # Hosts --------------------------------------------------------------------------------------

    def _tasks_here(self, ranks: int) -> list[HostTask]:
        return [HostTask(tuple(self.command.on_one_host(ranks)), self._environment(0, self.command.ranks), here)]

    @contextlib.contextmanager
    def _hosts(self) -> Iterator[tuple[EmulatedHost, ...] | tuple[str, ...]]:
        if self.request.emulated is None:
            yield self.request.hosts
            return
        with emulated_hosts(self.request.emulated) as made:
            yield made

    def _tasks_on(self, hosts: Sequence[EmulatedHost | str]) -> list[HostTask]:
        if self.request.network_command:
            return [HostTask(self.request.network_command, self._environment(0, self.command.ranks), here)]
        ranks = self.command.ranks // len(hosts)
        port = free_port()
        first = hosts[0]
        if isinstance(first, EmulatedHost):
            address = first.address
        else:
            address = os.uname().nodename if first in _THIS_HOST else first
        tasks = []
        for number, host in enumerate(hosts):
            words = tuple(self.command.on_hosts(ranks, Rendezvous(len(hosts), number, address, port)))
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
        """Variables that make a rank the same in all configurations."""
        out = {}
        if self.command.kind == TORCHRUN and self.command.ranks > 1 and "OMP_NUM_THREADS" not in os.environ:
            out["OMP_NUM_THREADS"] = "1"  # as torchrun does, but for one rank too
        shares = cores_of_ranks(sorted(os.sched_getaffinity(0)), self.command.ranks)
        if self.request.pin and shares[0]:
            own = shares[first : first + ranks]
            out["STASHTRACE_CPU_SHARES"] = ";".join(",".join(map(str, share)) for share in own)
        return out


def _require_ranks(figures: Figures, asked: int) -> None:
    """Raise RunInvalidError unless the command started as many ranks as it was asked for."""
    seen = figures.ranks_count
    if seen != asked:
        raise RunInvalidError(
            f"the command started {count_noun(seen, 'rank')} where {asked} {'was' if asked == 1 else 'were'} asked for:"
            " it does not follow the rank count",
            hint="put {ranks} where the command takes their number, and say how many the job has:"
            f" --ranks {seen} -- CMD ... {{ranks}} ...",
        )


def _on_synthetic_data(task: HostTask, steps: int) -> HostTask:
    """Let a task replay batches; streams of unknown length end too, or a job that validates first would never train."""
    name = "STASHTRACE_SYNTHETIC_EPOCH"
    epoch = {name: os.environ.get(name, str(_EPOCHS_STEPS * steps))}
    return replace(
        task, options=RecordOptions(synthetic_batches=SYNTHETIC_BATCHES), environment={**task.environment, **epoch}
    )


def _inside(host: EmulatedHost) -> Callable[[list[str], Mapping[str, str]], list[str]]:
    return lambda words, _: host.command(words)


def _rotate(configurations: Sequence[int], by: int) -> list[int]:
    by %= max(len(configurations), 1)
    return [*configurations[by:], *configurations[:by]]


#: Of a data set in memory, what must still be there after a run: the rest is what fetch may be too small by. Of what a
#: run reads, what must be in files that were brought into the state.
KEPT_RATIO = 0.95
#: Of what the measured steps of a cold run read, what may have been read before in the same run without a word.
_AGAIN_RATIO = 0.05
#: This number of folders of one parent that hold files of one kind make its other folders a part of the data set.
_LEAST_SIBLINGS = 3
#: Of files that a run was seen to read: they were temporary, or are none.
_NO_DATA = ("no such file or directory", "not a regular file")


class DataStates:
    """Bring the files of a data set into a state of the page cache.

    ``whole``: the data set. ``seen``: what a short run was seen to read of it. ``drop_caches``: whether the page cache
    of the whole machine may be dropped. ``notes``: what a reader must know.
    """

    def __init__(self, whole: FileSet, seen: FileSet, *, drop_caches: bool) -> None:
        self._whole = whole
        self._warm = whole
        self._drop_caches = drop_caches
        self.notes: list[str] = []
        room = memory_room()
        if whole.bytes > room:
            self._warm = seen
            self.notes.append(
                f"the data set ({bytes_text(whole.bytes)}) does not fit into the {bytes_text(room)} of memory that are"
                f" free for it: configuration 4 has the {bytes_text(seen.bytes)} in memory that the job was seen to"
                " read"
            )
        if unknown := [(path, why) for path, why in whole.left_out if why not in _NO_DATA]:
            files = list_some([f"{path} ({why})" for path, why in unknown])
            self.notes.append(f"not examined, and neither cold nor warm: {files}")

    @classmethod
    def from_trial(cls, run: Path, data: Sequence[Path], *, drop_caches: bool) -> DataStates:
        """Take the files that are named, or those that a run was seen to read and their neighbours."""
        seen = files_read(load_trace(run))
        whole = file_set(data) if data else with_neighbours(seen)
        return cls(whole, seen, drop_caches=drop_caches)

    def facts(self) -> dict[str, Any]:
        """Size of the data set, for the answer."""
        return {"files_count": len(self._whole.paths), "bytes": self._whole.bytes}

    def prepare(self, state: str) -> CacheState:
        """Bring the data set into a state, and check that it is in it."""
        if not self._whole.bytes:
            return _without_files(state)
        if state == COLD:
            return make_cold(self._whole, drop_caches=self._drop_caches)
        return make_warm(self._warm)

    def require_still_warm(self, state: CacheState) -> None:
        """Check after a run that a warm data set stayed in memory; a cold one is read into it by the run.

        A host takes pages back now and then: a run that found nearly all of its data in memory counts. Raises
        RunInvalidError if less than :data:`KEPT_RATIO` of it is resident, or nobody knows.
        """
        if state.state != WARM or not state.files.paths:
            return
        now = check(state)
        if not now.share >= KEPT_RATIO:
            raise RunInvalidError(
                "the data set did not stay in memory: after the run"
                f" {now.instrument} finds {percent_text(now.share)} resident"
            )

    def require_prepared_files(self, state: CacheState, trace: Trace) -> None:
        """Check that a run read the files that were brought into the state; others belong to the data set from now on.

        Raises RunInvalidError if it read more than a little of other files.
        """
        bytes_of = reading(trace).bytes_of
        prepared = set(state.files.paths)
        others = {path: count for path, count in bytes_of.items() if path not in prepared}
        share = sum(others.values()) / max(sum(bytes_of.values()), 1)
        if share <= 1 - KEPT_RATIO:
            return
        names = sorted(others, key=lambda path: -others[path])
        if self._warm is self._whole:
            more = with_neighbours(file_set(names))
            self._whole = self._warm = file_set([*self._whole.paths, *more.paths])
        else:
            self._warm = file_set(bytes_of)  # of a job that reads the same in each run this is what the next one needs
        raise RunInvalidError(
            f"{percent_text(share)} of what the run read is in files that had not been made {state.state}:"
            f" {list_some(names)}"
        )

    def reread_note(self, state: CacheState, trace: Trace, first_step: int) -> str | None:
        """Note for a cold run that read its data again, from memory then; None if it did not."""
        if state.state != COLD:
            return None
        share = reading(trace, first_step).again_ratio
        if share <= _AGAIN_RATIO:
            return None
        return (
            f"{percent_text(share)} of what its measured steps read was read before in the same run and came from"
            " memory, so fetch is that of the rest: more data, or a smaller --warmup and --iterations, show all of it"
        )


def _without_files(state: str) -> CacheState:
    """State of a job that reads no file in its steps: nothing could be cold, and everything is in memory."""
    why = "the job was seen to read no file in its steps; what it read before them, or over a network, is as it is"
    sentence = f"not cold: {why}" if state == COLD else f"warm: {why}"
    return CacheState(state, "none", FileSet((), 0), float("nan"), state == WARM, "", (), sentence)


def with_neighbours(seen: FileSet) -> FileSet:
    """Add the files of the same kind in the same folders: the next epoch may read them in another order.

    Where several folders of one parent hold them, as those of classes do, its other folders count too.
    """
    kinds = {(os.path.dirname(path), os.path.splitext(path)[1]) for path in seen.paths}
    for (parent, kind), count in Counter((os.path.dirname(folder), kind) for folder, kind in kinds).items():
        if count >= _LEAST_SIBLINGS:
            kinds |= {(entry.path, kind) for entry in _entries(parent) if entry.is_dir(follow_symlinks=False)}
    paths = set(seen.paths)
    for folder in {folder for folder, _ in kinds}:
        paths.update(
            entry.path
            for entry in _entries(folder)
            if (folder, os.path.splitext(entry.name)[1]) in kinds and entry.is_file(follow_symlinks=False)
        )
    more = file_set(sorted(paths))
    return replace(more, left_out=(*seen.left_out, *more.left_out))


def _entries(folder: str) -> list[os.DirEntry[str]]:
    """Entries of a folder; none if it cannot be listed, as where files may be opened by name alone."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []
