"""Triggers of a real run: the line with its window, the command, SIGUSR2 to the launcher, a rank that is killed.

The first job records on local scratch, which changes nothing of this.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from example_job import ENVIRONMENT, stashtrace

from stashtrace.analysis.steps.steps import steps
from stashtrace.live.state import Event, read_events, read_states
from stashtrace.loading.load import load_trace

#: Steps of 40 ms, of which one takes a second longer. It ends when asked to.
LOOP = """
import os, time, stashtrace
begin = time.monotonic()
for step in range(10000):
    time.sleep(1.04 if step == 250 else 0.04)
    stashtrace.step()
    if os.path.exists('enough') or time.monotonic() - begin > 120: break
"""
#: Appends what it received, and whether it would be ended by SIGTERM.
NOTE = """
import os, signal, sys
facts = [os.environ['STASHTRACE_TRIGGER_' + name] for name in ('KIND', 'STEP', 'WINDOW')]
sound = os.path.isfile(os.path.join(facts[2], 'run.json')) and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
open('told', 'a').write(' '.join([*facts, str(sound)]) + '\\n')
sys.exit(5)
"""


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "stashtrace", "run", "--out", "run", *words]
    return subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)


def wait_for_steps(run: Path) -> None:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        if run.exists() and any(state.ranks for state in read_states(run)):
            return
        time.sleep(0.2)
    raise AssertionError("no step has closed within 90 s")


Answers = dict[str, subprocess.CompletedProcess[str]]


def slow_and_asked(events: list[Event]) -> tuple[list[str], list[str]]:
    """Windows of the step that takes longer, and of the signal."""
    slow = [event.window for event in events if event.kind == "slow_step" and event.cost_ns > 9e8 and event.window]
    return slow, [event.window for event in events if event.kind == "capture" and "-asked" in event.window]


def wait_for_calls(folder: Path) -> None:
    """Wait until the command has been called for both windows."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        windows, reported = slow_and_asked(read_events(folder / "run")), folder / "told"
        called = reported.read_text() if reported.exists() else ""
        if all(any(f"{window} " in called for window in either) for either in windows):
            return
        time.sleep(0.2)
    raise AssertionError("the command was not called for both windows within 90 s")


@pytest.fixture(scope="module")
def answers() -> Answers:
    """What commands said while the job went on, by the name of the command and whose path it was given."""
    return {}


@pytest.fixture(scope="module")
def triggered(tmp_path_factory: pytest.TempPathFactory, answers: Answers) -> tuple[Path, list[Event], str]:
    """The folder of a job with a slow step, whose launcher got SIGUSR2; its events, and what was said on stderr."""
    folder = tmp_path_factory.mktemp("with space")
    (folder / "note.py").write_text(NOTE)
    trigger = ["--on-trigger", f"'{sys.executable}' note.py"]
    with start(folder, "--scratch", "local", *trigger, "--", sys.executable, "-c", LOOP) as job:
        wait_for_steps(folder / "run")
        job.send_signal(signal.SIGUSR2)
        (scratch,) = map(str, (folder / "local").iterdir())
        for place, path in (("run", "run"), ("scratch", scratch)):
            answers[f"status of {place}"] = stashtrace("status", path, cwd=folder)
            answers[f"live of {place}"] = stashtrace("live", path, "--once", cwd=folder)
            answers[f"capture of {place}"] = stashtrace("capture", path, "--steps", "1", cwd=folder)
        wait_for_calls(folder)
        (folder / "enough").touch()
        assert job.stderr is not None
        said = job.stderr.read()
    assert job.returncode == 0, said
    return folder, read_events(folder / "run"), said


def test_a_slow_step_has_its_line_with_its_window(triggered: tuple[Path, list[Event], str]) -> None:
    _, events, said = triggered
    slow = next(event for event in events if event.kind == "slow_step" and event.cost_ns > 9e8)
    assert f"stashtrace: {slow.text}; window {slow.window}\n" in said
    table = steps(load_trace(slow.window))
    assert slow.step in table["step"]


def test_a_signal_to_the_launcher_seals_a_window(triggered: tuple[Path, list[Event], str]) -> None:
    """The job, which has no handler of it, goes on."""
    _, events, _ = triggered
    sealed = slow_and_asked(events)[1]
    assert sealed
    assert len(steps(load_trace(sealed[0]))) > 5


