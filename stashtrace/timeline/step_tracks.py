"""Tracks that say where the time of steps went: the budget of each rank, and the critical path over all ranks.

The budget has one slice per step, and in it how each instant was spent. The critical path is one strip of the whole
path, and below it a line per rank; an arrow leads from a stretch to the next one where the path changes the line. A
trace without steps has neither; a run without a graph has no critical path, and the reason is logged.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from stashtrace import _native
from stashtrace.analysis.registry import analyze
from stashtrace.analysis.stalls.budget import coded_intervals
from stashtrace.analysis.steps.steps import steps
from stashtrace.errors import MissingDataError
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import StallKind
from stashtrace.schema.stall_kinds import KIND_LABELS, KIND_NAMES, words_of
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace
from stashtrace.timeline.rows_by_rank import TraceRows, Window
from stashtrace.timeline.tracks import Ints, Line, Piece, Texts, TrackTree, code_where, coded, numbered, value_where

KINDS = list(KIND_NAMES)
_WORDS = Texts([words_of(kind) for kind in KINDS])
# Viewers colour a slice by the hash of its correlation id: its hue by that of the id, its lightness by that of the id
# and an x. With these numbers behind the words the hues are those of the columns in reports (green compute, amber data,
# blue link, purple late, violet copy, olive save, red host), in a shade for each kind; grey cannot be had, so other is
# teal.
COLOURS = {
    "compute": 536,
    "fetch": 181,
    "prep": 114,
    "handoff": 744,
    "network": 354,
    "interconnect": 345,
    "straggler": 828,
    "h2d": 57,
    "checkpoint": 215,
    "sync": 880,
    "launch": 951,
    "python": 688,
    "other": 13,
}
_ABOUT = f"Where each nanosecond of the step went: {'; '.join(KIND_LABELS.values())}."


def coloured(kinds: Sequence[str]) -> Texts:
    """Return the correlation ids that give the kinds their colours."""
    return Texts([f"{words_of(kind)} #{COLOURS[kind]}" for kind in kinds])


class Budget:
    """Steps and stall intervals of a trace; both None if it has no steps."""

    def __init__(self, trace: Trace) -> None:
        try:
            self.steps: Table | None = steps(trace)
            self.intervals: dict[str, Ints] | None = coded_intervals(trace)
        except MissingDataError:
            self.steps = self.intervals = None

    @property
    def slices_count(self) -> int:
        """Slices that the step tracks take, at most."""
        return 0 if self.steps is None or self.intervals is None else len(self.steps) + len(self.intervals["rank"])

    def trunk(self, tree: TrackTree, process: int, rank: int) -> int:
        """Add the step track of a rank, the parent of all its other tracks; return its uuid.

        Viewers sort tracks directly below a process by name, and only those below a track in the order asked for. Also,
        the budget of a rank stays visible when the rest is folded away.
        """
        if rank < 0:
            return process
        if self.steps is None or not (self.steps["rank"] == rank).any():
            return tree.group(process, Line(f"threads · rank {rank:03d}", 0, "No step was found on this rank"))
        return tree.group(process, Line(f"step · rank {rank:03d}", 0, _ABOUT))

    def slices(self, rows: TraceRows, trunk: int, rank: int) -> list[_native.perfetto.Slices]:
        """Return the slices on the step track of one rank."""
        if self.steps is None or self.intervals is None:
            return []
        of_rank = rows.cut(self.steps.take(self.steps["rank"] == rank))
        parts = _parts_of(self.intervals, rank, of_rank["step"])
        pieces = [_step_piece(of_rank, parts), _part_piece(parts)]
        return [piece.slices(np.full(len(piece), trunk)) for piece in pieces if len(piece)]


class _Parts(NamedTuple):
    """Parts of steps, by begin; ``kind`` is a place in ``KINDS``."""

    step: Ints
    begin_ns: Ints
    end_ns: Ints
    kind: Ints
    cause_rank: Ints


def _parts_of(intervals: dict[str, Ints], rank: int, steps: Ints) -> _Parts:
    of_rank = slice(*np.searchsorted(intervals["rank"], [rank, rank + 1]).tolist())
    inside = np.isin(intervals["step"][of_rank], steps)
    step, begin, end, kind, cause = (
        intervals[name][of_rank][inside] for name in ("step", "begin_ns", "end_ns", "kind", "cause_rank")
    )
    return _Parts(step, begin, end, coded(kind, list(StallKind)), cause)


def _step_piece(table: Table, parts: _Parts) -> Piece:
    codes, names = numbered(["step"], np.zeros(len(table)), table["step"])
    piece = Piece(np.zeros(len(table), dtype=np.int64), table["begin_ns"], table["end_ns"], codes, names)
    kinds = GroupBy(table["kind"])
    piece.texts["kind"] = (kinds.number, Texts(kinds.values.tolist()))
    piece.ints["warmup"] = value_where(table["warmup"] == 1, 1)
    cells = GroupBy.cells((parts.kind, GroupBy(table["step"]).row_of(parts.step)), (len(KINDS), len(table)))
    for name, total_ns in zip(KINDS, cells.sum(parts.end_ns - parts.begin_ns), strict=True):
        if total_ns.any():
            piece.ints[f"{name}_ns"] = value_where(total_ns > 0, total_ns)
    return piece


def _part_piece(parts: _Parts) -> Piece:
    piece = Piece(np.zeros(len(parts.kind), dtype=np.int64), parts.begin_ns, parts.end_ns, parts.kind, _WORDS)
    piece.correlation = (parts.kind, coloured(KINDS))
    piece.ints["late_rank"] = value_where(parts.cause_rank >= 0, parts.cause_rank)
    return piece


def _largest(keys: Ints, amount: Ints) -> tuple[int, int]:
    """Return the key with the largest sum, the lowest of several, and the sum; (-1, -1) without rows."""
    groups = GroupBy(keys)
    if not len(groups):
        return -1, -1
    sums = groups.sum(amount)
    at = int(sums.argmax())
    return int(groups.values[at]), int(sums[at])


def worst_step(budget: Budget, ranks: list[int], window: Window | None = None) -> tuple[int, int, int] | None:
    """Return (begin_ns, end_ns, rank) of the step that lost most, which a viewer should show first.

    Steps of the warm-up count only if there are no others, and with a window only steps that touch it. The rank is the
    one that made the others wait, if a straggler is the largest stall, else the one that lost most.
    """
    if budget.steps is None or budget.intervals is None:
        return None
    table = budget.steps.take(np.isin(budget.steps["rank"], ranks))
    if window is not None:
        table = table.take(window.touches(table["begin_ns"], table["end_ns"]))
    table = table.take(table["warmup"] == 0) if (table["warmup"] == 0).any() else table
    if not len(table):
        return None
    parts = budget.intervals
    lost = np.flatnonzero(
        (parts["kind"] != StallKind.COMPUTE) & np.isin(parts["step"], table["step"]) & np.isin(parts["rank"], ranks)
    )
    length = (parts["end_ns"] - parts["begin_ns"])[lost]
    step = _largest(parts["step"][lost], length)[0] if len(lost) else int(table["step"][0])
    here = parts["step"][lost] == step
    stalls, length = lost[here], length[here]
    rank = int(table["rank"][0])
    if len(stalls):
        cause = parts["cause_rank"][stalls]
        late = (parts["kind"][stalls] == StallKind.STRAGGLER) & (cause >= 0)
        blamed, blamed_ns = _largest(cause[late], length[late])
        suffered, suffered_ns = _largest(parts["rank"][stalls[~late]], length[~late])
        rank = blamed if blamed_ns >= suffered_ns else suffered
    rows = table.take(table["step"] == step)
    return int(rows["begin_ns"].min()), int(rows["end_ns"].max()), rank


_LOG = logging.getLogger("stashtrace.exporters")
_NAME = "critical path"
_ABOUT_PATH = (
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
    root = tree.group(_NO_PARENT, Line(_NAME, 0, _ABOUT_PATH))
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
