"""The Python that a command starts: its version and what its environment has, asked of itself.

The command does not run: its interpreter runs a few lines of ours, without the current folder in its path.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

#: Oldest Python that the probes run in.
OLDEST = (3, 10)
_ASK_S = 20.0
_NAME = re.compile(r"python[0-9.]*t?")
# Any Python from 2.7 on reads it.
_CODE = """
import sys
sys.path[:1] = [entry for entry in sys.path[:1] if entry]
import json, platform
def found(ask):
    try: return ask()
    except Exception: return None
def torch():
    from importlib.metadata import version
    return version("torch")
def ctypes():
    import ctypes
    return True
def own():
    from importlib.util import find_spec
    return find_spec("stashtrace").origin
def gil():
    return sys._is_gil_enabled()
facts = [found(fact) for fact in (torch, ctypes, own, gil)]
sys.stdout.write(json.dumps([platform.python_implementation(), list(sys.version_info[:3])] + facts))
"""


@dataclass(frozen=True, slots=True)
class JobPython:
    """What a Python said of itself.

    Attributes
    ----------
    implementation : str
        ``CPython``, ``PyPy``, ...
    version : tuple of int
        Major, minor, micro.
    torch : str or None
        Version of the torch that is installed in its environment.
    has_ctypes : bool
        False for one that was built without libffi.
    stashtrace : str or None
        Path of the ``stashtrace`` that its environment has, which need not be this one.
    without_gil : bool
        Whether it runs without a GIL.
    """

    implementation: str
    version: tuple[int, ...]
    torch: str | None
    has_ctypes: bool
    stashtrace: str | None
    without_gil: bool

    def obstacle(self) -> str | None:
        """Return why the probes do not run in it, None if they do."""
        if self.implementation != "CPython":
            return f"the probes need CPython, this is {self.implementation}"
        if self.version[:2] < OLDEST:
            return f"the probes need Python {OLDEST[0]}.{OLDEST[1]} or newer"
        return None if self.has_ctypes else "the probes need the module ctypes, which this Python lacks"


def is_python(program: str) -> bool:
    """Return True if a program has the name of a Python."""
    return _NAME.fullmatch(Path(program).name) is not None


def ask(program: str) -> JobPython | None:
    """Ask a Python about itself; None if it does not answer.

    Parameters
    ----------
    program : str
        Its path.
    """
    command = [program, "-c", _CODE]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ASK_S,
            check=True,
        )
        implementation, version, torch, ctypes, own, gil = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
    return JobPython(implementation, tuple(version), torch, bool(ctypes), own, gil is False)
