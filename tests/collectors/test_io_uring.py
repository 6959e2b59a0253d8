"""Rings of io_uring: no hook sees what they read, so their existence has to be reported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from collectors.recorded import compiled, plain_environment, record

from stashtrace.analysis.findings.rules.trust import trust

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


def test_a_ring_is_seen_at_the_end_of_a_program_without_a_sampler(tmp_path: Path) -> None:
    """As of a program without Python that uses liburing: a thread of ours would change what it may do."""
    done = record(ring(tmp_path, "mapped"), tmp_path / "run")
    assert USED in trust(done.trace, {}).invisible


#: Loads a library that makes a ring, as torch does, and forks a child, which has that ring too.
STORE = """
import ctypes, os, sys, time
from stashtrace import _native
_native.start_drainer()
ring = ctypes.CDLL(sys.argv[1]).syscall_of_store(425, 4, ctypes.create_string_buffer(512))
print(ring > 2, flush=True)
if os.fork() == 0:
    _native.start_drainer()
time.sleep(1.5)
"""


def test_a_ring_of_torch_s_store_is_not_named(tmp_path: Path) -> None:
    ring(tmp_path, "syscall")
    source = (
        "#include <unistd.h>\nint syscall_of_store(int n, int a, void* b) { return syscall((long)n, (long)a, b); }\n"
    )
    (tmp_path / "store.c").write_text(source)
    made = []
    for library in ("libtorch_cpu.so", "libother.so"):
        subprocess.run(["gcc", "-w", "-shared", "-fPIC", "-o", tmp_path / library, tmp_path / "store.c"], check=True)
        command = [sys.executable, "-c", STORE, tmp_path / library]
        done = record(command, tmp_path / f"of {library}", collectors=("posix_io", "proc"), sample_ms=20)
        assert done.stdout == "True\n"
        made.append([part for part in trust(done.trace, {}).invisible if "io_uring" in part])
    assert made == [[], [USED]]


def test_no_ring_is_not_named(tmp_path: Path) -> None:
    env = {"STASHTRACE_DRAINER": "thread"}
    done = record(["cat", "/etc/hostname"], tmp_path / "run", collectors=("posix_io", "proc"), env=env)
    assert "io_uring" not in str(trust(done.trace, {}).invisible)
