"""Requests for windows: of somebody to one follower, and of that follower to those of the other hosts.

    stashtrace capture ──► host A (the collector) ──► hosts B, C: their parts
                      ◄── event of A, once the window is whole or will not be

A request is a file in the run directory for each host that is asked, whose follower takes it once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import json
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from stashtrace.files.run_facts import json_object
from stashtrace.files.whole_files import read_whole, write_whole
from stashtrace.live import times
from stashtrace.live.state import Event, LiveState, read_events, read_states
from stashtrace.record.directory import WINDOWS_FOLDER, rights_of_run
from stashtrace.text.units import duration_text

#: The event of a window that is sealed, and of one that somebody asks for.
CAPTURE = "capture"
_FILE = "capture-{name}@{host}.request"
#: What :func:`window_name` returns, with a number where that is taken.
_WINDOW_NAME = re.compile(r"step-\d{6,18}-[a-z_]{1,40}(-\d{1,9})?")


@dataclass(frozen=True, slots=True)
class Request:
    """A window: the steps in memory, and ``after_steps`` that come.

    Asked for again under the same name, it becomes longer, or ends ``now``.
    """

    after_steps: int = 0
    #: The same on all hosts.
    name: str = field(default="", compare=False)
    #: Whether no limit holds.
    unlimited: bool = False
    #: What is also recorded in the steps that come (``live.deeper``).
    kinds: tuple[str, ...] = ()
    #: The event (``state.Event``) for which it is sealed, its step, behind which ``after_steps`` count, and its rank.
    event: str = CAPTURE
    step: int = -1
    rank: int = -1
    cost_ns: int = 0
    #: Whether no step is to come.
    now: bool = False
    #: The host that asks all ``hosts`` for their parts and puts them together; empty where somebody asks.
    collector: str = ""
    hosts: tuple[str, ...] = ()
    #: Name of the folder.
    window: str = ""
    #: The first step that is wanted, also where its rows are no longer in memory.
    first_step: int = -1

    @property
    def is_for_part(self) -> bool:
        """Whether a collector asks for the part of a host."""
        return bool(self.collector)

    @property
    def is_asked(self) -> bool:
        """Whether somebody asked for it, so that no trigger counts."""
        return self.event == CAPTURE


def window_name(step: int, what: str) -> str:
    """Return the name of the folder of a window: its step, and what it is for."""
    return f"step-{max(step, 0):06}-{what}"


def put_request(directory: Path, request: Request, host: str) -> Path:
    """Ask a host for a window; the file is gone once its follower has taken the request.

    Errors of the system are raised as they are.
    """
    path = directory / _FILE.format(name=request.name, host=host.replace("/", "_"))
    write_whole(path, json.dumps(dataclasses.asdict(request)))
    windows = directory / WINDOWS_FOLDER
    with contextlib.suppress(OSError), rights_of_run(directory):  # its follower looks at it between two rounds
        windows.mkdir(exist_ok=True)
        if os.geteuid() == 0:
            owner = directory.stat()
            os.chown(windows, owner.st_uid, owner.st_gid)
        os.utime(windows)
    return path


def new_request_name() -> str:
    """Return a name that no other request has."""
    return f"{os.uname().nodename}-{os.getpid()}-{time.monotonic_ns()}".replace("/", "_")


def take_requests(directory: Path, host: str) -> list[Request]:
    """Return what a host was asked for since the last call; a file that makes no sense is removed like the others."""
    requests = []
    pattern = _FILE.format(name="*", host=glob.escape(host.replace("/", "_")))
    for path in sorted(directory.glob(pattern)):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            requests.append(_read_request(path))
        path.unlink(missing_ok=True)
    return requests


def _read_request(path: Path) -> Request:
    """Raises ValueError, TypeError, KeyError or AttributeError where the file is no request."""
    facts, values = json_object(read_whole(path)), dict[str, Any]()
    for one in dataclasses.fields(Request):
        value, default = facts[one.name], cast(Any, one.default)
        values[one.name] = tuple(map(str, value)) if isinstance(default, tuple) else type(default)(value)
    request = Request(**values)
    if (request.is_for_part or request.window) and _WINDOW_NAME.fullmatch(request.window) is None:
        raise ValueError(request.window)
    return request


class Awaited:
    """Says why a host is no longer waited for, by its states as they are read again and again.

    ``since_ns``: CLOCK_MONOTONIC when the waiting began. ``silent_ns``: without a round a host is given up after this
    time.
    """

    def __init__(self, since_ns: int, silent_ns: int) -> None:
        self._since_ns, self._silent_ns = since_ns, silent_ns
        #: Host -> its count of rounds, whether its follower lives, and since when both are so.
        self._seen: dict[str, tuple[int, bool | None, int]] = {}

    def why_not(self, host: str, state: LiveState | None, at_ns: int, patience_ns: int, *, last: bool = False) -> str:
        """Return why; empty if the host is waited for.

        ``patience_ns``: how long it may take in all. ``last``: nothing is waited for any more.
        """
        if state is not None and state.ended:
            return "its job has ended"
        lives = None if state is None else state.follower_lives()
        count, interval_s = (-1, 1.0) if state is None else (state.rounds_count, state.interval_s)
        if host not in self._seen or self._seen[host][:2] != (count, lives):
            self._seen[host] = count, lives, at_ns  # what it has answered meanwhile may not have been read yet
        elif lives is False:
            return "its follower has ended"
        silent_ns = at_ns - self._seen[host][2]
        if not lives and silent_ns > max(self._silent_ns, times.SILENT_ROUNDS * interval_s * times.SECOND_NS):
            return f"its follower has made no round for {duration_text(silent_ns)}"
        if last or at_ns - self._since_ns >= patience_ns:
            return f"no answer within {patience_ns / times.SECOND_NS:g} s"
        return ""


def asked_hosts(directory: Path) -> list[LiveState]:
    """Return the states of the followers that can be asked, those that live on this host first.

    Raises FormatError if a state is damaged.
    """
    states = [state for state in read_states(directory) if not state.ended]
    return sorted(states, key=lambda state: (state.follower_lives() is not True, -state.updated_realtime_ns))


class Asked:
    """A window that somebody asks one host for, or the next one where that has no answer.

    ``states``: of the hosts. Errors of the system are raised as they are.
    """

    def __init__(
        self,
        directory: Path,
        states: Sequence[LiveState],
        after_steps: int,
        *,
        unlimited: bool = False,
        kinds: Sequence[str] = (),
    ) -> None:
        self._directory = directory
        self._hosts = [state.host for state in states]
        self._request = Request(after_steps, new_request_name(), unlimited, tuple(kinds))
        self._file = put_request(directory, self._request, self._hosts[0])
        #: Host that was asked and has not answered -> why.
        self.missing: dict[str, str] = {}
        #: What was answered: an event with the folder of the window, or why there is none; None for no answer.
        self.answer: Event | None = None

    def wait(self, timeout_s: float) -> None:
        """Wait for the answer. Raises FormatError if it cannot be read, OSError if the next host cannot be asked."""
        patience_ns, since_ns = round(timeout_s * times.SECOND_NS), time.monotonic_ns()
        awaited = Awaited(since_ns, times.ASKED_SILENT_NS)
        for number, host in enumerate(self._hosts):
            if number:
                self._file = put_request(self._directory, self._request, host)
            while not (why := self._read_answer(awaited, host, patience_ns)) and self.answer is None:
                time.sleep(times.ANSWER_POLL_S)
            with contextlib.suppress(OSError):
                self._file.unlink(missing_ok=True)
            if self.answer is not None:
                return
            self.missing[host] = why
            if time.monotonic_ns() >= since_ns + patience_ns:
                return

    def _read_answer(self, awaited: Awaited, host: str, patience_ns: int) -> str:
        """Take in the answer if it is there; return why there will be none."""
        states = {state.host: state for state in read_states(self._directory)}
        found = (event for event in read_events(self._directory) if self._request.name in event.request.split())
        self.answer = next(found, None)
        return awaited.why_not(host, states.get(host), time.monotonic_ns(), patience_ns)
