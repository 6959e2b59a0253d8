"""Steps of a run, one after the other: heat maps by rank and step, the curve of the step time, the slow ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stashtrace.analysis.findings.claim_rows import tables_of
from stashtrace.analysis.findings.rules.steps.slow import claim_of_step
from stashtrace.analysis.findings.spikes.policy import POLICY as SLOW_STEPS
from stashtrace.analysis.intervals import Int64
from stashtrace.analysis.steps.step_time import step_lengths
from stashtrace.report.policy import POLICY
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import StallKind
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace
from stashtrace.summary.words import evidence_texts, findings_of
from stashtrace.text.units import ranks_text

#: Rows for single ranks where the others share theirs.
_APART_AT_MOST = POLICY.rank_cells_count // 4
#: Lower ends of the classes of a cell: nothing, below 1 %, then up to each of the next.
CLASSES = (0.0, 0.01, 0.03, 0.1, 0.25, 0.5, 0.75)
#: Value of a cell without a step.
MISSING = -1


def heat_maps(stalls: Table, steps: Table, apart: Sequence[int] = ()) -> dict[str, Any] | None:
    """Return the maps of a run, None without steps.

    Where ranks share rows, the mean of many hides the one that differs; so those in ``apart`` keep separate rows.

    ``stalls``: of each rank and step. ``steps``: of each rank, for the moments of cells. ``apart``: ranks that differ
    from most, those that matter most first; as many as a quarter of the rows have one each. Returns ``ranks`` and
    ``steps``: the label of each row and column; ``apart_count``: the number of first rows that are ranks apart;
    ``ranks_per_cell`` and ``steps_per_cell``: how many of them a cell holds at most; ``kinds``: per kind with at least
    1 % in some cell ``kind``, ``share_ratio`` of all time, and ``permille``, the rows of cells, -1 where no rank of the
    cell has such a step; and the largest cell as ``most_permille``, ``most_ranks``, ``most_steps``, ``begin_ns``,
    ``end_ns``. ``small``: kinds without a map.
    """
    inside = stalls.take(stalls["step"] >= 0)
    if not len(inside):
        return None
    ranks, numbers = GroupBy(inside["rank"]), GroupBy(inside["step"])
    own_rows = (
        [rank for rank in apart if rank in ranks.values][:_APART_AT_MOST]
        if len(ranks) > POLICY.rank_cells_count
        else []
    )
    row, column = _rows(ranks.values, sorted(own_rows)), cells_of(len(numbers), POLICY.step_cells_count)
    shape = (int(row.max()) + 1, int(column[-1]) + 1)
    cell = row[ranks.number] * shape[1] + column[numbers.number]
    wall = np.bincount(cell, inside["stall_ns"], shape[0] * shape[1])
    labels = [ranks_text(ranks.values[row == at].tolist()) for at in range(shape[0])]
    spans = [_span(numbers.values[column == at]) for at in range(shape[1])]
    kinds: list[dict[str, Any]] = []
    small: list[str] = []
    for kind in (k.name.lower() for k in StallKind):
        of_kind = inside["kind"] == kind
        spent = np.bincount(cell[of_kind], inside["stall_ns"][of_kind], len(wall))
        if not spent.any():
            continue
        share = np.where(wall > 0, spent / np.maximum(wall, 1), 0.0)
        if share.max() < POLICY.map_shown_ratio:
            small.append(kind)
            continue
        most = int(share.argmax())
        at = np.isin(steps["rank"], ranks.values[row == most // shape[1]])
        at &= np.isin(steps["step"], numbers.values[column == most % shape[1]])
        permille = np.where(wall > 0, np.rint(share * 1000), MISSING).astype(np.int64)
        kinds.append(
            {
                "kind": kind,
                "share_ratio": float(spent.sum() / max(wall.sum(), 1.0)),
                "permille": permille.reshape(shape).tolist(),
                "most_permille": int(permille.max()),
                "most_ranks": labels[most // shape[1]],
                "most_steps": spans[most % shape[1]],
                "begin_ns": int(steps["begin_ns"][at].min(initial=2**62)),
                "end_ns": int(steps["end_ns"][at].max(initial=0)),
            }
        )
    # Stalls first: what a reader searches for; compute is what is left.
    kinds.sort(key=lambda each: (each["kind"] == "compute", -each["share_ratio"]))
    return {
        "ranks": labels,
        "steps": spans,
        "apart_count": len(own_rows),
        "ranks_count": len(ranks),
        "steps_count": len(numbers),
        "ranks_per_cell": int(np.bincount(row).max()),
        "steps_per_cell": int(np.bincount(column).max()),
        "kinds": kinds,
        "small": small,
    }


def _rows(ranks: Int64, apart: list[int]) -> Int64:
    """Return the row of each rank: first those apart, one each, then the others in the cells that are left."""
    row = np.empty(len(ranks), dtype=np.int64)
    alone = np.isin(ranks, apart)
    row[alone] = np.arange(len(apart))
    row[~alone] = len(apart) + cells_of(len(ranks) - len(apart), POLICY.rank_cells_count - len(apart))
    return row


def cells_of(count: int, at_most: int) -> Int64:
    """Return the cell of each of ``count`` neighbours: as even as whole numbers allow."""
    return np.arange(count, dtype=np.int64) * min(count, at_most) // count


def _span(numbers: Int64) -> str:
    """Name steps of a cell by the first and the last one."""
    first, last = int(numbers[0]), int(numbers[-1])
    return str(first) if first == last else f"{first}-{last}"


def class_of(permille: int) -> int:
    """Return the class of a cell: -1 without a step, 0 for nothing, then by :data:`CLASSES`.

    Examples
    --------
    >>> [class_of(value) for value in (-1, 0, 9, 10, 100, 1000)]
    [-1, 0, 1, 2, 4, 7]
    """
    if permille <= 0:
        return permille
    return int(np.searchsorted(np.array(CLASSES) * 1000, permille, side="right"))


def step_curve(steps: Table, slow: Table) -> dict[str, Any] | None:
    """Return how long the counted steps of a run were, one after the other; None without steps.

    ``steps``: the counted steps of all ranks. ``slow``: rows of ``spikes`` of any steps. Returns per cell
    ``first_steps`` (number of its first step), ``mean_ns`` (over its steps and their ranks), ``low_ns`` and ``high_ns``
    (the shortest and the longest step of a rank in it); ``steps_count``, ``last_step``, ``ranks_count``,
    ``steps_per_cell`` (at most), ``whole_mean_ns`` (the step time of the run); and ``slow``: per slow step ``step``,
    ``cell``, ``length_ns`` and ``excess_ns``, those that cost most first, ``slow_count`` of them in all.
    """
    if not len(steps):
        return None
    by_step = GroupBy(steps["step"])
    length_ns, numbers = steps["end_ns"] - steps["begin_ns"], by_step.values
    means = step_lengths(steps)
    cell = cells_of(len(numbers), POLICY.curve_cells_count)
    by_cell = GroupBy(cell)
    slow = slow.take(np.isin(slow["step"], numbers))
    excess_ns = slow["length_ns"] - slow["usual_ns"]
    return {
        "first_steps": by_cell.min(numbers).tolist(),
        "mean_ns": np.rint(np.bincount(cell, means) / by_cell.sizes).astype(np.int64).tolist(),
        "low_ns": by_cell.min(by_step.min(length_ns)).tolist(),
        "high_ns": by_cell.max(by_step.max(length_ns)).tolist(),
        "steps_count": len(numbers),
        "last_step": int(numbers[-1]),
        "ranks_count": len(np.unique(steps["rank"])),
        "steps_per_cell": int(by_cell.sizes.max()),
        "whole_mean_ns": round(float(means.mean())),
        "slow_count": len(slow),
        "slow": [
            {
                "step": int(slow["step"][at]),
                "cell": int(cell[np.searchsorted(numbers, slow["step"][at])]),
                "length_ns": int(slow["length_ns"][at]),
                "excess_ns": int(excess_ns[at]),
            }
            for at in np.argsort(-excess_ns, kind="stable")[: POLICY.marked_steps_count].tolist()
        ],
    }


def slow_steps(trace: Trace, steps: Table, slow: Table) -> dict[str, Any]:
    """Return the slow steps of a run, those that cost most first.

    ``steps``: the counted steps of all ranks. ``slow``: rows of ``spikes`` of any steps. Returns ``steps_count``,
    ``too_few`` (no step can be called slow), ``slow_count``, ``excess_ns`` (of all slow steps over what such steps
    usually take), ``whole_ns`` (of all counted steps) and ``listed``: per slow step ``step``, ``length_ns``,
    ``usual_ns``, ``excess_ns``, ``begin_ns``, ``end_ns`` and ``texts`` (whose time grew, then the evidence).
    """
    by_step = GroupBy(steps["step"])
    slow = slow.take(np.isin(slow["step"], by_step.values))
    excess_ns = slow["length_ns"] - slow["usual_ns"]
    costliest = np.argsort(-excess_ns, kind="stable")[: POLICY.listed_steps_count]
    loading = np.unique(trace.batches["rank"]).tolist()
    begin_ns, end_ns = by_step.min(steps["begin_ns"]), by_step.max(steps["end_ns"])
    listed = []
    for at in costliest.tolist():
        place = int(by_step.find(slow["step"][at : at + 1])[0])
        (said,) = findings_of(*tables_of([claim_of_step(slow.take(np.array([at])), loading, {})]))
        listed.append(
            {name: int(slow[name][at]) for name in ("step", "length_ns", "usual_ns")}
            | {"excess_ns": int(excess_ns[at]), "begin_ns": int(begin_ns[place]), "end_ns": int(end_ns[place])}
            | {"texts": [said.row["facts"]["grew"], *evidence_texts(said)]}
        )
    return {
        "steps_count": len(by_step),
        "too_few": len(by_step) <= SLOW_STEPS.least_steps,
        "slow_count": len(slow),
        "excess_ns": int(excess_ns.sum()),
        "whole_ns": round(float(step_lengths(steps).sum())),
        "listed": listed,
    }
