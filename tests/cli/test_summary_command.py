"""``stashtrace summary`` is ``analyze summary``; the help of ``analyze`` goes by questions."""

from __future__ import annotations

from pathlib import Path

import pytest

import stashtrace
from stashtrace.analysis.registry import ANALYSES, NEEDS_GPU, QUESTIONS, analyze
from stashtrace.cli import main
from stashtrace.cli.commands.analyze import analyses_text
from stashtrace.cli.synth import main as write_synthetic
from stashtrace.errors import MissingDataError, UsageError
from stashtrace.lab.synth import SyntheticJob, write
from stashtrace.loading.load import load_trace


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two ranks without a GPU."""
    folder = str(tmp_path_factory.mktemp("made") / "run")
    assert write_synthetic([folder, "--ranks", "2", "--steps", "6"]) == 0
    return folder


def test_summary_is_analyze_summary(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", "summary", run]) == 0
    old = capsys.readouterr().out
    assert main(["summary", run]) == 0
    assert capsys.readouterr().out == old
    assert main(["summary", run, "--format", "text"]) == 0
    assert capsys.readouterr().out == old
    assert "\nstashtrace  2 ranks, 1 host, 6 steps of " in old


def test_summary_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["summary", str(tmp_path / "none")]) == 4
    assert "none does not exist" in capsys.readouterr().err


def test_every_analysis_answers_one_question() -> None:
    placed = [name for _, names in QUESTIONS for name in names]
    assert sorted(placed) == sorted(name for name, _, _ in ANALYSES)
    lines = analyses_text().splitlines()
    for question, names in QUESTIONS:
        begin = lines.index(question) + 1
        begin += lines[begin].split()[0] == "summary"
        assert [line.split()[0] for line in lines[begin : begin + len(names)]] == list(names)
    assert {line.split()[0] for line in lines[1:] if line.endswith("(GPU)")} == NEEDS_GPU


def test_what_needs_a_gpu_says_nothing_without_one_and_the_rest_does_not_ask_for_one(run: str) -> None:
    trace = stashtrace.load(run)
    for name, _, _ in ANALYSES:
        try:
            rows, complaint = len(analyze(trace, name)), ""
        except MissingDataError as error:
            rows, complaint = 0, str(error)
        if name in NEEDS_GPU:
            assert rows == 0, name
        else:
            assert "kernel" not in complaint, name
            assert "copy" not in complaint, name


def test_from_python_the_summary_is_its_words(tmp_path: Path) -> None:
    """As `stashtrace analyze summary`; its hint had no such name."""
    write(tmp_path / "run", SyntheticJob(ranks=2, steps=8, calls_per_batch=6))
    trace = load_trace(tmp_path / "run")
    words = analyze(trace, "summary")
    assert str(words) == repr(words) == str(trace.summary())
    assert "\nstashtrace  2 ranks, " in words
    with pytest.raises(UsageError, match="analysis 'summary' has no option 'by'"):
        analyze(trace, "summary", by="rank")
