"""Decodes blocking waits of watched threads into the ``waits`` table.

Called through the registry by ``align.align``.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np

from stashtrace.collectors.context import DecodeContext
from stashtrace.model.trace import EventTables, RawProcess

RECORDS = ("thread_wait",)
TABLES = ("waits",)


def decode(raw: RawProcess, context: DecodeContext) -> EventTables:
    """Fill ``waits``, sorted by track, then begin."""
    records = raw.records.get("thread_wait")
    if records is None or len(records.rows) == 0:
        return context.tables()
    rows = records.rows
    begin = context.to_ns(rows["begin_ticks"])
    track = context.tracks(records.tid)
    order = np.lexsort((begin, track))
    return context.tables(
        waits={
            "begin_ns": begin[order],
            "end_ns": context.to_ns(rows["end_ticks"])[order],
            "track_id": track[order],
            "process_id": context.process_id,
            "wait_code": rows["wait_code"].astype(np.int64)[order],
        }
    )
