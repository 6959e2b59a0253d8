"""Hosts of one machine: network namespaces on one bridge, whose links have a chosen rate, or pass a relay that delays.

Not every kernel has netem: a delay is made by a thread here, which holds each packet between two tun devices.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import fcntl
import heapq
import itertools
import os
import select
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

#: A token bucket holds a whole offloaded packet at least, and what passes between two ticks of the kernel's timer.
_LEAST_BURST_BYTES, _TICKS_PER_S = 16 * 1024, 2000
_TUN_SET, _TUN_FLAGS = 0x400454CA, 0x0001 | 0x1000  # TUNSETIFF; IFF_TUN, IFF_NO_PI
_MTU_BYTES = 65_000
_NUMBERS = itertools.count()


@dataclass(frozen=True)
class Hosts:
    """Namespaces with their addresses and interfaces."""

    namespaces: tuple[str, ...]
    addresses: tuple[str, ...]
    interfaces: tuple[str, ...]

    @property
    def launch_options(self) -> list[str]:
        """For ``tests/ground_truth/launch_ranks.py``."""
        found = []
        for name in ("namespaces", "addresses", "interfaces"):
            found += [f"--{name}", ",".join(getattr(self, name))]
        return found


@contextlib.contextmanager
def shaped_hosts(count: int, megabits: int) -> Iterator[Hosts]:
    """This number of hosts on a bridge; each sends and receives at this rate at most."""
    tag = _tag()
    bridge = f"wib{tag}"
    hosts = _named(count, tag)
    burst = max(_LEAST_BURST_BYTES, megabits * 1_000_000 // 8 // _TICKS_PER_S)
    shape = ("tbf", "rate", f"{megabits}mbit", "burst", str(burst), "latency", "200ms")
    with _cleaned_up(hosts, bridge):
        _run("ip", "link", "add", bridge, "type", "bridge")
        _run("ip", "link", "set", bridge, "up")
        for number, (namespace, address, interface) in enumerate(_rows(hosts)):
            port = f"wip{tag}n{number}"
            _run("ip", "netns", "add", namespace)
            _run("ip", "link", "add", interface, "netns", namespace, "type", "veth", "peer", "name", port)
            _run("ip", "link", "set", port, "master", bridge, "up")
            _run("tc", "qdisc", "add", "dev", port, "root", *shape)
            _run("tc", "-n", namespace, "qdisc", "add", "dev", interface, "root", *shape)
            _up(namespace, address, interface)
        yield hosts


@contextlib.contextmanager
def delayed_hosts(delay_ms: float) -> Iterator[Hosts]:
    """Two hosts; what one sends arrives at the other so much later."""
    tag = _tag()
    hosts = _named(2, tag)
    with _cleaned_up(hosts), contextlib.ExitStack() as stack:
        ends = []
        for namespace, address, interface in _rows(hosts):
            _run("ip", "netns", "add", namespace)
            ends.append(stack.enter_context(_tun(interface)))
            _run("ip", "link", "set", interface, "netns", namespace)
            _up(namespace, address, interface)
            _run("ip", "-n", namespace, "link", "set", interface, "mtu", str(_MTU_BYTES))
        done = threading.Event()
        relay = threading.Thread(target=_relay, args=(ends, delay_ms / 1e3, done))
        relay.start()
        stack.callback(relay.join)
        stack.callback(done.set)
        yield hosts


def _tag() -> str:
    """Part of the names of one network: the kernel takes those of the one before away when it has the time."""
    return f"{os.getpid() % 10_000}{next(_NUMBERS) % 1000}"


def _named(count: int, tag: str) -> Hosts:
    numbers = range(count)
    return Hosts(
        tuple(f"wi{tag}n{i}" for i in numbers),
        tuple(f"10.81.0.{i + 1}" for i in numbers),
        tuple(f"wie{tag}n{i}" for i in numbers),
    )


def _rows(hosts: Hosts) -> Iterator[tuple[str, str, str]]:
    yield from zip(hosts.namespaces, hosts.addresses, hosts.interfaces, strict=True)


def _up(namespace: str, address: str, interface: str) -> None:
    _run("ip", "-n", namespace, "addr", "add", f"{address}/24", "dev", interface)
    _run("ip", "-n", namespace, "link", "set", "lo", "up")
    _run("ip", "-n", namespace, "link", "set", interface, "up")


@contextlib.contextmanager
def _cleaned_up(hosts: Hosts, bridge: str = "") -> Iterator[None]:
    try:
        yield
    finally:
        for namespace in hosts.namespaces:  # interfaces die with their namespace
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)
        if bridge:
            subprocess.run(["ip", "link", "del", bridge], capture_output=True, check=False)


@contextlib.contextmanager
def _tun(name: str) -> Iterator[int]:
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    try:
        fcntl.ioctl(descriptor, _TUN_SET, struct.pack("16sH22x", name.encode(), _TUN_FLAGS))
        yield descriptor
    finally:
        os.close(descriptor)


def _relay(ends: list[int], delay_s: float, done: threading.Event) -> None:
    """Pass packets between two devices, each one ``delay_s`` after it came."""
    waiting: list[tuple[float, int, int, bytes]] = []
    number = 0
    poll = select.epoll()
    for descriptor in ends:
        poll.register(descriptor, select.EPOLLIN)
    while not done.is_set():
        due = waiting[0][0] - time.monotonic() if waiting else 0.1
        # epoll waits whole milliseconds; the rest of one is slept.
        ready = poll.poll(min(due, 0.1) if due > 1e-3 else 0)
        for descriptor, _ in ready:
            with contextlib.suppress(BlockingIOError):
                while True:
                    packet = os.read(descriptor, _MTU_BYTES + 1024)
                    number += 1
                    other = ends[1 - ends.index(descriptor)]
                    heapq.heappush(waiting, (time.monotonic() + delay_s, number, other, packet))
        if not ready and 0 < due <= 1e-3:
            time.sleep(due)
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, other, packet = heapq.heappop(waiting)
            with contextlib.suppress(BlockingIOError):  # a full queue drops, as those of switches do
                os.write(other, packet)
    poll.close()


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
