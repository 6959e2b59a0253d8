"""I/O calls one process after the other, and each call compared with the previous one on the same file."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.intervals import Bools, Int64
from stashtrace.analysis.stalls.rows_by_thread import process_of_track
from stashtrace.schema.groupby import GroupBy, order_by
from stashtrace.schema.kinds import NOT_FILES, OPENS, READS, WRITES, IoFlag, IoOp
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

Codes = npt.NDArray[np.int8]
#: Calls whose time Darshan counts as writing, and as metadata; it does not count others (unlink, mkdir, ...).
_FLUSHES = (IoOp.FSYNC, IoOp.FFLUSH)
_METADATA = (*OPENS, IoOp.CLOSE, IoOp.FCLOSE, IoOp.LSEEK, IoOp.FSEEK, IoOp.STAT, IoOp.MMAP, IoOp.RENAME)
OTHER, READING, WRITING, METADATA = range(4)


def _of_ops(values: dict[int, tuple[IoOp, ...]]) -> Codes:
    table = np.zeros(max(IoOp) + 1, dtype=np.int8)
    for value, ops in values.items():
        table[list(ops)] = value
    return table


_CLASS = _of_ops({READING: READS, WRITING: WRITES + _FLUSHES, METADATA: _METADATA})
_MOVES = _of_ops({READING: READS, WRITING: WRITES})
_STDIO = _of_ops({1: (IoOp.FOPEN, IoOp.FCLOSE, IoOp.FREAD, IoOp.FWRITE, IoOp.FSEEK, IoOp.FFLUSH)})


def time_class(table: Table) -> Codes:
    """Return READING, WRITING or METADATA as Darshan adds up time; OTHER for the rest and for all but files."""
    classes = _CLASS[np.clip(table["op_code"], 0, len(_CLASS) - 1)]
    return np.where((table["io_flags"] & NOT_FILES) == 0, classes, OTHER).astype(np.int8)


def moves(table: Table) -> Codes:
    """Return READING or WRITING for calls that move bytes, also those not on files; OTHER for the rest."""
    codes: Codes = _MOVES[np.clip(table["op_code"], 0, len(_MOVES) - 1)]
    return codes


def of_stdio(table: Table) -> Bools:
    """Return a mask of the calls of the C library's streams."""
    by_op = _STDIO[np.clip(table["op_code"], 0, len(_STDIO) - 1)] > 0
    stdio: Bools = by_op | ((table["io_flags"] & IoFlag.STDIO) != 0)
    return stdio


#: Reads the calls of a process again on each call, in pieces of bounded size, by track, then begin.
Pieces = Callable[[], Iterable[Table]]


def process_pieces(trace: Trace) -> Iterator[tuple[int, Pieces]]:
    """Yield each process, and a function that reads its calls."""
    streamed = trace.streamed_io
    processes = np.unique(trace.tracks["process_id"]).tolist()
    if streamed is not None:
        for process in processes:
            yield process, functools.partial(streamed.pieces, (process,))
        return
    table = trace.io
    if not len(table):
        return
    for process, rows in GroupBy(process_of_track(trace)[table["track_id"]]).items():
        yield process, functools.partial(_only, table if len(rows) == len(table) else table.take(rows))


def _only(table: Table) -> list[Table]:
    return [table]


@dataclass(frozen=True, slots=True)
class Followed:
    """Calls compared with the previous one of the same reader on the same file; parallel to ``rows``."""

    #: Rows of the piece, by reader and file, then in order.
    rows: Int64
    #: ``path_code``.
    path: Int64
    #: True for the first call of the reader on the file.
    first: Bools
    #: As in Darshan: begins after the last byte of the previous call, or right after it. An open sets that byte to 0.
    sequential: Bools
    consecutive: Bools


class Follower:
    """Follows the pieces of a process; stores where the last call on each file ended.

    ``count``: number of path codes.
    """

    def __init__(self, count: int) -> None:
        self._end = np.full(count, -1, dtype=np.int64)
        self._seen = np.zeros(count, dtype=bool)
        self._known: Int64 = np.empty(0, dtype=np.int64)
        self._track = -1

    def follow(
        self, rows: Int64, track: Int64, path: Int64, offset: Int64, length: Int64, opens: Bools | None = None
    ) -> Followed:
        """Follow the calls of a piece, in the order of the table; an open sets the last byte to 0, as for Darshan."""
        if not len(rows):
            nothing, no = np.empty(0, dtype=np.int64), np.empty(0, dtype=bool)
            return Followed(nothing, nothing, no, no, no)
        order = order_by(track, path)
        track, path, offset = track[order], path[order], offset[order]
        call = np.ones(len(order), dtype=bool) if opens is None else ~opens[order]
        end = np.where(call, offset + length[order], 1)
        files = GroupBy.runs(track, path)
        starts = files.first
        carried = track[starts] == self._track
        before = np.empty(len(order), dtype=np.int64)
        before[1:] = end[:-1]
        before[starts] = np.where(carried, self._end[path[starts]], -1)
        calls = np.cumsum(call) - call
        earlier = (calls - calls[starts][files.number] > 0) | (carried & self._seen[path[starts]])[files.number]
        self._remember(track, path, end, call)
        last_byte = np.where(before < 0, 0, before - 1)
        sequential, consecutive = offset > last_byte, offset == last_byte + 1
        return Followed(rows[order][call], path[call], ~earlier[call], sequential[call], consecutive[call])

    def _remember(self, track: Int64, path: Int64, end: Int64, call: Bools) -> None:
        newest = int(track[-1])
        if newest != self._track:
            self._end[self._known], self._seen[self._known] = -1, False
            self._known, self._track = np.empty(0, dtype=np.int64), newest
        rows = np.flatnonzero(track == newest)
        lasts = rows[GroupBy.runs(path[rows]).last]
        self._end[path[lasts]] = end[lasts]
        self._seen[path[rows[call[rows]]]] = True
        self._known = np.union1d(self._known, path[lasts])
