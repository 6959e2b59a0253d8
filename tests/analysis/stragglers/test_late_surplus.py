"""What a rank does longer than its peers: every kind that can be injected is found, host included."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Sequence

import pytest
from analysis.stragglers.test_late import LATE_NS, LATE_RANK, STEPS, device_job, job
from builders import MS
from wait_chains import data_parallel

from stashtrace.analysis.registry import analyze
from stashtrace.analysis.stragglers.causes import CAUSES
from stashtrace.analysis.stragglers.surplus import GROUPS, surplus_over_peers
from stashtrace.schema.trace import Trace


def longer_ms(trace: Trace, rank: int, peers: Sequence[int]) -> dict[str, float]:
    """Surplus by group, in ms."""
    steps = analyze(trace, "steps")
    found = surplus_over_peers(trace, steps, rank, peers)
    if len(peers) == 1:
        # What is longer here is shorter there: nothing is lost between the kinds.
        walls = [(steps["end_ns"] - steps["begin_ns"])[steps["rank"] == one].mean() for one in (rank, *peers)]
        assert sum(found.values()) == pytest.approx(walls[0] - walls[1], abs=1)
    return {group: sum(found[kind] for kind in kinds) / MS for group, kinds in GROUPS.items()}


def test_every_kind_of_time_belongs_to_one_group() -> None:
    kinds = [kind for group in GROUPS.values() for kind in group]
    assert sorted(kinds) == sorted(set(CAUSES) - {"before"})


@pytest.mark.parametrize(
    ("kind", "group"),
    [
        ("fetch", "data"),
        ("prep", "data"),
        ("compute", "compute"),
        ("gc", "gc"),
        ("compile", "compile"),
        ("cpu_contention", "cpu_contention"),
        ("checkpoint", "save"),
        ("sleep", "sleep"),
        ("other", "other"),
    ],
)
def test_what_was_injected_is_what_is_longer(kind: str, group: str) -> None:
    found = longer_ms(job(kind), LATE_RANK, [0])
    mean = LATE_NS / MS * (STEPS - 1) / STEPS
    assert max(found, key=lambda one: found[one]) == group
    assert found[group] == pytest.approx(mean, rel=0.05)
    assert found["late"] == pytest.approx(-mean, rel=0.05)


@pytest.mark.parametrize(("kind", "group"), [("launch", "host"), ("h2d", "copy"), ("compute", "compute")])
def test_a_device_that_waits_for_its_host_is_explained(kind: str, group: str) -> None:
    found = longer_ms(device_job(kind), 2, [0])
    assert max(found, key=lambda one: found[one]) == group
    assert found[group] == pytest.approx(30, rel=0.05)


def test_a_rank_is_held_against_the_median_of_its_peers() -> None:
    """Of three peers one sleeps for 90 ms as well: it is no rule."""
    trace = data_parallel(lambda step, rank: {0: 30.0, 3: 90.0}.get(rank, 0.0), ranks=4, kind="sleep")
    assert longer_ms(trace, 0, range(4))["sleep"] == pytest.approx(30)
    assert longer_ms(trace, 3, range(4))["sleep"] == pytest.approx(90)


def test_ranks_without_a_step_in_common_cannot_be_compared() -> None:
    trace = job("compute")
    steps = analyze(trace, "steps")
    only = steps.take((steps["rank"] == 0) | (steps["step"] > 99))
    assert surplus_over_peers(trace, only, LATE_RANK, [0]) == {}
