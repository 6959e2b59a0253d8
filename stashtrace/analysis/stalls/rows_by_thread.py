"""Rows of the big tables by thread and process, grouped once for all ranks; and the types of layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, wraps
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from stashtrace._native import intervals
from stashtrace.analysis.collectives.device_collectives import DeviceCollectives, on_devices
from stashtrace.analysis.collectives.matching import Matched, match, match_columns
from stashtrace.analysis.collectives.shares import KEPT, NetworkCuts, network_cuts
from stashtrace.analysis.intervals import Bools, Int64, TimeSet, int64, is_one_of, value_at
from stashtrace.analysis.steps.steps import steps
from stashtrace.analysis.steps.threads import StepThread
from stashtrace.schema.events import TABLES
from stashtrace.schema.groupby import GroupBy, RowsBy
from stashtrace.schema.kinds import (
    IO_WAITED,
    NOT_FILES,
    OPENS,
    READS,
    BatchPhase,
    IoOp,
    Phase,
    ProcessRole,
    StallKind,
)
from stashtrace.schema.table import Table
from stashtrace.schema.trace import BLOCKED_FROM, FILE_CUT, Trace, cached_on_trace, facts_named

Result = TypeVar("Result")

#: Calls that may wait for what storage holds.
READ_OPS = (*READS, *OPENS, IoOp.STAT, IoOp.READDIR, IoOp.MMAP)


@dataclass(frozen=True, slots=True)
class Layer:
    """Time of one kind, unless an earlier layer of the rank covers it.

    ``alternatives`` are the kinds it may have instead: they lower ``low_ns`` of this kind and raise ``high_ns`` of
    those.
    """

    kind: StallKind
    time: TimeSet
    alternatives: tuple[StallKind, ...] = ()


@dataclass(frozen=True, slots=True)
class LabelledIntervals:
    """Sorted, disjoint intervals with a number each."""

    begin: Int64
    end: Int64
    tag: Int64

    def time_of(self, *tags: int) -> TimeSet:
        """Return the time of some tags."""
        chosen = is_one_of(self.tag, tags)
        return TimeSet.of(self.begin[chosen], self.end[chosen])

    def times_of(self, tags: Sequence[int]) -> list[TimeSet]:
        """Return the time of each of some tags, in their order."""
        order = np.argsort(self.tag, kind="stable")
        begin, end, tag = self.begin[order], self.end[order], self.tag[order]
        begins = np.append(True, (begin[1:] != end[:-1]) | (tag[1:] != tag[:-1]))[: len(tag)]
        begin, end, tag = begin[begins], end[np.append(begins[1:], True)[: len(tag)]], tag[begins]
        wanted = int64(list(map(int, tags)))
        bounds = (np.searchsorted(tag, wanted, side=side).tolist() for side in ("left", "right"))
        return [TimeSet(begin[first:last], end[first:last]) for first, last in zip(*bounds, strict=True)]


@dataclass(frozen=True, slots=True)
class RankLayers:
    """Layers that one method makes for one rank, in order: the first one that covers an instant has it."""

    #: ``host``, ``brackets`` or ``kernels``.
    method: str
    #: Together they cover the life of the rank; time without a layer is ``other``.
    layers: list[Layer]
    #: Straggler time with the awaited rank.
    late: LabelledIntervals
    #: Where another method than ``method`` made the layers.
    segments: tuple[tuple[str, TimeSet], ...] = ()
    #: Times with a mark, not a kind: ``host_paced``, ``graph_opaque``, ``queued``, ``estimated``; and why a device
    #: was idle: ``before_first`` (before the first work recorded), ``launched_before`` and ``pauses`` (its next work
    #: had been launched), ``host_elsewhere`` (the host was in no blocking call and had not launched its next work).
    marked: dict[str, TimeSet] = field(default_factory=dict)

    def painted(self) -> LabelledIntervals:
        """Return the time of the rank, cut by layers; the tag is the place of the layer."""
        return LabelledIntervals(*intervals.paint([(layer.time.begin, layer.time.end) for layer in self.layers]))

    def painted_kinds(self) -> LabelledIntervals:
        """Return the time of the rank by kind; the tag is a number of :class:`StallKind`."""
        time = self.painted()
        return LabelledIntervals(time.begin, time.end, int64([int(layer.kind) for layer in self.layers])[time.tag])

    def time_of(self, *kinds: StallKind) -> TimeSet:
        """Return the time that the budget gives to some kinds."""
        return self.painted_kinds().time_of(*kinds)

    def method_at(self, moments: Int64) -> npt.NDArray[np.str_]:
        """Return the method at each moment."""
        out = np.full(len(moments), self.method, dtype="U16")
        for method, time in self.segments:
            out[time.within(moments, moments + 1) > 0] = method
        return out


@dataclass(frozen=True, slots=True)
class IoRows:
    """Calls during which the thread was blocked, and receives, of all threads."""

    begin: Int64
    end: Int64
    track: npt.NDArray[np.int32]
    path: npt.NDArray[np.int32]
    result: Int64
    is_storage: np.ndarray
    is_read: np.ndarray
    is_receive: np.ndarray
    is_blocked: np.ndarray
    flags: np.ndarray
    is_open: np.ndarray


@cached_on_trace
def blocked_by_guess(trace: Trace) -> frozenset[int]:
    """Return the processes whose importer flagged calls as blocked because of their duration."""
    key, value = BLOCKED_FROM
    return frozenset(process for process, stated in facts_named(trace, key) if stated == value)


@cached_on_trace
def cut_processes(trace: Trace) -> frozenset[int]:
    """Return the processes whose recording ends early, so that any of the work of their devices may be missing."""
    losses = trace.losses
    return frozenset(losses["process_id"][losses["name_code"] == trace.strings.find(FILE_CUT)].tolist()) - {-1}


@cached_on_trace
def checkpoints(trace: Trace) -> tuple[Int64, RowsBy]:
    """Return the rows of ``phases`` that are checkpoints, and where those of each process are among them."""
    rows = np.flatnonzero(trace.phases["phase_code"] == Phase.CHECKPOINT)
    return rows, RowsBy(trace.phases["process_id"][rows])


@cached_on_trace
def process_of_track(trace: Trace) -> Int64:
    """Return the process id by track id; -1 where no track has the id."""
    tracks, io = trace.tracks, trace.streamed_io
    largest = int(trace.io["track_id"].max(initial=-1)) if io is None else len(io.counts) - 1
    owner = np.full(max(int(tracks["track_id"].max(initial=-1)), largest) + 1, -1, dtype=np.int64)
    owner[tracks["track_id"]] = tracks["process_id"]
    return owner


def _rows_by(table: str, column: str) -> cached_property[RowsBy]:
    """Return a property: rows of a table of the index's trace, grouped by one of its columns on first use."""
    return cached_property(lambda index: RowsBy(getattr(index.trace, table)[column]))


