"""Collectives of the counted steps, and the computation around them.

host     [ forward ][ backward   (call)        ](call)[ optimizer (call) ]
position             backward                   after_backward    update
device    ~~~~~~~~~~~~~~####[ kernel of the collective ]####
                            |exposed|                           nothing computes meanwhile
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.collectives.matching import Group, group_table
from stashtrace.analysis.intervals import NEVER, Bools, Int64, TimeSet, int64, value_at
from stashtrace.analysis.stalls.batch_waits import batch_waits
from stashtrace.analysis.stalls.collective_blocking import blocked_on_collectives
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.analysis.steps.steps import counted_steps, host_steps, step_at
from stashtrace.analysis.steps.threads import StepThread, step_threads
from stashtrace.analysis.steps.training_loop import update_times
from stashtrace.errors import MissingDataError
from stashtrace.replay.advice.policy import POLICY
from stashtrace.schema.groupby import GroupBy, RowsBy, order_by
from stashtrace.schema.kinds import COMPUTING_WORK, CollectiveFlag, CollectiveOp, DeviceWork, Phase, PhaseFlag
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

#: Where in a step a collective was called, by the phases of its process.
POSITIONS = ("forward", "backward", "after_backward", "update", "after_update", "elsewhere")
FORWARD, BACKWARD, AFTER_BACKWARD, UPDATE, AFTER_UPDATE, ELSEWHERE = range(len(POSITIONS))
_SKIPPED = (CollectiveOp.OTHER, CollectiveOp.BARRIER)
_WORDS = re.compile(r"[a-z0-9]+")
#: Types as NCCL and RCCL name them in their kernels.
_TYPES = {
    **dict.fromkeys(("f64", "double", "i64", "u64"), 8),
    **dict.fromkeys(("f32", "float", "i32", "u32"), 4),
    **dict.fromkeys(("f16", "half", "bf16", "bfloat16"), 2),
    **dict.fromkeys(("i8", "u8", "f8e4m3", "f8e5m2"), 1),
}
#: How a rank's computation was recorded: by kernels of its device, by its step thread, or not at all.
DEVICE, HOST, UNSEEN = range(3)


@dataclass(frozen=True, slots=True)
class RankWork:
    """Computation of one rank."""

    rank: int
    process_id: int
    #: ``DEVICE``, ``HOST``, or ``UNSEEN`` for a rank with a device of which no kernel was recorded.
    seen: int
    #: Numbers of the counted steps, ascending.
    step: Int64
    #: Phases, on the host's clock; an update is without the closure that it runs.
    forward: TimeSet
    backward: TimeSet
    update: TimeSet
    #: When its device computed, or its step thread was blocked neither on a collective nor on a batch.
    computing: TimeSet
    #: Rows of ``trace.kernels`` that compute, by begin; none on hosts.
    kernels: Int64

    @property
    def steps_count(self) -> int:
        """Number of counted steps."""
        return len(self.step)


@dataclass(frozen=True, slots=True)
class Calls:
    """One entry per rank and collective, by rank, then begin."""

    #: Of ``index.trace.collectives``.
    row: Int64
    rank: Int64
    step: Int64
    process_id: Int64
    group_hash: npt.NDArray[np.uint64]
    op: Int64
    message_bytes: Int64
    position: Int64
    #: When this rank entered, when the transfer began (all ranks had entered, and the group's collective before was
    #: done), and when it was done.
    enter_ns: Int64
    begin_ns: Int64
    end_ns: Int64
    #: Part of the time from begin to end in which the rank did not compute; -1 if unknown.
    exposed_ns: Int64
    #: A member's row is missing, so waiting for it counts as transfer.
    partial: Bools
    #: Size of an element by the name of the kernel; 4 if unknown.
    element_bytes: Int64

    def __len__(self) -> int:
        return len(self.row)

    @property
    def transfer_ns(self) -> Int64:
        """From the last rank's entry to the end."""
        return self.end_ns - self.begin_ns


@dataclass(frozen=True)
class Scene:
    """Everything that the patterns are looked for in."""

    #: With its collectives in the order of ``Calls.row``.
    trace: Trace
    calls: Calls
    ranks: dict[int, RankWork]
    groups: dict[int, Group]
    #: Mean length of a counted step.
    step_ns: float

    def size(self, group_hash: int) -> int:
        """Return the number of ranks of a group, -1 if unknown."""
        return self.groups[group_hash].size


