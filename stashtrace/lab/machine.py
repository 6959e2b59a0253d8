"""The machine that is measured: processor, kernel, free memory, and what other programs took of it meanwhile.

``characterize`` compares its runs with the quietest of them, ``calibrate`` its starts with an idle machine; both repeat
a measurement that other programs disturbed.
"""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from stashtrace.analysis.compare.cpu_use import CpuUse, added_by_others
from stashtrace.calibration.file import host_hash
from stashtrace.lab.alternating import CONTENDED_RATIO
from stashtrace.loading.foreign_files import free_bytes
from stashtrace.record.host import processor_name
from stashtrace.text.prose import count_noun
from stashtrace.text.units import bytes_text, percent_text, range_text, ranks_text


def machine_facts(devices: Sequence[str] = ()) -> dict[str, Any]:
    """The ``[machine]`` table of a calibration file; holds no host name."""
    return {
        "cpu": processor_name(),
        "cores_count": len(os.sched_getaffinity(0)),
        "memory_bytes": int(_first("/proc/meminfo", r"^MemTotal:\s*(\d+)") or 0) * 1024,
        "kernel": platform.release().split("-")[0],
        "devices": list(devices),
        "host_hash": host_hash(platform.node()),
        "load_average": [round(x, 2) for x in os.getloadavg()],
    }


def free_memory_bytes() -> int:
    """Free memory of the machine, or of the control group if that is less; 1 PiB if unknown."""
    return min(free for free in (free_bytes(), group_free_bytes(), 2**50) if free is not None)


