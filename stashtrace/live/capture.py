"""Windows: the rows around a moment of a run, sealed as a run directory of their own.

    steps    ... K  |  before  |  trigger  |  after  |        RUN/windows/step-4182-slow_step/
                    '--------- sealed ---------------'          run.json, one .stash for each process

A trigger asks for some steps before, which are in memory, and some after; it is sealed when these have closed, or when
they take too long. Its folder is made when it is asked for, so that the line about the trigger can name it. A storm of
triggers does not fill the disk: so many windows a run, so much time between two. Nor does a script that asks again and
again: so many folders, and so many bytes.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import shutil
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stashtrace.errors import StashtraceError
from stashtrace.format.compact import write_packed
from stashtrace.live.accounts import LiveAccounts
from stashtrace.loading.run_tables import WINDOW_FACT, Window
from stashtrace.record.directory import RUN_FILE, WINDOWS_FOLDER
from stashtrace.run_facts import json_object
from stashtrace.text import count_noun
from stashtrace.units import bytes_text
from stashtrace.whole_files import read_whole, write_whole

#: A window whose steps after the trigger do not come is sealed without them.
PATIENCE_NS = 60_000_000_000
#: So long a window may stay open in all, however often it is asked for meanwhile.
_LONGEST_NS = 10 * PATIENCE_NS
#: Further triggers make an open window longer by so many steps at most.
LONGER_STEPS = 50
#: What to do where there are too many windows.
_MORE = "remove some, or ask with `stashtrace capture --no-limit`"


@dataclass(frozen=True, slots=True)
class Limits:
    """What windows may take."""

    #: Windows of one run that triggers open.
    windows_count: int = 20
    #: Folders of windows in a run, and bytes in them, at which none is opened as somebody asks, or as the job is stuck.
    folders_count: int = 100
    folders_bytes: int = 2 << 30
    #: Time between two triggers that seal one, unless the later one costs so many times what the earlier one did.
    pause_ns: int = 60_000_000_000
    worth_more: float = 4.0


@dataclass(frozen=True, slots=True)
class Sealed:
    """A window that was sealed, or why it was not."""

    name: str
    path: str
    first_step: int
    last_step: int
    size_bytes: int
    error: str = ""


@dataclass(slots=True)
class _Wanted:
    path: Path
    last_step: int
    until_ns: int
    #: Triggers make it no longer than up to this step, and nothing makes it longer than up to this time.
    longest_step: int
    longest_ns: int


class Captures:
    """The windows of a run. ``directory``: of the run. ``facts``: of its ``run.json``.

    ``refused_count``: triggers that sealed nothing, because the limits are reached or its folder cannot be made.
    ``refusal``: why the last of these did; empty if there are none.
    """

    def __init__(self, directory: Path, facts: dict[str, Any], limits: Limits | None = None) -> None:
        self._folder = directory / WINDOWS_FOLDER
        self._facts = facts
        self._limits = limits or Limits()
        self._wanted: _Wanted | None = None
        self._opened_count = 0
        self._last_ns = -self._limits.pause_ns
        self._last_cost_ns = 0
        self.refused_count = 0
        self.refusal = ""

    @property
    def is_open(self) -> bool:
        """Whether a window waits for its last steps; the rows of its first ones must stay."""
        return self._wanted is not None

    def ask(
        self,
        name: str,
        step: int,
        after_steps: int,
        at_ns: int,
        *,
        cost_ns: int = 0,
        by_hand: bool = False,
        unlimited: bool = False,
    ) -> str:
        """Ask for a window up to ``after_steps`` behind a step; return the folder it will have, empty if it has none.

        While a window is open, it holds all steps that have closed; it is made longer for those that come, up to some.
        ``name``: of the folder. ``cost_ns``: of what
        happened. ``by_hand``: somebody asked, or the job is stuck, so the limits of triggers do not hold; with
        ``unlimited`` no limit does.
        """
        last = step + after_steps
        if self._wanted is not None:
            more = last if by_hand else min(last, self._wanted.longest_step)
            if more > self._wanted.last_step:
                until_ns = min(at_ns + PATIENCE_NS, self._wanted.longest_ns)
                self._wanted.last_step, self._wanted.until_ns = more, until_ns
            return str(self._wanted.path)
        why = "" if unlimited else self.why_not(at_ns, cost_ns, by_hand=by_hand)
        if not why:
            try:
                path = self._make_folder(name)
            except OSError as error:
                why = f"cannot write to {self._folder}: {error.strerror or error}"
        if why:
            self.refuse(why)
            return ""
        self._wanted = _Wanted(path, last, at_ns + PATIENCE_NS, last + LONGER_STEPS, at_ns + _LONGEST_NS)
        if not by_hand:
            self.count(at_ns, cost_ns)
        return str(path)

    def refuse(self, why: str) -> None:
        """Note that a trigger has no window."""
        self.refused_count += 1
        self.refusal = why

    def count(self, at_ns: int, cost_ns: int) -> None:
        """Note that a trigger has opened a window, here or on another host."""
        self._opened_count += 1
        self._last_ns, self._last_cost_ns = at_ns, cost_ns

    def lengthen(self, last_step: int) -> None:
        """Let the open window wait for a step; -1 for none."""
        if self._wanted is not None:
            self._wanted.last_step = max(self._wanted.last_step, last_step)

    def hurry(self, at_ns: int) -> None:
        """Let the open window wait no longer: steps after it will not come."""
        if self._wanted is not None:
            self._wanted.until_ns = at_ns

    def why_not(self, at_ns: int, cost_ns: int, *, by_hand: bool = False) -> str:
        """Return which limit stands against a window; empty if none does. ``by_hand``: as of :meth:`ask`."""
        limits = self._limits
        if by_hand:
            return self._why_no_folder()
        if self._opened_count >= limits.windows_count:
            return f"the run has {limits.windows_count} windows"
        too_soon = at_ns - self._last_ns < limits.pause_ns and cost_ns <= limits.worth_more * self._last_cost_ns
        return "the last window was a moment ago" if too_soon else ""

    def why_not_asked(self, request: Request, besides: str) -> str:
        """Return which limit stands against a window that somebody asks for; empty if none does.

        ``besides``: its own folder, which may be there already.
        """
        return "" if request.unlimited else self._why_no_folder(besides)

    def _why_no_folder(self, besides: str = "") -> str:
        limits = self._limits
        folders: list[str] = []
        with contextlib.suppress(OSError), os.scandir(self._folder) as entries:  # there is none yet
            folders = [entry.path for entry in entries if entry.name != besides]
        if len(folders) >= limits.folders_count:
            return f"{self._folder} holds {count_noun(len(folders), 'window')}; {_MORE}"
        size = sum(map(_size_bytes, folders))
        return f"the windows in {self._folder} take {bytes_text(size)}; {_MORE}" if size >= limits.folders_bytes else ""

    def seal_if_ready(self, accounts: LiveAccounts, at_ns: int, *, ended: bool = False) -> Sealed | None:
        """Seal the window that is asked for once its last step has closed; None if it has to wait."""
        wanted = self._wanted
        closed = min(accounts.closed.values(), default=-1)
        if wanted is None or (closed < wanted.last_step and at_ns < wanted.until_ns and not ended):
            return None
        self._wanted = None
        return self._seal(wanted, accounts, closed)

    def _seal(self, wanted: _Wanted, accounts: LiveAccounts, closed: int) -> Sealed:
        first = 0 if accounts.window is None else accounts.window.first_step
        path = wanted.path
        try:
            size = sum(write_packed(file, str(path / f"{file.name}.stash")) for file in accounts.run.files)
            window = replace(accounts.window or Window(0, {}), last_step=closed)
            facts = {**self._facts, WINDOW_FACT: window.fact(accounts.origin_ns)}
            facts["window_of"] = str(facts.get("run_id", ""))
            write_whole(path / RUN_FILE, json.dumps(facts))
        except (OSError, StashtraceError) as error:
            shutil.rmtree(path, ignore_errors=True)  # half a window would be read as a whole one
            reason = error.strerror if isinstance(error, OSError) else str(error)
            return Sealed(path.name, "", first, closed, 0, reason or str(error))
        return Sealed(path.name, str(path), first, closed, size)

    def _make_folder(self, name: str) -> Path:
        """Make a folder of that name, or with a number behind it; a run directory that is gone is not made again."""
        self._folder.mkdir(exist_ok=True)
        path, number = self._folder / name, 1
        while True:
            try:
                path.mkdir()
                return path
            except FileExistsError:
                number += 1
                path = self._folder / f"{name}-{number}"


def _size_bytes(folder: str) -> int:
    """Return the bytes of the files in a folder; what is gone by now counts nothing."""
    size = 0
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                size += entry.stat(follow_symlinks=False).st_size
    return size


# What somebody asks for: a file in the run directory for each host, which the follower of that host takes.

_REQUEST = "capture-{name}@{host}.request"
_WINDOW_NAME = re.compile(r"step-\d{6,18}-[a-z_]{1,40}(-\d{1,9})?")


@dataclass(frozen=True, slots=True)
class Request:
    """A window that somebody asks for: the steps in memory, and so many that come.

    One of a trigger has a ``collector``. Asked for again under the same name, it becomes longer, or ends ``now``.
    """

    after_steps: int
    #: Of the request; the same on all hosts.
    name: str = field(default="", compare=False)
    #: All hosts that are asked.
    hosts: tuple[str, ...] = ()
    #: Folder of the window, and the last step that one of the hosts has closed, where several are asked; of a trigger,
    #: the step behind which ``after_steps`` count.
    window: str = ""
    newest: int = -1
    #: Whether no limit holds.
    unlimited: bool = False
    #: What the steps that come are recorded with besides (``live.deeper``).
    kinds: tuple[str, ...] = ()
    #: The host that puts the parts of all hosts together and says so; empty where each host says its own.
    collector: str = ""
    #: The event for which the window is sealed (``state.Event``), and its step and rank; -1 for none.
    event: str = ""
    step: int = -1
    rank: int = -1
    cost_ns: int = 0
    #: The first step that is wanted, also where its rows are no longer in memory; -1 for those that are.
    first_step: int = -1
    #: Whether no step is to come.
    now: bool = False


def put_request(directory: Path, request: Request, host: str) -> Path:
    """Ask a host for a window; the file is gone once its follower has taken the request.

    Errors of the system are raised as they are.
    """
    path = directory / _REQUEST.format(name=request.name, host=host.replace("/", "_"))
    facts = {name: getattr(request, name) for name in Request.__slots__}
    write_whole(path, json.dumps(facts))
    return path


def new_request_name() -> str:
    """Return a name that no other request has."""
    return f"{os.uname().nodename}-{os.getpid()}-{time.monotonic_ns()}".replace("/", "_")


def take_requests(directory: Path, host: str) -> list[Request]:
    """Return what a host was asked for since the last call; a file that makes no sense is removed like the others."""
    requests = []
    pattern = _REQUEST.format(name="*", host=glob.escape(host.replace("/", "_")))
    for path in sorted(directory.glob(pattern)):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            requests.append(_read_request(path))
        path.unlink(missing_ok=True)
    return requests


def _read_request(path: Path) -> Request:
    """Raises ValueError, TypeError, KeyError or AttributeError where the file is no request."""
    facts = json_object(read_whole(path))
    hosts, window = tuple(map(str, facts.get("hosts", ()))), str(facts.get("window", ""))
    if (window or len(hosts) > 1) and _WINDOW_NAME.fullmatch(window) is None:
        raise ValueError(window)
    numbers = {name: int(facts.get(name, -1)) for name in ("newest", "step", "rank", "first_step")}
    return Request(
        int(facts["after_steps"]),
        str(facts["name"]),
        hosts,
        window,
        unlimited=facts.get("unlimited") is True,
        kinds=tuple(map(str, facts.get("kinds", ()))),
        collector=str(facts.get("collector", "")),
        event=str(facts.get("event", "")),
        cost_ns=int(facts.get("cost_ns", 0)),
        now=facts.get("now") is True,
        **numbers,
    )
