"""``run --on-trigger CMD``: a command of the user is called for each trigger, beside the rounds of the follower.

    trigger ──► queue of 8 ──► one call at a time ──► ended, or killed after 60 s
                   │ full: the least costly is left out, and counted

No shell reads the command, so a sentence or a path in its variables is never taken for code. A call is looked at once a
round and never waited for, but for a short time when the job has ended.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from stashtrace.live import times
from stashtrace.live.state import Event
from stashtrace.text import count_noun

#: Calls that wait while one runs; more triggers than that are counted.
WAITING_COUNT = 8
#: Kinds of events that tell what a job loses, where others tell of its end, or answer somebody.
_LONGER = ("slow_step", "stall_grows")


class TriggerCommand:
    """Calls a command for events, one call at a time.

    ``words``: program and arguments. ``directory``: of the run. ``dropped_count``: events for which it was not called.
    ``failed_count``: calls that failed or took too long.
    """

    def __init__(self, words: Sequence[str], directory: Path, *, timeout_s: float = times.CALL_S) -> None:
        self._words = list(words)
        self._directory = directory
        self._timeout_s = timeout_s
        self._waiting: deque[Event] = deque()
        self._process: subprocess.Popen[bytes] | None = None
        self._until_s = 0.0
        self._said: set[str] = set()
        self.called_count = self.failed_count = self.dropped_count = 0

    def add(self, event: Event) -> None:
        """Let the command be called for an event; if too many wait already, the least costly is counted instead."""
        self._waiting.append(event)
        if len(self._waiting) > WAITING_COUNT:
            # Of equal ones the newest: several come at once where the follower was kept from a processor.
            del self._waiting[min(range(len(self._waiting)), key=lambda at: (*_worth(self._waiting[at]), -at))]
            self.dropped_count += 1

    def poll(self) -> list[str]:
        """Look at the running call, and start the next one; return what went wrong for the first time."""
        found = self._look()
        while self._process is None and self._waiting:
            found += self._start(self._waiting.popleft())
        if self.dropped_count:
            why = f"{WAITING_COUNT} calls wait already for the one that runs"
            found.append(self._line("is not called for some triggers", why))
        return self._new(found)

    def finish(self, patience_s: float = times.LAST_CALLS_S) -> list[str]:
        """Make the calls that are left, for so long; return what went wrong for the first time."""
        until_s = time.monotonic() + patience_s
        found = self.poll()
        while self._process is not None and time.monotonic() < until_s:
            time.sleep(times.CALL_POLL_S)
            found += self.poll()
        if self._process is not None:
            self._kill(self._process)
            self.failed_count += 1
            found += self._new([self._line("was killed", f"the job has ended {patience_s:g} s ago")])
        self.dropped_count += len(self._waiting)
        self._waiting.clear()
        return found

    @property
    def note(self) -> str:
        """How many calls failed and were not made so far; empty if none."""
        parts = [f"{self.failed_count} of {count_noun(self.called_count, 'call')} failed"] if self.failed_count else []
        parts += [f"{count_noun(self.dropped_count, 'trigger')} did not call it"] if self.dropped_count else []
        return self._line("", "; ".join(parts)) if parts else ""

    def _look(self) -> list[str]:
        process = self._process
        if process is None:
            return []
        code = process.poll()
        if code is None and time.monotonic() < self._until_s:
            return []
        if code is None:
            self._kill(process)
            why = self._line("was killed", f"it took longer than {self._timeout_s:g} s")
        elif code:
            how = f"exit code {code}" if code > 0 else f"signal {-code}"
            why = self._line("failed", f"it ended with {how}")
        self._process = None
        if not code and code is not None:
            return []
        self.failed_count += 1
        return [why]

    def _start(self, event: Event) -> list[str]:
        self.called_count += 1
        try:
            self._process = subprocess.Popen(
                self._words,
                env={**os.environ, **variables_of(event, self._directory)},
                stdin=subprocess.DEVNULL,
                stdout=2,  # standard output is the job's
                start_new_session=True,  # so that Ctrl-C does not reach it, and all that it starts can be killed
            )
        except OSError as error:
            self.failed_count += 1
            return [self._line("cannot be started", error.strerror or str(error))]
        self._until_s = time.monotonic() + self._timeout_s
        return []

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self._process = None

    def _line(self, what: str, why: str) -> str:
        return f"{f'--on-trigger {shlex.join(self._words)} {what}'.rstrip()}: {why}"

    def _new(self, lines: Sequence[str]) -> list[str]:
        new = [line for line in dict.fromkeys(lines) if line not in self._said]
        self._said.update(new)
        return new


def _worth(event: Event) -> tuple[bool, int]:
    """Order events by how much a call for them matters: steps that take longer come after all else."""
    return event.kind not in _LONGER, event.cost_ns


def variables_of(event: Event, directory: Path) -> Mapping[str, str]:
    """Return the variables that tell a command about an event."""
    facts = {
        "KIND": event.kind,
        "TEXT": event.text,
        "STEP": str(event.step),
        "RANK": str(event.rank),
        "COST_NS": str(event.cost_ns),
        "REALTIME_NS": str(event.realtime_ns),
        "WINDOW": event.window,
        "RUN": str(directory),
    }
    return {f"STASHTRACE_TRIGGER_{name}": value.replace("\0", "") for name, value in facts.items()}