def group_free_bytes(listing: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Free memory of the tightest control group around this process; None if none has a limit."""
    free: list[int] = []
    try:
        lines = listing.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top, names = root, ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            top, names = root / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        group = top / path.lstrip("/")
        for folder in (group, *group.parents):
            if folder.is_relative_to(top):
                free += _left_in(folder, *names)
    return min(free, default=None)


def _left_in(group: Path, limit_name: str, used_name: str) -> list[int]:
    try:
        limit, used = ((group / name).read_text(encoding="ascii").strip() for name in (limit_name, used_name))
        details = (group / "memory.stat").read_text(encoding="ascii")
    except OSError:
        return []
    if not limit.isdecimal():
        return []
    # Pages of files that nobody used recently are given back first.
    cached = re.search(r"^(?:total_)?inactive_file (\d+)", details, re.MULTILINE)
    return [max(int(limit) - int(used) + (int(cached[1]) if cached else 0), 0)]


def _first(path: str, pattern: str) -> str:
    try:
        match = re.search(pattern, Path(path).read_text(encoding="utf-8", errors="replace"), re.M)
    except OSError:
        return ""
    return match.group(1).strip() if match else ""


#: Fields of the first line of /proc/stat: time on a CPU, and time that the hypervisor took.
_BUSY, _STOLEN = (1, 2, 3, 6, 7), 8
#: Counters of /proc/vmstat of what is moved from and to disks, in KiB.
_PAGED = ("pgpgin ", "pgpgout ")


@dataclass(frozen=True, slots=True)
class Used:
    """What the machine and one process with its threads have used since they began, or between two such moments."""

    clock_ns: int
    #: CPU time of all programs, and what the hypervisor took.
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
        """Return what is used up to now; None where the kernel does not say."""
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


_Made = TypeVar("_Made")


def machine_cpus() -> str:
    """Return how many CPUs this machine has, in words."""
    return count_noun(os.cpu_count() or 1, "CPU")


class Quietest:
    """The measurement during which others used the CPUs least, with which each one is compared."""

    def __init__(self, known: Iterable[tuple[CpuUse, float]] = ()) -> None:
        """``known``: use of the CPUs, and the length that others may have added to, of earlier measurements."""
        self._quietest = min(known, key=lambda one: one[0].by_others, default=None)

    def disturbance(self, cpus: CpuUse | None, length_ns: float) -> str:
        """Say what other work took if it may have made a measurement longer than the quietest one; else nothing.

        The quietest one is remembered. ``length_ns``: of a step, or whatever ``cpus.wait_ns`` is a part of.
        """
        before = self._quietest
        if cpus is None:
            return ""
        if before is None or cpus.by_others < before[0].by_others:
            self._quietest = cpus, length_ns
        if before is None:
            return ""
        quiet, quiet_ns = before
        other = added_by_others(quiet, cpus, quiet_ns, length_ns)
        if other.added_ns <= CONTENDED_RATIO * length_ns:
            return ""
        if (cpus.stolen_ratio - quiet.stolen_ratio) * length_ns > other.added_ns / 2:
            return f"the hypervisor took {percent_text(cpus.stolen_ratio)} of the CPU time"
        than = f", not {quiet.others_count:.1f}" if quiet.others_count else ""
        return f"other programs used {cpus.others_count:.1f} of {machine_cpus()}{than}"


def measured_quietly(make: Callable[[], _Made], disturbance: Callable[[_Made], str]) -> tuple[_Made, str, str]:
    """Measure, and once more if other work disturbed that.

    ``disturbance``: what other work took, empty if it did not matter. Returns the last measurement, what disturbed the
    first if there were two, and what disturbed the last.
    """
    made = make()
    if not (taken := disturbance(made)):
        return made, "", ""
    again = make()
    return again, taken, disturbance(again)


@dataclass(frozen=True, slots=True)
class Meanwhile:
    """What others took while the processes of one measurement used what they did."""

    cpus: CpuUse
    length_ns: int
    #: From and to disks.
    others_bytes_per_s: float
    own_bytes_per_s: float

    @classmethod
    def from_uses(cls, used: Sequence[Mapping[str, int] | None]) -> Meanwhile | None:
        """Return it for a measurement by several processes; None where the kernel did not say it to one of them."""
        known = [Used(**one) for one in used if one]
        if len(known) < len(used) or not known:
            return None
        # The processes begin and end together, so the machine is asked by the first alone.
        machine, seconds = known[0], max(known[0].clock_ns, 1) / 1e9
        own_cpu_ns, own_bytes = (sum(getattr(one, name) for one in known) for name in ("own_cpu_ns", "own_disk_bytes"))
        others_ns = max(machine.machine_cpu_ns - own_cpu_ns, 0)
        asked_ns = max(machine.machine_cpu_ns + machine.stolen_ns, 1)
        waits_ns = sum(one.own_queue_ns for one in known) / len(known)
        return cls(
            CpuUse(waits_ns, others_ns / seconds / 1e9, machine.stolen_ns / asked_ns),
            machine.clock_ns,
            max(machine.machine_disk_bytes - own_bytes, 0) / seconds,
            own_bytes / seconds,
        )

    def disturbance(self, *, of_disk: bool) -> str:
        """Return what others took, if it may have made times notably longer than on an idle machine; else nothing."""
        own, others = self.own_bytes_per_s, self.others_bytes_per_s
        if of_disk and others > CONTENDED_RATIO * own:
            taken, used = bytes_text(others), bytes_text(own)
            return f"other programs moved {taken}/s from and to disks, and the measurement {used}/s"
        return Quietest([(CpuUse(0.0, 0.0, 0.0), 0.0)]).disturbance(self.cpus, self.length_ns)


def meanwhile_text(starts: Sequence[Meanwhile], again: Sequence[int], still: Sequence[int]) -> str:
    """Return what others took in the starts of a measurement, from the least to the most, and what followed.

    ``again``: numbers of the starts that were made again for that. ``still``: those that were disturbed again.
    """
    counts = sorted(one.cpus.others_count for one in starts)
    rates = sorted(one.others_bytes_per_s for one in starts)
    cpus = range_text(f"{counts[0]:.1f}", f"{counts[-1]:.1f}")
    moved = range_text(f"{bytes_text(rates[0])}/s", f"{bytes_text(rates[-1])}/s")
    parts = [f"other programs used {cpus} of {machine_cpus()} and moved {moved} from and to disks"]
    if (stolen := max(one.cpus.stolen_ratio for one in starts)) >= CONTENDED_RATIO:
        parts.append(f"the hypervisor took up to {percent_text(stolen)} of the CPU time")
    if again:
        parts.append(f"{_starts(again)} made again for that")
    if still:
        parts.append(f"{_starts(still)} disturbed again: times may be longer than on an idle machine")
    return "; ".join(parts)


def _starts(numbers: Sequence[int]) -> str:
    return f"start{'s' if len(numbers) > 1 else ''} {ranks_text(list(numbers))} {'were' if len(numbers) > 1 else 'was'}"
