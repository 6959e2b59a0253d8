"""Ask the followers of a run for a window, and learn what became of it: ``stashtrace capture``, and SIGUSR2.

Each follower has a file of its own in the run directory for the request (``capture.put_request``), so each takes it
once, and answers with an event in its log.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stashtrace.live.capture import Request, new_request_name, put_request
from stashtrace.live.events import read_events
from stashtrace.live.state import LiveState, read_states
from stashtrace.record.directory import WINDOWS_FOLDER, rights_of_run
from stashtrace.text import list_some
from stashtrace.units import duration_text

#: A follower that has made no round for so long, and for so many of its rounds, is not waited for.
_SILENT_S, _SILENT_ROUNDS = 10.0, 3
#: Somebody who asks gets nothing but the answer, and on a host with more processes than cores a round takes its time. A
#: follower that is seen to live is waited for as long as the user says.
_ASKED_SILENT_S = 30.0
_POLL_S = 0.2
_NAMED = 6


def asked_hosts(directory: Path) -> list[LiveState]:
    """Return the states of the followers that can be asked: those whose job has not ended.

    Raises FormatError if a state is damaged.
    """
    return [state for state in read_states(directory) if not state.ended]


def ask_hosts(
    directory: Path,
    states: Sequence[LiveState],
    after_steps: int,
    *,
    unlimited: bool = False,
    kinds: Sequence[str] = (),
) -> Asked:
    """Ask the followers of these hosts for one window. Errors of the system are raised as they are.

    ``kinds``: what the steps that come are recorded with besides.
    """
    hosts = tuple(state.host for state in states)
    newest = max((int(own["last_step"]) for state in states for own in state.ranks.values()), default=-1)
    window = make_folder(directory, f"step-{max(newest, 0):06}-asked") if len(hosts) > 1 else ""
    request = Request(after_steps, new_request_name(), hosts, window, newest, unlimited, tuple(kinds))
    asked = Asked(directory, request)
    for state in states:
        asked.heard.why_missing(state.host, state, time.monotonic_ns())
    for host in hosts:
        asked.files.append(put_request(directory, request, host))
    return asked


def make_folder(directory: Path, name: str) -> str:
    """Make a folder of that name for a window, or with a number behind it, and return its name.

    It belongs to the owner of the run, whose followers write into it, also if root asks.
    """
    windows, found, number = directory / WINDOWS_FOLDER, name, 1
    with rights_of_run(directory):
        with contextlib.suppress(FileExistsError):
            windows.mkdir()
            _give_to_owner(windows, directory)
        while True:
            try:
                (windows / found).mkdir()
                _give_to_owner(windows / found, directory)
                return found
            except FileExistsError:
                number += 1
                found = f"{name}-{number}"


def _give_to_owner(folder: Path, directory: Path) -> None:
    owner = directory.stat()
    if os.geteuid() == 0 and owner.st_uid != 0:
        os.chown(folder, owner.st_uid, owner.st_gid)


@dataclass(slots=True)
class _Seen:
    """A follower's count of rounds, since when it has been that, and the seconds between two."""

    rounds_count: int
    since_ns: int
    interval_s: float


class Heard:
    """Tells which followers make rounds, by their states as they are read again and again."""

    def __init__(self, silent_s: float = _SILENT_S) -> None:
        self._silent_s = silent_s
        self._seen: dict[str, _Seen] = {}

    def why_missing(self, host: str, state: LiveState | None, at_ns: int) -> str:
        """Return why a host is not to be waited for; empty if it is. ``at_ns``: CLOCK_MONOTONIC now."""
        seen = self._seen.get(host)
        if seen is None or (state is not None and state.rounds_count != seen.rounds_count):
            count, interval_s = (-1, 1.0) if state is None else (state.rounds_count, state.interval_s)
            self._seen[host] = _Seen(count, at_ns, interval_s)
            # What one that has ended has answered is there by now.
            return "its job has ended" if state is not None and state.ended else ""
        if state is not None and state.ended:
            return "its job has ended"
        silent_ns = at_ns - seen.since_ns
        if silent_ns <= max(self._silent_s, _SILENT_ROUNDS * seen.interval_s) * 1e9:
            return ""
        return f"its follower has made no round for {duration_text(silent_ns)}"


@dataclass(slots=True)
class Asked:
    """A request and the answers so far."""

    directory: Path
    request: Request
    heard: Heard = field(default_factory=lambda: Heard(_ASKED_SILENT_S))
    files: list[Path] = field(default_factory=list)
    #: Host -> folder of the window with its ranks, or why there is none.
    windows: dict[str, str] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)
    #: Host that has not answered -> why it is no longer waited for.
    missing: dict[str, str] = field(default_factory=dict)
    #: Hosts whose follower had ended at the last look.
    _gone: set[str] = field(default_factory=set)

    def wait(self, timeout_s: float) -> None:
        """Wait until each host has answered, is gone or has had its time; then nothing is asked for any more.

        Raises FormatError if an answer cannot be read.
        """
        deadline_s = time.monotonic() + timeout_s
        while self._look() and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)
        for host in self._waited_for():
            self.missing[host] = f"nothing within {timeout_s:g} s"
        for path in self.files:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        if self.request.window and not self.windows:
            with contextlib.suppress(OSError):  # not empty: a host has begun to seal its part
                (self.directory / WINDOWS_FOLDER / self.request.window).rmdir()

    def lines(self) -> list[str]:
        """Say which hosts are in the window and which are not; nothing where all there are did as they were asked."""
        hosts = self.request.hosts
        if len(hosts) < 2:
            return []
        sealed = [host for host in hosts if host in self.windows]
        lines = [f"sealed on {list_some(sealed, _NAMED)}"] if sealed else []
        lines += [f"{host}: {self.refusals[host]}" for host in hosts if host in self.refusals]
        return lines + [f"{host} has not answered: {self.missing[host]}" for host in hosts if host in self.missing]

    def _waited_for(self) -> list[str]:
        return [
            h for h in self.request.hosts if not any(h in one for one in (self.windows, self.refusals, self.missing))
        ]

    def _look(self) -> bool:
        """Take in what was answered; return whether a host is still waited for."""
        states = {state.host: state for state in read_states(self.directory)}
        for host in self._waited_for():
            for event in read_events(self.directory, host):
                if self.request.name in event.request.split():
                    answers = self.windows if event.window else self.refusals
                    answers[host] = event.window or event.text
            if host in self.windows or host in self.refusals:
                continue
            if why := self._why_missing(host, states.get(host)):
                self.missing[host] = why
        return bool(self._waited_for())

    def _why_missing(self, host: str, state: LiveState | None) -> str:
        """Return why a host that has not answered is not to be waited for; empty if it is."""
        lives = None if state is None or state.ended else state.follower_lives()
        if lives is None:
            return self.heard.why_missing(host, state, time.monotonic_ns())
        if lives:
            return ""
        if host in self._gone:
            return "its follower has ended"
        self._gone.add(host)  # what it said last may not have been read yet
        return ""
