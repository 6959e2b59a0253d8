"""Decodes I/O calls: rows of ``io_op`` and ``io_op_long`` become the ``io`` table.

Millions of rows are usual, so all work is on whole columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stashtrace.collectors.decode_context import DecodeContext
from stashtrace.schema.trace import EventTables, RawProcess, RawRecords

RECORDS = ("io_op", "io_op_long")
TABLES = ("io",)


def decode(raw: RawProcess, context: DecodeContext) -> EventTables:
    """Fill ``io``, sorted by track, then begin.

    A thread writes a row when its call returns; a signal handler's row therefore lies before that of the call it
    interrupted, and calls that did not fit ``io_op`` come from a separate ring.
    """
    if not context.wants("io"):
        return context.tables()
    parts: list[dict[str, Any]] = []
    short, long = raw.rows("io_op"), raw.rows("io_op_long")
    if short is not None:
        begin = short["begin_ticks"].astype(np.uint64)
        parts.append(_columns(raw.records["io_op"], begin, begin + short["duration_ticks"], context))
    if long is not None:
        parts.append(_columns(raw.records["io_op_long"], long["begin_ticks"], long["end_ticks"], context))
    if not parts:
        return context.tables()
    columns = parts[0] if len(parts) == 1 else {k: np.concatenate([p[k] for p in parts]) for k in parts[0]}
    return context.tables(io=_sort(columns))


def _columns(records: RawRecords, begin: Any, end: Any, context: DecodeContext) -> dict[str, Any]:
    rows = records.rows
    return {
        "begin_ns": context.to_ns(begin),
        "end_ns": context.to_ns(end),
        "track_id": context.tracks(records.tid).astype(np.int32),
        "path_code": context.codes(rows["path_id"]).astype(np.int32),
        "op_code": rows["op_code"].astype(np.int16),
        "io_flags": rows["io_flags"].astype(np.int16),
        "offset_bytes": rows["offset_bytes"],
        "result_bytes": rows["result_bytes"].astype(np.int64),
    }


def _sort(columns: dict[str, Any]) -> dict[str, Any]:
    """Sort only if need be: most processes' rows are in order already."""
    track, begin = columns["track_id"], columns["begin_ns"]
    same_track = track[1:] == track[:-1]
    in_order = (track[1:] > track[:-1]) | (same_track & (begin[1:] >= begin[:-1]))
    if bool(in_order.all()):
        return columns
    order = np.lexsort((begin, track))
    return {name: column[order] for name, column in columns.items()}
