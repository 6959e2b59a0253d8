"""Whether runs compute the same, by the losses that ``probes/torch/losses.py`` recorded.

A seeded job has equal losses in equal runs, and two runs are compared one loss at a time. Where equal runs differ, as
with augmentation that draws random numbers, the mean losses of several runs on either side are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist
from typing import Literal

import numpy as np

from stashtrace.calibration.noise import Floats, student
from stashtrace.schema.trace import Trace, facts_with_key

#: The same in ``probes/torch/losses.py``.
FACT = "losses"
#: Losses by rank, in the order of the backward passes.
Losses = Mapping[int, tuple[float, ...]]
#: Losses that differ by rounding alone: those of the first passes, before differences grow, by this part at most.
_FIRST, _ROUNDING_RATIO = 4, 1e-3
#: Number of parts in which mean losses of several runs are compared, and the least of backward passes of each.
_PARTS, _LEAST_PASSES = 4, 2
#: Chance that equal distributions are taken for different ones.
_CHANCE_RATIO = 0.05
#: Means of which a difference of this part would not be seen show nothing.
_SEEN_RATIO = 0.05


@dataclass(frozen=True, slots=True)
class Likeness:
    """How the losses of runs compare."""

    #: ``equal`` to the bit, ``rounding``, ``different``, or ``unseen``: there are none that could be compared. Of the
    #: means of several runs: ``distribution``, they differ no more than equal runs do, ``different``, or ``unclear``.
    verdict: Literal["equal", "rounding", "distribution", "different", "unclear", "unseen"]
    #: First backward pass whose losses are not equal, -1 if all are, and the two losses there; of several runs, the
    #: first of those whose means differ most, the last of them, and their means.
    differs_at: int = -1
    before: float = 0.0
    after: float = 0.0
    differs_until: int = -1
    #: By so much the means of equal runs may differ, with 95 % certainty.
    error: float = 0.0


def losses_of(trace: Trace) -> dict[int, tuple[float, ...]]:
    """Return the losses of each rank, as far as they follow each other without a gap."""
    pieces: dict[int, dict[int, list[float]]] = {}
    rank_of = dict(zip(trace.processes["process_id"].tolist(), trace.processes["rank"].tolist(), strict=True))
    for row in facts_with_key(trace, re.compile(rf"{FACT} \d+").fullmatch).rows():
        first = int(trace.text(row["key_code"]).split()[1])
        numbers = [float.fromhex(word) for word in trace.text(row["value_code"]).split()]
        pieces.setdefault(rank_of.get(row["process_id"], -1), {})[first] = numbers
    found = {}
    for rank, of_rank in pieces.items():
        losses: list[float] = []
        while numbers := of_rank.get(len(losses), []):
            losses += numbers
        found[rank] = tuple(losses)
    return found


def compare_losses(before: Losses, after: Losses) -> Likeness:
    """Compare the losses of two runs, as many as both have.

    Examples
    --------
    >>> compare_losses({0: (0.5, 0.25)}, {0: (0.5, 0.25, 0.125)}).verdict
    'equal'
    """
    if set(before) != set(after):
        return Likeness("unseen")
    counts = [min(len(before[rank]), len(after[rank])) for rank in before]
    if not counts or not min(counts):
        return Likeness("unseen")
    pairs = [
        (number, before[rank][number], after[rank][number])
        for rank, count in zip(before, counts, strict=True)
        for number in range(count)
    ]
    unlike = [pair for pair in pairs if not _equal(*pair[1:])]
    if not unlike:
        return Likeness("equal")
    is_rounding = all(
        math.isclose(first, second, rel_tol=_ROUNDING_RATIO) or _equal(first, second)
        for number, first, second in pairs
        if number < _FIRST
    )
    number, first, second = min(unlike, key=lambda pair: pair[0])
    return Likeness("rounding" if is_rounding else "different", number, first, second)


def compare_distributions(before: Sequence[Losses], after: Sequence[Losses]) -> Likeness:
    """Compare the mean losses of runs, in each quarter of the backward passes that all have.

    ``unclear`` where there are fewer than two runs a side or eight passes, or where means that differ by 5 % would not
    be noticed.

    Examples
    --------
    >>> runs = [{0: tuple(2.0 + 0.01 * ((run * 7 + at) % 5) for at in range(40))} for run in range(6)]
    >>> compare_distributions(runs[:3], runs[3:]).verdict
    'distribution'
    """
    everything = [*before, *after]
    if any(set(one) != set(everything[0]) for one in everything) or not everything[0]:
        return Likeness("unseen")
    count = min(len(losses) for one in everything for losses in one.values())
    if count < _PARTS * _LEAST_PASSES or min(len(before), len(after)) < 2:
        return Likeness("unclear" if count else "unseen")
    edges = np.linspace(0, count, _PARTS + 1).round().astype(int)
    old, new = (_means(runs, edges) for runs in (before, after))
    if not (np.isfinite(old).all() and np.isfinite(new).all()):
        return Likeness("unclear")
    freedom = len(old) + len(new) - 2
    squares = ((old - old.mean(axis=0)) ** 2).sum(axis=0) + ((new - new.mean(axis=0)) ** 2).sum(axis=0)
    quantile = NormalDist().inv_cdf
    stricter = quantile(1 - _CHANCE_RATIO / _PARTS / 2) / quantile(1 - _CHANCE_RATIO / 2)
    error = student(freedom) * stricter * np.sqrt(squares / freedom * (1 / len(old) + 1 / len(new)))
    first, second = old.mean(axis=0), new.mean(axis=0)
    differs = np.abs(second - first)
    if (differs > error).any():
        worst, verdict = int(np.argmax(differs / np.maximum(error, np.finfo(float).tiny))), "different"
    else:
        worst = int(np.argmax(error / np.maximum(np.abs(first), np.finfo(float).tiny)))
        verdict = "unclear" if error[worst] > _SEEN_RATIO * abs(first[worst]) else "distribution"
    passes = int(edges[worst]), int(edges[worst + 1]) - 1
    means = float(first[worst]), float(second[worst])
    return Likeness(verdict, passes[0], *means, passes[1], float(error[worst]))  # type: ignore[arg-type]


def _means(runs: Sequence[Losses], edges: np.ndarray) -> Floats:
    """Return the mean loss over the ranks of each run, in each part of its backward passes."""
    curves = np.array([[losses[: edges[-1]] for losses in one.values()] for one in runs]).mean(axis=1)
    return np.stack([curves[:, begin:end].mean(axis=1) for begin, end in pairwise(edges.tolist())], axis=1)


def _equal(first: float, second: float) -> bool:
    return first == second or (math.isnan(first) and math.isnan(second))
