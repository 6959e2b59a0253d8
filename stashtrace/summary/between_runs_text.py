"""Which functions of the user a change of a time is in, for ``diff``, ``check`` and ``bisect``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from stashtrace.analysis.compare.change import Side
from stashtrace.analysis.compare.gate_verdict import Gate
from stashtrace.analysis.lines.between_runs import lines_of_gate, renamed_files
from stashtrace.analysis.lines.user_frames import place_of
from stashtrace.schema.stall_kinds import words_of
from stashtrace.schema.table import Table
from stashtrace.text.units import duration_text, range_text
from stashtrace.text.visible import visible_line

#: Functions that a sentence names; programs get all of them.
_NAMED_AT_MOST = 3
#: A function that takes no time stands in no stack, so one of these need be neither new nor gone from the code.
_SEEN = {"after": ", not seen before", "before": ", no longer seen", "both": ""}


def functions_lines(
    table: Table | None, changes_ns: Mapping[str, float], before: Side, after: Side, *, added_ns: float = 0.0
) -> list[str]:
    """Return a sentence for each kind of time with functions that surely changed; or why there can be none.

    ``table``: result of ``lines_between_runs``, None where a run has no functions. ``changes_ns``: change of each kind.
    ``added_ns``: what other work on the machine can have added to a step; a change up to that is said to be
    explained.
    """
    if table is None:
        lacking = [side.name for side in (before, after) if any(run.functions is None for run in side.runs)]
        # Where neither side has any, as of other tools, nobody expects some.
        return [f"by function: not known, as {visible_line(lacking[0])} holds no Python stacks"] * (len(lacking) == 1)
    rows = [row for row in table.rows() if row["verdict"] != "no difference"]
    kinds = sorted({row["kind"] for row in rows}, key=lambda kind: -abs(changes_ns[kind]))
    said = []
    for kind in kinds:
        explained = "; other programs can explain it" if 0 < changes_ns[kind] / (added_ns or math.inf) <= 1 else ""
        said.append(_sentence(kind, changes_ns[kind], [row for row in rows if row["kind"] == kind]) + explained)
    return [*_renamed_lines(rows, before, after), *said]


def _renamed_lines(rows: list[dict[str, Any]], before: Side, after: Side) -> list[str]:
    """Say which files are compared though their names differ, of those that hold functions that are named."""
    known = [[run.functions for run in side.runs if run.functions is not None] for side in (before, after)]
    named = {row["path"].rpartition("/")[2] for row in rows}
    pairs = [pair for pair in renamed_files(*known) if named.intersection(pair)]
    return [
        f"functions of {visible_line(old)} are compared with those of the same names in {visible_line(new)}"
        for old, new in pairs
    ]


def functions_of_gate(gate: Gate) -> list[str]:
    """Return the sentences on functions of a gate; none where its jobs are not comparable."""
    if gate.refused or gate.is_same:
        return []
    return functions_lines(
        lines_of_gate(gate), {one.kind: one.change_ns for one in gate.changes}, gate.before, gate.after
    )


def functions_document(gate: Gate) -> list[dict[str, Any]] | None:
    """Return the rows of ``lines_between_runs`` for programs; None where a run has no functions."""
    table = lines_of_gate(gate)
    return None if table is None else list(table.rows())


def with_sign(ns: float) -> str:
    """Return a change of a time with its sign."""
    return f"{'+' if ns > 0 else '-' if ns < 0 else ''}{duration_text(abs(ns))}"


def _sentence(kind: str, change_ns: float, rows: list[dict[str, Any]]) -> str:
    workers = ", in its workers" if rows[0]["where"] == "worker" else ""
    more = f"; {len(rows) - _NAMED_AT_MOST} more" if len(rows) > _NAMED_AT_MOST else ""
    functions = "; ".join(map(_function, rows[:_NAMED_AT_MOST]))
    return f"{words_of(kind)} {with_sign(change_ns)} a step{workers}: {functions}{more}"


def _function(row: dict[str, Any]) -> str:
    place = visible_line(place_of(row["function"], row["path"], row["line"], row["leaf"]))
    low, high = (with_sign(ns) for ns in sorted((row["low_ns"], row["high_ns"]), key=abs))
    rank = f" on rank {row['rank']}" if row["rank"] >= 0 else ""
    batch = " a batch" if row["where"] == "worker" else ""
    change = range_text(low, high if row["change_ns"] < 0 else high.removeprefix("+"))
    most = (
        f", most on rank {row['most_rank']}: {with_sign(row['most_rank_change_ns'])}" if row["most_rank"] >= 0 else ""
    )
    return f"{place}{rank} {change}{batch}{_SEEN[row['known_in']]}{most}"
