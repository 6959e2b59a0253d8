"""slowdown: how much faster a job would be if all ranks were equal, and what each cause contributes.

    ideal ---- only this cause as it was ---------------------- as it was
    ideal --------------------- all but this cause as it was -- as it was

The job is replayed with all work as it was, with all work ideal, and for each cause twice: with only its work as it was
(its slow-down), and with only its work ideal (what it would recover). Time that no edge explains is left out of these
replays. After "Understanding Stragglers in Large Model Training Using What-if Analysis" (Lin et al., OSDI 2025).

In a pipeline, whose operations have names, peers are all operations of one name, of all ranks, stages, steps and
micro-batches, as in that paper. In other runs, peers are the work of one kind that the members of a collective do
before they enter it, and transfers of one size. Stages of a pipeline without such names never do the same at once:
their peers are the work of one kind of all ranks in a step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np

from stashtrace.analysis.graph import EdgeKind, Graph, PipelineGraph, Replayed, Resource, build
from stashtrace.analysis.intervals import Bools, Floats, Int64, int64
from stashtrace.errors import MissingDataError, UsageError
from stashtrace.replay.policy import POLICY
from stashtrace.schema import columns as col
from stashtrace.schema.groupby import GroupBy, RowsBy, order_by
from stashtrace.schema.kinds import StallKind
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace
from stashtrace.text.units import ranks_text

SLOWDOWN = col.schema(
    "slowdown",
    "How much faster steps of the job would be if all ranks were equal, and what each cause contributes",
    col.word("cause", "all, gap, rank, slowest_ranks, stage, replica or operation; gap: time that no edge explains"),
    col.word("name", "rank, ranks, stage, data-parallel number, operation or StallKind; empty for all and gap"),
    col.ns("step_ns", "mean step of the job by the replay without gaps; the same in each row"),
    col.ns("ideal_step_ns", "the same with all ranks equal; the same in each row"),
    col.ns("only_step_ns", "if all were equal but for this cause"),
    col.ns("fixed_step_ns", "if this cause alone were like its peers"),
    col.real("slowdown_ratio", "only_step_ns by ideal_step_ns: how much slower this cause alone makes the job"),
    col.real(
        "recovered_ratio",
        "(step_ns - fixed_step_ns) by (step_ns - ideal_step_ns); -1 if nothing is lost, and for gap",
        missing=-1,
    ),
    col.ns(
        "excess_ns", "work of it in a step beyond that of its peers, negative if it has less; of gap, all", detail=5
    ),
)


#: Both sides of a message are one cause.
_SIDES = ("-send", "-recv")
#: Positions of columns in a row.
_SLOWDOWN, _RECOVERED = SLOWDOWN.names.index("slowdown_ratio"), SLOWDOWN.names.index("recovered_ratio")


def slowdown(trace: Trace, *, center: Center = "mean") -> Table:
    """Replay the job with all ranks equal, and with one rank, stage, replica or operation at a time.

    Work is compared with its peers: in a pipeline all operations of the same name, else the work of one kind that all
    members of a collective do before they enter it. If ranks are equal, each piece takes the mean of its peers
    (transfers the median): the same work, shared evenly. The first row, ``all``, has the slow-down of the job. At most
    64 causes of each kind are listed, those that exceed their peers most. Columns: table ``slowdown`` of
    ``docs/reference/tables.md``.

    Parameters
    ----------
    trace : Trace
        Needs steps.
    center : {"mean", "median"}
        ``median``: each piece of work takes the median of its peers, so that a slow rank is left out.

    Raises
    ------
    MissingDataError
        If no rank has two steps, they have no length without the time that nothing explains, or
        :func:`~stashtrace.analysis.graph.build` has no graph for the run.
    UsageError
        For an unknown center.
    """
    return slowdown_of(build(trace, reads=False), center)


def slowdown_of(graph: Graph, center: Center = "mean", *, least_ratio: float = 0.0) -> Table:
    """Make the ``slowdown`` table of a graph; without causes for a job that is slowed down by less than a ratio.

    Raises MissingDataError as ``slowdown`` does.
    """
    whole = Ideal(graph, center)
    if min(whole.step_ns, whole.ideal_step_ns) <= 0:
        raise MissingDataError(
            "the steps of this run have no length without their gaps, so ranks cannot be compared by their work",
            hint="`stashtrace analyze stalls` shows how much of a step was recorded",
        )
    rows = _rows(whole, causes(whole) if whole.slowdown_ratio >= least_ratio else [])
    rounds = [column.dtype == "i8" for column in SLOWDOWN.columns]
    return Table.from_rows(
        SLOWDOWN, [[round(v) if whole else v for v, whole in zip(row, rounds, strict=True)] for row in rows]
    )


@dataclass(frozen=True)
class Ideal:
    """A graph compared with the one in which all ranks are equal.

    ``center``: see :func:`~stashtrace.replay.slowdown.ideal_work_ns`.
    """

    graph: Graph
    center: Center = "mean"

    @cached_property
    def ideal_work_ns(self) -> Int64:
        """Length of each node if all ranks were equal."""
        return ideal_work_ns(self.graph, self.center)

    @cached_property
    def _steps(self) -> _JobSteps:
        return _JobSteps.of(self.graph)

    @property
    def steps(self) -> Int64:
        """Numbers of the steps that count, in their order."""
        return self._steps.number[self._steps.counted]

    def steps_ns(self, work_ns: Int64, *, gaps: bool = False) -> Int64:
        """Return the length of each step of the job (``steps``) with these lengths of nodes, with or without gaps."""
        graph = self.graph
        # The replay adds the gap of each node to its length.
        return self._steps.lengths(graph, graph.replay(work_ns if gaps else work_ns - graph.gap_ns))

    @cached_property
    def measured_ns(self) -> Int64:
        """Length of each step of the job as measured."""
        graph = self.graph
        binding = np.full(len(graph), -1, dtype=np.int32)
        return self._steps.lengths(graph, Replayed(graph.begin_ns, graph.end_ns, binding))

    @cached_property
    def replayed_ns(self) -> Int64:
        """Length of each step by a replay of the unchanged graph; its difference from ``measured_ns`` is its error."""
        return self.steps_ns(self.graph.work_ns, gaps=True)

    @cached_property
    def step_ns(self) -> float:
        """Mean step with all work as it was, without gaps."""
        return float(self.steps_ns(self.graph.work_ns).mean())

    @cached_property
    def ideal_step_ns(self) -> float:
        """Mean step with all ranks equal, without gaps."""
        return float(self.steps_ns(self.ideal_work_ns).mean())

    @property
    def slowdown_ratio(self) -> float:
        """S of the study: how many times longer the job's steps are than with all ranks equal."""
        return self.step_ns / max(self.ideal_step_ns, 1.0)

    def only_step_ns(self, chosen: Bools) -> float:
        """Return the mean step if all nodes but the chosen ones were like their peers."""
        return float(self.steps_ns(np.where(chosen, self.graph.work_ns, self.ideal_work_ns)).mean())

    def fixed_step_ns(self, chosen: Bools) -> float:
        """Return the mean step if only the chosen nodes were like their peers."""
        return float(self.steps_ns(np.where(chosen, self.ideal_work_ns, self.graph.work_ns)).mean())

    def recovered_ratio(self, fixed_step_ns: float) -> float:
        """Return the part of the lost time that a step of this length recovers; -1 if nothing is lost."""
        lost = self.step_ns - self.ideal_step_ns
        return (self.step_ns - fixed_step_ns) / lost if lost > POLICY.least_lost_ratio * self.step_ns else -1.0

    @cached_property
    def _counted_nodes(self) -> Bools:
        """Mask of the nodes of counted steps; nodes of no step count by the job's step in which they begin."""
        return self._steps.counted_nodes(self.graph)

    def excess_ns(self, chosen: Bools) -> float:
        """Return by how much the work of the chosen nodes exceeds that of their peers, in a mean step."""
        is_in = chosen & self._counted_nodes
        return float((self.graph.work_ns - self.ideal_work_ns)[is_in].sum()) / len(self.steps)

    @property
    def gap_ns(self) -> float:
        """Time that no edge explains, of all ranks in a mean step."""
        return float(self.graph.gap_ns[self._counted_nodes].sum()) / len(self.steps)


