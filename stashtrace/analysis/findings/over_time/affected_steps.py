"""Find the steps that hold the time of a verdict, if it is not spread over all: then its mean is not shown alone.

one change of the run    only from step 40 on, only up to step 39, only in every 20th step, growing over the run
few steps                most of it lies in one step, or in a few
ranks by turns           each step has it on one of the ranks alone
fewer steps              the rank made fewer steps than others
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.findings.claim_rows import Claim, Evidence
from stashtrace.analysis.findings.over_time.change_claims import how_changed
from stashtrace.analysis.findings.over_time.step_changes import changed_steps
from stashtrace.analysis.findings.rules.losses import cut_ranks
from stashtrace.analysis.findings.summary_input import RunFacts
from stashtrace.analysis.steps.training_loop import QUIET_KINDS
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.stall_kinds import COLUMNS
from stashtrace.units import ranks_in, ranks_text

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

#: A change explains a time if at least this part of it is what the changed steps have more than the others.
_EXPLAINS_RATIO = 0.5
#: Steps that have at most this part of what the others have of a time have nothing of it.
NOTHING_RATIO = 0.1
#: Ranks of a job that was stopped may be a step apart.
UNEVEN_STEPS = 1
#: With fewer steps it is not said that a time lies in few of them.
_ENOUGH_STEPS = 20
#: Few steps are at most this part of all, and hold at least that part of the time.
_FEW_RATIO, _MOST_RATIO = 0.1, 0.8
#: Ranks have a time by turns if in each step one of them has at least this part of it, ...
_ALONE_RATIO = 0.9
#: ... and each of them is that one in at least this part of an equal share of the steps.
_FAIR_RATIO = 0.5
#: Kinds of time behind a cause that are not the whole column of its verdict.
_PARTS = {("data", "reads"): ("fetch",), ("host", "python"): ("python",)}


def few_steps(whole: Floats) -> tuple[npt.NDArray[np.int64], float]:
    """Return the places of few steps that have most of a time, the longest first, and their part of it.

    ``whole``: the time of each step, in ns. No place if it is spread over more steps, or there are too few to tell.
    """
    longest = np.argsort(-whole, kind="stable")[: int(_FEW_RATIO * len(whole))]
    most = _MOST_RATIO * whole.sum()
    if len(whole) < _ENOUGH_STEPS or whole[longest].sum() < most or most <= 0:
        return longest[:0], 0.0
    few = longest[: int(np.searchsorted(np.cumsum(whole[longest]), most)) + 1]
    return few, float(whole[few].sum() / whole.sum())


def in_steps(facts: RunFacts, claims: Sequence[Claim]) -> list[Claim]:
    """Return verdicts with evidence of the steps in which their time lies; those about all steps alike as they are."""
    budget = _Budget(facts)
    return [
        replace(claim, evidence=(*budget.where(claim), *claim.evidence))
        if claim.section == "verdict" and claim.kind in COLUMNS and not claim.name and claim.stall_ns > 0
        else claim
        for claim in claims
    ]


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

    def _on_file(self, ranks: Sequence[int]) -> Floats:
        """Return the time of calls on the files of some ranks, by rank and step."""
        spent = np.zeros((len(ranks), len(self._numbers)))
        for place, rank in enumerate(ranks):
            facts, own = self._facts.rank(rank), self._steps.take(self._steps["rank"] == rank)
            if facts is not None:
                at = self._at(self._numbers, own["step"])
                spent[place, at] = facts.on_file_time.within(own["begin_ns"], own["end_ns"])
        return spent

    def where(self, claim: Claim) -> list[Evidence]:
        """Return evidence of the steps in which the time of a verdict lies."""
        ranks = sorted(set(ranks_in(claim.ranks)) & set(self._ranks.tolist()))
        if not ranks:
            return []
        if claim.cause_kind == "on_file":
            spent = self._on_file(ranks)
        else:
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
    ) -> list[Evidence]:
        """Return the change of the run that most of the time comes from."""
        for place, row in enumerate(self._changes):
            changed = changed_steps(row, self._numbers)[self._at(self._numbers, numbers)]
            if row["cause_kind"] == "absent" or not changed.any() or changed.all():
                continue
            inside, outside = float(whole[changed].mean()), float(whole[~changed].mean())
            drifts, more = row["kind"] == "drift", (inside - outside) * (1 if row["delta_ns"] >= 0 else -1)
            # From the mean of one half to that of the other is half of the growth.
            part = 2.0 if drifts else np.count_nonzero(changed if row["delta_ns"] >= 0 else ~changed) / len(whole)
            if more * part < _EXPLAINS_RATIO * whole.mean():
                continue
            each_ns = (2 * more if drifts else max(inside, outside)) / ranks_count
            part_ratio = min(inside, outside) / max(inside, outside, 1.0)
            kind, first, last = _which(row)
            return [
                Evidence(
                    "only_in_steps",
                    "over_time",
                    place,
                    items_count=first,
                    of_count=last,
                    amount_ns=each_ns,
                    part_ratio=part_ratio,
                    kind=kind,
                    name=how_changed(row),
                )
            ]
        return []

    def _by_turns(self, spent: Floats, present: Bools) -> list[Evidence]:
        """Return that each step has the time on one of several ranks alone."""
        together = spent[:, present.all(axis=0)]
        ranks, steps = together.shape
        if ranks < 2 or steps < _ENOUGH_STEPS or together.max(axis=0).sum() < _ALONE_RATIO * together.sum():
            return []
        times = np.bincount(together.argmax(axis=0), minlength=ranks)
        if times.min() < _FAIR_RATIO * steps / ranks:
            return []
        return [Evidence("by_turns", "stalls", items_count=ranks, of_count=steps)]

    def _few(self, numbers: npt.NDArray[np.int64], whole: Floats) -> list[Evidence]:
        few, part = few_steps(whole)
        if not len(few):
            return []
        longest = str(numbers[few[0]])
        return [
            Evidence("in_few_steps", "stalls", items_count=len(few), of_count=len(whole), part_ratio=part, name=longest)
        ]

    def _fewer(self, claim: Claim, ranks: Sequence[int]) -> list[Evidence]:
        """Return that the rank whose time it is made fewer steps than others."""
        whose = [claim.cause_rank] if claim.kind == "late" and claim.cause_rank in self._ranks else ranks
        made = max(self._made.get(rank, 0) for rank in whose)
        most = max(self._made.values(), default=0)
        if not 0 < made < most - UNEVEN_STEPS:
            return []
        return [Evidence("fewer_steps", "steps", items_count=made, of_count=most, name=ranks_text(list(whose)))]


def _which(row: dict[str, Any]) -> tuple[str, int, int]:
    """Return which steps have the time, the first and the last of them; of a period the first, and every how many.

    The steps are those of a ``period``, a ``growth`` or a ``decline`` over the run, or the ``begin``, ``middle`` or
    ``end`` of the run; ``ends`` if they are all but those from the first to the last that are returned.
    """
    first, last = row["first_step_index"], row["last_step_index"]
    if row["kind"] == "period":
        return "period", first, row["every_count"]
    if row["kind"] == "drift":
        return "growth" if row["delta_ns"] >= 0 else "decline", first, last
    if row["delta_ns"] >= 0:
        return row["place"], first, last
    others = {"begin": ("end", last + 1, last), "end": ("begin", first, first - 1)}
    return others.get(row["place"], ("ends", first, last))
