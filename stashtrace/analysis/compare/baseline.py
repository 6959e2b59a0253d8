"""Baselines: the steps of one run or several in a small JSON file, to compare later runs with.

A baseline holds the facts of the job and, of each run, the time of every kind in each step (mean over ranks) and the
means of each rank, and the costliest functions of each kind. Of runs of more than ``KEPT_STEPS`` steps it holds means
of neighbouring steps. The functions take some kilobytes, whatever the length of the run: with 1,024 ranks and 13 kinds
13 groups of 20 functions, about 100 bytes each. What single ranks did is left out, and so is which functions stood in a
stack: compared with a baseline none is called new or gone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

import numpy as np

from stashtrace.analysis.compare.cpu_use import CpuUse
from stashtrace.analysis.compare.function_times import (
    ALL_RANKS,
    IN_STEP,
    IN_WORKER,
    FunctionGroup,
    FunctionsOfRun,
    FunctionTime,
    LineTime,
)
from stashtrace.analysis.compare.job_identity import FIELDS, Fact
from stashtrace.analysis.compare.steps_of_run import KINDS, STEP, StepsOfRun
from stashtrace.errors import FormatError
from stashtrace.files.checked_files import CheckedFile, is_number
from stashtrace.schema.possible import MOST_RANKS
from stashtrace.schema.stall_kinds import KIND_NAMES
from stashtrace.scrubbing.secrets import scrub_arguments, scrub_urls

#: Of the file; files of other versions are refused.
SCHEMA_VERSION = 1
_VERSION, _WRITER = "stashtrace_baseline", "stashtrace_version"
#: A time of a step is less than a month.
_LONGEST_NS = 30 * 86_400 * 10**9
#: Last parts of a path that are kept: enough to distinguish files of one name, and no folder of a user.
_KEPT_PARTS = 3
_GROUP = ("unknown_ns", "sample_ns", "degrees")
_FUNCTION = ("mean_ns", "error_ns", "degrees")


def baseline_text(runs: Sequence[StepsOfRun], version: str) -> str:
    """Return the content of a baseline file."""
    content = {_VERSION: SCHEMA_VERSION, _WRITER: version, "runs": [_run_as_json(run.condensed()) for run in runs]}
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n"


def read_baseline(text: str, path: str, name: str, again: str = "") -> tuple[StepsOfRun, ...]:
    """Return the runs of a baseline.

    ``name``: what to call the runs. ``again``: how it is saved again, for hints. Raises FormatError if the file is
    damaged, no baseline, or of another version of the format.
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
        "functions": _functions_as_json(run.functions),
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
        if not rank.isdecimal() or int(rank) >= MOST_RANKS or not isinstance(means, dict):
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
        functions=_read_functions(content.get("functions"), file),
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


def _functions_as_json(functions: FunctionsOfRun | None) -> dict[str, Any] | None:
    if functions is None:
        return None
    kept = functions.condensed()
    return {
        "length_ns": {where: round(length) for where, length in kept.length_ns.items()},
        "groups": [
            {
                "where": group.where,
                "kind": group.kind,
                **{name: _rounded(getattr(group, name)) for name in _GROUP},
                "functions": [_function_as_json(one) for one in group.functions],
            }
            for group in kept.groups
        ],
    }


def _read_functions(content: Any, file: CheckedFile) -> FunctionsOfRun | None:
    """Return the functions of a stored run; None where it has none, as in older baselines."""
    if content is None:
        return None
    file.require(isinstance(content, dict), "functions", content, ", no table")
    length_ns = {where: _amount(value, where, file) for where, value in file.table(content, "length_ns").items()}
    file.require(IN_STEP in length_ns and not set(length_ns) - {IN_STEP, IN_WORKER}, "length_ns", length_ns)
    groups = _list(content, "groups", file)
    return FunctionsOfRun(tuple(_group(one, file) for one in groups), length_ns)


def _function_as_json(one: FunctionTime) -> dict[str, Any]:
    return {
        "function": one.function,
        "path": scrub_arguments(["/".join(one.path.split("/")[-_KEPT_PARTS:])])[0],
        **{name: _rounded(getattr(one, name)) for name in _FUNCTION},
        "lines": [[line.line, line.leaf, round(line.time_ns)] for line in one.lines],
    }


def _rounded(value: float) -> float:
    return round(value, 1)


def _group(content: Any, file: CheckedFile) -> FunctionGroup:
    file.require(isinstance(content, dict), "a group of functions", content)
    where, kind = file.text(content, "where"), file.text(content, "kind")
    file.require(where in (IN_STEP, IN_WORKER) and kind in KIND_NAMES, "a group of functions", [where, kind])
    amounts = [_amount(content.get(name), name, file) for name in _GROUP]
    functions = tuple(_function(one, file) for one in _list(content, "functions", file))
    return FunctionGroup(where, kind, ALL_RANKS, amounts[0], amounts[1], max(amounts[2], 1.0), functions)


def _function(content: Any, file: CheckedFile) -> FunctionTime:
    file.require(isinstance(content, dict), "a function", content)
    mean, error, degrees = (_amount(content.get(name), name, file) for name in _FUNCTION)
    lines = tuple(_line(one, file) for one in _list(content, "lines", file))
    name, path = file.text(content, "function"), file.text(content, "path")
    return FunctionTime(name, path, mean, error, max(degrees, 1.0), lines)


def _line(content: Any, file: CheckedFile) -> LineTime:
    is_line = isinstance(content, list) and len(content) == 3 and isinstance(content[1], str)
    file.require(is_line and isinstance(content[0], int), "a line", content)
    return LineTime(content[0], content[1], _amount(content[2], "a line", file))


def _list(content: Mapping[str, Any], key: str, file: CheckedFile) -> Sequence[Any]:
    value = content.get(key, [])
    file.require(isinstance(value, list), key, value, ", no list")
    return list(value)


def _amount(value: Any, what: str, file: CheckedFile) -> float:
    return float(file.require(is_number(value) and value >= 0, what, value))