@dataclass(frozen=True, slots=True)
class _JobSteps:
    """Steps of the job: from the last rank's end of the one before to the last rank's end."""

    #: In order.
    number: Int64
    #: Steps that have a length and are not warm-up.
    counted: Bools
    #: Rows of ``graph.ends`` by step, in the same order.
    ends: GroupBy
    #: Time before each step that belongs to no step.
    idle_ns: Int64
    #: When the last rank had ended each step, as measured.
    ended_ns: Int64
    #: It is the only step: it begins when the first rank begins it.
    alone: bool

    @classmethod
    def of(cls, graph: Graph) -> _JobSteps:
        by_number = GroupBy(graph.ends_step)
        count = len(by_number)
        order = np.argsort(by_number.max(graph.end_ns[graph.ends] + graph.ends_lag_ns), kind="stable")
        place = np.empty(count, dtype=np.int64)
        place[order] = np.arange(count)
        ends = GroupBy.numbered(place[by_number.number], count)
        ended = ends.max(graph.end_ns[graph.ends] + graph.ends_lag_ns)
        counted = ends.any(graph.ends_counted)
        idle = np.zeros(count, dtype=np.int64)
        known = len(graph.ends_begin_ns) > 0
        if known:
            idle[1:] = np.maximum(ends.min(graph.ends_begin_ns)[1:] - ended[:-1], 0)
        alone = known and count == 1
        if count and not alone:
            counted[0] = False
            if not counted.any():
                counted[1:] = True
        if not counted.any():
            raise MissingDataError(
                "no rank has two steps", hint="record two steps or more: a step lasts from the end of the step before"
            )
        return cls(by_number.values[order], counted, ends, idle, ended, alone)

    def lengths(self, graph: Graph, replayed: Replayed) -> Int64:
        """Return the lengths of the counted steps."""
        ended = self.ends.max(replayed.end_ns[graph.ends] + graph.ends_lag_ns)
        if self.alone:
            began = graph.ends_begin_ns
            if len(graph.ends_before):
                began = np.where(graph.ends_before >= 0, replayed.end_ns[graph.ends_before], began)
            return int64(ended - began.min())
        lengths_ns: Int64 = (np.diff(ended, prepend=0) - self.idle_ns)[self.counted]
        return lengths_ns

    def counted_nodes(self, graph: Graph) -> Bools:
        """Return the mask of nodes of counted steps; batches and transfers belong to the step in which they begin."""
        at = np.searchsorted(self.ended_ns, graph.begin_ns, side="right")
        by_time = np.append(self.counted, False)[at]
        return np.where(graph.step >= 0, np.isin(graph.step, self.number[self.counted]), by_time)


