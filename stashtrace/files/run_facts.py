"""Read facts of a process, a host or a run from JSON, without those of the wrong type.

Used where the head of a .stash, a ``run.json``, the file of a launcher or a host, or the description of a store is
read. A checksum proves that a text was not damaged by chance, but not that the recorder wrote it. After this check,
callers can rely on the type of each fact.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from stashtrace.files.whole_files import read_whole

#: Name of the inventory of GPUs among the facts of a launcher.
GPU_INVENTORY = "gpu_inventory"
#: Name of the looks at its processes among the facts of a run: what they did when the job stood still.
PEEKS = "looks"
#: Name of the steps of a window among the facts of a host: when each of its ranks began each of them.
WINDOW_STEPS = "window_steps"
#: Name of what was sampled of processes of a host in a window: functions of Python, and when threads were in them.
STACKS = "python_stacks"
_HOST_FILE = "host.{host}.json"
_HIGHEST = (1 << 62) - 1
#: Process ids of Linux.
_HIGHEST_PID = (1 << 31) - 1


def _is_whole(value: Any, lowest: int = -_HIGHEST, highest: int = _HIGHEST) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and lowest <= value <= highest


def _is_pid(value: Any) -> bool:
    return _is_whole(value, -1, _HIGHEST_PID)


def _is_number(value: Any) -> bool:
    return _is_whole(value) or (isinstance(value, float) and math.isfinite(value))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_words(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_variables(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_text, value.values()))


def _is_losses(value: Any) -> bool:
    """Rows of (collector, reason, severity, lost_count, advice)."""
    if not isinstance(value, list) or not all(isinstance(row, list) and len(row) == 5 for row in value):
        return False
    return all(_is_words([row[0], row[1], row[4]]) and _is_whole(row[2]) and _is_whole(row[3]) for row in value)


def _is_count(value: Any) -> bool:
    return _is_whole(value, 0)


def _is_truth(value: Any) -> bool:
    return isinstance(value, bool)


#: What an inventory of GPUs says of a device, and of the way between two.
_DEVICE_TYPES: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("name", "bus"), _is_text),
    **dict.fromkeys(
        (
            "index",
            "memory_bytes",
            "pcie_most_generation",
            "pcie_width",
            "pcie_most_width",
            "ecc_uncorrected_count",
            "nvlink_version",
            "nvlinks_count",
            "nvswitch_links_count",
        ),
        _is_count,
    ),
    "ecc": _is_truth,
}
_WAY_TYPES: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("first", "second", "nvlinks_count"), _is_count),
    "path": _is_text,
}


def _is_inventory(value: Any) -> bool:
    """Driver, devices and ways between them, or the reason why there are none."""
    if not isinstance(value, dict):
        return False
    if "error" in value:
        return _is_text(value["error"])
    return (
        all(_is_text(value.get(name, "")) for name in ("driver", "cuda"))
        and _are_facts(value.get("devices"), _DEVICE_TYPES, ("index",))
        and _are_facts(value.get("ways", []), _WAY_TYPES, ("first", "second"))
    )


def _are_facts(value: Any, types: Mapping[str, Callable[[Any], bool]], needed: tuple[str, ...]) -> bool:
    """A list of objects, each with the facts that are needed and no fact of a wrong type."""
    return isinstance(value, list) and all(
        isinstance(one, dict)
        and all(name in one for name in needed)
        and all(types[name](fact) for name, fact in one.items() if name in types)
        for one in value
    )


def _are_peeks(value: Any) -> bool:
    """Peeks by the host and the process id of what was looked at; ``record.peek.model`` reads the text."""
    return _are_facts(value, {"host": _is_text, "pid": _is_pid, "look": _is_text}, ("host", "pid", "look"))


def _are_stacks(value: Any) -> bool:
    """Of each process: rows of (thread, begin, end, function, line, depth), on CLOCK_MONOTONIC."""
    types = {"host": _is_text, "pid": _is_pid, "functions": _is_words, "rows": _are_stack_rows, "period_ns": _is_count}
    return _are_facts(value, types, ("host", "pid", "functions", "rows")) and all(
        row[3] < len(one["functions"]) for one in value for row in one["rows"]
    )


def _are_stack_rows(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(row, list) and len(row) == 6 and all(_is_whole(number, 0) for number in row) for row in value
    )


_TYPES: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(
        (
            "run_id",
            "host",
            "boot_id",
            "netns",
            "pidns",
            "exe",
            "clock",
            "version",
            "place",
            "job",
            "working_directory",
            "commit",
            "outlived_by",
            "cpu",
        ),
        _is_text,
    ),
    **dict.fromkeys(("pid", "ppid", "launcher_pid"), _is_pid),
    **dict.fromkeys(
        (
            "incarnation",
            "parent_incarnation",
            "start_ticks",
            "start_monotonic_ns",
            "start_realtime_ns",
            "begin_monotonic_ns",
            "begin_realtime_ns",
            "end_monotonic_ns",
            "end_realtime_ns",
            "exit_code",
            "signal",
            "launchers_count",
            "cores_count",
            "memory_kills_count",
            "memory_limit_bytes",
        ),
        _is_whole,
    ),
    **dict.fromkeys(("argv", "command", "collectors", "scrubbed"), _is_words),
    "tick_hz": _is_number,
    "env": _is_variables,
    "losses": _is_losses,
    GPU_INVENTORY: _is_inventory,
    PEEKS: _are_peeks,
    WINDOW_STEPS: _is_words,
    STACKS: _are_stacks,
}


def json_object(text: str | bytes) -> dict[str, Any]:
    """Parse a JSON object.

    Raises ValueError if the text is no JSON object, is nested too deeply, or holds a number of too many digits.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("brackets inside brackets without end") from None
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value


def read_facts(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the sound facts of a file; raise OSError if it cannot be read, ValueError if it holds no JSON object."""
    return valid_facts(json_object(read_whole(path)))


def host_file(host: str) -> str:
    """Return the name of the file with what the follower of a host alone knows of its run; ``*`` for all hosts."""
    return _HOST_FILE.format(host=host.replace("/", "_"))


def read_host_facts(directory: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return the facts of each host of a run or window; files that are damaged or gone by now are left out."""
    found = []
    for path in sorted(Path(directory).glob(host_file("*"))):
        with contextlib.suppress(OSError, ValueError):
            found.append(read_facts(path))
    return found


def valid_facts(given: Mapping[str, Any]) -> dict[str, Any]:
    """The facts that have the type declared here; facts that are not declared here are kept."""
    facts = {name: value for name, value in given.items() if name not in _TYPES or _TYPES[name](value)}
    if "parts" in facts:  # a run.json of each of several launchers
        parts = facts["parts"] if isinstance(facts["parts"], list) else []
        inner = ({k: v for k, v in part.items() if k != "parts"} for part in parts if isinstance(part, dict))
        facts["parts"] = [valid_facts(part) for part in inner]
    return facts
