"""Which method divides a rank's time, and the layers it makes. The door for ranks with a device."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable

from stashtrace.analysis.host_layers import host_layers
from stashtrace.analysis.step_threads import StepThread
from stashtrace.analysis.trace_index import RankLayers, TraceIndex

#: Method of a rank -> its layers, in order of priority.
METHODS: dict[str, Callable[[TraceIndex, StepThread], RankLayers]] = {"host": host_layers}


def method_of(index: TraceIndex, thread: StepThread) -> str:
    """Best method that the rows of a rank allow. Today every rank is driven by its host."""
    return "host"


def rank_layers(index: TraceIndex, thread: StepThread) -> RankLayers:
    """Layers of a rank by its method."""
    return METHODS[method_of(index, thread)](index, thread)
