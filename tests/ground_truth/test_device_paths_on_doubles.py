"""The same budget whatever path the work takes to its device: every scenario by each of them."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from ground_truth.device_scenarios import SCENARIOS, Scenario
from ground_truth.device_truth import check

pytestmark = [pytest.mark.truth, pytest.mark.slow]

#: Of a step: what any kind may differ by.
TOLERANCE = 0.03
_COLLECTIVE = re.compile(r"allreduce \S+ stream=\d+")
#: Kernels and copies of the same process on the other device of the two.
_ELSEWHERE = "rank {0} {{ device {1}; kernel 3ms stream=70; copy h2d 20MB pinned stream=70; device {0} }};"
#: Path -> statements before the first step, statements in front of each step, options of the run.
PATHS: dict[str, tuple[str, str, dict[str, object]]] = {
    "blocking": ("", "", {}),
    "non_blocking": ("comm init new=0 nonblocking;", "", {}),
    "grouped": ("comm init new=0;", "", {}),  # one that is made in a group cannot be used there
    "non_blocking_grouped": ("comm init new=0 nonblocking;", "", {}),
    "next_to_a_blocking_stream": ("stream 90 blocking; kernel 1us stream=90; sync device;", "", {}),
    "by_a_handle": ("", "", {"actor": "handle_actor", "lookup_hook": True}),
    "several_devices": ("", _ELSEWHERE.format(0, 1) + _ELSEWHERE.format(1, 0), {}),
}


def by_path(scenario: Scenario, path: str) -> Scenario:
    """The scenario with its work put on the device by a path."""
    prelude, each, _ = PATHS[path]
    program = scenario.program
    if "grouped" in path:
        program = _COLLECTIVE.sub(lambda found: f"group {{ {found[0]} }}", program)
    return dataclasses.replace(
        scenario,
        name=f"{scenario.name} {path}",
        prelude=prelude + scenario.prelude,
        program=each + program,
    )


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.name)
def test_each_path_has_the_same_budget(scenario: Scenario, path: str, tmp_path: Path) -> None:
    step_ms = min(sum(kinds.values()) for kinds in scenario.expected.values())
    check(by_path(scenario, path), "brackets", tmp_path, allowed_ms=TOLERANCE * step_ms, **PATHS[path][2])
