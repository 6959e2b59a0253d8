"""What each call of the driver or runtime is called, its function or its kind; and the waits of allocators.

stream_synchronize                        a wait of the program's own, as by .item()
stream_synchronize before unmap_memory    the wait of an allocator: the next call of the thread unmaps memory
unmap_memory
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np

from stashtrace.analysis.intervals import Int64
from stashtrace.schema.groupby import GroupBy, order_by
from stashtrace.schema.kinds import DeviceCall
from stashtrace.schema.trace import Trace, cached_on_trace

#: cuMemUnmap does not wait for work in flight, so an allocator does: torch's unmapHandles() for its stream or device.
_WAITS = (DeviceCall.STREAM_SYNCHRONIZE, DeviceCall.DEVICE_SYNCHRONIZE)
_CALLS = {int(call): call.name.lower() for call in DeviceCall}


@cached_on_trace
def call_names(trace: Trace) -> tuple[Int64, list[str]]:
    """Return for each row of ``device_calls`` the place of its name, and the names."""
    calls = trace.device_calls
    by_name = GroupBy(calls["name_code"], calls["call_code"], _before_unmapping(trace).astype(np.int64))
    names = []
    for name, code, before in zip(*(key.tolist() for key in by_name.keys), strict=True):
        text = trace.text(name) or _CALLS.get(code, "unknown")
        names.append(f"{text} before {_CALLS[DeviceCall.UNMAP_MEMORY]}" if before else text)
    return by_name.number, names


def _before_unmapping(trace: Trace) -> np.ndarray:
    """Return which rows of ``device_calls`` wait for work, and are followed on their thread by a call that unmaps."""
    calls = trace.device_calls
    order = order_by(calls["process_id"], calls["track_id"], calls["begin_ns"])
    process, track, code = (calls[name][order] for name in ("process_id", "track_id", "call_code"))
    same = (process[1:] == process[:-1]) & (track[1:] == track[:-1]) & (track[1:] >= 0)
    found = np.full(len(calls), False)
    found[order[:-1]] = same & (code[1:] == DeviceCall.UNMAP_MEMORY) & np.isin(code[:-1], _WAITS)
    return found
