"""The numbers are true: real faults, the script's clock against ours, within 5 % of the step.

One run per scenario here, up to four more if it is off; five interleaved ones are benchmarks/ground_truth.py's.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

import pytest
from installed import needs_torch
from measurements import Measurements

from ground_truth import scenarios
from ground_truth.scenarios import Compare

needs_torch()
pytestmark = [pytest.mark.truth, pytest.mark.torch, pytest.mark.slow]

#: Of the step's wall time.
TOLERANCE_PERCENT = 5.0
OTHER_PERCENT = 2.0
WALL_TOLERANCE = 0.02


@pytest.mark.parametrize("scenario", scenarios.SCENARIOS, ids=lambda s: s.name)
def test_stalls_are_what_the_script_measured(scenario: scenarios.Scenario, compare: Compare, tmp_path: Path) -> None:
    def right(runs: Sequence[list[scenarios.RankComparison]]) -> None:
        wrong = differences(scenario, runs)
        assert not wrong, "\n".join(wrong)

    def measured(folder: Path) -> list[scenarios.RankComparison]:
        ranks = compare(scenario, folder)
        for result in ranks:
            assert result.steps_count == scenario.steps - scenarios.WARMUP_STEPS
        return ranks

    Measurements(measured, tmp_path).agree(lambda run: right([run]), together=right)


def differences(scenario: scenarios.Scenario, runs: Sequence[list[scenarios.RankComparison]]) -> list[str]:
    """Where the median over the runs is not what the script's clock says, one line each."""
    found = []
    # The fault must be large somewhere, or the comparison below could not fail. Not on both ranks: whoever is quicker
    # in one step waits for the other in all-reduce.
    shares = [
        statistics.median(r.truth_ns[scenario.dominant[r.rank]] / r.wall_ns for r in results)
        for results in zip(*runs, strict=True)
    ]
    if max(shares) <= scenario.share:
        found.append(f"the fault is small: {shares} of the step")
    for results in zip(*runs, strict=True):
        rank = results[0].rank
        where = f"rank {rank} of {scenario.name}: " + "; ".join(map(report, results))
        wall = statistics.median(r.traced_wall_ns / r.wall_ns for r in results)
        if abs(wall - 1) > WALL_TOLERANCE:
            found.append(f"wall time x {wall:.3f}: {where}")
        for kind in sorted({kind for r in results for kind in r.kinds}):
            percent = statistics.median(r.difference_percent(kind) for r in results)
            if abs(percent) > TOLERANCE_PERCENT or (kind == "other" and percent > OTHER_PERCENT):
                found.append(f"{kind} {percent:+.1f} % of the step: {where}")
        if scenario.dominant[rank] == "straggler":
            blamed = [max(r.cause_ranks, key=lambda cause: r.cause_ranks[cause]) for r in results]
            if statistics.median(blamed) != scenario.cause_rank:
                found.append(f"blamed ranks {blamed}: {where}")
    return found


def report(result: scenarios.RankComparison) -> str:
    """Truth and trace in ms, kind by kind, for the message of a failure."""
    pairs = [
        f"{kind} {result.truth_ns.get(kind, 0) / 1e6:.2f} -> {result.traced_ns.get(kind, 0) / 1e6:.2f}"
        for kind in result.kinds
    ]
    return f"step {result.wall_ns / 1e6:.2f} ms, script's clock -> stashtrace: {', '.join(pairs)}"
