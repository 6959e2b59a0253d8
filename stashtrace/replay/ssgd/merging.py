"""Merged-gradient wait-free back-propagation: choose the layers whose gradients are sent together.

S. Shi, X. Chu, B. Li, MG-WFBP: Efficient data communication for distributed synchronous SGD algorithms (INFOCOM 2019).
The paper goes through the layers once with a greedy rule. The dynamic programme of
``replay.communication.overlap.best_merge`` finds the best of all merges: it ends no later than the rule, and earlier
where many small waits add up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from stashtrace.replay.communication.overlap import (
    ROUNDING,
    best_merge,
    bucket_starts,
    merge_caps,
    merged,
    rounded_cap,
    schedule,
)
from stashtrace.replay.ssgd.workload import Floats, Workload

Int64 = np.typing.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Merge:
    """Messages of a backward pass that hold the gradients of neighbouring layers."""

    #: Index in ``Workload.sends`` of the first layer of each message.
    starts: Int64
    #: Layer of each message whose gradients are ready last, counted from 0 in the forward order.
    last_layers: Int64
    #: Of each message.
    ready_ns: Floats
    sizes_bytes: Floats
    time_ns: Floats
    #: End of the last message since the begin of the backward pass.
    end_ns: float

    def __len__(self) -> int:
        return len(self.starts)


def merge_of(workload: Workload, starts: Any, alpha_ns: float, beta_ns_per_byte: float) -> Merge:
    """Make messages that begin at these indices of ``Workload.sends``; each takes ``alpha + bytes * beta``."""
    first = np.asarray(starts, dtype=np.int64)
    ready, sizes = merged(workload.ready_ns, workload.sizes_bytes, first)
    times = alpha_ns + beta_ns_per_byte * sizes
    last = workload.sends[np.append(first[1:], len(workload.sends)) - 1]
    end = float(schedule(ready, times).end_ns[-1]) if len(ready) else 0.0
    return Merge(first, last, ready, sizes, times, end)


def layer_by_layer(workload: Workload, alpha_ns: float, beta_ns_per_byte: float) -> Merge:
    """Make a message for each layer with gradients: plain wait-free back-propagation."""
    return merge_of(workload, np.arange(len(workload.sends)), alpha_ns, beta_ns_per_byte)


def best(workload: Workload, alpha_ns: float, beta_ns_per_byte: float) -> Merge:
    """Return the merge whose last message ends earliest."""
    starts = best_merge(workload.ready_ns, workload.sizes_bytes, alpha_ns, beta_ns_per_byte)
    return merge_of(workload, starts, alpha_ns, beta_ns_per_byte)


def best_cap(workload: Workload, alpha_ns: float, beta_ns_per_byte: float) -> tuple[float, Merge]:
    """Return the ``bucket_cap_mb`` in MiB whose last bucket ends earliest, and its buckets.

    Of several that end together it returns the one with the fewest buckets, and of these the smallest.
    """
    sizes = workload.sizes_bytes
    caps = [rounded_cap(cap, sizes) for cap in merge_caps(sizes).tolist()]
    tried = [(merge_of(workload, bucket_starts(sizes, cap * 2**20), alpha_ns, beta_ns_per_byte), cap) for cap in caps]
    earliest = min(merge.end_ns for merge, _ in tried)
    together = [found for found in tried if found[0].end_ns <= earliest * (1 + ROUNDING)]
    merge, cap = min(together, key=lambda found: (len(found[0]), found[1]))
    return cap, merge
