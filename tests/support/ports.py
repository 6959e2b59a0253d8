"""A TCP port for a job of a test, from the standard library alone: launchers of ranks use it, too."""

from __future__ import annotations

import contextlib
import os
import random
import socket
from pathlib import Path

#: What this process was given: who asks for two ports has the second before anybody listens on the first.
_given: list[int] = []


def free_port() -> int:
    """A TCP port that nobody listens on, and the next one; none twice while others are free.

    Below those that the system gives to whoever asks for any port: one of these may go to another process before the
    job has begun to listen. Each worker of a test run has a different hundred.
    """
    lowest_given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    begin = lowest_given - 100 * (worker % 64 + 1)
    candidates = [port for port in range(begin, begin + 100, 2) if port > 1024] or [0]  # 0: where there are none below
    random.shuffle(candidates)  # other test runs of this machine have the same hundred
    candidates.sort(key=_given.count)
    for port in candidates:
        with contextlib.suppress(OSError), socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", port))
            second.bind(("127.0.0.1", first.getsockname()[1] + 1))
            _given.append(int(first.getsockname()[1]))
            return _given[-1]
    raise AssertionError(f"no port is free from {begin} to {begin + 99}")
