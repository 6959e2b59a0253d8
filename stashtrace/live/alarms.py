"""What follows from a trigger: its line, its window, and the call of the user's command once the window lies there.

trigger ──► line and event, with the path of the window ──► window sealed ──► command called
                   no window ─────────────────────────────────────────────►

Where several hosts record into one directory, the window is one of all of them (``live.hosts.windows``), and a trigger
that another host has reported has no second line.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from stashtrace.live.accounts import LiveAccounts
from stashtrace.live.deeper import DeeperSteps
from stashtrace.live.events import EventLog
from stashtrace.live.hosts.collecting import failure_text
from stashtrace.live.hosts.requests import CAPTURE, Request
from stashtrace.live.hosts.windows import Windows
from stashtrace.live.state import Event
from stashtrace.live.triggers.trigger_command import TriggerCommand
from stashtrace.text import count_noun


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

    def add(self, event: Event, window: str, at_ns: int, *, now: bool = False) -> None:
        """Take a trigger. ``window``: name of its window, empty for none. ``now``: no steps are to come after it."""
        if self.windows.is_reported(event, at_ns):
            return
        path, why = None, "none is wanted"
        if window:
            after, kinds = (0, ()) if now else (self._after_steps, self._kinds)
            request = Request(after, "", False, kinds, event.kind, event.step, event.rank, event.cost_ns, now)
            path, why = self._open(replace(request, window=window), event.step, at_ns)
        if path is None and not why:
            return  # another host has a line for it
        event = replace(event, window="" if path is None else str(path))
        self._log.add(event)
        if path is None:
            self._call(event)
        else:
            self._triggers.setdefault(path, []).append(event)

    def answer(self, request: Request, newest: int, at_ns: int) -> None:
        """Open a window that somebody asks for, or the part of this host in that of another one.

        ``newest``: the last step that has closed.
        """
        if request.collector:
            self._deepen(request, self.windows.answer(request, newest, at_ns), newest, at_ns)
            return
        request = replace(request, step=newest, window=f"step-{max(newest, 0):06}-asked")
        path, why = self._open(request, newest, at_ns)
        if path is not None:
            self._asked.setdefault(path, []).append(request.name)
        else:
            self.refuse(request, why)

    def _open(self, request: Request, newest: int, at_ns: int) -> tuple[Path | None, str]:
        path, why = self.windows.open(request, at_ns)
        self._deepen(request, path, newest, at_ns)
        return path, why

    def refuse(self, request: Request, why: str) -> None:
        """Say that there is no window, or no part of this host in it."""
        if request.collector:
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
                text = f"the steps that come are recorded as ever: {why}"
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
        """End a round: say what a storm kept back, and look at the calls of the command."""
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
