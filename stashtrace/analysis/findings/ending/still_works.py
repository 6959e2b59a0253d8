"""Whether a rank that others wait for still works when its records end: then the job does not hang, it waits."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace

import numpy as np

from stashtrace.analysis.findings.ending.last_activity import ran_since, step_track
from stashtrace.analysis.findings.ending.looked import WORK, look_at_rank, was_seen
from stashtrace.analysis.findings.ending.newest_row import newest_ns
from stashtrace.analysis.stalls.sampled_cpus import timed_samples
from stashtrace.record.look.progress import Progress, way_of_progress
from stashtrace.schema.kinds import IoFlag, ProcessRole
from stashtrace.schema.trace import Trace

#: What is looked at is this part of the wait, the last one.
_LAST_PART = 0.5


def still_works(trace: Trace, rank: int, since_ns: int) -> str:
    """Return how a rank works on at the end of the records, given how long others wait; empty if it does not.

    The answer is one of ``record.look.progress``. Of a process that was looked at, the look tells, not its samples.
    """
    end = newest_ns(trace)
    begin = end - round(_LAST_PART * since_ns)
    thread = step_track(trace, rank)
    rows = int(thread is not None and _makes_records(trace, thread[1], begin))
    look = look_at_rank(trace, rank)
    if look is not None and was_seen(look):
        before, after = look.progress()
        return way_of_progress(replace(before, rows_count=0), replace(after, rows_count=rows))
    ran = ran_since(trace, *thread, begin) if thread is not None else None
    share, window = ran if ran is not None else (-1.0, end - begin)
    return way_of_progress(
        Progress(end - window, rows_count=0, moved_bytes=0, thread_run_ns=0 if ran is not None else -1),
        Progress(
            end, rows_count=rows, moved_bytes=_moved_bytes(trace, rank, begin), thread_run_ns=round(share * window)
        ),
    )


def _makes_records(trace: Trace, track: int, begin_ns: int) -> bool:
    """Return whether a thread ended something but a wait or a message since a moment."""
    return last_work_ns(trace, track) >= begin_ns


def last_work_ns(trace: Trace, track: int) -> int:
    """Return when a thread last ended something but a wait or a message; -1 if it never did."""
    last = -1
    for name in WORK:
        table = trace.table(name)
        last = max(last, int(table["end_ns"][table["track_id"] == track].max(initial=-1)))
    for io in trace.io_pieces():
        work = (io["track_id"] == track) & ((io["io_flags"] & (IoFlag.SOCKET | IoFlag.PIPE)) == 0)
        last = max(last, int(io["end_ns"][work].max(initial=-1)))
    return last


def _moved_bytes(trace: Trace, rank: int, begin_ns: int) -> int:
    """Return the bytes that the process of a rank read from, or wrote to, storage since a moment; the larger ones."""
    processes = trace.processes
    own = (processes["rank"] == rank) & (processes["role_code"] == ProcessRole.RANK)
    mine = set(processes["process_id"][own].tolist())
    moved = 0.0
    for name in ("process_read_bytes_total", "process_write_bytes_total"):
        for (process, _), at, values in timed_samples(trace, name):
            rows = np.flatnonzero(at >= begin_ns)
            if process in mine and len(rows) > 1:
                moved = max(moved, float(values[rows[-1]] - values[rows[0]]))
    return round(moved)
