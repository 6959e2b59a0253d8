"""What importers of I/O calls share: which calls waited, where nothing but their duration tells."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stashtrace.model.kinds import IoFlag

Int64 = npt.NDArray[np.int64]

#: A call that copies from the page cache stays under a fixed cost and the time of its bytes.
CALL_NS, BYTES_PER_NS = 100_000, 1
#: Fact (``metadata``) of a process whose calls were flagged so; ``stalls`` then widens its bounds.
BLOCKED_FROM = ("io_blocked_from", "duration")


def blocked_by_duration(length_ns: Int64, moved_bytes: Int64) -> Int64:
    """``IoFlag.BLOCKED`` for calls that took longer than any copy in memory."""
    slow = length_ns > CALL_NS + np.maximum(moved_bytes, 0) // BYTES_PER_NS
    return np.where(slow, int(IoFlag.BLOCKED), 0)
