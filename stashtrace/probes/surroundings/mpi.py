"""Record whether a process has loaded MPI. We do not see its calls, which look like work of the rank.

Looked for when mpi4py has been imported, and at the end of a process, when all libraries that it used are loaded. The
fact ``mpi_loaded`` is the path of the library.
"""

from __future__ import annotations

import os
import re
from types import ModuleType

from stashtrace.probes import process, recorder

#: Open MPI, Intel MPI, MPICH and its derivatives, Cray.
_LIBRARY = re.compile(r"/libmpi(?:ch|_cray\w*|_gnu\w*|_intel\w*)?\.so(?:\.[0-9.]+)?$")
_noted_by = 0


def watch() -> None:
    """Look at the end of this process; forked children look at theirs."""
    owner = os.getpid()

    def ends() -> None:
        if os.getpid() == owner:
            note()

    process.before_end(ends)


def install(mpi: ModuleType) -> None:
    """Look now that ``mpi4py.MPI`` has been imported, in case the rank is killed before its end."""
    note()


def note() -> None:
    """Record the fact if MPI is loaded, once for a process."""
    global _noted_by
    if _noted_by == os.getpid():
        return
    path = loaded_library()
    if path is not None:
        _noted_by = os.getpid()
        recorder.record_fact("mpi_loaded", path)


def loaded_library() -> str | None:
    """Return the path of the MPI library that is mapped into this process, None if there is none."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            if "/libmpi" in line:
                path = line[line.index("/") :].rstrip("\n")
                if _LIBRARY.search(path):
                    return path
    return None
