"""Runs the command line as a person does: a real process, its stdout, stderr and exit code."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Answer:
    """What a command line left behind."""

    code: int
    out: str
    err: str


def environment(**extra: str) -> dict[str, str]:
    """The environment of the tests, without what a traced or coloured shell would add."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("STASHTRACE_") and k != "LD_PRELOAD"}
    # A package that is not installed is found; one that is (the usual case) wins by being the same.
    path = ":".join([str(ROOT), *filter(None, [kept.get("PYTHONPATH")])])
    return {**kept, "PYTHONPATH": path, "LC_ALL": "C.UTF-8", **extra}


def stashtrace(*words: object, cwd: Path | None = None, timeout: float = 180, **extra: str) -> Answer:
    """Run ``python -m stashtrace`` with the words."""
    done = subprocess.run(
        [sys.executable, "-m", "stashtrace", *map(str, words)],
        cwd=cwd,
        env=environment(**extra),
        capture_output=True,
        text=True,
        timeout=timeout,
        stdin=subprocess.DEVNULL,
    )
    return Answer(done.returncode, done.stdout, done.stderr)
