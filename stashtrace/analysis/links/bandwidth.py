"""bandwidth, link_efficiency: collectives by size as NCCL's tests measure them, and compared with calibrated links.

transfer_certainty: how much of the link time of each rank is certain: after every rank of the operation had entered.

    rank 0     [ enter ............................. end ]      rank 1 left no record: it may have entered at any time
    rank 2             [ enter ..................... end ]      before the end
    link time          |---------- ranks_missing --------|

The bounds of ``stalls`` give the same by step; this table adds the reasons.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.collectives.collective_waits import collective_rows
from stashtrace.analysis.collectives.device_collectives import with_untimed
from stashtrace.analysis.collectives.matching import INSIDE, group_table, ranks_present
from stashtrace.analysis.collectives.shares import backends_of_rows
from stashtrace.analysis.devices.work import one_of
from stashtrace.analysis.intervals import Int64, TimeSet, int64
from stashtrace.analysis.stalls.budget import rank_layers
from stashtrace.analysis.stalls.rows_by_thread import TraceIndex
from stashtrace.analysis.steps.steps import counted_steps, ranks_and_steps
from stashtrace.analysis.steps.threads import StepThread
from stashtrace.calibration.file import Calibration, calibration_of
from stashtrace.calibration.fit_link import bus_bytes
from stashtrace.calibration.robust_line import Floats
from stashtrace.schema import columns as col
from stashtrace.schema.groupby import GroupBy, RowsBy
from stashtrace.schema.kinds import LINK_KINDS, SYNCHRONISING_OPS, CollectiveOp
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

BANDWIDTH = col.schema(
    "bandwidth",
    "Bandwidth of collectives by size, as NCCL's tests define it; needs collectives with begin and end",
    col.RANK_OR_ALL,
    col.word("communicator", "name of the group", detail=2),
    col.word("op", "CollectiveOp in lower case"),
    col.number("group_size", "ranks of the group"),
    col.nbytes("size_class_bytes", "sizes from this power of two to the next, -1 if sizes are unknown", missing=-1),
    col.number("calls_count", "rows of collectives summed up, one per rank and operation"),
    col.nbytes("total_bytes", "what NCCL calls the size, all calls added"),
    col.ns("duration_ns", "from the begin on a rank to its end, median; waiting for late ranks included"),
    col.ns("transfer_ns", "from the entry of the last rank to the end, median"),
    col.real("algorithm_bytes_per_s", "algbw: size by duration, over all calls, 0 if unknown"),
    col.real("bus_bytes_per_s", "busbw: bytes over the busiest link by duration, 0 if unknown"),
    col.real("transfer_bus_bytes_per_s", "busbw without the waiting: by transfer, 0 if unknown"),
    col.real("best_bus_bytes_per_s", "busbw of the best call, by transfer, 0 if unknown"),
)

#: Operations whose size, in NCCL's tests, is the input of all ranks together.
_OF_ALL = ("all_gather", "gather")
#: Not operations of a group.
_SINGLE = ("barrier", "other")


def bandwidth(trace: Trace, *, by: Literal["run", "rank"] = "run") -> Table:
    """Hold the bytes of collectives against their time.

    ``algbw`` is size by time, ``busbw`` the bytes on the busiest link by time, with the sizes and factors of
    nccl-tests: all-reduce ``2 (n - 1) / n``; all-gather, reduce-scatter and all-to-all ``(n - 1) / n``; broadcast,
    reduce, send and receive 1. The size of an all-gather is the input of all ranks together. Barriers, and operations
    of an unknown kind, have neither and are left out.

    The time of an operation begins when its rank enters it. So it includes waiting for late ranks, as in tools that
    divide by the length of the kernel; NCCL's tests start all ranks together. ``transfer`` begins with the entry of the
    last rank, where that is known; with one recorded rank, both are the same. Columns: table ``bandwidth`` of
    ``docs/reference/tables.md``.

    Parameters
    ----------
    trace : Trace
        Needs collectives that ended.
    by : {"run", "rank"}
        Over all ranks, or per rank.

    Raises
    ------
    MissingDataError
        If no collective was recorded.
    """
    one_of("by", by, "run", "rank")
    times, sizes = collective_rows(trace), _group_sizes(trace)
    ended = (trace.collectives["end_ns"] >= 0) | (trace.collectives["device_end_ns"] >= 0)
    chosen = np.flatnonzero(ended & (times["end_ns"] > times["begin_ns"]) & ~np.isin(times["op"], _SINGLE))
    times, sizes = times.take(chosen), sizes[chosen]
    if not len(times):
        return Table.empty(BANDWIDTH)
    size, carried = _bytes_carried(times["op"], sizes, times["bytes"])
    duration = times["end_ns"] - times["begin_ns"]
    rank = times["rank"] if by == "rank" else np.full(len(times), -1)
    similar = GroupBy(rank, times["communicator"], times["op"], sizes, _size_class(size))
    rank, communicator, op, group_size, size_class = similar.keys
    known = size_class >= 0
    total, taken, transfer = similar.sum(size), similar.sum(duration), times["transfer_ns"]
    # If a rank left when the last one entered, by the ranks' clocks, its time says nothing about the link.
    moved = similar.sum(np.where(transfer > 0, carried, 0.0))
    best = similar.max(np.where(transfer > 0, carried / np.maximum(transfer, 1), 0.0))
    return Table(
        BANDWIDTH,
        {
            "rank": rank,
            "communicator": communicator,
            "op": op,
            "group_size": group_size,
            "size_class_bytes": size_class,
            "calls_count": similar.sizes,
            "total_bytes": np.where(known, np.rint(total), -1).astype(np.int64),
            "duration_ns": similar.median(duration),
            "transfer_ns": similar.median(transfer),
            "algorithm_bytes_per_s": np.where(known, total / taken, 0.0) * 1e9,
            "bus_bytes_per_s": np.where(known, similar.sum(carried) / taken, 0.0) * 1e9,
            "transfer_bus_bytes_per_s": np.where(known, moved / np.maximum(similar.sum(transfer), 1), 0.0) * 1e9,
            "best_bus_bytes_per_s": np.where(known, best, 0.0) * 1e9,
        },
    )


def _group_sizes(trace: Trace) -> Int64:
    """Return the number of ranks of each row's group: the recorded size, or the known members if they are more."""
    recorded = trace.groups.lookup("group_hash", "group_size")
    known = group_table(trace)
    return GroupBy(trace.collectives["group_hash"]).map(lambda g: max(recorded.get(g, 0), len(known[g].members)))


