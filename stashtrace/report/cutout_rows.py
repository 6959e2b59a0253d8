"""Lanes of a cut-out of the timeline: what one file, worker or rank did in a window, from recorded rows alone.

    file    |■■■ ■|            calls on it
    worker  |■■■■■■|           making batches
    late    |wait  |compute|■| kinds of the budget
    victim  |compute|  wait  |

A row that is not there is not drawn. Rows that are too short to see, or too close together to be told apart, are
counted or joined, and the lane says so.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from stashtrace._native import intervals
from stashtrace.analysis.intervals import Int64, int64, rows_of
from stashtrace.analysis.stalls.budget import rank_layers
from stashtrace.analysis.stalls.rows_by_thread import IO_WAITED, READ_OPS, TraceIndex
from stashtrace.analysis.steps.threads import StepThread
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import BatchPhase, StallKind
from stashtrace.schema.table import Table
from stashtrace.units import bytes_text

#: A piece shorter than this part of the window is less than a pixel wide: it is counted, not drawn.
_SHORT_DIVISOR = 1000
#: Pieces of one kind closer than this part of the window are drawn as one.
_CLOSE_DIVISOR = 500
#: Bound of the pieces of a lane; the longest ones stay.
_PIECES_AT_MOST = 48


@dataclass(frozen=True, slots=True)
class Window:
    """The part of the timeline that is shown, on the trace's clock."""

    begin_ns: int
    end_ns: int

    @property
    def length_ns(self) -> int:
        """Length of the window."""
        return self.end_ns - self.begin_ns


@dataclass(frozen=True, slots=True)
class _Pieces:
    """Intervals of a lane with a kind and a number of rows each."""

    begin: Int64
    end: Int64
    kind: Int64
    rows: Int64

    def length_in(self, window: Window) -> Int64:
        """Return the length of each piece inside a window."""
        return int64(np.minimum(self.end, window.end_ns) - np.maximum(self.begin, window.begin_ns))


def rank_lane(index: TraceIndex, thread: StepThread, window: Window, role: str) -> dict[str, Any]:
    """Return the lane of a rank: its time by kind of the budget."""
    time = rank_layers(index, thread).painted_kinds()
    begin, end, row, _ = intervals.join(time.begin, time.end, int64([window.begin_ns]), int64([window.end_ns]))
    kinds = [kind.name.lower() for kind in sorted(StallKind)]
    kind = np.searchsorted(np.array(sorted(StallKind)), time.tag[row])
    pieces = _Pieces(begin, end, int64(kind), np.ones(len(begin), dtype=np.int64))
    return _lane(role, f"rank {thread.rank}", "", pieces, kinds, window, rank=thread.rank)


def worker_lane(index: TraceIndex, process_id: int, worker_id: int, rank: int, window: Window) -> dict[str, Any] | None:
    """Return the lane of a loader worker: the batches that it made; None if it made none in the window."""
    fetches = index.batches_of_phase(BatchPhase.FETCH)
    own = fetches.take(index.fetches_by_process.rows(process_id))
    own = _rows_in_window(own, window)
    if not len(own):
        return None
    batches = own["batch_index"].tolist()
    numbers = np.arange(len(own), dtype=np.int64)
    pieces = _Pieces(own["begin_ns"], own["end_ns"], numbers, np.ones(len(own), dtype=np.int64))
    names = [f"batch {batch}" if batch >= 0 else "a batch" for batch in batches]
    label = f"worker {worker_id} of rank {rank}" if worker_id >= 0 else f"a worker of rank {rank}"
    lane = _lane("worker", label, "", pieces, names, window)
    for piece in lane["pieces"]:
        piece["text"], piece["kind"] = f"makes {piece['kind']}", "worker"
    return lane


def file_lane(index: TraceIndex, process_id: int, path: str, window: Window) -> dict[str, Any] | None:
    """Return the lane of a file: the reads of one process on it; None if there is none in the window.

    Of a run whose calls are still on disk, only those that blocked are there.
    """
    trace = index.trace
    code = trace.strings.find(path)
    if code < 0 or not path:
        return None
    table = trace.notable_io if trace.streamed_io is not None else trace.io
    tracks = trace.tracks
    parts = []
    for track in np.sort(tracks["track_id"][tracks["process_id"] == process_id]).tolist():
        calls = table.take(rows_of(table["track_id"], track))
        parts.append(calls.take((calls["path_code"] == code) & np.isin(calls["op_code"], READ_OPS)))
    calls = _rows_in_window(Table.concat(table.schema, parts), window).sort_by("begin_ns")
    if not len(calls):
        return None
    blocked = int64((calls["io_flags"] & IO_WAITED) != 0)
    pieces = _Pieces(calls["begin_ns"], calls["end_ns"], blocked, np.ones(len(calls), dtype=np.int64))
    lane = _lane("file", os.path.basename(path) or path, path, pieces, ["read", "blocked"], window)
    moved = int(np.maximum(calls["result_bytes"], 0).sum())
    lane["rows_count"], lane["moved_bytes"] = len(calls), moved
    for piece in lane["pieces"]:
        what = "blocked reads" if piece["kind"] == "blocked" else "reads that did not block"
        piece["text"] = f"{what} ({piece['rows_count']})"
    lane["text"] = f"{len(calls):,} read calls, {bytes_text(moved)}"
    return lane


