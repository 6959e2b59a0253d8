"""The numbers are true: real faults, the script's own clock beside ours, within 5 % of the step.

One run per scenario here; five interleaved ones with medians are benchmarks/ground_truth.py's.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest

from ground_truth import machine, scenarios

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.slow]

#: Of the step's wall time.
TOLERANCE_PERCENT = 5.0
OTHER_PERCENT = 2.0


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    scenarios.write_images(folder)
    return folder


@pytest.mark.parametrize("scenario", scenarios.SCENARIOS, ids=lambda s: s.name)
def test_stalls_are_what_the_script_measured(scenario: scenarios.Scenario, data: Path, tmp_path: Path) -> None:
    try:
        ranks = scenarios.run(scenario, data, tmp_path)
    except machine.Missing as missing:
        pytest.skip(str(missing))
    finally:
        scenarios.clean(tmp_path)

    assert [result.rank for result in ranks] == [0, 1]
    # The fault must be large somewhere, or the comparison below could not fail. Not on both ranks: whoever is quicker
    # in one step waits for the other in all-reduce.
    assert any(
        result.truth_ns[scenario.dominant[result.rank]] > scenario.share * result.wall_ns for result in ranks
    ), [report(result) for result in ranks]
    for result in ranks:
        where = f"{scenario.name}, rank {result.rank}, {report(result)}"
        assert result.steps_count == scenario.steps - scenarios.WARMUP_STEPS
        assert result.traced_wall_ns == pytest.approx(result.wall_ns, rel=0.02), where
        for kind in result.kinds:
            assert abs(result.difference_percent(kind)) <= TOLERANCE_PERCENT, f"{kind}: {where}"
        assert result.difference_percent("other") <= OTHER_PERCENT, where
        if scenario.dominant[result.rank] == "straggler":
            blamed = max(result.cause_ranks, key=lambda rank: result.cause_ranks[rank])
            assert blamed == scenario.cause_rank, f"blamed {result.cause_ranks}: {where}"


def report(result: scenarios.RankComparison) -> str:
    """Truth and trace in ms, kind by kind, for the message of a failure."""
    pairs = [
        f"{kind} {result.truth_ns.get(kind, 0) / 1e6:.2f} -> {result.traced_ns.get(kind, 0) / 1e6:.2f}"
        for kind in result.kinds
    ]
    return f"step {result.wall_ns / 1e6:.2f} ms, script's clock -> stashtrace: {', '.join(pairs)}"
