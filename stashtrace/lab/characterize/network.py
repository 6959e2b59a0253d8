"""Two hosts on one machine: network namespaces with separate names, joined by a link of a chosen rate and delay.

For configuration 5 of ``characterize`` where there is no second host. Both "hosts" share processors, memory and disk:
what such a measurement says is the network's share alone, and everything that shows it says that it was emulated.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from stashtrace.errors import CaptureError, UsageError

INTERFACE = "eth0"
_UNITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
_TIMES = {"us": 10**3, "ms": 10**6, "s": 10**9}
#: Files that `ip netns exec` puts over those of /etc lie here, in a directory per namespace.
_NAMES = Path("/etc/netns")
_WITHOUT = "run as root, or leave configuration 5 out: --steps 1,2,3,4"
_OURS = "# of stashtrace characterize --emulate-network\n"
#: A token bucket must hold what passes between two ticks of the slowest kernel timer, and a whole offloaded packet.
_TICKS_PER_S = 250
_LEAST_BURST_BYTES = 128 * 1024


@dataclass(frozen=True, slots=True)
class Shape:
    """Rate and delay of the link between the two hosts."""

    #: 0: as fast as the machine makes it.
    rate_bits_per_s: int = 0
    #: One way.
    delay_ns: int = 0

    @property
    def text(self) -> str:
        """Rate and delay in words."""
        rate = "unlimited"
        for unit, scale in reversed(_UNITS.items()):
            if self.rate_bits_per_s >= scale:
                rate = f"{self.rate_bits_per_s / scale:g} {unit[0].upper() if unit != 'kbit' else 'k'}bit/s"
                break
        return rate + (f", {self.delay_ns / 1000:g} us each way" if self.delay_ns else "")


@dataclass(frozen=True, slots=True)
class EmulatedHost:
    """A network namespace that stands for a host."""

    name: str
    namespace: str
    address: str

    def command(self, words: Sequence[str]) -> list[str]:
        """A command line that runs ``words`` on this host."""
        rename = 'echo "$0" > /proc/sys/kernel/hostname && exec "$@"'
        return ["ip", "netns", "exec", self.namespace, "unshare", "--uts", "sh", "-c", rename, self.name, *words]

    @property
    def environment(self) -> dict[str, str]:
        """Variables by which communication libraries find the link."""
        return {"GLOO_SOCKET_IFNAME": INTERFACE, "NCCL_SOCKET_IFNAME": INTERFACE, "TP_SOCKET_IFNAME": INTERFACE}


def parsed_shape(text: str) -> Shape:
    """Parse a link such as ``10gbit``, ``100mbit,50us`` or ``unlimited``.

    Raises UsageError if it says something else.

    Examples
    --------
    >>> parsed_shape("10gbit,50us")
    Shape(rate_bits_per_s=10000000000, delay_ns=50000)
    """
    rate, _, delay = text.strip().lower().partition(",")
    speed = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]bit)(?:/s)?", rate.strip())
    late = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(us|ms|s)", delay.strip()) if delay else None
    if (speed is None and rate.strip() != "unlimited") or (delay and late is None):
        raise UsageError(f"{text} is not a link", hint="for example --emulate-network 10gbit, or 1gbit,50us")
    bits = round(float(speed[1]) * _UNITS[speed[2]]) if speed else 0
    if speed and bits < 1000:
        raise UsageError(f"{text} is too slow for a link", hint="for example --emulate-network 100mbit")
    return Shape(bits, round(float(late[1]) * _TIMES[late[2]]) if late else 0)


@contextlib.contextmanager
def emulated_hosts(shape: Shape) -> Iterator[tuple[EmulatedHost, EmulatedHost]]:
    """Make two hosts, and remove them at the end.

    Raises CaptureError if this machine lacks the tools or the permission.
    """
    for tool in ("ip", "tc", "unshare"):
        if shutil.which(tool) is None:
            raise CaptureError(f"no `{tool}` to make network namespaces with", hint="install iproute2 and util-linux")
    # The process id in the names lets two of us live side by side; 15 characters are the limit for interfaces.
    tag = os.getpid() % 1_000_000
    hosts = tuple(EmulatedHost(f"emulated{i}", f"stash{tag}n{i}", f"10.79.0.{i + 1}") for i in range(2))
    with contextlib.ExitStack() as made:
        _name(hosts, made)
        for host in hosts:
            _run("ip", "netns", "add", host.namespace)
        ends = [("name", INTERFACE, "netns", host.namespace) for host in hosts]
        _run("ip", "link", "add", *ends[0][1:], "type", "veth", "peer", *ends[1])
        for host in hosts:
            _run("ip", "-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", INTERFACE)
            for interface in ("lo", INTERFACE):
                _run("ip", "-n", host.namespace, "link", "set", interface, "up")
            _shape(host, shape)
        _run(*hosts[0].command(["true"]))
        yield hosts[0], hosts[1]


def _shape(host: EmulatedHost, shape: Shape) -> None:
    """Limit and delay what leaves a host: a token bucket, below a queue that delays."""
    device = ("tc", "-n", host.namespace, "qdisc", "add", "dev", INTERFACE)
    parent: tuple[str, ...] = ("root",)
    if shape.delay_ns:
        _run(*device, "root", "handle", "1:", "netem", "delay", f"{shape.delay_ns / 1000:g}us", "limit", "100000")
        parent = ("parent", "1:1")
    if shape.rate_bits_per_s:
        burst = max(_LEAST_BURST_BYTES, shape.rate_bits_per_s // 8 // _TICKS_PER_S)
        bucket = ("rate", f"{shape.rate_bits_per_s}bit", "burst", str(burst), "latency", "50ms")
        _run(*device, *parent, "handle", "10:", "tbf", *bucket)


def _name(hosts: Sequence[EmulatedHost], made: contextlib.ExitStack) -> None:
    """Write what each host calls the other, as a claim to the namespaces, and take away those that nobody claims.

    A claim is a lock on the file of names. The kernel lets go of it however its owner ends, so what a killed process
    left behind is known by a lock that can be had.
    """
    try:
        _NAMES.mkdir(parents=True, exist_ok=True)
        with _opened(_NAMES, os.O_RDONLY) as one_at_a_time:
            fcntl.flock(one_at_a_time, fcntl.LOCK_EX)
            for left in _NAMES.glob("stash*n[01]/hosts"):
                with contextlib.suppress(BlockingIOError, FileNotFoundError), _opened(left, os.O_RDONLY) as claim:
                    fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if os.pread(claim, len(_OURS), 0) == _OURS.encode():
                        _take_away(left.parent.name)
            for host in hosts:
                names = _NAMES / host.namespace / "hosts"
                names.parent.mkdir(exist_ok=True)
                made.callback(_take_away, host.namespace)
                claim = made.enter_context(_opened(names, os.O_CREAT | os.O_RDWR))
                fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
                lines = ["127.0.0.1 localhost\n", *(f"{h.address} {h.name}\n" for h in hosts)]
                names.write_text(_OURS + "".join(lines))
    except OSError as error:
        hint = _WITHOUT
        raise CaptureError(f"cannot name emulated hosts: {error.strerror}", hint=hint) from error


def _take_away(namespace: str) -> None:
    subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)
    shutil.rmtree(_NAMES / namespace, ignore_errors=True)


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        if "netem" in words and "kind is unknown" in done.stderr:
            raise CaptureError("this kernel cannot delay packets: it has no netem", hint="give the rate alone")
        hint = _WITHOUT if os.geteuid() else "the kernel does not allow it"
        raise CaptureError(f"cannot make network namespaces: {said[-1] if said else words[0]}", hint=hint)
