"""Every hooked function of libc, with good and bad arguments: the answer is the one that libc gives without us.

``native/conformance.c`` makes about 17,000 calls: each argument of each function in turn, and each two of them
together, are unmapped, protected, cut by the end of a page, unknown flags, closed descriptors, ... What crashes
without us may crash.
"""

from __future__ import annotations

import difflib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from collectors.recorded import NATIVE, compiled, plain_environment, record

from stashtrace.record.staged_files import Copy, write_staged_list

HOOKED = NATIVE.parents[2] / "csrc" / "hooks" / "real_functions.def"
TIMEOUT_S = 900
#: Never return to the caller, or not where they succeed, or run another program, or forbid calls from then on:
#: separate tests have them (test_spawned_programs.py, test_sandboxes.py, test_record_path.py).
ELSEWHERE = re.compile(r"exec|posix_spawn|prctl|^_exit$")


@pytest.fixture
def stage() -> Iterator[Path]:
    """A folder in memory where there is one: some calls wait for the disk."""
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="stashtrace-test-", dir=memory if memory.is_dir() else None))
    yield folder
    shutil.rmtree(folder)


def fresh(stage: Path) -> Path:
    """The same folder, empty: what the calls leave in it is part of the stage."""
    place = stage / "place"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    return place


def untraced(stage: Path) -> list[str]:
    done = subprocess.run(
        [compiled("conformance.c"), fresh(stage)],
        env=plain_environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


def hooked_names() -> set[str]:
    names = set(re.findall(r"^REAL\([^,]+, (\w+),", HOOKED.read_text(encoding="utf-8"), re.MULTILINE))
    return {name for name in names if not ELSEWHERE.search(name)}


@pytest.mark.parametrize(
    "staged", [pytest.param(False, marks=pytest.mark.thorough), True], ids=["plain", "with staged files"]
)
def test_every_hook_answers_as_libc_does(tmp_path: Path, stage: Path, staged: bool) -> None:
    expected = untraced(stage)
    assert {line.split("(")[0] for line in expected} == hooked_names()
    environment = {"STASHTRACE_RING_BYTES": "16384"}  # of which each child that dies leaves one
    if staged:
        copy = tmp_path / "copy"
        copy.write_bytes(b"0123456789\nabcdefghi\n")
        write_staged_list(tmp_path / "list", {str(stage / "place" / "file"): Copy(str(copy), 21, 0)})
        environment["STASHTRACE_STAGED"] = str(tmp_path / "list")
    done = record(
        [compiled("conformance.c"), fresh(stage)],
        tmp_path / "run",
        collectors=("posix_io", "waits"),
        env=environment,
        timeout_s=TIMEOUT_S,
    )
    differing = list(difflib.unified_diff(expected, done.stdout.splitlines(), "untraced", "traced", n=0))
    assert not differing, "\n".join(differing[:40])
    assert any(f.suffix == ".stash" for f in done.directory.iterdir())
    shutil.rmtree(done.directory)
