"""What follows from a trigger: its line, its window, and the call of the user's command once the window lies there.

trigger ──► line and event, with the path of the window ──► window sealed ──► command called
                   no window ─────────────────────────────────────────────►

Where several hosts record into one directory, the window is one of all of them (``live.hosts.joint_windows``), and a
trigger that another host has told has no second line.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
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
from stashtrace.live.hosts.other_hosts import ranks_named
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
        #: The same of windows of all hosts, by their folder; and those that somebody asked for by a signal.
        self._of_joint: dict[str, list[Event]] = {}
        self._signalled: set[str] = set()

    def add(self, event: Event, window: str, at_ns: int, *, now: bool = False) -> None:
        """Take a trigger. ``window``: name of its window, empty for none. ``now``: no steps are to come after it."""
        if self._joint is not None and self._joint.is_told(event, at_ns):
            return
        path = ""
        if window and self._joint is not None and len(self._joint.hosts(at_ns)) > 1:
            opened = self._open_joint(self._joint, event, window, at_ns, now=now)
            if opened is None:
                return
            path = opened
        elif window:
            path = self._open_own(event, window, at_ns, now=now)
        event = replace(event, window=path)
        self._log.add(event)
        if path in self._of_joint:
            self._of_joint[path].append(event)
        elif path:
            self._of_window.append(event)
        else:
            self._call(event)

    def _open_own(self, event: Event, window: str, at_ns: int, *, now: bool) -> str:
        """Open a window of this host for a trigger; return its folder, empty if it has none."""
        after = 0 if now else self._after_steps
        path = self.captures.ask(window, event.step, after, at_ns, cost_ns=event.cost_ns, by_hand=now)
        if now:
            self.captures.hurry(at_ns)
            if self._deeper is not None:
                self._deeper.give_up()
        elif path:
            self.captures.lengthen(self._deepen(self._kinds, event.step, after, at_ns))
        return path

    def _open_joint(self, joint: JointWindows, event: Event, window: str, at_ns: int, *, now: bool) -> str | None:
        """Open one of all hosts, or make that longer which is open; None if another host has told the same trigger."""
        is_new, after = not joint.has(event.step, now=now), 0 if now else self._after_steps
        why = self.captures.why_not(at_ns, event.cost_ns, by_hand=now) if is_new else ""
        if not why:
            try:
                path = joint.open_for(event, window, after, at_ns, now=now, kinds=() if now else self._kinds)
            except OSError as error:
                why = f"cannot write the window {window}: {error.strerror or error}"
        if why:
            self.captures.refuse(why)
            return ""
        if path is None:
            return None
        self._of_joint.setdefault(path, [])
        if is_new and not now:
            self.captures.count(at_ns, event.cost_ns)
        if not now:
            joint.lengthen(path, self._deepen(self._kinds, event.step, after, at_ns))
        elif self._deeper is not None:
            self._deeper.give_up()
        return path

    def ask(self, newest: int, at_ns: int) -> None:
        """Open a window as a signal asks for one: of all hosts where they share a directory."""
        if self._joint is not None and len(self._joint.hosts(at_ns)) > 1:
            event = Event("capture", "", time.time_ns(), newest)
            with contextlib.suppress(OSError):  # then it is one of this host, which says what is wrong
                if path := self._joint.open_for(event, "", self._after_steps, at_ns):
                    self._signalled.add(path)
                    return
        self.answer(Request(self._after_steps), newest, at_ns)

    def answer(self, request: Request, newest: int, at_ns: int) -> None:
        """Open a window that somebody asks for; ``newest``: the last step that has closed."""
        if self._joint is not None and len(request.hosts) > 1:
            if why := self._joint.answer(request, newest, at_ns):
                self.refuse([request], why)
            elif request.now and self._deeper is not None:
                self._deeper.give_up()
            else:
                folder = self._joint.folder_of(request)
                self._joint.lengthen(folder, self._deepen(request.kinds, newest, request.after_steps, at_ns))
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
        joint = self._joint
        parts = () if joint is None else joint.seal_ready(accounts, at_ns, ended=ended, stacks=stacks)
        for request, part in parts:
            event = replace(_event_of(part), request=request.name)
            self._log.add(event)
            self._call(event)
        self.look(at_ns)
        sealed = self.captures.seal_if_ready(accounts, at_ns, ended=ended)
        if sealed is None:
            return
        _add_stacks(sealed, stacks)
        lacking = "" if joint is None else joint.lacking(accounts.closed)
        event = replace(_event_of(sealed, lacking=lacking), request=" ".join(self._requests))
        self._log.add(event)
        if self._requests:
            self._call(event)
        for trigger in self._of_window:
            self._call(replace(trigger, window=sealed.path))
        self._of_window, self._requests = [], []

    def look(self, at_ns: int, *, last: bool = False) -> None:
        """Look whether windows of all hosts are whole by now; ``last``: nothing is waited for any more."""
        for one in () if self._joint is None else self._joint.collecting.look(at_ns, last=last):
            folder = str(one.window)
            event = Event("capture", f"what was asked for is kept in {folder}", time.time_ns(), window=one.path)
            if one.sealed is not None:
                event = _event_of(one.sealed, one.ranks, one.lacking)
                self._log.add(event)
            if folder in self._signalled:
                self._signalled.remove(folder)
                self._call(event)
            for trigger in self._of_joint.pop(folder, ()):
                self._call(replace(trigger, window=one.path))

    @property
    def is_collecting(self) -> bool:
        """Whether parts of other hosts are waited for."""
        return self._joint is not None and self._joint.collecting.is_on

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


def _event_of(sealed: Sealed, ranks: Sequence[int] = (), lacking: str = "") -> Event:
    """Word a window that was sealed, or that could not be. ``ranks``, ``lacking``: that it has, and that it has not."""
    if sealed.error:
        text = f"the window {sealed.name} could not be written: {sealed.error}"
        return Event("capture", text, time.time_ns(), step=sealed.last_step)
    steps = f"steps {sealed.first_step} to {sealed.last_step}"
    whose = f" of {ranks_named(ranks)}" if ranks else ""
    without = f", without {lacking}" if lacking else ""
    text = f"{steps}{whose} are kept in {sealed.path} ({bytes_text(sealed.size_bytes)}){without}"
    return Event("capture", text, time.time_ns(), step=sealed.last_step, window=sealed.path)