def _bytes_carried(op: npt.NDArray[np.str_], ranks: Int64, message: Int64) -> tuple[Floats, Floats]:
    """Return (size as NCCL's tests count it, bytes over the busiest link) of each row."""
    size = np.maximum(message, 0).astype(np.float64)
    carried = np.zeros(len(size))
    for name, count, rows in GroupBy(op, ranks).items():
        carried[rows] = bus_bytes(name, count, 1.0) * size[rows]
        if name in _OF_ALL:
            size[rows] *= count
    return size, carried


def _size_class(size: Floats) -> Int64:
    """Return the largest power of two not above each size; -1 for sizes below 1."""
    _, exponent = np.frexp(size)
    return np.where(size >= 1, np.int64(1) << np.maximum(exponent.astype(np.int64) - 1, 0), -1)


LINK_EFFICIENCY = col.schema(
    "link_efficiency",
    "Transfers of collectives by size, and how fast a calibration says the link can be",
    col.RANK_OR_ALL,
    col.number("step", "ordinal of the step, -1 for all and outside steps", missing=-1),
    col.word("communicator", "name of the group", detail=2),
    col.word("op", "CollectiveOp in lower case"),
    col.number("group_size", "ranks that took part"),
    col.nbytes("message_bytes", "payload of one rank's input"),
    col.number("calls_count", "rows of collectives summed up"),
    col.ns("transfer_ns", "median transfer, without waiting for the last rank"),
    col.real("bus_bytes_per_s", "bytes over the busiest link by the median transfer, 0 if it took no time"),
    col.ns("expected_ns", "what the calibration expects, -1 if it does not say", missing=-1, detail=6),
    col.ns("error_ns", "standard error of that, -1 if it does not say", missing=-1),
    col.real("efficiency_ratio", "expected by measured: 1 as calibrated, less is slower, -1 if unknown", missing=-1),
    col.word("method", "calibration, extrapolated, crosses_hosts, not_calibrated or none", detail=7),
)

#: Source of the expected time, or why there is none; worst last, so that a group of rows takes the largest.
METHODS = ("calibration", "extrapolated", "crosses_hosts", "not_calibrated", "none")
_CALIBRATED, _EXTRAPOLATED, _CROSSES, _UNCALIBRATED, _NONE = range(len(METHODS))


@dataclass(frozen=True, slots=True)
class ExpectedTransfers:
    """Columns parallel to ``trace.collectives``."""

    #: Expected transfer time and its standard error, -1 where unknown.
    expected_ns: Floats
    error_ns: Floats
    #: Index into :data:`METHODS`.
    method: Int64


