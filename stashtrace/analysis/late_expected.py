"""Transfers of instances beside what their link is capable of: by a calibration, else by the run's own best ones."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np

from stashtrace.analysis.late_instances import HUNG, Instances
from stashtrace.analysis.link_efficiency import expected_transfers
from stashtrace.analysis.timeset import Int64, int64
from stashtrace.analysis.trace_index import TraceIndex
from stashtrace.models.calibration import Calibration

SOURCES = ("none", "run", "calibration")
#: The best tenth of a kind of transfer is what its link is capable of, if there are at least so many. A kind is all of
#: one size, else all between two powers of two.
_BEST_DIVISOR, _ENOUGH = 10, 8


def transfers(index: TraceIndex, found: Instances, calibration: Calibration | None) -> tuple[Int64, Int64, Int64]:
    """Transfer of each instance (-1 if it never ended), expected one (-1 if unknown), index into ``SOURCES``."""
    table = index.trace.collectives
    end = np.maximum.reduceat(found.end_ns, found.starts)
    # Entry and end of different hosts are no length where their clocks are too far apart.
    shortest = np.minimum.reduceat(found.end_ns - found.enter_ns, found.starts)
    transfer = np.where(found.by_clock, np.maximum(end - found.last_enter_ns, 0), shortest)
    transfer = int64(np.where(found.method == HUNG, -1, transfer))
    first = found.row[found.starts]
    payload = int64(np.maximum(table["message_bytes"][first], 0))
    size = np.zeros(len(first), dtype=np.int64)
    size[payload > 0] = np.floor(np.log2(payload[payload > 0])).astype(np.int64) + 1
    group = int64(np.unique(found.group_hash, return_inverse=True)[1])
    same, near = (_best(transfer, group, table["op_code"][first], kind) for kind in (payload, size))
    best = np.where(same >= 0, same, near)
    expected, source = np.full(len(first), -1, dtype=np.int64), np.zeros(len(first), dtype=np.int64)
    found_one = best >= 0
    # More bytes than those of the best may take longer in proportion; that is not lost by the link.
    more = np.maximum(payload / np.maximum(payload[best], 1), 1.0)
    expected[found_one], source[found_one] = np.rint(transfer[best] * more).astype(np.int64)[found_one], 1
    by_calibration = expected_transfers(index.trace, calibration).expected_ns[first]
    known = by_calibration > 0
    expected[known], source[known] = np.rint(by_calibration[known]).astype(np.int64), 2
    return transfer, expected, source


def _best(transfer: Int64, *keys: Int64) -> Int64:
    """The instance at the best tenth of all with the same keys, -1 where there are too few of them."""
    out = np.full(len(transfer), -1, dtype=np.int64)
    order = np.lexsort((transfer, *keys[::-1]))
    order = order[transfer[order] >= 0]
    if len(order):
        changed = np.logical_or.reduce([key[order][1:] != key[order][:-1] for key in keys])
        starts = np.flatnonzero(np.append(True, changed))
        counts = np.diff(np.append(starts, len(order)))
        best = np.where(counts >= _ENOUGH, order[starts + counts // _BEST_DIVISOR], -1)
        out[order] = np.repeat(best, counts)
    return out
