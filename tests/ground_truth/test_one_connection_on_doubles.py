"""CUDA_DEVICE_MAX_CONNECTIONS=1 end to end: not one timing event, NCCL's stamps in their place, and what is missing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from device import calls
from measurements import Measurements
from traced import TracedRun

from ground_truth import device_scenarios
from ground_truth.device_scenarios import Scenario
from ground_truth.device_truth import TOLERANCE
from stashtrace.schema.kinds import CollectiveSource
from stashtrace.summary.summary_text import summary

pytestmark = pytest.mark.truth

#: As Megatron does it: the host looks at the loss of each step.
SCENARIO = Scenario(
    "one_connection",
    "forward { kernel 10ms } backward { rank 1 kernel 25ms; repeat 20 { kernel 500us } }"
    "optimizer { wait stream=2 for=0; allreduce 250MB stream=2; wait stream=0 for=2; kernel 2ms } sync stream=0",
    {0: {"compute": 22, "straggler": 25, "interconnect": 25}, 1: {"compute": 47, "interconnect": 25}},
    25,
    cause_rank=1,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("one")


def test_one_connection(folder: Path) -> None:
    env = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    runs = Measurements(lambda each: device_scenarios.run(SCENARIO, each, env=env), folder)
    run = runs.first
    assert all(result["errors"] == {} for result in run.results())
    bare = device_scenarios.run(SCENARIO, folder / "bare", env=env, traced=False)
    assert all(result["errors"] == {} for result in bare.results())
    for library in ("cuda", "cudart"):
        recorded, own = (calls(path, library) for path in (run.directory.parent, folder / "bare"))
        for name in ("cuEventRecord", "cudaEventRecord", "cuEventElapsedTime"):
            assert recorded.get(name, 0) == own.get(name, 0), "an event that is not the job's"
    trace = run.trace
    brackets, rows = trace.device_brackets, trace.collectives
    assert len(brackets)
    assert (brackets["begin_ns"] == -1).all()
    assert set(rows["source_code"].tolist()) == {CollectiveSource.PLUGIN}
    assert (rows["device_begin_ns"] > 0).all()
    assert "timing_events_off" in run.texts(trace.losses, "name_code")
    text = " ".join(summary(trace).split())
    assert "no timed step marks on the device, steps are the host's" in text
    assert "NCCL by its plugin" in text
    assert "invisible here: what the GPU does apart from NCCL (CUDA_DEVICE_MAX_CONNECTIONS=1: no timing events)" in text
    runs.agree(times_are_right)


def times_are_right(run: TracedRun) -> None:
    for rank in device_scenarios.measure(run):
        assert rank.methods == {"host"}
        for kind, at in rank.points_ms.items():
            wanted = SCENARIO.expected[rank.rank].get(kind, 0)
            assert at == pytest.approx(wanted, abs=TOLERANCE * SCENARIO.injected_ms), (kind, rank)
        # During a collective the device may have computed, which no event shows.
        assert rank.low_ms["interconnect"] == 0
        assert rank.cause_ranks == ({1} if rank.rank == 0 else set())
        assert np.isclose(rank.high_ms["interconnect"], rank.points_ms["interconnect"])
