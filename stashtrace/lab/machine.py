"""What a measurement depends on: processor, kernel, load, host (as a hash), and the memory that is free."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stashtrace.calibration.file import host_hash
from stashtrace.loading.foreign_files import free_bytes
from stashtrace.record.host import processor_name


def machine_facts(devices: Sequence[str] = ()) -> dict[str, Any]:
    """The ``[machine]`` table of a calibration file; holds no host name."""
    return {
        "cpu": processor_name(),
        "cores_count": len(os.sched_getaffinity(0)),
        "memory_bytes": int(_first("/proc/meminfo", r"^MemTotal:\s*(\d+)") or 0) * 1024,
        "kernel": platform.release().split("-")[0],
        "devices": list(devices),
        "host_hash": host_hash(platform.node()),
        "load_average": [round(x, 2) for x in os.getloadavg()],
    }


def free_memory_bytes() -> int:
    """Free memory of the machine, or of the control group if that is less; 1 PiB if unknown."""
    return min(free for free in (free_bytes(), group_free_bytes(), 2**50) if free is not None)


def group_free_bytes(listing: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Free memory of the tightest control group around this process; None if none has a limit.

    ``listing``: the groups of this process. ``root``: where the groups are mounted, version 2 or 1.
    """
    free: list[int] = []
    try:
        lines = listing.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top, names = root, ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            top, names = root / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        group = top / path.lstrip("/")
        for folder in (group, *group.parents):
            if folder.is_relative_to(top):
                free += _left_in(folder, *names)
    return min(free, default=None)


def _left_in(group: Path, limit_name: str, used_name: str) -> list[int]:
    try:
        limit, used = ((group / name).read_text(encoding="ascii").strip() for name in (limit_name, used_name))
        details = (group / "memory.stat").read_text(encoding="ascii")
    except OSError:
        return []
    if not limit.isdecimal():
        return []
    # Pages of files that nobody used lately are given back first.
    cached = re.search(r"^(?:total_)?inactive_file (\d+)", details, re.MULTILINE)
    return [max(int(limit) - int(used) + (int(cached[1]) if cached else 0), 0)]


def _first(path: str, pattern: str) -> str:
    try:
        match = re.search(pattern, Path(path).read_text(encoding="utf-8", errors="replace"), re.M)
    except OSError:
        return ""
    return match.group(1).strip() if match else ""
