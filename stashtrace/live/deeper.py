"""Deeper steps: for some steps the ranks record more than they always do, within a budget of the job's time.

    asked at step 1200 ──► steps 1203 to 1207, on all ranks ──► what they took longer is spent
                            '- one more before, to get ready     one line: cost, and what is left of the hour

The ranks end by themselves: at the last step, or when what is left of the budget is used up. CUPTI on all the time cost
a peer more than half of its throughput, so nothing here is on for longer than was asked for.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np

from stashtrace.live.state import Event
from stashtrace.record.follower import ask_for_deeper_steps
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace
from stashtrace.text import count_noun
from stashtrace.units import duration_text, ranks_text

#: What can be recorded beside: on the ranks' devices, and what their step threads do in Python.
KERNELS, STACKS = "kernels", "stacks"
_NAMES = {KERNELS: "kernels", STACKS: "Python stacks"}
HOUR_NS = 3_600_000_000_000
#: Part of the job's time that deeper steps may cost, in each hour.
BUDGET_RATIO = 0.01
#: So many of the newest steps say what a step usually takes.
_USUAL_STEPS = 64
#: Between what a rank does and the round that sees it, beside the age of the newest step.
_MARGIN_STEPS = 2
#: After its last step, a rank that has told nothing of its kernels is awaited for so long: the recorder flushes them
#: within a second or two.
_PATIENCE_NS = 5_000_000_000
#: A rank that makes no steps, or very long ones, is given up this long after its time was over.
_LONGEST_NS = 60_000_000_000
#: Facts of a process: "first:end pieces of work" of its newest window, and how many windows it has had.
_FACT, _COUNT_FACT = "kernels_window", "kernels_windows_count"


@dataclass(slots=True)
class Budget:
    """What deeper steps may cost the job: a part of its time in each hour that ends now. ``ratio``: that part."""

    ratio: float = BUDGET_RATIO
    _spent: deque[tuple[int, int]] = field(default_factory=deque)

    @property
    def hourly_ns(self) -> int:
        """What may be spent in an hour."""
        return round(self.ratio * HOUR_NS)

    def left_ns(self, at_ns: int) -> int:
        """Return what is left of the hour before ``at_ns``, on a clock that never steps back."""
        while self._spent and self._spent[0][0] <= at_ns - HOUR_NS:
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
    until_ns: int
    #: Windows that ranks had had before.
    known: dict[int, int]
    #: When the last step had closed; -1 before.
    over_ns: int = -1
    #: Step -> its mean length over the ranks.
    lengths_ns: dict[int, float] = field(default_factory=dict)

    @property
    def end_step(self) -> int:
        return self.first_step + self.count


class DeeperSteps:
    """The deeper steps of a run. ``directory``: where its processes write on this host."""

    def __init__(self, directory: Path, budget: Budget | None = None) -> None:
        self.budget = budget or Budget()
        self._directory = directory
        self._asked: _Asked | None = None
        self._lengths_ns: deque[float] = deque(maxlen=_USUAL_STEPS)
        self._newest_step, self._newest_end_ns = -1, -1
        #: What one step cost when it was measured last.
        self._step_cost_ns = 0.0

    @property
    def is_open(self) -> bool:
        """Whether deeper steps are awaited: the window that they belong to must wait for their rows."""
        return self._asked is not None

    def usual(self, closed: Table) -> Table:
        """Return the rows of those steps that close now which are not deeper: the others are no measure of the job."""
        asked = self._asked
        return closed if asked is None else closed.take(closed["step"] < asked.first_step - 1)

    def ask(self, kinds: Collection[str], newest: int, count: int, at_ns: int, window: Trace | None) -> tuple[int, str]:
        """Ask for deeper steps; return the last of them, and why there will be none (empty if there will).

        ``newest``: the last step that has closed. ``window``: the newest steps as a trace, to tell what ranks add to
        it. Errors of the system are raised as they are.
        """
        if self._asked is not None:
            return self._asked.end_step - 1, ""
        left_ns, cost_ns = self.budget.left_ns(at_ns), round(self._step_cost_ns * count)
        if left_ns <= cost_ns:
            return -1, self._refusal(left_ns, count, cost_ns)
        usual_ns = round(median(self._lengths_ns)) if self._lengths_ns else 0
        begun = math.ceil(max(at_ns - self._newest_end_ns, 0) / usual_ns) if usual_ns and newest >= 0 else 0
        first = newest + 1 + begun + _MARGIN_STEPS
        limit_ns = (count + 1) * usual_ns + left_ns
        if KERNELS in kinds:
            ask_for_deeper_steps(self._directory, first, count, limit_ns)
        until_ns = at_ns + (begun + _MARGIN_STEPS) * usual_ns + limit_ns + _LONGEST_NS
        known = {} if window is None else {rank: number for rank, (number, _) in _told(window).items()}
        self._asked = _Asked(frozenset(kinds), first, count, usual_ns, until_ns, known)
        return first + count - 1, ""

    def look(self, closed: Table, window: Trace | None, origin_ns: int, at_ns: int, *, ended: bool) -> Event | None:
        """Take in the steps that closed in a round; return what deeper steps have cost once they are over.

        ``origin_ns``: zero of the common time on CLOCK_MONOTONIC, which ``at_ns`` is of.
        """
        usual = self.usual(closed)
        for rows in GroupBy(usual["step"]) if len(usual) else ():
            self._lengths_ns.append(float(np.mean(usual["end_ns"][rows] - usual["begin_ns"][rows])))
        if len(closed):
            self._newest_step = int(closed["step"].max())
            self._newest_end_ns = int(closed["end_ns"].max()) + origin_ns
        asked = self._asked
        if asked is None:
            return None
        self._measure(asked, closed)
        told = {} if window is None else _told(window)
        new = {rank: text for rank, (number, text) in told.items() if number > asked.known.get(rank, 0)}
        if asked.over_ns < 0 and self._newest_step >= asked.end_step - 1:
            asked.over_ns = at_ns
        waits = KERNELS in asked.kinds and window is not None and set(window.ranks.tolist()) - new.keys()
        is_over = asked.over_ns >= 0 and (not waits or at_ns - asked.over_ns > _PATIENCE_NS)
        if not (is_over or ended or at_ns > asked.until_ns):
            return None
        if not is_over and KERNELS in asked.kinds and not ended:
            ask_for_deeper_steps(self._directory, 0, 0, 0)
        self._asked = None
        return self._result(asked, new, window, at_ns)

    def _measure(self, asked: _Asked, closed: Table) -> None:
        deeper = closed.take((closed["step"] >= asked.first_step - 1) & (closed["step"] < asked.end_step))
        for rows in GroupBy(deeper["step"]) if len(deeper) else ():
            lengths = deeper["end_ns"][rows] - deeper["begin_ns"][rows]
            asked.lengths_ns[int(deeper["step"][rows][0])] = float(np.mean(lengths))

    def _result(self, asked: _Asked, new: dict[int, str], window: Trace | None, at_ns: int) -> Event:
        """Spend what deeper steps took longer than usual, and word it."""
        cost_ns = max(round(sum(asked.lengths_ns.values()) - asked.usual_ns * len(asked.lengths_ns)), 0)
        self.budget.spend(cost_ns, at_ns)
        if asked.lengths_ns:
            self._step_cost_ns = cost_ns / len(asked.lengths_ns)
        left = f"{duration_text(self.budget.left_ns(at_ns))} of the {duration_text(self.budget.hourly_ns)}"
        left = f"{left} that they may cost in an hour are left"
        what = " and ".join(_NAMES[kind] for kind in _NAMES if kind in asked.kinds)
        last = max(asked.lengths_ns, default=-1)
        if last < asked.first_step:
            text = f"no deeper steps ({what}): step {asked.first_step} did not come; {left}"
        else:
            text = (
                f"steps {asked.first_step} to {last} were recorded with {what}; with the one before they took "
                f"{duration_text(cost_ns)} longer than usual; {left}"
            )
        if KERNELS in asked.kinds:
            text += _of_kernels(new, window, asked)
        return Event("deeper", text, time.time_ns(), step=max(last, -1), cost_ns=cost_ns)

    def _refusal(self, left_ns: int, count: int, cost_ns: int) -> str:
        last = f", and {count_noun(count, 'step')} cost {duration_text(cost_ns)} when they were measured last"
        return (
            f"of the {duration_text(self.budget.hourly_ns)} that they may cost in an hour "
            f"{duration_text(left_ns)} are left{last if cost_ns else ''}"
        )


def _told(window: Trace) -> dict[int, tuple[int, str]]:
    """Return the number of windows of kernels that each rank has had, and what it told of the newest one."""
    ranks, facts = _ranks(window), window.metadata
    by_rank: dict[str, dict[int, str]] = {_FACT: {}, _COUNT_FACT: {}}
    for name, texts in by_rank.items():
        for row in facts.take(facts["key_code"] == window.strings.find(name)).rows():
            texts[ranks.get(row["process_id"], -1)] = window.text(row["value_code"])
    return {rank: (int(by_rank[_COUNT_FACT].get(rank, "1")), text) for rank, text in by_rank[_FACT].items()}


def _ranks(window: Trace) -> dict[int, int]:
    """Return the rank of each process."""
    return dict(zip(window.processes["process_id"].tolist(), window.processes["rank"].tolist(), strict=True))


def _of_kernels(new: dict[int, str], window: Trace | None, asked: _Asked) -> str:
    """Say how many kernels were recorded, and which ranks have none and why."""
    pieces = sum(int(text.split()[1]) for text in new.values())
    ranks = set() if window is None else set(window.ranks.tolist())
    without = sorted(ranks - new.keys())
    if not without:
        return f"; {count_noun(pieces, 'piece')} of work on devices"
    why = "" if window is None else _why_none(window, set(without))
    some = f"; {count_noun(pieces, 'piece')} of work on devices, and" if new else ";"
    named = f"rank{'s' if len(without) > 1 else ''} {ranks_text(without)}"
    return f"{some} {named} recorded no kernels{f': {why}' if why else ''}"


def _why_none(window: Trace, ranks: set[int]) -> str:
    """Return the newest reason that one of these ranks gives."""
    of, losses = _ranks(window), window.losses
    why = ""
    for row in losses.take(losses["collector_code"] == window.strings.find("cupti")).rows():
        if of.get(row["process_id"]) in ranks:
            why = window.text(row["advice_code"]) or window.text(row["name_code"])
    return why
