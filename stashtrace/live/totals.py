"""What a job's closed steps add up to, rank by rank: counters that only grow, and the newest steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

import numpy as np

from stashtrace.analysis.findings.spikes.step_times import KIND_COLUMNS
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.table import Table

#: Upper bounds of the histogram of step lengths, in seconds; the last bucket has none.
STEP_BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
#: So many steps of each rank are the newest ones.
NEWEST_STEPS = 30
#: They are compared with so many steps before them.
EARLIER_STEPS = 300


@dataclass(slots=True)
class RankTotals:
    """Sums over the closed steps of one rank."""

    steps_count: int = 0
    wall_ns: int = 0
    #: Time of each kind.
    stall_ns: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KIND_COLUMNS, 0))
    #: Waits of other ranks of which this one was the longest cause.
    caused_wait_ns: int = 0
    #: Steps by length: one count for each bound of :data:`STEP_BOUNDS_S`, and one for the longer ones.
    lengths_count: list[int] = field(default_factory=lambda: [0] * (len(STEP_BOUNDS_S) + 1))
    #: The last step that closed and its end on the common clock; -1 before the first.
    last_step: int = -1
    last_end_ns: int = -1
    #: Length and time of each kind of the newest steps, the last one at the end.
    newest: deque[tuple[int, dict[str, int]]] = field(default_factory=lambda: deque(maxlen=NEWEST_STEPS))
    #: Lengths of the newest steps and of those before them.
    lengths_ns: deque[int] = field(default_factory=lambda: deque(maxlen=NEWEST_STEPS + EARLIER_STEPS))

    def earlier_ns(self) -> list[int]:
        """Return the lengths of the steps before the newest ones."""
        return list(self.lengths_ns)[: -len(self.newest) or None]


@dataclass(slots=True)
class LiveTotals:
    """Sums over the closed steps of a run."""

    ranks: dict[int, RankTotals] = field(default_factory=dict)

    def add(self, closed: Table) -> None:
        """Add rows of ``live_steps``."""
        bounds_ns = np.array(STEP_BOUNDS_S) * 1e9
        for rank, rows in GroupBy(closed["rank"]).items():
            totals = self._of(rank)
            part = closed.take(rows).sort_by("step")
            lengths = part["end_ns"] - part["begin_ns"]
            totals.steps_count += len(part)
            totals.wall_ns += int(lengths.sum())
            totals.lengths_ns.extend(lengths.tolist())
            for at in np.searchsorted(bounds_ns, lengths).tolist():
                totals.lengths_count[at] += 1
            for kind, column in KIND_COLUMNS.items():
                totals.stall_ns[kind] += int(part[column].sum())
            for row in part.take(np.arange(max(0, len(part) - NEWEST_STEPS), len(part))).rows():
                spent = {kind: row[column] for kind, column in KIND_COLUMNS.items()}
                totals.newest.append((row["end_ns"] - row["begin_ns"], spent))
            totals.last_step, totals.last_end_ns = int(part["step"][-1]), int(part["end_ns"][-1])
        for rank, rows in GroupBy(closed["cause_rank"]).items():
            if rank >= 0:
                self._of(rank).caused_wait_ns += int(closed["cause_ns"][rows].sum())

    def _of(self, rank: int) -> RankTotals:
        return self.ranks.setdefault(rank, RankTotals())


class GrowingSum:
    """The sum of counters of which some go away, because the rows of a process that has ended were let go."""

    def __init__(self) -> None:
        self._values: dict[Hashable, int] = {}
        #: Of counters that have gone; a process that was let go does not come back.
        self._gone = 0

    def update(self, values: Mapping[Hashable, int]) -> int:
        """Take the counters that are there now, each by its key; return the sum over all that ever were."""
        self._gone += sum(value for key, value in self._values.items() if key not in values)
        self._values = {key: max(value, self._values.get(key, 0)) for key, value in values.items()}
        return self._gone + sum(self._values.values())
