"""Python stacks of another process, by py-spy: it reads the memory of the process, which neither stops nor runs code.

py-spy is a program (extra ``stacks``), for Pythons and threads of which the recorder takes no stacks itself. It is
called with a time limit, and never from inside a traced process.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from stashtrace.scrubbing.secrets import scrub_arguments

PROGRAM = "py-spy"
_LIMIT_S = 5.0
#: The process goes on while it is read, so a reading may fail, and the next succeed.
_TRIES = 3
_MOST_FRAMES = 64


@dataclass(frozen=True, slots=True)
class Stack:
    """The stack of a thread."""

    tid: int
    #: As Python numbers it.
    thread_id: int
    name: str
    holds_gil: bool
    #: ``function at file:line``, innermost first.
    frames: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stacks:
    """Stacks of a process by thread; without any, why they could not be read."""

    by_thread: dict[int, Stack]
    unseen: str = ""

    def holder(self) -> Stack | None:
        """Return the thread that holds the GIL."""
        return next((stack for stack in self.by_thread.values() if stack.holds_gil), None)


def find_program() -> str | None:
    """Return the path of py-spy: next to this Python, or on the path of programs; None if it is not installed."""
    neighbour = os.path.join(os.path.dirname(sys.executable), PROGRAM)
    return neighbour if os.access(neighbour, os.X_OK) else shutil.which(PROGRAM)


def read_stacks(pid: int) -> Stacks:
    """Read the Python stacks of a process of this host."""
    program = find_program()
    if program is None:
        return Stacks({}, f"{PROGRAM} is not installed (pip install 'stashtrace[stacks]')")
    why = ""
    for _ in range(_TRIES):
        command = [program, "dump", "--pid", str(pid), "--nonblocking", "--json"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
        except subprocess.TimeoutExpired:
            return Stacks({}, f"{PROGRAM} gave no answer within {_LIMIT_S:.0f} s")
        except OSError as error:
            return Stacks({}, f"{PROGRAM} cannot be started: {error.strerror}")
        if done.returncode == 0:
            try:
                return Stacks(_stacks(json.loads(done.stdout)))
            except (ValueError, TypeError, KeyError):
                why = f"{PROGRAM} gave an answer that makes no sense"
                continue
        why = reason_of(done.stderr)
        if "ermission" in done.stderr:
            break
    return Stacks({}, why)


def _stacks(threads: Any) -> dict[int, Stack]:
    found = {}
    for thread in threads:
        tid = int(thread["os_thread_id"])
        frames = tuple(
            f"{frame['name']} at {scrub_arguments([str(frame['filename'])])[0]}:{frame['line']}"
            for frame in thread["frames"][:_MOST_FRAMES]
        )
        name, holds_gil = str(thread["thread_name"] or ""), thread["owns_gil"] is True
        found[tid] = Stack(tid, int(thread["thread_id"]), name, holds_gil, frames)
    return found


def reason_of(said: str) -> str:
    """Return why the program gave no answer, from what it said."""
    if "ermission" in said:
        return "this user may not read the memory of the process (ptrace)"
    line = next((line.removeprefix("Error: ") for line in said.splitlines() if line.strip()), "no reason given")
    return f"{PROGRAM}: {line.strip()[:120]}"
