"""How many processes the kernel ended for want of memory while a job ran, and the limit of a cgroup that was reached.

The kernel counts them in the cgroup of the process that it ended, and there also those that it ends when the host has
no memory left; the job has the cgroup of its launcher. ``probes.ends.child_ends`` asks in a process of the job, which
must not load this.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

#: Facts of a run: how many processes, and the limit if it was one that was reached.
MEMORY_KILLS, MEMORY_LIMIT = "memory_kills_count", "memory_limit_bytes"
_ROOT = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class _Group:
    """Where a cgroup of version 1 or 2 has its numbers: each a file, and a key if it has several."""

    kills: tuple[Path, str]
    hits: tuple[Path, str]
    limit: tuple[Path, str]


@dataclass(slots=True)
class MemoryKills:
    """Counts from when it is made on; ``own``: the file that names the cgroups of a process."""

    root: Path = _ROOT
    own: Path = Path("/proc/self/cgroup")
    _groups: list[_Group] = field(init=False)
    _kills: int = field(init=False)
    _hits: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._groups = list(_groups(self.root, self.own))
        self._kills, self._hits = self._count(), [_number(group.hits) for group in self._groups]

    def facts(self) -> dict[str, int]:
        """Return the facts of a run; empty where no process was ended, or nothing tells."""
        count = self._count() - self._kills
        if count <= 0:
            return {}
        grown = (g for g, before in zip(self._groups, self._hits, strict=True) if _number(g.hits) > before >= 0)
        limits = [limit for group in grown if (limit := _number(group.limit)) > 0]
        return {MEMORY_KILLS: count, **({MEMORY_LIMIT: min(limits)} if limits else {})}

    def _count(self) -> int:
        """Return the kills in the job's own cgroup, in which those of the cgroups below it are."""
        return _number(self._groups[0].kills) if self._groups else -1


def _groups(root: Path, own: Path) -> Iterator[_Group]:
    """Yield the cgroup of a process, then those above it, as far as they are there to read."""
    for line in _read(own).splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        is_first = "memory" in controllers.split(",")
        if controllers and not is_first:
            continue
        top = root / "memory" if is_first else root
        inner = top / path.lstrip("/")
        for folder in (inner, *inner.parents):
            first, second = folder / "memory.oom_control", folder / "memory.events"
            if is_first and first.exists():
                limit = (folder / "memory.limit_in_bytes", "")
                yield _Group((first, "oom_kill"), (folder / "memory.failcnt", ""), limit)
            elif not is_first and second.exists():
                yield _Group((second, "oom_kill"), (second, "oom"), (folder / "memory.max", ""))
            if folder == top:
                break


def _number(where: tuple[Path, str]) -> int:
    """Return what stands there; -1 if the file is not there, or it is no number."""
    for line in _read(where[0]).splitlines():
        key, _, count = line.rpartition(" ")
        if key == where[1] and count.isdecimal():
            return int(count)
    return -1


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace")
    except OSError:  # a kernel or container without it
        return ""
