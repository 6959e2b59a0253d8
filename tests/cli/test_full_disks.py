"""On a full disk each command names the file that it could not write, ends with 3, and leaves no half of anything."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from stashtrace.cli import main
from stashtrace.cli.synth import main as write_synthetic


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "run"
    assert write_synthetic([str(folder), "--ranks", "2", "--steps", "6", "--calls-per-batch", "6"]) == 0
    return folder


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


def full(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No file can be made until it is undone; those that are there can be read."""
    really = os.open

    def open_there(path: Any, flags: int, *more: Any, **options: Any) -> int:
        if flags & os.O_CREAT:
            full()
        return really(path, flags, *more, **options)

    monkeypatch.setattr(os, "open", open_there)
    return monkeypatch


def test_merge_names_what_it_could_not_write(
    run: Path, full_disk: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("summary.txt", "timeline.pftrace"):
        (run / name).unlink(missing_ok=True)
    assert main(["merge", str(run)]) == 3
    said = capsys.readouterr().err
    assert f"cannot write {run / 'summary.txt'}: No space left on device" in said
    assert "the timeline was not written" in said
    assert "error: 2 files of the merged run could not be written" in said
    assert {path.suffix for path in run.iterdir()} == {path.suffix for path in run.iterdir()} & {".stash", ".json"}
    full_disk.undo()
    assert main(["merge", str(run)]) == 0
    assert (run / "summary.txt").read_text()


def test_scrubbing_in_place_names_the_run(
    run: Path, full_disk: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = sorted(path.name for path in run.iterdir())
    assert main(["scrub", str(run), "--in-place"]) == 3
    said = capsys.readouterr().err
    assert f"error: cannot write {run}: No space left on device" in said
    assert "stdout" not in said
    assert sorted(path.name for path in run.iterdir()) == files


@pytest.mark.parametrize("there", [False, True])
def test_half_a_store_is_removed(
    run: Path, tmp_path: Path, there: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    target = tmp_path / "store"
    if there:
        target.mkdir()
    write, calls = parquet.write_table, [0]

    def write_some(*given: Any, **options: Any) -> None:
        calls[0] += 1
        (full if calls[0] > 3 else write)(*given, **options)

    monkeypatch.setattr(parquet, "write_table", write_some)
    assert main(["export", "parquet", str(run), "-o", str(target)]) == 3
    assert f"cannot write {target}: No space left on device" in capsys.readouterr().err
    assert calls[0] == 4
    assert not list(tmp_path.rglob("*.parquet"))
    assert target.exists() == there
