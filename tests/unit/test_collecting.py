"""Ranks of a test: those that do not end are ended, with what they said, and nobody else gets their port."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from device import run_ranks
from ports import free_port
from traced import _collect

#: Starts a child that holds the pipes open, says its number, and waits for it: a kill of the rank alone is not enough.
HANGS = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
print("child", child.pid, flush=True)
child.wait()
"""


def rank(program: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-S", "-c", program],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


@pytest.mark.parametrize("ended", [0, 1], ids=["none has ended", "one has ended"])
def test_ranks_that_hang_are_ended_with_their_children(ended: int) -> None:
    ranks = [rank("pass") for _ in range(ended)]
    for process in ranks:
        process.wait()
    ranks.append(rank(HANGS))
    with pytest.raises(AssertionError, match=r"no end within 3 s\n\[\('(child \d+\\n)?', ''\)\]"):
        _collect(ranks, 3)
    assert [process.poll() for process in ranks] == [0] * ended + [-signal.SIGKILL]


def test_a_rank_of_a_device_job_that_hangs_is_ended(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"no end within 3 s\n\[\('', ''\)\]"):
        run_ranks(1, "sleep 600s", tmp_path, traced=False, timeout_s=3)


def test_a_port_is_given_to_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by the system, to whoever asks for any port, nor to a job of another worker."""
    lowest, highest = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    if lowest < 8000:
        pytest.skip("this machine gives nearly all ports to whoever asks for any")
    found = {}
    for worker in ("gw0", "gw1"):
        monkeypatch.setenv("PYTEST_XDIST_WORKER", worker)
        found[worker] = {free_port() for _ in range(300)}
        assert not found[worker] & set(range(lowest, highest + 1))
    assert found["gw0"] & found["gw1"] == set()
