"""From the stamps of all ranks to one time per size. Pure; used by ``calibrate``."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stashtrace.errors import CaptureError
from stashtrace.models.calibration import Points
from stashtrace.models.robust_line import Floats


def transfer_times(timing: str, stamps: Sequence[Any]) -> Floats:
    """Time of each repetition without the wait for the last rank, ns.

    Parameters
    ----------
    timing : str
        ``host``: (begin, end) on one clock; the transfer of a rank is its end minus the last begin, as in the analysis
        ``collectives``, and the middle rank counts. ``device``: (0, duration) by each device; the rank that came last
        waited least, so the shortest counts.
    stamps : sequence
        One list of (begin_ns, end_ns) per rank, all of one length.
    """
    table = np.array(stamps, dtype=np.int64)
    if timing == "device":
        found: Floats = (table[:, :, 1] - table[:, :, 0]).min(axis=0).astype(np.float64)
    else:
        found = np.median(table[:, :, 1] - table[:, :, 0].max(axis=0), axis=0)
    return np.maximum(found, 1.0)


def points_of(timing: str, by_size: Sequence[Mapping[str, Any]]) -> Points:
    """Median and quartiles of every size; one mapping "size -> stamps" per rank.

    Raises
    ------
    CaptureError
        If the ranks did not measure the same.
    """
    sizes = sorted(int(s) for s in by_size[0])
    rows = []
    for size in sizes:
        stamps = [rank.get(str(size), []) for rank in by_size]
        if len({len(s) for s in stamps}) != 1 or not stamps[0]:
            raise CaptureError(f"the ranks did not measure the same number of messages of {size} bytes")
        times = transfer_times(timing, stamps)
        low, median, high = np.percentile(times, (25, 50, 75))
        rows.append((size, float(median), float(low), float(high), len(times)))
    return Points(*(tuple(column) for column in zip(*rows, strict=True)))
