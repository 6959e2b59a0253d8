"""Tell whether the process that writes a file still lives. The merge and `stashtrace status` ask.

A recorder keeps its ring mapped as long as it lives, so on this host the ring's inode is in /proc/*/maps, also
through containers and pid namespaces. For another host only the age of the file is known.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass

from stashtrace.format.stash_file import StashFile

_FOREIGN_AGE_S = 30.0


@dataclass(frozen=True, slots=True)
class LiveRings:
    """Rings that processes of this host have mapped."""

    #: Of this host.
    boot_id: str
    #: As /proc/PID/maps shows them: device and inode -> process, as this host numbers it.
    pids: Mapping[tuple[int, int, int], int]

    @classmethod
    def look(cls) -> LiveRings:
        """Read /proc once. Processes of other users whose maps may not be read are left out."""
        pids = [entry for entry in os.listdir("/proc") if entry.isdigit()]
        return cls(own_boot_id(), {ring: int(pid) for pid in pids for ring in _rings_of(pid)})

    def holds(self, stash: StashFile) -> bool:
        """Whether the writer of this file is still at work, or may be."""
        try:
            facts = os.stat(stash.ring_path)
        except OSError:
            return False  # the process ended in order, or its file was merged
        if self.is_of_host(stash):
            return self._pid(facts) >= 0
        newest = max(facts.st_mtime, os.stat(stash.path).st_mtime)
        return time.time() - newest < _FOREIGN_AGE_S

    def is_of_host(self, stash: StashFile) -> bool:
        """Whether the writer of this file runs, or ran, on this host since its last start."""
        return bool(self.boot_id) and str(stash.metadata.get("boot_id", "")).startswith(self.boot_id)

    def pid_of(self, stash: StashFile) -> int:
        """Return this host's number of the living writer of a file; -1 if it is of another host, or has ended."""
        try:
            return self._pid(os.stat(stash.ring_path)) if self.is_of_host(stash) else -1
        except OSError:
            return -1

    def _pid(self, facts: os.stat_result) -> int:
        return self.pids.get((os.major(facts.st_dev), os.minor(facts.st_dev), facts.st_ino), -1)


def own_boot_id() -> str:
    """Boot id of this host, empty if it cannot be read."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def _rings_of(pid: str) -> list[tuple[int, int, int]]:
    rings = []
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.endswith(".ring\n"):
                    _range, _mode, _offset, device, inode = line.split(maxsplit=5)[:5]
                    major, _, minor = device.partition(":")
                    rings.append((int(major, 16), int(minor, 16), int(inode)))
    except OSError:  # it ended meanwhile, or belongs to somebody else
        return rings
    return rings
