"""Planted late hosts, slow commits and interfering jobs are found, and nothing is found where nothing was planted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from made_up_history import HOUR, MINUTE, SECOND, SHARED, Fleet, Job, commit, write_history

from stashtrace.lab.history.answers import hosts_sentences, interference_sentences
from stashtrace.lab.history.gather import read_history
from stashtrace.lab.history.questions.fleet import BY, costs, fleet_view
from stashtrace.lab.history.questions.interference import interference
from stashtrace.lab.history.questions.late_hosts import late_hosts
from stashtrace.lab.history.questions.slow_commits import slow_commits
from stashtrace.lab.history.run_files import Place
from stashtrace.lab.history.run_totals import RunTotals, job_name
from stashtrace.lab.recommend.instance_catalog import load_catalog
from stashtrace.schema.stall_kinds import words_of

pytest.importorskip("pyarrow")

TRAIN, OTHER = Job(("torchrun", "train.py")), Job(("torchrun", "other.py"))
WRITER = Job(("torchrun", "writer.py"), every_ns=20 * MINUTE, write_ns=90 * SECOND)
NAMED = ("always", "often")
SEEDS = pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.thorough)])


def totals_of(folder: Path, fleet: Fleet) -> RunTotals:
    write_history(folder, fleet)
    return RunTotals(read_history(Place(str(folder))), load_catalog())


def named_hosts(totals: RunTotals) -> dict[str, str]:
    return {row["host"]: row["verdict"] for row in late_hosts(totals).rows() if row["verdict"] in (*NAMED, "rank")}


@pytest.mark.parametrize(
    ("seed", "kind"), [(0, "fetch"), (1, "compute"), pytest.param(2, "fetch", marks=pytest.mark.thorough)]
)
def test_a_late_host_is_named_with_its_cause(tmp_path: Path, seed: int, kind: str) -> None:
    fleet = Fleet(seed=seed, runs=80, jobs=(TRAIN, OTHER), late_hosts={"node07": (0.8, 40_000_000, kind)})
    totals = totals_of(tmp_path, fleet)
    assert named_hosts(totals).keys() == {"node07"}
    first = next(late_hosts(totals).rows())
    assert (first["host"], first["cause"], first["cause_count"]) == ("node07", kind, first["late_count"])
    assert 25_000_000 < first["wait_ns"] < 45_000_000
    said = hosts_sentences(late_hosts(totals), totals)
    late = f"node07 late in {first['late_count']} of {first['runs_count']} runs"
    assert said[0].startswith(f"{late}, always by {words_of(kind)}; ")


@SEEDS
def test_two_late_hosts_are_both_named(tmp_path: Path, seed: int) -> None:
    planted = {"node02": (0.9, 50_000_000, "fetch"), "node09": (0.7, 45_000_000, "compute")}
    fleet = Fleet(seed=seed, runs=120, jobs=(TRAIN, OTHER), late_hosts=planted)
    assert named_hosts(totals_of(tmp_path, fleet)).keys() == set(planted)


@SEEDS
def test_a_rank_that_is_late_wherever_it_runs_blames_no_host(tmp_path: Path, seed: int) -> None:
    """Hosts in alphabetical order: rank 0, which saves and logs, is on node00 and node01 far more than on others."""
    job = Job(("torchrun", "train.py"), busy_rank=0, busy_ns=40_000_000)
    totals = totals_of(tmp_path, Fleet(seed=seed, runs=80, jobs=(job,)))
    assert named_hosts(totals) == {}
    assert sum(row["late_count"] for row in late_hosts(totals).rows()) > 70


def test_a_rank_that_no_other_host_held_is_not_distinguished_from_its_host(tmp_path: Path) -> None:
    """Two jobs on two hosts each, always the same; in one of them rank 0 does more."""
    jobs = (Job(("torchrun", "a.py"), busy_rank=0, busy_ns=40_000_000, scatter=0.004), TRAIN)
    totals = totals_of(tmp_path, Fleet(seed=5, runs=60, jobs=jobs, hosts=2))
    assert set(named_hosts(totals).values()) <= {"rank"}
    assert not any(row["verdict"] in NAMED for row in late_hosts(totals).rows())


def noisy_fleet(seed: int) -> Fleet:
    """Lateness of alternating ranks, steps that vary from run to run, writers whose checkpoints disturb nobody."""
    turns = Job(("torchrun", "turns.py"), scatter=0.06, run_scatter=0.03)
    long = Job(
        ("torchrun", "b.py"), hosts=3, scatter=0.03, run_scatter=0.05, every_ns=15 * MINUTE, write_ns=60 * SECOND
    )
    return Fleet(seed=seed, runs=60, jobs=(turns, long), commits=8, between_hours=0.5, hosts=8)


@pytest.mark.parametrize(
    "seed", [100, 101, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(102, 106))]
)
def test_nothing_is_named_where_nothing_was_planted(tmp_path: Path, seed: int) -> None:
    totals = totals_of(tmp_path, noisy_fleet(seed))
    assert sum(row["late_count"] for row in late_hosts(totals).rows()) > 10  # somebody is last in most runs
    assert named_hosts(totals) == {}
    assert [row["verdict"] for row in slow_commits(totals).rows()] == []
    assert len(interference(totals)) == 0


@pytest.mark.parametrize(
    ("seed", "growth", "verdict"),
    [(0, 0.18, "slower"), (1, -0.18, "faster"), pytest.param(2, 0.18, "slower", marks=pytest.mark.thorough)],
)
def test_the_commit_that_changed_the_step(tmp_path: Path, seed: int, growth: float, verdict: str) -> None:
    late = {"node07": (0.8, 40_000_000, "fetch")}
    fleet = Fleet(seed=seed, runs=72, jobs=(TRAIN, OTHER), commits=6, slow_commits={3: growth}, late_hosts=late)
    found = list(slow_commits(totals_of(tmp_path, fleet)).rows())
    assert {(row["commit"], row["before_commit"], row["verdict"]) for row in found} == {(commit(3), commit(2), verdict)}
    assert {row["job"] for row in found} == {"torchrun train.py", "torchrun other.py"}
    for row in found:
        # The step has fetch and link in addition to the compute that grew.
        assert row["kind"] == "compute"
        assert row["growth_ratio"] == pytest.approx(0.79 * growth, abs=0.04)


def test_two_commits_that_changed_it(tmp_path: Path) -> None:
    fleet = Fleet(seed=3, runs=90, jobs=(TRAIN,), commits=9, slow_commits={3: 0.2, 6: -0.2})
    found = list(slow_commits(totals_of(tmp_path, fleet)).rows())
    assert [(row["commit"], row["verdict"]) for row in found] == [(commit(6), "faster"), (commit(3), "slower")]


def test_a_growth_below_the_limit_is_none(tmp_path: Path) -> None:
    totals = totals_of(tmp_path, Fleet(seed=2, runs=60, jobs=(TRAIN,), commits=6, slow_commits={3: 0.03}))
    assert len(slow_commits(totals)) == 0
    assert [row["verdict"] for row in slow_commits(totals, limit_percent=0.5).rows()] == ["slower"]


@SEEDS
def test_the_writer_that_slowed_reads(tmp_path: Path, seed: int) -> None:
    totals = totals_of(tmp_path, Fleet(seed=seed, runs=40, jobs=(TRAIN, WRITER), write_slows=3.0, between_hours=1.0))
    rows = list(interference(totals).rows())
    assert {(row["job"], row["other_job"]) for row in rows} >= {("torchrun train.py", "torchrun writer.py")}
    assert {row["other_job"] for row in rows} == {"torchrun writer.py"}
    assert {row["file_system"] for row in rows} == {SHARED}
    assert all(2.3 < row["slower_ratio"] < 3.4 for row in rows)
    assert all(row["slower_count"] >= 0.8 * row["checkpoints_count"] for row in rows)
    assert all(row["lost_ns"] > 0 for row in rows)
    said = interference_sentences(interference(totals), totals)
    assert any("checkpoints of `torchrun writer.py` made reads of `torchrun train.py`" in text for text in said)


def test_writers_that_disturb_nobody_are_not_named(tmp_path: Path) -> None:
    totals = totals_of(tmp_path, Fleet(seed=8, runs=60, jobs=(TRAIN, WRITER), write_slows=1.0, between_hours=0.5))
    assert len(interference(totals)) == 0


def test_costs_add_up_to_the_hours_and_the_price(tmp_path: Path) -> None:
    totals = totals_of(tmp_path, Fleet(seed=1, runs=20))
    table = costs(totals)
    hours = float((totals.history.end_ns - totals.history.begin_ns).sum()) / HOUR * 2
    assert float(table["machine_hours"].sum()) == pytest.approx(hours)
    assert float(table["share_ratio"].sum()) == pytest.approx(1.0)
    price = load_catalog().instances["p4d.24xlarge"].price_per_hour
    assert price is not None
    assert float(table["cost"].sum()) == pytest.approx(hours * price)
    assert set(table["energy_kwh"].tolist()) == {-1.0}


@pytest.mark.parametrize("by", BY)
def test_each_view_of_the_fleet_has_all_hours(tmp_path: Path, by: str) -> None:
    totals = totals_of(tmp_path, Fleet(seed=1, runs=20, jobs=(TRAIN, OTHER)))
    table = fleet_view(totals, by)
    assert float(table["machine_hours"].sum()) == pytest.approx(float(totals.hours.sum()))
    parts = np.stack([table[name] for name in table.schema.names if name.endswith("_ratio") and "step" not in name])
    assert parts.sum(axis=0) == pytest.approx(1.0)


def test_names_of_jobs_leave_out_what_differs_from_run_to_run() -> None:
    first = ["torchrun", "--rdzv-id", "7", "train.py", "--seed", "1", "--out=runs/1", "--lr", "0.1", "--run-name", "x"]
    second = ["torchrun", "--rdzv-id", "8", "train.py", "--seed", "2", "--out=runs/2", "--lr", "0.1", "--run-name", "y"]
    assert job_name(first) == job_name(second) == "torchrun train.py --lr 0.1"
    assert job_name([*first, "--lr", "0.2"]) != job_name(first)
