"""agreement: the same steps attributed by their kernels and by brackets alone, and how far the two differ."""

from __future__ import annotations

from stashtrace.analysis.intervals import TimeSet
from stashtrace.analysis.stalls.budget import by_method, device_windows, rank_table
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.analysis.steps.steps import ranks_and_steps
from stashtrace.schema import columns as col
from stashtrace.schema.columns import RANK, schema
from stashtrace.schema.kinds import StallKind
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

AGREEMENT = schema(
    "agreement",
    "Steps whose kernels were recorded, attributed twice",
    RANK,
    col.number("step", "ordinal"),
    col.word("kind", "StallKind in lower case"),
    col.ns("kernels_ns", "by kernels"),
    col.ns("brackets_ns", "by brackets"),
    col.ns("low_ns", "by brackets, not less than this"),
    col.ns("high_ns", "by brackets, not more than this"),
    col.real("difference_ratio", "brackets minus kernels, of the step"),
)

_Row = tuple[int, int, str, int, int, int, int, float]


def agreement(trace: Trace) -> Table:
    """Compare what brackets say of a step with what its kernels say.

    Brackets are the mode that stays on; kernels, recorded for a window of steps, are its check. A step that has only
    one of the two is not in the table, and a kind that neither names has no row. ``low_ns`` and ``high_ns`` are the
    bounds from the brackets; the value from the kernels should lie between them. Columns: table ``agreement`` of
    ``docs/reference/tables.md``.

    Parameters
    ----------
    trace : Trace
        Needs steps; of a run without deep mode the table is empty.

    Raises
    ------
    MissingDataError
        If no rank has steps.
    """
    index = TraceIndex(trace)
    rows: list[_Row] = []
    for thread, rank_steps in ranks_and_steps(trace, index.steps):
        windows = device_windows(index, thread)
        both = windows.get("kernels", TimeSet.empty()) & windows.get("brackets", TimeSet.empty())
        length = rank_steps["end_ns"] - rank_steps["begin_ns"]
        steps = rank_steps.take((length > 0) & (both.within(rank_steps["begin_ns"], rank_steps["end_ns"]) == length))
        if len(steps):
            walls = dict(zip(steps["step"].tolist(), (steps["end_ns"] - steps["begin_ns"]).tolist(), strict=True))
            exact, bounded = (
                _by_step(rank_table(by_method(index, thread, method), thread, steps)) for method in METHODS_COMPARED
            )
            for step, wall in walls.items():
                for kind in (k.name.lower() for k in StallKind):
                    by_kernels = exact.get((step, kind), (0, 0, 0))[0]
                    point, low, high = bounded.get((step, kind), (0, 0, 0))
                    if by_kernels or high:
                        difference = (point - by_kernels) / wall
                        rows.append((thread.rank, step, kind, by_kernels, point, low, high, difference))
    return Table.from_rows(AGREEMENT, rows)


#: The reference method, and the method that is checked.
METHODS_COMPARED = ("kernels", "brackets")


def _by_step(table: Table) -> dict[tuple[int, str], tuple[int, int, int]]:
    columns = (table[c].tolist() for c in ("step", "kind", "stall_ns", "low_ns", "high_ns"))
    return {(step, kind): (point, low, high) for step, kind, point, low, high in zip(*columns, strict=True)}
