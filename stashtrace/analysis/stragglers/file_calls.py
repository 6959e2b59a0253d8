"""Calls of a step thread on files: also those that no wait covers, as reads that the page cache serves.

The budget cuts them by what the thread did inside: blocked reads are ``fetch``, other blocked calls ``other``, and
where the thread ran, as when it copies, the time is ``python``. What a loop does with one file is one cause all the
same.

    write()   [== copies ==][.. blocked ..]   fsync()  [...... blocked ......]     on one file
    kind      |-- python --||-- other ----|            |-------- other -------|
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.intervals import Int64, TimeSet, int64, rows_of
from stashtrace.analysis.stalls.batch_waits import batch_waits
from stashtrace.analysis.stalls.budget import rank_layers
from stashtrace.analysis.stalls.rows_by_thread import READ_OPS, TraceIndex, kept_per_thread
from stashtrace.analysis.steps.threads import StepThread, step_threads
from stashtrace.analysis.stragglers.surplus import compared_steps
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import IoFlag, IoOp, StallKind
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

#: Kinds of time that a loop's own calls on files are parts of.
KINDS = (StallKind.FETCH, StallKind.OTHER, StallKind.PYTHON, StallKind.COMPUTE)
_NOT_FILES = int(IoFlag.SOCKET | IoFlag.PIPE)
#: Calls that say which way the bytes go; an open or a look-up says nothing of it.
_READS = tuple(op for op in READ_OPS if op not in (IoOp.OPEN, IoOp.FOPEN, IoOp.STAT))
_WRITES = (
    *(IoOp.WRITE, IoOp.PWRITE, IoOp.WRITEV, IoOp.PWRITEV, IoOp.FWRITE),
    *(IoOp.FFLUSH, IoOp.FSYNC, IoOp.MSYNC, IoOp.TRUNCATE),
)
#: Ends of the names of files that SQLite keeps beside a database.
_JOURNALS = ("journal", "wal", "shm")
#: A file, or one way of the bytes, stands for all of a time if it takes at least this part of it.
_MOST_RATIO = 0.5


@dataclass(frozen=True, slots=True)
class FileCalls:
    """Calls of one step thread on files with a name, by begin."""

    begin: Int64
    end: Int64
    path: Int64
    op: Int64

    def take(self, rows: npt.NDArray[np.integer] | npt.NDArray[np.bool_]) -> FileCalls:
        """Return some of the calls."""
        return FileCalls(self.begin[rows], self.end[rows], self.path[rows], self.op[rows])

    @property
    def time(self) -> TimeSet:
        """When the thread was in any of them."""
        return TimeSet.of(self.begin, self.end)


@dataclass(frozen=True, slots=True)
class OnFile:
    """What a step thread does with one file, or with all its files where none of them takes most of the time."""

    #: When it was in calls on it, outside of batch waits, collectives and checkpoints.
    time: TimeSet
    #: This time by the kind that the budget gives to it.
    parts_ns: dict[StallKind, int]
    #: ``reads`` or ``writes`` if most of it is, else ``calls``.
    way: str
    #: Path; the one with most time of several.
    name: str
    files_count: int
    #: Name of a call -> time in it, the longest first.
    calls_ns: dict[str, int]


def as_one_database(trace: Trace, paths: Int64) -> Int64:
    """Return codes of paths with those of a database's own journals replaced by that of the database.

    SQLite writes a change to ``x.db-journal`` or ``x.db-wal`` first: one program writes one database.
    """
    out = int64(paths.astype(np.int64))
    for code in np.unique(paths).tolist():
        base, dash, kind = trace.text(code).rpartition("-")
        of_base = trace.strings.find(base) if dash and kind in _JOURNALS else -1
        if of_base >= 0:
            out[paths == code] = of_base
    return out


@kept_per_thread
def file_calls(index: TraceIndex, thread: StepThread) -> FileCalls:
    """Return all calls of a step thread on files with a name."""
    names = ("begin_ns", "end_ns", "path_code", "op_code")
    parts: list[list[Int64]] = [[int64([]) for _ in names]]
    for table in _pieces(index.trace, thread):
        own = table.take(np.arange(*rows_of(table["track_id"], thread.track_id).indices(len(table))))
        named = (own["io_flags"] & _NOT_FILES) == 0
        named &= (own["path_code"] != index.trace.strings.find("")) & (own["end_ns"] > own["begin_ns"])
        parts.append([int64(own[name][named]) for name in names])
    begin, end, path, op = (int64(np.concatenate(column)) for column in zip(*parts, strict=True))
    return FileCalls(begin, end, as_one_database(index.trace, path), op)


def _pieces(trace: Trace, thread: StepThread) -> Iterator[Table]:
    """Give the I/O calls of a process, from the disk where they are not in memory."""
    streamed = trace.streamed_io
    if streamed is None:
        yield trace.io
    elif thread.track_id < len(streamed.counts) and streamed.counts[thread.track_id]:
        yield from streamed.pieces((thread.process_id,))


@kept_per_thread
def _own_time(index: TraceIndex, thread: StepThread) -> dict[StallKind, TimeSet]:
    """Return the time by kind in which a call on a file is the loop's own, over the whole life of a thread.

    A device computes on while its host reads, so its time of computing is none that a call takes.
    """
    layers = rank_layers(index, thread)
    on_host = layers.method == "host" and not layers.segments
    painted = layers.painted_kinds()
    kinds = {kind: painted.time_of(kind) for kind in KINDS if on_host or kind != StallKind.COMPUTE}
    kinds[StallKind.FETCH] -= batch_waits(index, thread).time
    return kinds


def on_file(index: TraceIndex, thread: StepThread, steps: Table) -> OnFile | None:
    """Return what a step thread does with its file in some of its steps; None if it makes no call on any."""
    calls, inside = file_calls(index, thread), TimeSet.of_rows(steps)
    own = {kind: time & inside for kind, time in _own_time(index, thread).items()}
    every = TimeSet.united(*own.values())
    spent = every.within(calls.begin, calls.end)
    calls, spent = calls.take(spent > 0), spent[spent > 0]
    if not len(spent):
        return None
    files = GroupBy(calls.path)
    of_file = files.sum(spent)
    longest = int(files.values[of_file.argmax()])
    count = len(files)
    if of_file.max() >= _MOST_RATIO * of_file.sum():
        of_it = calls.path == longest
        calls, spent, count = calls.take(of_it), spent[of_it], 1
    ops = GroupBy(calls.op)
    of_op = dict(zip(ops.values.tolist(), ops.sum(spent).tolist(), strict=True))
    left, calls_ns = every, dict[str, int]()
    for op in sorted(of_op, key=lambda op: (-of_op[op], op)):  # a call inside another one counts once
        within = calls.take(calls.op == op).time & left
        left -= within
        if within.total_ns:
            calls_ns[IoOp(op).name.lower()] = within.total_ns
    time = calls.time & every
    moved = {way: sum(of_op.get(op, 0) for op in ops) for way, ops in (("reads", _READS), ("writes", _WRITES))}
    way = next((way for way, ns in moved.items() if ns > _MOST_RATIO * time.total_ns), "calls")
    parts = {kind: (time & of_kind).total_ns for kind, of_kind in own.items()}
    return OnFile(time, parts, way, index.trace.text(longest), count, calls_ns)


@dataclass(frozen=True, slots=True)
class LongerOnFile:
    """By how much longer a rank than the median of its peers is in calls on files, a step."""

    longer_ns: float
    #: The same by kind of time.
    parts_ns: dict[str, float]
    #: What it does.
    on: OnFile


def longer_on_file(trace: Trace, steps: Table, rank: int, peers: Sequence[int]) -> LongerOnFile | None:
    """Compare a rank's calls on its file with those of its peers on any file; None if it is not longer in them."""
    index = TraceIndex(trace)
    tables = compared_steps(trace, steps, rank, peers)
    threads = {thread.rank: thread for thread in step_threads(trace) if thread.rank in tables}
    on = on_file(index, threads[rank], tables[rank]) if rank in tables else None
    if on is None:
        return None
    spent = {one: _by_kind(index, threads[one], on.time if one == rank else None, tables[one]) for one in tables}
    typical = np.median(np.stack([spent[one] for one in tables if one != rank]), axis=0)
    longer = (spent[rank] - typical).mean(axis=0)
    whole = spent[rank].sum(axis=1) - np.median(
        np.stack([spent[one].sum(axis=1) for one in tables if one != rank]), axis=0
    )
    if whole.mean() <= 0:
        return None
    parts = {kind.name.lower(): float(max(ns, 0.0)) for kind, ns in zip(KINDS, longer, strict=True)}
    return LongerOnFile(float(whole.mean()), parts, on)


def _by_kind(index: TraceIndex, thread: StepThread, time: TimeSet | None, steps: Table) -> npt.NDArray[np.float64]:
    """Return the time in calls on files by step and kind; ``time`` where it is not that of all of them."""
    spent = file_calls(index, thread).time if time is None else time
    own = _own_time(index, thread)
    columns = [(spent & own.get(kind, TimeSet.empty())).within(steps["begin_ns"], steps["end_ns"]) for kind in KINDS]
    return np.stack(columns, axis=1).astype(np.float64)
