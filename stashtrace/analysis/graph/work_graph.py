"""Graph: nodes of work, edges that say what each one waited for, and the replay of both.

step thread   [ compute ]--.            .->[ compute ]      waits are not nodes: they follow from the edges
transfer                    '->[ ring ]-'
worker        [ batch 3 ][ batch 4 ]----------------------> the step thread takes it
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace._native import graph as native
from stashtrace.analysis.intervals import Bools, Int64
from stashtrace.schema.groupby import GroupBy

Int32 = npt.NDArray[np.int32]
Int8 = npt.NDArray[np.int8]

#: Slack of a node that the end of no step waits for.
NO_SLACK = -1


class Resource(IntEnum):
    """What a node occupies."""

    STEP_THREAD = 0
    WORKER = 1
    TRANSFER = 2
    STREAM = 3  # of a device
    HOST = 4  # threads that launch work on a device
    DEVICE = 5  # timed by events: its compute streams, taken as one
    COMPUTE_STREAM = 8  # of a rank of which operations were recorded, not kernels
    COMMUNICATION_STREAM = 9  # sends, receives and collectives of such a rank that do not hold up its compute stream
    MEETING = 10  # the moment at which the last member of a collective, or the last of all ranks, has arrived
    CHECKPOINT = 11  # a thread that writes a checkpoint while steps go on


class EdgeKind(IntEnum):
    """Why a node cannot begin before another one has ended; the most certain reason first."""

    PROGRAM = 0  # a thread does one thing after the other
    MEMBER = 1  # a collective begins when its last member has entered
    RELEASE = 2  # a thread that waits in a collective goes on when it has ended
    BATCH = 3  # a batch is taken when it is made
    QUEUE = 4  # collectives of one group do not overlap
    PREFETCH = 5  # a worker is asked for a batch when an earlier one is taken
    STREAM = 6  # a stream does one thing after the other
    LAUNCH = 7  # work begins on a device when it has been launched
    SYNC = 8  # the host goes on when the device has done what it was asked for
    ORDER = 9  # work began when that of another stream had ended: it is taken to have waited for it
    START = 10  # a save in the background begins when the step thread has asked for it
    JOIN = 11  # a thread that waits for such a save goes on when that is done


#: Where edges of these kinds lead from several nodes to one, which of them is done last is decided at run time: in a
#: wait for a whole device, and at the end of a step on it. All other edges are fixed.
_DECIDED_TOGETHER = (EdgeKind.STREAM, EdgeKind.SYNC)


@dataclass(frozen=True, slots=True)
class Replayed:
    """When each node begins and ends in a replay, and the edge that it waited for last (-1: none)."""

    begin_ns: Int64
    end_ns: Int64
    binding: Int32


@dataclass(frozen=True)
class Graph:
    """Columns of nodes and edges."""

    #: Of nodes; -1 for transfers and outside of steps.
    rank: Int64
    step: Int64
    #: :class:`Resource` of each node, and the ``StallKind`` of its time in the budget.
    resource: Int64
    kind: Int64
    #: -1 for transfers.
    process_id: Int64
    #: As measured.
    begin_ns: Int64
    end_ns: Int64
    #: Time before the node that no edge explains. Replays keep it.
    gap_ns: Int64
    #: Part of a batch in which its worker was blocked in storage.
    fetch_ns: Int64
    #: Payload of a transfer; -1 for other nodes, and where it is not known.
    moved_bytes: Int64
    #: Row that the node was made of. A transfer has its first row of the sorted ``collectives``, a batch its row among
    #: the fetches, work of a stream its row of ``kernels``, a save in the background its row of ``phases``; else -1.
    row: Int64
    #: Of edges.
    source: Int32
    target: Int32
    edge_kind: Int8
    #: Fixed time between the end of the source and the earliest begin of the target.
    lag_ns: Int64
    #: Node that ends each step of each rank. The step is ``ends_step`` of ``ends_rank``, and it ends ``ends_lag_ns``
    #: after the node.
    ends: Int32
    ends_rank: Int64
    ends_step: Int64
    ends_lag_ns: Int64
    #: Steps that are not warm-up.
    ends_counted: Bools
    #: Transfers that may hold a wait, since a member that was not recorded may have entered later; and time of devices
    #: timed by events that the host may have paced. Empty if there is none.
    doubtful: Bools = field(default_factory=lambda: np.empty(0, dtype=bool))
    #: When these steps began, as measured; empty if unknown.
    ends_begin_ns: Int64 = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    #: Node whose end is the begin of the rank's first step, -1 if there is none; empty if no rank has one.
    ends_before: Int32 = field(default_factory=lambda: np.empty(0, dtype=np.int32))
    #: What the nodes are part of; None if it was not gathered.
    facts: Facts | None = None
    #: Place in its pipeline by rank; empty if the job has none, or it was not looked for.
    stage_of: Mapping[int, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.begin_ns)

    @property
    def work_ns(self) -> Int64:
        """Measured length of each node."""
        return self.end_ns - self.begin_ns

    @property
    def is_thread(self) -> Bools:
        """Mask of the work of step threads."""
        return np.asarray(self.resource == Resource.STEP_THREAD)

    @property
    def is_batch(self) -> Bools:
        """Mask of the batches that workers made."""
        return np.asarray(self.resource == Resource.WORKER)

    @property
    def is_transfer(self) -> Bools:
        """Mask of the transfers."""
        return np.asarray(self.resource == Resource.TRANSFER)

    @property
    def before(self) -> Int64:
        """The node before each node on its thread, -1 if there is none."""
        before, program = np.full(len(self), -1, dtype=np.int64), self.edge_kind == EdgeKind.PROGRAM
        before[self.target[program]] = self.source[program]
        return before

    @cached_property
    def workers(self) -> dict[int, int]:
        """Workers that each rank had at a time: the most that made batches for one iterator; no rank without any."""
        if self.facts is None:
            return {}
        made = np.flatnonzero(self.is_batch)
        makers = GroupBy(self.rank[made], self.facts.loader[made], self.process_id[made])
        loaders = GroupBy(makers.keys[0], makers.keys[1])
        ranks = GroupBy(loaders.keys[0])
        return dict(zip(ranks.values.tolist(), ranks.max(loaders.sizes).tolist(), strict=True))

    @cached_property
    def ranks_by_workers(self) -> Counter[tuple[str, int]]:
        """How many ranks each host has with each number of workers."""
        hosts = {} if self.facts is None else self.facts.host_of
        return Counter((host, self.workers.get(rank, 0)) for rank, host in hosts.items())

    def node_columns(self) -> dict[str, npt.NDArray[Any]]:
        """Return the columns of nodes that are not empty, by name."""
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        other = ("source", "target", "edge_kind", "lag_ns")
        return {
            name: values
            for name, values in columns.items()
            if isinstance(values, np.ndarray) and len(values) and name not in other and not name.startswith("ends")
        }

    @cached_property
    def decided(self) -> Bools:
        """Mask of the edges that stand for a choice made at run time. All other edges hold in every run of the job.

        A replay makes the choice again: of such edges into one node, the one whose source ends last binds it
        (``Replayed.binding``), whichever did so in the recording.
        """
        decided = np.zeros(len(self.source), dtype=bool)
        for kind in _DECIDED_TOGETHER:
            edges = np.flatnonzero(self.edge_kind == kind)
            pairs = np.unique(self.target[edges].astype(np.int64) * len(self) + self.source[edges])
            several = np.bincount(pairs // max(len(self), 1), minlength=len(self)) > 1
            decided[edges] = several[self.target[edges]]
        return decided

    def with_work(self, work_ns: Int64) -> Graph:
        """Return the graph as if its nodes had been measured to take this long; begins stay."""
        graph = replace(self, end_ns=self.begin_ns + work_ns)
        graph.__dict__["plan"] = self.plan  # begins and edges make the order, and it is costly
        return graph

    @cached_property
    def plan(self) -> native.Plan:
        """Order of the nodes. Clock errors can make cycles of edges; these are cut at their least certain edge."""
        return native.Plan(self.source, self.target, self.begin_ns, (-self.edge_kind).astype(np.int8))

    @cached_property
    def release_ns(self) -> Int64:
        """Earliest begin of each node: its measured begin if no edge leads to it, else the begin of the graph."""
        led = np.zeros(len(self), dtype=bool)
        kept = np.ones(len(self.source), dtype=bool)
        kept[self.plan.cut()] = False
        led[self.target[kept]] = True
        earliest = int(self.begin_ns.min()) if len(self) else 0
        return np.where(led, earliest, self.begin_ns - self.gap_ns)

    def replay(self, work_ns: Int64 | None = None, lag_ns: Int64 | None = None) -> Replayed:
        """Replay the graph with these lengths and lags; by default with the measured ones."""
        duration = self.gap_ns + (self.work_ns if work_ns is None else work_ns)
        begin, binding = self.plan.replay(self.release_ns, duration, self.lag_ns if lag_ns is None else lag_ns)
        return Replayed(begin, begin + duration, binding)

    def step_ns(self, replayed: Replayed) -> Int64:
        """Return the length of each step of each rank (rows of ``ends``) by a replay, from the end of the step before.

        -1 for the first step of a rank that has several: it warms up. Time between two steps that belongs to none is
        taken to stay.
        """
        return self._lengths(replayed.end_ns)

    @property
    def measured_step_ns(self) -> Int64:
        """Length of each step of each rank as measured; see :meth:`step_ns`."""
        return self._lengths(self.end_ns)

    def _lengths(self, nodes_end_ns: Int64) -> Int64:
        end = nodes_end_ns[self.ends] + self.ends_lag_ns
        lengths = np.full(len(end), -1, dtype=np.int64)
        if not len(end):
            return lengths
        same, between_ns = self._step_bounds
        lengths[1:][same] = (end[1:] - end[:-1])[same] - between_ns
        if len(self.ends_begin_ns):
            alone = np.append(True, ~same) & np.append(~same, True)
            begin = self.ends_begin_ns
            if len(self.ends_before):
                begin = np.where(self.ends_before >= 0, nodes_end_ns[self.ends_before], begin)
            lengths[alone] = (end - begin)[alone]
        return lengths

    @cached_property
    def _step_bounds(self) -> tuple[Bools, Int64]:
        """Which steps follow another one of their rank, and the measured time between these two."""
        same = self.ends_rank[1:] == self.ends_rank[:-1]
        if not len(self.ends_begin_ns):
            return same, np.zeros(np.count_nonzero(same), dtype=np.int64)
        measured_end = self.end_ns[self.ends] + self.ends_lag_ns
        return same, np.maximum((self.ends_begin_ns[1:] - measured_end[:-1])[same], 0)


@dataclass(frozen=True, slots=True)
class Facts:
    """Columns of nodes; -1 where a column does not apply or is unknown."""

    #: For batches that workers made, and for work of a step thread that makes a batch itself: number of the iterator,
    #: and the loader's number of the batch. Work in ``starts`` has its iterator, too.
    loader: Int64
    batch: Int64
    #: Work of a step thread that starts the workers of an iterator, or waits for them to end.
    starts: np.ndarray
    #: Work of a step thread, or of a host, inside torch.compile.
    compiles: np.ndarray
    #: The same inside collectives of objects, without their transfers.
    pickles: np.ndarray
    #: By number of the iterator: place in ``epochs.SERVES`` of what its batches are for, -1 if unknown.
    serves: Int64
    #: The same for iterators whose workers each make the batches of their own part of the data set.
    is_parted: np.ndarray
    #: For batches, and for computation and own batches of step threads: time on a CPU, and time runnable without one.
    #: Of the hand-off of batches, the latter alone.
    cpu_ns: Int64
    queued_ns: Int64
    #: For transfers: ``CollectiveOp``, ranks of the group, and number of their hosts.
    op: Int64
    members: Int64
    hosts: Int64
    #: For transfers: the backend moves them around a ring.
    is_ring: np.ndarray
    #: For transfers: number of the group, whose operations run one after the other.
    queue: Int64
    #: Host by rank.
    host_of: dict[int, str]
    #: By host, CPUs that are left for the work of the graph: without those of other processes, of threads that move
    #: messages and batches, and of the recorder.
    cpus: dict[str, float]
    #: By host, CPUs that the processes of the job used for anything but nodes: with shorter steps they use more.
    cpus_outside_nodes: dict[str, float]
    #: For batches: bounds of the time that their reads that waited for storage would have taken from memory; 0 and
    #: infinity if unknown.
    memory_low_ns: np.ndarray
    memory_high_ns: np.ndarray
    #: By row of ``ends``: samples that the rank trained on in that step; 0 where its loaders do not say.
    samples: np.ndarray

    def with_times_of(self, nodes: Int64) -> Facts:
        """Return the facts with the times of other nodes: for each node, the one whose time on CPUs it has."""
        names = ("cpu_ns", "queued_ns", "memory_low_ns", "memory_high_ns")
        times: dict[str, Any] = {name: getattr(self, name)[nodes] for name in names}
        return replace(self, **times)

    def with_copies(self, nodes: Int64) -> Facts:
        """Return the facts of a graph with copies of some nodes behind its own.

        ``nodes``: node that each new one is a copy of.
        """
        columns = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in _NOT_BY_NODE}
        longer: dict[str, Any] = {name: np.concatenate([c, c[nodes]]) for name, c in columns.items()}
        return replace(self, **longer)


#: Of these facts.
_NOT_BY_NODE = ("serves", "is_parted", "host_of", "cpus", "cpus_outside_nodes", "samples")
