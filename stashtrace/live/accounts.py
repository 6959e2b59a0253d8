"""Close the steps of a job while it runs: each closed step gets the rows that ``analyze stalls`` has for it.

One round takes in what the ranks wrote since the last one, makes a trace of the newest steps, runs the analyses on it
and takes the rows of the steps that all ranks have left, those of other hosts too (``live.hosts.shared_ranks``). A step
closes once nothing can change it any more: each rank that still records has begun another one, and the clock readings
around its end are complete, which takes a second or two. What no later step needs is let go, so that memory does not
grow with the run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.stalls.budget import stalls
from stashtrace.analysis.stalls.rows_by_thread import as_among_all
from stashtrace.analysis.steps.steps import host_steps, steps
from stashtrace.analysis.steps.threads import step_threads
from stashtrace.analysis.steps.window import with_window
from stashtrace.errors import FormatError, MissingDataError
from stashtrace.files.run_facts import WINDOW_STEPS
from stashtrace.format.growing import CLOCKS_NS, RECALLED_NS, GrowingFile, GrowingRun
from stashtrace.live import times
from stashtrace.live.hosts.shared_ranks import OtherHosts
from stashtrace.live.table import LIVE_STEPS, wide_rows
from stashtrace.loading.clocks.policy import POLICY
from stashtrace.loading.load import GrownRun, load_growing
from stashtrace.loading.run_tables import OpenedRun, Window
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import BatchPhase, ProcessRole, SpanKind
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

#: Steps before the open ones that stay in memory: a batch may have been made that long before it is waited for, and
#: some rules of ``analysis.steps`` compare a step with others.
CONTEXT_STEPS = 32
#: Fewer stay where they take longer than ``times.CONTEXT_NS``, but never fewer than this.
LEAST_STEPS = 8
#: Rounds of which it is known where their window began.
_WINDOWS_KEPT = 10_000
#: Rows in memory at most; beyond it the oldest go, and steps that need them are marked.
MOST_BYTES = 512 << 20


@dataclass(frozen=True, slots=True)
class Round:
    """What one round found."""

    #: Rows of ``live_steps`` of the steps that closed in it.
    closed: Table
    #: The newest steps, closed and open, as a trace; None before the first rows.
    window: Trace | None = None
    #: The same with the ranks of other hosts.
    joint: Trace | None = None


@dataclass(slots=True)
class LiveAccounts:
    """The steps of the ranks of this host so far."""

    run: GrowingRun
    #: The ranks of other hosts; None for a run of this host alone.
    others: OtherHosts | None = None
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
    #: Step -> rank of this host -> when it began the step, on the monotonic clock; of the closed steps in memory, and
    #: of those before whose rows can be read again.
    begins_ns: dict[int, dict[int, int]] = field(default_factory=dict)
    #: Whether rows must stay as they are, because a window of them is to be sealed.
    held: bool = False
    #: Where steps count from a number that only the rows hold: finds it, None while it is not known.
    find_begin: Callable[[Trace, int], Window | None] | None = None
    #: The processes of the last round, of this host and others; None before the first.
    opened: OpenedRun | None = None
    #: Rank of another host -> when it began the first step of the window, on the monotonic clock of its boot.
    _begins: dict[int, tuple[str, int]] = field(default_factory=dict)
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
        raw = self.run.take_in(at_ns)
        nothing = Table.empty(LIVE_STEPS)
        if not raw.processes:
            return Round(nothing)
        try:
            grown = load_growing(raw, [] if self.others is None else self.others.round(at_ns))
        except FormatError:  # its only processes have begun, but not yet read their clocks
            return Round(nothing)
        opened = self.opened = grown.opened
        self.origin_ns = opened.clocks.origin_monotonic_ns
        if max(opened.start, 0) != self.start:  # the ranks were started again, and count their steps from 0
            self.start = opened.start
            self._count_again()
        awaits_others = self.others is not None and self.others.awaited(opened, at_ns)
        if self.window is None and self.find_begin is not None:
            self.window = self.find_begin(grown.trace, self.origin_ns)
            if self.window is None:
                return Round(nothing)
        trace, joint = self._windowed(grown)
        try:
            table = self._numbered(steps(joint), set(trace.ranks.tolist()))
        except MissingDataError:
            return Round(nothing, trace, joint)
        if joint is not trace:
            trace = as_among_all(trace, joint, table)
        rows = nothing
        if not awaits_others or ended:
            closed = table.take(self._closing(joint, table, trace.ranks, None if ended else at_ns))
            if len(closed):
                rows = self._close(closed, trace)
                self._before = joint, opened
        self._bound_memory()
        return Round(rows, trace, joint)

    def begin_again(self, at_ns: int) -> None:
        """Let the steps count from a begin that is found again; rows before a time are let go of."""
        self._count_again()
        self.run.forget(at_ns)
        if self.others is not None:
            self.others.forget(at_ns, ())

    def files_since(self, step: int) -> tuple[int, list[GrowingFile]]:
        """Return the first step from which rows are there, and the files with them; -1: those in memory.

        Rows of a step, and of those after it, that were let go of are read again as far as they can be. Raises
        FormatError if a file cannot be read any more.
        """
        begun, files = self.window, list(self.run.files)
        if begun is None or step < 0 or begun.first_step <= step:
            return 0 if begun is None else begun.first_step, files
        oldest_ns = min(begun.begins_ns.values(), default=0) - RECALLED_NS + CLOCKS_NS
        oldest_ns = max(oldest_ns, self.run.dropped_ns + CLOCKS_NS - self.origin_ns)
        known = [w for w in self.windows if w.first_step in self.begins_ns and min(w.begins_ns.values()) >= oldest_ns]
        before = [w for w in known if w.first_step <= step][-1:] or known[:1]
        if not before:
            return begun.first_step, files
        since_ns = min(before[0].begins_ns.values()) + self.origin_ns
        return before[0].first_step, [file.recalled(since_ns) for file in files]

    def window_facts(self, first: int | None = None) -> dict[str, Any]:
        """Return when each rank of this host began each closed step, as facts of the host.

        ``first``: the first of them; None for that in memory.
        """
        if first is None:
            first = 0 if self.window is None else self.window.first_step
        last = min(self.closed.values(), default=-1)
        known = sorted(self.begins_ns.items())
        steps = [Window(step, begins).fact(0) for step, begins in known if first <= step <= last]
        return {WINDOW_STEPS: steps, "boot_id": "" if self.opened is None else self.opened.clocks.reference}

    def _count_again(self) -> None:
        self.closed, self.window, self._before = {}, None, None
        self.windows.clear()
        self.begins_ns.clear()
        self._begins.clear()

    def own_files(self) -> tuple[dict[int, GrowingFile], list[GrowingFile]]:
        """Return the file of each rank of this host, and those of its other processes, as of the last round."""
        opened = () if self.opened is None else self.opened.processes
        rank_of = {p.file.name: p.identity.rank for p in opened if p.identity.role is ProcessRole.RANK}
        ranks = {rank_of[file.name]: file for file in self.run.files if file.name in rank_of}
        rest = [file for file in self.run.files if file.name not in rank_of]
        return dict(sorted(ranks.items())), rest

    def _close(self, closed: Table, trace: Trace) -> Table:
        """Return the rows of steps of this host that close now."""
        complete = closed["begin_ns"] > self._cut_ns
        if self.others is not None:
            complete &= (closed["end_ns"] <= self._known_until_ns(self.others)) & (not self.others.is_incomplete)
        for rank, step, begin in zip(*(closed[name].tolist() for name in ("rank", "step", "begin_ns")), strict=True):
            self.closed[rank] = max(step, self.closed.get(rank, -1))
            self.begins_ns.setdefault(step, {})[rank] = begin + self.origin_ns
        return wide_rows(stalls(trace, by="step", warmup=True), closed, start=self.start, complete=complete)

    def _known_until_ns(self, others: OtherHosts, boot_id: str = "") -> int:
        """Return up to when the ranks of other hosts that still record are known; of one boot if it is given."""
        until = int(np.iinfo(np.int64).max)
        for process in () if self.opened is None else self.opened.everyone:
            rows = process.core.records.get("clock_sync")
            is_meant = boot_id in ("", process.clock.boot_id) and others.is_recording(process.file)
            if is_meant and rows is not None:
                until = min(until, process.clock.common_ns(int(rows.rows["monotonic_ns"].max())))
        return until

    def _windowed(self, grown: GrownRun) -> tuple[Trace, Trace]:
        """Return the traces of this host's ranks and of all as ones that begin with the window."""
        if self.window is None:
            return grown.trace, grown.joint
        trace = with_window(grown.trace, self.window, self.origin_ns)
        if grown.joint is grown.trace:
            return trace, trace
        begins, clocks = dict(self.window.begins_ns), grown.opened.clocks.of_boots()
        for rank in set(grown.joint.ranks.tolist()) - begins.keys():
            boot, at_ns = self._begins.get(rank, ("", 0))
            # A rank that joins begins about when the others do.
            begins[rank] = clocks[boot].common_ns(at_ns) if boot in clocks else min(self.window.begins_ns.values())
        return trace, with_window(grown.joint, Window(self.window.first_step, begins), self.origin_ns)

    def _numbered(self, table: Table, ours: Collection[int]) -> Table:
        """Return steps of all ranks with the numbers that those of this host have: other hosts may begin elsewhere."""
        own = np.isin(table["rank"], list(ours))
        if self.window is None or own.all() or not own.any():
            return table
        return table.replace(step=table["step"] + self.window.first_step - int(table["step"][own].min()))

    def _closing(
        self, joint: Trace, table: Table, own: npt.NDArray[np.int64], at_ns: int | None
    ) -> npt.NDArray[np.bool_]:
        """Return a mask of the steps that close now, of the ranks ``own``; ``at_ns`` is None once the job has ended."""
        settled_ns = np.iinfo(np.int64).max if at_ns is None else self._settled_ns()
        if settled_ns is None:
            return np.zeros(len(table), dtype=bool)
        ranks, row = np.unique(table["rank"], return_inverse=True)
        last = np.array([self.closed.get(rank, -1) for rank in ranks.tolist()])[row]
        chosen = np.isin(table["rank"], own) & (table["step"] > last) & (table["end_ns"] <= settled_ns)
        if at_ns is not None:
            chosen &= table["step"] <= self._left_by_all(joint, table, at_ns)
        return np.asarray(chosen)

    def _settled_ns(self) -> int | None:
        """Return until when later readings do not move the times of this host; None if they may move all of them."""
        assert self.opened is not None
        clocks, others = self.opened.clocks, self.others
        settled = clocks.settled_ns()
        if settled is None or others is None:
            return settled
        # Containers of one machine share its clock, and each has readings of it.
        return min(settled, self._known_until_ns(others, clocks.reference) - 2 * POLICY.window_ns)

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
        """Return the ranks whose process had not ended in the last round, and has written something recently.

        Of a process that was killed the ring stays.
        """
        living = {
            (str(file.metadata.get("host", "")), file.metadata.get("pid"))
            for file in self.run.files
            if file.is_open and at_ns - file.newest_ns < times.PROCESS_SILENT_NS
        }
        if self.others is not None:
            living |= {(str(f.metadata.get("host", "")), f.metadata.get("pid")) for f in self.others.recording()}
        table = trace.processes
        return {
            row["rank"]
            for row in table.rows()
            if row["role_code"] == ProcessRole.RANK and (trace.text(row["host_code"]), row["pid"]) in living
        }

    def _move_on(self, trace: Trace, opened: OpenedRun) -> None:
        """Let the window begin at a later step, and let go of the rows that only earlier ones need.

        ``trace``: of all ranks.
        """
        ours = set(self.closed)
        table = self._numbered(host_steps(trace), ours)
        last = min(self.closed.values())
        by_step = GroupBy(table["step"])
        begin = by_step.min(table["begin_ns"])
        everybody = by_step.sizes == len(np.unique(table["rank"]))
        at = int(np.searchsorted(by_step.values, last))
        newest_ns = int(begin[min(at, len(begin) - 1)])
        old = begin < newest_ns - times.LEAST_CONTEXT_NS
        long_ago = (by_step.values <= last - self.context_steps) | (
            (by_step.values <= last - LEAST_STEPS) & (begin < newest_ns - times.CONTEXT_NS)
        )
        first = 0 if self.window is None else self.window.first_step
        fitting = np.flatnonzero(everybody & old & long_ago & (by_step.values > first))
        if not len(fitting):
            return
        if not self.windows:  # the rows that are let go of first can be read again, too
            self.windows.append(self.window or _window_from(table, int(by_step.values[0]), ours))
        first = int(by_step.values[fitting[-1]])
        at_first = table.take(table["step"] == first)
        own_begin_ns = int(at_first["begin_ns"].min()) + self.origin_ns
        self.window = _window_from(table, first, ours)
        self.windows.append(self.window)
        oldest_ns = own_begin_ns - RECALLED_NS
        self.begins_ns = {
            step: begins
            for step, begins in self.begins_ns.items()
            if step >= first or min(begins.values()) >= oldest_ns
        }
        boots = {p.identity.rank: p.clock for p in opened.processes if p.identity.role is ProcessRole.RANK}
        self._begins = {
            rank: (boots[rank].boot_id, boots[rank].monotonic_ns(at))
            for rank, at in zip(at_first["rank"].tolist(), at_first["begin_ns"].tolist(), strict=True)
            if rank not in ours
        }
        # Starts of an elastic job are counted by its ranks, also by those that have ended.
        ranks = {
            p.file.name for p in opened.everyone if p.identity.role is ProcessRole.RANK or "rank" in p.facts.learned
        }
        self.run.forget(own_begin_ns, keep=ranks)
        if self.others is not None:
            self.others.forget(own_begin_ns, keep=ranks)

    def _bound_memory(self) -> None:
        """Let go of the oldest rows where the rows of a step do not fit into memory."""
        held = self.run.held_bytes + (0 if self.others is None else self.others.held_bytes)
        if held > MOST_BYTES:
            self._cut_ns = max(self._cut_ns, self.run.forget_half() - self.origin_ns)


def _window_from(table: Table, step: int, ranks: Collection[int]) -> Window:
    """Return the window that begins with a step of these ranks."""
    rows = table.take((table["step"] == step) & np.isin(table["rank"], list(ranks)))
    return Window(step, dict(zip(rows["rank"].tolist(), rows["begin_ns"].tolist(), strict=True)))


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
