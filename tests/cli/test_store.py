"""From a run to a store to a table, on the command line."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from stashtrace.cli import main
from stashtrace.lab import synth


@pytest.fixture
def run(tmp_path: Path) -> Path:
    synth.write(tmp_path / "run", synth.SyntheticJob(ranks=2, steps=12, calls_per_batch=12))
    return tmp_path / "run"


def test_store_answers_as_its_run(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = tmp_path / "run.store"
    assert main(["export", "parquet", str(run), "-o", str(store)]) == 0
    assert "2 ranks" in capsys.readouterr().err
    answers = []
    for path in (run, store):
        assert main(["analyze", "stalls", str(path), "--by", "rank", "--format", "csv"]) == 0
        answers.append(list(csv.reader(io.StringIO(capsys.readouterr().out))))
    assert answers[0] == answers[1]
    assert len(answers[0]) > 4


def test_ranks_of_a_store(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = tmp_path / "one.store"
    assert main(["export", "store", str(run), "-o", str(store), "--ranks", "1"]) == 0
    assert main(["analyze", "steps", str(store), "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {row["rank"] for row in rows} == {"1"}


def test_one_table_is_still_one_file(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "stalls.parquet"
    assert main(["export", "parquet", str(run), "-o", str(out), "--table", "stalls"]) == 0
    assert out.read_bytes().startswith(b"PAR1")


def test_complaints(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", "stalls", str(run), "--cluster", "tcp://nowhere:1"]) == 2
    assert "--cluster needs a store" in capsys.readouterr().err
    assert main(["export", "store", str(run), "-o", str(tmp_path / "s"), "--steps", "1:2"]) == 2
    assert "exporter 'store' has no option 'steps'" in capsys.readouterr().err


def test_info_and_errors_know_a_store(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = tmp_path / "run.store"
    assert main(["export", "parquet", str(run), "-o", str(store)]) == 0
    capsys.readouterr()
    assert main(["info", str(store)]) == 0
    reported = capsys.readouterr().out
    assert "store of a run" in reported
    assert "ranks       0,1" in reported
    assert "numbered_steps" not in reported
    assert main(["analyze", "summary", str(run), str(store)]) == 2
    assert "run.store (a store)" in capsys.readouterr().err