def link_efficiency(
    trace: Trace,
    *,
    calibration: Calibration | str | os.PathLike[str] | None = None,
    by: Literal["run", "rank", "step"] = "run",
) -> Table:
    """Compare the transfers of collectives with what the link did when it was calibrated.

    One row per communicator, operation and message size. ``efficiency_ratio`` is expected by measured time: 0.9 is 90 %
    of what the link can do. The median transfer counts, from the last rank's entry to the end. Groups over several
    hosts have no expected time, because a calibration covers one host; neither have other backends or numbers of ranks
    than the calibrated ones (``method`` says which). Columns: table ``link_efficiency`` of
    ``docs/reference/tables.md``.

    Parameters
    ----------
    trace : Trace
        Needs collectives.
    calibration : Calibration or path, optional
        By default ``calibration.toml`` in the run directory; without one there are no expected times.
    by : {"run", "rank", "step"}
        Rows over the run, per rank, or per rank and step.

    Raises
    ------
    MissingDataError
        If no collective was recorded.
    FormatError
        If the calibration is damaged.

    Warns
    -----
    ForeignCalibrationWarning
        If it was measured on another machine.
    """
    one_of("by", by, "run", "rank", "step")
    times = collective_rows(trace)
    expected = expected_transfers(trace, calibration_of(trace, calibration))
    nothing = np.full(len(times), -1, dtype=np.int64)
    columns = {
        "rank": times["rank"] if by != "run" else nothing,
        "step": times["step"] if by == "step" else nothing,
        "communicator": times["communicator"],
        "op": times["op"],
        "group_size": _sizes_and_links(trace)[0],
        "message_bytes": times["bytes"],
    }
    moved = times["bytes"] > 0
    return _sum_rows(
        {name: values[moved] for name, values in columns.items()},
        times["transfer_ns"][moved],
        expected.expected_ns[moved],
        expected.error_ns[moved],
        expected.method[moved],
    )


def expected_transfers(trace: Trace, calibration: Calibration | None) -> ExpectedTransfers:
    """Return how long the transfer of every collective should take."""
    table = trace.collectives
    expected, error = np.full(len(table), -1.0), np.full(len(table), -1.0)
    method = np.full(len(table), _NONE, dtype=np.int64)
    if calibration is None or len(table) == 0:
        return ExpectedTransfers(expected, error, method)
    method[:] = _UNCALIBRATED
    sizes, links = _sizes_and_links(trace)
    for op, ranks, backend, rows in GroupBy(table["op_code"], sizes, backends_of_rows(trace)).items():
        if op not in CollectiveOp.__members__.values() or ranks < 2:
            continue
        answer = calibration.expected(
            CollectiveOp(op).name.lower(), table["message_bytes"][rows], ranks=ranks, backend=backend or None
        )
        if answer is not None:
            expected[rows], error[rows] = answer.time_ns, answer.error_ns
            method[rows] = np.where(answer.extrapolated, _EXTRAPOLATED, _CALIBRATED)
    away = (links != INSIDE) & (method <= _EXTRAPOLATED)
    expected[away] = error[away] = -1.0
    method[away] = _CROSSES
    return ExpectedTransfers(expected, error, method)


def _sizes_and_links(trace: Trace) -> tuple[Int64, Int64]:
    """Return the number of members of each row's group, and its link."""
    groups, by_group = group_table(trace), GroupBy(trace.collectives["group_hash"])
    return by_group.map(lambda group: len(groups[group].members)), by_group.map(lambda group: groups[group].link)


def _sum_rows(keys: dict[str, np.ndarray], transfer: Int64, expected: Floats, error: Floats, method: Int64) -> Table:
    if len(transfer) == 0:
        return Table.empty(LINK_EFFICIENCY)
    similar = GroupBy(*keys.values())
    median = similar.median(transfer)
    first = similar.argmin(transfer)
    chosen = dict(zip(keys, similar.keys, strict=True))
    known = expected[first] > 0
    messages = zip(*(chosen[n].tolist() for n in ("op", "group_size", "message_bytes")), strict=True)
    carried = np.array([bus_bytes(*message) for message in messages], dtype=np.float64)
    return Table(
        LINK_EFFICIENCY,
        {
            **chosen,
            "calls_count": similar.sizes,
            "transfer_ns": median,
            "bus_bytes_per_s": np.where(median > 0, carried / np.maximum(median, 1) * 1e9, 0.0),
            "expected_ns": np.where(known, np.rint(expected[first]), -1).astype(np.int64),
            "error_ns": np.where(known, np.rint(error[first]), -1).astype(np.int64),
            "efficiency_ratio": np.where(known & (median > 0), expected[first] / np.maximum(median, 1), -1.0),
            "method": np.array(METHODS)[similar.max(method)],
        },
    )


