"""What a measurement depends on: processor, memory, kernel, load, host (as a hash)."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stashtrace.calibration.file import host_hash


def machine_facts(devices: Sequence[str] = ()) -> dict[str, Any]:
    """The ``[machine]`` table of a calibration file; holds no host name."""
    return {
        "cpu": _first("/proc/cpuinfo", r"^model name\s*:\s*(.+)$") or platform.machine(),
        "cores_count": len(os.sched_getaffinity(0)),
        "memory_bytes": int(_first("/proc/meminfo", r"^MemTotal:\s*(\d+)") or 0) * 1024,
        "kernel": platform.release().split("-")[0],
        "devices": list(devices),
        "host_hash": host_hash(platform.node()),
        "load_average": [round(x, 2) for x in os.getloadavg()],
    }


def free_memory_bytes() -> int:
    """What could be allocated now; a large number where the kernel does not say."""
    return int(_first("/proc/meminfo", r"^MemAvailable:\s*(\d+)") or 2**40) * 1024


def _first(path: str, pattern: str) -> str:
    try:
        found = re.search(pattern, Path(path).read_text(encoding="utf-8", errors="replace"), re.M)
    except OSError:
        return ""
    return found.group(1).strip() if found else ""