@dataclass(frozen=True, slots=True)
class Cause:
    """Nodes that may make a job slow; ``kind`` and ``name`` are those of the table."""

    kind: str
    name: str
    chosen: Bools


def _rows(whole: Ideal, asked: Sequence[Cause]) -> list[tuple[Any, ...]]:
    """Make the rows of the ``slowdown`` table: the job, then these causes, those that recover most first."""
    graph = whole.graph
    everything = np.ones(len(graph), dtype=bool)
    rows = [_row(whole, Cause("all", "", everything), whole.step_ns, whole.ideal_step_ns)]
    with_gaps = float(whole.steps_ns(whole.ideal_work_ns, gaps=True).mean())
    only = with_gaps / max(whole.ideal_step_ns, 1.0)
    rows.append(("gap", "", whole.step_ns, whole.ideal_step_ns, with_gaps, whole.step_ns, only, -1.0, whole.gap_ns))
    of_causes = [
        _row(whole, cause, whole.only_step_ns(cause.chosen), whole.fixed_step_ns(cause.chosen)) for cause in asked
    ]
    by_rank = [row for row in of_causes if row[0] == "rank"]
    if len(by_rank) > 1:
        count = math.ceil(POLICY.slowest_ranks_ratio * len(np.unique(graph.rank[graph.rank >= 0])))
        slowest = sorted(by_rank, key=lambda row: -row[_SLOWDOWN])[:count]
        together = ranks_together(graph, sorted(int(row[1]) for row in slowest))
        of_causes.append(
            _row(whole, together, whole.only_step_ns(together.chosen), whole.fixed_step_ns(together.chosen))
        )
    return rows + sorted(of_causes, key=lambda row: (-row[_RECOVERED], -row[_SLOWDOWN]))


