"""Whether a process has loaded MPI, whose calls nothing of ours sees: they look like work of the rank.

Asked when mpi4py has been imported, and at the end of a process, when every library that it used is there. The fact
``mpi_loaded`` is the path of the library.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import re
from types import ModuleType

from stashtrace.probes import process, recorder

#: Open MPI, Intel MPI, MPICH and its kin, Cray.
_LIBRARY = re.compile(r"/libmpi(?:ch|_cray\w*|_gnu\w*|_intel\w*)?\.so(?:\.[0-9.]+)?$")
_noted_by = 0


def watch() -> None:
    """Ask at the end of this process; children that are forked from it have ends of their own."""
    owner = os.getpid()

    def ends() -> None:
        if os.getpid() == owner:
            note()

    process.before_end(ends)


def install(mpi: ModuleType) -> None:
    """Called when ``mpi4py.MPI`` has been imported: a rank that is killed later is known to use MPI, too."""
    note()


def note() -> None:
    """Record the fact, once for a process."""
    global _noted_by
    if _noted_by == os.getpid():
        return
    path = loaded_library()
    if path:
        _noted_by = os.getpid()
        recorder.record_fact("mpi_loaded", path)


def loaded_library() -> str:
    """Path of the MPI library that is mapped into this process, empty if none is."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            if "/libmpi" in line:
                path = line.rstrip("\n").partition("/")
                if _LIBRARY.search(path[1] + path[2]):
                    return path[1] + path[2]
    return ""
