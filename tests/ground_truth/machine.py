"""Real obstacles for a job: a slow link between two network namespaces, a disk with a speed limit.

Context managers that undo what they did also when the test fails; each raises `Missing` with the reason when this
machine lacks the means, and the test that asked is skipped with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy

_BLKIO = Path("/sys/fs/cgroup/blkio")
_MEMORY = Path("/sys/fs/cgroup/memory")


class Missing(Exception):
    """The machine cannot do this; the text says what is missing."""


@dataclass(frozen=True)
class Link:
    """Two ends of a shaped link."""

    namespaces: tuple[str, str]
    addresses: tuple[str, str]
    interfaces: tuple[str, str]

    @property
    def launch_options(self) -> list[str]:
        return [
            "--namespaces",
            ",".join(self.namespaces),
            "--addresses",
            ",".join(self.addresses),
            "--interfaces",
            ",".join(self.interfaces),
        ]


@contextlib.contextmanager
def slow_link(megabits: int) -> Iterator[Link]:
    """Two network namespaces joined by a veth pair with `tc tbf` on both ends."""
    if not (shutil.which("ip") and shutil.which("tc")):
        raise Missing("no `ip` and `tc` (package iproute2)")
    # The process id in the names lets two test runs live side by side; 15 characters are the limit for interfaces.
    tag = os.getpid()
    link = Link((f"stA{tag}", f"stB{tag}"), ("10.77.0.1", "10.77.0.2"), (f"stvA{tag}", f"stvB{tag}"))
    try:
        for namespace in link.namespaces:
            _ip("netns", "add", namespace)
        _ip("link", "add", link.interfaces[0], "type", "veth", "peer", "name", link.interfaces[1])
        for namespace, address, interface in zip(link.namespaces, link.addresses, link.interfaces, strict=True):
            _ip("link", "set", interface, "netns", namespace)
            _ip("-n", namespace, "addr", "add", f"{address}/24", "dev", interface)
            _ip("-n", namespace, "link", "set", "lo", "up")
            _ip("-n", namespace, "link", "set", interface, "up")
            _run(
                "ip",
                "netns",
                "exec",
                namespace,
                "tc",
                "qdisc",
                "replace",
                "dev",
                interface,
                "root",
                "tbf",
                "rate",
                f"{megabits}mbit",
                "burst",
                "128kb",
                "latency",
                "50ms",
            )
        yield link
    finally:
        for namespace in link.namespaces:  # the interfaces die with their namespace
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", link.interfaces[0]], capture_output=True, check=False)


class ReadLimit:
    """A cgroup (v1 blkio) whose members read from one device at ``bytes_per_s`` at most, once `begin` is called.

    Not from the start: `import torch` reads half a gigabyte when the page cache has been evicted.
    """

    def __init__(self, group: Path, device: int, bytes_per_s: int) -> None:
        self._group = group
        self._rule = f"{os.major(device)}:{os.minor(device)} {bytes_per_s}"

    def join(self) -> None:
        """Move the calling process in; meant for `preexec_fn`."""
        (self._group / "cgroup.procs").write_text(str(os.getpid()))

    def begin(self) -> None:
        """From now on the limit holds."""
        (self._group / "blkio.throttle.read_bps_device").write_text(self._rule)


@contextlib.contextmanager
def slow_disk(folder: Path, bytes_per_s: int) -> Iterator[ReadLimit]:
    """A speed limit for reads from the disk that holds `folder`."""
    device = os.stat(folder).st_dev
    if not Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").exists():
        raise Missing(f"{folder} is not on a block device")
    group = _BLKIO / f"stashtrace-{os.getpid()}"
    try:
        group.mkdir()
        limit = ReadLimit(group, device, bytes_per_s)
        (group / "blkio.throttle.read_bps_device").write_text(f"{os.major(device)}:{os.minor(device)} {1 << 40}")
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        raise Missing(f"no blkio cgroup to throttle with: {error}") from error
    try:
        yield limit
    finally:
        _remove(group)


class MemoryLimit:
    """A cgroup (v1 memory) whose members share so much memory, page cache included, once `begin` is called."""

    def __init__(self, group: Path) -> None:
        self._group = group

    def join(self) -> None:
        """Move the calling process in; meant for `preexec_fn`."""
        (self._group / "cgroup.procs").write_text(str(os.getpid()))

    def begin(self, cache_bytes: int) -> None:
        """From now on what the members have, and this much page cache, is all they get."""
        rows = (line.split() for line in (self._group / "memory.stat").read_text().splitlines())
        stat = {name: int(value) for name, value in rows}
        own = stat["total_rss"] + stat.get("total_shmem", 0)
        (self._group / "memory.limit_in_bytes").write_text(str(own + cache_bytes))


@contextlib.contextmanager
def little_memory() -> Iterator[MemoryLimit]:
    """A group for processes whose page cache is to be small."""
    group = _MEMORY / f"stashtrace-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(1 << 40))
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        raise Missing(f"no memory cgroup: {error}") from error
    try:
        yield MemoryLimit(group)
    finally:
        _remove(group)


def _remove(group: Path) -> None:
    """A group with members cannot be removed; the last ones may still be leaving."""
    for _ in range(50):
        try:
            group.rmdir()
            return
        except OSError:
            time.sleep(0.1)


@contextlib.contextmanager
def held(paths: list[Path]) -> Iterator[None]:
    """Lock files into the page cache: some kernels drop pages that nobody used for a while even when memory is free."""
    libc = ctypes.CDLL(None, use_errno=True)
    with contextlib.ExitStack() as stack:
        for path in paths:
            file = stack.enter_context(open(path, "rb"))
            # Not writable: of a private writable mapping mlock would hold copies.
            mapping = stack.enter_context(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            address = numpy.frombuffer(mapping, dtype=numpy.uint8).ctypes.data
            if libc.mlock(ctypes.c_void_p(address), ctypes.c_size_t(len(mapping))):
                raise Missing(f"mlock: {os.strerror(ctypes.get_errno())}")
        yield


def evict(path: Path) -> None:
    """Drop a file's pages from the page cache; `resident_share` shows whether it worked."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def resident_share(path: Path) -> float:
    """Share of a file's pages that are in the page cache, by mincore."""
    size = path.stat().st_size
    states = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    libc = ctypes.CDLL(None, use_errno=True)
    with open(path, "rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as mapping:
        address = numpy.frombuffer(mapping, dtype=numpy.uint8).ctypes.data
        if libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), states):
            raise Missing(f"mincore: {os.strerror(ctypes.get_errno())}")
    return sum(state & 1 for state in states) / len(states)


def can_evict(folder: Path) -> bool:
    """Whether posix_fadvise(DONTNEED) really empties the page cache on this file system."""
    probe = folder / "evict-probe.bin"
    with open(probe, "wb") as file:
        file.write(os.urandom(1 << 20))
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    try:
        return resident_share(probe) < 0.1
    finally:
        probe.unlink()


def warm(folder: Path) -> None:
    """Read every file once, so that later reads come from the page cache."""
    for path in folder.iterdir():
        path.read_bytes()


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Missing(f"`{' '.join(command)}`: {done.stderr.strip()}")
