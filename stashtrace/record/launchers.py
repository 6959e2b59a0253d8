"""The launchers of one job that share a run directory: which have begun, which have ended, which one merges.

Each ``stashtrace run`` of the job has a file of its own, ``launch.HOST.PID.json``, which no other writes. None waits
for another. The last one to end merges. One that ends with an error merges what is there, since the others may never
end; one that ends later merges again. Of the file system this needs exclusive creation of a file, and nothing else.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from stashtrace.errors import CaptureError
from stashtrace.run_facts import read_facts
from stashtrace.whole_files import new_file, write_whole

_PREFIX, _SUFFIX = "launch.", ".json"
_TURN_FILE = "merging"
#: Fact of a run or launcher while it records on local scratch: where.
RECORDS = "records"
_END_KEYS = ("end_realtime_ns", "end_monotonic_ns", "exit_code", "signal")


def announce(directory: Path, facts: Mapping[str, Any]) -> Path:
    """Make this launcher's file and return its path.

    Raises CaptureError if it cannot be written.
    """
    host, pid = str(facts["host"]).replace("/", "_"), facts["launcher_pid"]
    try:
        for number in range(1, 10_000):  # containers may share host name and process ids
            path = directory / f"{_PREFIX}{host}.{pid}{f'.{number}' if number > 1 else ''}{_SUFFIX}"
            try:
                os.close(new_file(path, 0o666))
            except FileExistsError:
                continue
            say(path, facts)
            return path
    except OSError as error:
        raise CaptureError(f"cannot write into run directory {directory}: {error.strerror}") from error
    raise CaptureError(f"run directory {directory} holds too many launchers named {host}.{pid}")


def say(path: Path, facts: Mapping[str, Any]) -> None:
    """Replace the content of a launcher's file, in one step."""
    write_whole(path, json.dumps(dict(facts), indent=1) + "\n")


def launchers(directory: Path) -> list[dict[str, Any]]:
    """Return the content of the launchers' files, in order of begin; files that are being made are left out."""
    parts = []
    for path in directory.glob(f"{_PREFIX}*{_SUFFIX}"):
        with contextlib.suppress(OSError, ValueError):
            parts.append(read_facts(path))
    return sorted(parts, key=lambda facts: (facts.get("begin_realtime_ns") or 0, str(facts.get("host"))))


def still_running(directory: Path) -> list[dict[str, Any]]:
    """Return the launchers that have not ended, as far as this host can tell."""
    return [facts for facts in launchers(directory) if "exit_code" not in facts and not is_gone(facts)]


def all_ended(directory: Path, count: int = -1) -> bool:
    """Return True if all launchers in a directory have ended, and there are at least ``count`` of them."""
    return len(launchers(directory)) >= count and not still_running(directory)


@contextlib.contextmanager
def merging_turn(directory: Path) -> Iterator[bool]:
    """Hold the right to merge a directory; yield False if another launcher holds it."""
    path = directory / _TURN_FILE
    try:
        descriptor = new_file(path, 0o666)
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
    """Release the right to merge that a launcher held when it died; for a merge by hand."""
    (directory / _TURN_FILE).unlink(missing_ok=True)


def folded(run: Mapping[str, Any], parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the ``run.json`` of a job: it has ended when all launchers have, and failed if one has failed.

    ``run``: content of ``run.json`` so far. ``parts``: from :func:`launchers`.
    """
    content = {key: value for key, value in run.items() if key not in (*_END_KEYS, RECORDS)}
    content["parts"] = [{k: v for k, v in part.items() if k != "parts"} for part in parts]
    ended = [part for part in parts if "exit_code" in part]
    failed = sorted((p for p in ended if p["exit_code"]), key=lambda p: p.get("end_realtime_ns", 0))
    if failed or len(ended) == len(parts):
        last = max(ended, key=lambda p: p.get("end_realtime_ns", 0))
        worst = failed[0] if failed else last
        content |= {"exit_code": worst["exit_code"], "signal": worst.get("signal", 0)}
        content["end_realtime_ns"] = last.get("end_realtime_ns", 0)
        # The monotonic clocks of hosts are unrelated, so the wall clock tells the length of the run.
        length_ns = content["end_realtime_ns"] - int(content.get("begin_realtime_ns", content["end_realtime_ns"]))
        content["end_monotonic_ns"] = int(content.get("begin_monotonic_ns", 0)) + max(length_ns, 0)
    return content


def is_gone(facts: Mapping[str, Any]) -> bool:
    """Return True for a launcher of this host and pid namespace whose process does not exist any more."""
    return facts.get("place") == own_place() and not os.path.exists(f"/proc/{facts.get('launcher_pid')}")


def is_running(facts: Mapping[str, Any]) -> bool:
    """Return True for a launcher of this host and pid namespace that has not ended."""
    is_ours = facts.get("place") == own_place() and "launcher_pid" in facts
    return is_ours and "end_realtime_ns" not in facts and not is_gone(facts)


def own_place() -> str:
    """Return the boot id and pid namespace, within which a process id means the same; empty if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""
