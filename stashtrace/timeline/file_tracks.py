"""I/O of one rank as slices: call by call within the budget of the file, else summed per thread and time bin.

Viewers cannot take millions of calls. Tracks and slices of sums say so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from stashtrace import _native
from stashtrace.schema.kinds import IoFlag, IoOp
from stashtrace.schema.table import Table
from stashtrace.timeline.rows_by_rank import RankRows
from stashtrace.timeline.tracks import Line, Order, Piece, Texts, TrackTree, code_where, coded, value_where
from stashtrace.units import duration_text

#: Flags of calls in which the thread was off the CPU for storage.
BLOCKED = int(IoFlag.BLOCKED | IoFlag.BLOCK_INPUT)

_OPS = [op.name.lower() for op in IoOp] + ["call"]
_WHERE = ("", " pipe", " socket")


@dataclass(frozen=True, slots=True)
class Bins:
    """Bins of a width, counted from an instant, into which calls are summed."""

    origin_ns: int
    width_ns: int


def file_layer(rows: RankRows, tree: TrackTree, root: int, bins: Bins | None) -> list[_native.perfetto.Slices]:
    """Return the slices of the I/O of a rank, below a track of their own."""
    piece = call_piece(rows, rows.io()) if bins is None else sum_piece(rows, rows.io_parts(), bins)
    if not len(piece):
        return []
    note = (
        ""
        if bins is None
        else f" Sums of all calls in {duration_text(bins.width_ns)}: there are more than a viewer can take. "
        "Cut by steps, window or ranks to see each call."
    )
    suffix = "" if bins is None else " (summed)"
    group = tree.group(root, Line(f"files{suffix}", Order.FILES, f"I/O calls by thread.{note}"))
    return tree.add(group, rows.thread_lines(0, f"{{}}{suffix}", f"I/O of {{}}.{note}"), [piece])


def call_piece(rows: RankRows, io: Table) -> Piece:
    """Return one slice per call."""
    flags = io["io_flags"].astype(np.int64)
    blocked = (flags & BLOCKED) != 0
    where = np.where(flags & IoFlag.SOCKET, 2, np.where(flags & IoFlag.PIPE, 1, 0))
    names = Texts([f"{op}{place}{end}" for op in _OPS for place in _WHERE for end in ("", " (blocked)")])
    code = (coded(io["op_code"].astype(np.int64), list(IoOp)) * len(_WHERE) + where) * 2 + blocked
    result, offset = io["result_bytes"], io["offset_bytes"]
    piece = Piece.of(io, code, names)
    piece.texts["path"] = (code_where(io["path_code"] > 0, io["path_code"]), rows.texts)
    piece.ints["bytes"] = value_where(result >= 0, result)
    piece.ints["errno"] = value_where(result < 0, -result)
    piece.ints["offset_bytes"] = value_where(offset >= 0, offset)
    return piece


def sum_piece(rows: RankRows, parts: Iterable[Table], bins: Bins) -> Piece:
    """Return one slice per thread and bin with calls; a call belongs to the bin in which it begins.

    Each part holds calls of one thread, sorted by begin; the parts of a thread follow each other.
    """
    summing = _native.perfetto.CallSums(bins.origin_ns, bins.width_ns, BLOCKED)
    for part in parts:
        columns = (part[name] for name in ("begin_ns", "end_ns", "result_bytes", "path_code", "io_flags"))
        summing.add(int(part["track_id"][0]), *columns)
    sums = summing.columns()
    track, begin, until = sums["track"], sums["begin_ns"], sums["end_ns"]
    same_thread = track[1:] == track[:-1]
    until[:-1] = np.where(same_thread, np.minimum(until[:-1], begin[1:]), until[:-1])
    piece = Piece(track, begin, np.maximum(until, begin), np.zeros(len(track), dtype=np.int64), Texts(["calls"]))
    for name in ("calls_count", "bytes", "busy_ns", "blocked_count"):
        piece.ints[name] = sums[name]
    path = sums["path_code"]
    piece.texts["path_of_longest"] = (code_where(path > 0, path), rows.texts)
    return piece


def bins_for(calls_count: int, threads_count: int, allowed_count: int, begin_ns: int, end_ns: int) -> Bins | None:
    """Return bins that keep the number of slices within the allowed one; None if the calls themselves fit."""
    if calls_count <= allowed_count:
        return None
    per_thread = max(allowed_count // max(threads_count, 1), 100)
    return Bins(begin_ns, max((end_ns - begin_ns) // per_thread + 1, 1))
