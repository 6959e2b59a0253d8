"""Windows: the rows around a moment of a run, sealed as a run directory of their own.

    steps    ... K  |  before  |  trigger  |  after  |        RUN/windows/step-4182-slow_step/
                    '--------- sealed ---------------'          run.json, one .stash for each process

A trigger asks for some steps before, which are in memory, and some after; it is sealed when these have closed, or when
they take too long. Its folder is made when it is asked for, so that the line about the trigger can name it. A storm of
triggers does not fill the disk: so many windows a run, so much time between two.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stashtrace.errors import StashtraceError
from stashtrace.format.compact import write_packed
from stashtrace.live.accounts import LiveAccounts
from stashtrace.loading.run_tables import WINDOW_FACT, Window
from stashtrace.record.directory import RUN_FILE
from stashtrace.whole_files import write_whole

WINDOWS_FOLDER = "windows"
#: A window whose steps after the trigger do not come is sealed without them.
_PATIENCE_NS = 60_000_000_000
#: Further triggers make an open window longer by so many steps at most.
_LONGER_STEPS = 50


@dataclass(frozen=True, slots=True)
class Limits:
    """What windows may take."""

    #: Windows of one run.
    windows_count: int = 20
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
    #: Triggers make it no longer than up to this step.
    longest_step: int


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
        self, name: str, step: int, after_steps: int, at_ns: int, *, cost_ns: int = 0, by_hand: bool = False
    ) -> str:
        """Ask for a window up to ``after_steps`` behind a step; return the folder it will have, empty if it has none.

        While a window is open, it holds all steps that have closed; it is made longer for those that come, up to some.
        ``name``: of the folder. ``cost_ns``: of what
        happened. ``by_hand``: a person asked, or the job is stuck, so no limit holds.
        """
        last = step + after_steps
        if self._wanted is not None:
            more = last if by_hand else min(last, self._wanted.longest_step)
            if more > self._wanted.last_step:
                self._wanted.last_step, self._wanted.until_ns = more, at_ns + _PATIENCE_NS
            return str(self._wanted.path)
        why = "" if by_hand else self._why_not(at_ns, cost_ns)
        if not why:
            try:
                path = self._make_folder(name)
            except OSError as error:
                why = f"cannot write to {self._folder}: {error.strerror or error}"
        if why:
            self.refused_count += 1
            self.refusal = why
            return ""
        self._wanted = _Wanted(path, last, at_ns + _PATIENCE_NS, last + _LONGER_STEPS)
        if not by_hand:
            self._opened_count += 1
            self._last_ns, self._last_cost_ns = at_ns, cost_ns
        return str(path)

    def hurry(self, at_ns: int) -> None:
        """Let the open window wait no longer: steps after it will not come."""
        if self._wanted is not None:
            self._wanted.until_ns = at_ns

    def _why_not(self, at_ns: int, cost_ns: int) -> str:
        """Return which limit stands against a window; empty if none does."""
        limits = self._limits
        if self._opened_count >= limits.windows_count:
            return f"the run has {limits.windows_count} windows"
        too_soon = at_ns - self._last_ns < limits.pause_ns and cost_ns <= limits.worth_more * self._last_cost_ns
        return "the last window was a moment ago" if too_soon else ""

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


# What a person asks for: a file in the run directory, which the process that follows the run takes.

_REQUEST = "capture-{name}.request"


@dataclass(frozen=True, slots=True)
class Request:
    """A window that somebody asks for: the steps in memory, and so many that come. ``name``: of the request."""

    after_steps: int
    name: str = field(default="", compare=False)


def put_request(directory: Path, request: Request) -> Path:
    """Ask for a window of a run that is followed; the file is gone once the request was taken.

    Errors of the system are raised as they are.
    """
    path = directory / _REQUEST.format(name=f"{os.uname().nodename}-{os.getpid()}-{time.monotonic_ns()}")
    write_whole(path, json.dumps({"after_steps": request.after_steps}))
    return path


def take_requests(directory: Path) -> list[Request]:
    """Return what was asked for since the last call; a file that makes no sense is removed like the others."""
    requests = []
    for path in sorted(directory.glob(_REQUEST.format(name="*"))):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            after = int(json.loads(path.read_text(encoding="utf-8"))["after_steps"])
            requests.append(Request(after, path.name))
        path.unlink(missing_ok=True)
    return requests
