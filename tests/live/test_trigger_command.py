"""The command of `--on-trigger`: called for each trigger, one at a time; what goes wrong is said once."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from stashtrace.live.alarms import WAITING_COUNT, TriggerCommand
from stashtrace.live.state import Event

#: Writes what it received to a new file in the current folder.
NOTE = """
import os, sys
facts = sorted(key + '=' + value for key, value in os.environ.items() if key.startswith('STASHTRACE_TRIGGER_'))
open(os.environ['STASHTRACE_TRIGGER_STEP'] + '.txt', 'w').write('\\n'.join(facts))
"""


def event(step: int, text: str = "step 7 took 3 s", window: str = "") -> Event:
    return Event("slow_step", text, 5, step, 1, 2_000, window)


def poll_until_idle(command: TriggerCommand) -> list[str]:
    """Poll as the rounds of the follower do, until no call runs or waits."""
    said, deadline = [], time.monotonic() + 60
    while time.monotonic() < deadline:
        said += command.poll()
        if command._process is None:
            return said
        time.sleep(0.02)
    raise AssertionError("a call did not end within a minute")


def test_it_receives_what_happened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts reach it as they are: no shell reads them."""
    monkeypatch.chdir(tmp_path)
    command = TriggerCommand([sys.executable, "-c", NOTE], tmp_path / "run")
    text = "step 7: '; touch harm; $(touch harm) \n `touch harm`"
    command.add(event(7, text, "/run/windows/step-000007-slow"))
    assert poll_until_idle(command) == []
    facts = (tmp_path / "7.txt").read_text()
    assert facts == "\n".join(
        [
            "STASHTRACE_TRIGGER_COST_NS=2000",
            "STASHTRACE_TRIGGER_KIND=slow_step",
            "STASHTRACE_TRIGGER_RANK=1",
            "STASHTRACE_TRIGGER_REALTIME_NS=5",
            f"STASHTRACE_TRIGGER_RUN={tmp_path / 'run'}",
            "STASHTRACE_TRIGGER_STEP=7",
            f"STASHTRACE_TRIGGER_TEXT={text}",
            "STASHTRACE_TRIGGER_WINDOW=/run/windows/step-000007-slow",
        ]
    )
    assert [path.name for path in tmp_path.iterdir()] == ["7.txt"]
    assert command.note == ""


def test_a_call_is_not_waited_for(tmp_path: Path) -> None:
    command = TriggerCommand(["sleep", "600"], tmp_path)
    for step in range(3):
        command.add(event(step))
    assert command.poll() == command.poll() == []
    assert command.called_count == 1, "one call at a time"
    assert len(command.finish(0.1)) == 1
    assert (command.failed_count, command.dropped_count) == (1, 2)


def test_a_storm_is_counted_and_said_once(tmp_path: Path) -> None:
    command = TriggerCommand(["sleep", "600"], tmp_path)
    command.add(event(0))
    command.poll()
    for step in range(100):
        command.add(event(step))
    said = [line for _ in range(5) for line in command.poll()]
    (line,) = said
    assert line == (
        "--on-trigger sleep 600 is not called for some triggers: "
        f"{WAITING_COUNT} calls already wait for the running one"
    )
    assert command.dropped_count == 100 - WAITING_COUNT
    assert command.note == f"--on-trigger sleep 600: {100 - WAITING_COUNT} triggers did not call it"
    command.finish(0.0)
    assert command.dropped_count == 100


def test_in_a_storm_those_that_cost_most_are_called_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    command = TriggerCommand([sys.executable, "-c", NOTE], tmp_path)
    for step in range(20):
        command.add(Event("slow_step", "", 5, step, 0, 5_000 if step in (9, 15) else 2_000 + step))
    command.add(Event("capture", "", 5, 100, -1, 0))
    command.add(Event("rank_lost", "", 5, 101, 1, 0))
    poll_until_idle(command)
    called = sorted(int(path.stem) for path in tmp_path.iterdir())
    assert called == [9, 15, 16, 17, 18, 19, 100, 101]
    assert command.dropped_count == 14


def test_a_command_that_fails_is_said_once(tmp_path: Path) -> None:
    command = TriggerCommand(["sh", "-c", "exit 3"], tmp_path)
    for step in range(4):
        command.add(event(step))
    assert poll_until_idle(command) == ["--on-trigger sh -c 'exit 3' failed: it ended with exit code 3"]
    assert command.note == "--on-trigger sh -c 'exit 3': 4 of 4 calls failed"


def test_a_command_that_is_gone(tmp_path: Path) -> None:
    command = TriggerCommand([str(tmp_path / "gone")], tmp_path)
    command.add(event(1))
    assert command.poll()[0].endswith("cannot be started: No such file or directory")
    assert command.failed_count == 1


def test_a_command_that_hangs_is_killed_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    command = TriggerCommand(["sh", "-c", "sleep 600 & echo $! > child; wait"], tmp_path, timeout_s=1.0)
    command.add(event(1))
    said = poll_until_idle(command)
    assert said == [
        "--on-trigger sh -c 'sleep 600 & echo $! > child; wait' was killed: it took longer than 1 s",
    ]
    child = int((tmp_path / "child").read_text())
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and _runs(child):
        time.sleep(0.05)
    assert not _runs(child)
    assert command.failed_count == 1


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_calls_that_are_left_are_made_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    command = TriggerCommand([sys.executable, "-c", NOTE], tmp_path)
    for step in range(3):
        command.add(event(step))
    assert command.finish(60.0) == []
    assert sorted(os.listdir(tmp_path)) == ["0.txt", "1.txt", "2.txt"]
