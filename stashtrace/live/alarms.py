"""What follows from a trigger: its line, its window, and the call of the user's command once the window is written.

trigger ──► line and event, with the path of the window ──► window sealed ──► command called
                   no window ─────────────────────────────────────────────►

Where several hosts record into one directory, the window is one of all of them (``live.hosts.windows``), and a trigger
that another host has reported has no second line.

    ``run --on-trigger CMD``:   trigger ──► queue of 8 ──► one call at a time ──► ended, or killed after 60 s
                                               │ full: the least costly is left out, and counted

No shell reads the command, so a sentence or a path in its variables is never taken for code. A call is checked once a
round and never waited for, but for a short time when the job has ended.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from stashtrace.live import times
from stashtrace.live.accounts import LiveAccounts
from stashtrace.live.deeper import DeeperSteps
from stashtrace.live.hosts.collecting import failure_text
from stashtrace.live.hosts.requests import CAPTURE, Request, window_name
from stashtrace.live.hosts.windows import Windows
from stashtrace.live.state import Event, EventLog
from stashtrace.text.prose import count_noun

#: Calls that wait while one runs; more triggers than that are counted.
WAITING_COUNT = 8
#: Kinds of events that say what a job loses, where others report its end, or answer somebody.
_LONGER = ("slow_step", "stall_grows")


class Alarms:
    """Takes the triggers of a run.

    ``windows``: seals its windows. ``command``: called for each trigger; None for none. ``after_steps``: of a window.
    ``deeper``: records steps deeper. ``kinds``: what it records of the steps after a trigger.
    """

    def __init__(
        self,
        log: EventLog,
        windows: Windows,
        command: TriggerCommand | None,
        after_steps: int,
        deeper: DeeperSteps | None = None,
        kinds: Sequence[str] = (),
    ) -> None:
        self.windows = windows
        self._deeper = deeper
        self._kinds = tuple(kinds)
        self._log = log
        self._command = command
        self._after_steps = after_steps
        #: Folder of a window that is not whole yet -> the triggers that it is for, and the names of requests.
        self._triggers: dict[Path, list[Event]] = {}
        self._asked: dict[Path, list[str]] = {}

    def add(self, event: Event, what: str, at_ns: int, *, now: bool = False) -> None:
        """Take a trigger. ``what``: its window is for, empty for none. ``now``: no steps are to come after it."""
        if self.windows.is_reported(event, at_ns):
            return
        path, why = None, "none is wanted"
        if what:
            after, kinds = (0, ()) if now else (self._after_steps, self._kinds)
            request = Request(after, "", False, kinds, event.kind, event.step, event.rank, event.cost_ns, now)
            path, why = self._open(request, what, event.step, at_ns)
        if path is None and not why:
            return  # another host has a line for it
        event = replace(event, window="" if path is None else str(path))
        self._log.add(event)
        if path is None:
            self._call(event)
        else:
            self._triggers.setdefault(path, []).append(event)

    def answer(self, request: Request, newest: int, at_ns: int) -> None:
        """Open a window that somebody asks for, or the part of this host in that of another one."""
        if request.is_for_part:
            self._deepen(request, self.windows.answer(request, newest, at_ns), newest, at_ns)
            return
        path, why = self._open(replace(request, step=newest), "asked", newest, at_ns)
        if path is not None:
            self._asked.setdefault(path, []).append(request.name)
        else:
            self.refuse(request, why)

    def _open(self, request: Request, what: str, newest: int, at_ns: int) -> tuple[Path | None, str]:
        path, why = self.windows.ask(replace(request, window=window_name(request.step, what)), at_ns)
        self._deepen(request, path, newest, at_ns)
        return path, why

    def refuse(self, request: Request, why: str) -> None:
        """Say that there is no window, or no part of this host in it."""
        if request.is_for_part:
            self.windows.refuse(request, why)
            return
        event = Event(CAPTURE, failure_text(request, why), time.time_ns(), request=request.name)
        self._log.add(event)
        self._call(event)

    def _deepen(self, request: Request, path: Path | None, newest: int, at_ns: int) -> None:
        """Let the steps of a window that come be recorded deeper, and the window wait for them."""
        if self._deeper is None or path is None:
            return
        if request.now:  # they do not come
            self._deeper.give_up()
        elif request.kinds and request.after_steps:
            try:
                last, why = self._deeper.ask(request.kinds, newest, request.after_steps, at_ns)
            except OSError as error:
                last, why = -1, f"ranks could not be asked ({error.strerror or error})"
            if why:
                text = f"the next steps are recorded as usual: {why}"
                self._log.add(Event("deeper", text, time.time_ns(), newest))
            self.windows.lengthen(path, last)

    def seal_if_ready(self, accounts: LiveAccounts, at_ns: int, *, ended: bool) -> None:
        """Seal the parts of this host that need not wait, and look for those of others."""
        if self._deeper is not None and self._deeper.is_open and not ended:
            return
        stacks = [] if self._deeper is None else self._deeper.take_stacks()
        self.windows.seal_ready(accounts, at_ns, ended=ended, stacks=stacks)
        self.collect(at_ns)

    def collect(self, at_ns: int, *, last: bool = False) -> None:
        """Report windows that are whole by now, and call the command for what they are of.

        ``last``: nothing is waited for any more.
        """
        for one in self.windows.collect(at_ns, last=last):
            asked, triggers = self._asked.pop(one.window, []), self._triggers.pop(one.window, [])
            if one.text or asked:
                # A host that takes the place of the one that was asked answers for it.
                names = asked or ([one.request.name] if one.request.is_asked else [])
                text = one.text or f"what was asked for {'is' if one.path else 'is to be'} kept in {one.window}"
                answered = " ".join(filter(None, names))
                event = Event(CAPTURE, text, time.time_ns(), one.last_step, window=one.path, request=answered)
                self._log.add(event)
                if asked:
                    self._call(event)
            for trigger in triggers:
                self._call(replace(trigger, window=one.path))

    def settle(self, *, ended: bool) -> None:
        """End a round: say what a storm kept back, and check the calls of the command."""
        self._log.settle(time.time_ns(), ended=ended)
        if self._command is not None:
            for line in self._command.finish() if ended else self._command.poll():
                self._log.add(Event("on_trigger", line, time.time_ns()))

    @property
    def notes(self) -> list[str]:
        """What was not done for triggers so far."""
        notes = [self._command.note] if self._command is not None and self._command.note else []
        if self.windows.refused_count:
            triggers = count_noun(self.windows.refused_count, "trigger")
            notes.append(f"no window was sealed for {triggers}; the last: {self.windows.refusal}")
        return notes

    def _call(self, event: Event) -> None:
        if self._command is not None:
            self._command.add(event)


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
        """Check the running call, and start the next one; return what went wrong for the first time."""
        found = self._check_call()
        while self._process is None and self._waiting:
            found += self._start(self._waiting.popleft())
        if self.dropped_count:
            why = f"{WAITING_COUNT} calls already wait for the running one"
            found.append(self._line("is not called for some triggers", why))
        return self._new(found)

    def finish(self, patience_s: float = times.LAST_CALLS_S) -> list[str]:
        """Make the calls that are left, within this time; return what went wrong for the first time."""
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

    def _check_call(self) -> list[str]:
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
    """Return the variables that describe an event to a command."""
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
