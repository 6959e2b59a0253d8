"""I/O of one rank as slices: call by call while the file's budget lasts, else summed per thread and time bin.

Called by ``timeline``, which knows the budget. Millions of calls are the only thing in a trace that a viewer cannot
take, so they are the only thing that is ever summed, and track and slice say so.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from stashtrace import _native
from stashtrace.schema.kinds import IoFlag, IoOp
from stashtrace.schema.table import Table
from stashtrace.timeline.host import Order
from stashtrace.timeline.rows import RankRows
from stashtrace.timeline.tracks import Line, Piece, Texts, TrackTree, coded
from stashtrace.units import duration_text

NO_VALUE: int = _native.perfetto.NO_VALUE
#: Flags that say that the thread was off the CPU for storage.
BLOCKED = int(IoFlag.BLOCKED | IoFlag.BLOCK_INPUT)

_OPS = [op.name.lower() for op in IoOp] + ["call"]
_WHERE = ("", " pipe", " socket")


@dataclass(frozen=True, slots=True)
class Bins:
    """How calls are summed: into bins of this width, counted from this instant."""

    origin_ns: int
    width_ns: int


def file_layer(rows: RankRows, tree: TrackTree, root: int, bins: Bins | None) -> list[_native.perfetto.Slices]:
    """Slices of the I/O of a rank below a track of their own."""
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
    lines = {
        t.track_id: Line(f"{t.label}{suffix}", t.order, f"I/O of {t.description}.{note}") for t in rows.threads.values()
    }
    return tree.add(group, lines, [piece])


def call_piece(rows: RankRows, io: Table) -> Piece:
    """One slice per call."""
    flags = io["io_flags"].astype(np.int64)
    blocked = (flags & BLOCKED) != 0
    where = np.where(flags & IoFlag.SOCKET, 2, np.where(flags & IoFlag.PIPE, 1, 0))
    names = Texts([f"{op}{place}{end}" for op in _OPS for place in _WHERE for end in ("", " (blocked)")])
    code = (coded(io["op_code"].astype(np.int64), list(IoOp)) * len(_WHERE) + where) * 2 + blocked
    result, offset = io["result_bytes"], io["offset_bytes"]
    piece = Piece(io["track_id"], io["begin_ns"], io["end_ns"], code, names)
    piece.texts["path"] = (np.where(io["path_code"] > 0, io["path_code"], -1).astype(np.int64), rows.texts)
    piece.ints["bytes"] = np.where(result >= 0, result, NO_VALUE)
    piece.ints["errno"] = np.where(result < 0, -result, NO_VALUE)
    piece.ints["offset_bytes"] = np.where(offset >= 0, offset, NO_VALUE)
    return piece


def sum_piece(rows: RankRows, parts: Iterable[Table], bins: Bins) -> Piece:
    """One slice per thread and bin that has calls; a call belongs to the bin in which it begins.

    The parts hold calls of one thread each, by begin; those of a thread come one after the other.
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
    piece.texts["path_of_longest"] = (np.where(path > 0, path, -1), rows.texts)
    return piece


def bins_for(calls_count: int, threads_count: int, allowed_count: int, begin_ns: int, end_ns: int) -> Bins | None:
    """Bins that keep the number of slices within what is allowed; None if the calls themselves fit."""
    if calls_count <= allowed_count:
        return None
    per_thread = max(allowed_count // max(threads_count, 1), 100)
    return Bins(begin_ns, max((end_ns - begin_ns) // per_thread + 1, 1))
