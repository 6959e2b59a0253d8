"""The second process in the group knows of each signal whether the group got it, also of several at once."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stashtrace.record.group_witness import GroupWitness

BEGIN = """
import json, os, signal
from stashtrace.record.group_witness import GroupWitness
numbers = [signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM]
signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
witness = GroupWitness()
def take(): return signal.sigwaitinfo(numbers)
def settle(info): return witness.settle(info.si_signo, info.si_pid, by_terminal=False)
"""


def answers(script: str) -> list[bool]:
    command = [sys.executable, "-c", BEGIN + script + "print(json.dumps(found))\nwitness.close()"]
    done = subprocess.run(command, capture_output=True, text=True, start_new_session=True, timeout=120, check=True)
    found: list[bool] = json.loads(done.stdout)
    return found


def test_signals_that_came_before_the_first_was_taken() -> None:
    script = """
for number in numbers: os.killpg(0, number)
found = [settle(take()) for _ in numbers]
os.kill(os.getpid(), signal.SIGINT)
found.append(settle(take()))
"""
    assert answers(script) == [True] * 4 + [False]


def test_what_was_taken_without_a_question_does_not_count_for_the_next() -> None:
    script = """
os.killpg(0, signal.SIGINT), os.killpg(0, signal.SIGTERM)
first, _ = take(), take()
found = [settle(first)]
os.kill(os.getpid(), signal.SIGTERM)
found.append(settle(take()))
"""
    assert answers(script) == [True, False]


@contextlib.contextmanager
def own_witness() -> Iterator[GroupWitness]:
    """One of this process, which blocks a signal for it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    made = GroupWitness()
    try:
        yield made
    finally:
        made.close()
        signal.sigtimedwait([signal.SIGUSR2], 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_without_it_only_what_the_terminal_sent_is_the_jobs_already() -> None:
    with own_witness() as made:
        os.kill(made._pid, signal.SIGKILL)
        os.waitpid(made._pid, 0)
        assert made.settle(signal.SIGINT, 0, by_terminal=True)
        assert not made.settle(signal.SIGTERM, 0, by_terminal=False), "sent from outside our namespace, to us alone"
        assert not made.settle(signal.SIGTERM, os.getpid(), by_terminal=False)


def test_one_that_has_ended_is_not_signalled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []
    with own_witness() as made:
        os.kill(made._pid, signal.SIGKILL)
        os.waitpid(made._pid, 0)  # as the launcher does for whatever ends
        monkeypatch.setattr(os, "kill", lambda pid, number: killed.append(pid))
        made.close()
    assert killed == [], "its number may belong to another process by now"


def test_a_python_that_needs_a_path_for_its_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    real = shlex.quote(sys.executable)
    python.write_text(f'#!/bin/sh\n[ "$LD_LIBRARY_PATH" = "{tmp_path}" ] || exit 127\nexec {real} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    with own_witness() as made:
        assert not made.settle(signal.SIGUSR2, os.getpid(), by_terminal=False), "nothing was sent to the group"
        assert made._pid, "it answered"