def _row(whole: Ideal, cause: Cause, only_ns: float, fixed_ns: float) -> tuple[Any, ...]:
    slower, won = only_ns / max(whole.ideal_step_ns, 1.0), whole.recovered_ratio(fixed_ns)
    times = (whole.step_ns, whole.ideal_step_ns, only_ns, fixed_ns)
    return cause.kind, cause.name, *times, slower, won, whole.excess_ns(cause.chosen)


def ranks_together(graph: Graph, ranks: Sequence[int]) -> Cause:
    """Return all work of some ranks as one cause."""
    return Cause("slowest_ranks", ranks_text(list(ranks)), np.isin(graph.rank, ranks))


def causes(whole: Ideal) -> list[Cause]:
    """Return ranks, stages, replicas and operations; of each kind those that exceed their peers most."""
    graph = whole.graph
    ranks = _distinct(graph.rank[graph.rank >= 0])
    all_causes = _largest(whole, (("rank", str(rank), graph.rank == rank) for rank in ranks))
    places = (("stage", graph.stage_of), ("replica", graph.replica_of)) if isinstance(graph, PipelineGraph) else ()
    for kind, number_of in places:
        numbers = sorted(set(number_of.values()))
        members = [[rank for rank, place in number_of.items() if place == number] for number in numbers]
        all_causes += _largest(
            whole,
            ((kind, str(n), np.isin(graph.rank, them)) for n, them in zip(numbers, members, strict=True)),
        )
    return all_causes + _largest(whole, (("operation", name, chosen) for name, chosen in _operations(graph)))


def _largest(whole: Ideal, candidates: Iterable[tuple[str, str, Bools]]) -> list[Cause]:
    all_causes = [Cause(*candidate) for candidate in candidates]
    if len(all_causes) > POLICY.replayed_causes_count:
        all_causes = sorted(all_causes, key=lambda cause: -whole.excess_ns(cause.chosen))[
            : POLICY.replayed_causes_count
        ]
    return all_causes


def _operations(graph: Graph) -> Iterator[tuple[str, Bools]]:
    """Yield the nodes of each operation, both sides of a message together; without names, of each kind of time."""
    if not isinstance(graph, PipelineGraph):
        works = ~np.isin(graph.resource, (Resource.MEETING, Resource.CHECKPOINT))  # neither is made ideal
        for kind in _distinct(graph.kind[works & (graph.kind >= 0)]):
            yield StallKind(kind).name.lower(), works & (graph.kind == kind)
        return
    names = np.array([_both_sides(name) for name in graph.operations])
    for name in sorted(set(names.tolist())):
        yield name, np.isin(graph.operation, np.flatnonzero(names == name))


def _both_sides(name: str) -> str:
    for side in _SIDES:
        if name.endswith(side):
            return f"{name.removesuffix(side)}{''.join(_SIDES)}"
    return name


def _distinct(values: Int64) -> list[int]:
    distinct: list[int] = np.unique(values).tolist()
    return distinct


#: For work. Transfers always take the median, since their outliers are waits that were not recorded.
Center = Literal["mean", "median"]


def ideal_work_ns(graph: Graph, center: Center = "mean") -> Int64:
    """Return the length of each node if all ranks were equal.

    ``center``: with the mean, the same work is shared evenly; with the median, a slow rank is left out. Returns ns by
    node. Nodes without peers keep their length. Raises UsageError for another center.
    """
    if center not in get_args(Center):
        raise UsageError(f"no center is called {center!r}", hint=f"one of {', '.join(get_args(Center))}")
    work = graph.work_ns.astype(np.float64)
    moves = graph.resource == Resource.TRANSFER
    if isinstance(graph, PipelineGraph):
        named = graph.operation >= 0
        for chosen, center_of in ((named & ~moves, center), (named & moves, "median")):
            rows = np.flatnonzero(chosen)
            peers = GroupBy(graph.operation[rows])
            work[rows] = _center(work[rows], peers, center_of)[peers.number]
    else:
        _threads(graph, work, center)
        rows = np.flatnonzero(graph.resource == Resource.WORKER)
        by_begin = np.argsort(graph.begin_ns[rows], kind="stable")
        nth = np.empty(len(rows), dtype=np.int64)  # batch of its rank
        nth[by_begin] = GroupBy(graph.rank[rows[by_begin]]).position
        peers = GroupBy(nth)
        work[rows] = _center(work[rows], peers, center)[peers.number]
        rows = np.flatnonzero(moves)
        peers = GroupBy(graph.kind[rows], graph.moved_bytes[rows])
        work[rows] = _center(work[rows], peers, "median")[peers.number]
    return np.rint(work).astype(np.int64)


