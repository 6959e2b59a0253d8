"""Times of a collective and its neighbouring computation after each transformation; arithmetic on times alone.

    now                 [ producer ][    all-reduce    ][  update  ]
    split + reorder     [ producer ][ reduce-sc. ][up][ all-gather ]      the update works on slices
    fuse                [ producer ][    all-reduce    ]                  the update inside the collective
    overlap             [ p ][ p ][ p ]                                   in chunks, the collective of one during the
                             [ all ][ red ][ uce ][  update  ]            producer of the next

The transformations are those of CoCoNeT (Jangda et al., ASPLOS 2022). The range in which "fuse" holds is from the times
of Adam that its authors published with the code (parasailteam/coconet@52175e2, the two files
``examples/*-results-128-gpus-all-algos``): 128 GPUs, 2^10 to 2^30 elements. All functions take floats or arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stashtrace.calibration.robust_line import Floats
from stashtrace.replay.advice.policy import POLICY


def split_saving_ns(update_ns: Any, ranks_count: Any) -> Floats:
    """Return the time that an update saves if each of N ranks does one N-th of it.

    The bytes that move stay the same: a reduce-scatter and an all-gather are the two halves of an all-reduce.

    Examples
    --------
    >>> float(split_saving_ns(80.0, 4))
    60.0
    """
    ranks = np.maximum(np.asarray(ranks_count, dtype=np.float64), 1.0)
    return np.asarray(np.asarray(update_ns, dtype=np.float64) * (1.0 - 1.0 / ranks))


def gather_cost_ns(transfer_ns: Any, exposed_ns: Any) -> Floats:
    """Return the most that an all-gather after the update adds to the exposed time of the all-reduce.

    Half of the transfer then comes after the update, where no backward hides it. If more than that was exposed of the
    all-reduce, it still is.

    Examples
    --------
    >>> float(gather_cost_ns(10.0, 10.0)), float(gather_cost_ns(10.0, 0.0))
    (0.0, 5.0)
    """
    half = np.asarray(transfer_ns, dtype=np.float64) / 2
    return np.asarray(np.maximum(half - np.asarray(exposed_ns, dtype=np.float64), 0.0))


def overlapped_ns(producer_ns: Any, transfer_ns: Any, chunks_count: Any, contention_ratio: float = 1.0) -> Floats:
    """Return the time of a producer and its collective in chunks, each collective during the next producer.

    ``producer_ns``, ``transfer_ns``: alone, one after the other. ``chunks_count``: at least 1; with 1 nothing overlaps.
    ``contention_ratio``: how many times longer either takes during the other, 1 or more.

    Examples
    --------
    >>> float(overlapped_ns(8.0, 4.0, 4)), float(overlapped_ns(8.0, 4.0, 1))
    (9.0, 12.0)
    """
    producer, transfer = (np.asarray(x, dtype=np.float64) for x in (producer_ns, transfer_ns))
    chunks = np.maximum(np.asarray(chunks_count, dtype=np.float64), 1.0)
    # A single chunk runs alone, so nothing slows down.
    slower = np.where(chunks > 1, max(contention_ratio, 1.0), 1.0)
    return np.asarray(slower * np.maximum(producer, transfer) + np.minimum(producer, transfer) / chunks)


def chunks_of(elements_count: Any) -> Any:
    """Return the number of chunks of a message: none smaller than what is predicted, and not too many."""
    return np.clip(np.asarray(elements_count) // POLICY.fewest_elements, 1, POLICY.most_chunks)
