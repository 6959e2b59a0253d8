"""``stashtrace whatif-cache``: what it prints, its options, and its complaints."""

from __future__ import annotations

import csv
import io
import json
from itertools import pairwise
from pathlib import Path

import pytest

from stashtrace.cli import main
from stashtrace.cli.option_values import read_shares, read_size
from stashtrace.cli.synth import main as write_synthetic


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A made-up run whose workers read half of the time."""
    out = tmp_path_factory.mktemp("whatif") / "made"
    assert write_synthetic([str(out), "--ranks", "2", "--steps", "30"]) == 0
    return out


def forecast(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    capsys.readouterr()
    assert main(["whatif-cache", *arguments, "--format", "json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_words(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["whatif-cache", str(run)]) == 0
    text = capsys.readouterr().out
    for part in (
        "measured in the run",
        "forecast, for a cache that evicts the least recently used",
        "prep stall:",
        "fetch stall:",
        "check: the step of this run",
    ):
        assert part in text
    assert max(len(line) for line in text.splitlines()) < 160


def test_rows_of_a_range_and_of_a_size(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    every = forecast(capsys, str(run), "--cached", "0:100:25", "--policy", "minio")
    rows = every["forecast"]
    assert isinstance(rows, list)
    assert [row["cached_ratio"] for row in rows] == [0, 0.25, 0.5, 0.75, 1.0]
    assert all(a["step_ns"] >= b["step_ns"] for a, b in pairwise(rows))
    one = forecast(capsys, str(run), "--cache-size", "5G", "--dataset-size", "20G", "--policy", "minio")["forecast"]
    assert isinstance(one, list)
    assert one == [rows[1]]
    more = forecast(capsys, str(run), "--cache-size", "50G", "--dataset-size", "20G")["forecast"]
    assert isinstance(more, list)
    assert more[0]["cached_ratio"] == 1.0


def test_lru_never_does_better_than_minio(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lru, minio = (forecast(capsys, str(run), "--policy", policy)["forecast"] for policy in ("lru", "minio"))
    assert isinstance(lru, list)
    assert isinstance(minio, list)
    assert all(a["step_ns"] >= b["step_ns"] for a, b in zip(lru, minio, strict=True))


def test_csv_and_plot(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    capsys.readouterr()
    plot = tmp_path / "forecast.png"
    assert main(["whatif-cache", str(run), "--format", "csv", "--plot", str(plot)]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(rows) == 11
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--cached", "50:20"], "is not a range of percents"),
        (["--cached", "0:120"], "is not a range of percents"),
        (["--cached", "0:100:0"], "is not a range of percents"),
        (["--cache-size", "much"], "is not a size"),
        (["--dataset-size", "0"], "--dataset-size must be more than 0"),
        (["--plot", "a.txt"], "a plot ends in"),
        (["--cached", "0:50", "--cache-size", "1G"], "not allowed with"),
        (["--policy", "fifo"], "--policy cannot be 'fifo'"),
    ],
)
def test_complaints(run: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif-cache", str(run), *arguments]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert "hint:" in said


def test_a_run_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif-cache", str(tmp_path / "none")]) == 4
    assert "does not exist" in capsys.readouterr().err


def test_sizes_and_shares() -> None:
    assert read_size("1.5GB", "--x") == 1_500_000_000
    assert read_size("2GiB", "--x") == 2 << 30
    assert read_shares("0:25") == pytest.approx([0, 0.1, 0.2, 0.25])
    assert read_shares("100") == [1.0]
