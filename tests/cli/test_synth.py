"""``stashtrace synth`` keeps its word: the budget of what it writes is the truth that it states."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import stashtrace
from stashtrace.cli import main
from stashtrace.cli.synth import main as write_synthetic
from stashtrace.lab import synth


def test_budget_is_the_truth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "made"
    assert write_synthetic([str(out), "--ranks", "3", "--steps", "20", "--late-rank", "1", "--late", "4"]) == 0
    assert "truth.json has the stalls" in capsys.readouterr().err
    truth = json.loads((out / "truth.json").read_text())
    table = stashtrace.analyze(stashtrace.load(out), "stalls", by="rank")
    found: dict[int, dict[str, float]] = {}
    for row in table.rows():
        found.setdefault(row["rank"], {})[row["kind"]] = row["stall_ns"] / row["steps_count"]
    for rank, wanted in truth["ranks"].items():
        own = found[int(rank)]
        assert sum(own.values()) == pytest.approx(truth["step_ns"], abs=1)
        loading = sum(own.get(kind, 0) for kind in ("fetch", "prep", "handoff"))
        assert loading == pytest.approx(wanted["batch_wait"], rel=0.01)
        for kind in ("compute", "straggler", "interconnect", "handoff"):
            assert own.get(kind, 0) == pytest.approx(wanted[kind], rel=0.02, abs=1e5), (rank, kind)


@pytest.mark.parametrize("calls", ["0", "5"])
def test_batches_without_a_whole_file_have_no_calls(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder, calls: str
) -> None:
    out = tmp_path / "made"
    assert write_synthetic([str(out), "--ranks", "1", "--steps", "3", "--calls-per-batch", calls]) == 0
    assert main(["merge", str(out)]) == 0
    assert [str(warning.message) for warning in recwarn] == []
    assert "warning" not in capsys.readouterr().err
    trace = stashtrace.load(out)
    assert (trace.io_rows_count, len(trace.batches)) == (0, 6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ranks", "0"], "at least one rank"),
        (["--wait", "-1"], "no negative time"),
        (["--calls-per-batch", "-6"], "no negative time or count"),
        (["--late-rank", "8"], "is none of 8 ranks"),
        (["--fetch-ratio", "2"], "is not a share"),
    ],
)
def test_nonsense(tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert write_synthetic([str(tmp_path / "x"), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").write_text("mine")
    assert write_synthetic([str(tmp_path)]) == 3
    assert "not empty" in capsys.readouterr().err


def test_a_file_that_could_not_be_made_whole_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(synth, "_calls", refuse)  # in the middle of the first worker's file
    assert write_synthetic([str(tmp_path / "made"), "--ranks", "1"]) == 3
    assert "cannot write" in capsys.readouterr().err
    assert sorted(path.name for path in (tmp_path / "made").iterdir()) == ["run.json", "synth.1000.0.stash"]
