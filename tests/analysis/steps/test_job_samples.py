"""Samples of a step and of an epoch, from made-up runs whose loaders say something of themselves."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stashtrace.analysis.steps.epochs import FACT, JobSamples, job_samples
from stashtrace.lab.synth import SyntheticJob, write
from stashtrace.loading.load import load_trace
from stashtrace.schema.events import TABLES
from stashtrace.schema.kinds import BatchPhase
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

JOB = SyntheticJob(ranks=2, workers=2, steps=40, calls_per_batch=12)


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    write(tmp_path / "run", JOB)
    return load_trace(str(tmp_path / "run"))


def told(trace: Trace, *said: str) -> Trace:
    """The same run, the loader of each rank having said one of these."""
    batches = trace.batches
    rows = []
    for rank, value in enumerate(said):
        own = np.flatnonzero((batches["rank"] == rank) & (batches["phase_code"] == BatchPhase.WAIT))
        for loader in np.unique(batches["loader_id"][own]).tolist():
            key = trace.strings.code(f"{FACT}{loader:016x}")
            rows.append((int(batches["process_id"][own[0]]), key, trace.strings.code(value)))
    return trace.replace(metadata=Table.from_rows(TABLES["metadata"], rows))


def test_a_batch_a_step(trace: Trace) -> None:
    assert job_samples(told(trace, "32 500 1000", "32 500 1000")) == JobSamples(32, 1000)


@pytest.mark.parametrize("shared", [501, 512, 480])
def test_what_is_repeated_or_left_out_for_whole_batches_is_none_of_the_data_set(trace: Trace, shared: int) -> None:
    assert job_samples(told(trace, f"32 {shared} 1001", f"32 {shared} 1001")) == JobSamples(32, 1001)


def test_a_sampler_that_draws_less_than_there_is_makes_the_epoch(trace: Trace) -> None:
    assert job_samples(told(trace, "32 320 1001", "32 320 1001")) == JobSamples(32, 640)


def test_every_rank_may_see_all_of_it(trace: Trace) -> None:
    assert job_samples(told(trace, "32 1000 1000", "32 1000 1000")) == JobSamples(32, 2000)


def test_micro_batches_add_up(trace: Trace) -> None:
    whole = told(trace, "8 500 1000", "8 500 1000")
    waits = whole.batches.take((whole.batches["phase_code"] == BatchPhase.WAIT) & (whole.batches["batch_index"] >= 0))
    assert job_samples(whole.replace(batches=Table.concat(waits.schema, [waits, waits]))) == JobSamples(16, 1000)


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(("32 500 1000", "16 500 1000"), id="ranks differ"),
        pytest.param(("0 0 0", "0 0 0"), id="samples one by one"),
        pytest.param(("32 500 1000",), id="a rank says nothing"),
        pytest.param((), id="nobody says anything"),
    ],
)
def test_what_is_not_known_is_not_said(trace: Trace, said: tuple[str, ...]) -> None:
    assert job_samples(told(trace, *said)) == JobSamples()


@pytest.mark.parametrize("second", ["32 0 0", "32 0 1000"])
def test_an_epoch_without_a_length(trace: Trace, second: str) -> None:
    assert job_samples(told(trace, "32 500 1000", second)) == JobSamples(32, 0)
    assert job_samples(told(trace, second, "32 500 1000")) == JobSamples(32, 0)
