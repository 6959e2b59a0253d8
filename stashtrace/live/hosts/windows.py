"""Windows: the rows around a moment of a run, sealed by all hosts of its job as a separate run directory.

    steps    ... K  |  before  |  trigger  |  after  |        RUN/windows/step-004182-slow/
                    '--------- sealed ---------------'          run.json, one .stash for each process

    trigger ──► host A: folder, requests ──► its part ──► parts of all: the window (``live.hosts.collecting``)
                └─► host B               ──► its part ──┘

The host that saw the trigger, or that somebody asked, makes the folder, so that the line about the trigger can name
it, and asks the others. Once the last step has closed, or takes too long, each packs its part into a separate folder,
``HOST.making``, which becomes ``HOST.ranks``. Hosts hold different earliest steps, so each says when its ranks began
each step, and the window begins with the first one that all of them have (``loading.run_tables``).

A storm of triggers does not fill the disk: the number of windows of a run and the time between two are bounded. Nor
does a script that asks again and again: the number of folders and their bytes are bounded.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stashtrace.errors import StashtraceError
from stashtrace.files.run_facts import STACKS, read_host_facts
from stashtrace.format.compact import write_packed
from stashtrace.format.stash_file import StashFile
from stashtrace.live import times
from stashtrace.live.accounts import LiveAccounts
from stashtrace.live.hosts.collecting import Collecting, Finished, Part, making_folder, part_folder, refuse_part
from stashtrace.live.hosts.requests import Request, asked_hosts, new_request_name, put_request
from stashtrace.live.hosts.shared_ranks import OtherHosts
from stashtrace.live.state import Event
from stashtrace.record.directory import RUN_FILE, WINDOWS_FOLDER, update_host_facts
from stashtrace.text.prose import count_noun
from stashtrace.text.units import bytes_text

#: The most steps by which further triggers make an open window longer.
LONGER_STEPS = 50
#: Fact of a host in the folder of a window: the last step that it had closed when it opened its part.
_NEWEST = "newest_step"
#: Each host reports these itself: of two at once there are two windows.
_OWN_KINDS = ("rank_lost", "capture")
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
    #: Time between two triggers that seal one, unless the later one costs this many times what the earlier one did.
    pause_ns: int = times.WINDOWS_APART_NS
    worth_more: float = 4.0

    def why_not(self, request: Request, opened: Sequence[tuple[int, int]], at_ns: int) -> str:
        """Return which limit stands against the window of a trigger; empty if none does.

        ``opened``: when triggers have opened windows, here or on other hosts, and what they cost.
        """
        if len(opened) >= self.windows_count:
            return f"the run has {self.windows_count} windows"
        for opened_ns, cost_ns in opened[-1:]:
            if at_ns - opened_ns < self.pause_ns and request.cost_ns <= self.worth_more * cost_ns:
                return "the last window was a moment ago"
        return ""

    def why_no_folder(self, folder: Path) -> str:
        """Return which limit stands against one more window in a folder of windows; empty if none does."""
        folders: list[str] = []
        with contextlib.suppress(OSError), os.scandir(folder) as entries:  # there is none yet
            folders = [entry.path for entry in entries]
        if len(folders) >= self.folders_count:
            return f"{folder} holds {count_noun(len(folders), 'window')}; {_MORE}"
        size = sum(map(_size_bytes, folders))
        return f"the windows in {folder} take {bytes_text(size)}; {_MORE}" if size >= self.folders_bytes else ""


def _size_bytes(folder: str) -> int:
    """Return the bytes of the files in a folder; what is gone by now counts nothing."""
    size = 0
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                size += entry.stat(follow_symlinks=False).st_size
    return size


@dataclass(slots=True)
class _Open:
    """A window whose part of this host is open."""

    request: Request
    path: Path
    #: The last step that this host had closed.
    newest: int
    #: Until when it waits for the steps to come, and until when however often it is asked for.
    until_ns: int
    longest_ns: int
    #: The most steps that further triggers let it wait for.
    most_steps: int
    #: It holds this step in any case, where it comes in time.
    least_last: int = -1
    #: Start of an elastic job, -1 before the first round; what the host knew of its steps at the last round.
    start: int = -1
    facts: dict[str, Any] = field(default_factory=dict)


class Windows:
    """The windows of a run, and the part of this host in them.

    ``directory``: of the run. ``facts``: of its ``run.json``. ``host``: name of this one. ``waits``: whether steps are
    known only from the request on, so that the other hosts' first ones count. ``others``: the other hosts.
    ``before_steps``: of a window, before the step of the trigger.

    ``refused_count``: triggers that sealed nothing, because the limits are reached or its folder cannot be made.
    ``refusal``: why the last of these did; empty if there are none.
    """

    def __init__(
        self,
        directory: Path,
        facts: dict[str, Any],
        host: str,
        *,
        waits: bool = False,
        others: OtherHosts | None = None,
        before_steps: int = 20,
        limits: Limits | None = None,
    ) -> None:
        self._directory = directory
        self._folder = directory / WINDOWS_FOLDER
        self._run_id = str(facts.get("run_id", ""))
        self._host = host
        self._waits = waits
        self._before_steps = before_steps
        self._limits = limits or Limits()
        self._open: list[_Open] = []
        self.collecting = Collecting(directory, facts, host, others)
        #: What other hosts have reported, and when we heard of it.
        self._reported: list[tuple[Request, int]] = []
        #: When triggers have opened windows, here or on other hosts, and what they cost.
        self._opened: list[tuple[int, int]] = []
        #: Files of requests of this host that others may not have taken yet, by the folder of the window.
        self._files: dict[Path, list[Path]] = {}
        self.refused_count = 0
        self.refusal = ""

    @property
    def is_open(self) -> bool:
        """Whether a window waits for its last steps; the rows of its first ones must stay."""
        return bool(self._open)

    # Opened here -------------------------------------------------------------------------------------------------

    def is_reported(self, event: Event, at_ns: int) -> bool:
        """Return whether another host has reported the same trigger already."""
        self._reported = [one for one in self._reported if at_ns - one[1] < times.REPORTED_NS]
        return any(_is_same(request, event) for request, _ in self._reported)

    def ask(self, request: Request, at_ns: int) -> tuple[Path | None, str]:
        """Ask all hosts for a window, or let one that is open hold more; return its folder, or None and why not.

        Without a reason, another host opens one for the same trigger. ``request``: with the name of the folder, to
        which a number may come.
        """
        if (joined := self._joined(request, at_ns)) is not None:
            return joined, ""
        path: Path | None = None
        if not (why := self._why_not(request, at_ns)):
            try:
                hosts = self._hosts()
                if (path := self._claim(request, len(hosts))) is None:
                    return None, ""
                name, first_step = request.name or new_request_name(), max(request.step - self._before_steps, 0)
                request = replace(request, name=name, collector=self._host, hosts=hosts, first_step=first_step)
                request = replace(request, window=path.name)
                self._files[path] = self._put(request)
                self._open_part(request, path, request.step, at_ns)
                self._count(request, at_ns)
                return path, ""
            except OSError as error:
                why = f"cannot write to {self._folder}: {error.strerror or error}"
        if path is not None:
            shutil.rmtree(path, ignore_errors=True)
        self.refused_count += 1
        self.refusal = why
        return None, why

    def _why_not(self, request: Request, at_ns: int) -> str:
        """Return which limit stands against a window; empty if none does."""
        if request.unlimited:
            return ""
        if request.is_asked or request.now:  # the limits of triggers are for steps that take longer, not for what ends
            return self._limits.why_no_folder(self._folder)
        return self._limits.why_not(request, self._opened, at_ns)

    def _count(self, request: Request, at_ns: int) -> None:
        if not request.is_asked and not request.now:
            self._opened.append((at_ns, request.cost_ns))

    def _hosts(self) -> tuple[str, ...]:
        states = []
        with contextlib.suppress(StashtraceError):
            states = asked_hosts(self._directory)
        return tuple(sorted({self._host, *(state.host for state in states if state.run_id == self._run_id)}))

    def _claim(self, request: Request, hosts_count: int) -> Path | None:
        """Make the folder of a window; return None if another host has made it for the same trigger.

        A run directory that is gone is not made again. Raises OSError if the system refuses.
        """
        self._folder.mkdir(exist_ok=True)
        path, number = self._folder / request.window, 1
        while True:
            try:
                path.mkdir()
                return path
            except FileExistsError:
                # A sealed one is of an earlier step of that number, as of an earlier start of an elastic job.
                if hosts_count > 1 and request.event not in _OWN_KINDS and not (path / RUN_FILE).exists():
                    return None
                number += 1
                path = self._folder / f"{request.window}-{number}"

    def _put(self, request: Request) -> list[Path]:
        """Ask the other hosts for their parts. Raises OSError if the system refuses."""
        return [put_request(self._directory, request, host) for host in request.hosts if host != self._host]

    def _joined(self, request: Request, at_ns: int) -> Path | None:
        """Return the folder of a window that will hold what is wanted; None if a new one is to be opened."""
        if self._open:
            self._lengthen(self._open[0], request, at_ns)
            return self._open[0].path
        wanted = request.step + (request.after_steps if request.is_asked else 0)
        for part in self.collecting.parts:
            holds = 0 if part.request.now else part.request.after_steps
            if request.step >= 0 and not request.now and wanted <= part.request.step + holds:
                return part.window
        return None

    def _lengthen(self, one: _Open, request: Request, at_ns: int) -> None:
        """Let an open window hold further steps, or wait no longer, on all hosts."""
        after = request.step + request.after_steps - one.request.step
        after = max(after if request.is_asked else min(after, one.most_steps), one.request.after_steps)
        now = request.now or one.request.now
        if not request.now and after == one.request.after_steps:
            return
        longer = replace(one.request, after_steps=after, now=now)
        with contextlib.suppress(OSError):  # they then seal what was asked for first
            self._put(longer)
        self._change(one, longer, at_ns)

    @staticmethod
    def _change(one: _Open, request: Request, at_ns: int) -> None:
        one.request = request
        until_ns = max(one.until_ns, at_ns + times.PATIENCE_NS)
        one.until_ns = at_ns if request.now else min(until_ns, one.longest_ns)

    # The part of this host ---------------------------------------------------------------------------------------

    def answer(self, request: Request, newest: int, at_ns: int) -> Path | None:
        """Open this host's part of a window of another host, or let it hold more; return its folder.

        None if there is no such part to open any more. ``newest``: the last step that has closed.
        """
        for one in self._open:
            if one.request.name == request.name:
                self._change(one, request, at_ns)
                return one.path
        path = self._folder / request.window
        # It was asked for again, but this part is sealed; or it is whole without this part.
        if any(part.request.name == request.name for part in self.collecting.parts) or (path / RUN_FILE).exists():
            return None
        self._reported.append((request, at_ns))
        self._count(request, at_ns)
        try:
            self._open_part(request, path, newest, at_ns)
        except OSError as error:
            self.refuse(request, f"cannot write to {path}: {error.strerror or error}")
            return None
        return path

    def _open_part(self, request: Request, path: Path, newest: int, at_ns: int) -> None:
        """Let the part of this host wait for its last step. Raises OSError if the system refuses."""
        update_host_facts(path, self._host, {_NEWEST: newest})
        until_ns = at_ns if request.now else at_ns + times.PATIENCE_NS
        most_ns, most_steps = at_ns + times.LONGEST_WINDOW_NS, request.after_steps + LONGER_STEPS
        self._open.append(_Open(request, path, newest, until_ns, most_ns, most_steps))

    def refuse(self, request: Request, why: str) -> None:
        """Let another host know why there is no part of this one in its window."""
        refuse_part(self._folder / request.window, self._host, why)

    def lengthen(self, folder: Path, last_step: int) -> None:
        """Let the part of an open window wait for a step; -1 for none."""
        for one in self._open:
            if one.path == folder:
                one.least_last = max(one.least_last, last_step)

    def seal_ready(
        self, accounts: LiveAccounts, at_ns: int, *, ended: bool = False, stacks: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        """Seal the parts whose last step has closed, or that have waited long enough.

        ``ended``: whether the job has ended. ``stacks``: that were sampled meanwhile.
        """
        closed = min(accounts.closed.values(), default=-1)
        for one in list(self._open):
            again = one.start not in (-1, accounts.start)  # its ranks were started again: those steps will not come
            if not again:
                one.start = accounts.start
            if again or ended or at_ns >= one.until_ns or self._is_ready(one, closed):
                self._open.remove(one)
                error = self._seal(one, accounts, stacks, again=again)
                self.collecting.add(Part(one.request, one.path, at_ns, error))
            else:
                one.facts = accounts.window_facts()

    def _is_ready(self, one: _Open, closed: int) -> bool:
        request, newest = one.request, [one.request.step]
        if request.is_asked:  # it holds steps that come on all hosts
            newest_by_host = {str(facts.get("host", "")): facts.get(_NEWEST, -1) for facts in read_host_facts(one.path)}
            if self._waits and not newest_by_host.keys() >= set(request.hosts):
                return False
            newest += [one.newest, *(step for step in newest_by_host.values() if isinstance(step, int))]
        return closed >= max(max(newest) + request.after_steps, one.least_last)

    def _seal(self, one: _Open, accounts: LiveAccounts, stacks: Sequence[Mapping[str, Any]], *, again: bool) -> str:
        """Pack the part of this host; return why that failed, empty if it did not."""
        try:
            if again:  # the rows of the earlier start are still there, as they were held
                files, facts = accounts.run.files, one.facts
            else:
                first, files = accounts.files_since(one.request.first_step)
                facts = accounts.window_facts(first)
            # A host that has made no round since waits for the steps of this one all the same.
            facts = {**facts, _NEWEST: one.newest, **({STACKS: list(stacks)} if stacks else {})}
            self._pack(one.path, files, facts)
        except (OSError, StashtraceError) as problem:
            error = (isinstance(problem, OSError) and problem.strerror) or str(problem)
            for folder in (making_folder(one.path, self._host), part_folder(one.path, self._host)):
                shutil.rmtree(folder, ignore_errors=True)  # half of it would be read as whole
            refuse_part(one.path, self._host, error)
            return error
        return ""

    def _pack(self, window: Path, files: Iterable[StashFile], facts: Mapping[str, Any]) -> None:
        """Pack files of this host into its folder of a window. Raises OSError or StashtraceError if that fails."""
        making = making_folder(window, self._host)
        making.mkdir()
        for file in files:
            write_packed(file, str(making / f"{file.name}.stash"))
        update_host_facts(making, self._host, facts)
        making.rename(part_folder(window, self._host))

    def collect(self, at_ns: int, *, last: bool = False) -> list[Finished]:
        """Return the windows that are whole by now, or given up. ``last``: nothing is waited for any more."""
        finished = self.collecting.round(at_ns, last=last)
        for path in [path for one in finished for path in self._files.pop(one.window, ())]:
            with contextlib.suppress(OSError):  # a host that has not taken the request has no part
                path.unlink(missing_ok=True)
        return finished


def _is_same(request: Request, event: Event) -> bool:
    """Whether a trigger that another host has reported is the one that was seen here."""
    if request.event != event.kind or event.kind in _OWN_KINDS:
        return False
    if event.kind == "stuck":  # a step may close on one host a moment later than on another
        return abs(request.step - event.step) <= 1
    return request.step == event.step or (
        event.kind == "stall_grows" and event.rank >= 0 and request.rank == event.rank
    )
