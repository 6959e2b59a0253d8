"""The program of a command line: finding it as a shell does, starting it, preloading the recorder, asking a Python."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from stashtrace.errors import CaptureError, UsageError, say_why
from stashtrace.record.environment import LIBRARY_PATH, preload_path


def find_program(command: Sequence[str]) -> str:
    """Return the path of the program that ``command`` names.

    Raises UsageError if the command is empty, or no program has its name. Raises CaptureError if the program cannot be
    executed.
    """
    if not command:
        raise UsageError("no command to run", hint="put it after two dashes: `-- python train.py`")
    name = command[0]
    script_hint = f"did you mean `stashtrace run -- python {' '.join(command)}`?"
    if "/" in name:
        path = Path(name)
        if not path.exists():
            raise UsageError(f"command not found: {name}", hint=_missing_hint(path))
        if path.is_dir():
            raise CaptureError(f"{name} is a directory, not a command", hint="name the program in it")
        if not os.access(path, os.X_OK):
            raise CaptureError(
                f"{name} is not executable", hint=script_hint if name.endswith(".py") else f"`chmod +x {name}`"
            )
        return name
    path_found = shutil.which(name)
    if path_found is not None:
        return path_found
    hint = "no folder of PATH has it; a program elsewhere is named with its path"
    if Path(name).exists():
        hint = script_hint if name.endswith(".py") else f"`stashtrace run -- ./{name}`, if it is the file here"
    elif name.endswith(".py"):
        hint = _missing_hint(Path(name), "python ")
    raise UsageError(f"command not found: {name}", hint=hint)


#: Programs, and modules of Python, whose first word that ends in ``.py`` is the script that they start.
_LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "torch.distributed.run", "torch.distributed.launch")


def check_script(command: Sequence[str]) -> None:
    """Raise UsageError if the command is Python, or a launcher of its jobs, and its script does not exist."""
    script = _script_of(command)
    if script and not Path(script).exists():
        raise UsageError(f"script not found: {script}", hint=_missing_hint(Path(script)))


def _missing_hint(path: Path, interpreter: str = "") -> str:
    """Return the file that was probably meant, or where it was looked for."""
    near = near_path(path)
    if near is None:
        return f"it is looked for in {path.absolute().parent}"
    return f"did you mean `{interpreter}{near}`?"


def near_path(path: Path) -> Path | None:
    """Return what lies in the folder of a path that does not exist, under a similar name; other numbers are another."""
    try:
        names = os.listdir(path.parent)
    except OSError:
        return None
    letters = re.sub(r"\d", "", path.name)
    near = get_close_matches(path.name, [name for name in names if re.sub(r"\d", "", name) != letters], 1, 0.7)
    return path.with_name(near[0]) if near else None


def _script_of(command: Sequence[str]) -> str:
    """Return the script that a command names; empty where it is unknown, or there is none."""
    name, words = Path(command[0]).name, iter(command[1:])
    if _PYTHON_NAME.fullmatch(name):
        for word in words:
            if not word.startswith("-"):
                return word
            letter = next((at for at in word[1:] if at in "cmWX"), "")
            if word == "-" or word.startswith("--") or letter == "c":
                return ""
            if letter == "m":
                name = word.partition("m")[2] or next(words, "")
                break
            if letter and word.endswith(letter):
                next(words, "")
    scripts = (word for word in words if word.endswith(".py") and not word.startswith("-"))
    return next(scripts, "") if name in _LAUNCHERS else ""


def spawn(program: str, command: Sequence[str], environment: Mapping[str, str], mask: Iterable[int]) -> int:
    """Start ``program`` with a signal mask; return its process id. Raises CaptureError if the system refuses."""
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
        raise CaptureError(f"cannot start {command[0]}: {say_why(error)}", hint=hint) from error


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


def loader_takes_library(path: str | os.PathLike[str]) -> bool:
    """Return True if the loader of a dynamic program loads the library; the program itself does not run."""
    variables = {"LD_PRELOAD": preload_path(LIBRARY_PATH), "LD_TRACE_LOADED_OBJECTS": "1"}
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


#: Oldest Python that the probes run in.
OLDEST_PYTHON = (3, 10)
_ASK_S = 20.0
_PYTHON_NAME = re.compile(r"python[0-9.]*t?")
# Any Python from 2.7 on reads it.
_FACTS_CODE = """
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
def stacks():
    import ctypes
    if sys.version_info < (3, 10): return None
    make = ctypes.PyDLL(sys.argv[1]).stashtrace_python_functions
    make.restype = ctypes.py_object
    made = make()
    why = made["start_stacks"](sys.hexversion)
    if why: return why
    own = made["own_stack"]()
    return "" if own and own[0][0] == b"stacks" else "its frames are not where they were in other builds"
facts = [found(fact) for fact in (torch, ctypes, own, gil, stacks)]
sys.stdout.write(json.dumps([platform.python_implementation(), list(sys.version_info[:3])] + facts))
"""


@dataclass(frozen=True, slots=True)
class JobPython:
    """What a Python said of itself."""

    #: ``CPython``, ``PyPy``, ...
    implementation: str
    #: Major, minor, micro.
    version: tuple[int, ...]
    #: Version of the torch that is installed in its environment.
    torch: str | None
    #: False for one that was built without libffi.
    has_ctypes: bool
    #: Path of the ``stashtrace`` that its environment has, which need not be this one.
    stashtrace: str | None
    #: Whether it runs without a GIL.
    without_gil: bool
    #: Why its functions cannot be recorded, empty if they can; None if it could not try.
    no_stacks: str | None = None

    def obstacle(self) -> str | None:
        """Return why the probes do not run in it, None if they do."""
        if self.implementation != "CPython":
            return f"the probes need CPython, this is {self.implementation}"
        if self.version[:2] < OLDEST_PYTHON:
            return f"the probes need Python {OLDEST_PYTHON[0]}.{OLDEST_PYTHON[1]} or newer"
        return None if self.has_ctypes else "the probes need the module ctypes, which this Python lacks"


def is_python(program: str) -> bool:
    """Return True if a program has the name of a Python."""
    return _PYTHON_NAME.fullmatch(Path(program).name) is not None


def ask_python(program: str) -> JobPython | None:
    """Ask a Python about itself; None if it does not answer.

    The command does not run: its interpreter runs a few lines of ours, without the current folder in its path.
    """
    command = [program, "-c", _FACTS_CODE, str(LIBRARY_PATH)]
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
        implementation, version, torch, ctypes, own, gil, no_stacks = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
    return JobPython(implementation, tuple(version), torch, bool(ctypes), own, gil is False, no_stacks)


# `python -m` searches the current folder first, so a `types.py` or a folder `stashtrace` of the user would be imported
# in place of the real one. Our own programs start in a way that leaves that folder out.

_ROOT = str(Path(__file__).resolve().parents[2])
#: With ``-c`` the first entry of the path is empty and means the current folder, unless PYTHONSAFEPATH keeps it out.
#: Our own folder comes last, for a package that is not installed. ``sys``, imported before that, is built in.
_CODE = (
    "import sys; sys.path[:1] = [p for p in sys.path[:1] if p]; sys.path.append({root!r}); "
    "import runpy; runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
)


def own_program(module: str, *arguments: str) -> list[str]:
    """Return words that run ``module`` as ``python -m`` does, without the current folder in its import path."""
    return [sys.executable, "-c", _CODE.format(root=_ROOT, module=module), *arguments]
