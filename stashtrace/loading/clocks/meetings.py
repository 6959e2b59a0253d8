"""Limits between the clocks of hosts: when each host entered an operation, and when the operation ended there.

    host A   enter |========| end          the end on B comes after the entry on A, and the end on A after that on B:
    host B      enter |=======| end        two limits of the offset for each pair of hosts

One :class:`Meetings` holds, for each operation and host, the latest entry that the others had to wait for and the
earliest end that had to wait for the others. An exchange of messages gives the same limits: a message is received
after it is sent. Built from the collectives of a run (native or imported) and from pings. Pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stashtrace.collectors.decode_context import TickClock
from stashtrace.loading.clocks.fit_host_pair import COLLECTIVES, PING
from stashtrace.schema.groupby import Bools, Int64
from stashtrace.schema.kinds import FAILED_STATUS, FROM_ROOT, SYNCHRONISING_OPS, TO_ROOT, CollectiveOp, CollectiveSource
from stashtrace.schema.table import Table
from stashtrace.schema.trace import RawProcess

#: No moment: no host had to wait for it.
NONE = np.int64(np.iinfo(np.int64).min)


@dataclass(frozen=True, slots=True)
class Meetings:
    """One row per operation and host that took part; operations of one host are left out."""

    #: Ascending number.
    operation: Int64
    #: Number of the process group or of the exchange, the same for all rows of an operation.
    circle: Int64
    host: Int64
    #: On the host's clock; ``NONE`` if the host has no usable one.
    enter_ns: Int64
    end_ns: Int64
    #: Error of the clocks behind these times; already subtracted from ``enter_ns`` and added to ``end_ns``.
    error_ns: Int64
    #: True if no rank can end before all ranks have entered.
    together: Bools
    #: True if the times are from devices.
    on_device: Bools
    #: ``offset.COLLECTIVES`` or ``PING``.
    source: npt.NDArray[np.int8]
    #: Number of invalid operations: one rank has two of the same number, or ranks have different ones.
    dropped_count: int = 0

    @classmethod
    def concat(cls, parts: Sequence[Meetings]) -> Meetings:
        """Join meetings of several kinds; numbers continue from part to part."""
        columns = {}
        for name in cls.__slots__[:-1]:
            pieces, first = [], 0
            for part in parts:
                values = getattr(part, name)
                numbered = name in ("operation", "circle")
                pieces.append(values + first if numbered else values)
                first += int(values.max(initial=-1)) + 1 if numbered else 0
            columns[name] = np.concatenate(pieces)
        return cls(**columns, dropped_count=sum(p.dropped_count for p in parts))


def meetings_of(
    collectives: Table, groups: Table, host_of: Int64, own_error_ns: Int64, error_of: Mapping[tuple[int, int], int]
) -> Meetings:
    """Return the meetings in the collectives of a run.

    ``collectives``, ``groups``: of all processes, each on its host's clock. ``host_of``: process_id -> host.
    ``own_error_ns``: error between moments of the same host's clock. ``error_of``: (process_id, source_code) -> error
    of the device clock behind its times.
    """
    table = collectives
    op, process = table["op_code"], table["process_id"]
    host = host_of[process] if len(process) else process
    order = np.lexsort((host, table["sequence"], table["group_hash"]))
    group, sequence = table["group_hash"][order], table["sequence"][order]
    new = np.ones(len(order), dtype=bool)
    new[1:] = (group[1:] != group[:-1]) | (sequence[1:] != sequence[:-1])
    number = np.cumsum(new) - 1
    several, sound = _across(number, host[order], new), _sound(number, order, table, new)
    used = (several & sound)[number]
    order, number = order[used], number[used]
    dropped = int((several & ~sound).sum())

    timed = (table["device_begin_ns"] >= 0) & (table["device_end_ns"] >= table["device_begin_ns"])
    error = _errors(process, table["source_code"], timed, error_of)[order] + own_error_ns[host[order]]
    enter = np.where(timed & ~_begun_by_return(table), table["device_begin_ns"], table["call_ns"])[order] - error
    known = (CollectiveSource.HOST, CollectiveSource.IMPORTED)
    on_host = np.isin(table["source_code"], known) & (table["end_ns"] >= 0)
    end = np.where(timed, table["device_end_ns"], np.where(on_host, table["end_ns"], NONE))[order]
    end = np.where(end == NONE, end, end + error)
    is_root = _is_root(table, groups)[order]
    op, host = op[order], host[order]
    together = np.isin(op, SYNCHRONISING_OPS)
    from_root, to_root = np.isin(op, FROM_ROOT), np.isin(op, TO_ROOT)
    sent, received = op == CollectiveOp.SEND, op == CollectiveOp.RECEIVE
    awaited = together | (from_root & is_root) | (to_root & ~is_root) | sent
    awaits = together | (from_root & ~is_root) | (to_root & is_root) | received
    enter = np.where(awaited & (table["status_code"][order] != FAILED_STATUS), enter, NONE)
    end = np.where(awaits & (table["status_code"][order] != FAILED_STATUS), end, NONE)

    if not len(order):
        nothing = np.empty(0, dtype=np.int64)
        none = nothing.astype(bool)
        return Meetings(
            nothing, nothing, nothing, nothing, nothing, nothing, none, none, nothing.astype(np.int8), dropped
        )
    lead = np.ones(len(order), dtype=bool)
    lead[1:] = (number[1:] != number[:-1]) | (host[1:] != host[:-1])
    at = np.flatnonzero(lead)
    last = np.where(end == NONE, np.iinfo(np.int64).max, end)
    earliest = np.minimum.reduceat(last, at)
    _, circle = np.unique(table["group_hash"][order][at], return_inverse=True)
    return Meetings(
        number[at],
        circle.astype(np.int64),
        host[at],
        np.maximum.reduceat(enter, at),
        np.where(earliest == np.iinfo(np.int64).max, NONE, earliest),
        np.maximum.reduceat(error, at),
        together[at],
        np.logical_and.reduceat(timed[order], at),
        np.full(len(at), COLLECTIVES, dtype=np.int8),
        dropped,
    )


def _begun_by_return(table: Table) -> Bools:
    """Return a mask of rows whose begin is not a limit: on an idle stream, events show a kernel to begin when its
    launching call returns, but it may have begun, and even ended, before that.
    """
    by_events = table["source_code"] == CollectiveSource.EVENTS
    return np.asarray(by_events & (table["device_begin_ns"] <= table["return_ns"]))


def _across(number: Int64, host: Int64, new: Bools) -> Bools:
    """Return a mask of the operations of more than one host; rows are sorted by operation, then host."""
    if not len(number):
        return np.empty(0, dtype=bool)
    starts = np.flatnonzero(new)
    return np.asarray(host[starts] != host[np.append(starts[1:], len(host)) - 1])


def _sound(number: Int64, order: Int64, table: Table, new: Bools) -> Bools:
    """Return a mask of the operations that have the same kind on every rank that has them, once on each."""
    if not len(number):
        return np.empty(0, dtype=bool)
    starts = np.flatnonzero(new)
    op = table["op_code"][order]
    # A send and its receive are one operation.
    kind = np.where(op == CollectiveOp.RECEIVE, int(CollectiveOp.SEND), op)
    same = np.minimum.reduceat(kind, starts) == np.maximum.reduceat(kind, starts)
    side = table["process_id"][order] * 2 + (op == CollectiveOp.RECEIVE)
    sides = int(side.max()) + 1
    both = np.sort(number * sides + side)
    alone = np.ones(len(starts), dtype=bool)
    alone[both[1:][both[1:] == both[:-1]] // sides] = False
    return np.asarray(same & alone)


def _errors(process: Int64, source: Int64, timed: Bools, error_of: Mapping[tuple[int, int], int]) -> Int64:
    out = np.zeros(len(process), dtype=np.int64)
    rows = np.flatnonzero(timed)
    if not len(rows) or not any(error_of.values()):
        return out
    codes = int(source.max()) + 1
    table = np.zeros((int(process.max()) + 1) * codes, dtype=np.int64)
    for (owner, code), error in error_of.items():
        if code < codes and owner * codes < len(table):
            table[owner * codes + code] = error
    out[rows] = table[process[rows] * codes + source[rows]]
    return out


def _is_root(table: Table, groups: Table) -> Bools:
    """Return a mask of rows whose rank is the root of the operation; all False if no operation has a root."""
    if not np.isin(table["op_code"], (*FROM_ROOT, *TO_ROOT)).any():
        return np.zeros(len(table), dtype=bool)
    keys = np.stack([table["process_id"].astype(np.uint64), table["group_hash"]], axis=1)
    known = np.stack([groups["process_id"].astype(np.uint64), groups["group_hash"]], axis=1)
    joined, inverse = np.unique(np.concatenate([known, keys]), axis=0, return_inverse=True)
    place = np.full(len(joined), -2, dtype=np.int64)
    place[inverse.ravel()[: len(known)]] = groups["group_rank"]
    return np.asarray(place[inverse.ravel()[len(known) :]] == table["peer_rank"])


# Exchanges of messages between hosts (``clock_ping`` rows) as meetings: a message is received after it is sent.
#
# Each of the two processes writes its two times of an exchange under its number; here the halves are joined.


def pings_of(core: Sequence[RawProcess], clocks: Sequence[TickClock], host_of: Int64, own_error_ns: Int64) -> Meetings:
    """Return the meetings in the pings of all processes.

    ``core``: with the records ``clock_ping``. ``clocks``: ticks of each process -> ns. ``host_of``, ``own_error_ns``:
    host of each process, error between moments of the same host's clock.
    """
    numbers, hosts, sent, received = [], [], [], []
    for process, (raw, clock) in enumerate(zip(core, clocks, strict=True)):
        records = raw.records.get("clock_ping")
        if records is None or not len(records.rows):
            continue
        rows = records.rows
        numbers.append(rows["exchange_id"])
        hosts.append(np.full(len(rows), host_of[process], dtype=np.int64))
        sent.append(clock(rows["send_ticks"]))
        received.append(clock(rows["receive_ticks"]))
    number = np.concatenate(numbers) if numbers else np.empty(0, dtype=np.uint64)
    host, enter, end = (np.concatenate(c) if c else np.empty(0, dtype=np.int64) for c in (hosts, sent, received))
    _, exchange, count = np.unique(number, return_inverse=True, return_counts=True)
    order = np.lexsort((host, exchange))
    # An exchange needs both halves, from two hosts.
    order = order[count[exchange[order]] == 2]
    across = np.repeat(host[order[0::2]] != host[order[1::2]], 2)
    order = order[across]
    operation = np.repeat(np.arange(len(order) // 2, dtype=np.int64), 2)
    error = own_error_ns[host[order]]
    return Meetings(
        operation,
        operation,
        host[order],
        enter[order] - error,
        end[order] + error,
        error,
        np.zeros(len(order), dtype=bool),
        np.zeros(len(order), dtype=bool),
        np.full(len(order), PING, dtype=np.int8),
    )
