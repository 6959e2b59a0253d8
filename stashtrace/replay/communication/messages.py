"""The messages of a run on their links: when each could be sent, when it had arrived, in which backward pass.

    rank 0   call |...................                          ready = the last member's entry
    rank 1           call |...........                          link  = its part of the time in which the link worked
                          ready         end                             (replay.communication.overlap.link_times)

``link_ns`` includes no waiting for late ranks or for earlier messages. Alpha and beta are fitted to these times, and
the recurrence adds the waiting again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.collectives.collective_waits import communicator_names
from stashtrace.analysis.collectives.matching import group_table
from stashtrace.analysis.collectives.shares import backends_of_rows
from stashtrace.analysis.intervals import Bools, Int64, int64, window_at
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.analysis.steps.steps import counted_steps, host_steps
from stashtrace.analysis.steps.threads import step_threads
from stashtrace.analysis.stragglers.instances import HUNG, PARTIAL, Instances, instances
from stashtrace.calibration.robust_line import Floats
from stashtrace.errors import MissingDataError
from stashtrace.replay.communication.overlap import link_times
from stashtrace.schema.groupby import GroupBy, RowsBy, order_by
from stashtrace.schema.kinds import CollectiveOp, ElementType, Phase, PhaseFlag
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

#: Facts of a process, each with the number of the wrapper; the same in ``probes/torch/ddp``.
BUCKET, GRADIENTS = "ddp_bucket", "ddp_gradients"
_MOST_WRAPPERS = 8
#: The wrapper by the name of its class, which recordings of other tools show.
WRAPPER = "DistributedDataParallel"


@dataclass(frozen=True, slots=True)
class DdpFacts:
    """Facts on which all ranks agree; they may have several models."""

    #: ``bucket_cap_mb``; None if unknown, or if models differ.
    bucket_mib: float | None
    #: Where the size comes from: ``default`` (torch's own, whose first bucket is smaller), ``script``, ``applied`` (by
    #: ``STASHTRACE_BUCKET_MB``); empty if no such model was recorded.
    sources: tuple[str, ...]
    #: In the reverse order of the parameters, usually the order in which they are made; empty if unknown.
    gradients_bytes: Floats

    @property
    def bucket_bytes(self) -> float | None:
        """``bucket_mib`` in bytes."""
        return None if self.bucket_mib is None else self.bucket_mib * 2**20


def shows_ddp(trace: Trace) -> bool:
    """Return True if a run shows that wrapper, by its class or by a recorded fact: others send no buckets."""
    return trace.strings.find(WRAPPER) >= 0 or bool(ddp_facts(trace).sources)


def ddp_facts(trace: Trace) -> DdpFacts:
    """Read the facts of a run; facts that cannot be read are ignored."""
    matches = [re.fullmatch(r"([0-9.e+-]+) (\w+)", text) for text in _facts(trace, BUCKET)]
    whole = [match.groups() for match in matches if match is not None]
    sizes = {_number(size) for size, _ in whole}
    lists = _facts(trace, GRADIENTS)
    gradients = np.zeros(0)
    if len(lists) == 1 and len(whole) == 1 and re.fullmatch(r"\d+( \d+)*", lists[0]):
        gradients = np.array(lists[0].split(), dtype=np.float64)
    return DdpFacts(sizes.pop() if len(sizes) == 1 else None, tuple(sorted({by for _, by in whole})), gradients)


def _facts(trace: Trace, key: str) -> list[str]:
    """Return the distinct values of a fact, over all wrappers of all processes."""
    codes = [trace.strings.find(f"{key} {number}") for number in range(_MOST_WRAPPERS)]
    chosen = np.isin(trace.metadata["key_code"], [code for code in codes if code >= 0])
    return [trace.text(int(value)) for value in np.unique(trace.metadata["value_code"][chosen])]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


#: Messages that a backend works on at a time: ProcessGroupGloo has threads, device backends have one stream.
PARALLEL = {"gloo": 2}
#: torch makes gradients of floating-point and complex numbers alone, and nobody compresses them into these. Messages of
#: such elements in a backward pass are about the pass, as DistributedDataParallel's map of the parameters in use.
_NEVER_GRADIENTS = (ElementType.INT16, ElementType.INT32, ElementType.INT64, ElementType.BOOL8)


@dataclass(frozen=True, slots=True)
class Messages:
    """One entry per message (not per rank), by communicator, then sequence."""

    communicator: npt.NDArray[np.str_]
    op: npt.NDArray[np.str_]
    backend: npt.NDArray[np.str_]
    #: Number of the communicator, which is a separate link; several may have one name.
    lane: Int64
    #: Members of the group, and payload.
    ranks_count: Int64
    bytes: Int64
    #: When the last member entered, and when the last member was done.
    ready_ns: Int64
    end_ns: Int64
    #: Time that the link worked for the message.
    link_ns: Floats
    #: Lowest member; its step, -1 outside of counted steps; its backward pass, -1 outside of any, and of a message
    #: whose elements cannot be gradients.
    rank: Int64
    step: Int64
    backward: Int64
    #: When that pass began on the host, -1 outside of any.
    backward_begin_ns: Int64
    #: The message was called before that pass returned, as the buckets of DistributedDataParallel are.
    within: Bools
    #: Communicator, as in ``collectives``.
    group_hash: npt.NDArray[np.uint64]
    #: Number within it, as in ``collectives``.
    sequence: Int64
    #: The caller waited for it before it went on to the next.
    blocking: Bools
    #: Times are those of devices.
    on_device: Bools
    #: The run has steps.
    has_steps: bool
    #: Recorded facts about buckets and gradients.
    ddp: DdpFacts

    def __len__(self) -> int:
        return len(self.bytes)


def gradient_messages(trace: Trace) -> Messages:
    """Gather the messages of all operations in which no member can end before all have entered.

    Messages without payload, without an end, or with missing rows of members are left out.

    Raises MissingDataError if there is no such message.
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
    groups, lanes = group_table(index.trace), GroupBy(calls.group_hash[kept])
    sizes = lanes.map(lambda group: len(groups[group].members))
    backend = backends_of_rows(index.trace)[rows]
    link = np.zeros(len(kept))
    for of_lane in lanes:
        ordered = of_lane[order_by(ready[of_lane], table["sequence"][rows[of_lane]])]
        origin = int(ready[ordered].min())
        parallel = PARALLEL.get(str(backend[ordered[0]]), 1)
        link[ordered] = link_times(ready[ordered] - origin, end[ordered] - origin, parallel=parallel)
    step, backward, backward_begin, within, has_steps = _places(index, loops, table, rows)
    return Messages(
        communicator=communicator_names(index.trace, table["group_hash"][rows]),
        op=np.array([op.name.lower() for op in CollectiveOp])[table["op_code"][rows]],
        backend=backend,
        lane=lanes.number,
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
) -> tuple[Int64, Int64, Int64, Bools, bool]:
    """Return step, backward pass and its begin of each message, by the call of its lowest rank.

    The last two results are whether the call was inside the pass, and whether the run has steps.
    """
    step, backward, began = (np.full(len(rows), -1, dtype=np.int64) for _ in range(3))
    within = np.zeros(len(rows), dtype=bool)
    try:
        known = counted_steps(host_steps(index.origin))
    except MissingDataError:
        return step, backward, began, within, False
    steps_of, rows_of = RowsBy(known["rank"]), RowsBy(table["rank"][rows])
    for rank in rows_of.values.tolist():
        places, mine = rows_of.rows(rank), steps_of.rows(rank)
        if not len(mine) or rank not in loops:
            continue
        call = table["call_ns"][rows[places]]
        at = window_at(call, known["begin_ns"][mine], known["end_ns"][mine])
        inside = at >= 0
        step[places[inside]] = known["step"][mine][at[inside]]
        begin, is_backward = loops[rank].begin_ns, loops[rank].is_backward
        # A pass lasts until the next forward or backward begins: gradients may be sent after it has returned.
        last = np.searchsorted(begin, call, side="right") - 1
        in_pass = inside & (last >= 0) & (is_backward[np.maximum(last, 0)] if len(begin) else False)
        in_pass &= ~np.isin(table["element_code"][rows[places]], _NEVER_GRADIENTS)
        if in_pass.any():
            # A pass that began in an earlier step belongs to that step.
            in_pass &= begin[np.maximum(last, 0)] >= known["begin_ns"][mine][np.maximum(at, 0)]
            backward[places[in_pass]], began[places[in_pass]] = last[in_pass], begin[last[in_pass]]
            within[places[in_pass]] = call[in_pass] < loops[rank].end_ns[last[in_pass]]
    return step, backward, began, within, True


