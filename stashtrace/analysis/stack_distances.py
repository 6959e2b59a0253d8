"""Reuse distances: how much else was used between two uses of the same, exactly, in O(n log n). For ``io_cache``."""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np

from stashtrace.analysis.timeset import Int64


def previous_uses(item: Int64) -> Int64:
    """Place of the last use of the same item before each use, -1 if there is none.

    Examples
    --------
    >>> previous_uses(np.array([7, 8, 7, 7])).tolist()
    [-1, -1, 0, 2]
    """
    order = np.argsort(item, kind="stable")
    same = item[order][1:] == item[order][:-1]
    found = np.full(len(item), -1, dtype=np.int64)
    found[order[1:][same]] = order[:-1][same]
    return found


def stack_distances(previous: Int64, size: Int64) -> Int64:
    """Size of all items used since the last use of each item, itself included; -1 for first uses.

    An LRU cache serves a use if and only if it holds this much: it evicts from the far end, so what it has is always
    the longest stretch of most recently used items that fits.

    Parameters
    ----------
    previous : int64 array
        As :func:`previous_uses` gives it.
    size : int64 array
        Of the item of each use; every use of an item has the same.

    Notes
    -----
    An item counts once between uses p and i: at its first use there, which is the one whose own last use is not behind
    p. So the distance is the size of the uses j < i with ``previous[j] <= p``, less those up to p, all of which are.
    Sorted by ``previous``, uses are divided by the bits of their place, highest first: whoever has the bit set sees,
    among those of its half that stand before it, the ones without. That is one pass over the data for each bit.

    Examples
    --------
    >>> uses = np.array([1, 2, 3, 2, 1])
    >>> stack_distances(previous_uses(uses), uses * 100).tolist()
    [-1, -1, -1, 500, 600]
    """
    count = len(previous)
    if not count:
        return np.empty(0, dtype=np.int64)
    seen = np.zeros(count, dtype=np.int64)
    order = np.argsort(previous, kind="stable")
    for bit in reversed(range(max(count - 1, 1).bit_length())):
        high = (order >> bit) & 1 == 1
        # Rows of one block stand together, and blocks in order, so each begins where its number says.
        start = (order >> (bit + 1)) << (bit + 1)
        low_sums = np.append(0, np.cumsum(np.where(high, 0, size[order])))
        rows = np.flatnonzero(high)
        seen[order[rows]] += low_sums[rows] - low_sums[start[rows]]
        lows = np.append(0, np.cumsum(~high))
        ahead = lows[np.arange(count)] - lows[start]  # without the bit, before it in its block
        place = np.where(high, start + (1 << bit) + (np.arange(count) - start - ahead), start + ahead)
        divided = np.empty_like(order)
        divided[place] = order
        order = divided
    until = np.cumsum(size)
    again = previous >= 0
    found = np.full(count, -1, dtype=np.int64)
    found[again] = seen[again] - until[previous[again]] + size[again]
    return found
