"""The program behind a command line: found as a shell would, with better words when it is not, and started.

Used by ``launch.run``.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import errno
import os
import shutil
import signal
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from stashtrace.errors import CaptureError, UsageError


def find_program(command: Sequence[str]) -> str:
    """Path of the program that ``command`` names.

    Raises
    ------
    UsageError
        If nothing is named, or nothing of that name exists.
    CaptureError
        If it exists and cannot be executed.
    """
    if not command:
        raise UsageError("no command to run", hint="put it after two dashes: `stashtrace run -- python train.py`")
    name = command[0]
    script_hint = f"did you mean `stashtrace run -- python {' '.join(command)}`?"
    if "/" in name:
        path = Path(name)
        if not path.exists():
            raise UsageError(f"command not found: {name}")
        if path.is_dir():
            raise CaptureError(f"{name} is a directory, not a command")
        if not os.access(path, os.X_OK):
            raise CaptureError(
                f"{name} is not executable", hint=script_hint if name.endswith(".py") else f"`chmod +x {name}`"
            )
        return name
    found = shutil.which(name)
    if found is None:
        here = Path(name).exists()
        raise UsageError(
            f"command not found: {name}",
            hint=script_hint
            if here and name.endswith(".py")
            else f"`stashtrace run -- ./{name}`, if it is the file here"
            if here
            else None,
        )
    return found


def spawn(program: str, command: Sequence[str], environment: Mapping[str, str], mask: Iterable[int]) -> int:
    """Start it with this signal mask; the process id.

    Raises
    ------
    CaptureError
        If the system refuses.
    """
    # Python ignores these two for itself; the command gets them as any shell would give them.
    defaults = [signal.SIGPIPE, signal.SIGXFSZ]
    try:
        return os.posix_spawn(program, list(command), dict(environment), setsigmask=mask, setsigdef=defaults)
    except OSError as error:
        hint = None
        if error.errno == errno.ENOEXEC:
            hint = "a script needs a first line such as #!/bin/sh"
        elif error.errno == errno.E2BIG:
            hint = "arguments and environment together are too long for the kernel"
        raise CaptureError(f"cannot start {command[0]}: {(error.strerror or str(error)).lower()}", hint=hint) from error
