"""Put the parts of a window together that hosts have sealed for a trigger, and say which ranks it lacks.

    host A (saw the trigger)  ──► A.ranks ─┐
    host B                    ──► B.ranks ─┼──► files of all, then run.json: the window is whole
    host C, gone              ──► nothing ─┘    "without ranks 4-5: node2 has not answered within 20 s"

A window is a run once its ``run.json`` lies there, which the collecting host writes last: a part that comes later is
removed by its own host. If the collecting host itself is gone, one of the others takes its place.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stashtrace.errors import StashtraceError
from stashtrace.live.capture import PATIENCE_NS, Request, Sealed
from stashtrace.live.hosts.asking import Heard
from stashtrace.live.hosts.other_hosts import OtherHosts, ranks_named
from stashtrace.live.state import LiveState, read_states
from stashtrace.loading.run_tables import Window
from stashtrace.record.directory import RUN_FILE
from stashtrace.run_facts import WINDOW_STEPS, host_file, read_host_facts
from stashtrace.whole_files import new_file, read_text, write_whole

#: Other hosts have so long for their parts once this host has sealed its own: rounds are up to 10 s apart, and a step
#: closes a second or two after it ended. Where no step is to come, each of them can seal at once.
_WAIT_NS, _WAIT_NOW_NS = 20_000_000_000, 4_000_000_000
#: Another host takes the place of a collecting one that has not put a window together for so long.
_LONGEST_NS = 2 * PATIENCE_NS
#: The host that makes this file puts the window together. One that is slow may have been taken for gone, and two would
#: take the parts from each other.
_TAKEN = "taken"
#: That takes a moment: a host that has not done it for so long is gone, and another one does it.
_TAKEN_NS = PATIENCE_NS


def making_folder(window: Path, host: str) -> Path:
    """Return the folder in which a host packs its part of a window."""
    return window / f"{_file_name(host)}.making"


def part_folder(window: Path, host: str) -> Path:
    """Return the folder of the part of a host that is whole."""
    return window / f"{_file_name(host)}.ranks"


def refuse_part(window: Path, host: str, why: str) -> None:
    """Tell the collecting host why there is no part of a host; where that cannot be written, it hears nothing."""
    with contextlib.suppress(OSError):
        write_whole(_refusal(window, host), why)


def take_in(window: Path, part: Path) -> None:
    """Take a part over into its window. Raises OSError if the system refuses."""
    for file in sorted(part.iterdir()):
        file.replace(window / file.name)
    part.rmdir()


def _file_name(host: str) -> str:
    return host.replace("/", "_")


def _refusal(window: Path, host: str) -> Path:
    return window / f"{_file_name(host)}.refused"


@dataclass(frozen=True, slots=True)
class Part:
    """The part of this host in a window: sealed, or why it is not."""

    request: Request
    window: Path
    sealed_ns: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class Finished:
    """A window that is whole, or that will not be.

    ``sealed``: what there is to say of it, None where another host says it. ``path``: its folder, empty for none.
    ``lacking``: which ranks it lacks, and why.
    """

    request: Request
    window: Path
    path: str
    sealed: Sealed | None = None
    ranks: tuple[int, ...] = ()
    lacking: str = ""


@dataclass(slots=True)
class _Waiting:
    part: Part
    is_ours: bool
    heard: Heard = field(default_factory=Heard)
    #: The file of another host that puts it together, and when it was first seen.
    taken: tuple[int, int] = (-1, -1)
    taken_ns: int = -1


@dataclass(slots=True)
class _Told:
    """What the part of a host holds: when its ranks began which steps."""

    host: str
    folder: Path
    steps: dict[int, Window]
    first: int
    last: int

    @property
    def ranks(self) -> set[int]:
        return {rank for step in self.steps.values() for rank in step.begins_ns}


class Collecting:
    """The windows of triggers whose part of this host is sealed.

    ``directory``: of the run. ``facts``: of its ``run.json``. ``host``: name of this one. ``others``: what others tell.
    """

    def __init__(self, directory: Path, facts: dict[str, Any], host: str, others: OtherHosts | None) -> None:
        self._directory = directory
        self._facts = facts
        self._host = host
        self._others = others
        self._waiting: list[_Waiting] = []
        #: Requests of this host to others that they may not have taken yet, by their name.
        self._files: dict[str, Sequence[Path]] = {}

    @property
    def is_on(self) -> bool:
        """Whether a window is not whole yet."""
        return bool(self._waiting)

    def begin(self, request: Request, files: Sequence[Path]) -> None:
        """Remember what other hosts were asked for."""
        self._files[request.name] = files

    def knows(self, request: Request) -> bool:
        """Return whether the part of this host in a window is sealed."""
        return any(one.part.request.name == request.name for one in self._waiting)

    def with_step(self, step: int) -> str:
        """Return the folder of a window that is not whole yet and will hold a step; empty if there is none."""
        for one in self._waiting:
            request = one.part.request
            if step <= request.newest + (0 if request.now else request.after_steps):
                return str(one.part.window)
        return ""

    def add(self, part: Part) -> None:
        """Take the part of this host."""
        self._waiting.append(_Waiting(part, part.request.collector == self._host))

    def look(self, at_ns: int, *, last: bool = False) -> list[Finished]:
        """Return the windows that are whole by now, or given up. ``last``: nothing is waited for any more."""
        if not self._waiting:
            return []
        states: dict[str, LiveState] = {}
        with contextlib.suppress(StashtraceError):
            states = {state.host: state for state in read_states(self._directory)}
        found = []
        for one in list(self._waiting):
            if finished := self._finished(one, states, at_ns, last=last):
                self._waiting.remove(one)
                for path in self._files.pop(one.part.request.name, ()):
                    with contextlib.suppress(OSError):
                        path.unlink(missing_ok=True)
                found.append(finished)
        return found

    def _finished(self, one: _Waiting, states: dict[str, LiveState], at_ns: int, *, last: bool) -> Finished | None:
        request, window = one.part.request, one.part.window
        if (window / RUN_FILE).exists():  # another host has put it together: what is left of ours came too late
            shutil.rmtree(part_folder(window, self._host), ignore_errors=True)
            return Finished(request, window, str(window))
        if not window.is_dir():
            gone = Sealed(window.name, "", -1, request.step, 0, f"its folder is gone: {window}")
            return Finished(request, window, "", gone if one.is_ours else None)
        if not one.is_ours:
            why = one.heard.why_missing(request.collector, states.get(request.collector), at_ns)
            if not why and at_ns - one.part.sealed_ns < _LONGEST_NS:
                return Finished(request, window, "") if last else None
            one.is_ours = True
        missing = self._missing(one, states, at_ns, last=last)
        if missing is None:
            return None
        try:
            if not self._takes(one, at_ns):
                return Finished(request, window, "") if last else None
            if (window / RUN_FILE).exists():  # another host was done meanwhile
                (window / _TAKEN).unlink(missing_ok=True)
                return Finished(request, window, str(window))
            return self._put_together(one.part, states, missing)
        except OSError as error:
            shutil.rmtree(window, ignore_errors=True)  # half a window would be read as a whole one
            sealed = Sealed(window.name, "", -1, request.step, 0, error.strerror or str(error))
            return Finished(request, window, "", sealed)

    def _takes(self, one: _Waiting, at_ns: int) -> bool:
        """Return True if it is for this host to put a window together. Raises OSError if the system refuses."""
        path = one.part.window / _TAKEN
        with contextlib.suppress(FileNotFoundError):
            facts = path.stat()
            if one.taken != (facts.st_ino, facts.st_mtime_ns):
                one.taken, one.taken_ns = (facts.st_ino, facts.st_mtime_ns), at_ns
            if at_ns - one.taken_ns < _TAKEN_NS:
                return False
            path.unlink(missing_ok=True)
        with contextlib.suppress(FileExistsError):  # another host was first
            os.close(new_file(path))
            return True
        return False

    def _missing(self, one: _Waiting, states: dict[str, LiveState], at_ns: int, *, last: bool) -> dict[str, str] | None:
        """Return the hosts without a part and why; None while one is waited for."""
        request, window, missing = one.part.request, one.part.window, {}
        wait_ns = _WAIT_NOW_NS if request.now else _WAIT_NS
        for host in request.hosts:
            if part_folder(window, host).is_dir():
                continue
            if host == self._host:
                missing[host] = one.part.error or "its part is gone"
            elif why := _text_of(_refusal(window, host)) or one.heard.why_missing(host, states.get(host), at_ns):
                missing[host] = why
            elif last or at_ns - one.part.sealed_ns >= wait_ns:
                missing[host] = f"no answer within {wait_ns // 10**9} s"
            else:
                return None
        return missing

    def _put_together(self, part: Part, states: dict[str, LiveState], missing: dict[str, str]) -> Finished:
        """Take the parts over, and write ``run.json``. Raises OSError if the system refuses."""
        request, window = part.request, part.window
        told = [_read_part(part_folder(window, host), host) for host in request.hosts if host not in missing]
        told, left_out = _fitting(told, request, self._host)
        missing = {**missing, **left_out}
        if not told:
            why = "; ".join(f"{host}: {reason}" for host, reason in missing.items())
            shutil.rmtree(window, ignore_errors=True)
            return Finished(request, window, "", Sealed(window.name, "", -1, request.step, 0, why))
        for host in missing:
            shutil.rmtree(part_folder(window, host), ignore_errors=True)
            for path in (_refusal(window, host), window / host_file(host)):
                path.unlink(missing_ok=True)
        for one in told:
            take_in(window, one.folder)
        facts = {**self._facts, "window_of": str(self._facts.get("run_id", ""))}
        write_whole(window / RUN_FILE, json.dumps(facts))
        (window / _TAKEN).unlink(missing_ok=True)
        ranks = sorted(set().union(*(one.ranks for one in told)))
        size = sum(file.stat().st_size for file in window.glob("*.stash"))
        first, last = max(one.first for one in told), min(one.last for one in told)
        sealed = Sealed(window.name, str(window), first, last, size)
        return Finished(request, window, str(window), sealed, tuple(ranks), self._lacking(states, missing))

    def _lacking(self, states: dict[str, LiveState], missing: dict[str, str]) -> str:
        """Say which ranks are not in a window, and why."""
        said = []
        for host, why in missing.items():
            known = states[host].ranks if host in states else {}  # some are of other hosts: it waited for them
            ranks = sorted(int(rank) for rank, own in known.items() if int(own.get("last_step", -1)) >= 0)
            who = f"{ranks_named(ranks)} on {host}" if ranks else f"the ranks of {host}"
            said.append(f"{who} ({why})")
        rest = "" if self._others is None else self._others.lacking(besides=missing)
        return "; ".join([*said, *([rest] if rest else [])])


def _text_of(path: Path) -> str:
    with contextlib.suppress(OSError):
        return read_text(path, errors="replace") or "it has none"
    return ""


def _read_part(folder: Path, host: str) -> _Told:
    told = [text for facts in read_host_facts(folder) for text in facts.get(WINDOW_STEPS, ())]
    steps = {step.first_step: step for text in told if (step := Window.read(text, "0")) is not None}
    return _Told(host, folder, steps, min(steps, default=-1), max(steps, default=-1))


def _fitting(told: Iterable[_Told], request: Request, own: str) -> tuple[list[_Told], dict[str, str]]:
    """Divide parts into those that have steps together, and hosts whose part has none of these, with why.

    The step of a trigger counts more than ranks: a part that begins behind it is left out, unless it is the only one.
    """
    kept: list[_Told] = []
    left_out: dict[str, str] = {}
    first, last = -1, -1
    for one in sorted(told, key=lambda one: (one.host != own, one.host)):
        if not one.steps:
            left_out[one.host] = "no step of it has closed"
        elif kept and (one.first > last or one.last < first or (not request.now and one.first > request.step >= first)):
            left_out[one.host] = f"it holds steps {one.first} to {one.last} alone"
        else:
            kept.append(one)
            first = max(first, one.first)
            last = one.last if last < 0 else min(last, one.last)
    return kept, left_out
