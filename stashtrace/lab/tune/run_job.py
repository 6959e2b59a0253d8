"""Runs of the job that is tuned, each with other settings."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from stashtrace.analysis.compare.steps_of_run import steps_of_run
from stashtrace.lab.rerun import Job, record_job
from stashtrace.lab.tune.candidates import candidates
from stashtrace.lab.tune.loader_facts import loader_facts
from stashtrace.lab.tune.losses import losses_of
from stashtrace.lab.tune.settings import BUCKET, FILES, PINNING, Candidate, Settings, environment_of, options_of, where
from stashtrace.lab.tune.tune import TunedRun
from stashtrace.replay.communication.ddp import ddp_facts
from stashtrace.schema.kinds import ProcessRole
from stashtrace.schema.trace import Trace

_LOSSES = "STASHTRACE_LOSSES"
#: The same in ``probes/cpu_share.py``.
_SHARE_FACT = "cpu_share"


class TunedJob:
    """A job that is run again and again.

    ``command``: the job. ``out``: folder for the runs. ``until_step``: steps of a run. ``load``: loads a run.
    ``only``: names of settings to try, all if empty. ``staged``: list of files that were copied to a faster disk.
    ``on_run``: called before each run with its number and the settings.
    """

    def __init__(
        self,
        command: Sequence[str],
        out: Path,
        *,
        until_step: int,
        load: Callable[[str], Trace],
        only: Sequence[str] = (),
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
        """Make a run with settings.

        Raises CaptureError if it fails. Raises MissingDataError if it has no steps.
        """
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
            found = candidates(trace, run.steps, settings, sorted(os.sched_getaffinity(0)))
            if self._staged is not None and FILES not in settings:
                found.append(Candidate(FILES, str(self._staged.absolute())))
            self._candidates[key] = [one for one in found if not self._only or one.name in self._only]
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
    """Return whether each rank keeps to a share of the CPUs."""
    facts = trace.metadata
    pinned = facts["process_id"][facts["key_code"] == trace.strings.find(_SHARE_FACT)]
    ranks = trace.processes["process_id"][trace.processes["role_code"] == ProcessRole.RANK]
    return bool(np.isin(ranks, pinned).all())


def _key(settings: Settings) -> tuple[tuple[str, str], ...]:
    return tuple(settings.items())
