"""I/O calls: read once for what most need of them, and kept in memory unless there are too many.

Called by ``align.align``. Only calls of merged files, which nobody rewrites, are left on disk: a row is read again at
any time. A run whose rows turn out not to be in the order of the ``io`` table is loaded whatever its size.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
import numpy.typing as npt

from stashtrace.align.session import Session
from stashtrace.model.kinds import IoFlag, IoOp
from stashtrace.model.row_order import SORT_KEYS
from stashtrace.model.schemas import TABLES
from stashtrace.model.table import Array, Table

#: Runs with at most so many calls have them in memory: 44 bytes each.
KEPT_ROWS = 8_000_000
_BLOCKED = int(IoFlag.BLOCKED | IoFlag.BLOCK_INPUT)
_NOTABLE_OPS = (IoOp.RECV, IoOp.CONNECT)
_WRITE_OPS = (IoOp.WRITE, IoOp.WRITEV, IoOp.PWRITE, IoOp.PWRITEV, IoOp.FWRITE)


class Outline:
    """See :class:`stashtrace.model.trace.IoOutline`; made by :func:`read_io`."""

    def __init__(self, session: Session) -> None:
        self._session: Session | None = session
        self.rows_count = 0
        self.counts = np.zeros(len(session.tracks), dtype=np.int64)
        self.begin_ns = 0
        self.end_ns = 0
        self.notable = Table.empty(TABLES["io"])

    def whole(self) -> Table:
        """All rows, by track, then begin; for calls left on disk, as :meth:`pieces`."""
        assert self._session is not None
        return _load(self._session, Outline(self._session))

    def pieces(self, process_ids: Collection[int] | None = None) -> Iterator[Table]:
        """The rows of these processes, all if None, in pieces of bounded size and in the order of ``io``."""
        assert self._session is not None
        for index in range(len(self._session)) if process_ids is None else sorted(process_ids):
            yield from self._session.io_pieces(index)

    def forget_files(self) -> None:
        """Let go of the opened run: the calls are in memory."""
        self._session = None


def read_io(session: Session) -> tuple[Outline, Table | None]:
    """Outline of all calls, and their table unless they had better stay on disk."""
    outline = Outline(session)
    if session.io_rows_count() > KEPT_ROWS and all(file.head.merged for file in session.files):
        notable = _Columns()
        if _read(outline, notable=notable):
            outline.notable = notable.table()
            return outline, None
        outline = Outline(session)
    table = _load(session, outline)
    outline.forget_files()
    return outline, table


class _Columns:
    """Rows of pieces that become a table."""

    def __init__(self) -> None:
        self._parts: dict[str, list[Array]] = {name: [] for name in TABLES["io"].names}

    def add(self, piece: Table, rows: npt.NDArray[np.intp]) -> None:
        for name, parts in self._parts.items():
            parts.append(piece[name][rows])

    def table(self) -> Table:
        """The table; the parts are used up, a column at a time."""
        if not self._parts["begin_ns"]:
            return Table.empty(TABLES["io"])
        return Table(TABLES["io"], {name: np.concatenate(self._parts.pop(name)) for name in list(self._parts)})


def _load(session: Session, outline: Outline) -> Table:
    """The io table, filled piece by piece: beside it there is never more than one piece."""
    schema = TABLES["io"]
    columns = {c.name: np.empty(session.io_rows_count(), dtype=c.dtype) for c in schema.columns}
    notable = _Columns()
    in_order = _read(outline, notable=notable, columns=columns)
    table = Table(schema, {n: c[: outline.rows_count] for n, c in columns.items()})
    outline.notable = notable.table()
    if in_order:
        return table
    outline.notable = outline.notable.sort_by(*SORT_KEYS["io"])
    return table.sort_by(*SORT_KEYS["io"])


def _read(outline: Outline, *, notable: _Columns, columns: dict[str, Array] | None = None) -> bool:
    """Fill the outline, and the columns if given; False if the rows are not in the order of the table.

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
        notable.add(piece, np.flatnonzero(_is_notable(piece)))
        filled += len(piece)
    outline.rows_count = filled
    return in_order


def _is_notable(io: Table) -> npt.NDArray[np.bool_]:
    op = io["op_code"]
    table = np.zeros(max(int(op.max()), *IoOp) + 1, dtype=np.int8)
    table[list(_NOTABLE_OPS)] = 2
    table[list(_WRITE_OPS)] = 1
    sort = table[op]
    flagged = (io["io_flags"] & _BLOCKED) != 0
    return np.asarray(flagged | (sort == 2) | ((sort == 1) & (io["path_code"] > 0)), dtype=np.bool_)
