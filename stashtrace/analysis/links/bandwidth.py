"""bandwidth: algbw and busbw of collectives by size, as NCCL's own tests define them."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from stashtrace.analysis.collectives.matching import group_table
from stashtrace.analysis.collectives.waits import collective_rows
from stashtrace.analysis.devices.kernels import grouped, one_key
from stashtrace.analysis.devices.work import one_of
from stashtrace.analysis.intervals import Int64, int64
from stashtrace.calibration.fit import bus_bytes
from stashtrace.schema.columns import RANK_OR_ALL, Column, schema
from stashtrace.schema.table import Table
from stashtrace.schema.trace import Trace

BANDWIDTH = schema(
    "bandwidth",
    "Bandwidth of collectives by size, as NCCL's own tests define it; needs collectives with begin and end",
    RANK_OR_ALL,
    ("communicator", "U16", "", "name of the group"),
    ("op", "U16", "", "CollectiveOp in lower case"),
    ("group_size", "i8", "", "ranks of the group"),
    Column(
        "size_class_bytes",
        "i8",
        "bytes",
        "sizes from this power of two to the next, -1 if sizes are unknown",
        missing=-1,
    ),
    ("calls_count", "i8", "", "rows of collectives summed up, one per rank and operation"),
    ("total_bytes", "i8", "bytes", "what NCCL calls the size, all calls added"),
    ("duration_ns", "i8", "ns", "from the begin on a rank to its end, median; waiting for late ranks included"),
    ("transfer_ns", "i8", "ns", "from the entry of the last rank to the end, median"),
    ("algorithm_bytes_per_s", "f8", "", "algbw: size by duration, over all calls, 0 if unknown"),
    ("bus_bytes_per_s", "f8", "", "busbw: bytes over the busiest link by duration, 0 if unknown"),
    ("transfer_bus_bytes_per_s", "f8", "", "busbw without the waiting: by transfer, 0 if unknown"),
    ("best_bus_bytes_per_s", "f8", "", "busbw of the best call, by transfer, 0 if unknown"),
)

Floats = npt.NDArray[np.float64]
#: Operations whose size, to NCCL's tests, is what all ranks put in together.
_OF_ALL = ("all_gather", "gather")
#: Not operations of a group.
_SINGLE = ("barrier", "other")


def bandwidth(trace: Trace, *, by: Literal["run", "rank"] = "run") -> Table:
    """Hold the bytes of collectives against their time.

    ``algbw`` is size by time, ``busbw`` what the busiest link carried by time, with the sizes and factors of
    nccl-tests: all-reduce ``2 (n - 1) / n``; all-gather, reduce-scatter and all-to-all ``(n - 1) / n``; broadcast,
    reduce, send and receive 1. The size of an all-gather is what all ranks put in together. Barriers, and operations
    of an unknown kind, have neither and are left out.

    The time of an operation begins when its own rank enters it, so it includes waiting for late ranks, as it does in
    the tools that divide by the length of the kernel; NCCL's tests start all ranks together. ``transfer`` begins with
    the entry of the last rank, where that is known: with one recorded rank both are the same.

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
    size, carried = _carried(times["op"], sizes, times["bytes"])
    duration = times["end_ns"] - times["begin_ns"]
    rank = times["rank"] if by == "rank" else np.full(len(times), -1)
    names, communicator = np.unique(times["communicator"], return_inverse=True)
    ops, op = np.unique(times["op"], return_inverse=True)
    size_class = _size_class(size)
    keys = rank, int64(communicator), int64(op), sizes, size_class
    found, moving = grouped(duration, *keys), grouped(times["transfer_ns"], *keys)
    at = _places(keys, found.first)
    known = size_class[found.first] >= 0

    def summed(values: Floats) -> Floats:
        return np.asarray(np.bincount(at, values, minlength=len(found.first)), dtype=np.float64)

    total, taken = summed(size), summed(duration.astype(np.float64))
    moving_ns = times["transfer_ns"].astype(np.float64)
    # A rank that left as the last one entered, by the ranks' clocks, says nothing about the link.
    transferred, seen, bus = summed(moving_ns), summed(np.where(moving_ns > 0, carried, 0.0)), summed(carried)
    best = np.zeros(len(found.first))
    np.maximum.at(best, at, np.where(times["transfer_ns"] > 0, carried / np.maximum(times["transfer_ns"], 1), 0.0))
    first = found.first
    return Table(
        BANDWIDTH,
        {
            "rank": rank[first],
            "communicator": names[communicator[first]],
            "op": ops[op[first]],
            "group_size": sizes[first],
            "size_class_bytes": size_class[first],
            "calls_count": found.counts,
            "total_bytes": np.where(known, np.rint(total), -1).astype(np.int64),
            "duration_ns": found.median_ns,
            "transfer_ns": moving.median_ns,
            "algorithm_bytes_per_s": np.where(known, total / taken, 0.0) * 1e9,
            "bus_bytes_per_s": np.where(known, bus / taken, 0.0) * 1e9,
            "transfer_bus_bytes_per_s": np.where(known, seen / np.maximum(transferred, 1), 0.0) * 1e9,
            "best_bus_bytes_per_s": np.where(known, best, 0.0) * 1e9,
        },
    )


def _group_sizes(trace: Trace) -> Int64:
    """Ranks of each row's group: what the group said, or the members that are known."""
    groups = trace.groups
    told = dict(zip(groups["group_hash"].tolist(), groups["group_size"].tolist(), strict=True))
    known = group_table(trace)
    hashes, inverse = np.unique(trace.collectives["group_hash"], return_inverse=True)
    return np.array([max(told.get(h, 0), len(known[h].members)) for h in hashes.tolist()], dtype=np.int64)[inverse]


def _carried(op: npt.NDArray[np.str_], ranks: Int64, message: Int64) -> tuple[Floats, Floats]:
    """(size as NCCL's tests count it, bytes over the busiest link) of each row."""
    size = np.maximum(message, 0).astype(np.float64)
    carried = np.zeros(len(size))
    names, place = np.unique(op, return_inverse=True)
    for number, name in enumerate(names.tolist()):
        for count in np.unique(ranks[place == number]).tolist():
            rows = (place == number) & (ranks == count)
            carried[rows] = bus_bytes(name, count, 1.0) * size[rows]
            if name in _OF_ALL:
                size[rows] *= count
    return size, carried


def _size_class(size: Floats) -> Int64:
    """Largest power of two that is not above the size, -1 where there is none."""
    _, exponent = np.frexp(size)
    return np.where(size >= 1, np.int64(1) << np.maximum(exponent.astype(np.int64) - 1, 0), -1)


def _places(keys: tuple[Int64, ...], first: Int64) -> Int64:
    """Group of each row, numbered as ``grouped`` orders the groups."""
    codes = one_key(*keys)
    return int64(np.searchsorted(codes[first], codes))
