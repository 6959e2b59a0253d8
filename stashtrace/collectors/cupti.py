"""Decodes what ran on a device, as CUPTI tells it in deep mode. Called through the registry by ``loading.load``.

CUPTI numbers streams in its own way. Work that was launched inside a bracketed call, on the calling thread, ran on the
stream of that bracket, which tells which number is which stream; the work of the stream that carries compute and was
never bracketed is that of the busiest number left.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stashtrace import _native
from stashtrace.collectors.context import DecodeContext, Int64
from stashtrace.schema.kernel_names import communicates
from stashtrace.schema.kinds import Bracket, DeviceClock, DeviceWork, StreamFlag
from stashtrace.schema.trace import EventTables, RawProcess

RECORDS = ("kernel", "device_bracket", "stream_info")
TABLES = ("kernels", "tracks")

#: Brackets around one call that launches work on their stream.
_LAUNCHING = (Bracket.COLLECTIVE, Bracket.COPY, Bracket.GRAPH)


def decode(raw: RawProcess, context: DecodeContext) -> EventTables:
    """Fill ``kernels``."""
    records = raw.records.get("kernel")
    if records is None or not len(records.rows):
        return context.tables()
    rows = records.rows
    streams = context.name_streams(raw)
    begin = context.device_ns(rows["device_index"], DeviceClock.CUPTI, rows["begin_device_ns"])
    end = context.device_ns(rows["device_index"], DeviceClock.CUPTI, rows["end_device_ns"])
    placed = (begin >= 0) & (end >= begin)
    unplaced = int(np.count_nonzero(~placed & (rows["begin_device_ns"] > 0)))
    if context.device_times and unplaced:
        context.add_loss("cupti", "kernels_without_times", unplaced, "CUPTI gave no usable times for these")
    rows, begin, end = rows[placed], begin[placed], end[placed]
    if not len(rows):
        return context.tables()
    return context.tables(
        kernels={
            "begin_ns": begin,
            "end_ns": end,
            "process_id": context.process_id,
            "rank": context.rank,
            "device_index": rows["device_index"].astype(np.int64),
            "track_id": _streams(rows, raw, streams, context),
            "thread_track_id": context.caller_tracks(rows["tid"]),
            "launch_ns": context.to_ns_or_unseen(rows["launch_ticks"]),
            "return_ns": context.to_ns_or_unseen(rows["return_ticks"]),
            **_named(rows, context),
            "copy_code": rows["copy_code"].astype(np.int64),
            "size_bytes": rows["size_bytes"],
            "correlation_id": rows["correlation_id"].astype(np.int64),
            "graph_key": rows["graph_key"].astype(np.int64),
        }
    )


def _named(rows: npt.NDArray[np.void], context: DecodeContext) -> dict[str, Int64]:
    """Codes of the names as a person writes them, and what each row is.

    Names are recorded as the compiler wrote them. The recorder knows NCCL's kernels; others that communicate are told
    here, where it costs the job nothing.
    """
    distinct, inverse = np.unique(rows["name_id"], return_inverse=True)
    names = [_native.demangle(context.text(i)) for i in distinct.tolist()]
    talks = np.array([communicates(name) for name in names], dtype=bool)[inverse]
    work = rows["work_code"].astype(np.int64)
    work[talks & (work == DeviceWork.KERNEL)] = int(DeviceWork.COMMUNICATION)
    return {"name_code": context.strings.codes(names)[inverse], "work_code": work}


def _streams(
    rows: npt.NDArray[np.void], raw: RawProcess, streams: list[tuple[int, int, int, int]], context: DecodeContext
) -> Int64:
    """Track of the stream of each row."""
    number = rows["device_index"].astype(np.int64) << 32 | rows["stream_index"]
    distinct, code = np.unique(number, return_inverse=True)
    known = _by_launches(rows, code, len(distinct), raw, context)
    kernels = rows["work_code"] == DeviceWork.KERNEL
    busy = np.bincount(code[kernels], minlength=len(distinct))
    for track, device, flags, _ in streams:
        if not flags & StreamFlag.CARRIES_COMPUTE or (known == track).any():
            continue
        left = np.flatnonzero((known < 0) & (distinct >> 32 == device) & (busy > 0))
        if len(left):
            known[left[busy[left].argmax()]] = track
    for at in np.flatnonzero(known < 0).tolist():
        stream, device = int(distinct[at]) & 0xFFFFFFFF, int(distinct[at]) >> 32
        # Below all keys of streams that the cuda room saw.
        known[at] = context.registry.stream(
            context.process_id, -1 - int(distinct[at]), f"stream {stream} of CUPTI · GPU {device}"
        )
    return known[code]


def _by_launches(rows: npt.NDArray[np.void], code: Int64, count: int, raw: RawProcess, context: DecodeContext) -> Int64:
    """Track of the stream behind each of CUPTI's numbers, -1 where no launch tells."""
    known = np.full(count, -1, dtype=np.int64)
    records = raw.records.get("device_bracket")
    if records is None or not len(records.rows):
        return known
    brackets = records.rows[np.isin(records.rows["bracket_code"], _LAUNCHING) & (records.rows["stream_key"] != 0)]
    launched = np.flatnonzero((rows["launch_ticks"] > 0) & (rows["tid"] > 0))
    if not len(brackets) or not len(launched):
        return known
    brackets = brackets[np.lexsort((brackets["call_ticks"], brackets["tid"]))]
    track = context.stream_tracks(brackets["stream_key"])
    votes: dict[tuple[int, int], int] = {}
    for tid in np.unique(brackets["tid"]).tolist():
        first, last = np.searchsorted(brackets["tid"], [tid, tid + 1])
        mine = launched[rows["tid"][launched] == tid]
        at = first + np.searchsorted(brackets["call_ticks"][first:last], rows["launch_ticks"][mine], side="right") - 1
        inside = (at >= first) & (rows["launch_ticks"][mine] < brackets["return_ticks"][np.maximum(at, 0)])
        pairs, times = np.unique(np.stack([code[mine[inside]], track[at[inside]]], axis=1), axis=0, return_counts=True)
        for (number, stream), votes_count in zip(pairs.tolist(), times.tolist(), strict=True):
            votes[number, stream] = votes.get((number, stream), 0) + votes_count
    for (number, stream), _ in sorted(votes.items(), key=lambda each: each[1]):
        known[number] = stream  # the most votes come last
    return known
