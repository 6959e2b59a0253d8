"""Decodes phases of training steps into the ``phases`` table.

Phases may nest, as a loss closure inside an optimizer or a recomputed forward inside backward; their flags say which.
"""

from __future__ import annotations

from stashtrace.collectors.decode_context import DecodeContext, columns_of
from stashtrace.schema.trace import EventTables, RawProcess

RECORDS = ("phase_span",)
TABLES = ("phases",)


def decode(raw: RawProcess, context: DecodeContext) -> EventTables:
    """Fill ``phases``, sorted by track, then begin."""
    found = context.intervals(raw, "phase_span")
    if found is None:
        return context.tables()
    rows, columns = found
    columns |= columns_of(rows, "phase_code", "phase_flags", "begin_cpu_ns", "end_cpu_ns")
    columns |= columns_of(rows, "begin_runqueue_ns", "end_runqueue_ns")
    return context.tables(phases={**columns, "name_code": context.codes(rows["name_id"])})
