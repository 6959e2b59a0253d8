"""Steps that took longer than most, and which kinds of time made them longer."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.steps.step_time import step_lengths
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.stall_kinds import KIND_NAMES
from stashtrace.schema.table import Table

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

#: A step is slow if it is longer than the median step by this part of it, and by so many median deviations from it.
SLOW_RATIO, SLOW_DEVIATIONS = 0.1, 5
#: Slow steps listed, and the kinds named for each.
LISTED, CAUSES = 10, 3
#: A kind is named if its surplus is at least this part of that of the step.
NAMED_RATIO = 0.1
#: Fewer steps have no usual length.
FEWEST = 5
_KINDS = list(KIND_NAMES)
#: Columns of ``hidden`` that may go on beside a step; they are part of no kind of their own.
_BESIDE = ("hidden_checkpoint_ns", "gc_ns", "cpu_contention_ns")


def slow_steps(steps: Table, stalls: Table, causes: Table, hidden: Table) -> dict[str, Any]:
    """Return the steps that took clearly longer than the median one, the longest first.

    The length of a step is the mean over the ranks that made it, and so is the time of a kind, so that the kinds of a
    step add up to its length; what is longer is told by the surplus of each kind over its own median step.

    ``steps``: the counted steps of all ranks. ``stalls``, ``causes``, ``hidden``: ``stalls``, ``straggler_causes`` and
    ``hidden`` of all steps. Returns ``steps_count``, ``mean_ns`` (the step time of the run), ``median_ns``,
    ``limit_ns`` (a step above it is slow), ``slow_count``, ``excess_ns`` (of all slow steps over as many median ones),
    ``whole_ns`` (of all counted steps) and ``listed``: per slow step ``step``, ``length_ns``, ``excess_ns``,
    ``begin_ns``, ``end_ns``, ``kinds`` (dicts of ``kind``, ``surplus_ns``, ``low_ns``, ``high_ns``, ``rank``,
    ``late_rank``) and ``beside`` (dicts of ``name``, ``surplus_ns``). ``too_few``: no step can be called slow.
    """
    by_step = GroupBy(steps["step"])
    ranks = np.maximum(by_step.sizes, 1)
    length = step_lengths(steps)
    count = len(by_step)
    if count < FEWEST:
        return {"steps_count": count, "too_few": True, "slow_count": 0, "listed": []}
    median = float(np.median(length))
    spread = float(np.median(np.abs(length - median)))
    limit = median + max(SLOW_RATIO * median, SLOW_DEVIATIONS * spread)
    slow = np.flatnonzero(length > limit)
    order = slow[np.argsort(-length[slow], kind="stable")]
    counted = GroupBy(steps["rank"], steps["step"])
    own = stalls.take(counted.row_of(stalls["rank"], stalls["step"]) >= 0)
    beside = hidden.take(counted.row_of(hidden["rank"], hidden["step"]) >= 0)
    late = causes.take(counted.row_of(causes["rank"], causes["step"]) >= 0)
    kind = np.zeros(len(own), dtype=np.int64)
    for code, name in enumerate(_KINDS):  # a matrix of comparisons would be larger than all other columns
        kind[own["kind"] == name] = code
    cells = GroupBy.cells((kind, by_step.find(own["step"])), (len(_KINDS), count))
    shape = (len(_KINDS), count)
    mean = {n: cells.sum(own[n]).reshape(shape) / ranks for n in ("stall_ns", "low_ns", "high_ns")}
    usual = {n: np.median(values, axis=1) for n, values in mean.items()}
    listed = []
    for at in order[:LISTED].tolist():
        excess = float(length[at] - median)
        rows = np.flatnonzero(steps["step"] == by_step.values[at])
        surplus = mean["stall_ns"][:, at] - usual["stall_ns"]
        named = [k for k in np.argsort(-surplus, kind="stable")[:CAUSES].tolist() if surplus[k] >= NAMED_RATIO * excess]
        number = int(by_step.values[at])
        listed.append(
            {
                "step": number,
                "length_ns": round(float(length[at])),
                "excess_ns": round(excess),
                "begin_ns": int(steps["begin_ns"][rows].min()),
                "end_ns": int(steps["end_ns"][rows].max()),
                "kinds": [
                    {
                        "kind": _KINDS[k],
                        "surplus_ns": round(float(surplus[k])),
                        "low_ns": round(float(mean["low_ns"][k, at] - usual["high_ns"][k])),
                        "high_ns": round(float(mean["high_ns"][k, at] - usual["low_ns"][k])),
                        "rank": _most(own, number, _KINDS[k]),
                        "late_rank": _waited_for(late, number) if _KINDS[k] == "straggler" else -1,
                    }
                    for k in named
                ],
                "beside": _hidden_work(beside, number, excess),
            }
        )
    return {
        "steps_count": count,
        "too_few": False,
        "mean_ns": round(float(length.mean())),
        "median_ns": round(median),
        "limit_ns": round(limit),
        "slow_count": len(slow),
        "excess_ns": round(float((length[slow] - median).sum())),
        "whole_ns": round(float(length.sum())),
        "listed": listed,
    }


def _most(own: Table, step: int, kind: str) -> int:
    """Return the rank with most time of a kind in a step."""
    rows = np.flatnonzero((own["step"] == step) & (own["kind"] == kind))
    return int(own["rank"][rows[own["stall_ns"][rows].argmax()]]) if len(rows) else -1


def _waited_for(causes: Table, step: int) -> int:
    """Return the rank that all together waited for longest in a step; -1 if most of it is unknown."""
    rows = np.flatnonzero(causes["step"] == step)
    if not len(rows):
        return -1
    ranks = GroupBy(causes["cause_rank"][rows])
    return int(ranks.values[int(ranks.sum(causes["stall_ns"][rows]).argmax())])


def _hidden_work(hidden: Table, step: int, excess: float) -> list[dict[str, Any]]:
    """Return what went on beside a step for longer than in the median step; part of no kind of its own."""
    by_step = GroupBy(hidden["step"])
    at = np.flatnonzero(by_step.values == step)
    if not len(at):
        return []
    found = []
    for name in _BESIDE:
        spent = by_step.sum(np.maximum(hidden[name], 0)) / np.maximum(by_step.sizes, 1)
        surplus = float(spent[at[0]] - np.median(spent))
        if surplus >= NAMED_RATIO * excess:
            found.append({"name": name.removesuffix("_ns"), "surplus_ns": round(surplus)})
    return found
