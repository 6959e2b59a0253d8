"""Exchanges of messages between hosts (``clock_ping`` rows) as meetings: what was received had been sent before.

Both processes write their own two times of an exchange under its number; here the halves are joined.
Used by ``host_alignment``; pure.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stashtrace.align.meetings import Meetings
from stashtrace.align.offset_fit import PING
from stashtrace.collectors.context import Int64, TickClock
from stashtrace.model.trace import RawProcess


def pings_of(core: Sequence[RawProcess], clocks: Sequence[TickClock], host_of: Int64, own_error_ns: Int64) -> Meetings:
    """Meetings in the pings of all processes.

    Parameters
    ----------
    core : sequence of RawProcess
        With the records ``clock_ping``.
    clocks : sequence of callable
        Ticks of each process -> ns.
    host_of, own_error_ns : int64 arrays
        Host of each process, error of each host's clock against itself.
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
    # Of an exchange both halves must be there, from two hosts.
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
