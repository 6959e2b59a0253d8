"""What must not hurt a followed job: several who look, a run directory that vanishes; and what `status` says of it."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from example_job import ENVIRONMENT, stashtrace

from stashtrace.live.state import LiveState, read_states

#: Steps of 40 ms until standard input is closed.
LOOP = """
import select, sys, time, stashtrace
while not select.select([sys.stdin], [], [], 0)[0]:
    time.sleep(0.04)
    stashtrace.step()
print("the job has ended")
"""


@contextlib.contextmanager
def followed(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A followed job whose steps close; it ends with its standard input."""
    words = [sys.executable, "-m", "stashtrace", "run", "--live", "--out", "run", "--", sys.executable, "-c", LOOP]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, cwd=folder, env=ENVIRONMENT, text=True, **pipes) as job:
        deadline = time.monotonic() + 120
        while not any(state.ranks for state in states(folder / "run")):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        yield job


def states(run: Path) -> list[LiveState]:
    return read_states(run) if run.exists() else []


def end(job: subprocess.Popen[str]) -> tuple[str, str]:
    return job.communicate(timeout=120)


def await_followed_status(folder: Path) -> subprocess.CompletedProcess[str]:
    """The answer of `status` with the newest steps, at a moment at which a busy machine has not delayed the rounds."""
    deadline = time.monotonic() + 100
    while not re.search(r"^running: (?s:.*)newest", (answer := stashtrace("status", "run", cwd=folder)).stdout, re.M):
        assert time.monotonic() < deadline, answer.stdout
    return answer


@pytest.fixture(scope="module")
def looked_at(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, subprocess.CompletedProcess[str]], set[str]]:
    """Answers of commands on one run that goes on, two viewers at the same time; and the files that came meanwhile."""
    folder = tmp_path_factory.mktemp("looked")
    with followed(folder) as job:
        before = {path.name for path in (folder / "run").iterdir()}
        command = [sys.executable, "-m", "stashtrace", "live", "run", "--once"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        viewers = [subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, text=True, **pipes) for _ in range(2)]
        answers = {}
        for number, viewer in enumerate(viewers):
            out, error = viewer.communicate(timeout=120)
            answers[f"live {number}"] = subprocess.CompletedProcess(command, viewer.returncode, out, error)
        answers["status"] = await_followed_status(folder)
        answers["summary"] = stashtrace("summary", "run", cwd=folder)
        new = {path.name for path in (folder / "run").iterdir()} - before
        out, _ = end(job)
    assert (job.returncode, out) == (0, "the job has ended\n")
    answers["summary afterwards"] = stashtrace("summary", "run", cwd=folder)
    return answers, new


Looked = tuple[dict[str, subprocess.CompletedProcess[str]], set[str]]


def test_two_viewers(looked_at: Looked) -> None:
    """Both see the job, and neither writes anything."""
    answers, new = looked_at
    for viewer in ("live 0", "live 1"):
        assert (answers[viewer].returncode, answers[viewer].stderr) == (0, "")
        assert "running: 1 rank" in answers[viewer].stdout
    assert {name for name in new if not name.startswith(("events-", "windows"))} == set()


def test_status_is_that_of_the_follower(looked_at: Looked) -> None:
    answer = looked_at[0]["status"]
    assert (answer.returncode, answer.stderr) == (0, "")
    assert re.search(r"^running: 1 rank on 1 host, \d+ steps$", answer.stdout, re.M), answer.stdout
    assert "following the run takes" in answer.stdout, "by its follower"


def test_a_summary_of_a_run_that_goes_on_says_so(looked_at: Looked) -> None:
    answer = looked_at[0]["summary"]
    assert answer.returncode == 0
    assert len(re.findall(r"the run goes on: \d+ process", answer.stdout)) == 1, answer.stdout
    assert "the run goes on" not in looked_at[0]["summary afterwards"].stdout


def test_a_run_directory_that_vanishes(tmp_path: Path) -> None:
    """The job goes on to its end with its exit code, and the loss is said once."""
    with followed(tmp_path) as job:
        (tmp_path / "run").rename(tmp_path / "elsewhere")
        shown = stashtrace("live", "run", "--once", cwd=tmp_path)
        time.sleep(5)
        assert job.poll() is None
        out, said = end(job)
    assert (job.returncode, out) == (0, "the job has ended\n")
    assert shown.returncode == 4
    assert "Traceback" not in said
    assert len(re.findall("stashtrace: the run is no longer followed: .*run", said)) == 1, said
