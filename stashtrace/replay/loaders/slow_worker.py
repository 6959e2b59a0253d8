"""Workers of one rank that take longer for their batches than the others do.

    worker 0  [0]   [2]   [4]         does worker 1 take long, or do the odd batches? With three workers the odd batches
    worker 1  [=== 1 ===][=== 3 ===]  are shared out among all of them, but a slow worker stays slow

A recording does not say which: workers take their batches in turn. So both count where the number of workers changes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from stashtrace.analysis.graph import Graph
from stashtrace.analysis.intervals import Bools, Floats, Int64, int64
from stashtrace.errors import MissingDataError
from stashtrace.replay.changes import Change
from stashtrace.replay.loaders.passes import Passes
from stashtrace.replay.policy import POLICY
from stashtrace.replay.scenario import Scenario
from stashtrace.schema.groupby import GroupBy


@dataclass(frozen=True)
class WorkerSpeeds:
    """How long the batches of each worker of each rank take."""

    passes: Passes
    #: By batch of ``passes``: number of its worker.
    number: Int64
    #: Batches by rank and number.
    makers: GroupBy
    #: By maker: its mean batch, and the median of the other makers' means of its rank.
    mean_ns: Floats
    others_ns: Floats
    #: By maker: its batches take clearly longer, or clearly shorter, than those of the others.
    differs: Bools

    @classmethod
    def of(cls, graph: Graph, work: Floats) -> WorkerSpeeds:
        """Compare the workers of each rank by these lengths of nodes; first batches of new workers do not count."""
        assert graph.facts is not None
        passes = Passes.of(graph, graph.facts)
        number, took = passes.worker_numbers(graph), work[passes.nodes]
        makers = GroupBy(graph.rank[passes.nodes], number)
        first = np.zeros(len(number), dtype=bool)
        first[GroupBy(graph.process_id[passes.nodes]).first] = True
        enough = makers.count(~first) >= POLICY.fewest_batches_count
        chosen = np.where(enough[makers.number], ~first, True)
        count = makers.count(chosen)
        mean = makers.sum(took, chosen) / np.maximum(count, 1)
        variance = (
            makers.sum((took - mean[makers.number]) ** 2, chosen) / np.maximum(count - 1, 1) / np.maximum(count, 1)
        )
        others, of_others = _of_others(GroupBy(makers.keys[0]), enough, mean, variance)
        error = np.where(np.isnan(others), 0.0, np.sqrt(variance + of_others))
        others = np.where(np.isnan(others), mean, others)
        apart = np.abs(mean - others)
        differs = (
            enough
            & (apart > POLICY.worker_differs_errors * error)
            & (apart > POLICY.worker_differs_ratio * np.minimum(mean, others))
        )
        return cls(passes, number, makers, mean, others, differs)

    @property
    def is_slow(self) -> Bools:
        """Mask of the makers whose batches take clearly longer than those of the others."""
        return np.asarray(self.differs & (self.mean_ns > self.others_ns))


def _of_others(ranks: GroupBy, enough: Bools, mean: Floats, variance: Floats) -> tuple[Floats, Floats]:
    """Return, for each maker, the median of the means and the mean variance of the others of its rank; NaN without any.

    ``ranks``: makers by rank; all ranks with as many of them are compared at once. ``enough``: makers that count.
    """
    median, spread = np.full(len(mean), np.nan), np.full(len(mean), np.nan)
    for count in np.unique(ranks.sizes).tolist():
        chosen = ranks.order[(ranks.bounds[:-1][ranks.sizes == count])[:, None] + np.arange(count)]
        for place in range(count):
            rest = np.delete(chosen, place, axis=1)
            known = enough[rest].sum(axis=1)
            some, known = known > 0, known[known > 0]
            rest, maker = rest[some], chosen[some, place]
            ordered = np.sort(np.where(enough[rest], mean[rest], np.inf), axis=1)
            rows = np.arange(len(rest))
            median[maker] = (ordered[rows, (known - 1) // 2] + ordered[rows, known // 2]) / 2
            spread[maker] = np.where(enough[rest], variance[rest], 0.0).sum(axis=1) / known
    return median, spread


def worker_numbers(graph: Graph) -> Int64:
    """Return the number of the worker that made each batch, as DataLoader counts them; -1 for other nodes."""
    numbers = np.full(len(graph), -1, dtype=np.int64)
    if graph.facts is not None:
        passes = Passes.of(graph, graph.facts)
        numbers[passes.nodes] = passes.worker_numbers(graph)
    return numbers


def workers_differ(graph: Graph) -> bool:
    """Return True if a worker of a rank is clearly slower or quicker than the others."""
    if graph.facts is None or not graph.is_batch.any():
        return False
    return bool(WorkerSpeeds.of(graph, graph.work_ns.astype(np.float64)).differs.any())


def require_slow_worker(graph: Graph, change: Change) -> None:
    """Check that a worker is slower than the others of its rank. Raises MissingDataError if none is."""
    has_batches = graph.facts is not None and graph.is_batch.any()
    if has_batches and WorkerSpeeds.of(graph, graph.work_ns.astype(np.float64)).is_slow.any():
        return
    raise MissingDataError(
        f"{change}: no worker of this run clearly takes longer for its batches than the others of its rank",
        hint="prep=x0.5 makes the batches of all workers faster",
    )


def without_slow_workers(scenario: Scenario) -> Scenario:
    """Let the batches of slow workers take as long as those of the others of their rank."""
    speeds = WorkerSpeeds.of(scenario.graph, scenario.work)
    ratio = np.divide(speeds.others_ns, speeds.mean_ns, out=np.ones_like(speeds.mean_ns), where=speeds.is_slow)
    work, fetch = scenario.work.copy(), scenario.fetch.copy()
    for column in (work, fetch):
        column[speeds.passes.nodes] *= ratio[speeds.makers.number]
    return replace(scenario, work=work, fetch=fetch)


def batches_by_worker(scenario: Scenario, wanted: int, *, quick: bool) -> Int64:
    """Return for each node the batch that it takes as long as, where slowness is a worker's own; else the node itself.

    Workers that stay keep their speed. With more of them the new ones are as quick as the quickest or as slow as the
    slowest one; with fewer the slowest go, or the quickest.

    ``wanted``: workers of each rank. ``quick``: whether new workers are quick, and those that stay.
    """
    graph = scenario.graph
    like: Int64 = int64(np.arange(len(graph)))
    speeds = WorkerSpeeds.of(graph, scenario.work)
    passes = speeds.passes
    batches, makers = GroupBy(graph.rank[passes.nodes]), GroupBy(speeds.makers.keys[0])
    for rows, of_rank in zip(batches, makers, strict=True):
        if not speeds.differs[of_rank].any():
            continue
        by_speed = of_rank[np.argsort(speeds.mean_ns[of_rank], kind="stable")]
        best_first = by_speed if quick else by_speed[::-1]
        added = np.repeat(best_first[:1], max(wanted - len(of_rank), 0))
        stand_for = speeds.makers.keys[1][np.append(np.sort(best_first[:wanted]), added)]
        as_worker = stand_for[passes.position[rows] % wanted]
        like[passes.nodes[rows]] = passes.nodes[_at_that_time(passes, speeds.number, rows, as_worker)]
    return like


def _at_that_time(passes: Passes, number: Int64, rows: Int64, worker: Int64) -> Int64:
    """Return the last batch in the same pass, up to each one, of the worker of a number; its first where there is none.

    ``number``: by batch of ``passes``: number of its worker. ``rows``: batches in order. ``worker``: for each, the
    number of a worker.
    """
    found: Int64 = rows.copy()
    for one in np.unique(worker).tolist():
        asked = np.flatnonzero(worker == one)
        made = rows[number[rows] == one]
        at = np.searchsorted(made, rows[asked], side="right") - 1
        before, after = np.append(made, 0)[at], np.append(made, 0)[np.minimum(at + 1, len(made) - 1)]
        start = passes.start[rows[asked]]
        in_pass = (at >= 0) & (passes.start[before] == start)
        found[asked] = np.where(in_pass, before, np.where(passes.start[after] == start, after, rows[asked]))
    return found
