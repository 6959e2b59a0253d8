"""Made-up runs whose steps spread: the lengths are those that were asked for, the same on all ranks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stashtrace.analysis.stalls.budget import stalls
from stashtrace.analysis.steps.steps import steps
from stashtrace.lab.synth import SyntheticJob, write
from stashtrace.loading.load import load_trace


def test_without_spread_steps_are_exact() -> None:
    job = SyntheticJob(steps=7)
    assert job.extra_ns().tolist() == [0] * 7
    assert job.begins_ns().tolist() == [job.step_ns * n for n in range(8)]


def test_lengths_are_as_asked_for() -> None:
    extra = SyntheticJob(steps=20_000, spread_ratio=0.03).extra_ns() / SyntheticJob().step_ns
    assert extra.std() == pytest.approx(0.03, rel=0.05)
    assert np.corrcoef(extra[:-1], extra[1:])[0, 1] == pytest.approx(0.5, abs=0.05)
    means = [SyntheticJob(steps=3, run_spread_ratio=0.01, seed=seed).extra_ns().mean() for seed in range(400)]
    assert np.std(means) / SyntheticJob().step_ns == pytest.approx(0.01, rel=0.1)
    assert np.mean(means) / SyntheticJob().step_ns == pytest.approx(0.0, abs=0.002)


def test_no_step_computes_for_less_than_nothing() -> None:
    job = SyntheticJob(steps=500, spread_ratio=5.0)
    assert job.extra_ns().min() == -job.backward_ns
    assert (np.diff(job.begins_ns()) > 0).all()


def test_the_recording_has_these_steps(tmp_path: Path) -> None:
    job = SyntheticJob(ranks=2, steps=30, calls_per_batch=6, spread_ratio=0.05, late_rank=1, late_ns=3_000_000)
    write(tmp_path / "run", job)
    trace = load_trace(str(tmp_path / "run"))
    table = steps(trace)
    for rank in (0, 1):
        own = table.take(table["rank"] == rank)
        assert own["end_ns"] - own["begin_ns"] == pytest.approx(np.diff(job.begins_ns()), abs=2)
    straggler = stalls(trace)
    waited = straggler["stall_ns"][(straggler["kind"] == "straggler") & (straggler["step"] > 0)]
    assert waited == pytest.approx(np.full(len(waited), 3_000_000), abs=20_000)
