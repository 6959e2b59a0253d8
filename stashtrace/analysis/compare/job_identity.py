"""What a job was: ranks, hardware, versions, batch and data, so that a comparison can say what differs between two."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stashtrace.analysis.steps.epochs import JobSamples, LoaderSamples, job_samples, recorded_samples, workers_count
from stashtrace.schema.kinds import ProcessRole
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace, facts_named

#: A fact of a job: a number, a text, or None if the recording does not say.
Fact = int | str | None


@dataclass(frozen=True, slots=True)
class Field:
    """A fact that is compared."""

    #: In baselines and JSON, and for ``--allow``.
    name: str
    #: What a person calls it.
    words: str
    #: Whether jobs that differ in it do different work, or on other hardware, so that no change explains a growth.
    decides: bool = False


FIELDS = (
    Field("ranks", "ranks", decides=True),
    Field("batch", "samples of a rank and step", decides=True),
    Field("device", "device", decides=True),
    Field("hosts", "hosts"),
    Field("devices", "devices"),
    Field("driver", "CUDA of the driver"),
    Field("cpu", "CPU"),
    Field("cores", "cores"),
    Field("torch", "torch"),
    Field("backend", "backend"),
    Field("threads", "threads of torch"),
    Field("workers", "loader workers of a rank"),
    Field("micro_batches", "micro-batches of a step"),
    Field("dataset", "samples of the data set"),
    Field("epoch", "samples of an epoch"),
    Field("steps", "steps compared"),
    Field("method", "method of the budget"),
    Field("stashtrace", "stashtrace"),
    Field("collectors", "collectors"),
    Field("importer", "files"),
    Field("command", "command"),
)
#: Fields that make jobs incomparable unless they are allowed to differ.
DECIDING = tuple(field.name for field in FIELDS if field.decides)
#: Several values of one field, on ranks that differ.
_JOINT = " and "


@dataclass(frozen=True, slots=True)
class Difference:
    """A field in which two jobs differ, or which one of them lacks."""

    field: Field
    before: Fact
    after: Fact

    @property
    def is_known(self) -> bool:
        """Whether both sides have the field, so that they do differ in it."""
        return self.before is not None and self.after is not None


def job_facts(trace: Trace, counted: Table | None = None, methods: Sequence[str] = ()) -> dict[str, Fact]:
    """Return what a recording says of its job, by the names of :data:`FIELDS`; None for what it does not say.

    ``counted``: the steps that are compared; without them nothing is said of steps and batches. ``methods``: how the
    time of the steps was attributed.
    """
    recorded = _Metadata(trace)
    processes, devices = trace.processes, trace.devices
    ranks = processes.take(processes["role_code"] == ProcessRole.RANK)
    world = int(ranks["world_size"].max(initial=-1))
    workers = processes.take((processes["role_code"] == ProcessRole.WORKER) & (processes["rank"] >= 0))
    loaders = recorded_samples(trace).values()
    samples = JobSamples() if counted is None else job_samples(trace)
    # Without an entry in ``devices``, what the recorder saw of the machine says whether there is none.
    devices_known = len(devices) > 0
    no_device = "none" if recorded.of_run("gpu_driver") == "none" else None
    names = {trace.text(code) for code in np.unique(devices["name_code"]).tolist()} - {""}
    return {
        "ranks": world if world > 0 else len(trace.ranks) or None,
        "batch": samples.step_samples or _one_batch(loaders),
        "device": _join_texts(names) if devices_known else no_device,
        "hosts": len(np.unique(processes["host_code"])) if len(processes) else None,
        "devices": len(np.unique(devices["uuid_code"])) if devices_known else None,
        "driver": int(devices["driver_code"].max()) or None if devices_known else None,
        "cpu": recorded.of_run("cpu"),
        "cores": _number(recorded.of_run("cores_count")),
        "torch": recorded.of_ranks("torch_version"),
        "backend": recorded.of_ranks("backend"),
        "threads": recorded.of_ranks("torch_threads"),
        "workers": _common(
            [workers_count(workers["worker_id"][workers["rank"] == rank]) for rank in np.unique(ranks["rank"])]
        ),
        "micro_batches": None if counted is None else int(np.median(counted["sub_steps_count"])),
        "dataset": max((loader.every for loader in loaders), default=0) or None,
        "epoch": samples.epoch_samples or None,
        "steps": None if counted is None else len(np.unique(counted["step"])),
        "method": _join_texts(methods),
        "stashtrace": recorded.of_run("stashtrace_version"),
        "collectors": recorded.of_run("collectors"),
        "importer": recorded.of_run("imported"),
        "command": recorded.of_ranks("argv") or recorded.of_run("command"),
    }


def recording_id(trace: Trace) -> str:
    """Return the id that the recorder gave a run, else the path of its files; empty if it has neither."""
    return _Metadata(trace).of_run("run_id") or (os.path.realpath(trace.path) if trace.path else "")


def common_facts(runs: Sequence[Mapping[str, Fact]]) -> dict[str, Fact]:
    """Return the facts of several runs as those of one; where they differ, all values in one text."""
    joined: dict[str, Fact] = {}
    for field in FIELDS:
        values = list(dict.fromkeys(run.get(field.name) for run in runs))
        known = [value for value in values if value is not None]
        joined[field.name] = known[0] if len(known) == 1 else _JOINT.join(map(str, known)) if known else None
    return joined


def differences(before: Mapping[str, Fact], after: Mapping[str, Fact]) -> list[Difference]:
    """Return the fields in which two jobs differ, or which only one of them has, as :data:`FIELDS` lists them."""
    pairs = [Difference(field, before.get(field.name), after.get(field.name)) for field in FIELDS]
    return [pair for pair in pairs if pair.before != pair.after]


def changed_words(before: str, after: str) -> tuple[list[str], list[str]]:
    """Return the words of two command lines that the other one does not have, in their order.

    >>> changed_words("python train.py --lr 0.1", "python train.py --lr 0.2 --fast")
    (['0.1'], ['0.2', '--fast'])
    """
    first, second = before.split(), after.split()
    return [word for word in first if word not in second], [word for word in second if word not in first]


class _Metadata:
    """Facts of the run and of its ranks, by key."""

    def __init__(self, trace: Trace) -> None:
        processes = trace.processes
        ranks = processes["process_id"][processes["role_code"] == ProcessRole.RANK]
        self._trace, self._ranks = trace, frozenset(ranks.tolist())

    def of_run(self, key: str) -> str | None:
        """Value of a key of the run; None if it has none."""
        return self._value(key, {-1})

    def of_ranks(self, key: str) -> str | None:
        """Value of a key of the ranks, all values in one text where they differ; None if they have none."""
        return self._value(key, self._ranks)

    def _value(self, key: str, among: Collection[int]) -> str | None:
        return _join_texts({value for process, value in facts_named(self._trace, key) if process in among} - {""})


def _one_batch(loaders: Any) -> int | None:
    """Batch of the loaders if all have one and the same: the loop's own waits may not say which fed a step."""
    sizes = {loader.batch for loader in loaders if loader != LoaderSamples()}
    return sizes.pop() if len(sizes) == 1 and 0 not in sizes else None


def _common(numbers: Sequence[int]) -> Fact:
    """A number that all ranks have, or all of them in one text."""
    found = sorted(set(numbers))
    return found[0] if len(found) == 1 else _join_texts(map(str, found))


def _join_texts(texts: Any) -> str | None:
    return _JOINT.join(sorted(texts)) or None


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and len(text) < 10 else None
