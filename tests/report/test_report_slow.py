"""Steps that are longer than most, and the kinds of time that made them longer."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import pytest
from builders import MS, TraceBuilder

from stashtrace.analysis.findings.summary_input import gather
from stashtrace.report.slow_steps import FEWEST, SLOW_RATIO, slow_steps
from stashtrace.schema.trace import Trace


def job(
    saves: dict[int, int], *, steps: int = 20, ranks: int = 2, gc: dict[int, int] | None = None, leaves: int = 100
) -> Trace:
    """Ranks that compute for 20 ms a step; the first saves a checkpoint of so many ms in some steps, before the others.

    ``leaves``: step before which rank 0 leaves the job.
    """
    build, clock = TraceBuilder(), 0
    for step in range(steps):
        entered: dict[int, int] = {}
        for rank in range(0 if step < leaves else 1, ranks):
            process, now = build.rank(rank), clock
            save = saves.get(step, 0) * MS if not entered else 0
            if save:
                process.phase("checkpoint", now, now + save)
            now += save
            process.phase("forward", now, now + 6 * MS).phase("backward", now + 6 * MS, now + 18 * MS)
            if (gc or {}).get(step):
                process.gc(now + 7 * MS, now + 7 * MS + (gc or {})[step] * MS)
            entered[rank] = now + 18 * MS
        end = max(entered.values()) + MS
        keys = build.collective({rank: (at, end) for rank, at in entered.items()}, message_bytes=1000)
        for rank, at in entered.items():
            build.rank(rank).collective_wait(keys[rank], at, end)
            build.rank(rank).phase("optimizer", end, end + MS)
        clock = end + MS
    return build.trace()


def slow_of(trace: Trace) -> dict[str, Any]:
    tables = gather(trace).tables
    return slow_steps(tables["steps"], tables["stalls"], tables["straggler_causes"], tables["hidden"])


def test_a_step_with_a_checkpoint_is_slow_because_of_it_and_of_the_wait_for_it() -> None:
    found = slow_of(job({9: 60, 14: 30}))
    assert found["slow_count"] == 2
    assert [row["step"] for row in found["listed"]] == [9, 14]
    first = found["listed"][0]
    assert first["excess_ns"] == pytest.approx(60 * MS, rel=0.02)
    kinds = {kind["kind"]: kind for kind in first["kinds"]}
    assert set(kinds) == {"checkpoint", "straggler"}
    # Each is the mean over both ranks, so together they are the excess.
    assert sum(kind["surplus_ns"] for kind in first["kinds"]) == pytest.approx(first["excess_ns"], rel=0.02)
    assert (kinds["checkpoint"]["rank"], kinds["checkpoint"]["late_rank"]) == (0, -1)
    assert (kinds["straggler"]["rank"], kinds["straggler"]["late_rank"]) == (1, 0)
    assert all(kind["low_ns"] <= kind["surplus_ns"] <= kind["high_ns"] for kind in first["kinds"])
    assert found["excess_ns"] == pytest.approx(90 * MS, rel=0.02)
    assert first["end_ns"] - first["begin_ns"] >= 80 * MS


def test_a_step_that_rank_0_did_not_make_has_the_times_of_the_others() -> None:
    (row,) = slow_of(job({14: 60}, leaves=8))["listed"]
    assert [(kind["kind"], kind["rank"]) for kind in row["kinds"]] == [("checkpoint", 1)]
    assert (row["step"], row["kinds"][0]["surplus_ns"]) == (14, 60 * MS)


def test_a_run_of_even_steps_has_no_slow_one() -> None:
    found = slow_of(job({}))
    assert (found["slow_count"], found["listed"]) == (0, [])
    assert found["limit_ns"] == pytest.approx((1 + SLOW_RATIO) * found["median_ns"], rel=1e-6)


def test_steps_that_vary_by_themselves_are_not_called_slow() -> None:
    assert slow_of(job({step: (step * 7) % 13 for step in range(20)}))["slow_count"] == 0


def test_what_goes_on_beside_a_slow_step_is_named_as_that() -> None:
    (row,) = slow_of(job({12: 8}, gc={12: 4}))["listed"]
    assert [part["name"] for part in row["beside"]] == ["gc"]
    assert row["beside"][0]["surplus_ns"] == pytest.approx(4 * MS)


def test_too_few_steps_have_no_usual_length() -> None:
    found = slow_of(job({2: 50}, steps=FEWEST - 1))
    assert found["too_few"]
    assert found["listed"] == []
