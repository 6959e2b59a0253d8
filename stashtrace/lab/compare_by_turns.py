"""Compare two jobs by runs made by turns: as many as the gate needs, without those that other work disturbed.

`bisect` and `tune` decide by it. The statistics are those of `check` (``analysis.compare``).
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stashtrace.analysis.compare.change import Side
from stashtrace.analysis.compare.gate_verdict import Condition, Gate, judge, other_work
from stashtrace.analysis.compare.steps_of_run import STEP, StepsOfRun

#: A run to which other work on the machine may have added more than this part of its step is not used.
CONTENDED_RATIO = 0.05
#: So many times the rounds that are wanted may be lost to other work before the comparison is given up.
_MOST_LOST = 4
#: So many runs of one job alone tell what use of the CPUs by others is usual beside it.
_RUNS_THAT_TELL = 6


@dataclass(frozen=True, slots=True)
class Compared:
    """What the runs of two jobs say."""

    #: None if other work left too few runs.
    gate: Gate | None
    runs_count: int
    #: Runs that were not used since other work disturbed them.
    contended_count: int

    @property
    def verdict(self) -> str:
        """Verdict of the gate; inconclusive without one."""
        return self.gate.verdict if self.gate is not None else "inconclusive"


def stages(rounds: int, count: int) -> tuple[int, ...]:
    """Return the numbers of rounds after which a comparison is judged, until it decides.

    Examples
    --------
    >>> stages(3, 2)
    (3, 6)
    """
    return tuple(rounds * number for number in range(1, count + 1))


def compare_by_turns(
    before: Callable[[], StepsOfRun],
    after: Callable[[], StepsOfRun],
    conditions: Sequence[Condition],
    *,
    rounds: Sequence[int],
    names: tuple[str, str] = ("before", "after"),
    allowed: Sequence[str] = (),
) -> Compared:
    """Record two jobs by turns until the gate decides.

    ``before``, ``after``: make one run each. ``rounds``: after so many rounds each the runs are judged; the last
    judgement stands. ``names``: of the sides, in sentences. ``allowed``: as in :func:`judge`. Raises what a run raises.
    """
    pairs: list[tuple[StepsOfRun, StepsOfRun]] = []
    gate = None
    for wanted in rounds:
        while len(usable := _undisturbed(pairs)) < wanted:
            if len(pairs) - len(usable) >= _MOST_LOST * wanted:
                return Compared(gate, 2 * len(pairs), len(_contended(pairs)))
            if len(pairs) % 2:  # the order changes, so that a steady drift cancels
                second = after()
                pairs.append((before(), second))
            else:
                pairs.append((before(), after()))
        old, new = (Side(name, tuple(runs)) for name, runs in zip(names, zip(*usable, strict=True), strict=True))
        gate = judge(old, new, conditions, allowed=allowed, by_turns=True)
        if gate.verdict != "inconclusive":
            break
    return Compared(gate, 2 * len(pairs), len(_contended(pairs)))


def is_contended(run: StepsOfRun, quietest: StepsOfRun) -> bool:
    """Return whether other work may have made the step of a run longer than in the quietest one.

    False where one of the runs does not tell how much CPU time went to others: then the job itself may have waited.
    """
    other = other_work(Side("", (quietest,)), Side("", (run,)))
    return other.is_known and other.added_ns > CONTENDED_RATIO * float(run.of(STEP).mean())


def _undisturbed(pairs: Sequence[tuple[StepsOfRun, StepsOfRun]]) -> list[tuple[StepsOfRun, StepsOfRun]]:
    """Return the rounds of which neither run was disturbed."""
    lost = _contended(pairs)
    return [pair for pair in pairs if not lost.intersection(map(id, pair))]


def _contended(pairs: Sequence[tuple[StepsOfRun, StepsOfRun]]) -> set[int]:
    """Return the runs, by ``id``, that other work disturbed: each beside the quietest run.

    That is the quietest of both jobs, until there are so many of each that not all of one can have met other work by
    chance: a job may start programs of its own that are not recorded.
    """
    found: set[int] = set()
    everything = [run for pair in pairs for run in pair]
    for runs in zip(*pairs, strict=True):
        known = [run for run in (runs if len(pairs) >= _RUNS_THAT_TELL else everything) if run.cpus is not None]
        if known:
            quietest = min(known, key=_use_of_others)
            found |= {id(run) for run in runs if is_contended(run, quietest)}
    return found


def _use_of_others(run: StepsOfRun) -> float:
    assert run.cpus is not None
    return run.cpus.others_count + run.cpus.stolen_ratio
