"""Decodes spans, instants and counters: user annotations, garbage collection, the probes' time.

A step mark and any other instant become spans of no length.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stashtrace.collectors.decode_context import DecodeContext, columns_of, for_each
from stashtrace.schema.trace import EventTables, RawProcess, RawRecords

RECORDS = ("span", "instant", "counter")
TABLES = ("spans", "counters")


def decode(raw: RawProcess, context: DecodeContext) -> EventTables:
    """Fill ``spans`` (``span_id`` counts from 0 within the process) and ``counters``."""
    parts: list[dict[str, Any]] = []
    for name, begin, end in (("span", "begin_ticks", "end_ticks"), ("instant", "ticks", "ticks")):
        records = raw.records.get(name)
        if records is not None:
            parts.append(_spans(records, begin, end, context))
    tables: dict[str, dict[str, Any]] = {}
    if parts:
        joined = {k: np.concatenate([p[k] for p in parts]) for k in parts[0]}
        tables["spans"] = {"span_id": np.arange(len(joined["begin_ns"]), dtype=np.int64), **joined}
    counters = raw.records.get("counter")
    if counters is not None:
        tables["counters"] = _counters(counters, context)
    return context.tables(**tables)


def _spans(records: RawRecords, begin: str, end: str, context: DecodeContext) -> dict[str, Any]:
    rows = records.rows
    return {
        **columns_of(rows, "kind_code", "correlation_id", "value"),
        "begin_ns": context.to_ns(rows[begin]),
        "end_ns": context.to_ns(rows[end]),
        "track_id": context.tracks(records.tid),
        "name_code": context.codes(rows["name_id"]),
    }


def _counters(records: RawRecords, context: DecodeContext) -> dict[str, Any]:
    def track(string_id: int) -> int:
        name = context.text(string_id)
        return context.counter_track(name, unit_of(name))

    return {
        "ts_ns": context.to_ns(records.rows["ticks"]),
        "track_id": for_each(records.rows["name_id"], track),
        "value": records.rows["value"],
    }


def unit_of(name: str) -> str:
    """Unit that ends a counter's name: ``read_bytes_total`` -> ``bytes``, empty if none is known."""
    stem = name.removesuffix("_total")
    for unit in ("bytes_per_s", "bytes", "ns", "count", "ratio", "hz", "watts", "celsius"):
        if stem == unit or stem.endswith("_" + unit):
            return unit
    return ""
