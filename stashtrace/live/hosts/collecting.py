"""Put the parts of a window together that hosts have sealed, and say which ranks it lacks.

    host A (the collector)    ──► A.ranks ─┐
    host B                    ──► B.ranks ─┼──► files of all, then run.json: the window is whole
    host C, gone              ──► nothing ─┘    "without ranks 4-5 on node2 (no answer within 20 s)"

A window is a run once its ``run.json`` exists, which the collector writes last: a part that comes later is removed by
its host. If the collector itself is gone, one of the others takes its place.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stashtrace.errors import StashtraceError
from stashtrace.files.run_facts import WINDOW_STEPS, host_file, read_host_facts
from stashtrace.files.whole_files import new_file, read_text, write_whole
from stashtrace.live import times
from stashtrace.live.hosts.requests import Awaited, Request
from stashtrace.live.hosts.shared_ranks import OtherHosts
from stashtrace.live.state import LiveState, read_states
from stashtrace.loading.run_tables import Window
from stashtrace.record.directory import RUN_FILE
from stashtrace.text.units import bytes_text, ranks_named

#: The host that makes this file puts the window together. One that is slow may have been taken for gone, and two would
#: take the parts from each other.
_TAKEN = "taken"


def making_folder(window: Path, host: str) -> Path:
    """Return the folder in which a host packs its part of a window."""
    return window / f"{_file_name(host)}.making"


def part_folder(window: Path, host: str) -> Path:
    """Return the folder of the part of a host that is whole."""
    return window / f"{_file_name(host)}.ranks"


def refuse_part(window: Path, host: str, why: str) -> None:
    """Let the collector know why there is no part of a host; where that cannot be written, it hears nothing."""
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


@dataclass(slots=True)
class Part:
    """The part of this host in a window: sealed at a time, or why it is not."""

    request: Request
    window: Path
    sealed_ns: int
    error: str = ""
    #: Whether this host puts the window together.
    is_ours: bool = False
    #: The hosts whose parts are waited for, and the collector.
    others: Awaited = field(init=False)
    #: The file of another host that puts it together, and when it was first seen.
    taken: tuple[int, int] = (-1, -1)
    taken_ns: int = -1

    def __post_init__(self) -> None:
        self.others = Awaited(self.sealed_ns, times.PART_SILENT_NS)


@dataclass(frozen=True, slots=True)
class Finished:
    """A window that is whole, or that will not be.

    ``path``: its folder, empty for none. ``text``: what there is to say of it, empty where another host says it.
    ``last_step``: that it holds.
    """

    request: Request
    window: Path
    path: str
    text: str = ""
    last_step: int = -1


@dataclass(slots=True)
class _Steps:
    """When the ranks of the part of a host began which steps."""

    host: str
    steps: dict[int, Window]

    @property
    def first(self) -> int:
        return min(self.steps, default=0)

    @property
    def last(self) -> int:
        return max(self.steps, default=-1)

    @property
    def ranks(self) -> set[int]:
        return {rank for step in self.steps.values() for rank in step.begins_ns}


class Collecting:
    """The windows whose part of this host is sealed."""

    def __init__(self, directory: Path, facts: dict[str, Any], host: str, others: OtherHosts | None) -> None:
        self._directory = directory
        self._facts = facts
        self._host = host
        self._others = others
        #: Windows that are not whole yet.
        self.parts: list[Part] = []

    def add(self, part: Part) -> None:
        """Take the part of this host."""
        part.is_ours = part.request.collector == self._host
        self.parts.append(part)

    def round(self, at_ns: int, *, last: bool = False) -> list[Finished]:
        """Return the windows that are whole by now, or given up. ``last``: nothing is waited for any more."""
        states: dict[str, LiveState] = {}
        if self.parts:
            with contextlib.suppress(StashtraceError):
                run_id = str(self._facts.get("run_id", ""))
                states = {state.host: state for state in read_states(self._directory) if state.run_id == run_id}
        found = [(one, self._finished(one, states, at_ns, last=last)) for one in self.parts]
        self.parts = [one for one, finished in found if finished is None]
        return [finished for _, finished in found if finished is not None]

    def _finished(self, one: Part, states: dict[str, LiveState], at_ns: int, *, last: bool) -> Finished | None:
        request, window = one.request, one.window
        if (window / RUN_FILE).exists():  # another host has put it together: what is left of ours came too late
            shutil.rmtree(part_folder(window, self._host), ignore_errors=True)
            return Finished(request, window, str(window))
        if not window.is_dir():
            return self._failed(one, f"its folder is gone: {window}") if one.is_ours else Finished(request, window, "")
        if not one.is_ours:
            if not one.others.why_not(request.collector, states.get(request.collector), at_ns, times.COLLECTOR_NS):
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
            return self._put_together(one, states, missing, at_ns)
        except OSError as error:
            return self._failed(one, error.strerror or str(error))

    def _failed(self, one: Part, why: str) -> Finished:
        """Remove a window: half of it would be read as a whole one."""
        shutil.rmtree(one.window, ignore_errors=True)
        return Finished(one.request, one.window, "", failure_text(one.request, why), one.request.step)

    def _takes(self, one: Part, at_ns: int) -> bool:
        """Return True if it is for this host to put a window together. Raises OSError if the system refuses."""
        path = one.window / _TAKEN
        with contextlib.suppress(FileNotFoundError):
            facts = path.stat()
            if one.taken != (facts.st_ino, facts.st_mtime_ns):
                one.taken, one.taken_ns = (facts.st_ino, facts.st_mtime_ns), at_ns
            if at_ns - one.taken_ns < times.TAKEN_NS:
                return False
            path.unlink(missing_ok=True)
        with contextlib.suppress(FileExistsError):  # another host was first
            os.close(new_file(path))
            return True
        return False

    def _missing(self, one: Part, states: dict[str, LiveState], at_ns: int, *, last: bool) -> dict[str, str] | None:
        """Return the hosts without a part and why; None while one is waited for."""
        missing, patience_ns = {}, times.PARTS_NOW_NS if one.request.now else times.PARTS_NS
        for host in one.request.hosts:
            if part_folder(one.window, host).is_dir():
                continue
            why = (one.error or "its part is gone") if host == self._host else _text_of(_refusal(one.window, host))
            missing[host] = why or one.others.why_not(host, states.get(host), at_ns, patience_ns, last=last)
            if not missing[host]:
                return None
        return missing

    def _put_together(self, one: Part, states: dict[str, LiveState], missing: dict[str, str], at_ns: int) -> Finished:
        """Take the parts over, and write ``run.json``. Raises OSError if the system refuses."""
        request, window = one.request, one.window
        parts = [_read_part(window, host) for host in request.hosts if host not in missing]
        parts, left_out = _fitting(parts, request, self._host)
        missing |= left_out
        if not parts:
            whys = [why if len(request.hosts) == 1 else f"{host}: {why}" for host, why in missing.items()]
            return self._failed(one, "; ".join(whys))
        for host in missing:
            shutil.rmtree(part_folder(window, host), ignore_errors=True)
            for path in (_refusal(window, host), window / host_file(host)):
                path.unlink(missing_ok=True)
        for part in parts:
            take_in(window, part_folder(window, part.host))
        facts = {**self._facts, "window_of": str(self._facts.get("run_id", ""))}
        write_whole(window / RUN_FILE, json.dumps(facts))
        (window / _TAKEN).unlink(missing_ok=True)
        size = sum(file.stat().st_size for file in window.glob("*.stash"))
        first, last = max(part.first for part in parts), min(part.last for part in parts)
        ranks = sorted(set().union(*(part.ranks for part in parts)))
        whose = f" of {ranks_named(ranks)}" if len(request.hosts) > 1 and ranks else ""
        what = (
            f"steps {first} to {last}{whose} are" if last >= 0 else "what was recorded before the first step ended is"
        )
        # A host whose job has ended was not asked.
        ended = {host: state for host, state in states.items() if state.ended and host not in request.hosts}
        missing |= {host: one.others.why_not(host, state, at_ns, times.PARTS_NS) for host, state in ended.items()}
        lacking = self._lacking(states, missing)
        text = f"{what} kept in {window} ({bytes_text(size)})"
        return Finished(request, window, str(window), f"{text}, without {lacking}" if lacking else text, last)

    def _lacking(self, states: dict[str, LiveState], missing: dict[str, str]) -> str:
        """Say which ranks are not in a window, and why."""
        said = []
        for host, why in missing.items():
            known = states[host].ranks if host in states else {}  # some are of other hosts: it waited for them
            ranks = sorted(int(rank) for rank, state in known.items() if int(state.get("last_step", -1)) >= 0)
            who = f"{ranks_named(ranks)} on {host}" if ranks else f"the ranks of {host}"
            said.append(f"{who} ({why})")
        rest = "" if self._others is None else self._others.lacking(except_of=missing)
        return "; ".join([*said, *([rest] if rest else [])])


def failure_text(request: Request, why: str) -> str:
    """Say why there is no window."""
    if request.is_asked:
        return f"no window is sealed as asked: {why}"
    return f"the window {request.window} could not be written: {why}"


def _text_of(path: Path) -> str:
    with contextlib.suppress(OSError):
        return read_text(path, errors="replace") or "it has none"
    return ""


def _read_part(window: Path, host: str) -> _Steps:
    facts = read_host_facts(part_folder(window, host))
    known = (Window.read(text, "0") for one in facts for text in one.get(WINDOW_STEPS, ()))
    return _Steps(host, {step.first_step: step for step in known if step is not None})


def _fitting(parts: Sequence[_Steps], request: Request, own: str) -> tuple[list[_Steps], dict[str, str]]:
    """Divide parts into those that have steps together, and hosts whose part has none of these, with why.

    The step of a trigger counts more than ranks: a part that begins behind it is left out, unless it is the only one.
    Before the first step of all has closed, the parts have what the ranks did so far.
    """
    if not any(one.steps for one in parts):
        return list(parts), {}
    kept: list[_Steps] = []
    left_out: dict[str, str] = {}
    first, last = -1, -1
    for one in sorted(parts, key=lambda one: (one.host != own, one.host)):
        if not one.steps:
            left_out[one.host] = "no step of it has closed"
        elif kept and (one.first > last or one.last < first or (not request.now and one.first > request.step >= first)):
            left_out[one.host] = f"it holds steps {one.first} to {one.last} alone"
        else:
            kept.append(one)
            first = max(first, one.first)
            last = one.last if last < 0 else min(last, one.last)
    return kept, left_out
