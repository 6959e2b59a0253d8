"""The program behind a command line: found as a shell would, with better words when it is not, and started."""

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


# Whether a program can be started with the runtime library in front of it, and why not.
#
# The rules are the library's own (``csrc/hooks/exec_target.cpp``),
# which applies them to every program that a traced process starts.

_TIMEOUT_S = 20


def why_not_preloaded(path: str | os.PathLike[str]) -> str:
    """Why a program or script must be started without the library, in words; empty if it can be started with it.

    Empty as well for a file that cannot be read and for a static program, which does not look at LD_PRELOAD.
    """
    try:
        ask = ctypes.CDLL(str(LIBRARY_PATH)).stashtrace_why_not_preloaded
    except (OSError, AttributeError):
        return ""
    ask.restype = ctypes.c_char_p
    ask.argtypes = (ctypes.c_char_p,)
    answer = ask(os.fsencode(path))
    return answer.decode() if answer else ""


def without_library(preload: str) -> str:
    """LD_PRELOAD without the libraries of ours; the others in their order."""
    ours = (LIBRARY_PATH.name, LOOKUP_LIBRARY)
    return ":".join(part for part in preload.replace(" ", ":").split(":") if part and Path(part).name not in ours)


def loader_takes_library(path: str | os.PathLike[str]) -> bool:
    """Ask the loader of a dynamic program whether it loads the library; the program itself does not run."""
    variables = {"LD_PRELOAD": str(LIBRARY_PATH), "LD_TRACE_LOADED_OBJECTS": "1"}
    try:
        done = subprocess.run(
            [str(path)],
            env=os.environ | variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return any(LIBRARY_PATH.name in line and "not found" not in line for line in done.stdout.splitlines())
