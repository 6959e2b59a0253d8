"""Baselines: the steps of one run or several in a small JSON file, to compare later runs with.

A baseline holds the facts of the job and, of each run, the time of every kind in each step (mean over ranks) and the
means of each rank, and the costliest functions of each kind. Of runs of more than ``KEPT_STEPS`` steps it holds means
of neighbouring steps.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

import numpy as np

from stashtrace.analysis.compare.cpu_use import CpuUse
from stashtrace.analysis.compare.job_identity import FIELDS, Fact
from stashtrace.analysis.compare.steps_of_run import KINDS, STEP, StepsOfRun
from stashtrace.analysis.compare.stored_functions import functions_as_json, read_functions
from stashtrace.calibration.checked_files import CheckedFile, is_number
from stashtrace.errors import FormatError
from stashtrace.scrubbing import scrub_arguments, scrub_urls

#: Of the file; files of other versions are refused.
SCHEMA_VERSION = 1
_VERSION, _WRITER = "stashtrace_baseline", "stashtrace_version"
#: A time of a step is less than a month, ns; a rank is less than this.
_LONGEST_NS, _MOST_RANKS = 30 * 86_400 * 10**9, 1 << 24


def baseline_text(runs: Sequence[StepsOfRun], version: str) -> str:
    """Return the content of a baseline file.

    ``version``: of stashtrace.
    """
    content = {_VERSION: SCHEMA_VERSION, _WRITER: version, "runs": [_run_as_json(run.condensed()) for run in runs]}
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n"


def read_baseline(text: str, path: str, name: str, again: str = "") -> tuple[StepsOfRun, ...]:
    """Return the runs of a baseline.

    ``text``: content of the file. ``path``: where it is, for messages. ``name``: what to call the runs. ``again``: how
    it is saved again, for hints. Raises FormatError if the file is damaged, no baseline, or of another version of the
    format.
    """
    file = CheckedFile(path, "baseline", "baseline", again)
    content = file.json(text)
    version = content.get(_VERSION)
    if _VERSION not in content:
        raise file.damaged(f"it has no {_VERSION}")
    if version != SCHEMA_VERSION or isinstance(version, bool):
        writer = content.get(_WRITER)
        by = f", written by stashtrace {writer[:40]}" if isinstance(writer, str) else ""
        raise FormatError(
            f"{path} is a baseline of version {str(version)[:40]}{by}; this stashtrace reads version {SCHEMA_VERSION}",
            hint=again,
        )
    runs = content.get("runs")
    if not isinstance(runs, list) or not runs or not all(isinstance(run, dict) for run in runs):
        raise file.damaged("it holds no runs")
    return tuple(_read(run, file, name) for run in runs)


def _run_as_json(run: StepsOfRun) -> dict[str, Any]:
    """Return a run as it is stored, its texts scrubbed as ``run.json`` is."""
    return {
        "steps_count": run.steps_count,
        "facts": {n: scrub_arguments([fact])[0] if isinstance(fact, str) else fact for n, fact in run.facts.items()},
        "times_ns": {kind: values.tolist() for kind, values in run.times_ns.items()},
        "ranks_ns": {str(rank): dict(means) for rank, means in run.ranks_ns.items()},
        "cpu_wait_ns": run.cpu_wait_ns,
        # A path says nothing where the baseline is read.
        "recording": "" if os.path.isabs(run.recording) else run.recording,
        "worker_wait_ns": run.worker_wait_ns,
        "cpus": None if run.cpus is None else asdict(run.cpus),
        "launch": scrub_arguments(run.launch),
        "directory": scrub_urls(run.directory),
        "functions": functions_as_json(run.functions),
    }


def _read(content: Mapping[str, Any], file: CheckedFile, name: str) -> StepsOfRun:
    times = {}
    for kind, values in file.table(content, "times_ns").items():
        whole = isinstance(values, list) and all(_is_time(value) and isinstance(value, int) for value in values)
        if kind not in KINDS or not whole:
            raise file.damaged(f"times_ns of {kind[:40]} is no list of times")
        times[kind] = np.array(values, dtype=np.int64)
    count = len(times.get(STEP, ()))
    if not count or any(len(values) != count for values in times.values()):
        raise file.damaged("its kinds have no steps, or not equally many")
    if not times[STEP].any():
        raise file.damaged("its steps take no time")
    steps_count = file.count(content, "steps_count")
    if steps_count < count:
        raise file.damaged(f"steps_count is {steps_count}, but it holds {count}")
    ranks: dict[int, dict[str, float]] = {}
    for rank, means in file.table(content, "ranks_ns").items():
        if not rank.isdecimal() or int(rank) >= _MOST_RANKS or not isinstance(means, dict):
            raise file.damaged(f"ranks_ns has no rank {rank[:40]!r}")
        if not all(kind in KINDS and _is_time(value) for kind, value in means.items()):
            raise file.damaged(f"ranks_ns of rank {rank} is no table of times")
        ranks[int(rank)] = {kind: float(value) for kind, value in means.items()}
    waits = {kind: content.get(kind) for kind in ("cpu_wait_ns", "worker_wait_ns")}
    for kind, wait in waits.items():
        file.require(wait is None or _is_time(wait), kind, wait)
    launch, directory = content.get("launch", []), content.get("directory", "")
    if not isinstance(launch, list) or not all(isinstance(word, str) for word in [*launch, directory]):
        raise file.damaged("its launch is no command in a directory")
    facts, cpus = _facts(file.table(content, "facts"), file), _cpus(content.get("cpus"), file)
    return StepsOfRun(
        name,
        times,
        steps_count,
        ranks,
        facts,
        **waits,
        recording=file.text(content, "recording"),
        cpus=cpus,
        launch=tuple(launch),
        directory=directory,
        functions=read_functions(content.get("functions"), file),
    )


def _cpus(content: Any, file: CheckedFile) -> CpuUse | None:
    """Return the use of the CPUs; None where the machine was not sampled."""
    if content is None:
        return None
    names = [part.name for part in fields(CpuUse)]
    file.require(isinstance(content, dict) and all(_is_time(content.get(name)) for name in names), "cpus", content)
    return CpuUse(*(float(content[name]) for name in names))


def _facts(content: Mapping[str, Any], file: CheckedFile) -> dict[str, Fact]:
    facts: dict[str, Fact] = {}
    for field in FIELDS:
        value = facts[field.name] = content.get(field.name)
        is_fact = isinstance(value, str | int | None) and not isinstance(value, bool)
        file.require(is_fact, f"the fact {field.name}", value)
    return facts


def _is_time(value: Any) -> bool:
    return is_number(value) and 0 <= value < _LONGEST_NS
