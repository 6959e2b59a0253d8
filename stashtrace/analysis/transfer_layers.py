"""Transfers of collectives as layers: network, interconnect, or cut in two where a group spans hosts and shares some.

Used by ``collective_layers`` and ``device_links``.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np

from stashtrace.analysis.matching import ACROSS, INSIDE, MIXED
from stashtrace.analysis.timeset import Int64, TimeSet
from stashtrace.analysis.trace_index import Layer, TraceIndex
from stashtrace.model.kinds import StallKind


def transfer_layers(
    index: TraceIndex, begin: Int64, end: Int64, row: Int64, link: Int64, doubt: tuple[StallKind, ...] = ()
) -> tuple[list[Layer], TimeSet]:
    """Pieces of transfers of some collectives (``row`` may be -1) by the link, and those that an estimate divides.

    Of a group over hosts of which some members share one: network up to its cut, then interconnect; around an estimated
    cut each is the doubt of the other.
    """
    network, inside = StallKind.NETWORK, StallKind.INTERCONNECT
    across, within, mixed = link == ACROSS, link == INSIDE, link == MIXED
    layers = [
        Layer(network, TimeSet.of(begin[across], end[across]), doubt),
        Layer(inside, TimeSet.of(begin[within], end[within]), doubt),
    ]
    if not mixed.any():
        return layers, TimeSet.empty()
    cuts, known = index.network_cuts, mixed & (row >= 0)
    low, point, high, guess = (c[row[known]] for c in (cuts.low_ns, cuts.point_ns, cuts.high_ns, cuts.estimated))
    low, point, high = (np.where(point >= 0, np.clip(x, begin[known], end[known]), y)
                        for x, y in ((low, begin[known]), (point, end[known]), (high, end[known])))  # fmt: skip
    bare = mixed & ~known
    layers += [
        Layer(network, TimeSet.of(begin[known], low), doubt),
        Layer(network, TimeSet.of(low, point), (inside, *doubt)),
        Layer(inside, TimeSet.of(point, high), (network, *doubt)),
        Layer(inside, TimeSet.of(high, end[known]), doubt),
        Layer(network, TimeSet.of(begin[bare], end[bare]), (inside, *doubt)),
    ]
    guess &= cuts.point_ns[row[known]] >= 0
    return layers, TimeSet.of(begin[known][guess], end[known][guess])
