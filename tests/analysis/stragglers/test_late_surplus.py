"""What a rank does longer than its peers: every kind that can be injected is found, host included."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from analysis.stragglers.test_late import LATE_NS, LATE_RANK, STEPS, device_job, job
from builders import MS, TraceBuilder
from wait_chains import data_parallel

from stashtrace.analysis.registry import analyze
from stashtrace.analysis.stragglers.causes import CAUSES, GROUPS, surplus_over_peers
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


@pytest.mark.parametrize(
    ("runs_ms", "queues_ms", "kind", "longer"), [(40, 60, "compute", 75), (10, 60, "cpu_contention", 45)]
)
def test_who_has_more_to_do_waits_more_often_for_a_cpu(runs_ms: int, queues_ms: int, kind: str, longer: int) -> None:
    """Rank 0 waits 15 ms for a CPU in 10 ms of work. A rank with four times the work waits four times as long."""
    build, start = TraceBuilder(), 0
    build.group(range(2), name="mesh_dp")
    queued = [0, 0]
    for _ in range(6):
        calls = {}
        for number, (runs, queues) in enumerate(((10, 15), (runs_ms, queues_ms))):
            rank, end = build.rank(number), start + (runs + queues) * MS
            queue = queued[number], queued[number] + queues * MS
            rank.phase("forward", start, end, cpu=(start, start + runs * MS), runqueue=queue)
            calls[number], queued[number] = end, queue[1]
        last = max(calls.values())
        build.meet(calls, last + MS)
        for number in calls:
            build.rank(number).phase("optimizer", last + MS, last + 2 * MS)
        start = last + 2 * MS
    trace = build.trace()
    found = longer_ms(trace, 1, [0])
    assert max(found, key=lambda one: found[one]) == kind
    assert found[kind] == pytest.approx(longer, rel=0.06)  # an optimizer of 1 ms does not queue
    rows = analyze(trace, "late")
    assert set(rows["cause_kind"].tolist()) == {kind}
    assert rows["cause_ns"].tolist() == pytest.approx([longer * MS] * len(rows), rel=0.06)
    roots = analyze(trace, "straggler_roots")
    assert set(roots["cause_kind"][roots["root_rank"] == 1].tolist()) == {kind}


def test_ranks_without_a_step_in_common_cannot_be_compared() -> None:
    trace = job("compute")
    steps = analyze(trace, "steps")
    only = steps.take((steps["rank"] == 0) | (steps["step"] > 99))
    assert surplus_over_peers(trace, only, LATE_RANK, [0]) == {}
