"""Deeper steps: for some steps the ranks record more than they always do, within a budget of the job's time.

    asked at step 1200 ──► steps 1203 to 1207, on all ranks ──► what they took longer is spent
                            '- one more before, to get ready     one line: cost, and what is left of the hour

The ranks end by themselves: at the last step, or when what is left of the budget is used up. CUPTI on all the time cost
a peer more than half of its throughput, so nothing here is on for longer than was asked for.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from stashtrace.analysis.steps.steps import steps
from stashtrace.errors import StashtraceError
from stashtrace.live import times
from stashtrace.live.state import Event
from stashtrace.record.follower import ask_for_deeper_steps
from stashtrace.record.peek.stack_samples import StackSampler
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.table import Table
from stashtrace.schema.trace import KERNELS_WINDOW, KERNELS_WINDOWS_COUNT, Trace
from stashtrace.text.prose import count_noun
from stashtrace.text.units import duration_text, ranks_named

#: What can also be recorded: on the ranks' devices, and what their threads do in Python.
KERNELS, STACKS = "kernels", "stacks"
#: Part of the job's time that deeper steps may cost, in each hour.
BUDGET_RATIO = 0.01
#: Number of the newest steps that say what a step usually takes.
_USUAL_STEPS = 64
#: Between what a rank does and the round that sees it, without the age of the newest step.
_MARGIN_STEPS = 2


@dataclass(slots=True)
class Budget:
    """What deeper steps may cost the job: a part of its time in each hour that ends now. ``ratio``: that part."""

    ratio: float = BUDGET_RATIO
    _spent: deque[tuple[int, int]] = field(default_factory=deque)

    @property
    def hourly_ns(self) -> int:
        """What may be spent in an hour."""
        return round(self.ratio * times.HOUR_NS)

    def left_ns(self, at_ns: int) -> int:
        """Return what is left of the hour before ``at_ns``, on a clock that never steps back."""
        while self._spent and self._spent[0][0] <= at_ns - times.HOUR_NS:
            self._spent.popleft()
        return max(self.hourly_ns - sum(cost for _, cost in self._spent), 0)

    def spend(self, cost_ns: int, at_ns: int) -> None:
        """Note what deeper steps have cost."""
        self._spent.append((at_ns, cost_ns))


@dataclass(slots=True)
class _Asked:
    """Deeper steps that were asked for."""

    kinds: frozenset[str]
    first_step: int
    count: int
    usual_ns: int
    at_ns: int
    until_ns: int
    #: Of the budget, when they were asked for.
    left_ns: int
    #: Windows that ranks had had before.
    known: dict[int, int]
    #: When the last step had closed; -1 before.
    over_ns: int = -1
    #: Step that began since -> its mean length over the ranks.
    lengths_ns: dict[int, float] = field(default_factory=dict)

    @property
    def end_step(self) -> int:
        return self.first_step + self.count


class DeeperSteps:
    """The deeper steps of a run.

    ``directory``: where its processes write on this host. ``sampler``: of Python stacks. ``processes``: returns the
    number of the process of each rank of this host, as the host and as the process itself see it.
    """

    def __init__(
        self,
        directory: Path,
        sampler: StackSampler,
        processes: Callable[[], Mapping[int, tuple[int, int]]],
        budget: Budget | None = None,
    ) -> None:
        self.budget = budget or Budget()
        self._directory = directory
        self._sampler = sampler
        self._processes = processes
        #: What was sampled, for the window that is sealed next.
        self._stacks: list[dict[str, Any]] = []
        #: How many windows of kernels each rank has had.
        self._windows_count: dict[int, int] = {}
        self._asked: _Asked | None = None
        self._lengths_ns: deque[float] = deque(maxlen=_USUAL_STEPS)
        #: The newest step that a rank is known to have begun, and when; -1 for none. Zero of the common time.
        self._newest = -1, 0
        self._origin_ns = 0
        #: What one step cost when it was measured last.
        self._step_cost_ns = 0.0

    @property
    def is_open(self) -> bool:
        """Whether deeper steps are awaited: the window that they belong to must wait for their rows."""
        return self._asked is not None

    def usual(self, closed: Table) -> Table:
        """Return the rows of those steps that close now which are not deeper: the others are no measure of the job."""
        asked = self._asked
        return closed if asked is None else closed.take(closed["end_ns"] + self._origin_ns < asked.at_ns)

    def take_stacks(self) -> list[dict[str, Any]]:
        """Return what was sampled of Python stacks since the last call (``run_facts.STACKS``)."""
        stacks, self._stacks = self._stacks, []
        return stacks

    def ask(self, kinds: Collection[str], newest: int, count: int, at_ns: int) -> tuple[int, str]:
        """Ask for deeper steps; return the last of them, and why there will be none (empty if there will).

        ``newest``: the last step that has closed. Errors of the system are raised as they are.
        """
        if self._asked is not None:
            return self._asked.end_step - 1, ""
        left_ns, cost_ns = self.budget.left_ns(at_ns), round(self._step_cost_ns * count)
        if left_ns <= cost_ns:
            return -1, self._refusal(left_ns, count, cost_ns)
        usual_ns = round(median(self._lengths_ns)) if self._lengths_ns else 0
        begun, began_ns = self._newest
        age_ns = max(at_ns - began_ns, 0) if begun >= 0 else 0
        first = max(newest, begun) + 1 + _MARGIN_STEPS + (math.ceil(age_ns / usual_ns) if usual_ns else 0)
        if KERNELS in kinds:
            ask_for_deeper_steps(self._directory, first, count, usual_ns, left_ns)
        if STACKS in kinds:
            self._sampler.start(self._processes())
        until_ns = at_ns + age_ns + (count + 1 + _MARGIN_STEPS) * usual_ns + left_ns + times.DEEPER_NS
        self._asked = _Asked(frozenset(kinds), first, count, usual_ns, at_ns, until_ns, left_ns, self._windows_count)
        return first + count - 1, ""

    def round(self, closed: Table, window: Trace | None, origin_ns: int, at_ns: int, *, ended: bool) -> Event | None:
        """Take in the steps that closed in a round; return what deeper steps have cost once they are over.

        ``origin_ns``: zero of the common time on CLOCK_MONOTONIC, which ``at_ns`` is of.
        """
        self._origin_ns = origin_ns
        with contextlib.suppress(StashtraceError):  # no rank has a step yet
            if window is not None:
                table = steps(window)
                self._newest = int(table["step"].max()), int(table["begin_ns"].max()) + origin_ns
        reports = {} if window is None else _reports(window)
        self._windows_count = {rank: number for rank, (number, _) in reports.items()}
        self._lengths_ns.extend(_mean_lengths(self.usual(closed)).values())
        asked = self._asked
        if asked is None:
            return None
        asked.lengths_ns |= _mean_lengths(closed.take(closed["begin_ns"] + origin_ns >= asked.at_ns))
        new = {rank: text for rank, (number, text) in reports.items() if number > asked.known.get(rank, 0)}
        if asked.over_ns < 0 and max(asked.lengths_ns, default=-1) >= asked.end_step - 1:
            asked.over_ns = at_ns
        awaited = KERNELS in asked.kinds and window is not None and set(window.ranks.tolist()) - new.keys()
        # Ranks that were further than was known begin later.
        patience_ns = times.KERNELS_NS + 2 * (asked.count + _MARGIN_STEPS) * asked.usual_ns if awaited else 0
        is_over = asked.over_ns >= 0 and at_ns - asked.over_ns >= patience_ns
        if STACKS in asked.kinds:  # the ranks cannot end that by themselves
            is_over = is_over or self._cost_ns(list(asked.lengths_ns.values())) >= asked.left_ns
        if not (is_over or ended or at_ns > asked.until_ns):
            return None
        if not is_over and KERNELS in asked.kinds and not ended:
            ask_for_deeper_steps(self._directory)
        self._asked = None
        if STACKS in asked.kinds:
            self._stacks += self._sampler.finish()
        return self._result(asked, new, window, at_ns)

    def _result(self, asked: _Asked, new: dict[int, str], window: Trace | None, at_ns: int) -> Event:
        """Spend what deeper steps took longer than usual, and word it."""
        with_kernels = [step for first, end in _windows(new) for step in range(first, end) if step in asked.lengths_ns]
        sampled = sorted(asked.lengths_ns) if STACKS in asked.kinds else []
        # In the step before the first one, the ranks get ready.
        deeper = sorted({*sampled, *with_kernels, *(f - 1 for f, _ in _windows(new) if f - 1 in asked.lengths_ns)})
        cost_ns = self._cost_ns([asked.lengths_ns[step] for step in deeper])
        self.budget.spend(cost_ns, at_ns)
        if deeper:
            self._step_cost_ns = cost_ns / len(deeper)
        parts = [f"kernels of {_range(with_kernels)}"] if KERNELS in asked.kinds else []
        parts += [f"Python stacks of {_range(sampled)}"] if STACKS in asked.kinds else []
        text = f"recorded {' and '.join(parts)}"
        if deeper:
            text += f": with those before, the steps took {duration_text(cost_ns)} longer than usual"
        left, hourly = duration_text(self.budget.left_ns(at_ns)), duration_text(self.budget.hourly_ns)
        text += f"; {left} of the {hourly} that this may cost in an hour are left"
        if KERNELS in asked.kinds:
            text += _of_kernels(new, window)
        if STACKS in asked.kinds:
            text += _of_stacks(self._sampler.unseen)
        return Event("deeper", text, time.time_ns(), step=deeper[-1] if deeper else -1, cost_ns=cost_ns)

    def _cost_ns(self, lengths_ns: list[float]) -> int:
        """Return what steps took longer than usual; than the shortest of them where that is not known."""
        usual_ns = median(self._lengths_ns) if self._lengths_ns else min(lengths_ns, default=0.0)
        return max(round(sum(lengths_ns) - usual_ns * len(lengths_ns)), 0)

    def give_up(self) -> None:
        """Let the steps that are awaited be over with the next round: they do not come."""
        if self._asked is not None:
            self._asked.until_ns = 0

    def _refusal(self, left_ns: int, count: int, cost_ns: int) -> str:
        last = f", and {count_noun(count, 'step')} cost {duration_text(cost_ns)} when they were measured last"
        return (
            f"of the {duration_text(self.budget.hourly_ns)} that they may cost in an hour "
            f"{duration_text(left_ns)} are left{last if cost_ns else ''}"
        )


def _windows(new: Mapping[int, str]) -> list[tuple[int, int]]:
    ends = [text.split()[0].split(":") for text in new.values()]
    return [(int(first), int(end)) for first, end in ends]


def _mean_lengths(closed: Table) -> dict[int, float]:
    lengths = closed["end_ns"] - closed["begin_ns"]
    return {step: float(np.mean(lengths[rows])) for step, rows in GroupBy(closed["step"]).items()}


def _range(numbers: Collection[int]) -> str:
    if not numbers:
        return "no step"
    first, last = min(numbers), max(numbers)
    return f"step {first}" if first == last else f"steps {first} to {last}"


def _reports(window: Trace) -> dict[int, tuple[int, str]]:
    """Return the number of windows of kernels that each rank has had, and its report of the newest one."""
    ranks, facts = _ranks(window), window.metadata
    by_rank: dict[str, dict[int, str]] = {KERNELS_WINDOW: {}, KERNELS_WINDOWS_COUNT: {}}
    for name, texts in by_rank.items():
        for row in facts.take(facts["key_code"] == window.strings.find(name)).rows():
            texts[ranks.get(row["process_id"], -1)] = window.text(row["value_code"])
    counts = by_rank[KERNELS_WINDOWS_COUNT]
    return {rank: (int(counts.get(rank, "1")), text) for rank, text in by_rank[KERNELS_WINDOW].items()}


def _ranks(window: Trace) -> dict[int, int]:
    return dict(zip(window.processes["process_id"].tolist(), window.processes["rank"].tolist(), strict=True))


def _of_kernels(new: dict[int, str], window: Trace | None) -> str:
    """Say how many kernels were recorded, and which ranks have none and why."""
    pieces = sum(int(text.split()[1]) for text in new.values())
    ranks = set() if window is None else set(window.ranks.tolist())
    without = sorted(ranks - new.keys())
    if not without:
        return f"; {count_noun(pieces, 'piece')} of work on devices"
    why = "" if window is None else _why_none(window, set(without))
    some = f"; {count_noun(pieces, 'piece')} of work on devices, and" if new else ";"
    return f"{some} {ranks_named(without)} recorded no kernels{f': {why}' if why else ''}"


def _of_stacks(unseen: Mapping[int, str]) -> str:
    """Say which ranks were not sampled, and why."""
    by_reason: dict[str, list[int]] = {}
    for rank, why in sorted(unseen.items()):
        by_reason.setdefault(why, []).append(rank)
    return "".join(f"; no Python stacks of {ranks_named(ranks)}: {why}" for why, ranks in by_reason.items())


def _why_none(window: Trace, ranks: set[int]) -> str:
    """Return the newest reason that one of these ranks gives."""
    of, losses = _ranks(window), window.losses
    why = "it reported no step since, or runs in a container with a separate file system or separate processes"
    for row in losses.take(losses["collector_code"] == window.strings.find("cupti")).rows():
        if of.get(row["process_id"]) in ranks:
            why = window.text(row["advice_code"]) or window.text(row["name_code"])
    return why
