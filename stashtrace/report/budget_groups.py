"""The budget of a run by groups of ranks that spend their time similarly, and by rank as columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.intervals import Floats, Int64
from stashtrace.report.policy import POLICY
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.stall_kinds import COLUMNS
from stashtrace.schema.table import Table
from stashtrace.text.units import ranks_in, ranks_text


def budget_groups(budgets: Table) -> list[dict[str, Any]]:
    """Sum the rows of ``budgets`` by groups of similar ranks.

    ``budgets``: as ``analysis.findings.budgets`` returns it; may be empty. Returns per kind of step, the largest group
    first: ``step_kind``, ``ranks`` (as text), ``ranks_count``, ``mixed``, ``steps_count`` (of all ranks), ``step_ns``
    (mean) and ``columns``, one dict per column of the budget with ``column``, ``stall_ns``, ``low_ns``, ``high_ns``
    (mean per step) and ``share_ratio``. The shares of a group add up to 1.
    """
    return [group for kind in dict.fromkeys(budgets["step_kind"].tolist()) for group in _of_kind(budgets, kind)]


def ranks_apart(groups: Sequence[dict[str, Any]]) -> list[int]:
    """Return the ranks outside of the largest group of each kind of step, those of the smallest groups first."""
    largest = {group["step_kind"]: group["ranks_count"] for group in reversed(groups)}
    others = [group for group in groups if not group["mixed"] and group["ranks_count"] < largest[group["step_kind"]]]
    others.sort(key=lambda group: int(group["ranks_count"]))
    return list(dict.fromkeys(rank for group in others for rank in ranks_in(group["ranks"])))


def _of_kind(budgets: Table, step_kind: str) -> list[dict[str, Any]]:
    of_kind = budgets.take(budgets["step_kind"] == step_kind)
    ranks, sums = _matrices(of_kind)
    steps = GroupBy(of_kind["rank"]).max(of_kind["steps_count"])
    wall = sums["stall_ns"].sum(axis=1)
    step_ns = wall / np.maximum(steps, 1)
    shares = sums["stall_ns"] / np.maximum(wall, 1)[:, None]
    groups = similar_rows(np.column_stack([shares, step_ns / max(float(np.median(step_ns)), 1.0)]))
    made = []
    for members, mixed in groups:
        count, whole = int(steps[members].sum()), float(wall[members].sum())
        totals = {name: sums[name][members].sum(axis=0) for name in sums}
        columns = [
            {
                "column": column,
                **{name: round(float(totals[name][at]) / max(count, 1)) for name in totals},
                "share_ratio": float(totals["stall_ns"][at]) / max(whole, 1.0),
            }
            for at, column in enumerate(COLUMNS)
        ]
        made.append(
            {
                "step_kind": step_kind,
                "ranks": ranks_text(ranks[members].tolist()),
                "ranks_count": len(members),
                "mixed": mixed,
                "steps_count": count,
                "step_ns": round(whole / max(count, 1)),
                "columns": columns,
            }
        )
    return made


def _matrices(budgets: Table) -> tuple[Int64, dict[str, Int64]]:
    """Return the ranks, and per quantity an array (ranks, columns)."""
    by_rank = GroupBy(budgets["rank"])
    place = np.argmax(budgets["column"][:, None] == np.array(list(COLUMNS))[None, :], axis=1)
    cells = GroupBy.cells((by_rank.number, place), (len(by_rank), len(COLUMNS)))
    return by_rank.values, {name: cells.sum(budgets[name]) for name in ("stall_ns", "low_ns", "high_ns")}


def similar_rows(values: Floats) -> list[tuple[Int64, bool]]:
    """Divide rows into groups whose members differ little from the middle of their group.

    The first group is around the median of all rows, the next one around the median of what is left; where no row is
    near that median, the first row that is left is the middle. The largest group comes first. ``mixed`` marks the rows
    that are left after ``POLICY.groups_count`` groups and need not be similar.
    """
    left = np.arange(len(values))
    groups: list[tuple[Int64, bool]] = []
    while len(left) and len(groups) < POLICY.groups_count - 1:
        near = _near(values[left], np.median(values[left], axis=0))
        if not near.any():
            near = _near(values[left], values[left[0]])
        groups.append((left[near], False))
        left = left[~near]
    groups.sort(key=lambda group: (-len(group[0]), int(group[0][0])))
    if len(left):
        groups.append((left, len(left) > 1))
    return groups


def _near(values: Floats, middle: Floats) -> npt.NDArray[np.bool_]:
    return np.asarray(np.abs(values - middle).max(axis=1) <= POLICY.similar_ranks_ratio, dtype=np.bool_)


def percents(ratios: list[float]) -> list[str]:
    """Word shares that add up to 1 as percents with one decimal that add up to 100.0, by the largest remainders.

    Examples
    --------
    >>> percents([1 / 3, 1 / 3, 1 / 3])
    ['33.4 %', '33.3 %', '33.3 %']
    """
    exact = np.array(ratios, dtype=np.float64) * 1000
    whole = np.floor(exact + 1e-9).astype(np.int64)
    rest = round(float(exact.sum())) - int(whole.sum())
    largest = np.argsort(-(exact - whole), kind="stable")[: max(rest, 0)]
    whole[largest] += 1
    return [f"{number / 10:.1f} %" for number in whole.tolist()]


def rank_columns(budgets: Table) -> dict[str, Any] | None:
    """Return the budget of each rank as columns: mean ns per step, in rank order; None for too many ranks.

    Steps that train, or the only ones; those of validation and inference are in the groups.
    """
    if not len(budgets):
        return None
    of_kind = budgets.take(budgets["step_kind"] == budgets["step_kind"][0])
    ranks, sums = _matrices(of_kind)
    if len(ranks) > POLICY.ranks_listed_count:
        return None
    by_rank = GroupBy(of_kind["rank"])
    steps = by_rank.max(of_kind["steps_count"])
    per_step = np.rint(sums["stall_ns"] / np.maximum(steps, 1)[:, None]).astype(np.int64)
    return {
        "rank": ranks.tolist(),
        "step_ns": by_rank.max(of_kind["step_ns"]).tolist(),
        "median_step_ns": by_rank.max(of_kind["median_step_ns"]).tolist(),
        **{f"{column}_ns": per_step[:, at].tolist() for at, column in enumerate(COLUMNS) if per_step[:, at].any()},
    }
