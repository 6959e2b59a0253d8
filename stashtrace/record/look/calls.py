"""Numbers of the system calls in which a thread may stand, and names as the recorder's own ``stands_in`` has them.

``csrc/collectors/proc/standing_call.h`` has the same names for a process that looks at itself; a test compares them.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass

#: (name, whether its first argument is a descriptor, number on x86-64, number on aarch64); -1: it has none there.
_CALLS = (
    ("read", True, 0, 63),
    ("pread", True, 17, 67),
    ("readv", True, 19, 65),
    ("write", True, 1, 64),
    ("pwrite", True, 18, 68),
    ("writev", True, 20, 66),
    ("recv", True, 45, 207),
    ("recvmsg", True, 47, 212),
    ("send", True, 44, 206),
    ("sendmsg", True, 46, 211),
    ("accept", True, 43, 202),
    ("accept", True, 288, 242),
    ("connect", True, 42, 203),
    ("fsync", True, 74, 82),
    ("fdatasync", True, 75, 83),
    ("flock", True, 73, 32),
    ("fcntl", True, 72, 25),
    ("ioctl", True, 16, 29),
    ("fallocate", True, 285, 47),
    ("ftruncate", True, 77, 46),
    ("getdents", True, 217, 61),
    ("sync", False, 162, 81),
    ("open", False, 257, 56),
    ("open", False, 2, -1),
    ("stat", False, 262, 79),
    ("rename", False, 316, 276),
    ("unlink", False, 263, 35),
    ("epoll", False, 281, 22),
    ("epoll", False, 232, -1),
    ("poll", False, 271, 73),
    ("poll", False, 7, -1),
    ("select", False, 270, 72),
    ("select", False, 23, -1),
    ("futex", False, 202, 98),
    ("sleep", False, 35, 101),
    ("sleep", False, 230, 115),
    ("wait", False, 61, 260),
    ("wait", False, 247, 95),
)


@dataclass(frozen=True, slots=True)
class Call:
    """A system call: its name, and whether its first argument is a descriptor."""

    name: str
    on_descriptor: bool


def calls_of(machine: str) -> dict[int, Call]:
    """Return the calls of a machine, as ``uname -m`` names it, by number; empty for one that is not known."""
    column = {"x86_64": 2, "aarch64": 3}.get(machine)
    if column is None:
        return {}
    return {int(row[column]): Call(row[0], row[1]) for row in _CALLS if int(row[column]) >= 0}


CALLS = calls_of(platform.machine())
#: A thread in one of these receives; of a file, the bytes are counted.
RECEIVES = frozenset({"read", "readv", "recv", "recvmsg"})
#: A thread in one of these writes to storage, and may be in it as long as that takes.
WRITES_BACK = frozenset({"write", "pwrite", "writev", "fsync", "fdatasync", "sync", "fallocate", "ftruncate", "rename"})
