"""Steps that close while a job runs have the numbers that the analyses have for them afterwards, to the nanosecond."""

from __future__ import annotations

import tarfile
from collections.abc import Collection
from pathlib import Path

import numpy as np
import pytest
from growing_files import grow
from made_job import MS, write_job

from stashtrace.analysis.findings.spikes.slow_steps import KIND_COLUMNS
from stashtrace.analysis.stalls.budget import stalls
from stashtrace.analysis.steps.steps import steps
from stashtrace.format.growing import GrowingRun
from stashtrace.live import accounts as live_accounts
from stashtrace.live.accounts import LiveAccounts
from stashtrace.live.table import LIVE_STEPS, wide_rows
from stashtrace.loading.load import load_trace
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.table import Table

RECORDED = Path(__file__).parents[1] / "data" / "recorded"
SECOND = 1_000_000_000


def follow(
    recorded: Path, target: Path, every_ns: int = SECOND, killed: Collection[int] = ()
) -> tuple[Table, LiveAccounts, list[int]]:
    """Let a run grow and follow it; return what closed, the accounts, and the bytes held after each round."""
    accounts = LiveAccounts(GrowingRun(str(target)))
    parts, held = [], []
    now_ns = 0
    for now_ns in grow(recorded, target, every_ns, killed):
        parts.append(accounts.round(now_ns).closed)
        held.append(accounts.run.held_bytes)
    before = sum(map(len, parts))
    parts.append(accounts.round(now_ns, ended=True).closed)
    closed = Table.concat(LIVE_STEPS, parts)
    assert before > 0.5 * len(closed), "most steps are to close while the run grows"
    return closed, accounts, held


def afterwards(recorded: Path, start: int = 0) -> Table:
    """The same rows, by the analyses of the whole recording."""
    trace = load_trace(recorded)
    table = steps(trace)
    rows = stalls(trace, by="step", warmup=True)
    return wide_rows(rows, table, start=start, complete=np.ones(len(table), dtype=bool))


def differences(live: Table, whole: Table, tolerance_ns: int = 0) -> list[str]:
    """Where rows of a step differ, in words."""
    at = GroupBy(whole["rank"], whole["step"]).row_of(live["rank"], live["step"])
    assert (at >= 0).all(), "a step closed that the recording does not have"
    other = whole.take(at)
    found = []
    for name in LIVE_STEPS.names:
        equal = live[name] == other[name] if name == "step_kind" else abs(live[name] - other[name]) <= tolerance_ns
        found += [
            f"rank {live['rank'][row]} step {live['step'][row]}: {name} {live[name][row]} {other[name][row]}"
            for row in np.flatnonzero(~np.asarray(equal)).tolist()
        ]
    return found


@pytest.mark.parametrize("ranks_count", [1, 3])
def test_closed_steps_equal_the_analysis(tmp_path: Path, ranks_count: int) -> None:
    """Late ranks, batches in flight and calls on files are among them; most of the run is forgotten by its end."""
    late = {(ranks_count - 1, step): 40.0 for step in range(50, 190, 7)}
    write_job(tmp_path / "job", ranks_count=ranks_count, steps_count=240, late_ms=late)
    live, accounts, _ = follow(tmp_path / "job", tmp_path / "grown")
    whole = afterwards(tmp_path / "job")
    assert len(live) == len(whole) == ranks_count * 240
    assert differences(live, whole) == []
    assert (sum(live[name] for name in KIND_COLUMNS.values()) == live["end_ns"] - live["begin_ns"]).all()
    assert accounts.window is not None, "the window is to begin after the head of the run"
    waited = int(live["straggler_ns"].sum())
    if ranks_count > 1:  # the planted lateness: two ranks wait for the third
        assert waited >= 0.8 * (ranks_count - 1) * len(late) * 40 * MS
        slow = live.take(np.isin(live["step"], [step for _, step in late]) & (live["rank"] == 0))
        assert set(slow["cause_rank"].tolist()) == {ranks_count - 1}


def test_a_rank_that_was_killed(tmp_path: Path) -> None:
    """All ranks stop where it died."""
    write_job(tmp_path / "job", steps_count=240, dead=[(1, 150)])
    live, _, _ = follow(tmp_path / "job", tmp_path / "grown", killed=(1010, 1011))
    assert len(live) >= 300
    assert differences(live, afterwards(tmp_path / "job")) == []


def test_a_silent_rank_does_not_hold_up_the_others(tmp_path: Path) -> None:
    """Of two ranks that do not wait for each other, one is killed after 50 of 400 steps; its ring stays."""
    write_job(tmp_path / "job", steps_count=400, dead=[(1, 50)], lockstep=False)
    accounts = LiveAccounts(GrowingRun(str(tmp_path / "grown")))
    newest = -1
    for now_ns in grow(tmp_path / "job", tmp_path / "grown", SECOND, killed=(1010, 1011)):
        accounts.round(now_ns)
        newest = accounts.closed.get(0, -1)
    assert newest > 330
    assert accounts.closed[1] == 49


def test_memory_does_not_grow_with_the_run(tmp_path: Path) -> None:
    write_job(tmp_path / "job", ranks_count=2, steps_count=1500, step_ms=60.0)
    _, _, held = follow(tmp_path / "job", tmp_path / "grown", 2 * SECOND)
    quarter = len(held) // 4
    assert quarter > 4
    assert max(held[3 * quarter :]) <= 1.2 * max(held[quarter : 2 * quarter])


def test_steps_count_from_0_again_after_a_restart(tmp_path: Path) -> None:
    """The ranks of an elastic job begin a second time: the rows say so, and equal those of the second start."""
    write_job(tmp_path / "job", steps_count=100, restart="0")
    write_job(tmp_path / "job", steps_count=150, restart="1", begin_ms=12_000.0, first_pid=3000)
    live, accounts, _ = follow(tmp_path / "job", tmp_path / "grown")
    assert sorted(set(live["start"].tolist())) == [0, 1]
    assert accounts.start == 1
    second = live.take(live["start"] == 1)
    assert len(second) == 300
    assert differences(second, afterwards(tmp_path / "job", start=1)) == []


def test_a_step_without_end_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that do not fit go, and the steps that needed them say that they are not complete."""
    write_job(tmp_path / "job", steps_count=200)
    monkeypatch.setattr(live_accounts, "MOST_BYTES", 20_000)
    accounts = LiveAccounts(GrowingRun(str(tmp_path / "grown")))
    parts = [accounts.round(now_ns).closed for now_ns in grow(tmp_path / "job", tmp_path / "grown", SECOND)]
    closed = Table.concat(LIVE_STEPS, parts)
    assert accounts.run.held_bytes < 10 * 20_000
    assert len(closed) > 330
    assert (closed["complete"] == 0).any()


@pytest.mark.parametrize("version", sorted(path.name for path in RECORDED.iterdir()))
def test_recorded_job(tmp_path: Path, version: str) -> None:
    """A job of two ranks with workers, recorded by each released version."""
    with tarfile.open(RECORDED / version / "run.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    live, _, _ = follow(tmp_path / "run", tmp_path / "grown")
    assert differences(live, afterwards(tmp_path / "run")) == []
