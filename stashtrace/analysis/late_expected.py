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
#: The best tenth of a kind of transfer is what its link is capable of, if there are at least so many.
_BEST_DIVISOR, _ENOUGH = 10, 8


def transfers(index: TraceIndex, found: Instances, calibration: Calibration | None) -> tuple[Int64, Int64, Int64]:
    """Transfer of each instance (-1 if it never ended), expected one (-1 if unknown), index into ``SOURCES``."""
    table = index.trace.collectives
    end = np.maximum.reduceat(found.end_ns, found.starts)
    transfer = np.where(found.method == HUNG, -1, np.maximum(end - found.last_enter_ns, 0))
    first = found.row[found.starts]
    size = np.zeros(len(first), dtype=np.int64)
    payload = table["message_bytes"][first]
    positive = payload > 0
    size[positive] = np.floor(np.log2(payload[positive])).astype(np.int64) + 1
    keys = np.stack([np.unique(found.group_hash, return_inverse=True)[1], table["op_code"][first], size])
    order = np.lexsort((transfer, *keys[::-1]))
    order = order[transfer[order] >= 0]
    expected, source = np.full(len(first), -1, dtype=np.int64), np.zeros(len(first), dtype=np.int64)
    if len(order):
        changed = (keys[:, order][:, 1:] != keys[:, order][:, :-1]).any(axis=0)
        starts = np.flatnonzero(np.append(True, changed))
        counts = np.diff(np.append(starts, len(order)))
        best = transfer[order][starts + counts // _BEST_DIVISOR]
        enough = np.repeat(counts >= _ENOUGH, counts)
        expected[order[enough]] = np.repeat(best, counts)[enough]
        source[order[enough]] = 1
    by_calibration = expected_transfers(index.trace, calibration).expected_ns[first]
    known = by_calibration > 0
    expected[known], source[known] = np.rint(by_calibration[known]).astype(np.int64), 2
    return int64(transfer), expected, source