@dataclass(frozen=True, slots=True)
class _Loop:
    """Forwards and backwards of a rank's step thread, in order.

    ``awaits`` marks backwards that end when their messages have arrived, since DistributedDataParallel waits for
    them.
    """

    begin_ns: Int64
    end_ns: Int64
    is_backward: Bools
    awaits: Bools


def _loops(index: TraceIndex) -> dict[int, _Loop]:
    """Return the loop of each rank; empty if the step threads are unknown.

    Forwards that activation checkpointing repeats end no backward: they are nested, or run by the autograd engine.
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
    """Return the end of each row of the instances.

    The host learns of an end from a callback that needs the interpreter's lock. The step thread, whose backward waited
    for the message, may take the lock first and keep it for milliseconds: then the end of backward counts.
    """
    table, end = index.trace.collectives, int64(calls.end_ns.copy())
    seen = np.isin(table["collective_key"][calls.row], index.trace.collective_waits["collective_key"])
    late = np.flatnonzero(~index.timed_on_device[calls.row] & ~seen)
    for rank, of_rank in GroupBy(calls.rank[late]).items():
        loop = loops.get(rank)
        if loop is None or not loop.awaits.any():
            continue
        rows = late[of_rank]
        call = table["call_ns"][calls.row[rows]]
        at = window_at(call, loop.begin_ns, loop.end_ns)
        inside = (at >= 0) & loop.awaits[at]
        end[rows[inside]] = np.minimum(end[rows], loop.end_ns[at])[inside]
    return end


def _blocking(index: TraceIndex, calls: Instances, kept: Int64) -> Bools:
    """Return the mask of messages for which their lowest rank waits before it calls the next one."""
    table, waits = index.trace.collectives, index.trace.collective_waits
    rows = calls.row[calls.starts[kept]]
    call, rank = table["call_ns"][rows], table["rank"][rows]
    following = np.full(len(rows), np.iinfo(np.int64).max)
    order = np.lexsort((call, rank))
    same = rank[order][1:] == rank[order][:-1]
    following[order[:-1][same]] = call[order][1:][same]
    keys = table["collective_key"][rows]
    calls_waited_for = GroupBy.numbered(GroupBy(keys).row_of(waits["collective_key"]), len(rows))
    first_wait = calls_waited_for.min(waits["begin_ns"], empty=np.iinfo(np.int64).max)
    return np.asarray(first_wait < following)
