"""Decodes the work on devices that CUPTI recorded in deep mode.

CUPTI has separate stream numbers. Work that a thread launched inside a bracketed call ran on the stream of that
bracket, which maps the number to the stream. A stream that carries compute and was never bracketed gets the busiest
number that is left.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stashtrace import _native
from stashtrace.collectors.decode_context import DecodeContext, Int64, Stream, columns_of
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kernel_names import communicates
from stashtrace.schema.kinds import Bracket, DeviceClock, DeviceWork, StreamFlag
from stashtrace.schema.trace import EventTables, RawProcess

RECORDS = ("kernel", "device_bracket", "stream_info")
TABLES = ("kernels", "tracks")

#: Brackets around one call that launches work on their stream.
_LAUNCHING = (Bracket.COLLECTIVE, Bracket.COPY, Bracket.GRAPH)


def decode(raw: RawProcess, context: DecodeContext) -> EventTables:
    """Fill ``kernels``."""
    rows = raw.rows("kernel")
    if rows is None:
        return context.tables()
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
            **columns_of(rows, "device_index", "copy_code", "size_bytes", "correlation_id", "graph_key"),
            "begin_ns": begin,
            "end_ns": end,
            "process_id": context.process_id,
            "rank": context.rank,
            "track_id": _streams(rows, raw, streams, context),
            "thread_track_id": context.caller_tracks(rows["tid"]),
            "launch_ns": context.to_ns_or_unseen(rows["launch_ticks"]),
            "return_ns": context.to_ns_or_unseen(rows["return_ticks"]),
            **_kernel_names(rows, context),
        }
    )


def _kernel_names(rows: npt.NDArray[np.void], context: DecodeContext) -> dict[str, Int64]:
    """Columns ``name_code`` and ``work_code``.

    Names are recorded as the compiler mangled them. The recorder knows NCCL's kernels; others that communicate are
    recognised here, where it costs the job nothing.
    """
    kernels = GroupBy(rows["name_id"])
    names = [_native.demangle(context.text(name_id)) for name_id in kernels.values.tolist()]
    is_communication = np.array([communicates(name) for name in names], dtype=bool)[kernels.number]
    work = rows["work_code"].astype(np.int64)
    work[is_communication & (work == DeviceWork.KERNEL)] = int(DeviceWork.COMMUNICATION)
    return {"name_code": context.strings.codes(names)[kernels.number], "work_code": work}


def _streams(rows: npt.NDArray[np.void], raw: RawProcess, streams: list[Stream], context: DecodeContext) -> Int64:
    numbered = GroupBy(rows["device_index"].astype(np.int64) << 32 | rows["stream_index"])
    tracks = _by_launches(rows, numbered, raw, context)
    kernels_count = numbered.count(where=rows["work_code"] == DeviceWork.KERNEL)
    for stream in streams:
        if not stream.flags & StreamFlag.CARRIES_COMPUTE or (tracks == stream.track_id).any():
            continue
        same_device = numbered.values >> 32 == stream.device_index
        left = np.flatnonzero((tracks < 0) & same_device & (kernels_count > 0))
        if len(left):
            tracks[left[kernels_count[left].argmax()]] = stream.track_id
    for at in np.flatnonzero(tracks < 0).tolist():
        number = int(numbered.values[at])
        name = f"stream {number & 0xFFFFFFFF} of CUPTI · GPU {number >> 32}"
        # Negative, so none of the keys that the collector cuda gives to streams.
        tracks[at] = context.registry.stream(context.process_id, -1 - number, name)
    return tracks[numbered.number]


def _by_launches(rows: npt.NDArray[np.void], numbered: GroupBy, raw: RawProcess, context: DecodeContext) -> Int64:
    """Track of the stream behind each of CUPTI's numbers, -1 where no launch shows."""
    known = np.full(len(numbered), -1, dtype=np.int64)
    brackets = raw.rows("device_bracket")
    if brackets is None:
        return known
    brackets = brackets[np.isin(brackets["bracket_code"], _LAUNCHING) & (brackets["stream_key"] != 0)]
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
        pairs = GroupBy(numbered.number[mine[inside]], track[at[inside]])
        for number, stream, votes_count in zip(*(key.tolist() for key in (*pairs.keys, pairs.sizes)), strict=True):
            votes[number, stream] = votes.get((number, stream), 0) + votes_count
    for (number, stream), _ in sorted(votes.items(), key=lambda vote: vote[1]):
        known[number] = stream  # the most votes come last
    return known
