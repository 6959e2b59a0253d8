"""The Pythons of this machine, and scripts that run in one of them as a process of a traced job."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from stashtrace.record.environment import INJECT_PATH, LIBRARY_PATH, preload_path

#: Oldest Python that stands aside with a word, and the one from which on the probes record.
ASIDE, RECORDS = 6, 10
VERSIONS = range(ASIDE, 16)


@functools.cache
def interpreters() -> dict[int, str]:
    """Pythons 3.x of this machine that run, by x; pyenv puts a program in front of each, that may refuse."""
    kept = [str(path) for path in sorted(Path.home().glob(".pyenv/versions/3.*/bin/python3"))]
    named = [shutil.which(f"python3.{minor}") for minor in VERSIONS]
    found = {}
    for program in filter(None, (*kept, *named)):
        asked = [program, "-I", "-S", "-c", "import sys, ctypes; print(sys.version_info[1], sys.implementation.name)"]
        reported = subprocess.run(asked, capture_output=True, text=True, check=False)
        if reported.returncode == 0 and reported.stdout.split()[1] == "cpython":
            found.setdefault(int(reported.stdout.split()[0]), program)
    return found


def interpreter(minor: int) -> str:
    """The Python 3.``minor`` of this machine; without one the test is skipped."""
    if minor not in interpreters():
        pytest.skip(f"there is no Python 3.{minor} here")
    return interpreters()[minor]


def run_script(
    program: str,
    code: str,
    folder: Path,
    *path: Path | str,
    options: Sequence[str] = (),
    before: Callable[[], None] | None = None,
    **extra: str,
) -> tuple[str, str]:
    """Run ``code`` as a process of a traced job; return what it wrote on stdout and stderr."""
    folder.mkdir()
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("STASHTRACE_", "PYTHON"))} | {
        "LD_PRELOAD": preload_path(LIBRARY_PATH),
        "PYTHONPATH": os.pathsep.join(map(str, (INJECT_PATH, *path))),
        "PYTHONDONTWRITEBYTECODE": "1",
        "STASHTRACE_DIR": str(folder),
        **extra,
    }
    command = [program, *options, "-c", textwrap.dedent(code)]
    done = subprocess.run(
        command,
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        preexec_fn=before,
    )
    assert done.returncode == 0, (done.returncode, done.stderr)
    return done.stdout, done.stderr
