"""When optimizers updated parameters: their phases, without the closures that run in them.

    optimizer.step(closure)  [ forward ][ sleep ][ backward ][ update ]
                             closure: work of the step......  ^ this is the update

Lightning, and L-BFGS, hand the whole training step to ``optimizer.step`` as a closure.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.intervals import Int64, TimeSet, is_one_of
from stashtrace.schema.kinds import Phase, PhaseFlag
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

Bools = npt.NDArray[np.bool_]

_OF_CLOSURES = (Phase.FORWARD, Phase.BACKWARD)


def runs_closure(phases: Table, rows: Int64) -> Bools:
    """Return the mask of the rows that are phases of optimizers in which a forward or a backward of these rows ran."""
    code, begin, end = (phases[name][rows] for name in ("phase_code", "begin_ns", "end_ns"))
    return np.asarray((code == int(Phase.OPTIMIZER)) & (_ended_inside(code, end, end) > begin))


def update_times(trace: Trace, process_id: int) -> TimeSet:
    """Return when a process updated parameters.

    What an optimizer does before the last forward or backward inside its step has ended is its closure's, whatever it
    is: a closure that sleeps between both leaves no other mark.
    """
    begin, end = update_windows(trace, process_id)
    return TimeSet.of(begin, end)


def update_windows(trace: Trace, process_id: int) -> tuple[Int64, Int64]:
    """Return begin and end of each update of a process, in the order of their phases; see :func:`update_times`."""
    phases = trace.phases
    mine = (phases["process_id"] == process_id) & ((phases["phase_flags"] & PhaseFlag.BACKGROUND) == 0)
    own = phases.take(mine)
    updates = np.flatnonzero(own["phase_code"] == Phase.OPTIMIZER)
    end = own["end_ns"][updates]
    return np.maximum(own["begin_ns"][updates], _ended_inside(own["phase_code"], own["end_ns"], end)), end


def _ended_inside(code: npt.NDArray[np.integer], end: Int64, until: Int64) -> Int64:
    """Return when the last forward or backward of these phases had ended before each moment."""
    ends = np.sort(end[is_one_of(code, _OF_CLOSURES)])
    last = np.searchsorted(ends, until, side="right") - 1
    return np.append(ends, np.iinfo(np.int64).min)[last]
