"""The time of the newest row of a run, and the shortest wait at its end that is reported.

The newest moment is that of the newest row of the run. Samplers add rows ten times a second while a process lives.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np

from stashtrace.schema.trace import Trace

#: A wait for a collective longer than this is worth a line.
SUSPICIOUS_NS = 1_000_000_000
_TIME_COLUMNS = ("end_ns", "ts_ns", "call_ns", "return_ns")


def newest_ns(trace: Trace, *, activity: bool = False, rank: int | None = None) -> int:
    """Return the time of the newest row; with ``activity``, counters and samples do not count."""
    newest = 0
    tables = ["phases", "batches", "collectives", "collective_waits", "waits", "spans", "io"]
    processes = trace.processes
    mine = set(processes["process_id"][processes["rank"] == rank].tolist()) if rank is not None else None
    of_mine = np.isin(trace.tracks["process_id"], sorted(mine or ()))
    tracks = set(trace.tracks["track_id"][of_mine].tolist())
    for name in tables if activity else [*tables, "counters"]:
        table = trace.table(name)
        if mine is not None and len(table):
            own = "process_id" if "process_id" in table else "track_id"
            table = table.take(np.isin(table[own], sorted(mine if own == "process_id" else tracks)))
        for column in _TIME_COLUMNS:
            if column in table and len(table):
                newest = max(newest, int(table[column].max()))
    return newest
