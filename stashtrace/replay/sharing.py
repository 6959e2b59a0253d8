"""Replays in which processes share CPUs and transfers share links, so that they slow each other down.

    group a   [ alone   ][ with b        ]              a transfer is latency, then bytes that move;
    group b              [ with a        ][ alone ]     among n transfers at once it gets 1/n of the link

The links of a transfer are not recorded. It is taken to use one port of each member, the same for all groups of that
rank: one to the network, another one inside its host. The run shows whether groups slow each other down at such a port
if transfers of one size moved during others at some times more than at other times; else both is possible.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from enum import IntEnum

import numpy as np

from stashtrace.analysis.graph import Graph, Replayed
from stashtrace.analysis.intervals import Floats, Int64, TimeSet
from stashtrace.calibration.noise import OF_MEAN, deviation
from stashtrace.replay.change_lengths import LINKS, latency_ns
from stashtrace.replay.policy import POLICY
from stashtrace.replay.scenario import Links, Scenario, Unknowns, counted_span, whole_ns
from stashtrace.schema.groupby import GroupBy, order_by
from stashtrace.schema.kinds import StallKind


class Verdict(IntEnum):
    """Whether transfers of several groups over one kind of link slow each other down."""

    APART = 0
    SHARED = 1
    UNKNOWN = 2


def shared_kinds(graph: Graph) -> tuple[frozenset[StallKind], ...]:
    """Return the kinds of links that are shared: one set where the run shows, else the smallest and the largest set.

    Only links that transfers of several groups use count.
    """
    least, most = set(), set()
    if len(graph.doubtful) and graph.doubtful[graph.is_transfer].any():
        return (frozenset(),)  # a transfer may have been held up by a rank that was not recorded
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
    """Judge whether transfers over a kind of link were slower in company, by transfers of one operation and size.

    A transfer is in company if others would have moved at the same time even if it had been quick: a transfer that is
    long for another reason meets more others for that.
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
    sorts = _sorts(graph, nodes)
    company = _company(graph, links, nodes, fixed, _quantiles(moving[nodes], sorts, POLICY.quick_transfers_ratio))
    took, slower = np.log(moving[nodes]), np.log(moving[nodes] / alone[nodes])
    # Groups may get unequal parts of a link, so each is compared with itself if its transfers differ in company.
    for similar in (GroupBy(sorts.number, graph.facts.queue[nodes]), sorts):
        slower_by = [
            _slower_by(took[rows], slower[rows], company[rows])
            for rows in similar
            if len(rows) >= 2 * POLICY.fewest_transfers_count
        ]
        known = [rows for rows in slower_by if rows is not None]
        if known:
            break
    else:
        return Verdict.UNKNOWN
    share, error = np.array(known).T
    weight = 1 / error**2
    mean, error_of_mean = (
        float((share * weight).sum() / weight.sum()),
        POLICY.standard_errors / math.sqrt(float(weight.sum())),
    )
    if mean - error_of_mean > 1 / 2:
        return Verdict.SHARED
    return Verdict.APART if mean + error_of_mean < 1 / 2 else Verdict.UNKNOWN


def _sorts(graph: Graph, nodes: Int64) -> GroupBy:
    """Group these transfers by operation, members and size."""
    assert graph.facts is not None
    return GroupBy(graph.facts.op[nodes], graph.facts.members[nodes], graph.moved_bytes[nodes])


def _quantiles(values: Int64, sorts: GroupBy, ratio: float) -> Floats:
    """Return for each value a quantile of the values of its sort."""
    at = sorts.bounds[:-1] + ((sorts.sizes - 1) * ratio).astype(np.int64)
    return np.asarray(values[order_by(sorts.number, values)][at][sorts.number], dtype=np.float64)


