"""``stashtrace whatif``: what it prints, its options, and its complaints."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from pathlib import Path

import pytest
from importers.kineto_files import rank_of_two
from pipeline_files import two_stages, write

from stashtrace.cli import main


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A made-up run of 4 ranks, of which rank 2 is 8 ms late in each step; its workers set the pace."""
    out = tmp_path_factory.mktemp("whatif") / "made"
    assert main(["synth", str(out), "--ranks", "4", "--steps", "30", "--late-rank", "2", "--late", "8"]) == 0
    return out


def answered(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert main(["whatif", *arguments]) == 0
    return capsys.readouterr().out


def test_what_to_fix_first(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = answered(capsys, str(run)).splitlines()
    assert lines[0] == "a step takes 123 ms on average"
    assert lines[1].startswith("the replay of the run as it was misses that by 0 %; ")
    assert lines[3] == "may differ by 2 %, and each answer with it"
    assert lines[5].split() == ["change", "step", "saves", "largest", "stall", "then"]
    assert {"prep=x0.5", "fetch=0", "workers=x2"} == {line.split()[0] for line in lines[6:9]}
    end = lines.index("", 6)
    saved = [float(line.split("%")[0].split()[-1]) for line in lines[6:end]]
    assert saved == sorted(saved, reverse=True)
    assert lines[end + 1].startswith("critical path: ")
    assert "rank 2 prep" in lines[end + 1]
    assert max(map(len, lines)) < 80


def test_the_critical_path_as_json_adds_up(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = json.loads(answered(capsys, str(run), "--format", "json"))["critical_path"]
    assert sum(row["share_ratio"] for row in told["shares"]) == pytest.approx(1)
    assert sum(row["ambiguous_ratio"] for row in told["shares"]) == pytest.approx(told["ambiguous_ratio"])
    assert told["sentence"].startswith("critical path: ")


def test_several_changes_hold_together(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, both = (
        json.loads(answered(capsys, str(run), *(f"--set={text}" for text in changes), "--format", "json"))
        for changes in (["prep=x0.5"], ["prep=x0.5", "compute=x0.5"])
    )
    (single,), (double,) = one["answers"], both["answers"]
    assert double["changes"] == ["prep=x0.5", "compute=x0.5"]
    assert double["high_ns"] < single["high_ns"] < one["run"]["measured_ns"]
    assert sum(double["budget_ns"].values()) == pytest.approx(double["high_ns"], rel=0.05)
    text = answered(capsys, str(run), "--set", "prep=x0.5", "--set", "compute=x0.5")
    assert "prep=x0.5, compute=x0.5" in text
    assert "mean of all ranks" in text


@pytest.mark.parametrize("change", ["speed=x2", "compute=fast", "network.bandwidth=0"])
def test_an_unknown_change_is_one_line_with_what_is_known(
    run: Path, change: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["whatif", str(run), "--set", change]) == 2
    assert "network.bandwidth" in capsys.readouterr().err


def test_an_imported_trace_with_kernels_is_answered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in (0, 1):
        rank_of_two(tmp_path / f"rank{rank}.json", rank, late_us=100.0 * rank)
    assert main(["whatif", str(tmp_path), "--set", "launch=x0.5"]) == 0
    said = capsys.readouterr().out
    assert "misses that by 0 %" in said
    assert "launch=x0.5" in said


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two stages of four replicas; rank 1 computes for twice as long: a step takes 10 s, of ranks alike 7.75 s."""
    return str(write(tmp_path_factory.mktemp("pipeline") / "trace-X.parquet", two_stages({(1, 0): 2.0})))


def test_what_it_costs_that_ranks_are_not_alike(pipeline: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = answered(capsys, pipeline).splitlines()
    first = next(row for row, line in enumerate(lines) if line.startswith("with all ranks alike"))
    assert lines[first - 1 : first + 3] == [
        "for all ranks together a step takes 10.0 s;",
        "with all ranks alike, their work shared evenly, it would take 7.75 s:",
        "as it was, the run is 1.29 times slower",
        "rank 1 alone is behind 100 % of it",
    ]
    assert "alike" not in answered(capsys, pipeline, "--set", "compute=x0.5")
    rows = json.loads(answered(capsys, pipeline, "--format", "json"))["slowdown"]
    assert (rows[0]["cause"], rows[0]["slowdown_ratio"]) == ("all", pytest.approx(10 / 7.75, rel=1e-5))
    assert len(rows) > 10
    # The workers of the made-up run set the pace of all ranks.
    assert "alike" not in answered(capsys, str(run))
    rows = json.loads(answered(capsys, str(run), "--format", "json"))["slowdown"]
    assert [row["cause"] for row in rows] == ["all", "gap"]


@pytest.mark.parametrize(
    ("change", "step_ms"),
    [
        ("straggler=0", 7000),
        ("compute=x0.5", 5375),
        ("interconnect.latency=x2", 10375),
        ("interconnect.bandwidth=x2", 9812.5),
    ],
)
def test_changes_of_a_pipeline(pipeline: str, change: str, step_ms: float, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a step 0.25 s are messages and 0.5 s a reduction; at most 0.125 s of each is latency."""
    answer = json.loads(answered(capsys, pipeline, "--set", change, "--format", "json"))["answers"][0]
    assert answer["error_ratio"] < 1e-3
    assert sum(answer["budget_ns"].values()) == pytest.approx(answer["high_ns"], rel=1e-3)
    assert answer["high_ns"] / 1e6 == pytest.approx(step_ms, rel=1e-3)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ("prep=x0.5", "nothing of their hosts"),
        ("fetch=0", "nothing of their hosts"),
        ("launch=x0.5", "nothing of their hosts"),
        ("network.bandwidth=x2", "over the network"),
    ],
)
def test_what_a_pipeline_says_nothing_of(
    pipeline: str, change: str, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["whatif", pipeline, "--set", change]) == 4
    said = capsys.readouterr().err
    assert what in said
    assert "interconnect" in said or "links" in said


def made_up(out: Path, *options: str) -> str:
    """A run of 4 ranks: forward 30 ms, backward 50 ms, an all-reduce of 10 ms, an update of 20 ms."""
    words = ["synth", str(out), "--ranks", "4", "--steps", "30", "--optimizer", "20", *options]
    assert main(words) == 0
    return str(out)


def test_advice_stands_behind_the_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = made_up(tmp_path / "run", "--workers", "0")
    found = json.loads(answered(capsys, run, "--format", "json"))["advice"]
    saved = {item["transformation"]: (item["saving_low_ns"], item["saving_high_ns"]) for item in found}
    assert saved["split_reorder"] == pytest.approx((15e6, 15e6), rel=0.01)  # 3 of 4 parts of the update
    assert saved["fuse"] == pytest.approx((0, 20e6), rel=0.01)
    assert saved["overlap"] == pytest.approx((0, 10e6 * (1 - 1 / 8)), rel=0.01)
    assert {item["moved_bytes"] for item in found} == {26_214_400}
    lines = answered(capsys, run).splitlines()
    assert sum(line.startswith("advice: ") for line in lines) == 3
    assert max(map(len, lines)) < 80
    assert "advice" not in answered(capsys, run, "--set", "prep=x0.5")


def test_what_does_not_set_the_pace_is_no_advice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Workers that are just fast enough leave nothing to save, however exposed a transfer is."""
    run = made_up(tmp_path / "run", "--wait", "1")
    assert json.loads(answered(capsys, run, "--format", "json"))["advice"] == []
    assert "advice" not in answered(capsys, run)
