"""Whether a rank that others wait for still works when its records end: then the job does not hang, it waits."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np

from stashtrace.analysis.findings.ending.last_activity import STANDS_STILL, ran_since, step_track
from stashtrace.analysis.findings.ending.newest_row import newest_ns
from stashtrace.analysis.stalls.sampled_cpus import timed_samples
from stashtrace.schema.kinds import IoFlag, ProcessRole
from stashtrace.schema.trace import Trace

#: What is looked at is this part of the wait, the last one.
_LAST_PART = 0.5
#: Ways of a rank to still work, the one that says most first: its records go on, its process reads or writes, or its
#: thread runs.
RECORDS, MOVES, RUNS = "records", "moves", "runs"
#: A process that stands still writes a log or a heartbeat now and then.
_LEAST_BYTES = 1 << 20
#: Rows of these are made by work; a thread that polls or sleeps again and again adds rows to ``waits``.
_WORKING = ("phases", "batches", "spans")


def still_works(trace: Trace, rank: int, since_ns: int) -> str:
    """Return how a rank works on at the end of the records, given how long others wait; empty if it does not."""
    end = newest_ns(trace)
    begin = end - round(_LAST_PART * since_ns)
    thread = step_track(trace, rank)
    if thread is not None and _makes_records(trace, thread[1], begin):
        return RECORDS
    if _moves_bytes(trace, rank, begin):
        return MOVES
    if thread is None:
        return ""
    ran = ran_since(trace, *thread, begin)
    return RUNS if ran is not None and ran[0] > STANDS_STILL else ""


def _makes_records(trace: Trace, track: int, begin_ns: int) -> bool:
    """Return whether a thread ended something but a wait or a message since a moment."""
    for name in _WORKING:
        table = trace.table(name)
        if ((table["track_id"] == track) & (table["end_ns"] >= begin_ns)).any():
            return True
    return any(
        bool(
            (
                (io["track_id"] == track)
                & (io["end_ns"] >= begin_ns)
                & ((io["io_flags"] & (IoFlag.SOCKET | IoFlag.PIPE)) == 0)
            ).any()
        )
        for io in trace.io_pieces()
    )


def _moves_bytes(trace: Trace, rank: int, begin_ns: int) -> bool:
    """Return whether the process of a rank read from, or wrote to, storage since a moment."""
    processes = trace.processes
    own = (processes["rank"] == rank) & (processes["role_code"] == ProcessRole.RANK)
    mine = set(processes["process_id"][own].tolist())
    for name in ("process_read_bytes_total", "process_write_bytes_total"):
        for (process, _), at, values in timed_samples(trace, name):
            rows = np.flatnonzero(at >= begin_ns)
            if process in mine and len(rows) > 1 and values[rows[-1]] - values[rows[0]] >= _LEAST_BYTES:
                return True
    return False
