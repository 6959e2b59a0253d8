"""RankSteps: the steps that one rank's own rows show, before they are numbered among all ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from stashtrace.analysis.intervals import Int64, int64
from stashtrace.analysis.steps.threads import StepThread
from stashtrace.analysis.steps.training_loop import Bools, StepColumns


@dataclass(frozen=True, slots=True)
class RankSteps:
    """Steps of a rank. All that is compared with host times (numbers, collectives) uses those of its step thread."""

    thread: StepThread
    #: Begin and end on the host, and kind.
    columns: StepColumns
    sub_steps: Int64
    #: Number of each step among all ranks, as far as it is known.
    ordinal: Int64
    #: On the device, where the rank has one.
    begin_ns: Int64
    end_ns: Int64
    clock_code: int
    #: 1 where the event budget left a step without events.
    thinned: Int64
    #: Steps without gradients whose forwards are far shorter than those of training: tokens, not batches.
    brief: Bools
    #: Whether the steps came with their numbers.
    numbered: bool = False

    def take(self, rows: Int64) -> RankSteps:
        """Return some of the steps."""
        return self.join(rows, rows)

    def join(self, first: Int64, last: Int64) -> RankSteps:
        """Return steps of which each reaches from one step to another, and is what the last of them is."""
        columns = self.columns
        thinned = np.concatenate([[0], np.cumsum(self.thinned)])
        return replace(
            self,
            columns=StepColumns(columns.begin[first], columns.end[last], columns.kind[last]),
            sub_steps=self.sub_steps[last],
            ordinal=self.ordinal[last],
            begin_ns=self.begin_ns[first],
            end_ns=self.end_ns[last],
            thinned=int64(thinned[last + 1] > thinned[first]),
            brief=self.brief[last],
        )
