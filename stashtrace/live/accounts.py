"""Close the steps of a job while it runs: each closed step gets the rows that ``analyze stalls`` has for it.

One round takes in what the ranks wrote since the last one, makes a trace of the newest steps, runs the analyses on it
and takes the rows of the steps that all ranks have left. A step closes once nothing can change it any more: each rank
that still records has begun another one, and the clock readings around its end are complete, which takes a second or
two. What no later step needs is let go, so that memory does not grow with the run.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.stalls.budget import stalls
from stashtrace.analysis.steps.steps import host_steps, steps
from stashtrace.analysis.steps.threads import step_threads
from stashtrace.analysis.steps.window import with_window
from stashtrace.errors import FormatError, MissingDataError
from stashtrace.format.growing import GrowingRun
from stashtrace.live.table import LIVE_STEPS, wide_rows
from stashtrace.loading.load import load_growing
from stashtrace.loading.run_tables import OpenedRun
from stashtrace.loading.window import Window
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import BatchPhase, ProcessRole, SpanKind
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

#: Steps before the open ones that stay in memory: a batch may have been made so long before it is waited for, and some
#: rules of ``analysis.steps`` compare a step with others.
CONTEXT_STEPS = 32
#: Fewer stay where they take longer than this together, but never fewer than the second number.
CONTEXT_NS, LEAST_STEPS = 60_000_000_000, 8
#: Steps of less than so much time before the open ones stay too: calls that block may be longer than many short steps.
LEAST_NS = 2_000_000_000
#: Rounds of which it is known where their window began.
_WINDOWS_KEPT = 10_000
#: Samplers write several times a second while a process lives: one that has written nothing for so long is dead or
#: stopped, and steps close without it.
SILENT_NS = 10_000_000_000
#: Rows in memory at most; beyond it the oldest go, and steps that need them are marked.
MOST_BYTES = 512 << 20


@dataclass(frozen=True, slots=True)
class Round:
    """What one round found."""

    #: Rows of ``live_steps`` of the steps that closed in it.
    closed: Table
    #: The newest steps, closed and open, as a trace; None before the first rows.
    window: Trace | None = None


@dataclass(slots=True)
class LiveAccounts:
    """The steps of a run so far."""

    run: GrowingRun
    #: Rank -> last step that has closed.
    closed: dict[int, int] = field(default_factory=dict)
    start: int = 0
    #: Zero of the common time on CLOCK_MONOTONIC of this host.
    origin_ns: int = 0
    #: Where the rows in memory begin; None while all of the run is there.
    window: Window | None = None
    #: Windows so far, by their first step: where what is left on disk may begin.
    windows: deque[Window] = field(default_factory=lambda: deque(maxlen=_WINDOWS_KEPT))
    #: Steps before the open ones that stay in memory.
    context_steps: int = CONTEXT_STEPS
    #: Whether rows must stay as they are, because a window of them is to be sealed.
    held: bool = False
    #: Where steps count from a number that only the rows tell: finds it, None while it is not known.
    find_begin: Callable[[Trace, int], Window | None] | None = None
    #: What the last round found: only in the next one are rows let go of, so that what it found can still be sealed.
    _before: tuple[Trace, OpenedRun] | None = None
    #: Rows before this were let go for want of memory.
    _cut_ns: int = -1

    def round(self, at_ns: int, *, ended: bool = False) -> Round:
        """Take in what was written, and return the steps that closed.

        ``at_ns``: CLOCK_MONOTONIC now. ``ended``: whether the job has ended, so that nothing more will come. Raises
        FormatError if the run directory cannot be read.
        """
        if self._before is not None and not self.held:
            self._move_on(*self._before)
            self._before = None
        raw = self.run.look(at_ns)
        nothing = Table.empty(LIVE_STEPS)
        if not raw.processes:
            return Round(nothing)
        try:
            whole, opened = load_growing(raw)
        except FormatError:  # its only processes have begun, but not yet read their clocks
            return Round(nothing)
        self.origin_ns = opened.clocks.origin_monotonic_ns
        if max(opened.start, 0) != self.start:  # the ranks were started again, and count their steps from 0
            self.start = opened.start
            self.closed, self.window, self._before = {}, None, None
            self.windows.clear()
        if self.window is None and self.find_begin is not None:
            self.window = self.find_begin(whole, self.origin_ns)
            if self.window is None:
                return Round(nothing)
        trace = whole if self.window is None else with_window(whole, self.window, self.origin_ns)
        try:
            table = steps(trace)
        except MissingDataError:
            return Round(nothing, trace)
        settled_ns = np.iinfo(np.int64).max if ended else opened.clocks.settled_ns()
        closed = table.take(self._closing(trace, table, settled_ns, None if ended else at_ns))
        rows = nothing
        if len(closed):
            complete = closed["begin_ns"] > self._cut_ns
            rows = wide_rows(stalls(trace, by="step", warmup=True), closed, start=self.start, complete=complete)
            for rank, step in zip(closed["rank"].tolist(), closed["step"].tolist(), strict=True):
                self.closed[rank] = max(step, self.closed.get(rank, -1))
            self._before = trace, opened
        self._bound_memory()
        return Round(rows, trace)

    def begin_again(self, at_ns: int) -> None:
        """Let the steps count from a begin that is found anew; rows before a time are let go of."""
        self.closed, self.window, self._before = {}, None, None
        self.windows.clear()
        self.run.forget(at_ns)

    def _closing(self, trace: Trace, table: Table, settled_ns: int | None, at_ns: int | None) -> npt.NDArray[np.bool_]:
        """Return a mask of the steps that close now; ``at_ns`` is None once the job has ended."""
        if settled_ns is None:
            return np.zeros(len(table), dtype=bool)
        ranks, row = np.unique(table["rank"], return_inverse=True)
        last = np.array([self.closed.get(rank, -1) for rank in ranks.tolist()])[row]
        chosen = (table["step"] > last) & (table["end_ns"] <= settled_ns)
        if at_ns is not None:
            chosen &= table["step"] <= self._left_by_all(trace, table, at_ns)
        return np.asarray(chosen)

    def _left_by_all(self, trace: Trace, table: Table, at_ns: int) -> int:
        """Return the last step that each rank has left that still records; -1 if there is none."""
        records = self._recording_ranks(trace, at_ns)
        left = [int(table["step"].max())]
        begun = _last_begun(trace)
        for rank, rows in GroupBy(table["rank"]).items():
            if rank in records:
                ended = table["end_ns"][rows] <= begun.get(rank, -1)
                left.append(int(table["step"][rows][ended].max(initial=-1)))
        return min(left)

    def _recording_ranks(self, trace: Trace, at_ns: int) -> set[int]:
        """Return the ranks whose process had not ended at the last look, and has written something lately.

        Of a process that was killed the ring stays.
        """
        living = {
            (str(file.metadata.get("host", "")), file.metadata.get("pid"))
            for file in self.run.files
            if file.is_open and at_ns - file.newest_ns < SILENT_NS
        }
        table = trace.processes
        return {
            row["rank"]
            for row in table.rows()
            if row["role_code"] == ProcessRole.RANK and (trace.text(row["host_code"]), row["pid"]) in living
        }

    def _move_on(self, trace: Trace, opened: OpenedRun) -> None:
        """Let the window begin at a later step, and let go of the rows that only earlier ones need."""
        table = host_steps(trace)
        last = min(self.closed.values())
        by_step = GroupBy(table["step"])
        begin = by_step.min(table["begin_ns"])
        everybody = by_step.sizes == len(np.unique(table["rank"]))
        at = int(np.searchsorted(by_step.values, last))
        newest_ns = int(begin[min(at, len(begin) - 1)])
        old = begin < newest_ns - LEAST_NS
        long_ago = (by_step.values <= last - self.context_steps) | (
            (by_step.values <= last - LEAST_STEPS) & (begin < newest_ns - CONTEXT_NS)
        )
        first = 0 if self.window is None else self.window.first_step
        fitting = np.flatnonzero(everybody & old & long_ago & (by_step.values > first))
        if not len(fitting):
            return
        first = int(by_step.values[fitting[-1]])
        own = table.take(table["step"] == first)
        self.window = Window(first, dict(zip(own["rank"].tolist(), own["begin_ns"].tolist(), strict=True)))
        self.windows.append(self.window)
        # Starts of an elastic job are counted by its ranks, also by those that have ended.
        ranks = {
            p.file.name for p in opened.everyone if p.identity.role is ProcessRole.RANK or "rank" in p.facts.learned
        }
        self.run.forget(int(own["begin_ns"].min()) + self.origin_ns, keep=ranks)

    def _bound_memory(self) -> None:
        """Let go of the oldest rows where a step is so long that its rows do not fit into memory."""
        if self.run.held_bytes > MOST_BYTES:
            self._cut_ns = max(self._cut_ns, self.run.forget_half() - self.origin_ns)


def _last_begun(trace: Trace) -> dict[int, int]:
    """Return, for each rank with a training loop, when the newest part of its loop that was recorded began."""
    phases, batches = trace.phases, trace.batches
    waits = batches["phase_code"] == BatchPhase.WAIT
    marks = trace.spans["kind_code"] == SpanKind.STEP_MARK
    begun = {}
    for thread in step_threads(trace):
        begins = (
            phases["begin_ns"][phases["track_id"] == thread.track_id],
            batches["begin_ns"][waits & (batches["track_id"] == thread.track_id)],
            trace.spans["end_ns"][marks & (trace.spans["track_id"] == thread.track_id)],
        )
        begun[thread.rank] = int(np.concatenate(begins).max(initial=-1))
    return begun
