"""Plugin of pytest: compilers make programs for aarch64, which run under qemu-user, on another build of the recorder.

``-p native.emulated`` with STASHTRACE_TEST_LIBRARY (the build), as of native/instrumented.py. Programs that an emulated
one starts, and those in Python, cannot be emulated: such tests are not for this plugin.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from stashtrace.record import environment

SYSROOT = Path("/usr/aarch64-linux-gnu")
#: The name that tests call a compiler by -> what is called.
COMPILERS = {name: f"aarch64-linux-gnu-{target}" for name, target in {"cc": "gcc", "gcc": "gcc", "g++": "g++"}.items()}
_MACHINE = (183).to_bytes(2, "little")  # EM_AARCH64, where an ELF header has it

_which = shutil.which
_start = subprocess.Popen


def emulator() -> str | None:
    """Path of qemu-user where programs for aarch64 can be built and run, else None."""
    found = _which("qemu-aarch64-static") or _which("qemu-aarch64")
    return found if _which(COMPILERS["g++"]) is not None and SYSROOT.is_dir() else None


def command_of(qemu: str, command: list[str], *, page_bytes: int = 4096) -> list[str]:
    """What runs a program for aarch64. It hands its environment on, LD_PRELOAD too."""
    return [qemu, "-L", str(SYSROOT), "-p", str(page_bytes), *command]


def _is_emulated(program: str) -> bool:
    try:
        with open(program, "rb") as file:
            head = file.read(20)
    except OSError:
        return False
    return head.startswith(b"\x7fELF") and head[18:20] == _MACHINE


class _Popen(_start):  # type: ignore[type-arg]
    def __init__(self, args: Any, *others: Any, **options: Any) -> None:
        qemu = emulator()
        if qemu is not None and isinstance(args, (list, tuple)) and _is_emulated(os.fspath(args[0])):
            args = command_of(qemu, [os.fspath(part) for part in args])
        super().__init__(args, *others, **options)


def pytest_configure() -> None:
    """Take the place of the compilers and of starting a program, before any test module is imported."""
    environment.LIBRARY_PATH = Path(os.environ["STASHTRACE_TEST_LIBRARY"])
    shutil.which = lambda name, *others, **options: _which(COMPILERS.get(str(name), name), *others, **options)
    subprocess.Popen = _Popen  # type: ignore[misc]
