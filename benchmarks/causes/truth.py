"""What the stopwatches of a job's ranks say of its planted causes."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from causes.plan import Cause, Truth
from causes.simulate import WARMUP_STEPS

#: A piece happens in a step if it takes at least this part of its longest.
HAPPENS_RATIO = 0.5

Step = dict[str, Any]


def read_clocks(folder: Path) -> dict[int, list[Step]]:
    """Return the counted steps of each rank; the last line of a killed rank may be cut."""
    clocks: dict[int, list[Step]] = {}
    for path in sorted(folder.glob("clock-*.jsonl")):
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]
        steps = [row for row in map(json.loads, lines) if row["kind"] != "eval"]
        rank = int(path.stem.removeprefix("clock-"))
        clocks[rank] = steps[WARMUP_STEPS:] if len(steps) > 2 * WARMUP_STEPS else steps
    return clocks


def of_clocks(folder: Path, causes: Sequence[Cause]) -> Truth:
    """Return what the clocks of a job say."""
    clocks = read_clocks(folder)
    lengths = [(s["end_ns"] - s["begin_ns"]) / 1e6 for steps in clocks.values() for s in steps]
    waits, caused, behind = _waits(clocks)
    return Truth(
        ranks_count=len(clocks),
        step_ms=statistics.fmean(lengths) if lengths else 0.0,
        amounts=tuple(_amounts(clocks, cause, waits, behind) for cause in causes),
        caused=caused,
    )


def _pieces(steps: Sequence[Step], name: str) -> list[float]:
    return [step["pieces"].get(name, 0.0) for step in steps]


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else 0.0


def _amounts(
    clocks: dict[int, list[Step]], cause: Cause, waits: dict[int, float], behind: dict[int, float]
) -> dict[str, float]:
    """Return each figure that a sentence about this cause may say."""
    name = cause.piece or cause.kind
    amounts: dict[str, float] = {}
    others = [_mean(_pieces(steps, name)) for rank, steps in clocks.items() if rank not in cause.ranks]
    usual = statistics.median(others) if others else 0.0
    for rank in cause.ranks:
        values = _pieces(clocks.get(rank, []), name)
        if not any(values):
            continue
        most = max(values)
        amounts[f"{name} of rank {rank}"] = _mean(values)
        amounts[f"{name} of rank {rank} where it happens"] = _mean([v for v in values if v >= HAPPENS_RATIO * most])
        if len(values) > 1:
            slope = statistics.linear_regression(range(len(values)), values).slope
            amounts[f"growth of {name} of rank {rank} over the run"] = slope * (len(values) - 1)
        if usual:
            amounts[f"{name} of rank {rank} more than the others"] = _mean(values) - usual
            amounts[f"{name} of the others"] = usual
    if len(cause.ranks) < len(clocks):
        losers = {rank: wait for rank, wait in waits.items() if rank not in cause.ranks}
        amounts |= {f"wait of rank {rank}": wait for rank, wait in losers.items()}
        if losers:
            amounts["wait of all"] = sum(losers.values())
            amounts["wait of all behind it"] = sum(behind.get(rank, 0.0) for rank in cause.ranks)
    return {label: amount for label, amount in amounts.items() if amount > 0}


def _waits(clocks: dict[int, list[Step]]) -> tuple[dict[int, float], dict[int, float], dict[int, float]]:
    """Return how long each rank waits for others, and how much waiting each causes as the last to enter.

    The last is of the rank that waits most, and of all that wait.
    """
    count = max((len(steps) for steps in clocks.values()), default=0)
    waits = {rank: sum(_pieces(steps, "waiting")) for rank, steps in clocks.items()}
    caused: dict[int, float] = defaultdict(float)
    behind: dict[int, float] = defaultdict(float)
    for number in range(count):
        entered: dict[tuple[str, int], dict[int, int]] = defaultdict(dict)
        for rank, steps in clocks.items():
            for name, moments in (steps[number]["arrivals"] if number < len(steps) else {}).items():
                for place, moment in enumerate(moments):
                    entered[name, place][rank] = moment
        for moments_of in entered.values():
            last = max(moments_of, key=moments_of.__getitem__)
            late = {rank: (moments_of[last] - moment) / 1e6 for rank, moment in moments_of.items()}
            caused[last] += max(late.values())
            behind[last] += sum(late.values())
            for rank, milliseconds in late.items():
                if not any(_pieces(clocks[rank], "waiting")):
                    waits[rank] += milliseconds
    for source in clocks:
        for_it = [sum(_pieces(steps, f"for rank {source}")) for steps in clocks.values()]
        caused[source] += max(for_it)
        behind[source] += sum(for_it)
    each = ({rank: ms / max(count, 1) for rank, ms in sums.items()} for sums in (waits, caused, behind))
    return next(each), next(each), next(each)
