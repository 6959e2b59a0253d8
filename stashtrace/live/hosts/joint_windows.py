"""Windows that all hosts of a job seal together: each packs its own ranks into one folder, up to a step of all of them.

    request ──► host A: last step it has closed ──►┐ host.A.json                     ┌──► files of A's ranks
            └─► host B: last step it has closed ──►┘ host.B.json: the latest + after └──► files of B's ranks

No host waits for another: one that is gone leaves its ranks out. Hosts hold different earliest steps, so each says when
its ranks began each step, and the window begins with the first one that all of them have (``loading.run_tables``).
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stashtrace.errors import StashtraceError
from stashtrace.format.compact import write_packed
from stashtrace.live.accounts import LiveAccounts
from stashtrace.live.capture import PATIENCE_NS, WINDOWS_FOLDER, Captures, Request, Sealed
from stashtrace.record.directory import RUN_FILE, update_host_facts
from stashtrace.run_facts import host_file, read_host_facts
from stashtrace.whole_files import write_whole

#: Fact of a host in the folder of a window that is not sealed yet: the last step that it had closed.
_NEWEST = "newest_step"


@dataclass(slots=True)
class _Joint:
    request: Request
    path: Path
    #: The last step that this host had closed, and until when it waits for the others' and for the steps to come.
    newest: int
    until_ns: int
    written: list[Path] = field(default_factory=list)
    #: It holds this step in any case, where it comes in time.
    least_last: int = -1


class JointWindows:
    """The part of this host in windows of all hosts.

    ``captures``: knows the limits. ``directory``: of the run. ``facts``: of its ``run.json``. ``host``: name of this
    one. ``waits``: whether steps are known only from the request on, so that the other hosts' first ones count.
    """

    def __init__(self, captures: Captures, directory: Path, facts: dict[str, Any], host: str, *, waits: bool) -> None:
        self._captures = captures
        self._folder = directory / WINDOWS_FOLDER
        self._facts = facts
        self._host = host
        self._waits = waits
        self._open: list[_Joint] = []

    @property
    def is_open(self) -> bool:
        """Whether a window waits for its last steps; the rows of its first ones must stay."""
        return bool(self._open)

    def answer(self, request: Request, newest: int, at_ns: int) -> str:
        """Open this host's part of a window; return why not, empty if it is open. ``newest``: the last closed step."""
        path = self._folder / request.window
        why = self._captures.why_not_asked(request, besides=request.window)
        if why:
            with contextlib.suppress(OSError):  # not empty: others seal theirs
                path.rmdir()
            return why
        try:
            self._folder.mkdir(exist_ok=True)
            path.mkdir(exist_ok=True)
            update_host_facts(path, self._host, {_NEWEST: newest})
        except OSError as error:
            return f"cannot write to {path}: {error.strerror or error}"
        self._open.append(_Joint(request, path, newest, at_ns + PATIENCE_NS))
        return ""

    def lengthen(self, last_step: int) -> None:
        """Let the window that was opened last wait for a step; -1 for none."""
        self._open[-1].least_last = max(self._open[-1].least_last, last_step)

    def seal_ready(self, accounts: LiveAccounts, at_ns: int, *, ended: bool = False) -> list[tuple[Request, Sealed]]:
        """Seal the parts whose last step has closed, or that have waited long enough."""
        closed = min(accounts.closed.values(), default=-1)
        ready = [one for one in self._open if ended or at_ns >= one.until_ns or self._is_ready(one, closed)]
        self._open = [one for one in self._open if not any(one is other for other in ready)]
        return [(one.request, self._seal(one, accounts, closed)) for one in ready]

    def _is_ready(self, joint: _Joint, closed: int) -> bool:
        told = {str(facts.get("host", "")): facts.get(_NEWEST, -1) for facts in read_host_facts(joint.path)}
        if self._waits and not told.keys() >= set(joint.request.hosts):
            return False
        newest = max([joint.newest, joint.request.newest, *(step for step in told.values() if isinstance(step, int))])
        return closed >= max(newest + joint.request.after_steps, joint.least_last)

    def _seal(self, joint: _Joint, accounts: LiveAccounts, closed: int) -> Sealed:
        first = 0 if accounts.window is None else accounts.window.first_step
        name, size = joint.path.name, 0
        try:
            for file in accounts.run.files:
                joint.written.append(joint.path / f"{file.name}.stash")
                size += write_packed(file, str(joint.written[-1]))
            facts = {**self._facts, "window_of": str(self._facts.get("run_id", ""))}
            write_whole(joint.path / RUN_FILE, json.dumps(facts))  # the same on all hosts
            update_host_facts(joint.path, self._host, accounts.window_facts())
        except (OSError, StashtraceError) as error:
            self._remove(joint)
            reason = error.strerror if isinstance(error, OSError) else str(error)
            return Sealed(name, "", first, closed, 0, reason or str(error))
        return Sealed(name, str(joint.path), first, closed, size)

    def _remove(self, joint: _Joint) -> None:
        """Remove this host's part: half of it would be read as whole."""
        for path in (*joint.written, joint.path / host_file(self._host)):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        if not any(path.suffix == ".stash" for path in _listed(joint.path)):
            with contextlib.suppress(OSError):
                (joint.path / RUN_FILE).unlink(missing_ok=True)
                joint.path.rmdir()


def _listed(folder: Path) -> Sequence[Path]:
    with contextlib.suppress(OSError):
        return [folder / name for name in os.listdir(folder)]
    return ()
