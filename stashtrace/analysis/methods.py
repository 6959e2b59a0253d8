"""Which method divides a rank's time, and the layers it makes. The door for ranks with a device."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable
from weakref import WeakKeyDictionary

from stashtrace.analysis.host_layers import host_layers
from stashtrace.analysis.step_threads import StepThread
from stashtrace.analysis.trace_index import RankLayers, TraceIndex
from stashtrace.model.trace import Trace

#: Method of a rank -> its layers, in order of priority.
METHODS: dict[str, Callable[[TraceIndex, StepThread], RankLayers]] = {"host": host_layers}
#: What was made of each trace that is still in use: the totals, the time line and the summary all need it.
_made: WeakKeyDictionary[Trace, dict[tuple[str, StepThread], RankLayers]] = WeakKeyDictionary()


def method_of(index: TraceIndex, thread: StepThread) -> str:
    """Best method that the rows of a rank allow. Today every rank is driven by its host."""
    return "host"


def rank_layers(index: TraceIndex, thread: StepThread) -> RankLayers:
    """Layers of a rank by its method, made once per trace."""
    known = _made.setdefault(index.origin, {})
    key = (method_of(index, thread), thread)
    if key not in known:
        known[key] = METHODS[key[0]](index, thread)
    return known[key]
