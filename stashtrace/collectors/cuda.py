"""Decodes devices, streams, brackets and blocking calls.

The harvester writes the rows, not the calling thread, so a row has the caller's thread id as a field.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace.collectors.decode_context import DecodeContext, Int64, columns_of
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import BracketFlag, DeviceClock
from stashtrace.schema.trace import EventTables, RawProcess

RECORDS = ("device_info", "device_clock", "stream_info", "device_bracket", "device_call")
TABLES = ("devices", "streams", "device_clocks", "device_brackets", "device_calls", "tracks")


def decode(raw: RawProcess, context: DecodeContext) -> EventTables:
    """Fill ``devices``, ``streams``, ``device_clocks``, ``device_brackets``, ``device_calls``."""
    tables: dict[str, dict[str, Any]] = {}
    devices = raw.rows("device_info")
    if devices is not None:
        tables["devices"] = _devices(devices, context)
    streams = context.name_streams(raw)
    if streams:
        tables["streams"] = {
            "track_id": [stream.track_id for stream in streams],
            "process_id": context.process_id,
            "rank": context.rank,
            "device_index": [stream.device_index for stream in streams],
            "stream_flags": [stream.flags for stream in streams],
            "priority_index": [stream.priority for stream in streams],
        }
    if context.device_times:
        tables["device_clocks"] = _clocks(context)
    brackets = raw.rows("device_bracket")
    if brackets is not None and context.wants("device_brackets"):
        tables["device_brackets"] = _brackets(brackets, context)
    if context.wants("device_calls") and raw.rows("device_call") is not None:
        tables["device_calls"] = _calls(raw, context)
    return context.tables(**tables)


def _devices(rows: npt.NDArray[np.void], context: DecodeContext) -> dict[str, Any]:
    # A device is described again when its context is made again.
    rows = rows[GroupBy(rows["device_index"]).last]
    fields = ("device_index", "memory_bytes", "multiprocessors_count", "capability_code", "driver_code")
    return {
        **columns_of(rows, *fields),
        "process_id": context.process_id,
        "rank": context.rank,
        "track_id": [context.device_track(device) for device in rows["device_index"].tolist()],
        "uuid_code": context.codes(rows["uuid_id"]),
        "gpu_uuid_code": context.codes(rows["gpu_uuid_id"]),
        "name_code": context.codes(rows["name_id"]),
        "bus_code": context.codes(rows["bus_id"]),
    }


def _clocks(context: DecodeContext) -> dict[str, Any]:
    keys = sorted(context.device_times)
    times = [context.device_times[key] for key in keys]
    return {
        "process_id": context.process_id,
        "device_index": [device for device, _ in keys],
        "clock_code": [code for _, code in keys],
        "anchors_count": [time.anchors_count for time in times],
        "error_ns": [time.error_ns for time in times],
        "drift_ppb": [time.drift_ppb for time in times],
    }


def _brackets(rows: npt.NDArray[np.void], context: DecodeContext) -> dict[str, Any]:
    # Times of a launch that nobody saw are not its own.
    late = (rows["bracket_flags"] & BracketFlag.LATE_LAUNCH) != 0

    def on_device(field: str) -> Int64:
        return context.device_ns(rows["device_index"], DeviceClock.EVENT, np.where(late, -1, rows[field]))

    call_ns = context.to_ns(rows["call_ticks"])
    return_ns = context.to_ns(np.where(rows["return_ticks"] == 0, rows["call_ticks"], rows["return_ticks"]))
    begin_ns, end_ns = on_device("begin_device_ns"), on_device("end_device_ns")
    behind = ((rows["bracket_flags"] & BracketFlag.BEHIND_WORK) != 0) & (begin_ns >= 0)
    codes = ("bracket_code", "awaited_code", "bracket_flags", "copy_code")
    return {
        **columns_of(rows, "bracket_id", "device_index", *codes, "size_bytes", "correlation_id"),
        "process_id": context.process_id,
        "rank": context.rank,
        "track_id": context.stream_tracks(rows["stream_key"]),
        "thread_track_id": context.caller_tracks(rows["tid"]),
        "begin_ns": np.where(behind, np.maximum(begin_ns, call_ns), begin_ns),
        "end_ns": np.where(behind, np.maximum(end_ns, return_ns), end_ns),
        "awaited_ns": on_device("awaited_device_ns"),
        "call_ns": call_ns,
        "return_ns": return_ns,
    }


def _calls(raw: RawProcess, context: DecodeContext) -> dict[str, Any]:
    records = raw.records["device_call"]
    rows = records.rows
    return {
        **columns_of(rows, "device_index", "call_code", "status_code", "size_bytes"),
        "begin_ns": context.to_ns(rows["begin_ticks"]),
        "end_ns": context.to_ns(np.where(rows["end_ticks"] == 0, rows["begin_ticks"], rows["end_ticks"])),
        "track_id": context.tracks(records.tid),
        "process_id": context.process_id,
        "rank": context.rank,
        "stream_track_id": context.stream_tracks(rows["stream_key"]),
        "name_code": 0,
    }
