"""Which method divides which time of a rank, and the layers it makes. The door between the budget and its methods.

    outside the steps   |  step 0  step 1  | step 2  step 3 |  step 4 ...       a rank with a device
    host                |  brackets        | kernels        |  brackets         deep mode on for steps 2 and 3

A rank without timed step marks, and any rank outside its steps, is attributed by its host.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable

import numpy as np

from stashtrace.analysis.bracket_layers import bracket_layers
from stashtrace.analysis.device_links import only_within
from stashtrace.analysis.host_layers import host_layers
from stashtrace.analysis.kernel_layers import kernel_layers
from stashtrace.analysis.step_threads import StepThread
from stashtrace.analysis.timeset import TimeSet, int64
from stashtrace.analysis.trace_index import Layer, RankLayers, Tagged, TraceIndex, kept_per_thread
from stashtrace.model.kinds import DeviceClock, DeviceWork

#: Method of a stretch of a rank's time -> the rank's layers by it, in order of priority.
METHODS: dict[str, Callable[[TraceIndex, StepThread], RankLayers]] = {
    "host": host_layers,
    "brackets": bracket_layers,
    "kernels": kernel_layers,
}
#: The first and the last step of a recorded window count if they hold this share of the kernels of the one between.
_WHOLE_STEP_RATIO = 0.9


def by_method(index: TraceIndex, thread: StepThread, method: str) -> RankLayers:
    """Layers of a rank's whole life by one method, made once per trace."""
    known: dict[tuple[str, StepThread], RankLayers] = index.of_threads
    key = (method, thread)
    if key not in known:
        known[key] = METHODS[method](index, thread)
    return known[key]


@kept_per_thread
def device_windows(index: TraceIndex, thread: StepThread) -> dict[str, TimeSet]:
    """Steps that kernels, and that brackets attribute; a step can be in both. Empty for a rank without a device."""
    if thread.rank not in index.ranks_on_device:
        return {}
    own = index.steps_of(thread.rank)
    own = own.take(own["clock_code"] != 0)
    windows = {}
    if (own["clock_code"] == DeviceClock.EVENT).any():
        windows["brackets"] = TimeSet.of(own["begin_ns"], own["end_ns"])
    kernels, rows = index.trace.kernels, index.kernels.rows(thread.process_id)
    rows = rows[kernels["work_code"][rows] != DeviceWork.SYNCHRONIZATION]
    if len(rows):
        begins = np.sort(kernels["begin_ns"][rows])
        counts = np.searchsorted(begins, own["end_ns"]) - np.searchsorted(begins, own["begin_ns"])
        with_kernels = np.flatnonzero(counts)
        if len(with_kernels):
            typical = float(np.median(counts[with_kernels]))
            # Without brackets beside them, kernels are all there is: an imported recording has no edges to doubt.
            least = _WHOLE_STEP_RATIO * typical if "brackets" in windows else 1
            whole = with_kernels[counts[with_kernels] >= least]
            windows["kernels"] = TimeSet.of(own["begin_ns"][whole], own["end_ns"][whole])
    return windows


def rank_layers(index: TraceIndex, thread: StepThread) -> RankLayers:
    """Layers of a rank by its methods, made once per trace."""
    if not device_windows(index, thread):
        return by_method(index, thread, "host")
    return _combined(index, thread)


@kept_per_thread
def _combined(index: TraceIndex, thread: StepThread) -> RankLayers:
    """Each method's layers inside its own windows; these are disjoint, so the order between them does not matter."""
    windows = device_windows(index, thread)
    left = TimeSet.of([thread.begin_ns], [thread.end_ns])
    layers: list[Layer] = []
    late: list[Tagged] = []
    segments: list[tuple[str, TimeSet]] = []
    beside: dict[str, TimeSet] = {}
    for method in ("kernels", "brackets", "host"):
        time = left & windows.get(method, TimeSet.empty()) if method != "host" else left
        left = left - time
        if not len(time):
            continue
        made = by_method(index, thread, method)
        layers += [Layer(x.kind, x.time & time, x.doubts) for x in made.layers]
        late.append(only_within(made.late, time))
        segments.append((method, time))
        for name, found in made.beside.items():
            beside[name] = beside.get(name, TimeSet.empty()) | (found & time)
    begin, end, tag = (int64(np.concatenate(c)) for c in zip(*((x.begin, x.end, x.tag) for x in late), strict=True))
    order = np.argsort(begin, kind="stable")
    return RankLayers("host", layers, Tagged(begin[order], end[order], tag[order]), tuple(segments), beside)
