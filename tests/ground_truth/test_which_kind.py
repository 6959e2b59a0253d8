"""An injected fault is the largest kind of its rank: which kind, not how much, so that a busy machine changes nothing.

Each fault is several times what the rest of the step takes, also where other work wants the processors: waiting and a
slow disk do not depend on them, and burnt CPU grows with whatever else the step computes. How much is said of each is
judged by test_ground_truth.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from installed import needs_torch

from ground_truth import scenarios
from ground_truth.scenarios import Compare, RankComparison, Scenario

needs_torch()
pytestmark = [pytest.mark.torch, pytest.mark.slow]

STEPS = scenarios.WARMUP_STEPS + 4
FAULTS = (
    Scenario(
        "fetch",
        "disk limited to 20 MiB/s, each image reads 1 MiB more from it",
        ("--inject-fetch-kib", "1024"),
        {0: "fetch", 1: "fetch"},
        steps=STEPS,
        means="slow_disk",
    ),
    Scenario("prep", "30 ms of CPU burnt per image", ("--inject-prep-ms", "30"), {0: "prep", 1: "prep"}, steps=STEPS),
    Scenario(
        "straggler",
        "rank 1 sleeps 600 ms before its backward",
        ("--inject-straggler-ms", "600"),
        {0: "straggler"},
        steps=STEPS,
        cause_rank=1,
    ),
)


@pytest.mark.parametrize(
    "fault",
    [pytest.param(fault, marks=[pytest.mark.thorough] * (fault.name == "prep"), id=fault.name) for fault in FAULTS],
)
def test_the_fault_is_the_largest_kind(fault: Scenario, compare: Compare, tmp_path: Path) -> None:
    for rank in compare(fault, tmp_path / "job"):
        if rank.rank not in fault.dominant:
            continue
        assert largest(rank.traced_ns) == fault.dominant[rank.rank], compared(rank)
        assert largest(rank.truth_ns) == fault.dominant[rank.rank], f"the fault was too small: {compared(rank)}"
        if fault.cause_rank >= 0:
            assert largest(rank.cause_ranks) == fault.cause_rank, compared(rank)


def largest(amounts: dict[str, float] | dict[int, float]) -> str | int:
    return max(amounts, key=lambda key: amounts[key])  # type: ignore[index]


def compared(rank: RankComparison) -> str:
    """Truth and trace in ms a step, kind by kind."""
    truth, traced = rank.truth_ns, rank.traced_ns
    kinds = ", ".join(f"{k} {truth.get(k, 0) / 1e6:.1f} -> {traced.get(k, 0) / 1e6:.1f}" for k in rank.kinds)
    return (
        f"rank {rank.rank}, step {rank.wall_ns / 1e6:.1f} ms, script's clock -> stashtrace: {kinds}; {rank.cause_ranks}"
    )
