"""Time of a step thread beside workers that make batches, in traces of other tools that do not show all its waits.

    workers      [ batch ][ batch ][ batch ]....[ batch ]
    step thread  [ compute ]       [ compute ]       [ compute ]         no wait for a batch was recorded
                            |-prep-|         |--|                        it may have waited in either

Used by ``host_layers``. Where the trace shows that thread's compute, what lies between it beside a worker at work was
most likely a wait for that worker; where it shows nothing of the thread, nothing is likely.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np

from stashtrace.analysis.batch_layers import BatchWaits
from stashtrace.analysis.matching import is_imported
from stashtrace.analysis.step_threads import StepThread
from stashtrace.analysis.timeset import TimeSet
from stashtrace.analysis.trace_index import Layer, TraceIndex
from stashtrace.model.kinds import BatchPhase, SpanKind, StallKind

#: Fact of a process whose compute a benchmark replaces by a sleep: name of the function.
EMULATED = "emulated_compute"
_COMPUTE, _OTHER = StallKind.COMPUTE, StallKind.OTHER
_LOADING = (StallKind.FETCH, StallKind.PREP, StallKind.HANDOFF)


def beside_workers(
    index: TraceIndex, thread: StepThread, waits: BatchWaits, working: TimeSet, explained: TimeSet
) -> list[Layer]:
    """Layers of the gaps of a thread whose waits were not recorded, and of a sleep in the place of compute.

    ``working`` is the time in its phases and annotations. None for traces of our own, and where no worker was seen.
    """
    making = _making(index, thread)
    if not len(making) or not is_imported(index.trace):
        return []
    # A sleep proves no compute; where loading runs beside it, no more than that nothing waited for it then.
    emulated = (_emulated(index, thread) & making) - explained
    layers = [Layer(_COMPUTE, emulated, (_OTHER,))]
    if len(waits.begin):
        return layers
    steps = index.steps_of(thread.rank)
    inside = TimeSet.of(steps["begin_ns"], steps["end_ns"])
    gaps = inside - explained - working
    beside = gaps & making
    if len(working & inside):
        likely = Layer(StallKind.PREP, beside, (StallKind.FETCH, StallKind.HANDOFF, _COMPUTE, _OTHER))
    else:
        likely = Layer(_COMPUTE, beside, (_OTHER, *_LOADING))
    return [*layers, likely, Layer(_COMPUTE, gaps - making, (_OTHER, *_LOADING))]


def _making(index: TraceIndex, thread: StepThread) -> TimeSet:
    """When any other thread or process made a batch for the rank."""
    fetches, rows = index.batches_of_phase(BatchPhase.FETCH), index.fetches.rows(thread.rank)
    rows = rows[fetches["track_id"][rows] != thread.track_id]
    return TimeSet.of(fetches["begin_ns"][rows], fetches["end_ns"][rows])


def _emulated(index: TraceIndex, thread: StepThread) -> TimeSet:
    """Annotations of the step thread in which it slept instead of computing."""
    trace, facts = index.trace, index.trace.metadata
    told = (facts["key_code"] == trace.strings.find(EMULATED)) & (facts["process_id"] == thread.process_id)
    spans, rows = trace.spans, index.spans.rows(thread.track_id)
    chosen = np.isin(spans["name_code"][rows], facts["value_code"][told]) & (spans["kind_code"][rows] == SpanKind.USER)
    return TimeSet.of(spans["begin_ns"][rows[chosen]], spans["end_ns"][rows[chosen]])
