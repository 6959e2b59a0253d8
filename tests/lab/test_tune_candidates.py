"""What is tried on a job: changes that a replay predicts, and settings that fit what the run shows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from made_up_runs import MS

from stashtrace.analysis.compare.steps_of_run import StepsOfRun, steps_of_run
from stashtrace.lab.synth import SyntheticJob, write
from stashtrace.lab.tune.run_job import LoaderFacts, candidates
from stashtrace.loading.load import load_trace
from stashtrace.schema.trace import Trace

CORES = [0, 1, 2, 3]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trace, StepsOfRun]:
    """Two ranks that wait for the batches of one worker each."""
    folder = tmp_path_factory.mktemp("synth")
    write(folder, SyntheticJob(ranks=2, workers=1, steps=40, calls_per_batch=0, wait_ns=60_000_000))
    trace = load_trace(str(folder))
    return trace, steps_of_run(trace)


@pytest.fixture
def loaders(monkeypatch: pytest.MonkeyPatch) -> list[LoaderFacts]:
    """One DataLoader with one worker."""
    now: dict[str, Any] = {"num_workers": 1, "prefetch_factor": 2, "pin_memory": False, "persistent_workers": False}
    found = [LoaderFacts("train.py", 3, {}, now)]
    monkeypatch.setattr("stashtrace.lab.tune.run_job.loader_facts", lambda trace: found)
    return found


def test_what_a_replay_predicts_comes_first(recorded: tuple[Trace, StepsOfRun], loaders: list[LoaderFacts]) -> None:
    trace, steps = recorded
    found = candidates(trace, steps, {}, CORES)
    first = found[0]
    assert (first.name, first.present) == ("num_workers", "1")
    assert int(first.value) > 1
    assert first.low_ns is not None
    assert first.low_ns < steps.of("step").mean()
    assert [one.name for one in found if one.low_ns is None][:2] == ["prefetch_factor", "prefetch_factor"]
    assert "0,1;2,3" in [one.value for one in found if one.name == "cpu_affinity"]
    assert not any(one.name.startswith(("NCCL", "TORCH_NCCL", "pin_memory")) for one in found)
    # What holds already is not tried again.
    assert first not in candidates(trace, steps, {first.name: first.value}, CORES)


def test_a_rank_gets_no_more_workers_than_it_has_cpus(
    recorded: tuple[Trace, StepsOfRun], loaders: list[LoaderFacts]
) -> None:
    trace, steps = recorded
    for cores, values in ((CORES, ["2"]), (CORES[:2], [])):  # of two ranks
        found = candidates(trace, steps, {}, cores)
        assert [one.value for one in found if one.name == "num_workers"] == values
    asked = next(one for one in candidates(trace, steps, {}, CORES[:2], [3]) if one.name == "num_workers")
    assert asked.value == "3"
    names = [str(one) for one in candidates(trace, steps, {}, CORES, [2])]
    assert names.count("num_workers=2") == 1
    assert asked.low_ns is not None


def test_without_a_loader_nothing_of_loaders_is_tried(
    recorded: tuple[Trace, StepsOfRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stashtrace.lab.tune.run_job.loader_facts", lambda trace: [])
    names = {one.name for one in candidates(*recorded, {}, CORES)}
    assert names.isdisjoint({"num_workers", "prefetch_factor", "persistent_workers", "pin_memory"})
    assert "OMP_NUM_THREADS" in names


def test_threads_are_the_cpus_of_a_rank(recorded: tuple[Trace, StepsOfRun], loaders: list[LoaderFacts]) -> None:
    trace, steps = recorded
    for present, values in ((8, ["2", "1"]), (2, ["1"]), (1, ["2"])):
        facts = {**steps.facts, "threads": str(present)}
        found = candidates(trace, replace(steps, facts=facts), {}, CORES)
        assert [one.value for one in found if one.name == "OMP_NUM_THREADS"] == values


def test_nccl_and_pinning_where_there_are_devices(
    recorded: tuple[Trace, StepsOfRun], loaders: list[LoaderFacts]
) -> None:
    trace, steps = recorded
    sent = np.full(len(steps.times_ns["step"]), 50 * MS)
    facts = {**steps.facts, "device": "NVIDIA H100", "backend": "nccl"}
    found = candidates(trace, replace(steps, facts=facts, times_ns={**steps.times_ns, "network": sent}), {}, CORES)
    names = [one.name for one in found]
    assert "pin_memory" in names
    assert {"TORCH_NCCL_HIGH_PRIORITY", "NCCL_BUFFSIZE"} <= set(names)
