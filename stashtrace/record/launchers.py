"""The launchers of one job that share a run directory: who has begun, who has ended, whose turn it is to merge.

Each ``stashtrace run`` of such a job has a file of its own, ``launch.HOST.PID.json``, which it alone writes; nobody
waits for anybody. The one that finds all others ended merges. When one ends badly, it merges what is there, since
the others may never end; one that ends later does it again. Exclusive creation of a file is all that is asked of the
file system.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from stashtrace.errors import CaptureError
from stashtrace.run_facts import json_object, sound_facts
from stashtrace.whole_files import write_whole

_PREFIX, _SUFFIX = "launch.", ".json"
_TURN_FILE = "merging"
_END_KEYS = ("end_realtime_ns", "end_monotonic_ns", "exit_code", "signal")


def announce(directory: Path, facts: Mapping[str, Any]) -> Path:
    """Make this launcher's file.

    Raises
    ------
    CaptureError
        If it cannot be written.
    """
    host, pid = str(facts["host"]).replace("/", "_"), facts["launcher_pid"]
    try:
        for number in range(1, 10_000):  # containers may share a name and their process ids
            path = directory / f"{_PREFIX}{host}.{pid}{f'.{number}' if number > 1 else ''}{_SUFFIX}"
            try:
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666))
            except FileExistsError:
                continue
            say(path, facts)
            return path
    except OSError as error:
        raise CaptureError(f"cannot write into run directory {directory}: {error.strerror}") from error
    raise CaptureError(f"run directory {directory} holds too many launchers named {host}.{pid}")


def say(path: Path, facts: Mapping[str, Any]) -> None:
    """Replace the content of a launcher's file in one step."""
    write_whole(path, json.dumps(dict(facts), indent=1) + "\n")


def launchers(directory: Path) -> list[dict[str, Any]]:
    """What the launchers of a directory have said, by begin; a file that is being made is left out."""
    found = []
    for path in directory.glob(f"{_PREFIX}*{_SUFFIX}"):
        with contextlib.suppress(OSError, ValueError):
            found.append(sound_facts(json_object(path.read_text(encoding="utf-8"))))
    return sorted(found, key=lambda facts: (facts.get("begin_realtime_ns") or 0, str(facts.get("host"))))


def still_running(directory: Path) -> list[dict[str, Any]]:
    """Launchers that have not said that they ended, and are not known to be gone."""
    return [facts for facts in launchers(directory) if "exit_code" not in facts and not _is_gone(facts)]


def all_ended(directory: Path, count: int = -1) -> bool:
    """Whether every launcher of a job has ended, as far as its directory tells; ``count``: how many it has."""
    return len(launchers(directory)) >= count and not still_running(directory)


@contextlib.contextmanager
def merging_turn(directory: Path) -> Iterator[bool]:
    """Hold the right to merge a directory; False if another launcher has it now."""
    path = directory / _TURN_FILE
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666)
    except FileExistsError:
        yield False
        return
    try:
        os.write(descriptor, f"{os.uname().nodename} {os.getpid()}\n".encode())
        os.close(descriptor)
        yield True
    finally:
        path.unlink(missing_ok=True)


def end_turns(directory: Path) -> None:
    """Take the right to merge from a launcher that died with it; for a merge by hand."""
    (directory / _TURN_FILE).unlink(missing_ok=True)


def folded(run: Mapping[str, Any], parts: list[dict[str, Any]]) -> dict[str, Any]:
    """``run.json`` of a job from the words of its launchers: ended when all have, badly if one has.

    Parameters
    ----------
    run : mapping
        What ``run.json`` says so far.
    parts : list of dict
        From :func:`launchers`.
    """
    content = {key: value for key, value in run.items() if key not in _END_KEYS}
    content["parts"] = [{k: v for k, v in part.items() if k != "parts"} for part in parts]
    ended = [part for part in parts if "exit_code" in part]
    failed = sorted((p for p in ended if p["exit_code"]), key=lambda p: p.get("end_realtime_ns", 0))
    if failed or len(ended) == len(parts):
        last = max(ended, key=lambda p: p.get("end_realtime_ns", 0))
        worst = failed[0] if failed else last
        content |= {"exit_code": worst["exit_code"], "signal": worst.get("signal", 0)}
        content["end_realtime_ns"] = last.get("end_realtime_ns", 0)
        # The monotonic clocks of hosts have nothing in common; the length of the run is told by the wall clock.
        length = content["end_realtime_ns"] - int(content.get("begin_realtime_ns", content["end_realtime_ns"]))
        content["end_monotonic_ns"] = int(content.get("begin_monotonic_ns", 0)) + max(length, 0)
    return content


def _is_gone(facts: Mapping[str, Any]) -> bool:
    """Whether a launcher of this host and pid namespace is known to have died without a word."""
    same_place = facts.get("place") == own_place()
    return same_place and not os.path.exists(f"/proc/{facts.get('launcher_pid')}")


def own_place() -> str:
    """Boot and pid namespace: where a process id means what it means here."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""
