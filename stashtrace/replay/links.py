"""Links that transfers of several groups share: who is slower beside whom, as far as the run tells.

    group a   [ alone   ][ beside b      ]              the length of a transfer is latency, then bytes that move;
    group b              [ beside a      ][ alone ]     moving beside n - 1 others, it gets 1/n of the link

Which links a transfer goes over is not recorded. It is taken to use one port of each member, the same for all groups of
that rank: one to the network, another one inside of its host. Whether groups really get in each other's way at such a
port the run tells if transfers of one size had more company at some times than at others; else both is possible.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
from dataclasses import replace
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.graph import Graph
from stashtrace.analysis.intervals import Int64, TimeSet
from stashtrace.replay.scenario import Floats, Links, Scenario, Unknowns, counted_span, whole_ns
from stashtrace.replay.transfers import LINKS, latency_ns
from stashtrace.schema.kinds import StallKind

#: Fewer transfers of a size tell nothing about what they take.
_FEW = 3
#: So many transfers of a size are as quick as the link lets them be.
_QUICK_RATIO = 0.1
#: Those are compared that have the most and the least company: so much of the way from one end to the other.
_ENDS_RATIO = 1 / 3
#: On a shared link the former are slower by at least this factor (as a logarithm): else they say nothing.
_LEAST_SLOWER = 0.2
#: What two medians of one kind of transfer differ by for no reason.
_CHANCE = 0.02
#: Two standard errors on each side.
_ERRORS = 2.0
#: A median scatters by so much more than a mean, and a normal distribution by so much more than its median deviation.
_OF_MEDIANS, _OF_DEVIATIONS = 1.2533, 1.4826


class Verdict(IntEnum):
    """Whether transfers of several groups over one kind of link slow each other down."""

    APART = 0
    SHARED = 1
    UNKNOWN = 2


def shared_kinds(graph: Graph) -> tuple[frozenset[StallKind], ...]:
    """Kinds of links that may be shared: one set where the run tells, the least and the most where it does not.

    Only links that transfers of several groups use count.
    """
    least, most = set(), set()
    if len(graph.doubtful) and graph.doubtful[graph.is_transfer].any():
        return (frozenset(),)  # what held a transfer up may have been a rank that left no record
    for kind in LINKS.values():
        if Links.of(graph, frozenset({kind})) is None:
            continue
        answer = verdict(graph, kind)
        if answer is not Verdict.APART:
            most.add(kind)
        if answer is Verdict.SHARED:
            least.add(kind)
    ends = (frozenset(least), frozenset(most))
    return ends if least != most else ends[:1]


def verdict(graph: Graph, kind: StallKind) -> Verdict:
    """Whether transfers over a kind of link were slower in company, by transfers of one operation and size.

    In company is who would have had it even if nothing had slowed it down: those that take long for another reason meet
    more others for that.
    """
    links = Links.of(graph, frozenset({kind}))
    if links is None or graph.facts is None:
        return Verdict.UNKNOWN
    fixed = _fixed_ns(Scenario.of(graph, Unknowns()), links)
    moving = graph.work_ns - fixed
    alone = links.alone_ns(graph.begin_ns + fixed, graph.end_ns)
    begin, end = counted_span(graph)
    usable = links.users & (moving > 0) & (alone > 0)
    if len(graph.doubtful):
        usable &= ~graph.doubtful
    steady = usable & (graph.begin_ns >= begin) & (graph.begin_ns <= end)
    nodes = np.flatnonzero(steady if steady.any() else usable)
    if not len(nodes):
        return Verdict.UNKNOWN
    sort = _sorts(graph, nodes)
    company = _company(graph, links, nodes, fixed, _quantiles(moving[nodes], sort, _QUICK_RATIO))
    took, slower = np.log(moving[nodes]), np.log(moving[nodes] / alone[nodes])
    _, of_queue = np.unique(np.stack([sort, graph.facts.queue[nodes]]), axis=1, return_inverse=True)
    # Groups may get unequal parts of a link, so each is compared with itself, if its transfers differ in company.
    for alike in (of_queue.reshape(-1), sort):
        order = np.argsort(alike, kind="stable")
        sets = np.split(order, np.flatnonzero(np.diff(alike[order])) + 1)
        slower_by = [_slower_by(took[rows], slower[rows], company[rows]) for rows in sets if len(rows) >= 2 * _FEW]
        known = [rows for rows in slower_by if rows is not None]
        if known:
            break
    else:
        return Verdict.UNKNOWN
    share, error = np.array(known).T
    weight = 1 / error**2
    mean, error_of_mean = float((share * weight).sum() / weight.sum()), _ERRORS / math.sqrt(float(weight.sum()))
    if mean - error_of_mean > 1 / 2:
        return Verdict.SHARED
    return Verdict.APART if mean + error_of_mean < 1 / 2 else Verdict.UNKNOWN


def _sorts(graph: Graph, nodes: Int64) -> Int64:
    """A number for the operation, members and size of each of these transfers."""
    assert graph.facts is not None
    sort = np.zeros(len(nodes), dtype=np.int64)
    for column in (graph.facts.op, graph.facts.members, graph.moved_bytes):
        values, code = np.unique(column[nodes], return_inverse=True)
        _, sort = np.unique(sort * len(values) + code, return_inverse=True)
    return sort


def _quantiles(values: npt.NDArray[np.int64], sort: Int64, ratio: float) -> Floats:
    """Quantile of the values of its sort, for each value."""
    order = np.lexsort((values, sort))
    count = np.bincount(sort)
    at = np.cumsum(count) - count + ((count - 1) * ratio).astype(np.int64)
    return np.asarray(values[order][at][sort], dtype=np.float64)


def _slower_by(took: Floats, slower: Floats, company: Floats) -> tuple[float, float] | None:
    """How much slower transfers of one sort were in company, as a part of what sharing makes of it, and its error."""
    low, high = float(company.min()), float(company.max())
    away = _ENDS_RATIO * (high - low)
    beside, apart = company >= high - away, company <= low + away
    if min(beside.sum(), apart.sum()) < _FEW:
        return None
    expected = float(np.median(slower[beside]) - np.median(slower[apart]))
    if expected < _LEAST_SLOWER:
        return None
    variance = _CHANCE**2
    for chosen in (beside, apart):
        deviation = _OF_DEVIATIONS * float(np.median(np.abs(took[chosen] - np.median(took[chosen]))))
        variance += (_OF_MEDIANS * deviation) ** 2 / int(chosen.sum())
    return float(np.median(took[beside]) - np.median(took[apart])) / expected, math.sqrt(variance) / expected


def _company(graph: Graph, links: Links, nodes: Int64, fixed: Int64, usual_ns: Floats) -> Floats:
    """Part of the time that each of these transfers would take by itself in which another group's moved beside it."""
    assert graph.facts is not None
    begin = graph.begin_ns + fixed
    asked, until = np.zeros(len(graph), dtype=bool), begin.copy()
    asked[nodes] = True
    until[nodes] = begin[nodes] + np.maximum(whole_ns(usual_ns), 1)
    company = np.zeros(len(graph))
    owner, queue = links.owner, graph.facts.queue
    order = np.argsort(links.ids, kind="stable")
    for of_link in np.split(owner[order], np.flatnonzero(np.diff(links.ids[order])) + 1):
        for group in np.unique(queue[of_link]).tolist():
            mine, others = of_link[queue[of_link] == group], of_link[queue[of_link] != group]
            mine = mine[asked[mine]]
            inside = TimeSet.of(begin[others], graph.end_ns[others]).within(begin[mine], until[mine])
            company[mine] = np.maximum(company[mine], inside / (until[mine] - begin[mine]))
    return company[nodes]


