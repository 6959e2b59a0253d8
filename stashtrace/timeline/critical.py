"""The critical path over all ranks as tracks of its own: one strip of all of it, and below it a line for each rank.

An arrow leads from each stretch to the next one where the path goes on elsewhere. A run of which no graph can be built
has no such tracks; why is logged.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import logging
from collections.abc import Collection

import numpy as np

from stashtrace import _native
from stashtrace.analysis.registry import analyze
from stashtrace.errors import MissingDataError
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace
from stashtrace.timeline.host import NO_VALUE
from stashtrace.timeline.rows import TraceRows
from stashtrace.timeline.steps import COLOURS
from stashtrace.timeline.tracks import Ints, Line, Piece, Texts, TrackTree

_LOG = logging.getLogger("stashtrace.exporters")
_NAME = "critical path"
_ABOUT = (
    "What the length of the run was made of: from its end back along what each piece of work waited for last. Work "
    "that is not on it could have taken longer. Where a stretch is ambiguous, another path is as long within the "
    "clocks' error."
)
#: Tables whose rows become nodes, and how many may: the graph of so many takes about 1.5 GB.
_NODES = ("kernels", "collectives", "phases", "batches", "device_calls")
MOST_ROWS = 5_000_000
_TRANSFERS = "transfers · critical"
#: Tracks of no process stand above those of all.
_NO_PARENT = 0


def critical_stretches(trace: Trace) -> Table | None:
    """Rows of ``critical_path``, None if no graph of the run can be built, or only one too large for a time line."""
    if sum(len(trace.table(name)) for name in _NODES) > MOST_ROWS:
        _LOG.info("the time line has no critical path: it would be a graph of more than %d rows", MOST_ROWS)
        return None
    try:
        found = analyze(trace, "critical_path")
    except MissingDataError as error:
        _LOG.info("the time line has no critical path: %s", error)
        return None
    return found if len(found) else None


def critical_layer(
    rows: TraceRows, tree: TrackTree, stretches: Table, ranks: Collection[int]
) -> list[_native.perfetto.Slices]:
    """Slices of the strip, then those of the lines of transfers and these ranks."""
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
    """Rows from which the path goes on in another line, and those in which it does."""
    turn = (below["rank"][1:] != below["rank"][:-1]) & (np.diff(number) == 1)
    before = np.flatnonzero(turn)
    return before, before + 1


def _piece(table: Table, key: Ints) -> Piece:
    kinds, kind = np.unique(table["kind"], return_inverse=True)
    names, name = np.unique(table["name"], return_inverse=True)
    rivals, rival = np.unique(table["rival_kind"], return_inverse=True)
    who = np.stack([table["rank"], kind, name], axis=1)
    distinct, text = np.unique(who, axis=0, return_inverse=True)
    labels = Texts([_label(rank, str(kinds[k]), str(names[n])) for rank, k, n in distinct.tolist()])
    piece = Piece(key.astype(np.int64), table["begin_ns"], table["end_ns"], text.reshape(-1).astype(np.int64), labels)
    piece.texts["kind"] = (kind.astype(np.int64), Texts(kinds.tolist()))
    piece.texts["name"] = (np.where(table["name"] != "", name, -1).astype(np.int64), Texts(names.tolist()))
    piece.ints["step"] = table["step"]
    piece.ints["held_ns"] = table["held_ns"]
    piece.ints["fetch_ns"] = np.where(table["fetch_ns"] > 0, table["fetch_ns"], NO_VALUE)
    doubtful = table["ambiguous"] == 1
    piece.ints["ambiguous"] = np.where(doubtful, 1, NO_VALUE)
    piece.ints["rival_rank"] = np.where(doubtful & (table["rival_rank"] >= 0), table["rival_rank"], NO_VALUE)
    piece.ints["rival_slack_ns"] = np.where(doubtful, table["rival_slack_ns"], NO_VALUE)
    piece.texts["rival_kind"] = (np.where(doubtful, rival, -1).astype(np.int64), Texts(rivals.tolist()))
    piece.correlation = (kind.astype(np.int64), Texts([f"{each} #{COLOURS[each]}" for each in kinds.tolist()]))
    return piece


def _label(rank: int, kind: str, name: str) -> str:
    """As in ``rank 3 backward (compute)``, ``all_reduce 0``, ``rank 3 other``."""
    if rank < 0:
        return name or kind
    return f"rank {rank} {name} ({kind})" if name else f"rank {rank} {kind}"
