"""Build the graph of a run.

A rank's time is cut as its budget is: what its thread or its streams did is a node, what it waited for is an edge.
Batches and transfers are nodes of their own. Loops run over ranks, workers, streams and groups, never over events.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stashtrace.analysis.graph import device_nodes, event_nodes, host_nodes
from stashtrace.analysis.graph.graph_parts import Parts
from stashtrace.analysis.graph.node_facts import facts_of
from stashtrace.analysis.graph.pipeline_graph import build_pipeline, is_pipeline
from stashtrace.analysis.graph.transfer_nodes import transfers
from stashtrace.analysis.graph.work_graph import Graph
from stashtrace.analysis.intervals import TimeSet
from stashtrace.analysis.stalls.budget import device_windows
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.analysis.steps.steps import ranks_and_steps
from stashtrace.analysis.steps.threads import StepThread, threads_without_steps
from stashtrace.analysis.stragglers.pipeline_stages import stages_of
from stashtrace.errors import MissingDataError
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace


def build(trace: Trace, *, reads: bool = True) -> Graph:
    """Build the graph of all steps of all ranks.

    Parameters
    ----------
    trace : Trace
        Needs steps.
    reads : bool
        Estimate from all reads how long those that waited for storage would have taken from memory. This costs a pass
        over the calls of the run; without it, what-if answers about storage are wider intervals.

    Raises
    ------
    MissingDataError
        If no rank has steps.
    """
    index = TraceIndex(trace)
    if is_pipeline(trace):
        return build_pipeline(index)
    parts = Parts()
    ranks = [(thread, own) for thread, own in ranks_and_steps(index.origin, index.steps) if len(own)]
    if not ranks:
        raise MissingDataError("no rank has a step")
    shared = transfers(index, parts)
    cut = [(thread, *_with_kernels(index, thread, own.sort_by("begin_ns"))) for thread, own in ranks]
    origin_ns = min(int(own["begin_ns"][0]) for _, own, _ in cut)
    for thread, own, has_kernels in cut:
        if has_kernels:
            device_nodes.add_rank(index, thread, own, shared, origin_ns, parts)
        elif (own["clock_code"] != 0).any():
            event_nodes.add_rank(index, thread, own, shared, parts)
        else:
            host_nodes.add_rank(index, thread, own, TimeSet.of(own["begin_ns"][:1], own["end_ns"][-1:]), shared, parts)
    last_ns = max(int(own["end_ns"][-1]) for _, own, _ in cut)
    for thread in threads_without_steps(index.origin):  # waits of others may lead through it
        life = TimeSet.of([max(thread.begin_ns, origin_ns)], [min(thread.end_ns, last_ns)])
        host_nodes.add_rank(index, thread, index.steps.take(slice(0)), life, shared, parts)
    stages = stages_of(trace, index.steps)
    graph = _counting_steps_with_peers(parts.graph())
    graph = replace(graph, stage_of=stages.of_rank if stages is not None else {})
    return replace(graph, facts=facts_of(index, [(thread, own) for thread, own, _ in cut], graph, reads=reads))


def _counting_steps_with_peers(graph: Graph) -> Graph:
    """Return a graph that counts no step of one rank alone, if others are of several: for whom it waits is unknown."""
    steps = GroupBy(graph.ends_step)
    counted = graph.ends_counted & (steps.sizes > 1)[steps.number]
    return replace(graph, ends_counted=counted) if counted.any() else graph


def _with_kernels(index: TraceIndex, thread: StepThread, steps: Table) -> tuple[Table, bool]:
    """Return the steps of which every kernel is known and True; if there are none, all steps and False."""
    time = device_windows(index, thread).get("kernels")
    if time is None:
        return steps, False
    inside = time.within(steps["begin_ns"], steps["end_ns"]) == steps["end_ns"] - steps["begin_ns"]
    return (steps.take(np.flatnonzero(inside)), True) if inside.any() else (steps, False)
