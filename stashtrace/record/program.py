"""The program of a command line: finding it as a shell does, starting it, and preloading the recorder into it."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ctypes
import errno
import os
import shutil
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from stashtrace.errors import CaptureError, UsageError
from stashtrace.record.environment import LIBRARY_PATH, LOOKUP_LIBRARY


def find_program(command: Sequence[str]) -> str:
    """Return the path of the program that ``command`` names.

    Raises
    ------
    UsageError
        If the command is empty, or no program has its name.
    CaptureError
        If the program cannot be executed.
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
    path_found = shutil.which(name)
    if path_found is not None:
        return path_found
    hint = None
    if Path(name).exists():
        hint = script_hint if name.endswith(".py") else f"`stashtrace run -- ./{name}`, if it is the file here"
    raise UsageError(f"command not found: {name}", hint=hint)


def spawn(program: str, command: Sequence[str], environment: Mapping[str, str], mask: Iterable[int]) -> int:
    """Start ``program`` with a signal mask; return its process id.

    Raises
    ------
    CaptureError
        If the system refuses.
    """
    # Python ignores these two itself; the command gets their defaults, as from a shell.
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


_LOADER_TIMEOUT_S = 20


def preload_obstacle(path: str | os.PathLike[str]) -> str | None:
    """Return why a program or script must be started without the library; None if nothing is in the way.

    The rules are the library's own (``csrc/hooks/exec_target.cpp``), which applies them to every program that a traced
    process starts. None also for a file that cannot be read, and for a static program, which ignores LD_PRELOAD.
    """
    try:
        ask = ctypes.CDLL(str(LIBRARY_PATH)).stashtrace_why_not_preloaded
    except (OSError, AttributeError):
        return None
    ask.restype = ctypes.c_char_p
    ask.argtypes = (ctypes.c_char_p,)
    answer = ask(os.fsencode(path))
    return answer.decode() if answer else None


def without_library(preload: str) -> str:
    """Return LD_PRELOAD without our libraries; the others keep their order."""
    ours = (LIBRARY_PATH.name, LOOKUP_LIBRARY)
    return ":".join(part for part in preload.replace(" ", ":").split(":") if part and Path(part).name not in ours)


def loader_takes_library(path: str | os.PathLike[str]) -> bool:
    """Return True if the loader of a dynamic program loads the library; the program itself does not run."""
    variables = {"LD_PRELOAD": str(LIBRARY_PATH), "LD_TRACE_LOADED_OBJECTS": "1"}
    try:
        done = subprocess.run(
            [str(path)],
            env=os.environ | variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LOADER_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return any(LIBRARY_PATH.name in line and "not found" not in line for line in done.stdout.splitlines())
