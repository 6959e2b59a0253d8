"""Replays in which processes share CPUs and transfers share links, so that they slow each other down."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from stashtrace.analysis.graph import Graph, Replayed
from stashtrace.replay.links import moving_ns
from stashtrace.replay.scenario import Scenario, whole_ns

#: Other processes that use less than this of a CPU slow nothing down.
_USED_BY_OTHERS = 0.25
#: What a job does beside its nodes never takes more of the CPUs that are left for these.
_LEAST_LEFT = 0.25


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
    step beside the nodes of the graph takes so many times as much of the CPUs. ``apart``: as of :func:`cpus_left`.
    """
    facts = graph.facts
    if facts is None:
        return {}
    wanted: dict[str, float] = {}
    for (host, present), ranks in graph.ranks_by_workers.items():
        wanted[host] = wanted.get(host, 0.0) + ranks * (1 + transfers + workers(present))
    left = {host: cpus - (pace - 1) * facts.beside.get(host, 0.0) for host, cpus in cpus_left(graph, apart).items()}
    left = {host: max(cpus, _LEAST_LEFT * facts.cpus[host]) for host, cpus in left.items()}
    return {host: cpus for host, cpus in left.items() if 0 < cpus < wanted.get(host, 0.0) - _USED_BY_OTHERS}


def cpus_left(graph: Graph, apart: float) -> dict[str, float]:
    """Return the CPUs of each host that are left for the nodes of a graph.

    ``apart``: part of what the job does beside its nodes that no node waits for, as a thread of the job that runs while
    the step thread waits for it.
    """
    if graph.facts is None:
        return {}
    return {host: cpus + apart * graph.facts.beside.get(host, 0.0) for host, cpus in graph.facts.cpus.items()}


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
