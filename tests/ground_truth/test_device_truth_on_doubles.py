"""The numbers are true on devices: known faults in jobs on played ones, through recorder, decoders and attribution."""

from __future__ import annotations

from pathlib import Path

import pytest

from ground_truth.device_scenarios import SCENARIOS, Scenario
from ground_truth.device_truth import check

pytestmark = pytest.mark.truth

#: Events do not show that ranks are on two hosts; NCCL does, through its plugin.
BY_EVENTS = [s for s in SCENARIOS if s.cause_rank >= 0 or s.name == "interconnect"]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)
def test_fault_lands_in_its_kind(scenario: Scenario, tmp_path: Path) -> None:
    check(scenario, "brackets", tmp_path)


@pytest.mark.parametrize("scenario", BY_EVENTS, ids=lambda s: s.name)
def test_without_stamps_of_nccl(scenario: Scenario, tmp_path: Path) -> None:
    check(scenario, "events", tmp_path)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)
def test_kernels_know_what_brackets_bound(scenario: Scenario, tmp_path: Path) -> None:
    check(scenario, "kernels", tmp_path)
