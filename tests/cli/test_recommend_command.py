"""``stashtrace recommend``: what it prints, its exit codes, its complaints, and that the guide shows what it prints."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import environment
from published_runs import characterization, write_published

from stashtrace.cli import main
from stashtrace.cli.option_values import read_count, read_hours, read_price

WORK = ("--samples", "1M", "--epochs", "3")
SPELLINGS = {"instance", "count", "hours", "cost", "limited_by", "measured"}


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The characterization and the catalog of the guide, in the current directory."""
    write_published(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def recommend(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    capsys.readouterr()
    assert main(["recommend", "characterization.json", "--catalog", "nodes.toml", *words]) == code
    return capsys.readouterr().out


def as_json(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(recommend(capsys, *words, "--format", "json", code=code))
    return found


def test_spellings_that_scripts_rely_on(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(capsys, *WORK, "--time-budget", "6h", "--cost-budget", "50")
    assert all(set(row) >= SPELLINGS for row in found["candidates"])
    costs = [row["cost"] for row in found["candidates"]]
    assert costs == sorted(costs)
    assert found["budget"] == {"hours": 6.0, "cost": 50.0, "met": True}
    assert found["cheapest_within_time"]["instance"] == "node1"
    assert found["fastest_within_cost"]["count"] == 8
    measured = {(row["instance"], row["count"]) for row in found["candidates"] if row["measured"]}
    assert measured == {("node4", 1), ("node4", 2)}
    assert found["not_measured"]["p4d.24xlarge"].startswith("no characterization")
    assert found["assumptions"]


def test_nothing_but_budgets(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What ``characterize`` wrote where it writes by default, and an epoch of the job itself."""
    whole = characterization("bert-base", "10GbE", "WFBP-A2A") | {"epoch_samples": 100_000}
    folder = job / "characterization"
    folder.mkdir()
    (folder / "characterization.json").write_text(json.dumps(whole), encoding="utf-8")
    words = ["recommend", "--catalog", "nodes.toml", "--time-budget", "6h", "--cost-budget", "50"]
    capsys.readouterr()
    assert main([*words, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["work"]["samples"], found["work"]["epochs"]) == (100_000, 1)
    asked = as_json(capsys, "--samples", "100000")
    assert [row["hours"] for row in found["candidates"]] == [row["hours"] for row in asked["candidates"]]
    assert main([*words, "--epochs", "2"]) == 0
    assert "work: 2 epochs of 100,000 samples, as many as the job has, 64 a step" in capsys.readouterr().out
    assert main([*words, "--iterations", "10"]) == 0
    assert "work: 10 steps" in capsys.readouterr().out


def test_json_holds_no_nan(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = characterization("bert-base", "10GbE", "WFBP-A2A")
    for number in (1, 2, 5):
        whole["steps"][f"t{number}_ns"] |= {"low_ns": None, "high_ns": None}
    whole["instance"] = "somewhere"
    Path("characterization.json").write_text(json.dumps(whole), encoding="utf-8")
    text = recommend(capsys, *WORK, "--format", "json", "--elasticity")
    assert "NaN" not in text
    assert "Infinity" not in text
    found = json.loads(text)
    assert all(row["hours_low"] is None and row["cost"] is None for row in found["candidates"])
    assert found["elasticity"]


def test_words(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = recommend(capsys, *WORK, "--time-budget", "2h", "--elasticity")
    for part in (
        "work: 3 epochs of 1,000,000 samples",
        "cheapest within 2 h: node4, 1.31 h, 10.51 USD (measured)",
        "loses 26 % of its step to the links between its devices",
        "node4 costs the same as 4x node1",
        "predicted rows assume:",
        "not measured, so nothing is said of:",
        "elasticity",
    ):
        assert part in " ".join(text.split()), part
    assert max(len(line) for line in text.splitlines()) < 125


def test_markdown_for_a_pull_request(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = recommend(capsys, *WORK, "--format", "markdown")
    assert out.startswith("work: ")
    assert re.search(r"^\|  \| instances \| devices \|.*\n\|---\|---\|---:\|", out, re.MULTILINE)
    assert re.search(r"^- \*\*cheapest: ", out, re.MULTILINE)


def test_csv_and_plot(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    rows = list(csv.DictReader(io.StringIO(recommend(capsys, *WORK, "--format", "csv", "--plot", "front.png"))))
    assert set(rows[0]) >= SPELLINGS
    assert Path("front.png").read_bytes().startswith(b"\x89PNG")
    recommend(capsys, *WORK, "--cost-budget", "15", "--time-budget", "1h", "--plot", "front.svg")
    drawn = Path("front.svg").read_text(encoding="utf-8")
    assert "Pareto" in drawn or "<svg" in drawn


@pytest.mark.parametrize(
    ("budgets", "part"),
    [
        (("--time-budget", "5m"), "no candidate finishes within 5 min: 8x node4-100g comes nearest"),
        (
            ("--cost-budget", "2"),
            "no candidate finishes for at most 2.00 USD: node1 comes nearest, 7.83 USD is 5.83 USD",
        ),
        (("--time-budget", "20m", "--cost-budget", "10"), "no candidate keeps both budgets: the nearest is"),
    ],
)
def test_a_budget_that_nothing_meets(
    job: Path, capsys: pytest.CaptureFixture[str], budgets: tuple[str, ...], part: str
) -> None:
    text = recommend(capsys, *WORK, *budgets, code=1)
    assert part in text
    assert "instances" in text, "the table is there all the same"
    found = as_json(capsys, *WORK, *budgets, code=1)
    assert not found["budget"]["met"]
    assert found["nearest"]["instance"]


def test_the_exit_code_outlives_the_reader(job: Path) -> None:
    """A script that shortens the answer must not take a missed budget for a kept one; this reader has ended first."""
    words = ["recommend", "characterization.json", "--catalog", "nodes.toml", *WORK, "--cost-budget", "2"]
    command = shlex.join([sys.executable, "-m", "stashtrace", *words])
    script = f"{command} | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], env=environment(), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "")


def test_given_price(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(capsys, *WORK, "--price", "node4=80")
    row = next(row for row in found["candidates"] if (row["instance"], row["count"]) == ("node4", 1))
    assert row["price_per_hour"] == 80
    assert (row["price_source"], row["priced_on"]) == ("the command line", "")


def test_a_cost_budget_without_prices_is_not_met(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("nodes.toml").write_text("", encoding="utf-8")
    assert "its price is not known" in recommend(capsys, *WORK, "--cost-budget", "50", code=1)
    text = recommend(capsys, *WORK, "--time-budget", "9h")
    assert "▶ fastest, of those without a price, within 9 h: 8x node4" in text


def test_an_unnamed_machine_is_named(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = characterization("bert-base", "10GbE", "WFBP-A2A") | {"instance": ""}
    Path("characterization.json").write_text(json.dumps(whole), encoding="utf-8")
    assert {row["instance"] for row in as_json(capsys, *WORK)["candidates"]} == {"this machine"}
    named = as_json(capsys, *WORK, "--instance", "node4")
    assert "node4" in {row["instance"] for row in named["candidates"]}


def test_batches(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = characterization("bert-base", "10GbE", "WFBP-A2A") | {"batch_samples": 0}
    Path("characterization.json").write_text(json.dumps(whole), encoding="utf-8")
    assert main(["recommend", "characterization.json", *WORK]) == 2
    assert "--batch-size" in capsys.readouterr().err
    assert as_json(capsys, *WORK, "--batch-size", "64")["candidates"][0]["batch_samples"] == 64
    assert as_json(capsys, "--iterations", "1000")["candidates"][0]["batch_samples"] is None


def test_the_catalog(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["recommend", "--list"]) == 0
    text = capsys.readouterr().out
    for part in ("p3.16xlarge", "24.48", "2026-08-26", "instances.vantage.sh", "* for short times"):
        assert part in text


@pytest.mark.parametrize("added", [0, 1])
def test_the_catalog_for_programs(job: Path, added: int, capsys: pytest.CaptureFixture[str]) -> None:
    Path("own.toml").write_text("[instance.desk]\nvcpus_count = 8\npriced_on = 2026-11-01\n", encoding="utf-8")
    own = ["--catalog", "own.toml"] * added
    capsys.readouterr()
    assert main(["recommend", "--list", "--format", "json", *own]) == 0
    rows = json.loads(capsys.readouterr().out)
    found = {row["name"]: row for row in rows}
    assert len(found) == len(rows)
    assert found["p3.16xlarge"]["price_per_hour"] == 24.48
    assert found["p3.16xlarge"]["priced_on"] == "2026-08-26"
    assert ("desk" in found) == bool(added)
    assert main(["recommend", "--list", "--format", "csv", *own]) == 0
    reported = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [row["name"] for row in reported] == [row["name"] for row in rows]
    assert reported[0].keys() == rows[0].keys()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "the amount of work is not known"),
        (("--epochs", "3"), "--epochs needs the number of samples"),
        (("--samples", "lots"), "--samples lots is not a positive number"),
        (("--samples", "0"), "--samples 0 is not a positive number"),
        (("--samples", "10", "--iterations", "10"), "both state the amount of work"),
        ((*WORK, "--time-budget", "soon"), "--time-budget soon is not a time"),
        ((*WORK, "--time-budget", "6"), "--time-budget 6 is not a time"),
        ((*WORK, "--time-budget", "0h"), "--time-budget 0h is not a time"),
        ((*WORK, "--cost-budget", "-3"), "is not a sum of money"),
        ((*WORK, "--max-count", "0"), "--max-count 0 is not a whole number of at least 1"),
        ((*WORK, "--price", "node4"), "--price node4 is not a price"),
        ((*WORK, "--price", "node4=-1"), "is not a price"),
        ((*WORK, "--batch-size", "7"), "nothing was measured with a batch size of 7"),
        ((*WORK, "--batch-size", "0"), "--batch-size 0 is not a whole number of at least 1"),
        ((*WORK, "--plot", "front.txt"), "a plot ends in"),
        ((*WORK, "--data", "hot"), "--data cannot be 'hot'"),
    ],
)
def test_complaints(job: Path, words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recommend", "characterization.json", *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("none.json", *WORK), "none.json does not exist"),
        (("nodes.toml", *WORK), "no JSON"),
        (("characterization.json", *WORK, "--catalog", "none.toml"), "none.toml does not exist"),
        (("characterization.json", *WORK, "--catalog", "characterization.json"), "no TOML"),
    ],
)
def test_files_that_are_none(
    job: Path, words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["recommend", *words]) == 4
    said = capsys.readouterr().err
    assert message in said
    assert "hint:" in said


def test_no_folder_for_the_plot(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Said before anything is printed."""
    pytest.importorskip("matplotlib")
    assert recommend(capsys, *WORK, "--plot", "nowhere/front.png", code=3) == ""


def test_no_file_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["recommend", "--samples", "10"]) == 2
    assert "no FILE is given" in capsys.readouterr().err


def test_times_counts_and_prices() -> None:
    assert [read_hours(text) for text in ("90s", "30m", "6h", "1d12h", "1.5h", "2d", "1H 30M")] == pytest.approx(
        [0.025, 0.5, 6.0, 36.0, 1.5, 48.0, 1.5]
    )
    assert [read_count(text, "--x") for text in ("1281167", "1.28M", "5k", "1e6")] == [1281167, 1.28e6, 5000, 1e6]
    assert read_price("a=b=2") == ("a=b", 2.0)
