"""Is there memory for more of a file? Asked while it is read, so that a load ends before the kernel kills it.

Used by ``imported``.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import re
from pathlib import Path

from stashtrace.errors import ImporterError
from stashtrace.units import bytes_text

#: How much is read between two looks.
_LOOK_BYTES = 32 << 20
#: Less than this is left to other programs.
_RESERVE_BYTES = 128 << 20
#: Tables are joined after reading, for which a part of them exists twice.
_JOIN_RATIO = 0.5
#: What a control group may use, and uses: version 2, version 1.
_GROUP_FILES = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        "/sys/fs/cgroup/memory/memory.stat",
    ),
)
HINT = "give fewer files or ranks at a time, or use a machine with more memory"


class Room:
    """Memory that a load has."""

    def __init__(self) -> None:
        self._held_before = held_bytes()
        self._since_look = 0

    def check(self, count: int, file: str) -> None:
        """Look again if enough was read since the last time.

        Raises
        ------
        ImporterError
            If what is kept of the files would not leave room to join it.
        """
        self._since_look += count
        if self._since_look < _LOOK_BYTES:
            return
        self._since_look = 0
        kept, free = max(held_bytes() - self._held_before, 0), free_bytes()
        if free is not None and free < max(_RESERVE_BYTES, _JOIN_RATIO * kept):
            raise ImporterError(
                f"{file} does not fit into memory: {bytes_text(kept)} are kept so far, {bytes_text(free)} are free",
                hint=HINT,
            )


def held_bytes() -> int:
    """Memory of this process; 0 where it cannot be known."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def free_bytes() -> int | None:
    """Memory that can be had: of the machine, or of the container if that is less; None where it cannot be known."""
    told = _read("/proc/meminfo")
    found = re.search(r"^MemAvailable:\s+(\d+) kB", told, re.MULTILINE)
    free = [int(found[1]) << 10] if found else []
    for most, used, details in _GROUP_FILES:
        limits = [_read(path).strip() for path in (most, used)]
        if all(text.isdigit() for text in limits):
            # Pages of files that nobody used lately are given back before anybody is killed.
            cached = re.search(r"^(?:total_)?inactive_file (\d+)", _read(details), re.MULTILINE)
            free.append(max(int(limits[0]) - int(limits[1]) + (int(cached[1]) if cached else 0), 0))
    return min(free, default=None)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii")
    except OSError:
        return ""
