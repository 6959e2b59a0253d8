"""Hooks on small stacks: each takes at most 1 KiB more than the function that it stands for.

Signal handlers run on alternate stacks of 8 KiB, coroutines and threads on ones that are not much larger.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

import pytest

from trust.pairs import Pair, compiled, plain_environment

ROOT = Path(__file__).resolve().parents[2]
_MOST_BYTES = 1024
_AT_MINSIGSTKSZ = 51
#: What libc makes of other functions that are hooked, and so have no separate pointer.
_MADE_OF_OTHERS = {"execv", "execvp", "execl", "execlp", "execle", "_Exit"}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Resolves its symbols at the start: the linker's work at a first call needs more stack than any hook."""
    return compiled("stack", tmp_path_factory.mktemp("stack"), "-Wl,-z,now")


def measured(program: Path, folder: Path, environment: dict[str, str]) -> dict[tuple[str, str], list[int]]:
    """Bytes of stack by function and case: of a process's first call, a thread's first, and a later one."""
    folder.mkdir()
    done = subprocess.run([program, folder], env=environment, capture_output=True, text=True, check=True, timeout=300)
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [row for row in rows if row[5] != "0"] == [], "ended by a signal"
    return {(row[0], row[1]): [int(word) for word in row[2:5]] for row in rows}


def test_no_hook_takes_more_stack_than_its_share(program: Path, tmp_path: Path) -> None:
    plain = measured(program, tmp_path / "plain", plain_environment())
    settings = {"WAIT_THRESHOLD_NS": "0", "RING_BYTES": "4096"}  # each wait is a row, and a few rows fill a ring
    traced = measured(program, tmp_path / "traced", Pair(tmp_path).traced_variables(**settings))
    assert plain.keys() == traced.keys()
    more = {case: max(a - b for a, b in zip(traced[case], plain[case], strict=True)) for case in plain}
    assert {case: bytes_ for case, bytes_ in more.items() if bytes_ > _MOST_BYTES} == {}
    assert sum(bytes_ > 0 for bytes_ in more.values()) > len(more) // 2, "the traced run had no hooks"
    listed = (ROOT / "csrc/hooks/real_functions.def").read_text(encoding="utf-8")
    hooked = set(re.findall(r"^REAL\([^,]+, (\w+),", listed, re.MULTILINE))
    assert {function for function, _ in plain} == hooked | _MADE_OF_OTHERS


def test_a_handler_on_a_small_signal_stack_opens_files_of_relative_names(program: Path, tmp_path: Path) -> None:
    frame_bytes = ctypes.CDLL(None).getauxval(_AT_MINSIGSTKSZ)
    if frame_bytes > 4096:
        pytest.skip(f"this CPU's registers take {frame_bytes} bytes of each signal stack")
    for name, environment in (("plain", plain_environment()), ("traced", Pair(tmp_path).traced_variables())):
        (tmp_path / name).mkdir()
        command = [program, tmp_path / name, "signal"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout) == (0, "9\n"), name