@pytest.mark.parametrize("place", ["run", "scratch"])
def test_a_run_on_scratch_is_asked_by_either_path(
    triggered: tuple[Path, list[Event], str], answers: Answers, place: str
) -> None:
    """Its windows lie in the run directory, and stay when the scratch goes."""
    folder, events, _ = triggered
    status, live, capture = (answers[f"{command} of {place}"] for command in ("status", "live", "capture"))
    for answer in (status, live):
        assert "1 rank on 1 host" in answer.stdout, answer.stderr
    window = Path(capture.stdout.strip())
    assert window.parent == folder / "run/windows", capture.stderr
    assert any(event.window == str(window) and event.request for event in events)
    assert len(steps(load_trace(window))) > 5
    assert not any((folder / "local").iterdir())


def test_the_command_is_called_for_both(triggered: tuple[Path, list[Event], str]) -> None:
    """With folders that are windows by then; its exit code is said once and counted."""
    folder, events, said = triggered
    reported = [line.rsplit(" ", 1) for line in (folder / "told").read_text().splitlines()]
    windows = {event.window for event in events if event.window}
    called = {facts.split(" ", 2)[2] for facts, _ in reported if facts.split(" ", 2)[2]}
    (slow, *_), (asked, *_) = slow_and_asked(events)
    # A step that is slow by chance when the job ends has no call any more.
    assert {slow, asked} <= called <= windows
    assert all(sound == "True" for facts, sound in reported if facts.split(" ", 2)[2])
    assert said.count("failed: it ended with exit code 5") == 1
    (state,) = read_states(folder / "run")
    # The last one may have been cut short by the end of the job.
    failed, made = next(re.findall(r"(\d+) of (\d+) calls failed", n)[0] for n in state.notes if "calls failed" in n)
    assert 0 < int(failed) <= int(made)
    assert int(made) >= len(reported) - 1


def test_a_job_with_a_handler_gets_the_signal_too(tmp_path: Path) -> None:
    code = """
import os, signal, time
signal.signal(signal.SIGUSR2, lambda *_: open('got', 'w'))
open('ready', 'w')
deadline = time.monotonic() + 60
while time.monotonic() < deadline and not os.path.exists('got'): time.sleep(0.1)
"""
    with start(tmp_path, "--live", "--no-merge", "--", sys.executable, "-c", code) as job:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not (tmp_path / "ready").exists():
            time.sleep(0.1)
        job.send_signal(signal.SIGUSR2)
        assert job.wait(90) == 0
    assert (tmp_path / "got").exists()


def test_without_a_follower_the_job_gets_the_signal(tmp_path: Path) -> None:
    """As ever: a job without a handler is ended by it."""
    code = "import time; open('ready', 'w'); time.sleep(60)"
    with start(tmp_path, "--no-merge", "--", sys.executable, "-c", code) as job:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not (tmp_path / "ready").exists():
            time.sleep(0.1)
        job.send_signal(signal.SIGUSR2)
        assert job.wait(60) == 128 + signal.SIGUSR2


def test_a_rank_that_is_killed_is_said(tmp_path: Path) -> None:
    """Two ranks that do not wait for each other; one of them is killed."""
    code = """
import os, subprocess, sys, time, stashtrace
if 'RANK' not in os.environ:
    ranks = [subprocess.Popen([sys.executable, *sys.orig_argv[1:]],
             env={**os.environ, 'RANK': str(r), 'WORLD_SIZE': '2', 'LOCAL_RANK': str(r)}) for r in (0, 1)]
    sys.exit(ranks[0].wait())
begin = time.monotonic()
while time.monotonic() - begin < 40 and not os.path.exists('enough'):
    time.sleep(0.05)
    stashtrace.step()
    if os.environ['RANK'] == '1' and time.monotonic() - begin > 10: os.kill(os.getpid(), 9)
"""
    with start(tmp_path, "--live", "--no-merge", "--", sys.executable, "-c", code) as job:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and job.poll() is None:
            lost = [event for event in _events(tmp_path / "run") if event.kind == "rank_lost"]
            if lost:
                (tmp_path / "enough").touch()
                break
            time.sleep(0.2)
        assert job.stderr is not None
        said = job.stderr.read()
    assert lost, said
    assert lost[0].rank == 1
    assert "has died without ending its recording; rank 0 goes on" in lost[0].text
    assert lost[0].window in said


def _events(run: Path) -> list[Event]:
    return read_events(run) if run.exists() else []