TRANSFER_CERTAINTY = col.schema(
    "transfer_certainty",
    "Link time of the counted steps of a rank, by whether every rank of the operation is known to have entered by then",
    col.RANK,
    col.word(
        "reason",
        "certain; ranks_missing, members_unknown, operation_unknown, matched_by_order, untimed or no_operation: part of"
        " it may be waiting for other ranks",
        width=24,
    ),
    col.ns("link_ns", "network and interconnect time of the rank in its counted steps; the reasons sum to it"),
    col.real("share_ratio", "of the link time of the rank"),
    col.number("collectives_count", "operations with a transfer in the counted steps that have this reason"),
)

CERTAIN = "certain"
#: Why a rank may have entered later than the known ones; the first reason that applies explains an instant.
REASONS = ("operation_unknown", "members_unknown", "ranks_missing", "untimed", "matched_by_order", CERTAIN)
NO_OPERATION = "no_operation"


def transfer_certainty(trace: Trace, *, warmup: bool = False) -> Table:
    """Divide the link time of each rank by whether all ranks of the operation are known to have entered before.

    ``certain``: all had entered. ``ranks_missing``: members of the group left no record of this operation.
    ``members_unknown``: the members of the group are not recorded. ``operation_unknown``: it is unknown what the
    operation waits for (a kernel of sends and receives, an unknown root). ``untimed``: the device times of a rank are
    missing. ``matched_by_order``: its rows were matched by their order, and do not end together. ``no_operation``: a
    communication kernel whose operation is not in the trace. Columns: table ``transfer_certainty`` of
    ``docs/reference/tables.md``.

    Parameters
    ----------
    trace : Trace
        Needs steps.
    warmup : bool
        Whether the warm-up steps count.

    Raises
    ------
    MissingDataError
        If no rank has steps.
    """
    index = TraceIndex(trace)
    counted = counted_steps(index.steps, warmup=warmup)
    reason, by_rank = _reasons(index), RowsBy(counted["rank"])
    rows: list[tuple[object, ...]] = []
    for thread, _ in ranks_and_steps(index.origin, index.steps):
        steps = counted.take(by_rank.rows(thread.rank))
        rows += _of_rank(index, thread, TimeSet.of_rows(steps), reason)
    return Table.from_rows(TRANSFER_CERTAINTY, rows)


def _of_rank(index: TraceIndex, thread: StepThread, window: TimeSet, reason: Int64) -> list[tuple[object, ...]]:
    link = rank_layers(index, thread).time_of(*LINK_KINDS) & window
    rows = index.collectives.rows(thread.process_id)
    matched = index.in_flight
    begin = np.maximum(matched.last_enter_ns[rows], index.entered_ns[rows])
    # An operation that never ended lasts as long as the rank; without the entry of a rank, it never transferred.
    end = np.minimum(matched.end_ns[rows], thread.end_ns)
    named: list[tuple[str, int, int]] = []
    for code, name in enumerate(REASONS):
        chosen = (reason[rows] == code) & (end > begin)
        if not chosen.any():
            continue
        moving = TimeSet.of(begin[chosen], end[chosen])
        spent = link & moving
        link = link - moving
        count = int(np.count_nonzero(window.within(begin[chosen], end[chosen]) > 0))
        named.append((name, spent.total_ns, count))
    named.append((NO_OPERATION, link.total_ns, 0))
    total = max(sum(ns for _, ns, _ in named), 1)
    return [(thread.rank, name, ns, ns / total, count) for name, ns, count in named if ns > 0]


def _reasons(index: TraceIndex) -> Int64:
    """Return the index in ``REASONS`` of each collective."""
    trace, table = index.trace, index.trace.collectives
    groups = group_table(trace)
    size = GroupBy(table["group_hash"]).map(lambda group: groups[group].size)
    unsaid = ~np.isin(table["op_code"], SYNCHRONISING_OPS)
    devices = index.on_devices
    unseen = devices.timed & with_untimed(trace, devices.given & ~devices.timed)
    why = [unsaid, size < 0, ranks_present(table) < size, unseen]
    partial = index.in_flight.partial
    code = np.select(why, range(len(why)), REASONS.index("matched_by_order"))
    return int64(np.where(partial, code, REASONS.index(CERTAIN)))
