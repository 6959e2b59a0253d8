"""I/O calls: read once for what most need of them, and kept in memory unless there are too many.

Only calls of merged files, which nobody rewrites, are left on disk: a row is read again at any time. A run whose rows
turn out not to be in the order of the ``io`` table is loaded whatever its size.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from stashtrace.loading.decode import IoRows
from stashtrace.schema.events import TABLES
from stashtrace.schema.kinds import IoFlag, IoOp
from stashtrace.schema.order import SORT_KEYS, in_order_of
from stashtrace.schema.table import Array, GrowingTable, Table
from stashtrace.schema.trace import EventTables

#: Runs with at most so many calls have them in memory: 44 bytes each.
KEPT_ROWS = 8_000_000
_BLOCKED = int(IoFlag.BLOCKED | IoFlag.BLOCK_INPUT)
#: By code, which in a damaged file may be any of 16 bits: calls that are notable, and those that may be.
_RECEIVES, _WRITES = np.zeros((2, 1 << 16), dtype=np.bool_)
_RECEIVES[[IoOp.RECV, IoOp.CONNECT]] = True
_WRITES[[IoOp.WRITE, IoOp.WRITEV, IoOp.PWRITE, IoOp.PWRITEV, IoOp.FWRITE]] = True
#: A thread that may drive a training loop has rows in one of these tables; the column that names it.
_LOOP_TABLES = {"phases": "track_id", "batches": "track_id", "spans": "track_id", "device_brackets": "thread_track_id"}


class Outline:
    """See :class:`stashtrace.schema.trace.IoOutline`; made by :func:`read_io`."""

    def __init__(self, sources: Sequence[IoRows], tracks_count: int) -> None:
        self._sources: Sequence[IoRows] | None = sources
        self.rows_count = 0
        self.counts = np.zeros(tracks_count, dtype=np.int64)
        self.begin_ns = 0
        self.end_ns = 0
        self.notable = Table.empty(TABLES["io"])

    def whole(self) -> Table:
        """All rows, by track, then begin; for calls left on disk, as :meth:`pieces`."""
        assert self._sources is not None
        return _load(Outline(self._sources, len(self.counts)), sum(source.rows_count for source in self._sources))

    def pieces(self, process_ids: Collection[int] | None = None) -> Iterator[Table]:
        """The rows of these processes, all if None, in pieces of bounded size and in the order of ``io``."""
        assert self._sources is not None
        for index in range(len(self._sources)) if process_ids is None else sorted(process_ids):
            yield from self._sources[index].pieces()

    def forget_files(self) -> None:
        """Let go of the opened run: the calls are in memory."""
        self._sources = None


def read_io(sources: Sequence[IoRows], parts: Sequence[EventTables], tracks_count: int) -> tuple[Outline, Table | None]:
    """Outline of all calls, and their table unless they had better stay on disk.

    Parameters
    ----------
    sources : sequence of IoRows
        Of each process.
    parts : sequence of EventTables
        The other tables of each process: they tell which threads may drive a training loop.
    tracks_count : int
        Tracks of the trace so far.
    """
    rows_count = sum(source.rows_count for source in sources)
    outline, notable = Outline(sources, tracks_count), _Notable(_loop_tracks(parts, tracks_count))
    if rows_count > KEPT_ROWS and all(source.file.head.merged for source in sources):
        if _read(outline, notable=notable):
            outline.notable = notable.table()
            return outline, None
        outline, notable = Outline(sources, tracks_count), _Notable(notable.loop_tracks)
    table = _load(outline, rows_count, notable)
    outline.forget_files()
    return outline, table


def _loop_tracks(parts: Sequence[EventTables], tracks_count: int) -> npt.NDArray[np.bool_]:
    """Whether each track is a thread that may drive a training loop."""
    drives = np.zeros(tracks_count, dtype=bool)
    for part in parts:
        for name, column in _LOOP_TABLES.items():
            tracks = part.table(name)[column]
            drives[tracks[tracks >= 0]] = True
    return drives


class _Notable(GrowingTable):
    """The notable rows of pieces."""

    def __init__(self, loop_tracks: npt.NDArray[np.bool_]) -> None:
        super().__init__(TABLES["io"])
        self.loop_tracks = loop_tracks

    def look(self, piece: Table) -> None:
        """Keep those rows of a piece that are notable."""
        rows = np.flatnonzero(_is_notable(piece, self.loop_tracks))
        if len(rows):
            self.add(piece.take(rows), len(rows))


def _load(outline: Outline, rows_count: int, notable: _Notable | None = None) -> Table:
    """The io table of at most so many rows, filled piece by piece: beside it there is never more than one piece."""
    schema = TABLES["io"]
    columns = {c.name: np.empty(rows_count, dtype=c.dtype) for c in schema.columns}
    in_order = _read(outline, notable=notable, columns=columns)
    table = Table(schema, {n: c[: outline.rows_count] for n, c in columns.items()})
    if notable is not None:
        outline.notable = in_order_of(notable.table(), SORT_KEYS["io"])
    return table if in_order else table.sort_by(*SORT_KEYS["io"])


def _read(outline: Outline, *, notable: _Notable | None, columns: dict[str, Array] | None = None) -> bool:
    """Fill the outline, and what else is given; False if the rows are not in the order of the table.

    Without columns there is no use in going on once that is known.
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


def _is_notable(io: Table, loop_tracks: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    op, track = io["op_code"].view(np.uint16), io["track_id"]
    notable = ((io["io_flags"] & _BLOCKED) != 0) | _RECEIVES[op]
    if loop_tracks[track[0] : track[-1] + 1].any():
        notable |= _WRITES[op] & (io["path_code"] > 0) & loop_tracks[track]
    return np.asarray(notable, dtype=np.bool_)
