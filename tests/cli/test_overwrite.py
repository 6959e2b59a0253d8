"""Which directories a run leaves, and which it replaces."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import Answer, environment

from stashtrace.errors import CaptureError
from stashtrace.record.directory import prepare_directory

Run = Callable[..., Answer]
NOTHING = "error: nothing was recorded"


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "input.txt").write_text("x" * 100)
    (tmp_path / "job.py").write_text("for i in range(50): open('input.txt').read()\n")
    return tmp_path


# Nothing was recorded ------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [[], ["--no-merge"], ["--scratch", "scratch"]])
def test_a_run_without_records_leaves_no_directory(run: Run, tmp_path: Path, options: list[str]) -> None:
    answer = run("run", *options, "--", "true")
    assert (answer.code, answer.out) == (0, "")
    assert answer.err.startswith(NOTHING)
    assert [path.name for path in tmp_path.iterdir() if path.name != "scratch"] == []


def test_a_directory_that_was_there_stays_and_takes_the_next_run(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    for name, is_left in (("mine", True), ("made", False)):
        for _ in range(2):
            assert run("run", "--out", name, "--", "true").err.startswith(NOTHING)
            assert (tmp_path / name).exists() == is_left
    assert os.listdir(tmp_path / "mine") == []


def test_a_command_that_cannot_be_started_leaves_no_directory(run: Run, tmp_path: Path) -> None:
    (tmp_path / "odd").write_text("no program")
    (tmp_path / "odd").chmod(0o755)
    assert run("run", "--", "./odd").code == CaptureError.exit_code
    assert os.listdir(tmp_path) == ["odd"]


def test_a_command_that_cannot_be_started_takes_nothing_from_the_others_of_its_job(tmp_path: Path) -> None:
    """They share the directory, whose run.json was removed with the first that failed."""
    (tmp_path / "odd").write_text("no program")
    (tmp_path / "odd").chmod(0o755)
    words = [sys.executable, "-m", "stashtrace", "run", "--run-id", "together", "--"]
    other = subprocess.Popen([*words, "sleep", "600"], cwd=tmp_path, env=environment(), stderr=subprocess.DEVNULL)
    facts = tmp_path / "stash-together/run.json"
    try:
        until = time.monotonic() + 100
        while not facts.exists() and time.monotonic() < until:
            time.sleep(0.05)
        failed = subprocess.run([*words, "./odd"], cwd=tmp_path, env=environment(), capture_output=True, timeout=100)
        assert failed.returncode == CaptureError.exit_code
        assert json.loads(facts.read_text())["run_id"]
    finally:
        other.terminate()
        other.wait()


# --overwrite ---------------------------------------------------------------------------------------------


def test_a_run_is_replaced(run: Run, job: Path) -> None:
    words = ["run", "--out", "out", "--", sys.executable, "job.py"]
    assert run(*words).code == 0
    first = json.loads((job / "out/run.json").read_text())
    refused = run(*words)
    assert refused.code == CaptureError.exit_code
    assert "already holds a run" in refused.err
    assert "--overwrite" in refused.err
    assert json.loads((job / "out/run.json").read_text()) == first
    again = run("run", "--overwrite", *words[1:])
    assert again.code == 0, again.err
    second = json.loads((job / "out/run.json").read_text())
    assert second["run_id"] != first["run_id"]
    assert len(list((job / "out").glob("*.stash"))) == 1
    assert json.loads(run("info", "out", "--format", "json").out)["run_id"] == second["run_id"]


def test_overwrite_replaces_what_a_follower_wrote_but_no_windows(run: Run, job: Path) -> None:
    """A window is evidence that somebody asked for."""
    assert run("run", "--live", "--out", "mine", "--", sys.executable, "job.py").code == 0
    assert list((job / "mine").glob("live-*.json")), "the follower is to have left its state"
    again = run("run", "--overwrite", "--out", "mine", "--", sys.executable, "job.py")
    assert again.code == 0, again.err
    assert not list((job / "mine").glob("live-*"))
    (job / "mine" / "windows").mkdir()
    refused = run("run", "--overwrite", "--out", "mine", "--", sys.executable, "job.py")
    assert refused.code == CaptureError.exit_code
    assert "is not overwritten: it also holds windows" in refused.err


def test_overwrite_of_what_is_not_there_is_a_run_as_any(run: Run, job: Path) -> None:
    assert run("run", "--overwrite", "--out", "out", "--", sys.executable, "job.py").code == 0
    assert (job / "out/run.json").exists()


@pytest.mark.parametrize("options", [[], ["--out", "s3://bucket/run"]])
def test_overwrite_needs_a_directory(run: Run, options: list[str]) -> None:
    answer = run("run", "--overwrite", *options, "--", "true")
    assert answer.code == 2
    assert answer.err.startswith("error: --overwrite needs a directory with --out")


def recorded(folder: Path, **files: str) -> Path:
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"format": 1, "run_id": "a", "begin_realtime_ns": 5}))
    (folder / "host.1.0.stash").write_bytes(b"")
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(content)
    return folder


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


@pytest.mark.parametrize("name", ["notes__txt", "calibration__toml", "report__html", "rank0__json"])
def test_other_files_are_never_removed(tmp_path: Path, name: str) -> None:
    out = recorded(tmp_path / "out", **{name: "mine"})
    before = names(out)
    with pytest.raises(CaptureError, match=f"it also holds {name.replace('__', '.')}") as caught:
        prepare_directory(str(out), overwrite=True)
    assert "move these files away" in str(caught.value.hint)
    assert names(out) == before


def test_folders_are_never_removed(tmp_path: Path) -> None:
    out = recorded(tmp_path / "out")
    (out / "deeper.stash").mkdir()
    with pytest.raises(CaptureError, match="it also holds deeper"):
        prepare_directory(str(out), overwrite=True)
    assert (out / "deeper.stash").is_dir()


@pytest.mark.parametrize("facts", [None, "", "{", "[]", '{"name": "my project"}'])
def test_what_nothing_says_is_a_run_is_never_removed(tmp_path: Path, facts: str | None) -> None:
    out = recorded(tmp_path / "out")
    (out / "run.json").unlink()
    if facts is not None:
        (out / "run.json").write_text(facts)
    before = names(out)
    with pytest.raises(CaptureError, match=r"no readable run\.json says that it holds a run"):
        prepare_directory(str(out), overwrite=True)
    assert names(out) == before


def test_all_that_a_run_leaves_is_removed(tmp_path: Path) -> None:
    files = (
        *("launch.node0.7.json", "staged.node0.7.list", "summary.txt", "timeline.pftrace.gz", "host.2.0.ring"),
        # Of samplers of GPUs, a step that was reached, and a merge that was killed.
        *("node0.nvml.lock", "node0.7.2.reached", "host.1.0.stash.tmp"),
    )
    out = recorded(tmp_path / "out", **{name.replace(".", "__"): "" for name in files})
    assert prepare_directory(str(out), overwrite=True) == out
    assert names(out) == []


def test_a_run_that_is_still_recorded_is_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = recorded(tmp_path / "out")
    monkeypatch.setattr("stashtrace.record.directory.living_processes", lambda directory: [4711])
    with pytest.raises(CaptureError, match="process 4711 still writes into it"):
        prepare_directory(str(out), overwrite=True)
    assert (out / "host.1.0.stash").exists()


def test_links_are_removed_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious.stash").write_text("x")
    out = recorded(tmp_path / "out")
    (out / "host.3.0.stash").symlink_to(tmp_path / "precious.stash")
    prepare_directory(str(out), overwrite=True)
    assert (tmp_path / "precious.stash").read_text() == "x"
