"""Whom a rank waited for: several ranks in one step, and sums that equal the straggler rows of stalls."""

from __future__ import annotations

from collections import Counter

import pytest
from analysis.devices.test_device_identity import traces as device_traces
from analysis.stalls.test_stall_identity import traces as host_traces
from budget_identity import relaxed
from builders import MS, TraceBuilder
from hypothesis import assume, given
from hypothesis import strategies as st

from stashtrace.analysis.registry import analyze
from stashtrace.errors import MissingDataError
from stashtrace.schema.trace import Trace

#: Who is late in the three all-reduces of a step, and by how much.
WAITS = {0: 24 * MS, 6: 18 * MS, 2: 3 * MS}


def three_late_ranks() -> Trace:
    """Rank 7 waits 45 ms a step: 24 for rank 0, 18 for rank 6, 3 for rank 2. Others wait the same, for themselves."""
    build = TraceBuilder()
    build.group(range(8))
    for step in range(2):
        at = step * 100 * MS
        for rank in range(8):
            build.rank(rank).phase("forward", at, at + 10 * MS)
        at += 10 * MS
        for late, wait in WAITS.items():
            calls = {rank: at + (wait if rank == late else 0) for rank in range(8)}
            build.meet(calls, at + wait + MS)
            at += wait + MS
        for rank in range(8):
            build.rank(rank).phase("optimizer", at, (step + 1) * 100 * MS)
    return build.trace()


def test_a_step_waits_for_several_ranks_and_the_main_cause_says_its_part() -> None:
    trace = three_late_ranks()
    found, stalls = analyze(trace, "straggler_causes"), analyze(trace, "stalls")
    mine = [(r["step"], r["cause_rank"], r["stall_ns"]) for r in found.rows() if r["rank"] == 7]
    assert mine == [(step, cause, WAITS[cause]) for step in range(2) for cause in sorted(WAITS)]
    # Nobody waits for itself.
    assert not (found["rank"] == found["cause_rank"]).any()
    rows = [r for r in stalls.rows() if r["rank"] == 7 and r["kind"] == "straggler"]
    assert [(r["cause_rank"], r["cause_share_ratio"]) for r in rows] == [(0, pytest.approx(24 / 45))] * 2
    assert set(stalls["cause_share_ratio"][stalls["kind"] != "straggler"].tolist()) == {-1.0}


@pytest.mark.parametrize("by", ["rank", "run"])
def test_totals_count_every_cause_not_only_the_main_one_of_each_step(by: str) -> None:
    """Rank 1 is waited for 4 ms in each step, rank 2 for 6 in one and rank 3 for 6 in the other."""
    build = TraceBuilder()
    build.group(range(4))
    for step in range(2):
        at = step * 100 * MS
        for rank in range(4):
            build.rank(rank).phase("forward", at, at + 10 * MS)
        at += 10 * MS
        for late, wait in ((1, 4 * MS), (2 + step, 6 * MS)):
            calls = {rank: at + (wait if rank == late else 0) for rank in range(4)}
            build.meet(calls, at + wait)
            at += wait
        for rank in range(4):
            build.rank(rank).phase("optimizer", at, (step + 1) * 100 * MS)
    found = analyze(build.trace(), "stalls", by=by, warmup=True)
    rows = {r["rank"]: r for r in found.rows() if r["kind"] == "straggler"}
    if by == "rank":
        assert (rows[0]["stall_ns"], rows[0]["cause_rank"]) == (20 * MS, 1)
        assert rows[0]["cause_share_ratio"] == pytest.approx(8 / 20)
    else:
        # Three ranks wait 8 ms for rank 1, three 6 ms for rank 2, three 6 ms for rank 3.
        assert (rows[-1]["stall_ns"], rows[-1]["cause_rank"]) == (60 * MS, 1)
        assert rows[-1]["cause_share_ratio"] == pytest.approx(24 / 60)


@given(st.one_of(host_traces(), device_traces()))
@relaxed(100)
def test_causes_sum_to_the_straggler_rows_of_each_rank_and_step(trace: Trace) -> None:
    try:
        stalls = list(analyze(trace, "stalls").rows())
    except MissingDataError:
        assume(False)
    columns = ("stall_ns", "low_ns", "high_ns")
    sums = {name: Counter[tuple[int, int]]() for name in columns}
    seen = set()
    largest: dict[tuple[int, int], tuple[int, int]] = {}
    for row in analyze(trace, "straggler_causes").rows():
        key = row["rank"], row["step"]
        assert (*key, row["cause_rank"]) not in seen
        seen.add((*key, row["cause_rank"]))
        assert 0 <= row["low_ns"] <= row["stall_ns"] <= row["high_ns"]
        for name in columns:
            sums[name][key] += row[name]
        if row["cause_rank"] >= 0:
            largest[key] = max(largest.get(key, (0, 0)), (row["stall_ns"], -row["cause_rank"]))
    waits = {(r["rank"], r["step"]): r for r in stalls if r["kind"] == "straggler"}
    for name in columns:
        assert dict(sums[name]) == {key: row[name] for key, row in waits.items()}
    for key, row in waits.items():
        stall, cause = largest.get(key, (-1, 1))
        assert row["cause_rank"] == -cause
        assert row["cause_share_ratio"] == (stall / row["stall_ns"] if stall >= 0 else -1.0)
