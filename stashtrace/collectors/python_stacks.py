"""Decodes stacks of Python code into the tables ``frames``, ``stack_samples`` and ``stack_spans``."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace.collectors.decode_context import DecodeContext, columns_of
from stashtrace.schema.trace import EventTables, RawProcess

RECORDS = ("stack_frame", "stack_sample", "stack_span")
TABLES = ("frames", "stack_samples", "stack_spans")


def decode(raw: RawProcess, context: DecodeContext) -> EventTables:
    """Fill the three tables.

    A frame that two threads wrote at the same time is kept once. Of a stack whose frames were lost, all or some, a
    sample says that it is unknown, and a span is left out.
    """
    rows = raw.rows("stack_frame")
    frames = _whole(rows) if rows is not None else np.zeros(0, dtype=[("stack_id", "u4")])
    found = {
        "frames": _frames(frames, context) if len(frames) else None,
        "stack_samples": _samples(raw, context, frames["stack_id"]),
        "stack_spans": _spans(raw, context, frames["stack_id"]),
    }
    return context.tables(**{name: columns for name, columns in found.items() if columns is not None})


def _whole(rows: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    """Return the frames whose callers are all known, each once, in the order of their numbers."""
    _, first = np.unique(rows["stack_id"], return_index=True)
    rows = rows[first]
    while True:
        known = (rows["caller_id"] == 0) | np.isin(rows["caller_id"], rows["stack_id"])
        if known.all():
            return rows
        rows = rows[known]


def _frames(rows: npt.NDArray[np.void], context: DecodeContext) -> dict[str, Any]:
    return {
        "process_id": np.full(len(rows), context.process_id, dtype=np.int64),
        "frame_key": rows["stack_id"].astype(np.int64),
        "caller_key": rows["caller_id"].astype(np.int64),
        "name_code": context.codes(rows["name_id"]),
        "path_code": context.codes(rows["path_id"]),
        "line": rows["line"].astype(np.int64),
        "first_line": rows["first_line"].astype(np.int64),
    }


def _samples(raw: RawProcess, context: DecodeContext, known: npt.NDArray[np.uint32]) -> dict[str, Any] | None:
    rows = raw.rows("stack_sample")
    if rows is None:
        return None
    return {
        "ts_ns": context.to_ns(rows["ticks"]),
        "track_id": context.caller_tracks(rows["tid"]),
        "process_id": np.full(len(rows), context.process_id, dtype=np.int64),
        "frame_key": np.where(np.isin(rows["stack_id"], known), rows["stack_id"], 0).astype(np.int64),
        "sample_flags": rows["sample_flags"].astype(np.int64),
    }


def _spans(raw: RawProcess, context: DecodeContext, known: npt.NDArray[np.uint32]) -> dict[str, Any] | None:
    found = context.intervals(raw, "stack_span")
    if found is None:
        return None
    rows, columns = found
    columns = {**columns, "frame_key": rows["stack_id"].astype(np.int64), **columns_of(rows, "cause_code")}
    kept = np.isin(rows["stack_id"], known)
    return {name: column[kept] if np.ndim(column) else column for name, column in columns.items()}
