"""A recording that begins in the middle of a job: the number of its first step, and when each rank began it.

    rows that are there   |-------------------------------------------------------------|
    steps                     K        K+1   ...                     n        n+1
                        ranks begin K at times of their own; what their loops did before it is of no whole step

Followed runs have such a beginning, as do the windows that they seal and runs of which only the last steps are kept.
The fact ``window`` of the run says it: ``K RANK:NS RANK:NS ...``, or ``K-N`` in place of ``K`` where it ends with step
N, in ns of the monotonic clock.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.steps.threads import StepThread
from stashtrace.schema.events import TABLES
from stashtrace.schema.possible import rank_number
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

#: The fact of the run that holds a window.
FACT = "window"
#: Later clock readings may have moved the begin of the step by less than this; the part of the loop before it began
#: earlier.
_SLACK_NS = 1_000
#: A number of more digits is damage.
_MOST_DIGITS = 18


@dataclass(frozen=True, slots=True)
class Window:
    """Where a recording begins."""

    first_step: int
    #: Rank -> when its loop began that step, on the common clock.
    begins_ns: Mapping[int, int]
    #: The last step that is whole; None where the recording goes on.
    last_step: int | None = None

    def fact(self, origin_ns: int) -> str:
        """Return the text of the fact; ``origin_ns``: zero of the common clock on the monotonic clock."""
        begins = (f"{rank}:{begin + origin_ns}" for rank, begin in sorted(self.begins_ns.items()))
        steps = str(self.first_step) if self.last_step is None else f"{self.first_step}-{self.last_step}"
        return " ".join([steps, *begins])


def fact_of_run(trace: Trace, key: str) -> str:
    """Return the value of a key in the metadata of the whole run; empty if it has none."""
    facts = trace.metadata
    code = trace.strings.find(key)
    values = facts["value_code"][(facts["process_id"] == -1) & (facts["key_code"] == code)]
    return trace.text(values[-1]) if len(values) and code >= 0 else ""


def window_of(trace: Trace) -> Window | None:
    """Return where a recording begins; None if it is one from the start, or the fact makes no sense."""
    numbers, *begins = fact_of_run(trace, FACT).split() or [""]
    first, dash, last = numbers.partition("-")
    origin = fact_of_run(trace, "origin_monotonic_ns")
    if not all(text.isdecimal() and len(text) <= _MOST_DIGITS for text in (first, origin, last if dash else "0")):
        return None
    known = {}
    for text in begins:
        rank, _, begin = text.partition(":")
        if rank_number(rank) >= 0 and begin.isdecimal() and len(begin) <= _MOST_DIGITS:
            known[int(rank)] = int(begin) - int(origin)
    return Window(int(first), known, int(last) if dash else None)


def with_window(trace: Trace, window: Window, origin_ns: int) -> Trace:
    """Return the trace as one that begins there. ``origin_ns``: zero of its clock on the monotonic clock."""
    row = {
        "process_id": np.array([-1]),
        "key_code": np.array([trace.strings.code(FACT)]),
        "value_code": np.array([trace.strings.code(window.fact(origin_ns))]),
    }
    schema = TABLES["metadata"]
    return trace.replace(metadata=Table.concat(schema, [trace.metadata, Table(schema, row)]))


def begun_before(table: Table, threads: Iterable[StepThread], window: Window | None) -> npt.NDArray[np.bool_]:
    """Return a mask of the rows of training loops that began before the first step of a window.

    ``table``: has ``track_id`` and ``begin_ns``. ``threads``: of the loops.
    """
    before = np.zeros(len(table), dtype=bool)
    for thread in threads if window is not None else ():
        if window is not None and thread.rank in window.begins_ns:
            limit = window.begins_ns[thread.rank] - _SLACK_NS
            before |= (table["track_id"] == thread.track_id) & (table["begin_ns"] < limit)
    return before
