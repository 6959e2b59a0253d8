"""bandwidth: algbw and busbw of collectives by size, as NCCL's own tests define them."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.collectives.collective_waits import collective_rows
from stashtrace.analysis.collectives.matching import group_table
from stashtrace.analysis.devices.work import one_of
from stashtrace.analysis.intervals import Int64
from stashtrace.calibration.fit_link import bus_bytes
from stashtrace.schema import columns as col
from stashtrace.schema.columns import RANK_OR_ALL, schema
from stashtrace.schema.groupby import GroupBy
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

BANDWIDTH = schema(
    "bandwidth",
    "Bandwidth of collectives by size, as NCCL's own tests define it; needs collectives with begin and end",
    RANK_OR_ALL,
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

Floats = npt.NDArray[np.float64]
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

    The time of an operation begins when its own rank enters it. So it includes waiting for late ranks, as in tools that
    divide by the length of the kernel; NCCL's tests start all ranks together. ``transfer`` begins with the entry of the
    last rank, where that is known; with one recorded rank, both are the same.

    Parameters
    ----------
    trace : Trace
        Needs collectives that ended.
    by : {"run", "rank"}
        Over all ranks, or per rank.

    Columns
    -------
    rank, communicator, op, group_size, size_class_bytes, calls_count, total_bytes, duration_ns, transfer_ns,
    algorithm_bytes_per_s, bus_bytes_per_s, transfer_bus_bytes_per_s, best_bus_bytes_per_s

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
    alike = GroupBy(rank, times["communicator"], times["op"], sizes, _size_class(size))
    rank, communicator, op, group_size, size_class = alike.keys
    known = size_class >= 0
    total, taken, transfer = alike.sum(size), alike.sum(duration), times["transfer_ns"]
    # If a rank left when the last one entered, by the ranks' clocks, its time says nothing about the link.
    moved = alike.sum(np.where(transfer > 0, carried, 0.0))
    best = alike.max(np.where(transfer > 0, carried / np.maximum(transfer, 1), 0.0))
    return Table(
        BANDWIDTH,
        {
            "rank": rank,
            "communicator": communicator,
            "op": op,
            "group_size": group_size,
            "size_class_bytes": size_class,
            "calls_count": alike.sizes,
            "total_bytes": np.where(known, np.rint(total), -1).astype(np.int64),
            "duration_ns": alike.median(duration),
            "transfer_ns": alike.median(transfer),
            "algorithm_bytes_per_s": np.where(known, total / taken, 0.0) * 1e9,
            "bus_bytes_per_s": np.where(known, alike.sum(carried) / taken, 0.0) * 1e9,
            "transfer_bus_bytes_per_s": np.where(known, moved / np.maximum(alike.sum(transfer), 1), 0.0) * 1e9,
            "best_bus_bytes_per_s": np.where(known, best, 0.0) * 1e9,
        },
    )


def _group_sizes(trace: Trace) -> Int64:
    """Return the number of ranks of each row's group: the recorded size, or the known members if they are more."""
    groups = trace.groups
    told = dict(zip(groups["group_hash"].tolist(), groups["group_size"].tolist(), strict=True))
    known = group_table(trace)
    return GroupBy(trace.collectives["group_hash"]).map(lambda g: max(told.get(g, 0), len(known[g].members)))


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
