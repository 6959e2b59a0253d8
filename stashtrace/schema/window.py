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

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from stashtrace.schema.order import number_collectives
from stashtrace.schema.possible import rank_number
from stashtrace.schema.trace import Trace

#: The fact of the run that holds a window.
FACT = "window"
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

    @classmethod
    def read(cls, fact: str, origin: str) -> Window | None:
        """Return the window of a fact; None if it is empty or makes no sense. ``origin``: as for :meth:`fact`."""
        numbers, *begins = fact.split() or [""]
        first, dash, last = numbers.partition("-")
        if not all(text.isdecimal() and len(text) <= _MOST_DIGITS for text in (first, origin, last if dash else "0")):
            return None
        known = {}
        for text in begins:
            rank, _, begin = text.partition(":")
            if rank_number(rank) >= 0 and begin.isdecimal() and len(begin) <= _MOST_DIGITS:
                known[int(rank)] = int(begin) - int(origin)
        return cls(int(first), known, int(last) if dash else None)


def without_torn_collectives(trace: Trace, window: Window) -> Trace:
    """Leave out collectives that were called before the window and of which no end is there.

    Their ends were let go of with older rows: each thread's rows go in pieces of their own length, and the end is
    written by another thread. Left in, they would look open for good.
    """
    table = trace.collectives
    if not len(table) or not window.begins_ns:
        return trace
    begin = np.full(len(table), min(window.begins_ns.values()))
    for rank, own in window.begins_ns.items():
        begin[table["rank"] == rank] = own
    open_ = (table["end_ns"] < 0) & (table["return_ns"] < 0) & (table["device_end_ns"] < 0)
    kept = ~(open_ & (table["call_ns"] < begin))
    if kept.all():
        return trace
    tables = number_collectives(table.take(kept), trace.collective_waits, trace.collective_details)
    if "collective_details" in tables:
        details = tables["collective_details"]
        tables["collective_details"] = details.take(details["collective_key"] >= 0)
    return trace.replace(**tables)
