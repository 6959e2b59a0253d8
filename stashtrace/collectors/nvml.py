"""Decodes the samples of devices and RDMA ports into counters.

A name ends in its unit (``power_watts``, ``nvlink_transmit_bytes_total``), and the unit of a track is taken from there.
Tracks of a device are called ``gpu_NAME.UUID``, of one NVLink ``gpu_NAME.UUID:LINK``; quantities of the host keep their
name.
"""

from __future__ import annotations

import numpy as np

from stashtrace.collectors.decode_context import DecodeContext
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.trace import EventTables, RawProcess

RECORDS = ("device_sample",)
TABLES = ("counters",)

#: End of a name -> unit of its track; the longest that fits.
_UNITS = {
    "_bytes_per_s": "bytes/s",
    "_bytes": "bytes",
    "_ns": "ns",
    "_count": "count",
    "_joules": "joules",
    "_watts": "watts",
    "_celsius": "celsius",
    "_hz": "hz",
    "_ratio": "ratio",
    "_code": "",
}


def unit_of(name: str) -> str:
    """Unit of a quantity, as its name says; empty if it says none."""
    plain = name.partition(".")[0].removesuffix("_total")
    return next((unit for ending, unit in _UNITS.items() if plain.endswith(ending)), "")


def decode(raw: RawProcess, context: DecodeContext) -> EventTables:
    """Fill ``counters``, sorted by track, then time."""
    rows = raw.rows("device_sample")
    if rows is None or not context.wants("counters"):
        return context.tables()
    series = GroupBy(rows["uuid_id"], rows["name_id"], rows["link_index"])
    keys = zip(*(key.tolist() for key in series.keys), strict=True)
    tracks = np.array([_track(context, *key) for key in keys], dtype=np.int64)
    track, ts = tracks[series.number], context.to_ns(rows["ticks"])
    order = np.lexsort((ts, track))
    return context.tables(counters={"ts_ns": ts[order], "track_id": track[order], "value": rows["value"][order]})


def _track(context: DecodeContext, uuid_id: int, name_id: int, link: int) -> int:
    name, uuid = context.text(name_id), context.text(uuid_id)
    if not uuid:
        return context.counter_track(name, unit_of(name))
    place = f"{uuid}:{link}" if link >= 0 else uuid
    return context.counter_track(f"gpu_{name}.{place}", unit_of(name))
