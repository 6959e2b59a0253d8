"""Decodes the samples of /proc into counters.

Cumulative quantities keep their raw value and end in ``_total``; analyses take differences. A value of -1 means that
the kernel did not offer it, and makes no row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace.collectors.decode_context import DecodeContext
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.trace import EventTables, RawProcess

RECORDS = ("task_sample", "process_sample", "host_sample", "net_sample")
TABLES = ("counters",)

#: Field of a record -> (name of the counter, unit).
_TASK = {
    "run_ns": ("thread_run_ns_total", "ns"),
    "runqueue_ns": ("thread_runqueue_ns_total", "ns"),
    "timeslices_count": ("thread_timeslices_count_total", "count"),
}
_PROCESS = {
    "user_ns": ("process_user_ns_total", "ns"),
    "system_ns": ("process_system_ns_total", "ns"),
    "read_bytes": ("process_read_bytes_total", "bytes"),
    "write_bytes": ("process_write_bytes_total", "bytes"),
    "minor_faults_count": ("process_minor_faults_count_total", "count"),
    "major_faults_count": ("process_major_faults_count_total", "count"),
    "voluntary_switches_count": ("process_voluntary_switches_count_total", "count"),
    "involuntary_switches_count": ("process_involuntary_switches_count_total", "count"),
    "resident_bytes": ("process_resident_bytes", "bytes"),
}
_HOST = {
    "user_ns": ("host_user_ns_total", "ns"),
    "system_ns": ("host_system_ns_total", "ns"),
    "idle_ns": ("host_idle_ns_total", "ns"),
    "iowait_ns": ("host_iowait_ns_total", "ns"),
    "steal_ns": ("host_steal_ns_total", "ns"),
    "psi_cpu_some_ns": ("host_psi_cpu_some_ns_total", "ns"),
    "psi_io_some_ns": ("host_psi_io_some_ns_total", "ns"),
    "psi_io_full_ns": ("host_psi_io_full_ns_total", "ns"),
    "psi_memory_some_ns": ("host_psi_memory_some_ns_total", "ns"),
    "page_cache_bytes": ("host_page_cache_bytes", "bytes"),
    "retransmits_count": ("host_tcp_retransmits_count_total", "count"),
}
_NET = {"receive_bytes": ("net_receive_bytes_total", "bytes"), "transmit_bytes": ("net_transmit_bytes_total", "bytes")}


def decode(raw: RawProcess, context: DecodeContext) -> EventTables:
    """Fill ``counters``, sorted by track, then time.

    Counters of a thread carry its thread id as ``native_id`` of the track; those of an interface end in ``.NAME``
    (``net_receive_bytes_total.eth0``).
    """
    if not context.wants("counters"):
        return context.tables()
    parts: list[tuple[Any, Any, Any]] = []
    for record, fields, key in (
        ("task_sample", _TASK, "tid"),
        ("process_sample", _PROCESS, ""),
        ("host_sample", _HOST, ""),
        ("net_sample", _NET, "interface_id"),
    ):
        rows = raw.rows(record)
        if rows is not None:
            parts.extend(_counters(rows, fields, key, context))
    if not parts:
        return context.tables()
    ts, track, value = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.lexsort((ts, track))
    return context.tables(counters={"ts_ns": ts[order], "track_id": track[order], "value": value[order]})


def _counters(
    rows: npt.NDArray[np.void], fields: dict[str, tuple[str, str]], key: str, context: DecodeContext
) -> list[tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]]:
    """(time, track, value) of the samples of each field; ``key`` distinguishes the series of one field."""
    ts = context.to_ns(rows["ticks"])
    series = GroupBy(rows[key] if key else np.zeros(len(rows), dtype=np.uint32))
    parts = []
    for field, (name, unit) in fields.items():
        tracks = np.array([_track(name, unit, key, value, context) for value in series.values.tolist()], dtype=np.int64)
        seen = rows[field] >= 0
        parts.append((ts[seen], tracks[series.number][seen], rows[field][seen].astype(np.float64)))
    return parts


def _track(name: str, unit: str, key: str, value: int, context: DecodeContext) -> int:
    if key == "interface_id":
        return context.counter_track(f"{name}.{context.text(value)}", unit)
    return context.counter_track(name, unit, native_id=value)
