"""Decodes the life of DataLoader batches into the ``batches`` table.

Called through the registry by ``loading.load``. Rows of the main process and of its workers share
``loader_id`` and ``batch_index``; joining them is left to the analyses.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np

from stashtrace.collectors.context import DecodeContext
from stashtrace.schema.trace import EventTables, RawProcess

RECORDS = ("batch",)
TABLES = ("batches",)


def decode(raw: RawProcess, context: DecodeContext) -> EventTables:
    """Fill ``batches``, sorted by track, then begin."""
    found = context.by_track(raw, "batch")
    if found is None:
        return context.tables()
    rows, begin_ns, track_id = found
    return context.tables(
        batches={
            "begin_ns": begin_ns,
            "end_ns": context.to_ns(rows["end_ticks"]),
            "track_id": track_id,
            "process_id": context.process_id,
            "rank": context.rank,
            "loader_id": rows["loader_id"],
            "batch_index": rows["batch_index"],
            "worker_id": rows["worker_id"].astype(np.int64),
            "phase_code": rows["phase_code"].astype(np.int64),
            "cpu_ns": rows["cpu_ns"],
            "runqueue_ns": rows["runqueue_ns"],
            "major_faults_count": rows["major_faults_count"].astype(np.int64),
            "block_inputs_count": rows["block_inputs_count"].astype(np.int64),
        }
    )
