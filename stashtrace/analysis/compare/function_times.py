"""What a run knows of the user's functions, as a comparison with another run needs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

#: Whose time a function took: a step thread's in a step, or a worker's while it made a batch.
IN_STEP, IN_WORKER = "step", "worker"
#: All kinds but waits for other ranks and for workers.
OWN_KINDS = ""
#: The mean over ranks.
ALL_RANKS = -1
#: Number of functions of a kind, the costliest, that a baseline keeps, and of lines of each.
KEPT_FUNCTIONS, KEPT_LINES = 20, 4
#: Degrees of freedom of what is certain: a kind that took no time.
_CERTAIN = 1e9


@dataclass(frozen=True, slots=True)
class LineTime:
    """Time of a line in a mean step or batch."""

    line: int
    #: Call of a library in which most of it was; empty if it was the line itself.
    leaf: str
    time_ns: float


@dataclass(frozen=True, slots=True)
class FunctionTime:
    """Time of a function in a mean step or batch."""

    function: str
    path: str
    mean_ns: float
    #: Standard error of the mean, and its degrees of freedom.
    error_ns: float
    degrees: float
    #: In the order of their numbers.
    lines: tuple[LineTime, ...] = ()


@dataclass(frozen=True, slots=True)
class FunctionGroup:
    """Functions of the same time: one kind over all ranks, or one rank over its own kinds."""

    #: ``IN_STEP`` or ``IN_WORKER``.
    where: str
    #: A stall kind in lower case, or ``OWN_KINDS``.
    kind: str
    rank: int
    #: Time whose function is not known, which may be in any.
    unknown_ns: float
    #: What one sample more makes of a mean, and the degrees of freedom of a function that was never seen.
    sample_ns: float
    degrees: float
    functions: tuple[FunctionTime, ...]

    def costliest(self, count: int, lines_count: int) -> FunctionGroup:
        """Return the group with its costliest functions and lines alone; the time of the others becomes unknown."""
        ordered = sorted(self.functions, key=lambda one: -one.mean_ns)
        left_ns = sum(one.mean_ns for one in ordered[count:])
        kept = []
        for one in ordered[:count]:
            lines = sorted(sorted(one.lines, key=lambda line: -line.time_ns)[:lines_count], key=lambda line: line.line)
            kept.append(replace(one, lines=tuple(lines)))
        return replace(self, functions=tuple(kept), unknown_ns=self.unknown_ns + left_ns)


@dataclass(frozen=True, slots=True)
class FunctionsOfRun:
    """Time of the user's functions in the steps of a run."""

    groups: tuple[FunctionGroup, ...]
    #: Mean of a step, and of a batch where workers make them.
    length_ns: Mapping[str, float]
    #: Name and path of each function of the user that a stack held; None where that is not kept.
    seen: frozenset[tuple[str, str]] | None = None

    def group(self, where: str, kind: str, rank: int = ALL_RANKS) -> FunctionGroup:
        """Return the functions of a kind, or of a rank; none where it took no time."""
        key = where, kind, rank
        for one in self.groups:
            if (one.where, one.kind, one.rank) == key:
                return one
        return FunctionGroup(where, kind, rank, 0.0, 0.0, _CERTAIN, ())

    @property
    def ranks(self) -> frozenset[int]:
        """Ranks that are known one by one."""
        return frozenset(one.rank for one in self.groups if one.rank != ALL_RANKS)

    def condensed(self) -> FunctionsOfRun:
        """Return what a baseline keeps: the costliest functions of each kind over all ranks."""
        of_all = [one for one in self.groups if one.rank == ALL_RANKS]
        return FunctionsOfRun(tuple(one.costliest(KEPT_FUNCTIONS, KEPT_LINES) for one in of_all), self.length_ns)