def scene(trace: Trace) -> Scene:
    """Gather the collectives of the counted steps, their positions in the step, and their exposed time.

    Raises MissingDataError if no rank has a step, or no collective was recorded.
    """
    if not len(trace.collectives):
        raise MissingDataError(
            "no collective was recorded", hint="record a run of two or more ranks, with the collector torch_distributed"
        )
    index = TraceIndex(trace)
    steps = counted_steps(host_steps(index.origin))
    ranks: dict[int, RankWork] = {}
    blocked: dict[int, tuple[Int64, Int64, Int64]] = {}
    for thread in step_threads(index.origin):
        of_rank = np.unique(steps["step"][steps["rank"] == thread.rank])
        ranks[thread.rank], blocked[thread.rank] = _rank_work(index, thread, of_rank)
    calls = _calls(index, steps, ranks, blocked)
    lengths = counted_steps(index.steps)
    mean = float((lengths["end_ns"] - lengths["begin_ns"]).mean()) if len(lengths) else 0.0
    return Scene(index.trace, calls, ranks, group_table(index.trace), mean)


def _rank_work(index: TraceIndex, thread: StepThread, steps: Int64) -> tuple[RankWork, tuple[Int64, Int64, Int64]]:
    """Return the computation of a rank, and when its thread was blocked on a collective: begin, end, row."""
    trace = index.trace
    phases, mine = trace.phases, trace.phases["process_id"] == thread.process_id
    mine &= (phases["phase_flags"] & PhaseFlag.BACKGROUND) == 0

    def of(phase: Phase) -> TimeSet:
        rows = mine & (phases["phase_code"] == phase)
        return TimeSet.of_rows(phases, rows)

    kernels = index.kernels.rows(thread.process_id)
    kernels = kernels[np.isin(trace.kernels["work_code"][kernels], COMPUTING_WORK)]
    kernels = int64(kernels[np.argsort(trace.kernels["begin_ns"][kernels], kind="stable")])
    nothing = int64([])
    blocked = (nothing, nothing, nothing)
    if len(kernels):
        seen = DEVICE
        computing = TimeSet.of_rows(trace.kernels, kernels)
    elif (trace.devices["process_id"] == thread.process_id).any():
        seen, computing = UNSEEN, TimeSet.empty()
    else:
        loads = batch_waits(index, thread).time
        pieces = blocked_on_collectives(index, thread, loads)
        seen, blocked = HOST, (pieces.begin, pieces.end, pieces.row)
        computing = TimeSet.of([thread.begin_ns], [thread.end_ns]) - pieces.time - loads
    work = RankWork(
        thread.rank,
        thread.process_id,
        seen,
        steps,
        of(Phase.FORWARD),
        of(Phase.BACKWARD),
        update_times(trace, thread.process_id),
        computing,
        kernels,
    )
    return work, blocked


def _calls(
    index: TraceIndex, steps: Table, ranks: dict[int, RankWork], blocked: dict[int, tuple[Int64, Int64, Int64]]
) -> Calls:
    table, matched, enter = index.trace.collectives, index.in_flight, index.entered_ns
    step = step_at(steps.sort_by("rank", "begin_ns"), table["rank"], table["call_ns"])
    ended = (matched.end_ns < NEVER) & (matched.last_enter_ns < NEVER) & (matched.end_ns >= enter)
    rows = np.flatnonzero(ended & (step >= 0) & ~np.isin(table["op_code"], _SKIPPED))
    rows = rows[np.isin(table["rank"][rows], list(ranks))]
    last, end = np.maximum(matched.last_enter_ns, enter)[rows], matched.end_ns[rows]
    begin = _after_earlier(table["process_id"][rows], table["group_hash"][rows], np.minimum(last, end), end)
    order = np.lexsort((begin, table["rank"][rows]))
    rows, begin, end = rows[order], begin[order], end[order]
    position = np.full(len(rows), ELSEWHERE, dtype=np.int64)
    exposed = np.full(len(rows), -1, dtype=np.int64)
    for rank, of_rank in GroupBy(table["rank"][rows]).items():
        mine, work = rows[of_rank], ranks[rank]
        flagged = (table["collective_flags"][mine] & CollectiveFlag.IN_BACKWARD) != 0
        position[of_rank] = _positions(work, table["call_ns"][mine], flagged)
        if work.seen == DEVICE:
            exposed[of_rank] = end[of_rank] - begin[of_rank] - work.computing.within(begin[of_rank], end[of_rank])
        elif work.seen == HOST:
            exposed[of_rank] = _blocked_on(blocked[rank], mine, begin[of_rank], len(table))
    return Calls(
        int64(rows),
        table["rank"][rows],
        step[rows],
        table["process_id"][rows],
        table["group_hash"][rows],
        table["op_code"][rows].astype(np.int64),
        table["message_bytes"][rows],
        position,
        enter[rows],
        int64(begin),
        int64(end),
        exposed,
        matched.partial[rows],
        _element_bytes(index, rows),
    )