def _batches_by(phase: BatchPhase, column: str) -> cached_property[RowsBy]:
    """Return a property: rows of ``batches_of_phase``, grouped by a column on first use."""
    return cached_property(lambda index: RowsBy(index.batches_of_phase(phase)[column]))


#: Sort columns of collectives: rows that are equal in these are equal in all columns that the attribution reads.
_COLLECTIVE_ORDER = ("process_id", "group_hash", "sequence", "call_ns", "end_ns", "op_code", "peer_rank", "return_ns")


class TraceIndex:
    """Groupings of one trace, and results that several analyses need; each is made on first use.

    They are kept with the trace: all indexes of a trace share them, so making another index costs nothing. ``origin``
    is the trace as it was given.
    """

    __slots__ = ("__dict__", "origin")

    def __init__(self, trace: Trace) -> None:
        # A cached property keeps its value in ``__dict__``. That of all indexes is the trace's own, and ``origin`` is
        # not in it: a trace that refers to itself would hold its memory until the next collection of garbage.
        self.__dict__ = trace.kept
        self.origin = trace

    @cached_property
    def trace(self) -> Trace:
        """The trace with its collectives in an order of their own content: no result depends on the order of rows."""
        collectives = self.origin.collectives
        return self.origin.replace(collectives=collectives.sort_by(*_COLLECTIVE_ORDER))

    def has_fact(self, key: str, process_id: int) -> bool:
        """Return True if an importer recorded a fact of this name about a process."""
        facts, code = self.trace.metadata, self.trace.strings.find(key)
        if code < 0:  # of no process, as in any recording of ours
            return False
        named = facts["key_code"] == code
        return bool((named & (facts["process_id"] == process_id)).any())

    @cached_property
    def matched(self) -> Matched:
        """Collectives matched across ranks."""
        return match(self.trace)

    @cached_property
    def on_devices(self) -> DeviceCollectives:
        """Collectives matched across ranks on the devices' clocks."""
        return on_devices(self.trace)

    @cached_property
    def timed_on_device(self) -> Bools:
        """Mask of the collectives with device times."""
        table = self.trace.collectives
        if (table["device_begin_ns"] >= 0).any() or len(self.trace.kernels):
            return self.on_devices.timed
        return np.zeros(len(table), dtype=bool)

    @cached_property
    def in_flight(self) -> Matched:
        """Collectives with device times where known, else as ``matched``: for a host that waits for its device."""
        return self.on_devices.over(self.matched) if self.timed_on_device.any() else self.matched

    @cached_property
    def entered_ns(self) -> Int64:
        """When each collective began to be in flight: on its device, else its call."""
        called, timed = self.trace.collectives["call_ns"], self.timed_on_device
        return int64(np.where(timed, self.on_devices.enter_ns, called)) if timed.any() else called

    @cached_property
    def network_cuts(self) -> NetworkCuts:
        """Where the network's part of transfers over hosts and inside them ends."""
        matched, timed = self.in_flight, self.timed_on_device
        network = self.on_devices.network_ns if timed.any() else np.full(len(timed), -1, dtype=np.int64)
        enter = np.maximum(matched.last_enter_ns, self.entered_ns)
        return network_cuts(self.trace, matched.link, enter, matched.end_ns, network)

    @property
    def steps(self) -> Table:
        """Steps of all ranks."""
        return steps(self.origin)

    @cached_property
    def steps_by_rank(self) -> RowsBy:
        """Rows of ``steps`` by rank."""
        return RowsBy(self.steps["rank"])

    def steps_of(self, rank: int) -> Table:
        """Steps of one rank."""
        return self.steps.take(self.steps_by_rank.rows(rank))

    @cached_property
    def ranks_on_device(self) -> frozenset[int]:
        """Ranks whose steps are on the clock of a device."""
        return frozenset(np.unique(self.steps["rank"][self.steps["clock_code"] != 0]).tolist())

    @cached_property
    def of_threads(self) -> dict[tuple[str, StepThread], Any]:
        """Results for single threads; see :func:`kept_per_thread`."""
        return {}

    # Rows of the tables of the trace, by process or by track.
    brackets = _rows_by("device_brackets", "process_id")
    device_calls = _rows_by("device_calls", "process_id")
    kernels = _rows_by("kernels", "process_id")
    phases = _rows_by("phases", "track_id")
    spans = _rows_by("spans", "track_id")
    waits = _rows_by("waits", "track_id")
    stack_samples = _rows_by("stack_samples", "track_id")
    stack_spans = _rows_by("stack_spans", "track_id")
    collectives = _rows_by("collectives", "process_id")
    collective_waits = _rows_by("collective_waits", "track_id")

    # Rows of ``batches_of_phase``.
    batch_waits = _batches_by(BatchPhase.WAIT, "track_id")
    worker_ends = _batches_by(BatchPhase.WORKERS_END, "track_id")
    index_waits = _batches_by(BatchPhase.INDEX_WAIT, "process_id")
    fetches_by_process = _batches_by(BatchPhase.FETCH, "process_id")
    fetches_by_loader = _batches_by(BatchPhase.FETCH, "loader_id")

    def workers_end(self, track_id: int) -> TimeSet:
        """Return when a thread waited for the workers of a loader to end."""
        return TimeSet.of_rows(self.batches_of_phase(BatchPhase.WORKERS_END), self.worker_ends.rows(track_id))

    @cached_property
    def _served(self) -> Int64:
        """Rank that each row of ``batches_of_phase(FETCH)`` serves; -1 of a forked child that takes batches itself."""
        table, takers = self.batches_of_phase(BatchPhase.FETCH), self.batches_of_phase(BatchPhase.WAIT)["process_id"]
        processes = self.trace.processes
        others = processes["process_id"][processes["role_code"] != ProcessRole.RANK]
        chosen = np.isin(table["process_id"], np.intersect1d(takers, others))
        return np.where(chosen, -1, table["rank"])

    @cached_property
    def fetches(self) -> RowsBy:
        """Rows of ``batches_of_phase(FETCH)`` by rank served."""
        return RowsBy(self._served)

    @cached_property
    def _fetches_by_batch(self) -> GroupBy:
        table = self.batches_of_phase(BatchPhase.FETCH)
        return GroupBy(self._served, table["loader_id"], table["batch_index"])

    def last_fetch(self, rank: int, loader_id: Int64, batch_index: Int64) -> Int64:
        """Return the last row of ``batches_of_phase(FETCH)`` that made each batch for a rank, -1 where none did."""
        batches = self._fetches_by_batch
        at = batches.find(np.full(len(loader_id), rank), loader_id, batch_index)
        return value_at(batches.last, at, -1)

    def making_meanwhile(self, thread: StepThread) -> TimeSet:
        """Return when any other thread or process made a batch for the rank."""
        table, rows = self.batches_of_phase(BatchPhase.FETCH), self.fetches.rows(thread.rank)
        return TimeSet.of_rows(table, rows[table["track_id"][rows] != thread.track_id])

    @cached_property
    def began_ns(self) -> dict[int, int]:
        """When each process began, by its id."""
        return self.trace.processes.lookup("process_id", "begin_ns")

    @cached_property
    def _batches(self) -> dict[int, Table]:
        return {}

    def batches_of_phase(self, phase: BatchPhase) -> Table:
        """Return the rows of batches of one phase, by begin."""
        if phase not in self._batches:
            table = self.trace.batches
            rows = table.take(table["phase_code"] == phase)
            self._batches[phase] = rows.sort_by("begin_ns", "end_ns", "loader_id", "batch_index", "track_id")
        return self._batches[phase]

    @cached_property
    def io(self) -> IoRows:
        """Blocked calls and receives."""
        table = self.trace.notable_io
        flags, op = table["io_flags"], table["op_code"]
        chosen = ((flags & IO_WAITED) != 0) | (op == IoOp.RECV) | (op == IoOp.CONNECT)
        if not chosen.all():  # else, as in a run of many calls, the columns are those of the table
            table = table.take(chosen)
            flags, op = table["io_flags"], table["op_code"]
        blocked = (flags & IO_WAITED) != 0
        storage = blocked & ((flags & NOT_FILES) == 0) & (op != IoOp.RECV) & (op != IoOp.SEND) & (op != IoOp.CONNECT)
        return IoRows(
            begin=table["begin_ns"],
            end=table["end_ns"],
            track=table["track_id"],
            path=table["path_code"],
            result=table["result_bytes"],
            is_storage=storage,
            is_read=np.isin(op, READ_OPS),
            is_receive=(op == IoOp.RECV) | (op == IoOp.CONNECT),
            is_blocked=blocked,
            flags=flags,
            is_open=np.isin(op, OPENS),
        )

    def reads_by_guess(self, process: int) -> TimeSet:
        """Return the time in reads of a process of ``blocked_by_guess``; fast reads may have waited for storage too."""
        begin, end, by_process = self._reads_by_guess
        rows = by_process.rows(process)
        return TimeSet.of(begin[rows], end[rows])

    @cached_property
    def _reads_by_guess(self) -> tuple[Int64, Int64, RowsBy]:
        table = self.trace.io
        rows = np.flatnonzero(np.isin(table["op_code"], READ_OPS))
        owner = process_of_track(self.origin)[table["track_id"][rows]]
        mine = np.isin(owner, list(blocked_by_guess(self.origin)))
        return table["begin_ns"][rows[mine]], table["end_ns"][rows[mine]], RowsBy(owner[mine])

    @cached_property
    def io_by_track(self) -> RowsBy:
        """Rows of ``io`` by track."""
        return RowsBy(self.io.track)

    @cached_property
    def io_by_process(self) -> RowsBy:
        """Rows of ``io`` by process."""
        return RowsBy(process_of_track(self.origin)[self.io.track])


