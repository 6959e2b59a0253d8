"""STASHTRACE_CPU_SHARES: a rank keeps to its own processors, the same however many ranks there are.

Only ``stashtrace characterize`` sets it: a rank that runs alone must not be faster because the processors of the others
are idle. ``0-3;4-7`` gives rank 0 of a host the first four. Workers inherit it.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os

_LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PMI_LOCAL_RANK", "SLURM_LOCALID")


def apply() -> None:
    """Pin this process if it is a rank and was told to; anything wrong with that is a ``loss`` row."""
    shares = os.environ.get("STASHTRACE_CPU_SHARES", "")
    local = next((os.environ[name] for name in _LOCAL_RANKS if os.environ.get(name, "").isdecimal()), "")
    if not shares or not local:
        return
    try:
        listed = shares.split(";")
        os.sched_setaffinity(0, parsed_cpus(listed[int(local) % len(listed)]))
    except (OSError, ValueError) as error:
        from stashtrace.probes import recorder

        recorder.unavailable("proc", "not_pinned", f"{shares}: {error}")


def parsed_cpus(text: str) -> set[int]:
    """Processors of ``0-3,8``.

    Raises
    ------
    ValueError
        If it is no such list.
    """
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        found |= set(range(int(first), int(last if dash else first) + 1))
    return found