def _threads(graph: Graph, work: Floats, center: Center) -> None:
    """Scale the work of each kind that a rank did before each collective to that of the collective's members."""
    passive = (Resource.TRANSFER, Resource.WORKER, Resource.MEETING, Resource.CHECKPOINT)
    rows = np.flatnonzero((graph.rank >= 0) & ~np.isin(graph.resource, passive))
    if not len(rows):
        return
    before, members = _collectives_ahead(graph, rows)
    # After the last collective a rank's peers are all ranks in the same step.
    ranks = len(np.unique(graph.rank[rows]))
    alone = before < 0
    steps = GroupBy(graph.step[rows[alone]])
    before[alone] = len(members) + steps.number
    members = np.append(members, np.full(len(steps), ranks))
    by_rank = GroupBy(before, graph.resource[rows], graph.kind[rows], graph.rank[rows])
    amount = by_rank.sum(work[rows])
    peers = GroupBy(*by_rank.keys[:3])
    typical = _center(amount, peers, center, members[peers.keys[0]])[peers.number]
    scale = np.divide(typical, amount, out=np.ones_like(amount), where=amount > 0)
    work[rows] *= scale[by_rank.number]


def _collectives_ahead(graph: Graph, rows: Int64) -> tuple[Int64, Int64]:
    """Return the collective that the rank of each of these nodes entered next, -1 if none, and the members of each."""
    if graph.stage_of:
        return np.full(len(rows), -1, dtype=np.int64), np.zeros(0, dtype=np.int64)
    before, transfers = next_transfers(graph, rows)
    source_ranks = graph.rank[graph.source[_entries(graph)]]
    return before, GroupBy(GroupBy(transfers.number, source_ranks).keys[0]).sizes


def _entries(graph: Graph) -> Int64:
    """Return the edges by which ranks enter transfers."""
    return np.flatnonzero((graph.edge_kind == EdgeKind.MEMBER) & (graph.rank[graph.source] >= 0))


def next_transfers(graph: Graph, rows: Int64) -> tuple[Int64, GroupBy]:
    """Find the transfer that the rank of each of these nodes entered next.

    Returns the index of the transfer, -1 if there is none, and the entries by their transfer.
    """
    edges = _entries(graph)
    source, transfers = graph.source[edges], GroupBy(graph.target[edges])
    following, by_rank = np.full(len(rows), -1, dtype=np.int64), RowsBy(graph.rank[source])
    for rank, mine in GroupBy(graph.rank[rows]).items():
        entered = by_rank.rows(rank)
        called, transfer_of = graph.end_ns[source[entered]], transfers.number[entered]
        order = np.argsort(called, kind="stable")
        at = np.searchsorted(called[order], graph.end_ns[rows[mine]], side="left")
        known = at < len(order)
        following[mine[known]] = transfer_of[order[at[known]]]
    return following, transfers


def _center(amount: Floats, peers: GroupBy, center: str, members: Int64 | None = None) -> Floats:
    """Return the mean or median of the amounts of each group of peers; absent members count as 0.

    ``peers``: of the amounts. ``center``: ``mean`` or ``median``. ``members``: members of each group; by default as
    many as amounts.
    """
    present = peers.sizes
    members = present if members is None else np.maximum(members, present)
    if center == "mean":
        return np.asarray(peers.sum(amount) / np.maximum(members, 1))
    ordered = np.append(amount[order_by(peers.number, amount)], 0.0)
    first, absent = peers.bounds[:-1], members - present
    middle = [half - absent for half in ((members - 1) // 2, members // 2)]
    low, high = (np.where(at >= 0, ordered[np.where(at >= 0, first + at, -1)], 0.0) for at in middle)
    centers: Floats = (low + high) / 2
    return centers
