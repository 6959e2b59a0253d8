"""The messages of a run as the link saw them: when each could be sent, when it had arrived, in which backward pass.

    rank 0   call |...................                          ready = the last member's entry
    rank 1           call |...........                          link  = its part of the time in which the link worked
                          ready         end                             (models.layers.link_times)

Waiting for late ranks and for messages in front is no part of ``link_ns``: these times carry a fit of alpha and beta,
and the recurrence puts the waiting back.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.collectives.matching import group_table
from stashtrace.analysis.collectives.shares import backends_of_rows
from stashtrace.analysis.collectives.waits import communicator_names
from stashtrace.analysis.intervals import Int64, RowsBy, int64
from stashtrace.analysis.late.instances import HUNG, PARTIAL, Instances, instances
from stashtrace.analysis.stalls.index import TraceIndex
from stashtrace.analysis.steps.steps import counted_steps, host_steps
from stashtrace.analysis.steps.threads import step_threads
from stashtrace.calibration.lines import Floats
from stashtrace.errors import MissingDataError
from stashtrace.replay.communication.ddp import DdpFacts, ddp_facts
from stashtrace.replay.communication.overlap import link_times
from stashtrace.schema.kinds import CollectiveOp, Phase, PhaseFlag
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

#: Messages that a backend works on at a time: threads of ProcessGroupGloo. Device backends have one stream.
PARALLEL = {"gloo": 2}


@dataclass(frozen=True, slots=True)
class Messages:
    """One entry per message (not per rank), by communicator, then sequence.

    Attributes
    ----------
    communicator, op, backend : str array
    lane : int64 array
        Number of the communicator, whose name others may have: each is a link of its own.
    ranks_count, bytes : int64 array
        Members of the group, and payload.
    ready_ns, end_ns : int64 array
        The last member entered; the last member was done.
    link_ns : float array
        Time that the link worked for it.
    rank, step, backward : int64 array
        Lowest member; its step, -1 outside the steps that count; its backward pass, -1 outside of any.
    backward_begin_ns : int64 array
        When that pass began on the host, -1 outside of any.
    within : bool array
        It was called before that pass had returned, as the buckets of DistributedDataParallel are.
    group_hash : uint64 array
        Communicator, as in ``collectives``.
    sequence : int64 array
        Number within it, as in ``collectives``.
    blocking : bool array
        The caller waited for it before it went on to the next.
    on_device : bool array
        Times are those of devices.
    has_steps : bool
        Whether the run has steps.
    ddp : DdpFacts
        What its DistributedDataParallel says of buckets and gradients.
    """

    communicator: npt.NDArray[np.str_]
    op: npt.NDArray[np.str_]
    backend: npt.NDArray[np.str_]
    lane: Int64
    ranks_count: Int64
    bytes: Int64
    ready_ns: Int64
    end_ns: Int64
    link_ns: Floats
    rank: Int64
    step: Int64
    backward: Int64
    backward_begin_ns: Int64
    within: npt.NDArray[np.bool_]
    group_hash: npt.NDArray[np.uint64]
    sequence: Int64
    blocking: npt.NDArray[np.bool_]
    on_device: npt.NDArray[np.bool_]
    has_steps: bool
    ddp: DdpFacts

    def __len__(self) -> int:
        return len(self.bytes)


def gradient_messages(trace: Trace) -> Messages:
    """Messages of all operations in which nobody can end before everybody has entered.

    Left out are those without payload, those that never ended, and those of which a member's row is missing.

    Raises
    ------
    MissingDataError
        If there is none.
    """
    index = TraceIndex(trace)
    calls = instances(index) if len(trace.collectives) else None
    if calls is None:
        raise MissingDataError(
            "no collective was recorded", hint="record a run of two or more ranks, with the collector torch_distributed"
        )
    table = index.trace.collectives
    first = calls.row[calls.starts]
    ready = calls.last_enter_ns
    loops = _loops(index)
    end = np.maximum.reduceat(_ends(index, calls, loops), calls.starts)
    kept = np.flatnonzero((table["message_bytes"][first] > 0) & ~np.isin(calls.method, (HUNG, PARTIAL)) & (end > ready))
    if not len(kept):
        raise MissingDataError(
            "no collective of this run moved bytes between ranks and ended",
            hint="a run of one rank has none; see `stashtrace analyze collectives`",
        )
    rows, ready, end = first[kept], ready[kept], end[kept]
    groups = group_table(index.trace)
    hashes, inverse = np.unique(calls.group_hash[kept], return_inverse=True)
    sizes = int64([len(groups[h].members) for h in hashes.tolist()])[inverse]
    backend = backends_of_rows(index.trace)[rows]
    link = np.zeros(len(kept))
    for number in range(len(hashes)):
        own = np.flatnonzero(inverse == number)
        own = own[np.lexsort((table["sequence"][rows[own]], ready[own]))]
        origin = int(ready[own].min())
        parallel = PARALLEL.get(str(backend[own[0]]), 1)
        link[own] = link_times(ready[own] - origin, end[own] - origin, parallel=parallel)
    step, backward, backward_begin, within, has_steps = _places(index, loops, table, rows)
    return Messages(
        communicator=communicator_names(index.trace, table["group_hash"][rows]),
        op=np.array([op.name.lower() for op in CollectiveOp])[table["op_code"][rows]],
        backend=backend,
        lane=int64(inverse),
        ranks_count=sizes,
        bytes=table["message_bytes"][rows],
        ready_ns=ready,
        end_ns=end,
        link_ns=link,
        rank=table["rank"][rows],
        step=step,
        backward=backward,
        backward_begin_ns=backward_begin,
        within=within,
        group_hash=table["group_hash"][rows],
        sequence=table["sequence"][rows],
        blocking=_blocking(index, calls, kept),
        on_device=index.timed_on_device[rows],
        has_steps=has_steps,
        ddp=ddp_facts(trace),
    )


def _places(
    index: TraceIndex, loops: dict[int, _Loop], table: Table, rows: Int64
) -> tuple[Int64, Int64, Int64, npt.NDArray[np.bool_], bool]:
    """Step, backward pass and its begin of each message, by when its lowest rank called it, and whether that was inside
    the pass; if there are steps."""
    step, backward, began = (np.full(len(rows), -1, dtype=np.int64) for _ in range(3))
    within = np.zeros(len(rows), dtype=bool)
    try:
        known = counted_steps(host_steps(index.origin))
    except MissingDataError:
        return step, backward, began, within, False
    steps_of, rows_of = RowsBy(known["rank"]), RowsBy(table["rank"][rows])
    for rank in rows_of.values.tolist():
        own, mine = rows_of.rows(rank), steps_of.rows(rank)
        if not len(mine) or rank not in loops:
            continue
        call = table["call_ns"][rows[own]]
        at = np.searchsorted(known["begin_ns"][mine], call, side="right") - 1
        inside = (at >= 0) & (call < known["end_ns"][mine][np.maximum(at, 0)])
        step[own[inside]] = known["step"][mine][at[inside]]
        begin, is_backward = loops[rank].begin_ns, loops[rank].is_backward
        # A pass lasts until the next forward or backward begins: gradients may be sent after it.
        last = np.searchsorted(begin, call, side="right") - 1
        in_pass = inside & (last >= 0) & (is_backward[np.maximum(last, 0)] if len(begin) else False)
        if in_pass.any():
            # One that began in an earlier step is another step's.
            in_pass &= begin[np.maximum(last, 0)] >= known["begin_ns"][mine][np.maximum(at, 0)]
            backward[own[in_pass]], began[own[in_pass]] = last[in_pass], begin[last[in_pass]]
            within[own[in_pass]] = call[in_pass] < loops[rank].end_ns[last[in_pass]]
    return step, backward, began, within, True


@dataclass(frozen=True, slots=True)
class _Loop:
    """Forwards and backwards of a rank's step thread, in order.

    ``awaits``: a backward that ends once its messages have arrived, since DistributedDataParallel waits for them in it.
    """

    begin_ns: Int64
    end_ns: Int64
    is_backward: npt.NDArray[np.bool_]
    awaits: npt.NDArray[np.bool_]


def _loops(index: TraceIndex) -> dict[int, _Loop]:
    """Rank -> its loop; empty where nothing says which thread drives it.

    Forwards that activation checkpointing repeats end no backward: they are nested, or the autograd engine's own.
    """
    try:
        threads = step_threads(index.origin)
    except MissingDataError:
        return {}
    wrapper = index.origin.strings.find("DistributedDataParallel")
    loops = {}
    for thread in threads:
        phases = index.origin.phases.take(index.phases.rows(thread.track_id))
        code, flags = phases["phase_code"], phases["phase_flags"]
        kept = (code == Phase.BACKWARD) | ((code == Phase.FORWARD) & ((flags & PhaseFlag.NESTED) == 0))
        phases = phases.take(kept & ((flags & PhaseFlag.BACKGROUND) == 0)).sort_by("begin_ns")
        backward = phases["phase_code"] == Phase.BACKWARD
        forward = np.maximum.accumulate(np.where(backward, -1, np.arange(len(phases))))
        wrapped = (forward >= 0) & (phases["name_code"][forward] == wrapper) & (wrapper >= 0)
        loops[thread.rank] = _Loop(phases["begin_ns"], phases["end_ns"], backward, backward & wrapped)
    return loops


def _ends(index: TraceIndex, calls: Instances, loops: dict[int, _Loop]) -> Int64:
    """End of each row of the instances.

    The host learns of it from a callback that needs the interpreter's lock. The thread of the loop, whose backward has
    waited for the message, may take that first and keep it for milliseconds: such an end is that of backward.
    """
    table, end = index.trace.collectives, int64(calls.end_ns.copy())
    seen = np.isin(table["collective_key"][calls.row], index.trace.collective_waits["collective_key"])
    late = np.flatnonzero(~index.timed_on_device[calls.row] & ~seen)
    by_rank = RowsBy(calls.rank[late])
    for rank in by_rank.values.tolist():
        loop = loops.get(rank)
        if loop is None or not loop.awaits.any():
            continue
        own = late[by_rank.rows(rank)]
        call = table["call_ns"][calls.row[own]]
        at = np.searchsorted(loop.begin_ns, call, side="right") - 1
        inside = (at >= 0) & loop.awaits[at] & (call < loop.end_ns[at])
        end[own[inside]] = np.minimum(end[own], loop.end_ns[at])[inside]
    return end


def _blocking(index: TraceIndex, calls: Instances, kept: Int64) -> npt.NDArray[np.bool_]:
    """Messages whose wait, on their lowest rank, begins before that rank calls the next one."""
    table, waits = index.trace.collectives, index.trace.collective_waits
    rows = calls.row[calls.starts[kept]]
    call, rank = table["call_ns"][rows], table["rank"][rows]
    following = np.full(len(rows), np.iinfo(np.int64).max)
    order = np.lexsort((call, rank))
    same = rank[order][1:] == rank[order][:-1]
    following[order[:-1][same]] = call[order][1:][same]
    keys = table["collective_key"][rows]
    first_wait = np.full(len(rows), np.iinfo(np.int64).max)
    if len(waits):
        by_key = np.argsort(keys, kind="stable")
        at = np.minimum(np.searchsorted(keys[by_key], waits["collective_key"]), len(keys) - 1)
        hit = keys[by_key][at] == waits["collective_key"]
        np.minimum.at(first_wait, by_key[at[hit]], waits["begin_ns"][hit])
    return np.asarray(first_wait < following)
