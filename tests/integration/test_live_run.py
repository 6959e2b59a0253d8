"""A run that is followed: `run --live --keep-last` and `capture`, on a loop that marks its steps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from example_job import ENVIRONMENT, stashtrace

from stashtrace.analysis.steps.steps import steps
from stashtrace.live.state import LiveState, read_states
from stashtrace.live.table import read_live
from stashtrace.loading.load import load_trace

#: Steps of 40 ms for 30 s: rows are dropped from 20 s before the kept steps on, and the clocks take some seconds.
#: Stacks are recorded from the first step on.
LOOP = """
import time, stashtrace
def rest():
    time.sleep(0.04)
begin = time.monotonic()
for step in range(1000):
    rest()
    stashtrace.step()
    if time.monotonic() - begin > 30: break
"""


class Followed(NamedTuple):
    """What was seen of the run."""

    directory: Path
    #: What `capture` said in the middle of the run, and `live --once` once the costliest line was known.
    captured: subprocess.CompletedProcess[str]
    live: subprocess.CompletedProcess[str]
    #: What `run` said on stderr.
    said: str


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Followed:
    """The run, followed and asked for a window."""
    folder = tmp_path_factory.mktemp("live")
    words = [sys.executable, "-m", "stashtrace", "run", "--live", "--keep-last", "50", "--out", "run", "--"]
    command = [*words, sys.executable, "-c", LOOP]
    with subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True) as job:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not any(s.ranks for s in _states(folder / "run")):
            time.sleep(0.2)
        answer = stashtrace("capture", "run", "--steps", "3", cwd=folder)
        while job.poll() is None and not any(s.lines for s in _states(folder / "run")):
            time.sleep(0.2)
        live = stashtrace("live", "run", "--once", cwd=folder)
        assert job.stderr is not None
        said = job.stderr.read()
    assert job.returncode == 0, said
    return Followed(folder / "run", answer, live, said)


def _states(directory: Path) -> list[LiveState]:
    return list(read_states(directory)) if directory.exists() else []


def test_steps_close_while_the_job_runs(followed: Followed) -> None:
    (state,) = read_states(followed.directory)
    assert state.ended
    # Steps that a busy machine made slow may have been too many for a window each.
    assert [note for note in state.notes if not note.startswith("no window was sealed for ")] == []
    assert state.rounds_count > 2
    assert state.ranks["0"]["last_step"] == len(read_live(followed.directory)) - 1


def test_the_last_steps_are_kept(followed: Followed) -> None:
    """They have the numbers and lengths of the whole run, in the merged recording too."""
    table, live = steps(load_trace(followed.directory)), read_live(followed.directory)
    first, last = int(table["step"].min()), int(table["step"].max())
    assert first > 0
    assert last - first + 1 >= 50
    assert json.loads((followed.directory / "run.json").read_text())["window"].startswith(f"{first} 0:")
    same = live.take((live["step"] >= first) & (live["step"] <= last))
    lengths = table["end_ns"] - table["begin_ns"]
    assert np.abs(lengths - (same["end_ns"] - same["begin_ns"])).max() <= 5


def test_capture_seals_a_window(followed: Followed) -> None:
    answer = followed.captured
    assert answer.returncode == 0, answer.stderr
    window = Path(answer.stdout.strip())
    table, live = steps(load_trace(window)), read_live(followed.directory)
    assert len(table) > 10
    at = np.searchsorted(live["step"], table["step"])
    assert (live["step"][at] == table["step"]).all()
    assert np.abs(live["begin_ns"][at] - table["begin_ns"]).max() <= 5
    assert f"are kept in {window}" in followed.said


@pytest.mark.torch
def test_live_shows_the_line_that_costs_most(followed: Followed) -> None:
    """The whole step is a sleep in one function, known exactly; the state of the last round has it too."""
    pytest.importorskip("torch")
    assert followed.live.returncode == 0, followed.live.stderr
    assert "costliest line: rest (<string>:4), " in followed.live.stdout
    (line,) = read_states(followed.directory)[0].lines
    assert (line.why, line.rank, line.where, line.kind, line.place) == (
        "most",
        -1,
        "step",
        "other",
        "rest (<string>:4)",
    )
    assert 40_000_000 <= line.low_ns <= line.time_ns <= line.high_ns


def test_a_run_that_is_not_followed_is_refused(tmp_path: Path) -> None:
    made = stashtrace("run", "--no-merge", "--out", "run", "--", sys.executable, "-c", "pass", cwd=tmp_path)
    assert made.returncode == 0
    answer = stashtrace("capture", "run", cwd=tmp_path)
    assert answer.returncode == 2
    assert "is not followed" in answer.stderr
    assert "hint: begin it with `stashtrace run --live`" in answer.stderr


def test_a_fault_of_the_follower_is_one_line(tmp_path: Path) -> None:
    """Its file of steps cannot be made; the job and its recording know nothing of that."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    (tmp_path / "run" / f"live-{os.uname().nodename}.rows").mkdir()
    command = [sys.executable, "-m", "stashtrace.live.follower", "run", "--quiet"]
    done = subprocess.run(
        command, cwd=tmp_path, env=ENVIRONMENT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("stashtrace: the run is no longer followed (")
