"""Decodes the phases of DataLoader batches into the ``batches`` table.

Rows of the main process and of its workers share ``loader_id`` and ``batch_index``; analyses join them.
"""

from __future__ import annotations

from stashtrace.collectors.decode_context import DecodeContext, columns_of
from stashtrace.schema.trace import EventTables, RawProcess

RECORDS = ("batch",)
TABLES = ("batches",)


def decode(raw: RawProcess, context: DecodeContext) -> EventTables:
    """Fill ``batches``, sorted by track, then begin."""
    found = context.intervals(raw, "batch")
    if found is None:
        return context.tables()
    rows, columns = found
    columns |= columns_of(rows, "loader_id", "batch_index", "worker_id", "phase_code", "cpu_ns", "runqueue_ns")
    columns |= columns_of(rows, "major_faults_count", "block_inputs_count")
    return context.tables(batches={**columns, "rank": context.rank})
