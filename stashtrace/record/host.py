"""What a launcher asks its host: memory kills, file systems, the processor's name.

The kernel counts the processes that it ended for want of memory in the cgroup of each, also where the host has no
memory left; the job has the cgroup of its launcher. ``probes.child_ends`` asks in a process of the job, which
must not load this.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
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
        """Return the facts of a run; empty where no process was ended, or nothing shows."""
        count = self._count() - self._kills
        if count <= 0:
            return {}
        grown = (g for g, before in zip(self._groups, self._hits, strict=True) if _number(g.hits) > before >= 0)
        limits = [limit for group in grown if (limit := _number(group.limit)) > 0]
        return {MEMORY_KILLS: count, **({MEMORY_LIMIT: min(limits)} if limits else {})}

    def _count(self) -> int:
        """Return the kills in the job's cgroup, in which those of the cgroups below it are."""
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


#: Lines of /proc/cpuinfo that name a core of aarch64, where the kernel gives numbers in place of a name.
_NUMBERS = ("CPU implementer", "CPU part", "CPU variant", "CPU revision")


def processor_name(listing: Path = Path("/proc/cpuinfo")) -> str:
    """Return the model of the processor.

    On aarch64 the kernel has no name for it: there it is the architecture with the numbers of the first core, such as
    ``aarch64 0x41/0xd4f r0p0`` for a Neoverse V2 (Grace). The architecture alone where there is neither.
    """
    try:
        text = listing.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    values: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        values.setdefault(name.strip(), value.strip())
    if values.get("model name"):
        return values["model name"]
    machine = os.uname().machine
    implementer, part, variant, revision = (values.get(name, "") for name in _NUMBERS)
    if not (implementer and part):
        return machine
    try:
        release = f" r{int(variant, 0)}p{int(revision, 0)}"
    except ValueError:
        release = ""
    return f"{machine} {implementer}/{part}{release}"


#: Beginnings of the types that a server or another process answers for.
_FAR = (
    *("nfs", "cifs", "smb", "lustre", "ceph", "gpfs", "beegfs", "glusterfs", "pvfs2", "orangefs", "panfs", "wekafs"),
    *("9p", "afs", "fuse", "virtiofs", "vboxsf", "prl_fs"),
)
#: A disk of this host; and the root of a container without privileges, which stands or falls with the job's files.
_NEAR = ("fuseblk", "fuse.overlayfs", "fuse.fuse-overlayfs")
IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs", "hugetlbfs")
#: What the rings of one process may take (``docs/internals/native-runtime.md``): with less a recording could soon fail.
_LEAST_FREE_BYTES = 256 << 20


def is_far(kind: str) -> bool:
    """Return True for a type of file systems that may stand still although this host is well."""
    return kind.startswith(_FAR) and kind not in _NEAR


def file_system_of(path: str, mounts: Iterable[str] | None = None) -> str:
    """Return the type of the file system that holds a path, empty if unknown.

    ``path``: absolute, without symbolic links.
    """
    if mounts is None:
        try:
            with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
                mounts = file.readlines()
        except OSError:
            return ""
    best, kind = "", ""
    for line in mounts:
        before, dash, after = line.partition(" - ")
        fields = before.split(" ")
        if not dash or len(fields) < 5:
            continue
        point = fields[4].encode("latin-1", "replace").decode("unicode_escape") if "\\" in fields[4] else fields[4]
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):  # of two mounts on one point the later is seen
            best, kind = point, after.split(" ")[0]
    return kind


def far_file_system(path: Path) -> str:
    """Return the type of a far file system that holds an existing path; empty where it is near, or unknown."""
    kind = file_system_of(os.path.realpath(path))
    return kind if is_far(kind) else ""


def near_folder() -> str | None:
    """Return a folder for temporary files on a disk of this host, else in its memory; None if it has neither."""
    for folder in (tempfile.gettempdir(), "/var/tmp", "/dev/shm"):
        try:
            room = os.statvfs(folder)
        except OSError:
            continue  # there is none
        free_bytes = room.f_bavail * room.f_frsize
        if free_bytes >= _LEAST_FREE_BYTES and os.access(folder, os.W_OK) and not far_file_system(Path(folder)):
            return folder
    return None
