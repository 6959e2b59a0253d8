"""The second process in the group knows of each signal whether the group got it, also of several at once."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import subprocess
import sys

BEGIN = """
import json, os, signal
from stashtrace.launch.group_witness import GroupWitness
numbers = [signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM]
signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
witness = GroupWitness()
def take(): return signal.sigwaitinfo(numbers)
def settle(info): return witness.settle(info.si_signo, info.si_pid)
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