def _element_bytes(index: TraceIndex, rows: Int64) -> Int64:
    """Return the size of an element of each row, by the name of the kernel that began when it did."""
    element_bytes = np.full(len(rows), POLICY.element_bytes, dtype=np.int64)
    kernels, began = index.trace.kernels, index.on_devices.begin_ns[rows]
    talks = np.flatnonzero(kernels["work_code"] == DeviceWork.COMMUNICATION)
    if not len(talks):
        return element_bytes
    sizes = GroupBy(kernels["name_code"][talks]).map(lambda code: element_bytes_of(index.trace.text(code)))
    by_process, calls = RowsBy(kernels["process_id"][talks]), RowsBy(index.trace.collectives["process_id"][rows])
    for process in calls.values.tolist():
        mine, ran = calls.rows(process), by_process.rows(process)
        if not len(ran):
            continue
        order = ran[np.argsort(kernels["begin_ns"][talks[ran]], kind="stable")]
        begin = kernels["begin_ns"][talks[order]]
        at = np.minimum(np.searchsorted(begin, began[mine]), len(order) - 1)
        hit = (begin[at] == began[mine]) & (sizes[order[at]] > 0)
        element_bytes[mine[hit]] = sizes[order[at[hit]]]
    return element_bytes


def element_bytes_of(kernel_name: str) -> int:
    """Return the size of the elements that a communication kernel names, 0 if it names none.

    >>> element_bytes_of("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*, unsigned long)")
    2
    >>> element_bytes_of("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)")
    4
    >>> element_bytes_of("ncclDevKernel_SendRecv(ncclDevComm*)")
    0
    """
    words = _WORDS.findall(kernel_name.partition("(")[0].lower())
    return next((_TYPES[word] for word in words if word in _TYPES), 0)


def _after_earlier(process: Int64, group: npt.NDArray[np.uint64], begin: Int64, end: Int64) -> Int64:
    """Return begins, none before the end of what the same group of the same process had in flight earlier."""
    order = order_by(begin, end)
    out = begin.copy()
    for rows in GroupBy(process[order], group[order]):
        of_group = order[rows]
        done = np.concatenate([[-NEVER], np.maximum.accumulate(end[of_group])[:-1]])
        out[of_group] = np.minimum(np.maximum(begin[of_group], done), end[of_group])
    return int64(out)


def _positions(work: RankWork, call: Int64, flagged: Bools) -> Int64:
    """Return the position of each call: inside a phase, else after the backward or the update that began last."""
    inside = {
        phase: time.within(call, call + 1) > 0
        for phase, time in ((FORWARD, work.forward), (BACKWARD, work.backward), (UPDATE, work.update))
    }
    begun = np.stack([_last_begin(time, call) for time in (work.forward, work.backward, work.update)])
    latest = np.where(begun.max(axis=0) >= 0, begun.argmax(axis=0), -1)
    position = np.where(latest == 1, AFTER_BACKWARD, np.where(latest == 2, AFTER_UPDATE, ELSEWHERE))
    # Activation checkpointing runs forward in backward, and a closure runs both in the update.
    for phase, chosen in ((UPDATE, inside[UPDATE]), (FORWARD, inside[FORWARD]), (BACKWARD, inside[BACKWARD] | flagged)):
        position = np.where(chosen, phase, position)
    return int64(position)


def _last_begin(time: TimeSet, call: Int64) -> Int64:
    return value_at(time.begin, np.searchsorted(time.begin, call, side="right") - 1, -1)


def _blocked_on(pieces: tuple[Int64, Int64, Int64], rows: Int64, begin: Int64, count: int) -> Int64:
    """Return how long the step thread was blocked on each of these rows from its begin on."""
    at = np.full(count + 1, -1, dtype=np.int64)
    at[rows] = np.arange(len(rows))
    call = at[pieces[2]]
    since = np.maximum(pieces[0], np.append(begin, 0)[call])
    return GroupBy.numbered(call, len(rows)).sum(np.maximum(pieces[1] - since, 0))
