"""critical_path, critical_share, slack: what the length of the run was made of, over all ranks.

    graph -> Course (what waited for what last) -> Pieces (cut by names, then by steps) -> stretches -> shares

A step here is the job's: it lasts from the moment at which the last rank ended the step before to the moment at which
the last rank ended this one. So the stretches of a step add up to it without a gap.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.graph.batch_nodes import storage_ns
from stashtrace.analysis.graph.build import build
from stashtrace.analysis.graph.critical_path import Course, Pieces, clocks_of, rivals
from stashtrace.analysis.graph.node_names import named
from stashtrace.analysis.graph.work_graph import Graph, Resource
from stashtrace.analysis.intervals import Int64
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.schema import columns as col
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.kinds import StallKind
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

_RANK = col.rank("rank", "global rank; -1 for transfers, which are all members'", missing=-1)
_RESOURCE = col.word("resource", "what it occupied: step_thread, worker, transfer, ...; empty: nothing, as in gaps")
_KIND = col.word("kind", "StallKind in lower case; of gaps and delays other, launch or sync")
_NAME = col.word(
    "name", "function or phase, blocking call, worker, operation and its number in the step; gap; else the edge"
)
CRITICAL_PATH = col.schema(
    "critical_path",
    "The critical path over all ranks, first stretch first; each begins where the one before ends",
    col.number("order", "number of the stretch, from 0"),
    col.number("step", "the job's step: from the moment that its last rank ended the one before to that of this one"),
    _RANK,
    _RESOURCE,
    _KIND,
    _NAME,
    *col.INTERVAL,
    col.ns("held_ns", "time for which it holds the path; those of a step sum to the length of the step"),
    col.ns("fetch_ns", "of a batch: its maker was blocked in storage; above half of it the kind is fetch"),
    col.number("ambiguous", "1 if another path is as long within the error of the clocks"),
    col.rank("rival_rank", "if so: rank of the work on that path, -1 if it is a transfer or there is none", missing=-1),
    col.word("rival_kind", "if so: its kind; empty if there is none"),
    col.ns("rival_slack_ns", "if so: by how much that path is shorter as measured, -1 if there is none", missing=-1),
)
CRITICAL_SHARE = col.schema(
    "critical_share",
    "Share of the critical path over the counted steps, the largest first",
    _RANK,
    _RESOURCE,
    _KIND,
    _NAME,
    col.real("share_ratio", "mean over the counted steps of its part of the step; all rows sum to 1"),
    col.real("spread_ratio", "standard deviation of that part from step to step"),
    col.real("ambiguous_ratio", "the part of share_ratio in which another path is as long, as in critical_path"),
    col.ns("held_ns", "time for which it holds the path in all counted steps"),
    col.number("path_steps_count", "counted steps in which it is on the path"),
    col.number("steps_count", "counted steps"),
)
SLACK = col.schema(
    "slack",
    "By how much each piece of work could end later and the run end no later",
    _RANK,
    col.number("step", "ordinal; of batches and transfers, the job's step in which they begin"),
    _RESOURCE,
    _KIND,
    col.refers("process_id", "processes.process_id", "-1 for transfers", missing=-1, detail=6),
    *col.INTERVAL,
    col.ns(
        "slack_ns", "0 on the critical path, -1 if nothing that the end of the run waits for waits for it", missing=-1
    ),
    col.number("critical", "1 if it is on the critical path"),
)


#: Resource of gaps and of lags that belong to no node.
_NOTHING = -1
_IDENTITY = ("rank", "resource", "kind", "name")


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """The critical path of a run."""

    #: ``critical_path``.
    stretches: Table
    #: Steps that shares are made of.
    counted_steps: Int64

    @classmethod
    def of(cls, trace: Trace, graph: Graph) -> CriticalPath:
        """Find the path of a graph that was built from this trace, at the measured times.

        Raises MissingDataError if no step of it ends.
        """
        course = Course.of(graph)
        return cls(_stretches(TraceIndex(trace), course), course.counted_steps)

    @property
    def divided(self) -> Table:
        """Stretches, with batches as two rows each: the time blocked in storage, and the rest."""
        fetched = np.flatnonzero(self.stretches["fetch_ns"] > 0)
        read = self.stretches.take(fetched)
        kind, rest = self.stretches["kind"].copy(), self.stretches["held_ns"] - self.stretches["fetch_ns"]
        kind[fetched] = StallKind.PREP.name.lower()
        fetch = np.full(len(read), StallKind.FETCH.name.lower())
        parts = [self.stretches.replace(kind=kind, held_ns=rest), read.replace(kind=fetch, held_ns=read["fetch_ns"])]
        whole = Table.concat(CRITICAL_PATH, parts)
        return whole.take(whole["held_ns"] > 0)

    @property
    def shares(self) -> Table:
        """``critical_share``."""
        divided = self.divided
        chosen = divided.take(np.isin(divided["step"], self.counted_steps))
        if not len(chosen):
            return Table.empty(CRITICAL_SHARE)
        groups, steps = GroupBy(*(chosen[name] for name in _IDENTITY)), GroupBy(chosen["step"])
        count = len(steps)
        held = chosen["held_ns"].astype(np.float64)
        part = held / steps.sum(held)[steps.number]
        # A step may hold several stretches of a group.
        pairs = GroupBy(groups.number, steps.number)
        of_step, of_group = pairs.sum(part), GroupBy(pairs.keys[0])
        mean = of_group.sum(of_step) / count
        # In a step without it the part of a group is 0.
        present = of_group.sizes
        variance = of_group.sum((of_step - mean[of_group.number]) ** 2) + (count - present) * mean**2
        ambiguous = groups.sum(part * chosen["ambiguous"]) / count
        order = np.argsort(-mean, kind="stable")
        return Table(
            CRITICAL_SHARE,
            {
                **{name: chosen[name][groups.first][order] for name in _IDENTITY},
                "share_ratio": mean[order],
                "spread_ratio": np.sqrt(variance / count)[order],
                "ambiguous_ratio": ambiguous[order],
                "held_ns": groups.sum(chosen["held_ns"])[order],
                "path_steps_count": present[order],
                "steps_count": np.full(len(groups), count),
            },
        )


def critical_path(trace: Trace) -> Table:
    """Follow the run from its end back along what each piece of work waited for last.

    Times are those of the timeline. Only shorter work on this path makes the run shorter. During
    ``ambiguous`` stretches another path ran that is equally long within the error of the clocks. Columns: table
    ``critical_path`` of ``docs/reference/tables.md``.

    Parameters
    ----------
    trace : Trace
        Needs steps of which a graph can be built.

    Raises
    ------
    MissingDataError
        If no graph can be built; the message says why.
    """
    return CriticalPath.of(trace, build(trace, reads=False)).stretches


def critical_share(trace: Trace) -> Table:
    """Sum the critical path by rank, kind and name, as shares of its counted steps.

    A share is a ratio of times, so it can be compared between ranks and runs. Clocks matter where the path turns from
    one rank to another: the rank that came last is chosen, and where the error of the clocks leaves that open the time
    is in ``ambiguous_ratio`` as well. A stretch of a thread is as long as its clock says. Columns: table
    ``critical_share`` of ``docs/reference/tables.md``.

    Parameters
    ----------
    trace : Trace
        Needs steps of which a graph can be built.

    Raises
    ------
    MissingDataError
        If no graph can be built; the message says why.
    """
    return CriticalPath.of(trace, build(trace, reads=False)).shares


def slack(trace: Trace) -> Table:
    """Return by how much each piece of work could end later without the last step of the run ending later.

    Everything else is taken to be as it was. Pieces of one chain share their slack: it can be used up once. Columns:
    table ``slack`` of ``docs/reference/tables.md``.

    Parameters
    ----------
    trace : Trace
        Needs steps of which a graph can be built.

    Raises
    ------
    MissingDataError
        If no graph can be built; the message says why.
    """
    graph = build(trace, reads=False)
    course = Course.of(graph)
    critical = np.zeros(len(graph), dtype=np.int64)
    critical[course.path] = 1
    step = np.where(graph.step >= 0, graph.step, _step_at(course, graph.begin_ns))
    columns: dict[str, npt.NDArray[Any]] = {
        name: getattr(graph, name) for name in ("rank", "process_id", "begin_ns", "end_ns")
    }
    return Table(
        SLACK,
        {
            **columns,
            "step": step,
            "resource": words(Resource, graph.resource),
            "kind": words(StallKind, graph.kind),
            "slack_ns": course.slack_ns,
            "critical": critical,
        },
    )


def words(kinds: type[IntEnum], values: Int64) -> npt.NDArray[np.str_]:
    """Return the names of the values of an enum in lower case; empty for other values."""
    names = {int(kind): kind.name.lower() for kind in kinds}
    texts = np.array([names.get(value, "") for value in range(max(kinds) + 2)])  # the last one is empty
    return texts[np.where((values >= 0) & (values <= max(kinds)), values, -1)]


def _step_at(course: Course, moments: Int64) -> Int64:
    """Return the job's step at each moment; behind the last step, the last."""
    steps, until = course.steps
    return steps[np.minimum(np.searchsorted(until, moments, side="right"), len(steps) - 1)]


