"""Runs of the job that is tuned, each with other settings."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stashtrace.analysis.compare.steps_of_run import STEP, StepsOfRun, steps_of_run
from stashtrace.analysis.graph import build
from stashtrace.errors import MissingDataError
from stashtrace.files.run_facts import json_object
from stashtrace.lab.alternating import Job, record_job
from stashtrace.lab.processes import cores_of_ranks
from stashtrace.lab.tune.losses import losses_of
from stashtrace.lab.tune.settings import (
    BUCKET,
    FILES,
    NCCL,
    OMP,
    PINNING,
    WORKERS,
    Candidate,
    Settings,
    chosen,
    environment_of,
    options_of,
    where,
)
from stashtrace.lab.tune.tune import TunedRun
from stashtrace.replay import Answer, gradient_buckets
from stashtrace.replay.changes import BUCKET as BUCKET_CHANGE
from stashtrace.replay.changes import KEPT, Change
from stashtrace.replay.communication.messages import ddp_facts
from stashtrace.replay.whatif import ReplayedRun
from stashtrace.schema.kinds import ProcessRole
from stashtrace.schema.trace import Trace, facts_with_key

_LOSSES = "STASHTRACE_LOSSES"
#: The same in ``probes/surroundings.py``.
_SHARE_FACT = "cpu_share"


class TunedJob:
    """A job that is run again and again.

    ``until_step``: steps of a run. ``load``: loads a run. ``only``: names of settings to try, each with a value or
    none; all if empty. ``staged``: list of files that were copied to a faster disk. ``on_run``: called before each run.
    """

    def __init__(
        self,
        command: Sequence[str],
        out: Path,
        *,
        until_step: int,
        load: Callable[[str], Trace],
        only: Sequence[tuple[str, str]] = (),
        staged: Path | None = None,
        on_run: Callable[[int, Settings], None] = lambda number, settings: None,
    ) -> None:
        self._command, self._out, self._load, self._only = tuple(command), out, load, tuple(only)
        self._until_step, self._staged, self._on_run = until_step, staged, on_run
        self._runs_count = 0
        #: By settings: the last run with them, and what to try on top.
        self._last: dict[tuple[tuple[str, str], ...], tuple[Trace, TunedRun]] = {}
        self._candidates: dict[tuple[tuple[str, str], ...], list[Candidate]] = {}
        #: Where the DataLoaders of the script are made.
        self.loaders: list[tuple[str, int]] = []

    def record(self, settings: Settings) -> TunedRun:
        """Make a run with settings. Raises CaptureError if it fails. Raises MissingDataError if it has no steps."""
        self._on_run(self._runs_count, settings)
        directory = (self._out / f"run-{self._runs_count}").absolute()
        self._runs_count += 1
        job = Job(
            "run",
            self._command,
            Path.cwd(),
            ("--until-step", str(self._until_step), *options_of(settings)),
            {_LOSSES: "1", **environment_of(settings)},
        )
        trace = self._load(str(record_job(job, directory)))
        self.loaders = self.loaders or [(one.file, one.line) for one in loader_facts(trace)]
        run = TunedRun(steps_of_run(trace), losses_of(trace), not_applied(trace, settings))
        self._last[_key(settings)] = trace, run
        return run

    def candidates(self, settings: Settings) -> Sequence[Candidate]:
        """Return what to try on top of settings, by the last run with them."""
        key = _key(settings)
        if key not in self._candidates:
            trace, run = self._last[key]
            asked = [int(value) for name, value in self._only if name == WORKERS and value]
            found = candidates(trace, run.steps, settings, sorted(os.sched_getaffinity(0)), asked)
            if self._staged is not None and FILES not in settings:
                found.append(Candidate(FILES, str(self._staged.absolute())))
            self._candidates[key] = chosen(found, self._only, settings)
        return self._candidates[key]


def not_applied(trace: Trace, settings: Settings) -> dict[str, str]:
    """Return the settings that a run does not have all the same, and why."""
    found: dict[str, str] = {}
    loaders, sources = loader_facts(trace), ddp_facts(trace).sources
    for name in settings:
        if where(name) == "loader" and not any(name in one.applied for one in loaders):
            found[name] = "no DataLoader of the job takes it" if loaders else "the job makes no DataLoader of torch"
    if BUCKET in settings and "applied" not in sources:
        by_script = "the script gives bucket_cap_mb itself"
        found[BUCKET] = by_script if "script" in sources else "the job makes no DistributedDataParallel"
    if PINNING in settings and not _all_pinned(trace):
        refused = "not_pinned" in {trace.text(int(code)) for code in np.unique(trace.losses["name_code"])}
        found[PINNING] = (
            "a rank may not use these CPUs"
            if refused
            else "the launcher gives ranks no number on their host, such as LOCAL_RANK"
        )
    return found


def _all_pinned(trace: Trace) -> bool:
    facts = trace.metadata
    pinned = facts["process_id"][facts["key_code"] == trace.strings.find(_SHARE_FACT)]
    ranks = trace.processes["process_id"][trace.processes["role_code"] == ProcessRole.RANK]
    return bool(np.isin(ranks, pinned).all())


def _key(settings: Settings) -> tuple[tuple[str, str], ...]:
    return tuple(settings.items())


#: A wait that is a smaller part of a step is not worth the runs of a setting that could only shorten it.
_WORTH_RATIO = 0.03
_PREFETCHED = (4, 8)


def candidates(
    trace: Trace, steps: StepsOfRun, settings: Settings, cores: Sequence[int], asked_workers: Sequence[int] = ()
) -> list[Candidate]:
    """Return what to try on top of settings, the most promising first.

    ``trace``, ``steps``: a run with the settings. ``cores``: that the ranks of this host may use. ``asked_workers``:
    numbers of workers to predict too; of others, a rank gets no more than it has CPUs.
    """
    loaders = loader_facts(trace)
    ranks, hosts = steps.facts.get("ranks") or 1, steps.facts.get("hosts") or 1
    on_host = max(ranks // hosts, 1)
    share = max(len(cores) // on_host, 1)
    predicted = _predicted(trace, loaders, share, asked_workers)
    # Where a replay says nothing of workers, no number of them is better.
    others = [
        *_of_loaders(steps, loaders, most_workers=share if predicted is None else 0),
        *_of_threads(steps, loaders, share),
        *_of_pinning(cores, on_host if hosts == 1 else 1),
        *_of_nccl(steps),
    ]
    found: dict[str, Candidate] = {}
    for one in (*(predicted or ()), *others):
        if settings.get(one.name) != one.value:
            found.setdefault(str(one), one)
    return list(found.values())


def _predicted(
    trace: Trace, loaders: Sequence[LoaderFacts], most_workers: int, asked_workers: Sequence[int]
) -> list[Candidate] | None:
    """Return the changes of a replay that are settings, those that save most first; None if it predicts nothing."""
    try:
        graph = build(trace)
        run = ReplayedRun(graph)
    except MissingDataError:
        return None
    if not run.what_if([]).is_reliable:
        return None
    buckets = None
    if "script" not in ddp_facts(trace).sources:  # what the script gives has precedence
        with contextlib.suppress(MissingDataError):
            buckets = gradient_buckets(trace, graph)
    answers = run.single_changes(buckets, most_workers=most_workers)
    for count in asked_workers:
        with contextlib.suppress(MissingDataError):
            answers.append(run.what_if([Change("workers", None, float(count))]))
    found = [_candidate(answer, trace, loaders) for answer in sorted(answers, key=lambda one: one.middle_ns)]
    return [one for one in found if one is not None]


def _candidate(answer: Answer, trace: Trace, loaders: Sequence[LoaderFacts]) -> Candidate | None:
    """Return the setting that makes a change; None if none does."""
    change = answer.changes[0]
    times = answer.low_ns, answer.high_ns
    if change.quantity == BUCKET_CHANGE:
        present = ddp_facts(trace).bucket_mib
        return Candidate(BUCKET, f"{change.factor:.12g}", f"{present:g}" if present else "", *times)
    if not loaders:
        return None
    present_workers = _workers(loaders)
    if change.quantity == "workers":
        return Candidate(WORKERS, str(round(change.amount or 0)), str(present_workers), *times)
    if change.quantity == KEPT:
        return Candidate(KEPT, "1", "0", *times)
    return None


def _of_loaders(steps: StepsOfRun, loaders: Sequence[LoaderFacts], *, most_workers: int) -> list[Candidate]:
    """Return settings of loaders. ``most_workers``: try twice the workers, up to this number."""
    found: list[Candidate] = []
    workers = _workers(loaders)
    if loaders and _share(steps, "data") >= _WORTH_RATIO:
        if workers < most_workers:
            found.append(Candidate(WORKERS, str(min(max(2 * workers, 1), most_workers)), str(workers)))
        if workers:
            present = str(_most(loaders, "prefetch_factor"))
            found += [Candidate("prefetch_factor", str(count), present) for count in _PREFETCHED]
    has_device = steps.facts.get("device") not in (None, "none")
    if loaders and has_device and not _most(loaders, "pin_memory"):
        found.append(Candidate("pin_memory", "1", "0"))
    return found


def _of_threads(steps: StepsOfRun, loaders: Sequence[LoaderFacts], share: int) -> list[Candidate]:
    """Return numbers of threads. ``share``: CPUs of a rank."""
    present = str(steps.facts.get("threads") or "")
    counts = dict.fromkeys([share, max(share - _workers(loaders), 1), 1])
    return [Candidate(OMP, str(count), present) for count in counts if str(count) != present]


def _of_pinning(cores: Sequence[int], ranks: int) -> list[Candidate]:
    """Return a share of the CPUs for each of several ranks of a host."""
    if not 1 < ranks <= len(cores):
        return []
    return [Candidate(PINNING, ";".join(",".join(map(str, share)) for share in cores_of_ranks(cores, ranks)))]


def _of_nccl(steps: StepsOfRun) -> list[Candidate]:
    is_used = "nccl" in str(steps.facts.get("backend") or "") and _share(steps, "link") >= _WORTH_RATIO
    return [Candidate(name, value) for name, value in NCCL.items()] if is_used else []


def _share(steps: StepsOfRun, kind: str) -> float:
    return float(steps.of(kind).mean() / max(steps.of(STEP).mean(), 1.0))


def _workers(loaders: Sequence[LoaderFacts]) -> int:
    return _most(loaders, WORKERS)


def _most(loaders: Sequence[LoaderFacts], name: str) -> int:
    """Return the largest value of a setting among the loaders, 0 without one."""
    return max((int(one.now.get(name) or 0) for one in loaders), default=0)


#: The same in ``probes/torch/loader_settings.py``.
FACT = "loader_settings"


@dataclass(frozen=True, slots=True)
class LoaderFacts:
    """A DataLoader of the script."""

    #: Where it is made.
    file: str
    line: int
    #: What was set in place of what the script gives, and what holds, by name.
    applied: Mapping[str, Any]
    now: Mapping[str, Any]


def loader_facts(trace: Trace) -> list[LoaderFacts]:
    """Return the loaders, equal ones of several ranks once; facts that cannot be read are ignored."""
    found: dict[str, LoaderFacts] = {}
    for value in facts_with_key(trace, re.compile(rf"{FACT} \d+").fullmatch)["value_code"].tolist():
        text = trace.text(value)
        try:
            content = json_object(text.encode())
            found[text] = LoaderFacts(content["file"], content["line"], content["applied"], content["now"])
        except (ValueError, KeyError):
            continue
    return list(found.values())
