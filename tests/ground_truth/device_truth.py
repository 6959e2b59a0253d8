"""Whether jobs on doubles are attributed as their programs say: one run per scenario, more if that one is off.

The machine may be busy. Used by the tests of this folder that run scenarios of ``device_scenarios``.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from device import NEEDED
from measurements import Measurements
from traced import TracedRun

from ground_truth import device_scenarios
from ground_truth.device_scenarios import Measured, Scenario

#: Of the injected time: what the right kind may lack, and what any other may hold by mistake.
TOLERANCE = 0.1


#: Default mode, NCCL timed by events instead of its stamps, every kernel recorded.
OPTIONS: dict[str, dict[str, object]] = {
    "brackets": {},
    "events": {"nccl_source": "events"},
    "kernels": {"libraries": (*NEEDED, "cupti"), "kernels": True, "kernels_steps": "1:20"},
}


def check(
    scenario: Scenario,
    mode: str,
    folder: Path,
    also: Callable[[TracedRun], None] = lambda run: None,
    allowed_ms: float | None = None,
    **options: object,
) -> TracedRun:
    """A run in which everything is where it was put, and of which ``also`` is true."""

    def right(runs: Sequence[tuple[TracedRun, list[Measured]]]) -> None:
        wrong = differences(scenario, mode, [ranks for _, ranks in runs], allowed_ms)
        assert not wrong, "\n".join(wrong)
        for run, _ in runs:
            also(run)

    runs = Measurements(lambda each: measured(scenario, mode, each, **options), folder, most=8)
    return runs.agree(lambda run: right([run]), together=right)[0]


def measured(scenario: Scenario, mode: str, folder: Path, **options: object) -> tuple[TracedRun, list[Measured]]:
    run = device_scenarios.run(scenario, folder, **OPTIONS[mode], **options)
    assert all(result["errors"] == {} for result in run.results())
    assert run.losses() == []
    ranks = device_scenarios.measure(run)
    assert [found.rank for found in ranks] == list(scenario.expected)
    return run, ranks


def differences(
    scenario: Scenario, mode: str, runs: Sequence[list[Measured]], allowed_ms: float | None = None
) -> list[str]:
    """Where the median over the runs is not what the program injects, one line each."""
    off, allowed = [], TOLERANCE * scenario.injected_ms if allowed_ms is None else allowed_ms
    for results in zip(*runs, strict=True):
        rank = results[0].rank
        deep = mode == "kernels"
        expected = ((scenario.with_kernels if deep else None) or scenario.expected)[rank]
        bounds = {} if deep and scenario.with_kernels else scenario.bounds.get(rank, {})
        where = f"rank {rank} of {scenario.name}: " + "; ".join(map(str, results))
        if any(r.methods != {"kernels" if deep else "brackets"} for r in results):
            off.append(f"not by {mode}: {where}")
        for kind in sorted({kind for r in results for kind in r.points_ms} | set(expected)):
            point = statistics.median(r.points_ms.get(kind, 0) for r in results)
            if abs(point - expected.get(kind, 0)) > allowed:
                off.append(f"{kind} {point:.2f} ms: {where}")
        for kind, amount in bounds.items():
            low = statistics.median(r.low_ms.get(kind, 0) for r in results)
            high = statistics.median(r.high_ms.get(kind, 0) for r in results)
            if not low <= amount + allowed or not high >= amount - allowed:
                off.append(f"{kind} in [{low:.2f}, {high:.2f}] ms: {where}")
        for kind, amount in scenario.at_most.get(rank, {}).items():
            high = statistics.median(r.high_ms.get(kind, 0) for r in results)
            if high > amount + allowed:
                off.append(f"{kind} up to {high:.2f} ms: {where}")
        waits = expected.get("straggler", 0) > 0
        if waits and not all(r.cause_ranks == {scenario.cause_rank} for r in results):
            off.append(f"late rank {[r.cause_ranks for r in results]}: {where}")
    return off