def measured_alone(graph: Graph, links: Links, unknowns: Unknowns) -> Graph:
    """The graph with transfers as long as they would have been alone."""
    fixed = _fixed_ns(Scenario.of(graph, unknowns), links)
    moving = _levelled_ns(graph, links, links.alone_ns(graph.begin_ns + fixed, graph.end_ns))
    return graph.with_work(np.where(links.users, fixed + moving, graph.work_ns))


def sharing_links(scenario: Scenario, kinds: frozenset[StallKind]) -> Scenario:
    """A scenario of transfers as they are alone, with the links of these kinds that several groups use."""
    links = Links.of(scenario.graph, kinds)
    if links is None:
        return scenario
    return replace(scenario, links=links, fixed=_fixed_ns(scenario, links).astype(np.float64))


def _levelled_ns(graph: Graph, links: Links, alone_ns: Int64) -> Int64:
    """Lengths alone that are alike for transfers of one sort that moved together without a break.

    How much each got of a link need not be the same part: who comes first may have filled its queue, and seems to be
    quicker alone for that, the other one slower. What all of them got together is known.
    """
    owner = links.owner
    order = np.lexsort((graph.begin_ns[owner], links.ids))
    owner, link = owner[order], links.ids[order]
    # The latest end so far, of each link for itself: moments become places, and links follow one another.
    _, place = np.unique(np.concatenate([graph.begin_ns[owner], graph.end_ns[owner]]), return_inverse=True)
    begin, end = np.split(place + np.tile(link.astype(np.int64) * (len(place) + 1), 2), 2)
    latest = np.maximum.accumulate(end)
    period = np.cumsum(np.append(True, begin[1:] >= latest[:-1])) - 1
    usual = _quantiles(alone_ns[owner], _sorts(graph, owner), 1 / 2)
    spent, wanted = (np.bincount(period, weights=column) for column in (alone_ns[owner], usual))
    levelled = usual * spent[period] / np.maximum(wanted[period], 1.0)
    count = np.maximum(np.bincount(owner, minlength=len(graph)), 1)
    return whole_ns(np.bincount(owner, weights=levelled, minlength=len(graph)) / count)


def _fixed_ns(scenario: Scenario, links: Links) -> Int64:
    """Latency of the transfers that use links, 0 of other nodes."""
    fixed, users = np.zeros(len(scenario.graph), dtype=np.int64), links.users
    for kind in links.kinds:
        fixed += whole_ns(latency_ns(scenario, users & (scenario.graph.kind == kind)))
    return fixed


def moving_ns(scenario: Scenario) -> Int64:
    """What each node moves over shared links, 0 of those that use none."""
    if scenario.links is None:
        return np.zeros(len(scenario.graph), dtype=np.int64)
    fixed = np.zeros(len(scenario.work)) if scenario.fixed is None else scenario.fixed
    return whole_ns(np.where(scenario.links.users, np.maximum(scenario.work - fixed, 0), 0.0))
