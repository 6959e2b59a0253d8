"""Decodes blocking waits of watched threads into the ``waits`` table."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stashtrace.collectors.decode_context import DecodeContext, columns_of
from stashtrace.schema.groupby import Int64
from stashtrace.schema.trace import EventTables, RawProcess

RECORDS = ("thread_wait",)
TABLES = ("waits",)


def decode(raw: RawProcess, context: DecodeContext) -> EventTables:
    """Fill ``waits``, sorted by track, then begin."""
    found = context.intervals(raw, "thread_wait")
    if found is None:
        return context.tables()
    rows, columns = found
    columns |= columns_of(rows, "wait_code")
    columns["gil_track_id"] = _holders(raw, context, rows)
    return context.tables(waits=columns)


def _holders(raw: RawProcess, context: DecodeContext, rows: npt.NDArray[np.void]) -> Int64:
    """Return the thread that held the GIL last at the end of each wait: recorded are the low bits of its number."""
    samples = raw.rows("stack_sample")
    if samples is None or "gil_holder_hash" not in (rows.dtype.names or ()):  # not in every file
        return np.full(len(rows), -1, dtype=np.int64)
    tids = np.unique(samples["tid"])
    low, first, count = np.unique(tids & 0xFFFF, return_index=True, return_counts=True)
    tids, low = tids[first[count == 1]], low[count == 1]
    at = np.searchsorted(low, rows["gil_holder_hash"])
    known = np.append(low, -1)[at] == rows["gil_holder_hash"]
    return context.caller_tracks(np.where(known, np.append(tids, 0)[at], 0))