def kept_per_thread(compute: Callable[[TraceIndex, StepThread], Result]) -> Callable[[TraceIndex, StepThread], Result]:
    """Decorate a function of only an index and a thread: its result is computed once and kept with the trace.

    The result must not refer to the trace, and must not be changed.
    """
    name = f"{compute.__module__}.{compute.__qualname__}"

    @wraps(compute)
    def kept(index: TraceIndex, thread: StepThread) -> Result:
        key = (name, thread)
        if key not in index.of_threads:
            index.of_threads[key] = compute(index, thread)
        result: Result = index.of_threads[key]
        return result

    return kept


# What the budget of a rank needs to know of the others: the numbers of its steps, and its collectives as matched.
#
# A trace of some ranks that brings both along has the budget that these ranks have in the trace of all.


def matched_among_all(together: Trace) -> Table:
    """Return the facts about each collective that need all ranks: rows of ``matched_collectives``, by key."""
    index = TraceIndex(together)
    table, cuts = index.trace.collectives, index.network_cuts
    columns = {name: table[name] for name in ("collective_key", "process_id", "rank")}
    columns |= match_columns(index.matched, by_devices=False)
    columns |= match_columns(index.on_devices.matched, by_devices=True)
    columns |= dict(zip(KEPT, (cuts.low_ns, cuts.point_ns, cuts.high_ns, cuts.estimated), strict=True))
    return Table(TABLES["matched_collectives"], columns).sort_by("collective_key")


def as_among_all(own: Trace, together: Trace, numbered: Table) -> Trace:
    """Return the trace of some ranks with what the trace of all of them says of its steps and collectives.

    ``own``, ``together``: with the same numbers of processes, tracks and collectives. ``numbered``: rows of ``steps``
    of all ranks.
    """
    ranks = own.ranks
    steps = numbered.take(np.isin(numbered["rank"], ranks))
    schema = TABLES["numbered_steps"]
    facts = {"numbered_steps": Table(schema, {name: steps[name] for name in schema.names})}
    if len(own.collectives):
        matched = matched_among_all(together)
        facts["matched_collectives"] = matched.take(np.isin(matched["rank"], ranks))
    return own.replace(**facts)
