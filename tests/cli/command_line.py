"""Runs the command line as a person does: a separate process, its stdout, stderr and exit code."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forked_commands import ROOT, environment, run_command

__all__ = ["ROOT", "Answer", "environment", "started", "stashtrace"]


@dataclass(frozen=True)
class Answer:
    """What a command line left behind."""

    code: int
    out: str
    err: str


def stashtrace(
    *words: object, cwd: Path | None = None, timeout: float = 180, path: Sequence[str] = (), **extra: str
) -> Answer:
    """Run ``python -m stashtrace`` with the words, and with folders of other packages."""
    done = run_command([*map(str, words)], cwd, environment(**extra), timeout, path)
    return Answer(done.returncode, done.stdout, done.stderr)


def started(
    *words: object,
    cwd: Path | None = None,
    stdin: int | None = None,
    options: dict[str, Any] | None = None,
    **extra: str,
) -> subprocess.Popen[str]:
    """Start ``python -m stashtrace`` and read what it says through pipes; ``options`` are those of Popen."""
    command = [sys.executable, "-m", "stashtrace", *map(str, words)]
    pipes = {"stdin": stdin, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=cwd, env=environment(**extra), **pipes, **(options or {}))
