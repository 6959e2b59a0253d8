"""Whether a program can be started with the runtime library in front of it, and why not.

Called by ``launch.run`` and ``launch.doctor``. The rules are the library's own (``csrc/hooks/exec_target.cpp``), which
applies them to every program that a traced process starts.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

from stashtrace.launch.environment import LIBRARY_PATH, LOOKUP_LIBRARY

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
            [str(path)], env=os.environ | variables, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", timeout=_TIMEOUT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return False
    return any(LIBRARY_PATH.name in line and "not found" not in line for line in done.stdout.splitlines())
