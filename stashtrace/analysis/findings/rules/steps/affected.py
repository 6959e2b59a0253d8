"""Which steps hold the time of a verdict, if it is not spread over all: then its mean is not shown alone.

``only_in_steps`` is a row of ``over_time`` whose steps have most of the time: ``where`` is the ``begin``, ``middle`` or
``end`` of the run, from ``first_step`` to ``last_step``; ``ends``: all other steps; ``period``: every ``every_count``
steps from the first one on; ``growth``, ``decline``: over the run. ``step_ns`` is the time in such a step (of a drift,
the change over the run) and ``others_ratio`` what the other steps have of it. ``by_turns``: in each step one of the
ranks has all of the time. ``in_few_steps`` and ``fewer_steps`` count steps: those that have ``part_ratio`` of the time,
and those that the ranks made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.findings.claim_rows import Claim, Evidence, Facts, fact
from stashtrace.analysis.findings.over_time.step_changes import changed_steps
from stashtrace.analysis.findings.rules.losses import cut_ranks
from stashtrace.analysis.findings.rules.policy import POLICY
from stashtrace.analysis.findings.rules.steps.changes import every_nth
from stashtrace.analysis.findings.summary_input import RunFacts
from stashtrace.analysis.steps.training_loop import QUIET_KINDS
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.stall_kinds import COLUMNS
from stashtrace.units import duration_text, is_several, part_text, ranks_in, ranks_text

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

#: Kinds of time behind a cause that are not the whole column of its verdict.
_PARTS = {("data", "reads"): ("fetch",), ("host", "python"): ("python",)}


def few_steps(whole: Floats) -> tuple[npt.NDArray[np.int64], float]:
    """Return the places of few steps that have most of a time, the longest first, and their part of it.

    ``whole``: the time of each step, in ns. No place if it is spread over more steps, or there are too few to tell.
    """
    longest = np.argsort(-whole, kind="stable")[: int(POLICY.few_ratio * len(whole))]
    most = POLICY.most_ratio * whole.sum()
    if len(whole) < POLICY.enough_steps_count or whole[longest].sum() < most or most <= 0:
        return longest[:0], 0.0
    few = longest[: int(np.searchsorted(np.cumsum(whole[longest]), most)) + 1]
    return few, float(whole[few].sum() / whole.sum())


class _Said(NamedTuple):
    """In which steps a time lies: as evidence, and in words with and without amounts."""

    row: Evidence
    words: str
    short: str


def in_steps(facts: RunFacts, claims: Sequence[Claim]) -> list[Claim]:
    """Return verdicts that say in which steps their time lies; those about all steps alike as they are.

    ``plain`` among the facts of such a claim is its sentence without this, ``when`` is this without amounts.
    """
    budget = _Budget(facts)
    return [_said_of(claim, budget.where(claim)) if _is_of_time(claim) else claim for claim in claims]


def _is_of_time(claim: Claim) -> bool:
    return claim.section == "verdict" and claim.kind in COLUMNS and not claim.name and claim.stall_ns > 0


def _said_of(claim: Claim, said: Sequence[_Said]) -> Claim:
    if not said:
        return claim
    text = "; ".join([claim.text, *(one.words for one in said)])
    known = {**claim.facts, "plain": claim.text, "when": "".join(f"; {one.short}" for one in said)}
    return replace(claim, text=text, facts=known, evidence=(*(one.row for one in said), *claim.evidence))


def made_steps(facts: RunFacts) -> dict[int, int]:
    """Return how many steps that train each rank made, warm-up included; what a cut file holds does not tell."""
    table = facts.tables["step_kinds"]
    table = table.take((table["rank"] >= 0) & ~np.isin(table["kind"], QUIET_KINDS))
    made: dict[int, int] = {}
    for row in table.take(~np.isin(table["rank"], list(cut_ranks(facts.trace)))).rows():
        made[row["rank"]] = made.get(row["rank"], 0) + row["steps_count"] + row["warmup_count"]
    return made


class _Budget:
    """Time of the counted steps by rank and step."""

    def __init__(self, facts: RunFacts) -> None:
        steps, stalls = facts.tables["steps"], facts.tables["stalls"]
        self._facts, self._steps = facts, steps
        self._changes: list[dict[str, Any]] = list(facts.tables["over_time"].rows())
        self._numbers = np.unique(steps["step"])
        self._ranks = np.unique(steps["rank"])
        own = GroupBy(steps["rank"], steps["step"]).find(stalls["rank"], stalls["step"]) >= 0
        self._stalls = stalls.take(own)
        self._present = np.zeros((len(self._ranks), len(self._numbers)), dtype=bool)
        self._present[self._at(self._ranks, steps["rank"]), self._at(self._numbers, steps["step"])] = True
        self._made = made_steps(facts)

    @staticmethod
    def _at(known: npt.NDArray[np.int64], values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return np.searchsorted(known, values)

    def _spent(self, ranks: Sequence[int], kinds: Sequence[str]) -> Floats:
        """Return the time of some kinds by rank and step."""
        rows = self._stalls.take(np.isin(self._stalls["rank"], ranks) & np.isin(self._stalls["kind"], kinds))
        cells = np.searchsorted(ranks, rows["rank"]) * len(self._numbers) + self._at(self._numbers, rows["step"])
        spent = np.bincount(cells, rows["stall_ns"], len(ranks) * len(self._numbers))
        return np.asarray(spent, dtype=np.float64).reshape(len(ranks), len(self._numbers))

    def where(self, claim: Claim) -> list[_Said]:
        """Return the steps in which the time of a verdict lies."""
        ranks = sorted(set(ranks_in(claim.ranks)) & set(self._ranks.tolist()))
        if not ranks:
            return []
        spent = self._spent(ranks, _PARTS.get((claim.kind, claim.cause_kind), COLUMNS[claim.kind]))
        present = self._present[self._at(self._ranks, np.array(ranks))]
        whole = spent.sum(axis=0)[present.any(axis=0)]
        numbers = self._numbers[present.any(axis=0)]
        found = self._change_behind(claim, numbers, whole, len(ranks))
        if not found and claim.kind != "late":
            found = self._by_turns(spent, present) or self._few(numbers, whole)
        return [*found, *self._fewer(claim, ranks)]

    def _change_behind(
        self, claim: Claim, numbers: npt.NDArray[np.int64], whole: Floats, ranks_count: int
    ) -> list[_Said]:
        """Return the change of the run that most of the time comes from."""
        for place, row in enumerate(self._changes):
            changed = changed_steps(row, self._numbers)[self._at(self._numbers, numbers)]
            if row["cause_kind"] == "absent" or not changed.any() or changed.all():
                continue
            inside, outside = float(whole[changed].mean()), float(whole[~changed].mean())
            drifts, more = row["kind"] == "drift", (inside - outside) * (1 if row["delta_ns"] >= 0 else -1)
            # From the mean of one half to that of the other is half of the growth.
            part = 2.0 if drifts else np.count_nonzero(changed if row["delta_ns"] >= 0 else ~changed) / len(whole)
            if more * part < POLICY.mostly_ratio * whole.mean():
                continue
            each_ns = (2 * more if drifts else max(inside, outside)) / ranks_count
            part_ratio = min(inside, outside) / max(inside, outside, 1.0)
            return [_only_in(place, row, each_ns, part_ratio, claim.items_count > 1)]
        return []

    def _by_turns(self, spent: Floats, present: Bools) -> list[_Said]:
        """Return that each step has the time on one of several ranks alone."""
        together = spent[:, present.all(axis=0)]
        ranks, steps = together.shape
        if (
            ranks < 2
            or steps < POLICY.enough_steps_count
            or together.max(axis=0).sum() < POLICY.alone_ratio * together.sum()
        ):
            return []
        times = np.bincount(together.argmax(axis=0), minlength=ranks)
        if times.min() < POLICY.fair_ratio * steps / ranks:
            return []
        words = "they take turns: in each step only one of them"
        return [_Said(fact("by_turns", "", "stalls", ranks_count=ranks, steps_count=steps), words, words)]

    def _few(self, numbers: npt.NDArray[np.int64], whole: Floats) -> list[_Said]:
        few, ratio = few_steps(whole)
        if not len(few):
            return []
        longest, part = int(numbers[few[0]]), part_text(ratio)
        words = f"{part} of it in {len(few)} of {len(whole)} steps"
        words = f"{part} of it in step {longest} alone" if len(few) == 1 else words
        own = Facts(steps_count=len(few), of_count=len(whole), part_ratio=ratio, longest_step=longest)
        return [_Said(fact("in_few_steps", "", "stalls", **own), words, words)]

    def _fewer(self, claim: Claim, ranks: Sequence[int]) -> list[_Said]:
        """Return that the rank whose time it is made fewer steps than others."""
        whose = [claim.cause_rank] if claim.kind == "late" and claim.cause_rank in self._ranks else ranks
        made = max(self._made.get(rank, 0) for rank in whose)
        most = max(self._made.values(), default=0)
        if not 0 < made < most - POLICY.uneven_count:
            return []
        named = ranks_text(list(whose))
        words = f"rank{'s' if is_several(named) else ''} {named} made {made} of {most} steps"
        return [_Said(fact("fewer_steps", "", "steps", steps_count=made, of_count=most, ranks=named), words, words)]


def _only_in(place: int, row: dict[str, Any], step_ns: float, others_ratio: float, several: bool) -> _Said:
    """Say in which steps a time lies. ``step_ns``: in such a step. ``others_ratio``: what the other steps have of that.

    ``several``: whether it is the mean of several ranks.
    """
    where, first, last = _which(row)
    own = Facts(where=where, first_step=first, last_step=last, step_ns=step_ns, others_ratio=others_ratio)
    if where == "period":
        own |= Facts(every_count=row["every_count"], together_count=row["together_count"])
    known = fact("only_in_steps", "", "over_time", place, **own)
    length = duration_text(step_ns)
    if where in ("growth", "decline"):
        verb = "growing" if where == "growth" else "shrinking"
        return _Said(known, f"{verb} by {length} over the run", f"{verb} over the run")
    is_only = others_ratio <= POLICY.nothing_ratio
    only = "only" if is_only else "mostly"
    about = "about " if row["kind"] == "shift" and row["onset"] != "sudden" else ""
    which = {
        "period": f"{only} in {every_nth(first, row['every_count'], row['together_count'])}",
        "begin": f"{only} up to step {last}",
        "middle": f"{only} in steps {first} to {last}",
        "end": f"{only} from {about}step {first} on",
        "ends": f"{'not' if is_only else 'less'} in steps {first} to {last}",
    }[where]
    there, mean = "in the others" if where == "ends" else "there", " on average" if several else ""
    return _Said(known, f"{which}, {length} a step {there}{mean}", which)


def _which(row: dict[str, Any]) -> tuple[str, int, int]:
    """Return which steps have the time, the first and the last of them.

    The steps are those of a ``period``, a ``growth`` or a ``decline`` over the run, or the ``begin``, ``middle`` or
    ``end`` of the run; ``ends`` if they are all but those from the first to the last that are returned.
    """
    first, last = row["first_step_index"], row["last_step_index"]
    if row["kind"] == "period":
        return "period", first, last
    if row["kind"] == "drift":
        return "growth" if row["delta_ns"] >= 0 else "decline", first, last
    if row["delta_ns"] >= 0:
        return row["place"], first, last
    others = {"begin": ("end", last + 1, last), "end": ("begin", first, first - 1)}
    return others.get(row["place"], ("ends", first, last))
