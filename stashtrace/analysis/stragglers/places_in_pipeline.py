"""Places of ranks in a pipeline, by who sends to whom and how often: a chain, or a ring if ranks hold several stages.

chain   0 <-> 1 <-> 2 <-> 3            a stage a rank: m messages each way between neighbours, of m micro-batches
ring    0 <-> 1 <-> 2 <-> 3            v stages a rank (interleaved): v m each way between neighbours, and from the
        ^-----------------^            last rank to the first, which goes on with the next stage, (v - 1) m

With two ranks the ring is a pair with (2 v - 1) m messages each way.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

#: One of two ranks sends, or computes, that many times more often than the other: they are no stages of one pipeline.
UNEQUAL = 1.5
#: Messages of a step that are counted as so many: medians of steps and of ranks differ by less.
_SAME_RATIO = 0.02

#: Messages in a step, by sender and receiver.
Messages = Mapping[tuple[int, int], float]


@dataclass(frozen=True, slots=True)
class Line:
    """The ranks of one pipeline in the order of its stages."""

    ranks: tuple[int, ...]
    #: Messages in a step between two neighbours, in each direction.
    each_way: float
    #: Messages in a step from the last rank to the first; 0 in a chain, and unknown (0) with two ranks.
    back: float = 0.0


def lines_of(often: Messages, begins: Mapping[int, bool]) -> list[Line]:
    """Return the pipelines that messages make, from the rank that sends first; none if they make no equal ones.

    Forward messages must have their backward ones: a rank that only hands data on is no stage that is trained.

    ``often``: messages in a step by sender and receiver. ``begins``: whether a rank begins its steps by sending.
    """
    near: dict[int, set[int]] = {}
    for (a, b), count in often.items():
        back = often.get((b, a), 0.0)
        if min(count, back) <= 0 or max(count, back) > UNEQUAL * min(count, back):
            return []
        near.setdefault(a, set()).add(b)
        near.setdefault(b, set()).add(a)
    if any(len(others) > 2 for others in near.values()):
        return []
    lines: list[Line] = []
    left = set(near)
    while left:
        end = min(left, key=lambda rank: (len(near[rank]), rank))
        walked = _walk(end, near)
        left -= set(walked)
        line = _chain(walked, often, begins) if len(near[end]) == 1 else _ring(walked, often, begins)
        if line is None:
            return []
        lines.append(line)
    return lines if len({(len(line.ranks), line.back > 0) for line in lines}) == 1 else []


def _walk(begin: int, near: Mapping[int, set[int]]) -> list[int]:
    """Return the ranks that can be reached, each beside its neighbour."""
    walked = [begin]
    while further := sorted(near[walked[-1]] - set(walked)):
        walked.append(further[0])
    return walked


def _chain(ranks: list[int], often: Messages, begins: Mapping[int, bool]) -> Line | None:
    if begins.get(ranks[0]) == begins.get(ranks[-1]):
        return None  # neither end begins, or both do: data do not flow from one to the other
    ordered = ranks if _begins(ranks[0], ranks[-1], begins) else ranks[::-1]
    return Line(tuple(ordered), _each_way(ordered, often))


def _ring(ranks: list[int], often: Messages, begins: Mapping[int, bool]) -> Line | None:
    """Return the line of a ring that is closed by fewer messages than its other neighbours exchange."""
    count = len(ranks)
    between = [
        max(often[ranks[n], ranks[(n + 1) % count]], often[ranks[(n + 1) % count], ranks[n]]) for n in range(count)
    ]
    closing = between.index(min(between))
    first, last = ranks[(closing + 1) % count], ranks[closing]
    if begins.get(first) == begins.get(last):
        return None
    turned = [ranks[(closing + 1 + n) % count] for n in range(count)]
    ordered = turned if _begins(first, last, begins) else turned[::-1]
    each_way, back = _each_way(ordered, often), between[closing]
    others = [messages for n, messages in enumerate(between) if n != closing]
    # In a ring that is no pipeline, as of an exchange with both neighbours, all send as often.
    is_line = max(others) <= (1 + _SAME_RATIO) * min(others) and back < (1 - _SAME_RATIO) * each_way
    return Line(tuple(ordered), each_way, back) if is_line and 2 * back >= (1 - _SAME_RATIO) * each_way else None


def _begins(one: int, other: int, begins: Mapping[int, bool]) -> bool:
    """Return whether the first of two ranks begins; one of them may have left no record."""
    return begins.get(one, not begins.get(other, False))


def _each_way(ordered: list[int], often: Messages) -> float:
    """Return how many messages go from a rank to the next in a step."""
    return median(often[pair] for pair in itertools.pairwise(ordered))


def stages_of_messages(line: Line, computed: float, fills_once: bool) -> tuple[int, int] | None:
    """Return micro-batches in a step and stages of each rank; both are 0 if there are several, nobody knows how many.

    ``computed``: backward computations of a rank in a step, one for each micro-batch and stage; 0 if unknown.
    ``fills_once``: of two ranks, the first takes in all micro-batches before any comes back, or the usual two. Where it
    holds several stages, it takes in more when the first ones have gone through its first stage. Two micro-batches that
    go through several stages of two ranks look as more that go through one of each. None if the messages are no
    whole numbers of micro-batches.
    """
    if line.back > 0:
        part = _whole_ratio(line.each_way, computed)
        return _whole(part * (line.each_way - line.back), part * line.each_way)
    if len(line.ranks) > 2:
        return _plain(line, computed)
    found = _whole(2 * computed - line.each_way, computed) if computed else None
    if found is not None:
        return found
    return _plain(line, computed) if fills_once else (0, 0)


def _plain(line: Line, computed: float) -> tuple[int, int] | None:
    """One stage a rank; a micro-batch may go on in several messages."""
    found = round(line.each_way * _whole_ratio(line.each_way, computed))
    return (found, 1) if found >= 1 else None


def _whole_ratio(messages: float, computed: float) -> float:
    """Return micro-batches by messages: 1, or less where each computation has several messages."""
    several = messages / computed if computed else 1.0
    return 1 / round(several) if several > 1 and abs(several - round(several)) <= _SAME_RATIO * several else 1.0


def _whole(microbatches: float, passes: float) -> tuple[int, int] | None:
    """Return micro-batches and stages of a rank, if so many passes are whole numbers of them."""
    if microbatches < 1 - _SAME_RATIO:
        return None
    stages = passes / microbatches
    if round(stages) < 1 or abs(stages - round(stages)) > _SAME_RATIO * stages:
        return None
    return round(microbatches), round(stages)
