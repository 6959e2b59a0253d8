"""Whether two runs compute the same, by the losses that ``probes/torch/losses.py`` recorded."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from stashtrace.schema.trace import Trace

#: The same in ``probes/torch/losses.py``.
FACT = "losses"
#: Losses by rank, in the order of the backward passes.
Losses = Mapping[int, tuple[float, ...]]
#: Losses that differ by rounding alone: those of the first passes, before differences grow, by this part at most.
_FIRST, _ROUNDING_RATIO = 4, 1e-3


@dataclass(frozen=True, slots=True)
class Likeness:
    """How the losses of two runs compare."""

    #: ``equal`` to the bit, ``rounding``, ``different``, or ``unseen``: there are none that could be compared.
    verdict: Literal["equal", "rounding", "different", "unseen"]
    #: Losses of a rank that were compared, at least.
    compared_count: int = 0
    #: First backward pass whose losses are not equal, -1 if all are, and the two losses there.
    differs_at: int = -1
    before: float = 0.0
    after: float = 0.0


def losses_of(trace: Trace) -> dict[int, tuple[float, ...]]:
    """Return the losses of each rank, as far as they follow each other without a gap."""
    pieces: dict[int, dict[int, list[float]]] = {}
    rank_of = dict(zip(trace.processes["process_id"].tolist(), trace.processes["rank"].tolist(), strict=True))
    table = trace.metadata
    columns = (table[name].tolist() for name in ("process_id", "key_code", "value_code"))
    for process, key, value in zip(*columns, strict=True):
        match = re.fullmatch(rf"{FACT} (\d+)", trace.text(key))
        if match:
            numbers = [float.fromhex(word) for word in trace.text(value).split()]
            pieces.setdefault(rank_of.get(process, -1), {})[int(match[1])] = numbers
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
        return Likeness("equal", min(counts))
    is_rounding = all(
        math.isclose(first, second, rel_tol=_ROUNDING_RATIO) or _equal(first, second)
        for number, first, second in pairs
        if number < _FIRST
    )
    number, first, second = min(unlike, key=lambda pair: pair[0])
    return Likeness("rounding" if is_rounding else "different", min(counts), number, first, second)


def _equal(first: float, second: float) -> bool:
    return first == second or (math.isnan(first) and math.isnan(second))