def _slower_by(took: Floats, slower: Floats, company: Floats) -> tuple[float, float] | None:
    """Return how much slower transfers of one sort were in company, relative to a shared link, and its error."""
    low, high = float(company.min()), float(company.max())
    away = POLICY.company_ends_ratio * (high - low)
    among, apart = company >= high - away, company <= low + away
    if min(among.sum(), apart.sum()) < POLICY.fewest_transfers_count:
        return None
    expected = float(np.median(slower[among]) - np.median(slower[apart]))
    if expected < POLICY.least_slower_log:
        return None
    variance = POLICY.by_chance_ratio**2
    for chosen in (among, apart):
        variance += (OF_MEAN * deviation(took[chosen])) ** 2 / int(chosen.sum())
    return float(np.median(took[among]) - np.median(took[apart])) / expected, math.sqrt(variance) / expected


def _company(graph: Graph, links: Links, nodes: Int64, fixed: Int64, usual_ns: Floats) -> Floats:
    """Return for each of these transfers the part of its usual time in which another group's moved at the same time."""
    assert graph.facts is not None
    begin = graph.begin_ns + fixed
    asked, until = np.zeros(len(graph), dtype=bool), begin.copy()
    asked[nodes] = True
    until[nodes] = begin[nodes] + np.maximum(whole_ns(usual_ns), 1)
    company = np.zeros(len(graph))
    queue = graph.facts.queue
    for of_link in (links.owner[rows] for rows in GroupBy(links.ids)):
        for group in np.unique(queue[of_link]).tolist():
            mine, others = of_link[queue[of_link] == group], of_link[queue[of_link] != group]
            mine = mine[asked[mine]]
            inside = TimeSet.of(begin[others], graph.end_ns[others]).within(begin[mine], until[mine])
            company[mine] = np.maximum(company[mine], inside / (until[mine] - begin[mine]))
    return company[nodes]


def measured_alone(graph: Graph, links: Links, unknowns: Unknowns) -> Graph:
    """Return the graph with transfers as long as they would have been alone."""
    fixed = _fixed_ns(Scenario.of(graph, unknowns), links)
    moving = _levelled_ns(graph, links, links.alone_ns(graph.begin_ns + fixed, graph.end_ns))
    return graph.with_work(np.where(links.users, fixed + moving, graph.work_ns))


def sharing_links(scenario: Scenario, kinds: frozenset[StallKind]) -> Scenario:
    """Return a scenario whose transfers have the lengths that they have alone, and share links of these kinds."""
    links = Links.of(scenario.graph, kinds)
    if links is None:
        return scenario
    return replace(scenario, links=links, fixed=_fixed_ns(scenario, links).astype(np.float64))


def _levelled_ns(graph: Graph, links: Links, alone_ns: Int64) -> Int64:
    """Level the lengths alone of transfers of one sort that moved together without a break.

    Each need not have got the same part of a link: the first one may have filled the link's queue, so that it seems
    quicker alone and the other one slower. What all of them got together is known.
    """
    owner = links.owner
    order = order_by(links.ids, graph.begin_ns[owner])
    owner, link = owner[order], links.ids[order]
    # To take the latest end so far for each link by itself, moments become numbers that ascend from link to link.
    place = GroupBy(np.concatenate([graph.begin_ns[owner], graph.end_ns[owner]])).number
    begin, end = np.split(place + np.tile(link.astype(np.int64) * (len(place) + 1), 2), 2)
    latest = np.maximum.accumulate(end)
    periods = GroupBy(np.cumsum(np.append(True, begin[1:] >= latest[:-1])))
    usual = _quantiles(alone_ns[owner], _sorts(graph, owner), 1 / 2)
    spent, wanted = periods.sum(alone_ns[owner]), periods.sum(usual)
    levelled = usual * spent[periods.number] / np.maximum(wanted, 1.0)[periods.number]
    by_node = GroupBy.numbered(owner, len(graph))
    return whole_ns(by_node.sum(levelled) / np.maximum(by_node.sizes, 1))


def _fixed_ns(scenario: Scenario, links: Links) -> Int64:
    """Return the latency of the transfers that use links, 0 for other nodes."""
    fixed, users = np.zeros(len(scenario.graph), dtype=np.int64), links.users
    for kind in links.kinds:
        fixed += whole_ns(latency_ns(scenario, users & (scenario.graph.kind == kind)))
    return fixed


