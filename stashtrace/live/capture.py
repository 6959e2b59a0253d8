"""Windows: the rows around a moment of a run, sealed as a run directory of their own.

    steps    ... K  |  before  |  trigger  |  after  |        RUN/windows/step-4182-slow_step/
                    '--------- sealed ---------------'          run.json, one .stash for each process

A trigger asks for some steps before, which are in memory, and some after; it is sealed when these have closed, or when
they take too long. A storm of triggers does not fill the disk: so many windows a run, so much time between two.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stashtrace.analysis.steps.window import FACT, Window
from stashtrace.errors import StashtraceError
from stashtrace.format.compact import write_packed
from stashtrace.live.accounts import LiveAccounts
from stashtrace.record.directory import RUN_FILE
from stashtrace.whole_files import write_whole

WINDOWS_FOLDER = "windows"
#: A window whose steps after the trigger do not come is sealed without them.
_PATIENCE_NS = 60_000_000_000


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
    name: str
    last_step: int
    until_ns: int


class Captures:
    """The windows of a run. ``directory``: of the run. ``facts``: of its ``run.json``.

    ``refused_count``: triggers that sealed nothing, because another window is open or the limits are reached.
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

    @property
    def is_open(self) -> bool:
        """Whether a window waits for its last steps; the rows of its first ones must stay."""
        return self._wanted is not None

    def ask(
        self, name: str, step: int, after_steps: int, at_ns: int, *, cost_ns: int = 0, by_hand: bool = False
    ) -> bool:
        """Ask for a window up to ``after_steps`` behind a step; return whether there will be one.

        ``name``: of its folder. ``cost_ns``: of what happened. ``by_hand``: a person asked, or the job is stuck, so the
        limits do not hold.
        """
        limits = self._limits
        too_soon = at_ns - self._last_ns < limits.pause_ns and cost_ns <= limits.worth_more * self._last_cost_ns
        if self._wanted is not None or ((self._opened_count >= limits.windows_count or too_soon) and not by_hand):
            self.refused_count += 1
            return False
        self._wanted = _Wanted(name, step + after_steps, at_ns + _PATIENCE_NS)
        self._opened_count += 1
        self._last_ns, self._last_cost_ns = at_ns, cost_ns
        return True

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
        path = self._free_path(wanted.name)
        try:
            path.mkdir(parents=True)
            size = sum(write_packed(file, str(path / f"{file.name}.stash")) for file in accounts.run.files)
            window = replace(accounts.window or Window(0, {}), last_step=closed)
            facts = {**self._facts, FACT: window.fact(accounts.origin_ns)}
            facts["window_of"] = str(facts.get("run_id", ""))
            write_whole(path / RUN_FILE, json.dumps(facts))
        except (OSError, StashtraceError) as error:
            shutil.rmtree(path, ignore_errors=True)  # half a window would be read as a whole one
            reason = error.strerror if isinstance(error, OSError) else str(error)
            return Sealed(wanted.name, "", first, closed, 0, reason or str(error))
        return Sealed(wanted.name, str(path), first, closed, size)

    def _free_path(self, name: str) -> Path:
        path, number = self._folder / name, 1
        while os.path.lexists(path):
            number += 1
            path = self._folder / f"{name}-{number}"
        return path


# What a person asks for: a file in the run directory, which the process that follows the run takes.

_REQUEST = "capture-{name}.request"


@dataclass(frozen=True, slots=True)
class Request:
    """A window that somebody asks for: the steps in memory, and so many that come."""

    after_steps: int


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
            requests.append(Request(int(json.loads(path.read_text(encoding="utf-8"))["after_steps"])))
        path.unlink(missing_ok=True)
    return requests
