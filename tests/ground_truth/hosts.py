"""Several hosts on one machine: a network namespace and a host name each, joined by a bridge.

They share kernel, boot id and clock with each other; addresses, host names and scratch directories differ.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ground_truth.machine import Missing

_INTERFACE = "eth0"


@dataclass(frozen=True)
class Host:
    """One namespace."""

    name: str
    namespace: str
    address: str
    interface: str = _INTERFACE

    def command(self, words: Sequence[object]) -> list[str]:
        """A command line that runs ``words`` on this host."""
        rename = 'echo "$0" > /proc/sys/kernel/hostname && exec "$@"'
        return [
            *("ip", "netns", "exec", self.namespace, "unshare", "--uts", "sh", "-c", rename, self.name),
            *map(str, words),
        ]

    def lose_power(self) -> None:
        """Kill everything that runs on this host, at once."""
        listed = subprocess.run(["ip", "netns", "pids", self.namespace], capture_output=True, text=True, check=True)
        for pid in listed.stdout.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


@contextlib.contextmanager
def hosts(count: int) -> Iterator[list[Host]]:
    """Make ``count`` hosts named node0, node1, ... that reach each other.

    Raises
    ------
    Missing
        If this machine lacks the means or the permission.
    """
    for tool in ("ip", "unshare"):
        if shutil.which(tool) is None:
            raise Missing(f"no `{tool}`")
    # The process id in the names lets two test runs live side by side; 15 characters are the limit for interfaces.
    tag = os.getpid() % 1_000_000
    bridge = f"stbr{tag}"
    made = [Host(f"node{i}", f"st{tag}n{i}", f"10.78.0.{i + 1}") for i in range(count)]
    try:
        _ip("link", "add", bridge, "type", "bridge")
        _ip("link", "set", bridge, "up")
        for number, host in enumerate(made):
            outside = f"stv{tag}{number}"
            _ip("netns", "add", host.namespace)
            _ip("link", "add", outside, "type", "veth", "peer", "name", _INTERFACE, "netns", host.namespace)
            _ip("link", "set", outside, "master", bridge)
            _ip("link", "set", outside, "up")
            _ip("-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", _INTERFACE)
            _ip("-n", host.namespace, "link", "set", "lo", "up")
            _ip("-n", host.namespace, "link", "set", _INTERFACE, "up")
            names = Path("/etc/netns") / host.namespace / "hosts"  # `ip netns exec` puts it over /etc/hosts
            names.parent.mkdir(parents=True, exist_ok=True)
            names.write_text("127.0.0.1 localhost\n" + "".join(f"{h.address} {h.name}\n" for h in made))
        done = subprocess.run(made[0].command(["hostname"]), capture_output=True, text=True, check=False)
        if done.stdout.strip() != made[0].name:
            raise Missing(f"cannot give a namespace a host name: {done.stderr.strip()}")
        yield made
    except OSError as error:
        raise Missing(f"no permission: {error}") from error
    finally:
        for host in made:
            subprocess.run(["ip", "netns", "del", host.namespace], capture_output=True, check=False)
            shutil.rmtree(Path("/etc/netns") / host.namespace, ignore_errors=True)
        subprocess.run(["ip", "link", "del", bridge], capture_output=True, check=False)


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Missing(f"`ip {' '.join(arguments)}`: {done.stderr.strip()}")