def _stretches(index: TraceIndex, course: Course) -> Table:
    """Make one row of consecutive pieces of one step, rank, resource, kind and name."""
    graph = course.graph
    whole = named(index, graph, Pieces.of(course))
    pieces, former = whole.pieces.cut(course.steps[1])
    kind, name = whole.kind[former], whole.name[former]
    rank = graph.rank[pieces.node]
    resource = np.where(whole.occupies[former], graph.resource[pieces.node], _NOTHING)
    step = _step_at(course, pieces.begin_ns)
    overlaps = rivals(course, pieces, clocks_of(index, graph))
    ambiguous = overlaps.ambiguous(pieces)
    rows = GroupBy.runs(step, rank, resource, kind, name, ambiguous)
    first = rows.first
    begin, end = pieces.begin_ns[first], np.append(pieces.begin_ns[first[1:]], pieces.end_ns[-1:])
    batch = (resource[first] == Resource.WORKER) & (kind[first] == StallKind.PREP)
    fetch = storage_ns(index, np.where(batch, graph.process_id[pieces.node[first]], -1), begin, end)
    kinds = np.where(2 * fetch > end - begin, int(StallKind.FETCH), kind[first])

    count = len(first)
    rival_rank, rival_kind, rival_slack = (np.full(count, -1, dtype=np.int64) for _ in range(3))
    mine = ambiguous[overlaps.piece]
    node, shared = overlaps.node[mine], overlaps.shared_ns[mine]
    rivals_of_row = GroupBy(rows.number[overlaps.piece[mine]], graph.rank[node], graph.kind[node])
    row, other_rank, other_kind = rivals_of_row.keys
    chosen = GroupBy(row).argmax(rivals_of_row.sum(shared))  # the one that ran at the same time longest
    rival_rank[row[chosen]], rival_kind[row[chosen]] = other_rank[chosen], other_kind[chosen]
    rival_slack[row[chosen]] = rivals_of_row.min(course.slack_ns[node])[chosen]
    texts = np.array(whole.texts)
    return Table(
        CRITICAL_PATH,
        {
            "order": np.arange(count),
            "step": step[first],
            "rank": rank[first],
            "resource": words(Resource, resource[first]),
            "kind": words(StallKind, kinds),
            "name": texts[name[first]],
            "begin_ns": begin,
            "end_ns": end,
            "held_ns": end - begin,
            "fetch_ns": fetch,
            "ambiguous": ambiguous[first],
            "rival_rank": rival_rank,
            "rival_kind": words(StallKind, rival_kind),
            "rival_slack_ns": rival_slack,
        },
    )
