"""Which job the site says owns each GPU of the host, as facts: one file a GPU, written by a prolog of the scheduler.

The convention is that of Princeton's jobstats, which other sites have taken over: ``/run/gpustat/UUID``, of a GPU or a
MIG instance, holds the id of the job and the number of its user. ``analysis/devices/gpu_jobs.py`` reads the facts.
"""

from __future__ import annotations

import os

VARIABLE, FOLDER = "STASHTRACE_GPU_JOBS", "/run/gpustat"
#: Begins the key of a fact, before the UUID; the same in ``analysis/devices/gpu_jobs.py``.
FACT = "gpu_job"
#: Files read of a host, and bytes of each.
_MOST_FILES, _MOST_BYTES = 256, 64


def folder() -> str:
    """Return the folder in which this site says whose GPUs are; empty where it has none."""
    path = os.environ.get(VARIABLE, FOLDER)
    return path if os.path.isdir(path) else ""


def record(path: str) -> None:
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
            recorder.record_fact(f"{FACT} {name}", words[0].decode("ascii", "replace"))
