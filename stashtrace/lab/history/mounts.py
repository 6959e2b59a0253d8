"""File systems of this host, and which of them a path is on: one name wherever a shared one is mounted."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stashtrace.scrubbing import scrub_urls

#: Types of file systems whose source names a server, the same on every host that mounts it.
_SHARED = re.compile(
    r"nfs4?|lustre|gpfs|beegfs|ceph|cifs|smb3|afs|9p|glusterfs|pvfs2|orangefs|panfs|wekafs|virtiofs|fuse\.(?!overlayfs|portal)"
    r".+"
)
#: Types that hold no files of a job.
_NO_FILES = frozenset(
    ("proc", "sysfs", "cgroup", "cgroup2", "devpts", "devtmpfs", "mqueue", "debugfs", "tracefs", "securityfs", "bpf")
)
#: Name and password in a source of cifs, which is no URL.
_USER = re.compile(r"^//[^/@]*@")
_ESCAPED = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """One entry of the mount table."""

    #: Where it is mounted.
    point: str
    #: Name of the file system: equal for two mounts of one, on whichever host if it is a shared one.
    name: str


def mounts_of_host(host: str, boot_id: str, listing: Path = Path("/proc/self/mountinfo")) -> tuple[Mount, ...]:
    """Return the file systems that this process sees, the last mounted first.

    ``host``, ``boot_id``: tell file systems of this host from those of others; containers of one host share the boot
    id, whatever they are called. ``listing``: what is read; for tests. Empty where it cannot be read.
    """
    try:
        text = listing.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    found = []
    for line in text.splitlines():
        before, dash, after = line.partition(" - ")
        words, kind = before.split(), after.split()
        if not dash or len(words) < 5 or len(kind) < 2 or kind[0] in _NO_FILES:
            continue
        source = _USER.sub("//", scrub_urls(_plain(kind[1])))
        is_shared = _SHARED.fullmatch(kind[0]) is not None
        own = f"{kind[0]} {source}" if is_shared else f"{kind[0]} {words[2]} of {host} {boot_id[:8]}".rstrip()
        found.append(Mount(_plain(words[4]), own))
    return tuple(reversed(found))


def file_system_of(path: str, mounts: Sequence[Mount], directory: str = "/") -> Mount | None:
    """Return the mount that a path is on, the longest that fits; None if none does."""
    whole = os.path.normpath(os.path.join(directory, path))
    fitting = (
        mount
        for mount in mounts
        if whole == mount.point or whole.startswith(mount.point if mount.point.endswith("/") else f"{mount.point}/")
    )
    return max(fitting, key=lambda mount: len(mount.point), default=None)


def _plain(text: str) -> str:
    """Return a name of the mount table, in which blanks are octal numbers."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), text)
