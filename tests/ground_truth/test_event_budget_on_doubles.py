"""Totals stay right when the event budget leaves whole steps without timing events, more of them on one rank."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from measurements import Measurements
from traced import TracedRun

from ground_truth import device_scenarios
from ground_truth.device_scenarios import Scenario
from ground_truth.device_truth import TOLERANCE
from stashtrace.analysis.stalls.budget import stalls
from stashtrace.analysis.steps.steps import steps as steps_of
from stashtrace.summary.summary_text import summary

pytestmark = pytest.mark.truth

STEPS = 120
#: 22 ms of compute, 10 of a copy, rank 1 late by 15, 10 of transfer. Rank 1 copies far more often than rank 0.
SCENARIO = Scenario(
    "thinned",
    "forward { wait stream=1 for=0; copy h2d 100MB pinned stream=1; wait stream=0 for=1; kernel 10ms }"
    "backward { rank 1 { kernel 15ms; repeat 60 { copy h2d 1KB pinned stream=3 } } repeat 20 { kernel 500us } }"
    "optimizer { wait stream=2 for=0; allreduce 100MB stream=2; wait stream=0 for=2; kernel 2ms } sync device",
    {
        0: {"compute": 22, "h2d": 10, "straggler": 15, "interconnect": 10},
        1: {"compute": 37, "h2d": 10, "interconnect": 10},
    },
    15,
    cause_rank=1,
)


@pytest.mark.parametrize("source", ["auto", "events"])
def test_totals_of_a_thinned_run(source: str, tmp_path: Path) -> None:
    options = {"steps": STEPS, "event_budget": 400, "nccl_source": source}
    runs = Measurements(lambda folder: device_scenarios.run(SCENARIO, folder, **options), tmp_path)
    runs.agree(totals_are_right)


def totals_are_right(run: TracedRun) -> None:
    trace = run.trace
    found = steps_of(trace)
    thinned = {rank: set(found["step"][(found["rank"] == rank) & (found["thinned"] == 1)].tolist()) for rank in (0, 1)}
    assert thinned[0] == thinned[1], "what one rank leaves out counts on no rank"
    assert STEPS / 2 <= len(thinned[0]) < STEPS - 10
    # The step by step table says of a thinned one what it does not know.
    table = stalls(trace, warmup=True)
    own = table.take((table["rank"] == 1) & np.isin(table["step"], sorted(thinned[1])) & (table["kind"] == "h2d"))
    assert np.median(own["stall_ns"]) / 1e6 < 1
    assert np.median(own["high_ns"]) / 1e6 > 9
    totals = stalls(trace, by="rank")
    allowed = TOLERANCE * SCENARIO.injected_ms
    for rank, kinds in SCENARIO.expected.items():
        rows = totals.take(totals["rank"] == rank)
        assert set(rows["steps_count"].tolist()) == {STEPS - len(thinned[0] | set(range(5)))}
        for row in rows.rows():
            each = row["stall_ns"] / row["steps_count"] / 1e6
            assert each == pytest.approx(kinds.get(row["kind"], 0), abs=allowed), (rank, row)
            if row["kind"] == "straggler" and rank == 0:
                assert row["cause_rank"] == 1
    text = " ".join(summary(trace).split())
    counted = STEPS - len(thinned[0] | set(range(5)))
    assert f"only {counted} of {STEPS - 5} steps have timing events (--event-budget); the shares are of these" in text
    assert "rank 0 waits 15." in text or "rank 0 waits 14." in text
