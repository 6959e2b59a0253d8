"""Several starts of the same workers made one fit: what differs between starts belongs to the standard error.

Within one start the repetitions agree better than two starts do: processes land on other cores, buffers at other
addresses, sockets in another order. A standard error from the points alone would promise what the next run breaks.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from stashtrace.models.alpha_beta import Fit, Piece, fit_alpha_beta
from stashtrace.models.calibration import Points
from stashtrace.models.robust_line import robust_line


def pooled(launches: Sequence[Points]) -> Points:
    """Medians over the starts, of the medians and of the quartiles; all repetitions."""
    sizes = launches[0].sizes_bytes
    return Points(
        sizes,
        tuple(np.median([p.median_ns for p in launches], axis=0).tolist()),
        tuple(np.median([p.low_ns for p in launches], axis=0).tolist()),
        tuple(np.median([p.high_ns for p in launches], axis=0).tolist()),
        tuple(np.sum([p.repetitions_count for p in launches], axis=0).tolist()),
    )


def fit_launches(launches: Sequence[Points]) -> Fit:
    """Fit the pooled points; each error is at least that of the mean of the starts.

    The pieces of the pooled fit are fitted to every start by itself. The standard error of the mean of their alphas
    (and betas), ``standard deviation / sqrt(starts)``, replaces that of the pooled fit where it is larger.
    """
    points = pooled(launches)
    fit = fit_alpha_beta(points.sizes_bytes, points.median_ns, points.errors_ns())
    if len(launches) < 2:
        return fit
    return Fit(tuple(_widened(piece, launches, number == 0) for number, piece in enumerate(fit.pieces)))


def _widened(piece: Piece, launches: Sequence[Points], first: bool) -> Piece:
    lines = []
    for points in launches:
        sizes = np.array(points.sizes_bytes, dtype=np.float64)
        own = (sizes >= piece.min_bytes) & (sizes <= piece.max_bytes)
        times = np.array(points.median_ns)[own]
        lines.append(robust_line(sizes[own], times, np.ones(len(times)), errors_known=False, from_zero=first))
    root = np.sqrt(len(lines))
    alpha = float(np.std([line.alpha_ns for line in lines], ddof=1) / root)
    beta = float(np.std([line.beta_ns_per_byte for line in lines], ddof=1) / root)
    return replace(
        piece,
        alpha_error_ns=max(piece.alpha_error_ns, alpha),
        beta_error_ns_per_byte=max(piece.beta_error_ns_per_byte, beta),
    )
