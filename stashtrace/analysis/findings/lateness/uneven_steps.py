"""Ranks whose steps hold more or less work than those of the others, though none of them alone makes most waiting."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from stashtrace.analysis.findings.lateness.step_noise import noise_of, stands_out_of_noise
from stashtrace.analysis.findings.lost_record_claims import cut_ranks
from stashtrace.analysis.findings.summary_input import RunFacts
from stashtrace.analysis.stragglers.causes import Floats
from stashtrace.analysis.stragglers.surplus import EXPLAINS_RATIO, GROUPS, surplus_over_peers
from stashtrace.schema.groupby import GroupBy

#: Whole steps hold noise of all kinds: work in them stands out if it is so many times as long as it varies.
_CLEARLY = 1.5
#: What takes longer is looked up for so many ranks, those that differ most.
_EXAMINED = 8


@dataclass(frozen=True, slots=True)
class Unlike:
    """A rank whose steps hold more or less work than those of the others."""

    rank: int
    #: What it does longer or shorter than the median of the others, in ``GROUPS``.
    group: str
    #: By how much in a step; negative if shorter.
    longer_ns: float
    #: The largest kind of that group.
    kind: str


def unlike_ranks(facts: RunFacts) -> list[Unlike]:
    """Return the ranks with more work than the others, else those with less, where these are the fewer.

    There must be three ranks to compare. Several ranks with more work come last by turns, so that none of them makes
    most of the waiting.
    """
    ranks, longer = _longer_than_median(facts)
    cut = cut_ranks(facts.trace)
    if len(ranks) < 3 or not longer.size:
        return []
    wait_ns = max(rank.per_step_ns("straggler") for rank in facts.ranks)
    for sign in (1.0, -1.0):
        chosen = [
            rank
            for rank, own in zip(ranks, sign * longer, strict=True)
            if rank not in cut
            and own.mean() >= max(EXPLAINS_RATIO * wait_ns, _CLEARLY * noise_of(own))
            and stands_out_of_noise(own, len(ranks))
        ]
        if 0 < len(chosen) <= len(ranks) // 2:
            peers = [one for one in ranks if one not in chosen]
            mean_ns = {rank: float(own.mean()) for rank, own in zip(ranks, longer, strict=True)}
            order = sorted(chosen, key=lambda rank: -sign * mean_ns[rank])
            found = [_unlike(facts, rank, peers, sign) for rank in order[:_EXAMINED]]
            # The others of many are taken to do more of the same.
            return found + [replace(found[0], rank=rank, longer_ns=mean_ns[rank]) for rank in order[_EXAMINED:]]
    return []


def _longer_than_median(facts: RunFacts) -> tuple[list[int], Floats]:
    """Return ranks, and by rank and step how much more they did than the median of all, without waits and transfers."""
    stalls, steps = facts.tables["stalls"], facts.tables["steps"]
    ranks = [rank.rank for rank in facts.ranks]
    by_rank = GroupBy(steps["step"])
    common = by_rank.values[by_rank.sizes == len(ranks)]
    worked = ~np.isin(stalls["kind"], (*GROUPS["late"], *GROUPS["link"]))
    places = [
        np.where(np.isin(column, known), np.searchsorted(known, column), -1)
        for column, known in ((stalls["rank"], np.array(ranks)), (stalls["step"], common))
    ]
    spent = GroupBy.cells(places, (len(ranks), len(common))).sum(np.where(worked, stalls["stall_ns"], 0))
    spent = np.asarray(spent, dtype=np.float64).reshape(len(ranks), len(common))
    return ranks, spent - np.median(spent, axis=0)


def _unlike(facts: RunFacts, rank: int, peers: list[int], sign: float) -> Unlike:
    surplus = surplus_over_peers(facts.trace, facts.tables["steps"], rank, peers)
    sums = {
        group: sum(surplus.get(kind, 0.0) for kind in kinds)
        for group, kinds in GROUPS.items()
        if group not in ("late", "link")
    }
    group = max(sums, key=lambda name: sign * sums[name])
    kind = max(GROUPS[group], key=lambda name: sign * surplus.get(name, 0.0))
    return Unlike(rank, group, sums[group], kind)
