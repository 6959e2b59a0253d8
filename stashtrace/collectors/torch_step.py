"""Decodes phases of training steps into the ``phases`` table.

Called through the registry by ``loading.load``. Phases may nest: a loss closure inside an optimizer, a
recomputed forward inside backward; the flags say so.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np

from stashtrace.collectors.context import DecodeContext
from stashtrace.schema.trace import EventTables, RawProcess

RECORDS = ("phase_span",)
TABLES = ("phases",)


def decode(raw: RawProcess, context: DecodeContext) -> EventTables:
    """Fill ``phases``, sorted by track, then begin."""
    found = context.by_track(raw, "phase_span")
    if found is None:
        return context.tables()
    rows, begin_ns, track_id = found
    return context.tables(
        phases={
            "begin_ns": begin_ns,
            "end_ns": context.to_ns(rows["end_ticks"]),
            "track_id": track_id,
            "process_id": context.process_id,
            "phase_code": rows["phase_code"].astype(np.int64),
            "phase_flags": rows["phase_flags"].astype(np.int64),
            "name_code": context.codes(rows["name_id"]),
            "begin_cpu_ns": rows["begin_cpu_ns"],
            "end_cpu_ns": rows["end_cpu_ns"],
            "begin_runqueue_ns": rows["begin_runqueue_ns"],
            "end_runqueue_ns": rows["end_runqueue_ns"],
        }
    )
