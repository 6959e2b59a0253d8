"""The numbers are true on devices: known faults in jobs on played ones, through recorder, decoders and attribution.

One run per scenario, medians of three if that one is off: the machine may be busy.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from ground_truth import device_scenarios
from ground_truth.device_scenarios import Measured, Scenario

#: Of the injected time: what the right kind may lack, and what any other may hold by mistake.
TOLERANCE = 0.1


@pytest.mark.parametrize("scenario", device_scenarios.SCENARIOS, ids=lambda s: s.name)
def test_fault_lands_in_its_kind(scenario: Scenario, tmp_path: Path) -> None:
    runs = [measured(scenario, tmp_path / "0")]
    if differences(scenario, runs):
        runs += [measured(scenario, tmp_path / str(i)) for i in (1, 2)]
    assert differences(scenario, runs) == []


def measured(scenario: Scenario, folder: Path) -> list[Measured]:
    run = device_scenarios.run(scenario, folder)
    assert all(result["errors"] == {} for result in run.results())
    assert run.losses() == []
    ranks = device_scenarios.measure(run)
    assert [found.rank for found in ranks] == [0, 1]
    return ranks


def differences(scenario: Scenario, runs: list[list[Measured]]) -> list[str]:
    """Where the median over the runs is not what the program injects, one line each."""
    off, allowed = [], TOLERANCE * scenario.injected_ms
    for results in zip(*runs, strict=True):
        rank = results[0].rank
        expected, bounds = scenario.expected[rank], scenario.bounds.get(rank, {})
        where = f"rank {rank} of {scenario.name}: " + "; ".join(map(str, results))
        if any(r.methods != {"brackets"} for r in results):
            off.append(f"not by brackets: {where}")
        for kind in sorted({kind for r in results for kind in r.points_ms} | set(expected)):
            point = statistics.median(r.points_ms.get(kind, 0) for r in results)
            if abs(point - expected.get(kind, 0)) > allowed:
                off.append(f"{kind} {point:.2f} ms: {where}")
        for kind, amount in bounds.items():
            low = statistics.median(r.low_ms.get(kind, 0) for r in results)
            high = statistics.median(r.high_ms.get(kind, 0) for r in results)
            if not low <= amount + allowed or not high >= amount - allowed:
                off.append(f"{kind} in [{low:.2f}, {high:.2f}] ms: {where}")
        waits = expected.get("straggler", 0) > 0
        if waits and not all(r.cause_ranks == {scenario.cause_rank} for r in results):
            off.append(f"late rank {[r.cause_ranks for r in results]}: {where}")
    return off
