"""What a late rank does longer than one that waits for it: every kind that can be injected is found, host included."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from analysis.late.test_late import LATE_NS, LATE_RANK, STEPS, device_job, job
from analysis.late.test_straggler_causes import three_late_ranks
from builders import MS, TraceBuilder

from stashtrace.analysis.late.causes import CAUSES
from stashtrace.analysis.late.surplus import GROUPS, LateSurplus, late_surplus
from stashtrace.analysis.registry import analyze
from stashtrace.schema.trace import Trace


def compared(trace: Trace, victim: int, late: int) -> LateSurplus:
    steps = analyze(trace, "steps")
    found = late_surplus(trace, analyze(trace, "straggler_causes"), steps, victim, late)
    assert found is not None
    # What is longer here is shorter there: nothing is lost between the kinds.
    walls = [(steps["end_ns"] - steps["begin_ns"])[steps["rank"] == rank].sum() for rank in (late, victim)]
    assert sum(found.surplus_ns.values()) * found.steps_count == pytest.approx(walls[0] - walls[1], abs=1)
    return found


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
        ("cpu_contention", "cpu_contention"),
        ("checkpoint", "save"),
        ("sleep", "sleep"),
        ("other", "other"),
    ],
)
def test_what_was_injected_explains_the_wait(kind: str, group: str) -> None:
    found = compared(job(kind), victim=0, late=LATE_RANK)
    assert (found.explains, found.kind) == (group, kind)
    mean = LATE_NS * (STEPS - 1) / STEPS
    assert found.wait_ns == pytest.approx(mean, rel=0.05)
    assert found.of(group) == pytest.approx(mean, rel=0.05)


@pytest.mark.parametrize(("kind", "group"), [("launch", "host"), ("h2d", "copy"), ("compute", "compute")])
def test_a_device_that_waits_for_its_host_is_explained(kind: str, group: str) -> None:
    found = compared(device_job(kind), victim=0, late=2)
    assert (found.explains, found.kind) == (group, kind)
    assert found.of(group) == pytest.approx(30 * MS, rel=0.05)


def test_a_surplus_is_held_against_the_wait_for_that_rank_alone() -> None:
    """Rank 7 waits 45 ms a step, 3 of them for rank 2, which is late by as much and does nothing longer."""
    found = compared(three_late_ranks(), victim=7, late=2)
    assert found.wait_ns == 3 * MS
    assert compared(three_late_ranks(), victim=7, late=0).wait_ns == 24 * MS


def test_who_is_late_without_doing_anything_longer_has_no_cause() -> None:
    """Rank 1 is late in one step by computing, rank 0 in the other: on average nothing is longer."""
    build = TraceBuilder()
    for step in range(2):
        start = step * 100 * MS
        calls = {rank: start + (40 if rank == step else 10) * MS for rank in range(2)}
        keys = build.collective({rank: (call, start + 41 * MS) for rank, call in calls.items()})
        for rank, call in calls.items():
            build.rank(rank).phase("forward", start, call)
            build.rank(rank).collective_wait(keys[rank], call, start + 41 * MS)
            build.rank(rank).phase("optimizer", start + 60 * MS, start + 100 * MS)
    found = compared(build.trace(), victim=0, late=1)
    assert (found.wait_ns, found.explains, found.kind) == (15 * MS, "", "")


def test_ranks_without_a_step_in_common_cannot_be_compared() -> None:
    trace = job("compute")
    steps = analyze(trace, "steps")
    only = steps.take((steps["rank"] == 0) | (steps["step"] > 99))
    assert late_surplus(trace, analyze(trace, "straggler_causes"), only, 0, LATE_RANK) is None
