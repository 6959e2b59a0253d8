"""What cannot be written ends with one exit code in every command, and one line that names the target."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import environment

from stashtrace.cli import main
from stashtrace.cli.synth import main as write_synthetic
from stashtrace.errors import CaptureError, OutputError

#: Commands that write, with RUN for a run, and what follows for the place to write to.
WRITERS = (
    "export perfetto RUN -o",
    "export csv RUN -o",
    "export store RUN -o",
    "export parquet RUN -o",
    "export parquet RUN --table stalls -o",
    "export arrow RUN -o",
    "export chakra RUN -o",
    "report RUN -o",
    "report RUN --format markdown -o",
    "scrub RUN -o",
    "merge RUN --out",
    "check RUN --save-baseline main --baselines",
    "calibrate --out",
    "run --out",
    "run --history",
    "history --add RUN",
)
PYARROW = ("store", "parquet", "arrow", "history")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "run"
    assert write_synthetic([str(folder), "--ranks", "1", "--steps", "6", "--calls-per-batch", "6"]) == 0
    return folder


def words(command: str, run: Path, target: object) -> list[str]:
    before = command.replace("RUN", str(run)).split()
    after = ["--", "true"] if command.startswith("run") else []
    if any(name in command for name in PYARROW):
        pytest.importorskip("pyarrow")
    return [*before, str(target), *after]


def refusal(capsys: pytest.CaptureFixture[str]) -> str:
    answer = capsys.readouterr()
    errors = [line for line in answer.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, answer.err
    assert any(line.startswith("hint: ") for line in answer.err.splitlines())
    return errors[0]


@pytest.mark.parametrize("command", WRITERS)
def test_a_place_that_is_no_folder(command: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("mine")
    capsys.readouterr()
    assert main(words(command, run, tmp_path / "file/x")) == OutputError.exit_code
    assert str(tmp_path / "file") in refusal(capsys)
    assert (tmp_path / "file").read_text() == "mine"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("command", [command for command in WRITERS if "baseline" not in command])
def test_a_device(command: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(words(command, run, "/dev/full")) == OutputError.exit_code
    assert "/dev/full" in refusal(capsys)


FILES = ("perfetto", "csv", "table stalls", "arrow", "report", "calibrate")


@pytest.mark.parametrize("command", [command for command in WRITERS if any(name in command for name in FILES)])
def test_a_folder_in_the_place_of_a_file(
    command: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(words(command, run, tmp_path)) == OutputError.exit_code
    assert str(tmp_path) in refusal(capsys)
    assert os.listdir(tmp_path) == []


def test_errors_of_a_job_have_the_same_code() -> None:
    assert OutputError.exit_code == CaptureError.exit_code == 3


@pytest.mark.parametrize(
    ("command", "unbuffered"),
    [
        ("summary RUN", ""),
        ("summary RUN", "1"),
        ("export csv RUN -o -", ""),
        ("--version", ""),
        ("analyze --help", "1"),
        ("help whatif", ""),
    ],
)
def test_a_full_disk_behind_stdout(command: str, unbuffered: str, run: Path) -> None:
    """Buffered, the error came when Python ended, with exit code 120 and a traceback."""
    line = [sys.executable, "-m", "stashtrace", *command.replace("RUN", str(run)).split()]
    there = environment(PYTHONUNBUFFERED=unbuffered)
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(line, stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=there)
    assert done.returncode == OutputError.exit_code
    assert done.stderr == (
        "error: cannot write the answer to stdout: No space left on device\n\n"
        "hint: make room where stdout goes, or send it elsewhere\n"
    )


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_behind_both(run: Path, unbuffered: str) -> None:
    there = environment(PYTHONUNBUFFERED=unbuffered)
    with open("/dev/full", "w", encoding="utf-8") as full:
        line = [sys.executable, "-m", "stashtrace", "summary", str(run)]
        done = subprocess.run(line, stdout=full, stderr=full, check=False, env=there)
    assert done.returncode == OutputError.exit_code
