"""Calls of a step thread on files: also those that no wait covers, as reads that the page cache serves.

The budget cuts them by what the thread did inside: blocked reads are ``fetch``, other blocked calls ``other``, and
where the thread ran, as when it copies, the time is ``python``. What a loop does with one file is one cause all the
same.

    write()   [== copies ==][.. blocked ..]   fsync()  [...... blocked ......]     on one file
    kind      |-- python --||-- other ----|            |-------- other -------|
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.intervals import Int64, TimeSet, int64, rows_of
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex, kept_per_thread
from stashtrace.analysis.steps.threads import StepThread
from stashtrace.schema.kinds import IoFlag
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

_NOT_FILES = int(IoFlag.SOCKET | IoFlag.PIPE)
#: Ends of the names of files that SQLite keeps next to a database.
_JOURNALS = ("journal", "wal", "shm")


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


def as_one_database(trace: Trace, paths: Int64) -> Int64:
    """Return codes of paths with those of a database's journals replaced by that of the database.

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
        part = table.take(np.arange(*rows_of(table["track_id"], thread.track_id).indices(len(table))))
        named = (part["io_flags"] & _NOT_FILES) == 0
        named &= (part["path_code"] != index.trace.strings.find("")) & (part["end_ns"] > part["begin_ns"])
        parts.append([int64(part[name][named]) for name in names])
    begin, end, path, op = (int64(np.concatenate(column)) for column in zip(*parts, strict=True))
    return FileCalls(begin, end, as_one_database(index.trace, path), op)


def _pieces(trace: Trace, thread: StepThread) -> Iterator[Table]:
    """Give the I/O calls of a process, from the disk where they are not in memory."""
    streamed = trace.streamed_io
    if streamed is None:
        yield trace.io
    elif thread.track_id < len(streamed.counts) and streamed.counts[thread.track_id]:
        yield from streamed.pieces((thread.process_id,))
