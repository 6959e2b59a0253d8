"""The newest part of a run that still records, as a trace: the steps that may close, and the steps before them.

    rows in memory   |-------------------------------------------------------------|
    window's steps      K        K+1   ...                     n        n+1
                        |  context: begun work, batches in flight | may close | open

Every analysis runs on it as on a whole run. The steps of all ranks are numbered from K, so that each has the number
that it has in the whole run: rows of the training loops before step K are left out, all others only give context.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.steps.threads import step_threads
from stashtrace.errors import MissingDataError
from stashtrace.schema.events import TABLES
from stashtrace.schema.kinds import BatchPhase, SpanKind
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

#: Clock readings since the last round may have moved the begin of the step by less than this; the part of the loop
#: before it began earlier.
_SLACK_NS = 1_000


def cut_at_step(trace: Trace, first_step: int, begins_ns: Mapping[int, int]) -> Trace:
    """Return a trace whose steps are numbered from ``first_step``.

    ``begins_ns``: when the loop of each rank began that step. Phases, batch waits and step marks of a rank's training
    loop before it are left out; a rank that is not in it keeps all of them.
    """
    if first_step == 0:
        return trace
    try:
        threads = step_threads(trace)
    except MissingDataError:
        return trace
    limits = np.zeros(int(trace.tracks["track_id"].max(initial=-1)) + 1, dtype=np.int64)
    for thread in threads:
        limits[thread.track_id] = begins_ns.get(thread.rank, 0) - _SLACK_NS
    phases, batches, spans = trace.phases, trace.batches, trace.spans

    def begun_before(table: Table) -> npt.NDArray[np.bool_]:
        return np.asarray(table["begin_ns"] < limits[table["track_id"]])

    facts = trace.metadata
    step_range = Table(
        TABLES["metadata"],
        {
            "process_id": np.array([-1]),
            "key_code": np.array([trace.strings.code("steps")]),
            "value_code": np.array([trace.strings.code(f"{first_step}:")]),
        },
    )
    of_run = (facts["process_id"] == -1) & (facts["key_code"] == trace.strings.find("steps"))
    return trace.replace(
        phases=phases.take(~begun_before(phases)),
        batches=batches.take(~(begun_before(batches) & (batches["phase_code"] == BatchPhase.WAIT))),
        spans=spans.take(~(begun_before(spans) & np.isin(spans["kind_code"], (SpanKind.STEP_MARK, SpanKind.STEP)))),
        metadata=Table.concat(TABLES["metadata"], [facts.take(~of_run), step_range]),
    )
