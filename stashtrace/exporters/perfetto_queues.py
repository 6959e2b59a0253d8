"""Counter tracks of a device that are counted from its work: launches that wait, bytes of collectives under way.

Called by perfetto_counters.py.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stashtrace.analysis.launches import first_of_each, waiting
from stashtrace.exporters.perfetto_rows import RankRows
from stashtrace.exporters.perfetto_tracks import Doubles, Ints

#: More moments than this are thinned: of each stretch the largest value stays.
_MOMENTS_AT_MOST = 200_000

#: (title, unit, description, times, values)
Series = tuple[str, str, str, Ints, Doubles]


def device_queues(rows: RankRows, process: int, device: int) -> Iterator[Series]:
    """What waited for one device, and what it moved between ranks."""
    kernels = rows.table("kernels")
    mine = (kernels["process_id"] == process) & (kernels["device_index"] == device)
    known = np.flatnonzero(mine & (kernels["launch_ns"] >= 0))
    if len(known):
        known = known[np.argsort(kernels["begin_ns"][known], kind="stable")]
        launch, begin = kernels["launch_ns"][known], kernels["begin_ns"][known]
        first = first_of_each(launch)
        moments, depth = _thinned(*waiting(launch[first], begin[first]))
        about = "Launches whose work had not begun. At 0 the device waits for the host; 1,024 block the host."
        yield "launches waiting", "", about, moments, depth
    bytes_moved = _bytes_under_way(rows, process, device)
    if bytes_moved is not None:
        about = "Payload of the collectives that were called and had not ended on the device"
        yield "bytes under way", "B", about, *_thinned(*bytes_moved)


def _bytes_under_way(rows: RankRows, process: int, device: int) -> tuple[Ints, Ints] | None:
    table, streams = rows.table("collectives"), rows.table("streams")
    here = streams["track_id"][(streams["process_id"] == process) & (streams["device_index"] == device)]
    mine = (table["process_id"] == process) & np.isin(table["stream_track_id"], here)
    chosen = np.flatnonzero(mine & (table["device_end_ns"] >= 0) & (table["message_bytes"] > 0))
    if not len(chosen):
        return None
    call, end, size = (table[c][chosen] for c in ("call_ns", "device_end_ns", "message_bytes"))
    at = np.concatenate([call, np.maximum(end, call)])
    change = np.concatenate([size, -size])
    order = np.argsort(at, kind="stable")
    at, total = at[order], np.cumsum(change[order])
    last = np.append(at[1:] != at[:-1], True)
    return at[last], total[last]


def _thinned(moments: Ints, values: Ints) -> tuple[Ints, Doubles]:
    every = -(-len(moments) // _MOMENTS_AT_MOST)
    if every > 1:
        starts = np.arange(0, len(moments), every)
        moments, values = moments[starts], np.maximum.reduceat(values, starts)
    return moments, values.astype(np.float64)
