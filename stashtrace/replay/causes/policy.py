"""Thresholds of causes, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Policy:
    """Limits for what is called a cause."""

    #: Recordings of one job differ by this part of a step: a saving of less is not noticed (`results/whatif.md`).
    worth_ratio: float = 0.03
    #: A more specific cause goes before one that saves more, if it saves at least this part of that: a function that is
    #: most of a kind of time is what a person can change, and what is left of that kind may be the next cause.
    mostly_ratio: float = 0.5
    #: What half of some work saves counts this much next to what goes whole: how much of it can go is a guess.
    guess_ratio: float = 0.5
    #: A line stands for its function if it saves at least this part of what that does; and some steps stand for all if
    #: they have this part of a time.
    nearly_ratio: float = 0.8
    #: In such a part of all runs one of the differences between their ranks is taken for more than chance, but is none.
    chance_ratio: float = 0.05
    #: Of a page, a person reads this many.
    causes_count: int = 3
    #: Candidates that are replayed, those first whose work is longest; beyond them lie parts of a few per cent.
    replays_count: int = 60
    #: Nodes in all of these replays: what a summary has time for.
    replayed_nodes_count: int = 8_000_000
    #: Lines and functions of one kind of time that are candidates: one with less than the worth of a cause is none.
    lines_count: int = 8
    #: Steps are rare if they are no more than this part of all; where a time is long in more of them, it is usual.
    rare_ratio: float = 0.5
    #: Ranks take turns if a step has this part of the time on one rank, in at least this number of steps.
    alone_ratio: float = 0.9
    turns_count: int = 20
    #: Files with a smaller part of a time, or behind this number of others, are not why it is long.
    part_ratio: float = 0.05
    files_count: int = 2
    #: A line needs this many samples in a kind of time to be a candidate: fewer leave its share open (Wilson).
    samples_count: int = 4


POLICY = Policy()
