"""What the machine and this process have used of CPUs and disks, by the counters of the kernel."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

#: Fields of the first line of /proc/stat: time on a CPU, and time that the hypervisor took.
_BUSY, _STOLEN = (1, 2, 3, 6, 7), 8
#: Counters of /proc/vmstat of what is moved from and to disks, in KiB.
_PAGED = ("pgpgin ", "pgpgout ")


@dataclass(frozen=True, slots=True)
class Used:
    """What the machine and one process with its threads have used since they began, or between two such moments."""

    clock_ns: int
    #: CPU time of all programs, and what the hypervisor took beside it.
    machine_cpu_ns: int
    stolen_ns: int
    #: CPU time of this process, and how long its threads could run and had no CPU.
    own_cpu_ns: int
    own_queue_ns: int
    #: Moved from and to disks.
    machine_disk_bytes: int
    own_disk_bytes: int

    @classmethod
    def now(cls) -> Used | None:
        """Return what is used up to now; None where the kernel does not tell."""
        try:
            fields = _read("/proc/stat").splitlines()[0].split()
            pages = [line.split()[1] for line in _read("/proc/vmstat").splitlines() if line.startswith(_PAGED)]
            queues = [_read(f"/proc/self/task/{thread}/schedstat") for thread in os.listdir("/proc/self/task")]
            moved = dict(line.split(": ") for line in _read("/proc/self/io").splitlines())
            tick_ns = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
            return cls(
                time.monotonic_ns(),
                sum(int(fields[at]) for at in _BUSY) * tick_ns,
                int(fields[_STOLEN]) * tick_ns,
                time.process_time_ns(),
                sum(int(queue.split()[1]) for queue in queues),
                sum(map(int, pages)) * 1024,
                int(moved["read_bytes"]) + int(moved["write_bytes"]),
            )
        except (OSError, IndexError, KeyError, ValueError):
            return None

    def since(self, before: Used) -> dict[str, int]:
        """Return what was used since another moment, by field."""
        return {name: getattr(self, name) - getattr(before, name) for name in Used.__slots__}


def _read(path: str) -> str:
    return Path(path).read_text(encoding="ascii", errors="replace")