def moving_ns(scenario: Scenario) -> Int64:
    """Return the time that each node moves data over shared links, 0 for nodes that use none."""
    if scenario.links is None:
        return np.zeros(len(scenario.graph), dtype=np.int64)
    fixed = np.zeros(len(scenario.work)) if scenario.fixed is None else scenario.fixed
    return whole_ns(np.where(scenario.links.users, np.maximum(scenario.work - fixed, 0), 0.0))


def crowded_hosts(
    graph: Graph,
    workers: Callable[[int], float] = float,
    *,
    transfers: bool = False,
    pace: float = 1.0,
    apart: float = 0.0,
) -> dict[str, float]:
    """Return the CPUs of each host on which more threads of the job may want a CPU than there are.

    ``workers``: maps the recorded number of workers of a rank to the number that counts. ``transfers``: count the
    thread of each rank that moves its messages as well. ``pace``: steps in the time of one: what the job does in each
    step outside the nodes of the graph takes this many times the CPUs. ``apart``: as in
    :func:`cpus_left`.
    """
    facts = graph.facts
    if facts is None:
        return {}
    wanted: dict[str, float] = {}
    for (host, present), ranks in graph.ranks_by_workers.items():
        wanted[host] = wanted.get(host, 0.0) + ranks * (1 + transfers + workers(present))
    left = {
        host: cpus - (pace - 1) * facts.cpus_outside_nodes.get(host, 0.0)
        for host, cpus in cpus_left(graph, apart).items()
    }
    left = {host: max(cpus, POLICY.least_left_ratio * facts.cpus[host]) for host, cpus in left.items()}
    return {host: cpus for host, cpus in left.items() if 0 < cpus < wanted.get(host, 0.0) - POLICY.used_by_others_cpus}


def cpus_left(graph: Graph, apart: float) -> dict[str, float]:
    """Return the CPUs of each host that are left for the nodes of a graph.

    ``apart``: part of what the job does outside its nodes that no node waits for, as a thread of the job that runs
    while the step thread waits for it.
    """
    if graph.facts is None:
        return {}
    return {
        host: cpus + apart * graph.facts.cpus_outside_nodes.get(host, 0.0) for host, cpus in graph.facts.cpus.items()
    }


def replayed(scenario: Scenario) -> Replayed:
    """Replay a scenario; transfers that meet on a shared link slow each other down."""
    result, links = scenario.replay(), scenario.links
    if links is None or not links.met(result.end_ns - moving_ns(scenario), result.end_ns):
        return result
    return shared(scenario, {})


def shared(scenario: Scenario, cpus: dict[str, float]) -> Replayed:
    """Replay a scenario whose work shares links, and the CPUs of its hosts as a fair scheduler shares them.

    Batches and computation of step threads need CPUs; the time for which they waited for one when they were measured is
    taken away first. What transfers need of the CPUs is unknown and left out.

    ``scenario``: of a graph with facts. ``cpus``: by host; other hosts have enough.
    """
    graph, facts = scenario.graph, scenario.graph.facts
    assert facts is not None
    host = np.full(len(graph), -1, dtype=np.int32)
    for number, name in enumerate(cpus):
        host[np.isin(graph.rank, [rank for rank, of in facts.host_of.items() if of == name])] = number
    grown = scenario.work / np.maximum(graph.work_ns, 1)
    known = (host >= 0) & (facts.cpu_ns >= 0) & (graph.is_batch | graph.is_thread)
    queued = np.where(known, np.maximum(facts.queued_ns, 0) * grown, 0.0)
    alone = np.maximum(scenario.work - queued, 0.0)
    busy = np.minimum(np.where(known, facts.cpu_ns * grown, 0.0), alone)
    none = np.empty(0, dtype=np.int32)
    first, links = none, none
    if scenario.links is not None:
        first, links = scenario.links.first, scenario.links.ids
        busy = np.where(scenario.links.users, moving_ns(scenario), busy)
    begin, end, binding = graph.plan.replay_shared(
        graph.release_ns,
        graph.gap_ns + whole_ns(alone),
        whole_ns(scenario.lag),
        whole_ns(busy),
        host,
        np.array(list(cpus.values()), dtype=np.float64),
        first,
        links,
    )
    return Replayed(begin, end, binding)
