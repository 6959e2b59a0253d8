"""File systems: which one holds a path, which of them may keep a job waiting, where a host has a disk of its own."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

#: Beginnings of the types that a server or another process answers for.
_FAR = (
    *("nfs", "cifs", "smb", "lustre", "ceph", "gpfs", "beegfs", "glusterfs", "pvfs2", "orangefs", "panfs", "wekafs"),
    *("9p", "afs", "fuse", "virtiofs", "vboxsf", "prl_fs"),
)
#: A disk of this host; and the root of a container without privileges, which stands or falls with the job's own files.
_NEAR = ("fuseblk", "fuse.overlayfs", "fuse.fuse-overlayfs")
IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs", "hugetlbfs")
#: What the rings of one process may take (``docs/internals/native-runtime.md``): with less a recording could soon fail.
_LEAST_FREE_BYTES = 256 << 20


def is_far(kind: str) -> bool:
    """Return True for a type of file systems that may stand still although this host is well."""
    return kind.startswith(_FAR) and kind not in _NEAR


def file_system_of(path: str, mounts: Iterable[str] | None = None) -> str:
    """Return the type of the file system that holds a path, empty if unknown.

    ``path``: absolute, without symbolic links. ``mounts``: lines as in ``/proc/self/mountinfo``, which is read by
    default.
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
