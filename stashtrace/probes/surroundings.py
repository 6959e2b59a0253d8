"""What is around a traced process: the processors that it is pinned to, the jobs that own the GPUs, MPI.

Every Python of a job may load this, and the recorder only where there is something to record.
"""

from __future__ import annotations

import os
import re
from types import ModuleType

#: Key of the fact that holds the processors of a pinned process; the same in ``lab/tune/run_job.py``.
CPU_SHARE = "cpu_share"
_LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PMI_LOCAL_RANK", "SLURM_LOCALID")


def pin_to_share() -> None:
    """Pin this process if it is a rank and STASHTRACE_CPU_SHARES is set, as a fact says; workers inherit it.

    ``stashtrace characterize`` sets it, as a rank that runs alone must not be faster because the processors of the
    others are idle, and ``stashtrace tune`` tries it. ``0-3;4-7`` gives rank 0 of a host the first four. A ``loss`` row
    says if it fails.
    """
    text = os.environ.get("STASHTRACE_CPU_SHARES", "")
    local_rank = next((os.environ[name] for name in _LOCAL_RANKS if os.environ.get(name, "").isdecimal()), "")
    if not text or not local_rank:
        return
    from stashtrace.probes import recorder

    try:
        shares = text.split(";")
        share = shares[int(local_rank) % len(shares)]
        os.sched_setaffinity(0, parsed_cpus(share))
    except (OSError, ValueError) as error:
        recorder.unavailable("proc", "not_pinned", f"{text}: {error}")
    else:
        recorder.record_fact(CPU_SHARE, share)


def parsed_cpus(text: str) -> set[int]:
    """Return the processors of a list such as ``0-3,8``. Raises ValueError if the text is not such a list."""
    cpus: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        cpus |= set(range(int(first), int(last if dash else first) + 1))
    return cpus


_JOBS_VARIABLE, _JOBS_FOLDER = "STASHTRACE_GPU_JOBS", "/run/gpustat"
#: Begins the key of a fact, before the UUID; the same in ``analysis/devices/device_identity.py``.
GPU_JOB = "gpu_job"
#: Files read of a host, and bytes of each.
_MOST_FILES, _MOST_BYTES = 256, 64


def gpu_jobs_folder() -> str:
    """Return the folder in which a prolog of this site's scheduler says whose GPUs are; empty where it has none.

    The convention is that of Princeton's jobstats, which other sites have taken over: ``/run/gpustat/UUID``, of a GPU
    or a MIG instance, holds the id of the job and the number of its user.
    """
    path = os.environ.get(_JOBS_VARIABLE, _JOBS_FOLDER)
    return path if os.path.isdir(path) else ""


def record_gpu_jobs(path: str) -> None:
    """Record the job of each GPU that a folder names by its UUID. Numbers of GPUs, which it has too, say less."""
    from stashtrace.probes import recorder

    try:
        names = [name for name in sorted(os.listdir(path)) if name.startswith(("GPU-", "MIG-"))]
    except OSError as error:
        recorder.failed("core", "gpu_jobs", error)
        return
    for name in names[:_MOST_FILES]:
        try:
            with open(os.path.join(path, name), "rb") as file:
                words = file.read(_MOST_BYTES).split()
        except OSError:  # the epilog of a job that ended has removed it
            continue
        if words:
            recorder.record_fact(f"{GPU_JOB} {name}", words[0].decode("ascii", "replace"))


#: Open MPI, Intel MPI, MPICH and its derivatives, Cray.
_MPI = re.compile(r"/libmpi(?:ch|_cray\w*|_gnu\w*|_intel\w*)?\.so(?:\.[0-9.]+)?$")
_noted_by = 0


def watch_for_mpi() -> None:
    """Look at the end of this process; forked children look at theirs."""
    from stashtrace.probes import process

    owner = os.getpid()

    def ends() -> None:
        if os.getpid() == owner:
            note_mpi()

    process.before_end(ends)


def look_for_mpi(mpi: ModuleType) -> None:
    """Look now that ``mpi4py.MPI`` has been imported, in case the rank is killed before its end."""
    note_mpi()


def note_mpi() -> None:
    """Record the path of the MPI library if it is loaded, once for a process: its calls look like work of the rank."""
    global _noted_by
    if _noted_by == os.getpid():
        return
    from stashtrace.probes import recorder

    path = mpi_library()
    if path is not None:
        _noted_by = os.getpid()
        recorder.record_fact("mpi_loaded", path)


def mpi_library() -> str | None:
    """Return the path of the MPI library that is mapped into this process, None if there is none."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            if "/libmpi" in line:
                path = line[line.index("/") :].rstrip("\n")
                if _MPI.search(path):
                    return path
    return None
