"""Ranks that make the others wait by more than steps vary, and what they do longer.

In a job whose ranks are alike some rank comes last in each step, and now and then the same one several times. A rank is
named only where its part of the waiting is more than that: over many steps, in most of its steps, by an act that no
step needs (a sleep, a save, a read of a file), or in steps that chance does not make long (every fourth one, all from
one on).
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.collectives.matching import group_table
from stashtrace.analysis.findings.lateness.costliest_wait import IDLE_KINDS
from stashtrace.analysis.findings.lateness.lone_forwards import quiet_alone_ns
from stashtrace.analysis.findings.lateness.step_noise import ENOUGH_STEPS, noise_of, stands_out_of_noise
from stashtrace.analysis.findings.lost_record_claims import cut_ranks
from stashtrace.analysis.findings.over_time.step_changes import changed_steps
from stashtrace.analysis.findings.summary_input import RunFacts
from stashtrace.analysis.intervals import Int64, int64
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.analysis.steps.threads import step_threads, threads_without_steps
from stashtrace.analysis.stragglers.cause_names import Named, Namer, Window
from stashtrace.analysis.stragglers.causes import CAUSES, Floats, rank_times
from stashtrace.analysis.stragglers.file_calls import LongerOnFile, OnFile, longer_on_file
from stashtrace.analysis.stragglers.follow_waits import UNKNOWN, Roots, roots_of
from stashtrace.analysis.stragglers.late import chance
from stashtrace.analysis.stragglers.surplus import EXPLAINS_RATIO, GROUPS, surplus_over_peers
from stashtrace.analysis.stragglers.waits_for_late import Waits
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import CollectiveOp
from stashtrace.units import ranks_text

#: A root of less than this share of all waiting is not named.
_LEAST_RATIO = 0.25
#: Of two ranks, the one that makes the other wait by its work has at least this share of the waiting.
_OF_TWO_RATIO = 2 / 3
#: All waiting but for what clocks round ends at a rank.
_NEARLY_ALL_RATIO = 0.9
#: A rank is late again and again if chance would make it so with less than this probability.
_BY_CHANCE = 0.02
#: No chance makes it so.
_NEVER_BY_CHANCE = 1e-6
#: Things that a step does not need: each is named wherever it makes others wait, however seldom.
_ACTS = ("fetch", "checkpoint", "gc", "compile", "sleep", "h2d")
#: Unless another rank's acts make others wait for this part of it as well: then they do so by turns.
_ACTS_LEAD = 2
#: An act is one of all steps if this part of them has at least half of its mean.
_STEADY_RATIO = 0.9
#: Waits of a root that are looked at for the name of a file, a kernel or a call.
_NAMED_AT_MOST = 6
#: A rank that waits less than this part of what the one that waits most does is not mentioned.
_MENTIONED_RATIO = 0.1
#: Steps wait for long if they do so for this part of the mean, weighted by the waiting.
_LONG_RATIO = 0.25
#: What a rank does longer is calls on a file if these are at least this part of it.
_MOSTLY_RATIO = 0.5

GROUP_OF = {kind: group for group, kinds in GROUPS.items() for kind in kinds}


@dataclass(frozen=True, slots=True)
class Link:
    """Ranks that wait for one rank, the collective in which they mostly do, and for how long in a step all together."""

    late: int
    ranks: tuple[int, ...]
    operation: str
    wait_ns: float


@dataclass(frozen=True, slots=True)
class Culprit:
    """A rank at which waits end."""

    rank: int
    #: What it does longer: kind of time of ``late`` and its group in ``GROUPS``; empty if nothing is known.
    kind: str
    group: str
    #: By how much longer than the median of the other ranks, per counted step.
    longer_ns: float
    #: It does so before the waits alone: the others do as much elsewhere in their steps.
    before_waits: bool
    #: Other groups that it does nearly as much longer, by how much.
    also: dict[str, float]
    #: File, worker, kernel, phase or call behind it.
    named: Named
    #: The calls on a file that it is mostly longer in, whatever kinds of time they are.
    on: OnFile | None
    #: What it does longer are mostly forwards without gradients that it makes alone, whatever kinds of time they are.
    is_quiet: bool
    #: Part of all waiting that ends at it.
    share_ratio: float
    #: This waiting, of all ranks in a step.
    wait_ns: float
    #: By waiting rank, the part of its waiting that ends here.
    part_of: dict[int, float]
    #: Who waits for whom; the ones that wait for the rank itself first.
    links: tuple[Link, ...]
    #: Collective in which most of it is lost.
    operation: str
    #: (int, int); Steps in which at least half of the waiting ends here, of the steps with long waits.
    often: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Blame:
    """Waiting in the counted steps by root: parts of waits, and sums by root and step."""

    roots: Roots
    #: Parts of ``roots`` in counted steps.
    part: Int64
    #: Roots, ascending; -1 is unknown.
    ranks: Int64
    #: Waiting of all ranks by root and step.
    by_step_ns: Floats
    #: By root and kind of time; the last one is unknown.
    by_kind_ns: Floats

    @property
    def whole_ns(self) -> float:
        """All waiting."""
        return float(self.by_step_ns.sum())

    def few_steps(self) -> tuple[int, float]:
        """Return the number of steps with at least twice the mean waiting, and their part of all waiting."""
        whole = self.by_step_ns.sum(axis=0)
        long = whole >= 2 * whole.mean()
        return int(np.count_nonzero(long)), float(whole[long].sum()) / max(self.whole_ns, 1.0)

    def kinds(self) -> dict[str, float]:
        """Return the share of all waiting by group of what the late rank did longer; the largest first."""
        sums: dict[str, float] = {}
        for kind, spent in zip((*CAUSES, ""), self.by_kind_ns.sum(axis=0).tolist(), strict=True):
            group = GROUP_OF.get(kind, "")  # none of what is unknown, or lies before the records
            sums[group] = sums.get(group, 0.0) + spent / max(self.whole_ns, 1.0)
        return dict(sorted(sums.items(), key=lambda item: -item[1]))


def blame(facts: RunFacts) -> Blame | None:
    """Gather the waiting of the counted steps by its roots; None if there is none."""
    roots, steps = roots_of(facts.trace), facts.tables["steps"]
    waits = roots.waits
    counted = GroupBy(steps["rank"], steps["step"]).find(waits.rank, waits.step) >= 0
    part = np.flatnonzero(counted[roots.source])
    if not len(part):
        return None
    root, step = GroupBy(roots.root_rank[part]), GroupBy(waits.step[roots.source[part]])
    numbers = np.unique(steps["step"])
    cells = GroupBy.cells((root.number, np.searchsorted(numbers, step.values)[step.number]), (len(root), len(numbers)))
    by_step = np.asarray(cells.sum(roots.part_ns[part]), dtype=np.float64)
    kinds = roots.kinds_ns()[part]
    by_kind = np.stack([root.sum(kinds[:, kind]) for kind in range(kinds.shape[1])], axis=1)
    return Blame(roots, int64(part), int64(root.values), by_step, np.asarray(by_kind, dtype=np.float64))


def culprits(facts: RunFacts, found: Blame) -> list[Culprit]:
    """Return the ranks at which waits end and that stand out, the one that costs most first."""
    order = np.argsort(-found.by_step_ns.sum(axis=1), kind="stable")
    return [_culprit(facts, found, row) for row in order.tolist() if _stands_out(facts, found, row)]


def _stands_out(facts: RunFacts, found: Blame, row: int) -> bool:
    """Return True if a rank makes others wait more than ranks that are alike do by turns."""
    ranks = max(len(facts.ranks), 2)
    steps = facts.tables["steps"]
    recorded = np.isin(np.unique(steps["step"]), steps["step"][steps["rank"] == found.ranks[row]])
    # A rank with fewer steps is not on time in those that it lacks.
    by_step = found.by_step_ns[:, recorded]
    whole, own = by_step.sum(axis=0), by_step[row]
    share = own.sum() / max(whole.sum(), 1.0)
    if found.ranks[row] < 0 or share < _LEAST_RATIO:
        return False
    acts = found.by_kind_ns[:, [CAUSES.index(kind) for kind in _ACTS]].sum(axis=1)
    others = np.delete(acts, row).max(initial=0.0)
    if acts[row] >= max(_LEAST_RATIO * whole.sum(), _ACTS_LEAD * others):
        return True
    # Two ranks with an act each, before different operations, both make waits in each step: not by turns.
    steady = float(np.mean(own >= 0.5 * own.mean())) >= _STEADY_RATIO
    if steady and acts[row] >= max(_LEAST_RATIO * whole.sum(), _OF_TWO_RATIO * own.sum()):
        return True
    if share < (_OF_TWO_RATIO if ranks == 2 else _LEAST_RATIO):
        return False
    if _changes_with_time(facts, found, row):
        return True
    if len(whole) < ENOUGH_STEPS:
        second = np.sort(np.delete(by_step.sum(axis=1), row))[-1:].sum() / max(whole.sum(), 1.0)
        return bool(share >= _OF_TWO_RATIO or share >= 2 * second)
    lead = own - (whole - own) / (ranks - 1)
    if stands_out_of_noise(lead, ranks):
        return True
    large = whole >= whole.mean()
    most = own >= 0.5 * whole
    times, trials = int(np.count_nonzero(most & large)), int(np.count_nonzero(large))
    by_chance = ranks * chance(times, trials, ranks)
    # Half of the steps long and half short, as with one slow worker of two, are no noise where one rank makes them all.
    alone = by_chance < _NEVER_BY_CHANCE and share >= _NEARLY_ALL_RATIO
    if by_chance < _BY_CHANCE and 2 * times > trials and (alone or lead.mean() > noise_of(lead)):
        return True
    # Beside one that is late by more in a few steps, another one may be so in all others.
    times, trials = _often(found, row)
    return times >= _OF_TWO_RATIO * trials and ranks * chance(times, trials, ranks) < _NEVER_BY_CHANCE


def _changes_with_time(facts: RunFacts, found: Blame, row: int) -> bool:
    """Return True if most waiting ends at a rank in steps that it alone makes longer by a period, a shift or a drift.

    ``over_time`` has no such row of noise.
    """
    own = found.by_step_ns[row]
    changes = _own_changes(facts, int(found.ranks[row]))
    return any(own[inside].sum() >= _OF_TWO_RATIO * found.whole_ns for _, inside in changes)


def _own_changes(facts: RunFacts, rank: int) -> Iterator[tuple[dict[str, Any], npt.NDArray[np.bool_]]]:
    """Yield the changes over time in which a rank alone makes steps longer, and the mask of these steps."""
    numbers = np.unique(facts.tables["steps"]["step"])
    for change in facts.tables["over_time"].rows():
        inside = changed_steps(change, numbers) | (change["kind"] == "drift")
        if change["rank"] == rank and change["ranks"] == ranks_text([rank]) and change["delta_ns"] > 0:
            yield change, inside


def only_root(facts: RunFacts, found: Blame) -> Culprit | None:
    """Return the rank at which nearly all waits end although it does not stand out; None if there is none."""
    row = int(found.by_step_ns.sum(axis=1).argmax())
    if found.ranks[row] < 0 or found.by_step_ns[row].sum() < _NEARLY_ALL_RATIO * found.whole_ns:
        return None
    return _culprit(facts, found, row)


def _culprit(facts: RunFacts, found: Blame, row: int) -> Culprit:
    rank, roots, waits = int(found.ranks[row]), found.roots, found.roots.waits
    steps_count = max(found.by_step_ns.shape[1], 1)
    part = found.part[roots.root_rank[found.part] == rank]
    source, spent = roots.source[part], roots.part_ns[part]
    wait_ns = float(spent.sum())

    victims = GroupBy(waits.rank[source])
    lost = dict(zip(victims.values.tolist(), victims.sum(spent).tolist(), strict=True))
    whole = {r.rank: r.kinds.get("straggler", 0) for r in facts.ranks}
    part_of = {victim: ns / max(whole.get(victim, 0), 1) for victim, ns in lost.items()}
    work = _work(facts, found, row, part, list(lost))
    if work.kind in IDLE_KINDS and rank in cut_ranks(facts.trace):
        work = _LongerWork()  # what it did then may be what the cut took
    kind, group = work.kind, work.group
    named, longer, before_waits = Named(), work.longer_ns, work.before_waits
    if work.on is not None:
        named = Named(name=work.on.name)
    elif group == "link":
        named = Named(name=transfers_without(facts, rank, list(lost)))
    elif kind:
        named = _name(facts, found, part, kind)
    return Culprit(
        rank,
        kind,
        group,
        longer,
        before_waits,
        work.also,
        named,
        work.on,
        work.is_quiet,
        wait_ns / max(found.whole_ns, 1.0),
        wait_ns / steps_count,
        part_of,
        _links(facts, waits, source, spent, rank, steps_count),
        _operation(facts, waits, source, spent),
        _often_where_long(found, row),
    )


@dataclass(frozen=True, slots=True)
class _LongerWork:
    """What a root does longer; without a kind if nothing is known."""

    kind: str = ""
    group: str = ""
    longer_ns: float = 0.0
    before_waits: bool = False
    also: dict[str, float] = field(default_factory=dict)
    on: OnFile | None = None
    is_quiet: bool = False


def _work(facts: RunFacts, found: Blame, row: int, part: Int64, victims: list[int]) -> _LongerWork:
    """Return what a root does longer than its peers in whole steps, else what it did longer before the waits alone.

    In windows before single waits noise may be larger than the cause; over all steps it cancels out.
    """
    rank, kinds = int(found.ranks[row]), found.by_kind_ns[row]
    steps_count = max(found.by_step_ns.shape[1], 1)
    wait_ns = float(kinds.sum())
    sums = {group: sum(float(kinds[CAUSES.index(kind)]) for kind in members) for group, members in GROUPS.items()}
    del sums["late"]  # its waits for others were followed
    if not transfers_without(facts, rank, victims):
        del sums["link"]  # it shares all its transfers with the waiting ranks: that these end later is no reason

    def largest_kind(group: str) -> str:
        return max(GROUPS[group], key=lambda kind: float(kinds[CAUSES.index(kind)]))

    surplus = _surplus(facts, found, row)
    longer = {group: sum(surplus.get(kind, 0.0) for kind in GROUPS[group]) for group in sums}
    matters = [group for group, ns in sums.items() if ns >= _MENTIONED_RATIO * wait_ns]
    file = longer_on_file(facts.trace, facts.tables["steps"], rank, [r.rank for r in facts.ranks])
    if file is not None and _is_mostly(file, longer, max(EXPLAINS_RATIO * wait_ns / steps_count, 1.0) / len(victims)):
        kind = max(file.parts_ns, key=lambda kind: file.parts_ns[kind])
        in_file = {group: sum(file.parts_ns.get(kind, 0.0) for kind in GROUPS[group]) for group in sums}
        rest = {group: longer[group] - in_file[group] for group in matters}
        also = {group: ns for group, ns in rest.items() if ns >= EXPLAINS_RATIO * file.longer_ns}
        return _LongerWork(kind, GROUP_OF[kind], file.longer_ns, also=also, on=file.on)
    best = max(matters, key=lambda group: longer[group], default="")
    quiet_ns = quiet_alone_ns(facts, rank, [r.rank for r in facts.ranks])
    if best and quiet_ns >= max(_MOSTLY_RATIO * sum(max(ns, 0.0) for ns in longer.values()), 1.0):
        return _LongerWork(largest_kind(best), best, quiet_ns, is_quiet=True)
    if best and longer[best] * len(victims) >= max(EXPLAINS_RATIO * wait_ns / steps_count, 1.0):
        also = {group: longer[group] for group in matters if group != best}
        also = {group: ns for group, ns in also.items() if ns >= EXPLAINS_RATIO * longer[best]}
        return _LongerWork(largest_kind(best), best, longer[best], also=also)
    most = max(sums, key=lambda group: sums[group])
    unknown_ns = float(kinds[UNKNOWN] + kinds[CAUSES.index("before")])
    if sums[most] < max(EXPLAINS_RATIO * wait_ns, unknown_ns, 1.0):
        return _LongerWork()
    before_ns = _before_waits_ns(found, part, GROUPS[most]) / steps_count
    return _LongerWork(largest_kind(most), most, before_ns, before_waits=True)


def _surplus(facts: RunFacts, found: Blame, row: int) -> dict[str, float]:
    """Return by how much longer a root does each kind of time in a step; see ``surplus_over_peers``.

    Where it makes others wait in every few steps alone, these are compared: that another rank is slower in the rest
    makes nobody wait less for it.
    """
    steps, rank, ranks = facts.tables["steps"], int(found.ranks[row]), [r.rank for r in facts.ranks]
    surplus = surplus_over_peers(facts.trace, steps, rank, ranks)
    numbers = np.unique(steps["step"])
    for change, inside in _own_changes(facts, rank):
        own = found.by_step_ns[row]
        if change["kind"] == "period" and own[inside].sum() >= _OF_TWO_RATIO * own.sum():
            there = surplus_over_peers(facts.trace, steps.take(np.isin(steps["step"], numbers[inside])), rank, ranks)
            part = float(inside.mean())
            return {kind: max(ns, part * there.get(kind, 0.0)) for kind, ns in surplus.items()}
    return surplus


def _is_mostly(file: LongerOnFile, longer: dict[str, float], least_ns: float) -> bool:
    """Return True if what a rank does longer, in all groups of kinds together, is mostly calls on one file."""
    whole_ns = sum(max(ns, 0.0) for group, ns in longer.items() if group != "link")
    return file.longer_ns >= max(_MOSTLY_RATIO * whole_ns, least_ns)


def transfers_without(facts: RunFacts, rank: int, others: list[int]) -> str:
    """Return the transfers of a rank in which not all of some others take part, the longest kind; empty if it has none.

    Only these can make it late for the others.
    """
    index = TraceIndex(facts.trace)
    table, groups = index.trace.collectives, group_table(index.trace)
    rows = np.flatnonzero((table["rank"] == rank) & (table["end_ns"] >= 0))
    talks = np.isin(table["op_code"][rows], (CollectiveOp.SEND, CollectiveOp.RECEIVE))
    peer = np.where(talks, table["peer_rank"][rows], -1)
    spent: dict[str, int] = {}
    each = GroupBy(table["group_hash"][rows], table["op_code"][rows], peer)
    entered = np.maximum(index.in_flight.last_enter_ns, index.entered_ns)[rows]
    length = each.sum(np.maximum(table["end_ns"][rows] - entered, 0))
    for (value, op, place), ns in zip(zip(*(key.tolist() for key in each.keys), strict=True), length, strict=True):
        members = groups[value].members
        with_whom = members[place : place + 1] if 0 <= place < len(members) else members
        if not np.isin(others, with_whom).all():
            whom = [one for one in with_whom.tolist() if one != rank]
            named = f"rank{'s' if len(whom) > 1 else ''} {ranks_text(whom)}"
            name = f"{CollectiveOp(op).name.lower().replace('_', '-')} with {named}"
            spent[name] = spent.get(name, 0) + int(ns)
    return max(spent, key=lambda name: spent[name], default="")


def _before_waits_ns(found: Blame, part: Int64, kinds: tuple[str, ...]) -> float:
    """Return by how much longer a root did some kinds of time before the waits that end at it, each operation once."""
    waits, roots = found.roots.waits, np.unique(found.roots.root[part])
    longer = found.roots.longer_ns[roots][:, [CAUSES.index(kind) for kind in kinds]].sum(axis=1)
    return float(GroupBy(waits.late[roots], waits.step[roots], waits.end[roots]).max(longer).sum())


def _links(
    facts: RunFacts, waits: Waits, source: Int64, spent: Floats, rank: int, steps_count: int
) -> tuple[Link, ...]:
    """Return who waits for whom in the chains that end at a rank; each waiting rank stands in one link.

    Ranks that wait for the same one in different operations, as the ends of its sends and receives, have a link each.
    """
    pairs = GroupBy(waits.rank[source], waits.late[source])
    lost, rows_of_pair = pairs.sum(spent), list(pairs)
    victims = GroupBy(pairs.keys[0])
    of_victim = victims.sum(lost)
    mostly = victims.argmax(lost)
    mentioned = of_victim >= _MENTIONED_RATIO * of_victim.max(initial=0.0)
    for_whom: dict[int, list[int]] = {}
    wait_ns: dict[int, float] = {}  # by waiting rank
    rows_of: dict[int, Int64] = {}
    for place in np.flatnonzero(mentioned & (victims.values != rank)).tolist():
        late = int(pairs.keys[1][mostly[place]])
        for_whom.setdefault(late, []).append(int(victims.values[place]))
        wait_ns[int(victims.values[place])] = float(of_victim[place]) / steps_count
        rows_of[int(victims.values[place])] = rows_of_pair[mostly[place]]
    reached: list[int] = [rank]
    for late in reached:  # along the chain, so that nobody stands before the rank that it waits for
        reached += [victim for victim in for_whom.get(late, []) if victim not in reached and victim in for_whom]
    ordered = [late for late in reached if late in for_whom] + [late for late in for_whom if late not in reached]
    links = []
    # A rank in between without steps, as a server, has no waiting in them to tell.
    for late in for_whom:
        own = np.flatnonzero((waits.rank == late) & (waits.late == rank))
        if late != rank and late not in victims.values and len(own):
            links.append(Link(rank, (late,), _operation(facts, waits, own, waits.length[own].astype(np.float64)), 0.0))
    for late in ordered:
        inside: dict[str, list[int]] = {}
        for victim in for_whom[late]:
            own = rows_of[victim]
            inside.setdefault(_operation(facts, waits, source[own], spent[own]), []).append(victim)
        links += [
            Link(late, tuple(ranks), operation, sum(wait_ns[victim] for victim in ranks))
            for operation, ranks in inside.items()
        ]
    return tuple(links)


def _operation(facts: RunFacts, waits: Waits, source: Int64, spent: Floats) -> str:
    """Return the collective in which most time was lost, empty if none is known."""
    table = TraceIndex(facts.trace).trace.collectives
    known = waits.row[source] >= 0
    if not known.any():
        return ""
    kinds = GroupBy(table["op_code"][waits.row[source[known]]])
    return CollectiveOp(int(kinds.values[kinds.sum(spent[known]).argmax()])).name.lower()


def lost_operation(facts: RunFacts, found: Blame, rank: int = -1) -> str:
    """Return the collective in which most time of the counted steps was lost, of one rank or of all."""
    source, spent = found.roots.source[found.part], found.roots.part_ns[found.part]
    own = found.roots.waits.rank[source] == rank if rank >= 0 else np.ones(len(source), dtype=bool)
    return _operation(facts, found.roots.waits, source[own], spent[own])


def _often(found: Blame, row: int) -> tuple[int, int]:
    whole, own = found.by_step_ns.sum(axis=0), found.by_step_ns[row]
    matters = whole >= _MENTIONED_RATIO * whole.mean()
    return int(np.count_nonzero(matters & (own >= 0.5 * whole))), int(np.count_nonzero(matters))


def _often_where_long(found: Blame, row: int) -> tuple[int, int]:
    """Return in how many steps most waiting ends at a rank, of those whose waiting is long.

    Long is a quarter of the waiting of the step in which a nanosecond of waiting lies on average: where every tenth
    step has nearly all of it, these alone are long, and steps that wait alike all are.
    """
    whole, own = found.by_step_ns.sum(axis=0), found.by_step_ns[row]
    long = whole >= _LONG_RATIO * float((whole**2).sum()) / max(float(whole.sum()), 1.0)
    return int(np.count_nonzero(long & (own >= 0.5 * whole))), int(np.count_nonzero(long))


def name_behind(facts: RunFacts, found: Blame, rank: int, group: str) -> tuple[str, Named]:
    """Return the kind of time of a group that makes most wait for a rank, and what is behind it."""
    part = found.part[found.roots.root_rank[found.part] == rank]
    kinds = found.roots.kinds_ns()[part].sum(axis=0)
    kind = max(GROUPS[group], key=lambda name: float(kinds[CAUSES.index(name)]))
    if not kinds[CAUSES.index(kind)] > 0:
        return kind, Named()
    return kind, _name(facts, found, part, kind)


def _name(facts: RunFacts, found: Blame, part: Int64, kind: str) -> Named:
    """Return the file, kernel, phase or call in most of the longest waits that end at a rank by one kind of time."""
    roots, waits = found.roots, found.roots.waits
    cause = CAUSES.index(kind)
    each = GroupBy(roots.root[part])
    weight = each.sum(roots.kinds_ns()[part][:, cause])
    longest = each.values[np.argsort(-weight, kind="stable")[:_NAMED_AT_MOST]]
    index = TraceIndex(facts.trace)
    threads = {t.rank: t for t in (*step_threads(facts.trace), *threads_without_steps(facts.trace))}
    namer = Namer(index)
    names: dict[tuple[str, int], list[Named]] = {}
    times = {r: rank_times(index, threads[r]) for r in {*waits.late[longest].tolist(), *waits.rank[longest].tolist()}}
    for wait in longest.tolist():
        begin, end, arrived = (int(column[wait]) for column in (waits.level, waits.end, waits.begin))
        late, other = int(waits.late[wait]), int(waits.rank[wait])
        named = namer.name(cause, Window(times[late], begin, end), Window(times[other], begin, arrived))
        names.setdefault((named.name, named.worker), []).append(named)
    most = max(names.values(), key=lambda same: (sum(max(n.name_ns, 0) for n in same), len(same)), default=[Named()])
    return max(most, key=lambda named: named.name_ns)
