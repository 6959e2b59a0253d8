"""Rings of io_uring: no hook sees what they read, so that they are there has to be told."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from collectors.recorded import compiled, plain_environment, record

from stashtrace.analysis.findings.trust import trust

USED = "I/O of a process by io_uring"


def ring(tmp_path: Path, how: str) -> list[Path | str]:
    """Command that makes a ring; skips where the machine has none for us."""
    (tmp_path / "data").write_text("data")
    command: list[Path | str] = [compiled("io_uring.c"), how, tmp_path / "data"]
    done = subprocess.run(command, env=plain_environment(), check=False, capture_output=True)
    if done.returncode == 77:
        pytest.skip(
            "io_uring_setup is refused here: see /proc/sys/kernel/io_uring_disabled, or a filter of a container"
        )
    assert (done.returncode, done.stdout) == (0, b"5\n"), "errno is left alone"
    return command


def test_a_ring_made_by_syscall_is_named(tmp_path: Path) -> None:
    done = record(ring(tmp_path, "syscall"), tmp_path / "run")
    assert done.stdout == "5\n", "errno is left alone"
    assert USED in trust(done.trace, {}).invisible


def test_a_ring_made_by_an_instruction_is_seen_by_the_sampler(tmp_path: Path) -> None:
    """As liburing makes them."""
    command = ring(tmp_path, "instruction")
    run = tmp_path / "run"
    env = {"STASHTRACE_DRAINER": "thread"}  # as a process with a probe has it
    done = record(command, run, collectors=("posix_io", "proc"), sample_ms=20, env=env)
    assert USED in trust(done.trace, {}).invisible


def test_no_ring_is_not_named(tmp_path: Path) -> None:
    env = {"STASHTRACE_DRAINER": "thread"}
    done = record(["cat", "/etc/hostname"], tmp_path / "run", collectors=("posix_io", "proc"), env=env)
    assert "io_uring" not in str(trust(done.trace, {}).invisible)
