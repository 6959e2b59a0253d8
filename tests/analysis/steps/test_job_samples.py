"""Samples of a step and of an epoch, from made-up runs whose loaders say something of themselves."""

from __future__ import annotations

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


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    run = tmp_path_factory.mktemp("made") / "run"
    write(run, JOB)
    return load_trace(str(run))


def with_samples(trace: Trace, *said: str) -> Trace:
    """The same run, the loader of each rank having said one of these."""
    batches = trace.batches
    rows = []
    for rank, value in enumerate(said):
        own = np.flatnonzero((batches["rank"] == rank) & (batches["phase_code"] == BatchPhase.WAIT))
        for loader in np.unique(batches["loader_id"][own]).tolist():
            key = trace.strings.code(f"{FACT}{loader:016x}")
            rows.append((int(batches["process_id"][own[0]]), key, trace.strings.code(value)))
    return trace.replace(metadata=Table.from_rows(TABLES["metadata"], rows))


@pytest.mark.parametrize(
    ("said", "samples"),
    [
        pytest.param(("32 500 1000",) * 2, JobSamples(32, 1000), id="a batch a step"),
        *(
            pytest.param((f"32 {shared} 1001",) * 2, JobSamples(32, 1001), id=f"{shared} of 1001 for whole batches")
            for shared in (501, 512, 480)
        ),
        pytest.param(("32 320 1001",) * 2, JobSamples(32, 640), id="a sampler that draws less makes the epoch"),
        pytest.param(("32 1000 1000",) * 2, JobSamples(32, 2000), id="every rank may see all of it"),
        pytest.param(("32 500 1000", "16 500 1000"), JobSamples(), id="ranks differ"),
        pytest.param(("0 0 0", "0 0 0"), JobSamples(), id="samples one by one"),
        pytest.param(("32 500 1000",), JobSamples(), id="a rank says nothing"),
        pytest.param((), JobSamples(), id="nobody says anything"),
        *(
            pytest.param(said, JobSamples(32, 0), id=f"an epoch without a length: {said}")
            for other in ("32 0 0", "32 0 1000")
            for said in (("32 500 1000", other), (other, "32 500 1000"))
        ),
    ],
)
def test_samples_are_what_all_ranks_say(trace: Trace, said: tuple[str, ...], samples: JobSamples) -> None:
    assert job_samples(with_samples(trace, *said)) == samples


def test_micro_batches_add_up(trace: Trace) -> None:
    whole = with_samples(trace, "8 500 1000", "8 500 1000")
    waits = whole.batches.take((whole.batches["phase_code"] == BatchPhase.WAIT) & (whole.batches["batch_index"] >= 0))
    assert job_samples(whole.replace(batches=Table.concat(waits.schema, [waits, waits]))) == JobSamples(16, 1000)
