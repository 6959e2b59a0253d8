"""What follows from a trigger: its line, its window, and the call of the user's command once the window lies there.

trigger ──► line and event, with the path of the window ──► window sealed ──► command called
                   no window ─────────────────────────────────────────────►
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stashtrace.live.accounts import LiveAccounts
from stashtrace.live.capture import Captures, Request, Sealed
from stashtrace.live.deeper import DeeperSteps
from stashtrace.live.events import EventLog
from stashtrace.live.hosts.joint_windows import JointWindows
from stashtrace.live.state import Event
from stashtrace.live.triggers.trigger_command import TriggerCommand
from stashtrace.record.directory import update_host_facts
from stashtrace.run_facts import STACKS
from stashtrace.text import count_noun
from stashtrace.units import bytes_text


class Alarms:
    """Takes the triggers of a run.

    ``captures``: seals the windows. ``command``: called for each trigger; None for none. ``after_steps``: of a window.
    ``joint``: seals this host's part of windows of all hosts; None for a run of this host alone. ``deeper``: records
    steps deeper. ``kinds``: what it records of the steps after a trigger.
    """

    def __init__(
        self,
        log: EventLog,
        captures: Captures,
        command: TriggerCommand | None,
        after_steps: int,
        joint: JointWindows | None = None,
        deeper: DeeperSteps | None = None,
        kinds: Sequence[str] = (),
    ) -> None:
        self.captures = captures
        self._joint = joint
        self._deeper = deeper
        self._kinds = kinds
        self._log = log
        self._command = command
        self._after_steps = after_steps
        #: Triggers and requests of the open window.
        self._of_window: list[Event] = []
        self._requests: list[str] = []

    def add(self, event: Event, window: str, at_ns: int, *, now: bool = False) -> None:
        """Take a trigger. ``window``: name of its window, empty for none. ``now``: no steps are to come after it."""
        path = ""
        if window:
            after = 0 if now else self._after_steps
            path = self.captures.ask(window, event.step, after, at_ns, cost_ns=event.cost_ns, by_hand=now)
            if now:
                self.captures.hurry(at_ns)
                if self._deeper is not None:
                    self._deeper.give_up()
            elif path:
                self.captures.lengthen(self._deepen(self._kinds, event.step, after, at_ns))
        event = replace(event, window=path)
        self._log.add(event)
        if path:
            self._of_window.append(event)
        else:
            self._call(event)

    def answer(self, request: Request, newest: int, at_ns: int) -> None:
        """Open a window that somebody asks for; ``newest``: the last step that has closed."""
        if self._joint is not None and len(request.hosts) > 1:
            if why := self._joint.answer(request, newest, at_ns):
                self.refuse([request], why)
            else:
                self._joint.lengthen(self._deepen(request.kinds, newest, request.after_steps, at_ns))
            return
        name = f"step-{max(newest, 0):06}-asked"
        path = self.captures.ask(name, newest, request.after_steps, at_ns, by_hand=True, unlimited=request.unlimited)
        if path:
            self._requests.append(request.name)
            self.captures.lengthen(self._deepen(request.kinds, newest, request.after_steps, at_ns))
        else:
            self.refuse([request], self.captures.refusal)

    def _deepen(self, kinds: Sequence[str], newest: int, count: int, at_ns: int) -> int:
        """Let steps be recorded deeper; return the last of them, -1 if there are none."""
        if self._deeper is None or not kinds or not count:
            return -1
        try:
            last, why = self._deeper.ask(kinds, newest, count, at_ns)
        except OSError as error:
            last, why = -1, f"ranks could not be asked ({error.strerror or error})"
        if why:
            self._log.add(Event("deeper", f"the steps that come are recorded as ever: {why}", time.time_ns(), newest))
        return last

    def refuse(self, requests: Sequence[Request], why: str) -> None:
        """Say that no window will be sealed for requests."""
        names = " ".join(request.name for request in requests)
        event = Event("capture", f"no window is sealed as asked: {why}", time.time_ns(), request=names)
        self._log.add(event)
        self._call(event)

    def seal_if_ready(self, accounts: LiveAccounts, at_ns: int, *, ended: bool) -> None:
        """Seal the open windows that need not wait, and call the command for what they are of."""
        if self._deeper is not None and self._deeper.is_open and not ended:
            return
        stacks = [] if self._deeper is None else self._deeper.take_stacks()
        for request, part in self._joint.seal_ready(accounts, at_ns, ended=ended) if self._joint is not None else ():
            _add_stacks(part, stacks)
            event = replace(_event_of(part), request=request.name)
            self._log.add(event)
            self._call(event)
        sealed = self.captures.seal_if_ready(accounts, at_ns, ended=ended)
        if sealed is None:
            return
        _add_stacks(sealed, stacks)
        event = replace(_event_of(sealed), request=" ".join(self._requests))
        self._log.add(event)
        if self._requests:
            self._call(event)
        for trigger in self._of_window:
            self._call(replace(trigger, window=sealed.path))
        self._of_window, self._requests = [], []

    @property
    def is_open(self) -> bool:
        """Whether a window waits for its last steps."""
        return self.captures.is_open or (self._joint is not None and self._joint.is_open)

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
        if self.captures.refused_count:
            triggers = count_noun(self.captures.refused_count, "trigger")
            notes.append(f"no window was sealed for {triggers}; the last: {self.captures.refusal}")
        return notes

    def _call(self, event: Event) -> None:
        if self._command is not None:
            self._command.add(event)


def _add_stacks(sealed: Sealed, stacks: Sequence[Mapping[str, Any]]) -> None:
    """Keep what was sampled in a window beside the other facts of this host. Errors of the system are raised."""
    if stacks and not sealed.error:
        update_host_facts(Path(sealed.path), os.uname().nodename, {STACKS: stacks})


def _event_of(sealed: Sealed) -> Event:
    """Word a window that was sealed, or that could not be."""
    if sealed.error:
        text = f"the window {sealed.name} could not be written: {sealed.error}"
        return Event("capture", text, time.time_ns(), step=sealed.last_step)
    size = bytes_text(sealed.size_bytes)
    text = f"steps {sealed.first_step} to {sealed.last_step} are kept in {sealed.path} ({size})"
    return Event("capture", text, time.time_ns(), step=sealed.last_step, window=sealed.path)
