"""Attribute a change of the step time to one kind of time of a rank, its calls on a file, or its kinds together.

one kind    rank 1 computes 12 ms longer
a file      rank 0 spends 133 ms more reading shard-0000.bin, which the budget has in several kinds of time
between     rank 0 spends 160 ms more in validation steps, while the others already wait in the next step
together    rank 0 works 150 ms longer, in several kinds of time
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.findings.over_time.changed_work import NOTHING, Cause, behind
from stashtrace.analysis.findings.over_time.detect_changes import Floats
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.analysis.steps.steps import ranks_and_steps
from stashtrace.analysis.steps.steps import steps as find_steps
from stashtrace.analysis.steps.training_loop import QUIET_KINDS
from stashtrace.analysis.stragglers.file_calls import OnFile, on_file
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.stall_kinds import COLUMN_OF
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace
from stashtrace.units import ranks_text

#: A kind of time of a rank is named where it is at least this part of the change; ranks are alike from the other on.
_EXPLAINS, _ALIKE = 0.5, 0.5
#: All calls on a file take clearly more than one kind of time if they take this part more.
_CLEARLY_RATIO = 1.05
#: Waits for late ranks: the late rank has the time of its own.
_PASSED_ON = "straggler"
#: Kinds of time beside those of ``stalls``: calls on files, and all of a rank's work.
ON_FILE, TOGETHER = "on_file", "together"


@dataclass(frozen=True, slots=True)
class Change:
    """A shift, drift or period: which steps are ``changed`` and which are as usual, by their place."""

    kind: str
    changed: npt.NDArray[np.bool_]
    others: npt.NDArray[np.bool_]
    usual: float
    length: float
    every: int = 1
    width: int = 1
    slope: float = 0.0
    onset: str = ""

    @property
    def delta(self) -> float:
        """By how much a changed step is longer."""
        return self.length - self.usual

    @property
    def scale(self) -> float:
        """From the middle of one half of a drift to the middle of the other are half of its steps."""
        count = len(self.changed)
        return 2 * (count - 1) / count if self.kind == "drift" else 1.0


@dataclass(frozen=True, slots=True)
class Whose:
    """The rank and the kind of its time that change most, with by how much; rank -1 if none explains the change."""

    rank: int = -1
    ranks: str = ""
    kind: str = ""
    delta_ns: float = 0.0
    on: OnFile | None = None


class Budgets:
    """Time of each rank and kind by step."""

    def __init__(self, trace: Trace, counted: Table, stalls: Table) -> None:
        self._trace, self._counted = trace, counted
        self._numbers = numbers = np.unique(counted["step"])
        self.ranks = np.unique(counted["rank"])
        self._made = np.zeros((len(self.ranks), len(numbers)), dtype=bool)
        self._made[np.searchsorted(self.ranks, counted["rank"]), np.searchsorted(numbers, counted["step"])] = True
        rows = np.flatnonzero(np.isin(stalls["step"], numbers) & (stalls["kind"] != _PASSED_ON))
        kinds = GroupBy(stalls["kind"][rows])
        self.kinds = [str(kind) for kind in kinds.values.tolist()]
        shape = (len(self.ranks), len(self.kinds), len(numbers))
        at = np.searchsorted(self.ranks, stalls["rank"][rows])
        known = (at < len(self.ranks)) & (self.ranks[np.minimum(at, len(self.ranks) - 1)] == stalls["rank"][rows])
        rows, at, kind = rows[known], at[known], kinds.number[known]
        step = np.searchsorted(numbers, stalls["step"][rows])
        cell = (at * shape[1] + kind) * shape[2] + step
        spent = np.bincount(cell, stalls["stall_ns"][rows], int(np.prod(shape)))
        #: NaN where a rank did not make a step: none is no short one.
        self.spent: Floats = spent.astype(np.float64).reshape(shape)
        self.spent[np.broadcast_to(~self._made[:, None, :], shape)] = np.nan

    def absent(self, change: Change) -> npt.NDArray[np.int64]:
        """Return the ranks that make no step in one of both parts."""
        made = [self._made[:, part].any(axis=1) for part in (change.changed, change.others)]
        return np.asarray(self.ranks[~(made[0] & made[1])])

    def whose(self, change: Change) -> Whose:
        """Return whose time changes, and by how much."""
        if len(self.absent(change)) or not self.spent.size:  # the mean is one of other ranks then
            return Whose()
        sign = 1.0 if change.delta >= 0 else -1.0
        deltas = _more(change, self.spent) * sign
        best, of_kind = (int(at) for at in np.unravel_index(int(deltas.argmax()), deltas.shape))
        least = _EXPLAINS * abs(change.delta)
        one = None
        if deltas[best, of_kind] >= least:
            column = [COLUMN_OF[name] == COLUMN_OF[self.kinds[of_kind]] for name in self.kinds]
            alike = self._alike(deltas[:, column].sum(axis=1), best)
            one = Whose(int(self.ranks[best]), alike, self.kinds[of_kind], sign * float(deltas[best, of_kind]))
        # A transfer is of several ranks, and no work of one of them.
        works = np.array([COLUMN_OF[name] != "link" for name in self.kinds])
        together = deltas[:, works].sum(axis=1)
        worker = int(together.argmax())
        if together[worker] >= least and (one is None or (best == worker and one.ranks == str(one.rank))):
            found = self._on_file(change, worker, sign, max(least, _CLEARLY_RATIO * abs(one.delta_ns) if one else 0.0))
            if found is not None:
                return found
        if one is not None:
            return one
        if together[worker] >= least:
            alike = self._alike(together, worker)
            return Whose(int(self.ranks[worker]), alike, TOGETHER, sign * float(together[worker]))
        return self._between(change, sign, least)

    def _alike(self, deltas: Floats, best: int) -> str:
        return ranks_text(self.ranks[deltas >= _ALIKE * deltas[best]].tolist())

    def _on_file(self, change: Change, row: int, sign: float, least: float) -> Whose | None:
        """Return that a rank's calls on its file change by at least so much."""
        rank, index = int(self.ranks[row]), TraceIndex(self._trace)
        for thread, own in ranks_and_steps(index.origin, self._counted):
            on = on_file(index, thread, own) if thread.rank == rank else None
            if on is not None:
                spent = np.full(len(self._numbers), np.nan)
                spent[np.searchsorted(self._numbers, own["step"])] = on.time.within(own["begin_ns"], own["end_ns"])
                more = float(_more(change, spent))
                if sign * more >= least:
                    return Whose(rank, str(rank), ON_FILE, more, on)
        return None

    def _between(self, change: Change, sign: float, least: float) -> Whose:
        """Return that a rank makes more steps of another kind before each changed one, which the others wait for."""
        table = find_steps(self._trace)
        for kind in QUIET_KINDS:
            rows = table.take(table["kind"] == kind)
            if not len(rows) or kind in self._counted["kind"]:
                continue
            spent = np.where(self._made, 0.0, np.nan)
            for row, rank in enumerate(self.ranks.tolist()):
                own = self._counted.take(self._counted["rank"] == rank).sort_by("begin_ns")
                mine = rows.take(rows["rank"] == rank)
                at = np.searchsorted(own["begin_ns"], mine["begin_ns"])
                before = at < len(own)
                place = np.searchsorted(self._numbers, own["step"][at[before]])
                length = (mine["end_ns"] - mine["begin_ns"])[before]
                spent[row] += np.bincount(place, length, len(self._numbers))
            deltas = _more(change, spent) * sign
            best = int(deltas.argmax())
            if deltas[best] >= least:
                return Whose(int(self.ranks[best]), self._alike(deltas, best), kind, sign * float(deltas[best]))
        return Whose()

    def behind(self, change: Change, found: Whose) -> Cause:
        """Return what the longer time goes to."""
        absent = self.absent(change)
        if len(absent):
            return "absent", ranks_text(absent.tolist()), -1.0
        if found.on is not None:
            return found.on.way, found.on.name, abs(found.delta_ns)
        if found.rank < 0 or change.delta <= 0 or found.kind in QUIET_KINDS:
            return NOTHING
        chosen = self._counted.take(self._counted["rank"] == found.rank).sort_by("step")
        parts = tuple(np.isin(chosen["step"], self._numbers[part]) for part in (change.changed, change.others))
        kind, name, more = behind(
            self._trace, found.rank, found.kind, chosen, (parts[0], parts[1]), found.delta_ns / change.scale
        )
        return kind, name, more * change.scale if kind else more


def _more(change: Change, spent: Floats) -> Floats:
    """Return by how much a time, with steps along its last axis, is longer in changed steps; NaN is no step."""
    whole = not np.isnan(spent).any()  # the median without NaN is slow
    middle: Callable[..., Floats] = np.median if whole else np.nanmedian
    if change.kind == "period":
        middle = np.mean if whole else np.nanmean
    inside, outside = (middle(spent[..., part], axis=-1) for part in (change.changed, change.others))
    return np.asarray((inside - outside) * change.scale)
