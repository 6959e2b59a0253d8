"""``export -o -`` and ``report -o -`` write to stdout; what a terminal or a pipe cannot hold is refused."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import environment

from stashtrace.cli import main
from stashtrace.cli.synth import main as write_synthetic


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "run"
    assert write_synthetic([str(folder), "--ranks", "1", "--steps", "6", "--calls-per-batch", "6"]) == 0
    return folder


@pytest.mark.parametrize(
    "words",
    [
        ["csv"],
        ["csv", "--table", "steps"],
        ["perfetto"],
        ["parquet", "--table", "stalls"],
        ["arrow", "--table", "stalls"],
    ],
)
def test_stdout_gets_what_a_file_gets(words: list[str], run: Path, tmp_path: Path) -> None:
    if words[0] in ("parquet", "arrow"):
        pytest.importorskip("pyarrow")
    name, *options = words
    assert main(["export", name, str(run), "-o", str(tmp_path / "file"), *options]) == 0
    line = [sys.executable, "-m", "stashtrace", "export", name, str(run), "-o", "-", *options]
    done = subprocess.run(line, cwd=tmp_path, env=environment(), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (tmp_path / "file").read_bytes()
    assert os.listdir(tmp_path) == ["file"], "no file is called -"
    assert b"wrote" not in done.stderr


@pytest.mark.parametrize("name", ["-", "/dev/stdout"])
def test_a_report_goes_to_stdout_too(
    name: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(run), "-o", name]) == 0
    assert capsys.readouterr().out.startswith("<!doctype html>")
    assert os.listdir(tmp_path) == []


def test_stdout_may_be_called_by_its_path(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It was refused as a device."""
    written = []
    for name in ("-", "/dev/stdout"):
        assert main(["export", "csv", str(run), "-o", name]) == 0
        written.append(capfd.readouterr().out)
    assert written[0] == written[1] != ""


@pytest.mark.parametrize("name", ["store", "chakra", "parquet"])
def test_a_folder_does_not_go_to_stdout(name: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["export", name, str(run), "-o", "-"]) == 2
    answer = capsys.readouterr()
    assert answer.out == ""
    assert answer.err.startswith(f"error: {name} writes a folder, which stdout cannot hold\n\nhint: name it with -o")
    assert ("--table NAME" in answer.err) == (name == "parquet")


def test_a_terminal_gets_no_bytes(run: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(["export", "perfetto", str(run), "-o", "-"]) == 2
    assert capsys.readouterr().err == (
        "error: perfetto is binary, and stdout is a terminal\n\nhint: redirect it (> FILE), or name a file with -o\n"
    )
    assert main(["export", "csv", str(run), "-o", "-"]) == 0
    assert capsys.readouterr().out.startswith("rank,step,kind,")


def test_a_reader_that_has_enough_is_no_error(run: Path) -> None:
    line = (
        f"{shlex.quote(sys.executable)} -m stashtrace export csv {shlex.quote(str(run))} -o - --table io; echo $? >&2"
    )
    done = subprocess.run(
        ["bash", "-c", f"({line}) | head -n 1"], env=environment(), capture_output=True, text=True, check=False
    )
    assert done.stdout.count("\n") == 1
    assert done.stderr == "0\n"
