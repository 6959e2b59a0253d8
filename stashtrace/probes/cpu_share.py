"""STASHTRACE_CPU_SHARES: pin a rank to its own processors, whatever the number of ranks.

``stashtrace characterize`` sets it, as a rank that runs alone must not be faster because the processors of the others
are idle, and ``stashtrace tune`` tries it. ``0-3;4-7`` gives rank 0 of a host the first four. Workers inherit the
pinning.
"""

from __future__ import annotations

import os

#: Key of the fact that holds the processors of a pinned process; the same in ``lab/tune/run_job.py``.
FACT = "cpu_share"
_LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PMI_LOCAL_RANK", "SLURM_LOCALID")


def apply() -> None:
    """Pin this process if it is a rank and the variable is set, as a fact says; a ``loss`` row says if it fails."""
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
        recorder.record_fact(FACT, share)


def parsed_cpus(text: str) -> set[int]:
    """Return the processors of a list such as ``0-3,8``.

    Raises ValueError if the text is not such a list.
    """
    cpus: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        cpus |= set(range(int(first), int(last if dash else first) + 1))
    return cpus
