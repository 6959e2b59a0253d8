"""Windows that all hosts of a job seal together: each packs its own ranks into one folder, up to a step of all of them.

    request ──► host A: last step it has closed ──►┐ host.A.json                     ┌──► files of A's ranks
            └─► host B: last step it has closed ──►┘ host.B.json: the latest + after └──► files of B's ranks

Each host packs its part into a folder of its own, ``HOST.making``, which then becomes ``HOST.ranks``. Where somebody
asks for a window, each host takes its part over itself and says so; none waits for another. Where a trigger does, the
host that saw it collects the parts (``live.hosts.collecting``).

Hosts hold different earliest steps, so each says when its ranks began each step, and the window begins with the first
one that all of them have (``loading.run_tables``).
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stashtrace.errors import StashtraceError
from stashtrace.format.compact import write_packed
from stashtrace.live.accounts import LiveAccounts
from stashtrace.live.capture import (
    LONGER_STEPS,
    PATIENCE_NS,
    Captures,
    Request,
    Sealed,
    new_request_name,
    put_request,
)
from stashtrace.live.hosts.asking import asked_hosts, make_folder
from stashtrace.live.hosts.collecting import Collecting, Part, making_folder, part_folder, refuse_part, take_in
from stashtrace.live.hosts.other_hosts import OtherHosts, ranks_named
from stashtrace.live.state import Event
from stashtrace.record.directory import RUN_FILE, WINDOWS_FOLDER, update_host_facts
from stashtrace.run_facts import STACKS, host_file, read_host_facts
from stashtrace.whole_files import write_whole

#: Fact of a host in the folder of a window: the last step that it had closed when it opened its part.
_NEWEST = "newest_step"
#: A trigger that another host has told so lately is not told again.
_TOLD_NS = 120_000_000_000


@dataclass(slots=True)
class _Joint:
    request: Request
    path: Path
    #: The last step that this host had closed, and until when it waits for the others' and for the steps to come.
    newest: int
    until_ns: int
    #: It holds this step in any case, where it comes in time.
    least_last: int = -1
    #: Start of an elastic job; -1 before the first look. What the host knew of its steps at the last look.
    start: int = -1
    first: int = 0
    closed: int = -1
    facts: dict[str, Any] = field(default_factory=dict)


class JointWindows:
    """The part of this host in windows of all hosts.

    ``captures``: knows the limits. ``directory``: of the run. ``facts``: of its ``run.json``. ``host``: name of this
    one. ``waits``: whether steps are known only from the request on, so that the other hosts' first ones count.
    ``others``: what other hosts tell. ``before_steps``: of a window that a trigger opens.
    """

    def __init__(
        self,
        captures: Captures,
        directory: Path,
        facts: dict[str, Any],
        host: str,
        *,
        waits: bool,
        others: OtherHosts | None = None,
        before_steps: int = 20,
    ) -> None:
        self._captures = captures
        self._directory = directory
        self._folder = directory / WINDOWS_FOLDER
        self._facts = facts
        self._host = host
        self._waits = waits
        self._others = others
        self._before_steps = before_steps
        self._open: list[_Joint] = []
        self.collecting = Collecting(directory, facts, host, others)
        #: What other hosts have told, and when we heard of it.
        self._told: list[tuple[Request, int]] = []
        #: Hosts that could be asked at a moment.
        self._hosts: tuple[int, tuple[str, ...]] = (-1, ())

    @property
    def is_open(self) -> bool:
        """Whether a window waits for its last steps; the rows of its first ones must stay."""
        return bool(self._open)

    def has(self, step: int, *, now: bool) -> bool:
        """Return whether a window that a trigger has opened, here or elsewhere, holds a step or waits for it.

        ``now``: what comes after the step counts.
        """
        return any(one.request.collector for one in self._open) or (not now and bool(self.collecting.with_step(step)))

    def lacking(self, own: Collection[int]) -> str:
        """Say which ranks a window of this host alone lacks, and why; empty if none. ``own``: the ranks that it has."""
        if self._others is None:
            return ""
        gone, rest = sorted(set(self._others.told) - set(own)), self._others.lacking()
        said = [f"{ranks_named(gone)} (nobody follows them any more)"] if gone else []
        return "; ".join([*said, *([rest] if rest else [])])

    # Triggers ----------------------------------------------------------------------------------------------------

    def hosts(self, at_ns: int) -> tuple[str, ...]:
        """Return the hosts whose followers can be asked, this one among them; of one moment they are looked up once."""
        if at_ns != self._hosts[0]:
            run_id, states = str(self._facts.get("run_id", "")), []
            with contextlib.suppress(StashtraceError):
                states = asked_hosts(self._directory)
            others = (state.host for state in states if state.run_id == run_id)
            self._hosts = at_ns, tuple(sorted({self._host, *others}))
        return self._hosts[1]

    def is_told(self, event: Event, at_ns: int) -> bool:
        """Return whether another host has told of the same trigger already."""
        self._told = [(request, heard_ns) for request, heard_ns in self._told if at_ns - heard_ns < _TOLD_NS]
        return any(_is_same(request, event) for request, _ in self._told)

    def open_for(
        self, event: Event, name: str, after_steps: int, at_ns: int, *, now: bool = False, kinds: Sequence[str] = ()
    ) -> str | None:
        """Ask all hosts for a window of a trigger; return its folder, None if another host does so for the same one.

        ``name``: of the folder; empty for a new one. ``now``: no steps are to come. What is open for another trigger
        is made longer in its place. Raises OSError if the run directory cannot be written.
        """
        if joint := next((one for one in self._open if one.request.collector), None):
            self._join(joint, event.step + after_steps, at_ns, now=now)
            return str(joint.path)
        if whole := "" if now else self.collecting.with_step(event.step):
            return whole
        folder = self._claim(name) if name else make_folder(self._directory, f"step-{max(event.step, 0):06}-asked")
        if not folder:
            return None
        request = Request(
            after_steps,
            new_request_name(),
            self.hosts(at_ns),
            folder,
            event.step,
            kinds=tuple(kinds),
            collector=self._host,
            event=event.kind,
            step=event.step,
            rank=event.rank,
            cost_ns=event.cost_ns,
            first_step=max(event.step - self._before_steps, 0),
            now=now,
        )
        path = self._folder / folder
        try:
            files = self._ask(request)
            self._open_part(request, event.step, at_ns)
        except OSError:
            shutil.rmtree(path, ignore_errors=True)
            raise
        self.collecting.begin(request, files)
        return str(path)

    def _ask(self, request: Request) -> list[Path]:
        """Ask the other hosts for their parts. Raises OSError if the system refuses."""
        files = [put_request(self._directory, request, host) for host in request.hosts if host != self._host]
        os.utime(self._folder)  # their followers look at its time between two rounds
        return files

    def _claim(self, name: str) -> str:
        """Make the folder of a window; return an empty text if another host has made it for the same trigger."""
        self._folder.mkdir(exist_ok=True)
        path = self._folder / name
        try:
            path.mkdir()
            return name
        except FileExistsError:
            # A sealed one is of an earlier step of that number, as of an earlier start of an elastic job.
            return make_folder(self._directory, name) if (path / RUN_FILE).exists() else ""

    def _join(self, joint: _Joint, last_step: int, at_ns: int, *, now: bool) -> None:
        """Let an open window hold a further step, or wait no longer, on all hosts."""
        request = joint.request
        last = min(last_step, request.newest + request.after_steps + LONGER_STEPS)
        if not now and last <= request.newest + request.after_steps:
            return
        longer = replace(request, after_steps=max(last - request.newest, request.after_steps), now=now)
        with contextlib.suppress(OSError):  # they then seal what was asked for first
            self._ask(longer)
        self._change(joint, longer, at_ns)

    def _change(self, joint: _Joint, request: Request, at_ns: int) -> None:
        joint.request = request
        joint.until_ns = at_ns if request.now else max(joint.until_ns, at_ns + PATIENCE_NS)

    # The part of this host ---------------------------------------------------------------------------------------

    def answer(self, request: Request, newest: int, at_ns: int) -> str:
        """Open this host's part of a window; return why not, empty if it is open. ``newest``: the last closed step."""
        for joint in self._open:
            if request.collector and joint.request.name == request.name:
                self._change(joint, request, at_ns)
                return ""
        if self.collecting.knows(request):  # it was asked for again, but this part is sealed
            return ""
        path = self.folder_of(request)
        if request.collector and (path / RUN_FILE).exists():  # it is whole without this part
            return ""
        if request.collector:
            self._told.append((request, at_ns))
            if not request.now and request.event != "capture":
                self._captures.count(at_ns, request.cost_ns)
        elif why := self._captures.why_not_asked(request, besides=request.window):
            with contextlib.suppress(OSError):  # not empty: others seal theirs
                path.rmdir()
            return why
        try:
            self._open_part(request, newest, at_ns)
        except OSError as error:
            why = f"cannot write to {path}: {error.strerror or error}"
            if not request.collector:
                return why
            refuse_part(path, self._host, why)
        return ""

    def folder_of(self, request: Request) -> Path:
        """Return the folder of a window that is asked for."""
        return self._folder / request.window

    def _open_part(self, request: Request, newest: int, at_ns: int) -> None:
        """Let the part of this host wait for its last step. Raises OSError if the system refuses."""
        path = self.folder_of(request)
        if not request.collector:
            self._folder.mkdir(exist_ok=True)
            path.mkdir(exist_ok=True)
        update_host_facts(path, self._host, {_NEWEST: newest})
        self._open.append(_Joint(request, path, newest, at_ns if request.now else at_ns + PATIENCE_NS))

    def lengthen(self, folder: str | Path, last_step: int) -> None:
        """Let the part of an open window wait for a step; -1 for none."""
        for joint in self._open:
            if str(joint.path) == str(folder):
                joint.least_last = max(joint.least_last, last_step)

    def seal_ready(
        self,
        accounts: LiveAccounts,
        at_ns: int,
        *,
        ended: bool = False,
        stacks: Sequence[Mapping[str, Any]] = (),
    ) -> list[tuple[Request, Sealed]]:
        """Seal the parts whose last step has closed, or that have waited long enough.

        Return those of windows of which each host says its own part. ``stacks``: that were sampled meanwhile.
        """
        closed = min(accounts.closed.values(), default=-1)
        sealed = []
        for one in list(self._open):
            again = one.start not in (-1, accounts.start)  # its ranks were started again: those steps will not come
            if not again:
                one.start = accounts.start
            if not (again or ended or at_ns >= one.until_ns or self._is_ready(one, closed)):
                one.closed, one.facts = closed, accounts.window_facts()
                one.first = 0 if accounts.window is None else accounts.window.first_step
                continue
            self._open.remove(one)
            if part := self._seal(one, accounts, at_ns, stacks, again=again):
                sealed.append((one.request, part))
        return sealed

    def _is_ready(self, joint: _Joint, closed: int) -> bool:
        request = joint.request
        told = {str(facts.get("host", "")): facts.get(_NEWEST, -1) for facts in read_host_facts(joint.path)}
        if self._waits and not told.keys() >= set(request.hosts):
            return False
        newest = [request.newest]
        if not request.collector or request.step < 0:
            newest += [joint.newest, *(step for step in told.values() if isinstance(step, int))]
        return closed >= max(max(newest) + request.after_steps, joint.least_last)

    def _seal(
        self,
        joint: _Joint,
        accounts: LiveAccounts,
        at_ns: int,
        stacks: Sequence[Mapping[str, Any]],
        *,
        again: bool,
    ) -> Sealed | None:
        """Pack the part of this host; return it where it is for this host to say so."""
        request, closed = joint.request, min(accounts.closed.values(), default=-1)
        first = joint.first if again else 0 if accounts.window is None else accounts.window.first_step
        error, size = "", 0
        try:
            files = list(accounts.run.files)
            if again:  # the rows of the earlier start are still there, as they were held
                closed, facts = joint.closed, joint.facts
            else:
                if request.collector:
                    first, files = accounts.files_since(request.first_step)
                facts = accounts.window_facts(first)
            # A host that has not looked since waits for the steps of this one all the same.
            facts = {**facts, _NEWEST: joint.newest, **({STACKS: list(stacks)} if stacks else {})}
            part = self._pack(joint.path, files, facts)
            if not request.collector:  # else another host may take it in by now
                size = sum(file.stat().st_size for file in part.glob("*.stash"))
                take_in(joint.path, part)
                facts = {**self._facts, "window_of": str(self._facts.get("run_id", ""))}
                write_whole(joint.path / RUN_FILE, json.dumps(facts))  # the same on all hosts
        except (OSError, StashtraceError) as problem:
            reason = problem.strerror if isinstance(problem, OSError) else str(problem)
            error = reason or str(problem)
            names = [f"{file.name}.stash" for file in accounts.run.files]
            self._remove(joint.path, () if request.collector else names)
            if request.collector:
                refuse_part(joint.path, self._host, error)
        if request.collector:
            self.collecting.add(Part(request, joint.path, at_ns, error))
            return None
        name = joint.path.name
        return (
            Sealed(name, "", first, closed, 0, error) if error else Sealed(name, str(joint.path), first, closed, size)
        )

    def _pack(self, window: Path, files: Sequence[Any], facts: Mapping[str, Any]) -> Path:
        """Pack files of this host into its folder of a window. Raises OSError or StashtraceError if that fails."""
        making, part = making_folder(window, self._host), part_folder(window, self._host)
        making.mkdir()
        for file in files:
            write_packed(file, str(making / f"{file.name}.stash"))
        update_host_facts(making, self._host, facts)
        making.rename(part)
        return part

    def _remove(self, window: Path, names: Sequence[str]) -> None:
        """Remove this host's part: half of it would be read as whole. ``names``: of files that were taken over."""
        for folder in (making_folder(window, self._host), part_folder(window, self._host)):
            shutil.rmtree(folder, ignore_errors=True)
        for name in (host_file(self._host), *names):
            with contextlib.suppress(OSError):
                (window / name).unlink(missing_ok=True)
        if names and not any(window.glob("*.stash")):
            with contextlib.suppress(OSError):
                (window / RUN_FILE).unlink(missing_ok=True)
                window.rmdir()


def _is_same(request: Request, event: Event) -> bool:
    """Whether a trigger that another host has told is the one that was seen here."""
    if request.event != event.kind or event.kind in ("rank_lost", "capture"):
        return False  # each host tells of its own ranks
    if event.kind == "stuck":  # a step may close on one host a moment later than on another
        return abs(request.step - event.step) <= 1
    return request.step == event.step or (
        event.kind == "stall_grows" and event.rank >= 0 and request.rank == event.rank
    )