def longest_file(index: TraceIndex, process_id: int, window: Window) -> str:
    """Return the path on which a process was blocked in storage longest in a window; empty if it was not."""
    io = index.io
    rows = index.io_by_process.rows(process_id)
    rows = rows[io.is_storage[rows] & io.is_read[rows]]
    spent = np.minimum(io.end[rows], window.end_ns) - np.maximum(io.begin[rows], window.begin_ns)
    rows, spent = rows[spent > 0], spent[spent > 0]
    if not len(rows):
        return ""
    paths = GroupBy(io.path[rows])
    return index.trace.text(int(paths.values[int(paths.sum(spent).argmax())]))


def _rows_in_window(table: Table, window: Window) -> Table:
    """Return the rows that touch the window."""
    return table.take((table["begin_ns"] < window.end_ns) & (table["end_ns"] > window.begin_ns))


def _lane(
    role: str, label: str, name: str, pieces: _Pieces, kinds: list[str], window: Window, rank: int = -1
) -> dict[str, Any]:
    """Return a lane with at most :data:`_PIECES_AT_MOST` pieces, clipped to the window and sorted by begin.

    ``hidden_count`` pieces were too short to draw, ``close_ns`` is the gap below which neighbours are one.
    """
    close = max(window.length_ns // _CLOSE_DIVISOR, 1)
    short = 0
    if rank >= 0:  # its pieces leave no gaps: what is too short to draw must not part its neighbours
        long = pieces.length_in(window) * _SHORT_DIVISOR >= window.length_ns
        short = int(np.count_nonzero(~long))
        pieces = _Pieces(pieces.begin[long], pieces.end[long], pieces.kind[long], pieces.rows[long])
    joined = _join_neighbours(pieces, window, close, across=rank < 0)
    length = joined.length_in(window)
    visible = np.flatnonzero(length * _SHORT_DIVISOR >= window.length_ns)
    chosen = visible[np.argsort(-length[visible], kind="stable")[:_PIECES_AT_MOST]]
    chosen = chosen[np.argsort(joined.begin[chosen], kind="stable")]
    listed = [
        {
            "begin_ns": max(int(joined.begin[at]), window.begin_ns) - window.begin_ns,
            "end_ns": min(int(joined.end[at]), window.end_ns) - window.begin_ns,
            "began_before": bool(joined.begin[at] < window.begin_ns),
            "ends_after": bool(joined.end[at] > window.end_ns),
            "kind": kinds[int(joined.kind[at])],
            "text": kinds[int(joined.kind[at])],
            "rows_count": int(joined.rows[at]),
        }
        for at in chosen.tolist()
    ]
    return {
        "role": role,
        "label": label,
        "name": name,
        "rank": rank,
        "text": "",
        "pieces": listed,
        "hidden_count": len(joined.begin) - len(chosen) + short,
        "close_ns": close,
    }


def _join_neighbours(pieces: _Pieces, window: Window, close_ns: int, *, across: bool) -> _Pieces:
    """Join neighbours of one kind that overlap or are closer than ``close_ns`` inside the window.

    With ``across``, pieces of other kinds in between do not part them.
    """
    if not len(pieces.begin):
        return pieces
    order = np.lexsort((pieces.begin, pieces.kind)) if across else np.argsort(pieces.begin, kind="stable")
    begin, end, kind, rows = (x[order] for x in (pieces.begin, pieces.end, pieces.kind, pieces.rows))
    # Kinds stand one behind the other on one axis, too far apart to be joined.
    shift = kind * (2 * window.length_ns + close_ns) if across else 0
    first_ns = np.clip(begin - window.begin_ns, 0, window.length_ns) + shift
    last_ns = np.clip(end - window.begin_ns, 0, window.length_ns) + shift
    near = first_ns[1:] - np.maximum.accumulate(last_ns)[:-1] < close_ns
    new = np.append(True, ~near | (kind[1:] != kind[:-1]))
    first = np.flatnonzero(new)
    return _Pieces(
        np.minimum.reduceat(begin, first),
        np.maximum.reduceat(end, first),
        kind[first],
        np.add.reduceat(rows, first),
    )
