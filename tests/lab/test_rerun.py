"""Two jobs recorded alternately: the order, the folders, and what is said of a job that fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stashtrace.errors import CaptureError, UsageError
from stashtrace.lab.alternating import Job, record_alternately, turns

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = "import os, sys; open(sys.argv[1], 'a').write(os.path.basename(os.getcwd()) + ' ')"


def test_the_order_changes_from_round_to_round() -> None:
    jobs = [Job("before", (), Path()), Job("after", (), Path())]
    assert [(number, job.name) for number, job in turns(3, jobs)] == [
        (0, "before"),
        (0, "after"),
        (1, "after"),
        (1, "before"),
        (2, "before"),
        (2, "after"),
    ]


def test_each_job_runs_in_its_folder(tmp_path: Path) -> None:
    reported = []
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    command = (sys.executable, "-c", SCRIPT, str(tmp_path / "log"))
    jobs = [Job("before", command, tmp_path / "old"), Job("after", command, tmp_path / "new")]
    runs = record_alternately(2, jobs, tmp_path / "runs", on_run=lambda *words: reported.append(words))
    assert (tmp_path / "log").read_text().split() == ["old", "new", "new", "old"]
    assert reported == [(0, 4, "before-0"), (1, 4, "after-0"), (2, 4, "after-1"), (3, 4, "before-1")]
    assert {name: [path.name for path in paths] for name, paths in runs.items()} == {
        "before": ["before-0", "before-1"],
        "after": ["after-0", "after-1"],
    }
    assert all((path / "run.json").exists() for paths in runs.values() for path in paths)


def test_a_job_that_fails_is_reported_with_its_last_words(tmp_path: Path) -> None:
    job = Job("after", (sys.executable, "-c", "print('first', flush=True); raise SystemExit('no data')"), tmp_path)
    with pytest.raises(CaptureError) as caught:
        record_alternately(2, [job], tmp_path / "runs")
    assert "after-0 ended with exit code 1: " in str(caught.value)
    assert "no data" in str(caught.value)
    assert str(tmp_path / "runs" / "after-0.log") in str(caught.value.hint)


def test_a_job_that_says_nothing(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="before-0 ended with exit code 1: it printed nothing"):
        record_alternately(1, [Job("before", ("false",), tmp_path)], tmp_path / "runs")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupt_ends_the_job(tmp_path: Path, number: signal.Signals) -> None:
    """SIGTERM goes to the command alone, as a supervisor sends it; SIGINT to its group, as a terminal does."""
    job = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(60)"
    words = ["check", "--rerun", "3", "--save-baseline", "x", "-o", "runs", "--", sys.executable, "-c", job, "pid"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-m", "stashtrace", *words],
        cwd=tmp_path,
        env=environment,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    file = tmp_path / "pid"
    deadline = time.monotonic() + 30
    while not (file.exists() and file.read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    pid = int(file.read_text())
    if number == signal.SIGTERM:
        process.terminate()
    else:
        os.killpg(process.pid, number)
    assert process.wait(30) in (130, 143)
    assert not Path(f"/proc/{pid}").exists()
    assert not (tmp_path / "runs/after-1").exists()


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no folder to run a job in") as caught:
        record_alternately(1, [Job("before", ("true",), tmp_path / "gone")], tmp_path / "runs")
    assert "git worktree add" in str(caught.value.hint)
    assert not (tmp_path / "runs").exists()


def test_a_folder_in_use(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "file").touch()
    with pytest.raises(CaptureError, match="is not empty"):
        record_alternately(1, [Job("after", ("true",), tmp_path)], tmp_path / "runs")
