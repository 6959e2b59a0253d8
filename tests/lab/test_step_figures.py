"""Step times and attribution of one run, from made-up runs whose stalls are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stashtrace.analysis.registry import analyze
from stashtrace.errors import MissingDataError
from stashtrace.lab.characterize import run_figures as module
from stashtrace.lab.characterize.run_figures import step_figures
from stashtrace.lab.synth import SyntheticJob, write
from stashtrace.loading.load import load_trace
from stashtrace.schema.kinds import ProcessRole

JOB = SyntheticJob(ranks=2, workers=2, steps=40, calls_per_batch=12)
STEP_NS = JOB.wait_ns + JOB.forward_ns + JOB.backward_ns + JOB.transfer_ns + JOB.optimizer_ns


def test_means_of_the_wanted_steps(tmp_path: Path) -> None:
    write(tmp_path / "run", JOB)
    found = step_figures(load_trace(str(tmp_path / "run")), 5, 20)
    assert found.step_ns == pytest.approx(STEP_NS, rel=1e-3)
    assert (found.steps_count, found.epochs_count) == (20, 0)
    assert (found.ranks_count, found.hosts_count, found.workers_count) == (2, 1, 2)
    assert sum(value for value, _, _ in found.stalls_ns.values()) == pytest.approx(found.step_ns, rel=1e-6)
    assert found.stalls_ns["interconnect"][0] == pytest.approx(JOB.transfer_ns, rel=0.05)
    assert found.messages_count == 1
    assert not found.on_device


def test_a_late_rank_is_part_of_the_step(tmp_path: Path) -> None:
    write(
        tmp_path / "run",
        SyntheticJob(ranks=2, workers=2, steps=40, calls_per_batch=12, late_rank=1, late_ns=15_000_000),
    )
    found = step_figures(load_trace(str(tmp_path / "run")), 5, 20)
    assert found.step_ns == pytest.approx(STEP_NS + 15_000_000, rel=1e-3)
    assert found.stalls_ns["straggler"][0] == pytest.approx(7_500_000, rel=0.05), "one of two ranks waits"


def test_the_step_in_which_an_epoch_begins_is_left_out(tmp_path: Path) -> None:
    write(tmp_path / "run", JOB)
    found = step_figures(load_trace(str(tmp_path / "run")), 0, 30)
    assert found.epochs_count == 1
    assert found.steps_count == 29


def test_validation_is_no_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its steps have numbers between those of training; as many updates as asked for are looked at."""
    write(tmp_path / "run", JOB)
    trace = load_trace(str(tmp_path / "run"))
    steps = analyze(trace, "steps")
    kind = np.where((steps["step"] >= 3) & (steps["step"] < 18), "validation", steps["kind"])
    tables = {"steps": steps.replace(kind=kind), "stalls": analyze(trace, "stalls", warmup=True)}
    monkeypatch.setattr(module, "analyze", lambda trace, name, **options: tables[name])
    assert step_figures(trace, 5, 12).steps_count == 12


def test_workers_of_every_epoch_are_the_same_ones(tmp_path: Path) -> None:
    write(tmp_path / "run", JOB)
    trace = load_trace(str(tmp_path / "run"))
    rows = np.arange(len(trace.processes))
    started = np.repeat(rows, np.where(trace.processes["role_code"] == ProcessRole.WORKER, 5, 1))
    again = trace.replace(processes=trace.processes.take(started))
    assert step_figures(again, 5, 20).workers_count == 2


def test_a_run_that_ends_too_early(tmp_path: Path) -> None:
    write(tmp_path / "run", JOB)
    with pytest.raises(MissingDataError, match=r"only 40 training steps .* it takes 58") as raised:
        step_figures(load_trace(str(tmp_path / "run")), 50, 40)
    assert "--warmup" in str(raised.value.hint)
    with pytest.raises(MissingDataError, match=r"only 40 training steps .* it takes 53"):
        step_figures(load_trace(str(tmp_path / "run")), 50, 3)
