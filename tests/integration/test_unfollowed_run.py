"""`stashtrace live` on a run that nobody follows: while it runs, from the moment that it begins, and after its end."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from example_job import ENVIRONMENT

from stashtrace.analysis.steps.steps import steps
from stashtrace.live.view.watched import LiveView, Watched
from stashtrace.loading.load import load_trace

#: Steps of 50 ms until standard input is closed.
LOOP = """
import select, sys, time, stashtrace
while not select.select([sys.stdin], [], [], 0)[0]:
    time.sleep(0.05)
    stashtrace.step()
"""


@pytest.fixture(scope="module")
def views(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[LiveView]]:
    """The run directory and what was seen: the first view with steps, a later one, and one after the end."""
    folder = tmp_path_factory.mktemp("unfollowed")
    command = [sys.executable, "-m", "stashtrace", "run", "--out", "run", "--", sys.executable, "-c", LOOP]
    job = subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    with job:
        assert job.stdin is not None
        looks = _looks(folder / "run")
        begun = next(looks)
        first = next(view for view in looks if view.ranks)
        later = next(view for view in looks if view.steps_count > first.steps_count)
        names = {path.name for path in (folder / "run").iterdir()}
        job.stdin.close()
    assert job.returncode == 0
    assert {name for name in names if name.startswith(("live-", "events-"))} == set()
    assert begun.condition == "begins"
    return folder / "run", [first, later, next(view for view in looks if view.condition == "ended")]


def _looks(directory: Path) -> Iterator[LiveView]:
    """Look again and again, for two minutes at most; one viewer all the time."""
    deadline = time.monotonic() + 120
    while not (directory / "run.json").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    watched = Watched(directory)
    while time.monotonic() < deadline:
        yield watched.peek()
        time.sleep(0.2)
    raise TimeoutError(f"nothing more was seen of {directory}")


def test_a_running_job_is_read_by_who_looks(views: tuple[Path, list[LiveView]]) -> None:
    first, later, _ = views[1]
    assert first.origin == "viewer"
    assert first.condition in ("moves", "quiet")  # a busy machine is slow to close the first steps
    assert any("no process follows this run" in note for note in first.hosts[0].notes)
    assert first.ranks[0].last_step == first.steps_count - 1
    assert later.steps_count > first.steps_count
    assert later.step_ns >= 50_000_000


def test_an_ended_job_is_read_from_its_recording(views: tuple[Path, list[LiveView]]) -> None:
    directory, (_, later, ended) = views
    assert (ended.origin, ended.exit_code) == ("recording", 0)
    assert ended.end_realtime_ns > ended.begin_realtime_ns
    table = steps(load_trace(directory))
    assert ended.steps_count == len(table) >= later.steps_count
    assert ended.ranks[0].whole.wall_ns == int((table["end_ns"] - table["begin_ns"]).sum())
