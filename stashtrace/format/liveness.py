"""Check whether the process that writes a file still lives. The merge and `stashtrace live` ask.

A recorder keeps its ring mapped as long as it lives, so on this host the ring's inode is in /proc/*/maps, also
through containers and pid namespaces. For another host only the age of the file is known.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping

from stashtrace.format.stash_file import StashFile

_FOREIGN_AGE_S = 30.0
_RING_END = b".ring\n"
#: Major and minor number of its device, and its inode.
_Ring = tuple[int, int, int]


class LiveRings:
    """Rings that processes of this host have mapped.

    ``boot_id``: of this host. ``pids``: as /proc/PID/maps shows them, device and inode -> process, as this host numbers
    it; None to read /proc as far as answers need it, each process once. Processes of other users whose maps may not be
    read are left out.
    """

    def __init__(self, boot_id: str, pids: Mapping[_Ring, int] | None = None) -> None:
        self.boot_id = boot_id
        self._pids = dict(pids or {})
        self._is_whole = pids is not None

    @classmethod
    def now(cls) -> LiveRings:
        """Begin to examine the processes of this host."""
        return cls(own_boot_id())

    def holds(self, stash: StashFile) -> bool:
        """Whether the writer of this file is still at work, or may be."""
        try:
            facts = os.stat(stash.ring_path)
        except OSError:
            return False  # the process ended in order, or its file was merged
        if self.is_of_host(stash):
            return self._pid(facts, stash) >= 0
        newest = max(facts.st_mtime, os.stat(stash.path).st_mtime)
        return time.time() - newest < _FOREIGN_AGE_S

    def is_of_host(self, stash: StashFile) -> bool:
        """Whether the writer of this file runs, or ran, on this host since its last start."""
        return bool(self.boot_id) and str(stash.metadata.get("boot_id", "")).startswith(self.boot_id)

    def pid_of(self, stash: StashFile) -> int:
        """Return this host's number of the living writer of a file; -1 if it is of another host, or has ended."""
        try:
            return self._pid(os.stat(stash.ring_path), stash) if self.is_of_host(stash) else -1
        except OSError:
            return -1

    def _pid(self, facts: os.stat_result, stash: StashFile) -> int:
        ring = os.major(facts.st_dev), os.minor(facts.st_dev), facts.st_ino
        if ring not in self._pids and not self._is_whole:
            # Where the writer sees the same numbers of processes as we do, it has the one that its file names, and the
            # maps of all others, which may be thousands, need not be read.
            named = stash.metadata.get("pid")
            self._read([named] if isinstance(named, int) else [])
        if ring not in self._pids and not self._is_whole:
            self._read(int(entry) for entry in os.listdir("/proc") if entry.isdigit())
            self._is_whole = True
        return self._pids.get(ring, -1)

    def _read(self, pids: Iterable[int]) -> None:
        for pid in pids:
            for ring in _rings_of(pid):
                self._pids.setdefault(ring, pid)


def own_boot_id() -> str:
    """Boot id of this host, empty if it cannot be read."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def _rings_of(pid: int) -> Iterator[_Ring]:
    try:
        with open(f"/proc/{pid}/maps", "rb") as file:
            text = file.read()
    except OSError:  # it ended meanwhile, or belongs to somebody else
        return
    if _RING_END in text:
        for line in text.splitlines(keepends=True):
            if line.endswith(_RING_END):
                _range, _mode, _offset, device, inode = line.split(maxsplit=5)[:5]
                major, _, minor = device.partition(b":")
                yield int(major, 16), int(minor, 16), int(inode)
