"""Decodes devices, streams, brackets and blocking calls. Called through the registry by ``loading.load``.

Rows are written by the harvester, not by the thread that called, so the caller's tid is a field of the row.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace.collectors.context import DecodeContext, Int64
from stashtrace.schema.kinds import DeviceClock
from stashtrace.schema.trace import EventTables, RawProcess

RECORDS = ("device_info", "device_clock", "stream_info", "device_bracket", "device_call")
TABLES = ("devices", "streams", "device_clocks", "device_brackets", "device_calls", "tracks")


def decode(raw: RawProcess, context: DecodeContext) -> EventTables:
    """Fill ``devices``, ``streams``, ``device_clocks``, ``device_brackets``, ``device_calls``."""
    tables: dict[str, dict[str, Any]] = {}
    devices = _rows(raw, "device_info")
    if devices is not None:
        tables["devices"] = _devices(devices, context)
    streams = context.name_streams(raw)
    if streams:
        listed = np.array(streams, dtype=np.int64)
        tables["streams"] = {
            "track_id": listed[:, 0],
            "process_id": context.process_id,
            "rank": context.rank,
            "device_index": listed[:, 1],
            "stream_flags": listed[:, 2],
            "priority_index": listed[:, 3],
        }
    if context.device_times:
        tables["device_clocks"] = _clocks(context)
    brackets = _rows(raw, "device_bracket")
    if brackets is not None and context.wants("device_brackets"):
        tables["device_brackets"] = _brackets(brackets, context)
    if context.wants("device_calls") and _rows(raw, "device_call") is not None:
        tables["device_calls"] = _calls(raw, context)
    return context.tables(**tables)


def _rows(raw: RawProcess, name: str) -> npt.NDArray[np.void] | None:
    records = raw.records.get(name)
    return None if records is None or not len(records.rows) else records.rows


def _devices(rows: npt.NDArray[np.void], context: DecodeContext) -> dict[str, Any]:
    # A device is described again when its context is made anew.
    _, last = np.unique(rows["device_index"][::-1], return_index=True)
    rows = rows[len(rows) - 1 - last]
    return {
        "process_id": context.process_id,
        "rank": context.rank,
        "device_index": rows["device_index"].astype(np.int64),
        "track_id": np.array([context.device_track(d) for d in rows["device_index"].tolist()], dtype=np.int64),
        "uuid_code": context.codes(rows["uuid_id"]),
        "name_code": context.codes(rows["name_id"]),
        "bus_code": context.codes(rows["bus_id"]),
        "memory_bytes": rows["memory_bytes"],
        "multiprocessors_count": rows["multiprocessors_count"].astype(np.int64),
        "capability_code": rows["capability_code"].astype(np.int64),
        "driver_code": rows["driver_code"].astype(np.int64),
    }


def _clocks(context: DecodeContext) -> dict[str, Any]:
    keys = sorted(context.device_times)
    times = [context.device_times[key] for key in keys]

    def numbers(values: list[int]) -> Int64:
        return np.array(values, dtype=np.int64)

    return {
        "process_id": context.process_id,
        "device_index": numbers([device for device, _ in keys]),
        "clock_code": numbers([code for _, code in keys]),
        "anchors_count": numbers([t.anchors_count for t in times]),
        "error_ns": numbers([t.error_ns for t in times]),
        "drift_ppb": numbers([t.drift_ppb for t in times]),
    }


def _brackets(rows: npt.NDArray[np.void], context: DecodeContext) -> dict[str, Any]:
    def on_device(field: str) -> Int64:
        return context.device_ns(rows["device_index"], DeviceClock.EVENT, rows[field])

    return {
        "bracket_id": rows["bracket_id"].astype(np.int64),
        "process_id": context.process_id,
        "rank": context.rank,
        "device_index": rows["device_index"].astype(np.int64),
        "track_id": context.stream_tracks(rows["stream_key"]),
        "thread_track_id": context.caller_tracks(rows["tid"]),
        "begin_ns": on_device("begin_device_ns"),
        "end_ns": on_device("end_device_ns"),
        "awaited_ns": on_device("awaited_device_ns"),
        "call_ns": context.to_ns(rows["call_ticks"]),
        "return_ns": context.to_ns(np.where(rows["return_ticks"] == 0, rows["call_ticks"], rows["return_ticks"])),
        "bracket_code": rows["bracket_code"].astype(np.int64),
        "awaited_code": rows["awaited_code"].astype(np.int64),
        "bracket_flags": rows["bracket_flags"].astype(np.int64),
        "copy_code": rows["copy_code"].astype(np.int64),
        "size_bytes": rows["size_bytes"],
        "correlation_id": rows["correlation_id"].astype(np.int64),
    }


def _calls(raw: RawProcess, context: DecodeContext) -> dict[str, Any]:
    records = raw.records["device_call"]
    rows = records.rows
    return {
        "begin_ns": context.to_ns(rows["begin_ticks"]),
        "end_ns": context.to_ns(np.where(rows["end_ticks"] == 0, rows["begin_ticks"], rows["end_ticks"])),
        "track_id": context.tracks(records.tid),
        "process_id": context.process_id,
        "rank": context.rank,
        "stream_track_id": context.stream_tracks(rows["stream_key"]),
        "device_index": rows["device_index"].astype(np.int64),
        "call_code": rows["call_code"].astype(np.int64),
        "status_code": rows["status_code"].astype(np.int64),
        "size_bytes": rows["size_bytes"],
        "name_code": 0,
    }
