"""Decodes blocking waits of watched threads into the ``waits`` table.

Called through the registry by ``loading.load``.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np

from stashtrace.collectors.context import DecodeContext
from stashtrace.schema.trace import EventTables, RawProcess

RECORDS = ("thread_wait",)
TABLES = ("waits",)


def decode(raw: RawProcess, context: DecodeContext) -> EventTables:
    """Fill ``waits``, sorted by track, then begin."""
    found = context.by_track(raw, "thread_wait")
    if found is None:
        return context.tables()
    rows, begin_ns, track_id = found
    return context.tables(
        waits={
            "begin_ns": begin_ns,
            "end_ns": context.to_ns(rows["end_ticks"]),
            "track_id": track_id,
            "process_id": context.process_id,
            "wait_code": rows["wait_code"].astype(np.int64),
        }
    )
