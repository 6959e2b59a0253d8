"""I/O calls: read once for an outline, and kept in memory unless there are too many.

Only calls of merged files and of stores are left on disk, because nothing rewrites these: rows may be read again at any
time. If rows are not in the order of the ``io`` table, all are loaded whatever their number.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np

from stashtrace.loading.decode import IoRows
from stashtrace.schema.events import TABLES
from stashtrace.schema.groupby import Bools
from stashtrace.schema.kinds import IO_WAITED, IoOp
from stashtrace.schema.order import SORT_KEYS
from stashtrace.schema.table import Array, GrowingTable, Table
from stashtrace.schema.trace import EventTables, Trace

#: The calls of runs with at most this many are kept in memory: 44 bytes each.
KEPT_ROWS = 8_000_000
#: Masks by code (any of 16 bits in a damaged file): calls that are notable, and calls that may be.
_RECEIVES, _WRITES = np.zeros((2, 1 << 16), dtype=np.bool_)
_RECEIVES[[IoOp.RECV, IoOp.CONNECT]] = True
_WRITES[[IoOp.WRITE, IoOp.WRITEV, IoOp.PWRITE, IoOp.PWRITEV, IoOp.FWRITE]] = True
#: A thread that may drive a training loop has rows in one of these tables; the values are the columns with its track.
_LOOP_TABLES = {"phases": "track_id", "batches": "track_id", "spans": "track_id", "device_brackets": "thread_track_id"}


class IoSource(Protocol):
    """I/O calls on disk, in the order of ``io`` unless the files say otherwise."""

    #: Upper bound of the number of calls.
    rows_count: int

    def pieces(self, process_ids: Collection[int] | None = None) -> Iterator[Table]:
        """Yield the rows of these processes (all if None) in pieces of bounded size; none of them is empty."""
        ...


class CallsOfRun:
    """The calls of a run, process by process."""

    def __init__(self, sources: Sequence[IoRows]) -> None:
        self._sources = sources
        self.rows_count = sum(source.rows_count for source in sources)

    def pieces(self, process_ids: Collection[int] | None = None) -> Iterator[Table]:
        """See :class:`IoSource`."""
        for index in range(len(self._sources)) if process_ids is None else sorted(process_ids):
            yield from self._sources[index].pieces()


class Outline:
    """See :class:`stashtrace.schema.trace.IoOutline`; made by :func:`read_io` and :func:`outline_io`."""

    def __init__(self, source: IoSource, tracks_count: int) -> None:
        self._source: IoSource | None = source
        self.rows_count = 0
        self.counts = np.zeros(tracks_count, dtype=np.int64)
        self.begin_ns = 0
        self.end_ns = 0
        self.notable = Table.empty(TABLES["io"])

    def whole(self) -> Table:
        """Return all rows, by track, then begin; for calls left on disk, as :meth:`pieces`."""
        assert self._source is not None
        return _load(Outline(self._source, len(self.counts)), self._source.rows_count)

    def pieces(self, process_ids: Collection[int] | None = None) -> Iterator[Table]:
        """Yield the rows of these processes (all if None) in pieces of bounded size and in the order of ``io``."""
        assert self._source is not None
        return self._source.pieces(process_ids)

    def forget_files(self) -> None:
        """Release the opened run, once the calls are in memory."""
        self._source = None


def read_io(sources: Sequence[IoRows], parts: Sequence[EventTables], tracks_count: int) -> tuple[Outline, Table | None]:
    """Return the outline of all calls of a run, and their table; None if they are too many and stay on disk.

    ``sources``: of each process. ``parts``: the other tables of each process; they show which threads may drive a
    training loop. ``tracks_count``: number of tracks of the trace so far.
    """
    source = CallsOfRun(sources)
    if source.rows_count > KEPT_ROWS and all(one.file.head.merged for one in sources):
        outline = outline_io(source, parts, tracks_count)
        if outline is not None:
            return outline, None
    outline = Outline(source, tracks_count)
    table = _load(outline, source.rows_count)
    outline.notable = table.take(_is_notable(table, _loop_tracks(parts, tracks_count)))
    outline.forget_files()
    return outline, table


def outline_io(source: IoSource, parts: Iterable[EventTables | Trace], tracks_count: int) -> Outline | None:
    """Return the outline of calls that stay on disk; None if they cannot, because they are not in ``io`` order."""
    outline, notable = Outline(source, tracks_count), _Notable(_loop_tracks(parts, tracks_count))
    if not _read(outline, notable=notable):
        return None
    outline.notable = notable.table()
    return outline


def _loop_tracks(parts: Iterable[EventTables | Trace], tracks_count: int) -> Bools:
    """Return a mask of the tracks that are threads which may drive a training loop."""
    drives = np.zeros(tracks_count, dtype=bool)
    for part in parts:
        for name, column in _LOOP_TABLES.items():
            tracks = part.table(name)[column]
            drives[tracks[tracks >= 0]] = True
    return drives


class _Notable(GrowingTable):
    """Notable rows, collected from pieces."""

    def __init__(self, loop_tracks: Bools) -> None:
        super().__init__(TABLES["io"])
        self.loop_tracks = loop_tracks

    def look(self, piece: Table) -> None:
        """Keep the notable rows of a piece."""
        rows = np.flatnonzero(_is_notable(piece, self.loop_tracks))
        if len(rows):
            self.add(piece.take(rows), len(rows))


def _load(outline: Outline, rows_count: int) -> Table:
    """Return the io table of at most ``rows_count`` rows; apart from it, only one piece is in memory at a time."""
    schema = TABLES["io"]
    columns = {c.name: np.empty(rows_count, dtype=c.dtype) for c in schema.columns}
    in_order = _read(outline, columns=columns)
    table = Table(schema, {n: c[: outline.rows_count] for n, c in columns.items()})
    return table if in_order else table.sort_by(*SORT_KEYS["io"])


def _read(outline: Outline, *, notable: _Notable | None = None, columns: dict[str, Array] | None = None) -> bool:
    """Fill the outline, ``notable`` and ``columns``; return False if the rows are not in the order of the table.

    Without columns, reading stops at the first piece that is out of order.
    """
    last, in_order, filled = (-1, 0), True, 0
    for piece in outline.pieces():
        track, begin, end = piece["track_id"], piece["begin_ns"], piece["end_ns"]
        in_order &= last <= (int(track[0]), int(begin[0]))
        if columns is not None:
            for name, column in columns.items():
                column[filled : filled + len(piece)] = piece[name]
        elif not in_order:
            return False
        last = int(track[-1]), int(begin[-1])
        outline.begin_ns = min(outline.begin_ns, int(begin.min())) if filled else int(begin.min())
        outline.end_ns = max(outline.end_ns, int(end.max())) if filled else int(end.max())
        counts = np.bincount(track - track[0])
        outline.counts[track[0] : track[0] + len(counts)] += counts
        if notable is not None:
            notable.look(piece)
        filled += len(piece)
    outline.rows_count = filled
    return in_order


def _is_notable(io: Table, loop_tracks: Bools) -> Bools:
    op, track = io["op_code"].view(np.uint16), io["track_id"]
    notable = ((io["io_flags"] & IO_WAITED) != 0) | _RECEIVES[op]
    if len(track) and loop_tracks[track[0] : track[-1] + 1].any():
        notable |= _WRITES[op] & (io["path_code"] > 0) & loop_tracks[track]
    return np.asarray(notable, dtype=np.bool_)
