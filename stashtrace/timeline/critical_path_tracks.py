"""The critical path over all ranks as tracks of its own: one strip of the whole path, and below it a line per rank.

An arrow leads from a stretch to the next one where the path changes the line. A run without a graph has no such tracks;
the reason is logged.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

import numpy as np

from stashtrace import _native
from stashtrace.analysis.registry import analyze
from stashtrace.errors import MissingDataError
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.stall_kinds import words_of
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace
from stashtrace.timeline.budget_tracks import coloured
from stashtrace.timeline.rows_by_rank import TraceRows
from stashtrace.timeline.tracks import Ints, Line, Piece, Texts, TrackTree, code_where, value_where

_LOG = logging.getLogger("stashtrace.exporters")
_NAME = "critical path"
_ABOUT = (
    "What the length of the run was made of: from its end back along what each piece of work waited for last. Work "
    "that is not on it could have taken longer. Where a stretch is ambiguous, another path is as long within the "
    "clocks' error."
)
#: Tables whose rows become nodes, and their largest number: the graph then takes about 1.5 GB.
_NODES = ("kernels", "collectives", "phases", "batches", "device_calls")
MOST_ROWS = 5_000_000
_TRANSFERS = "transfers · critical"
#: Tracks of no process stand above those of all.
_NO_PARENT = 0


def critical_stretches(trace: Trace) -> Table | None:
    """Return the rows of ``critical_path``; None if the run has no graph, or one too large for a timeline."""
    if sum(len(trace.table(name)) for name in _NODES) > MOST_ROWS:
        _LOG.info("the timeline has no critical path: it would be a graph of more than %d rows", MOST_ROWS)
        return None
    try:
        stretches = analyze(trace, "critical_path")
    except MissingDataError as error:
        _LOG.info("the timeline has no critical path: %s", error)
        return None
    return stretches if len(stretches) else None


def critical_layer(
    rows: TraceRows, tree: TrackTree, stretches: Table, ranks: Collection[int]
) -> list[_native.perfetto.Slices]:
    """Return the slices of the strip, then those of the lines of transfers and of these ranks."""
    table = rows.cut(stretches)
    if not len(table):
        return []
    root = tree.group(_NO_PARENT, Line(_NAME, 0, _ABOUT))
    strip = _piece(table, np.zeros(len(table), dtype=np.int64))
    shown = np.flatnonzero(np.isin(table["rank"], [-1, *ranks]))
    below = table.take(shown)
    lines = _piece(below, below["rank"])
    before, after = _turns(below, shown)
    arrows = tree.flow_ids(len(before))
    lines.flows += [(before, arrows), (after, arrows)]
    names = {rank: Line(f"rank {rank:03d} · critical", 1 + rank) for rank in np.unique(below["rank"]).tolist()}
    names[-1] = Line(_TRANSFERS, 0)
    return [strip.slices(np.full(len(strip), root)), *tree.add(root, names, [lines], nest=False)]


def _turns(below: Table, number: Ints) -> tuple[Ints, Ints]:
    """Return the rows from which the path goes on in another line, and the rows in which it goes on."""
    turn = (below["rank"][1:] != below["rank"][:-1]) & (np.diff(number) == 1)
    before = np.flatnonzero(turn)
    return before, before + 1


def _piece(table: Table, key: Ints) -> Piece:
    kinds, names, rivals = (GroupBy(table[column]) for column in ("kind", "name", "rival_kind"))
    stretches = GroupBy(table["rank"], table["kind"], table["name"])
    labels = Texts([_label(*row) for row in zip(*(column.tolist() for column in stretches.keys), strict=True)])
    piece = Piece(key.astype(np.int64), table["begin_ns"], table["end_ns"], stretches.number, labels)
    piece.texts["kind"] = (kinds.number, Texts(kinds.values.tolist()))
    piece.texts["name"] = (code_where(table["name"] != "", names.number), Texts(names.values.tolist()))
    piece.ints["step"] = table["step"]
    piece.ints["held_ns"] = table["held_ns"]
    piece.ints["fetch_ns"] = value_where(table["fetch_ns"] > 0, table["fetch_ns"])
    doubtful = table["ambiguous"] == 1
    piece.ints["ambiguous"] = value_where(doubtful, 1)
    piece.ints["rival_rank"] = value_where(doubtful & (table["rival_rank"] >= 0), table["rival_rank"])
    piece.ints["rival_slack_ns"] = value_where(doubtful, table["rival_slack_ns"])
    piece.texts["rival_kind"] = (code_where(doubtful, rivals.number), Texts(rivals.values.tolist()))
    piece.correlation = (kinds.number, coloured(kinds.values.tolist()))
    return piece


def _label(rank: int, kind: str, name: str) -> str:
    """Return a label such as ``rank 3 backward (compute)``, ``all_reduce 0``, ``rank 3 other``."""
    words = words_of(kind)
    if rank < 0:
        return name or words
    return f"rank {rank} {name} ({words})" if name else f"rank {rank} {words}"
