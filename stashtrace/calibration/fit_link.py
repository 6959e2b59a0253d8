"""What a link can do: ``time = alpha + bytes * beta``, fitted to measured points, in as few pieces as they need.

The model is that of R. W. Hockney (The communication challenge for MPP, Parallel Computing 20, 1994): alpha is the
time of an empty message, 1 / beta the bandwidth of an endless one. Libraries change protocol with the message size,
so one line seldom holds from bytes to gigabytes; then there are two or three, each for a range of sizes.
Errors of times are relative ones: 3 % of 10 us are as good as 3 % of 10 ms.

``calibration.file`` keeps the results.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stashtrace.calibration.robust_line import Floats, Line, least_absolute_parts, parts_mask, robust_line
from stashtrace.errors import MissingDataError, UsageError

#: Fewer points than this say nothing about a separate line.
_POINTS_A_PIECE = 4
_SMALLEST_COUNT = 3
#: Improvements of the fit below this are not worth another piece.
_SMALLEST_RATIO = 1e-3
#: "Strong evidence" on the scale of Kass and Raftery (Bayes Factors, JASA 90, 1995).
_STRONG_EVIDENCE = 6.0


@dataclass(frozen=True, slots=True)
class Piece:
    """One line of a fit and the sizes it was fitted to."""

    #: Smallest and largest size measured.
    min_bytes: int
    max_bytes: int
    #: Intercept. Of the first piece: the latency. Of a later one: where its line would begin.
    alpha_ns: float
    alpha_error_ns: float
    #: Slope.
    beta_ns_per_byte: float
    beta_error_ns_per_byte: float
    #: Of the errors of alpha and beta, -1 to 1.
    correlation_ratio: float
    #: Robust standard deviation of the points about the line, relative to it.
    residual_ratio: float
    #: Sizes fitted, and those of them that were given no weight.
    points_count: int
    outliers_count: int

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """``1 / beta``, infinite if the piece is flat."""
        return 1e9 / self.beta_ns_per_byte if self.beta_ns_per_byte > 0 else math.inf

    @property
    def bandwidth_error_bytes_per_s(self) -> float:
        """Standard error of the bandwidth, infinite if the piece is flat."""
        if self.beta_ns_per_byte <= 0:
            return math.inf
        return 1e9 * self.beta_error_ns_per_byte / self.beta_ns_per_byte**2


@dataclass(frozen=True, slots=True)
class Fit:
    """Lines for consecutive ranges of sizes; expected times with their errors."""

    #: Ascending sizes.
    pieces: tuple[Piece, ...]

    @property
    def alpha_ns(self) -> float:
        """Latency: the intercept of the smallest messages."""
        return self.pieces[0].alpha_ns

    @property
    def alpha_error_ns(self) -> float:
        """Standard error of the latency."""
        return self.pieces[0].alpha_error_ns

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """Bandwidth of the largest messages, infinite if they took no longer than small ones."""
        return self.pieces[-1].bandwidth_bytes_per_s

    @property
    def bandwidth_error_bytes_per_s(self) -> float:
        """Standard error of the bandwidth."""
        return self.pieces[-1].bandwidth_error_bytes_per_s

    @property
    def residual_ratio(self) -> float:
        """Largest residual ratio of the pieces."""
        return max(p.residual_ratio for p in self.pieces)

    @property
    def min_bytes(self) -> int:
        """Smallest size measured."""
        return self.pieces[0].min_bytes

    @property
    def max_bytes(self) -> int:
        """Largest size measured."""
        return self.pieces[-1].max_bytes

    def piece_of(self, sizes: Any) -> np.ndarray:
        """Index of the piece that each size belongs to; between two pieces the nearer one in ratio."""
        borders = [math.sqrt(a.max_bytes * b.min_bytes) for a, b in zip(self.pieces, self.pieces[1:], strict=False)]
        return np.searchsorted(np.array(borders, dtype=np.float64), np.asarray(sizes, dtype=np.float64), side="right")

    def expected(self, sizes: Any) -> tuple[Floats, Floats]:
        """Time of one message of each size, and its standard error.

        The error is that of the line and the scatter of the measured sizes about it, in quadrature.

        Examples
        --------
        >>> fit = fit_alpha_beta([1e3, 1e4, 1e5, 1e6], [6e3, 15e3, 105e3, 1005e3])
        >>> expected_ns, error_ns = fit.expected([2e6])
        >>> round(expected_ns[0])
        2005000
        """
        size = np.asarray(sizes, dtype=np.float64)
        index = self.piece_of(size)
        time, variance = np.zeros(size.shape), np.zeros(size.shape)
        for number, piece in enumerate(self.pieces):
            of_piece = index == number
            x = size[of_piece]
            line = piece.alpha_ns + piece.beta_ns_per_byte * x
            # A later piece's line may begin below zero; far below its sizes the latency is the better answer.
            line = np.maximum(line, min(self.alpha_ns, line.max(initial=self.alpha_ns)))
            a, b = piece.alpha_error_ns, piece.beta_error_ns_per_byte
            time[of_piece] = line
            known = a**2 + (b * x) ** 2 + 2 * piece.correlation_ratio * a * b * x
            variance[of_piece] = np.maximum(known, 0.0) + (piece.residual_ratio * line) ** 2
        return time, np.sqrt(variance)

    def residuals(self, sizes: Any, times: Any) -> Floats:
        """``measured / expected - 1`` of each point."""
        ratios: Floats = np.asarray(times, dtype=np.float64) / self.expected(sizes)[0] - 1
        return ratios


def fit_alpha_beta(sizes: Any, times_ns: Any, error_ns: Any = None, *, max_pieces: int = 3) -> Fit:
    """Fit alpha and beta to measured times, with outliers left out and relative errors.

    Each piece is a robust line (see ``robust_line``). How many pieces there are, and where they meet, is the minimum of
    the Bayesian information criterion (G. Schwarz, 1978) for relative errors of a Laplace distribution, over all places
    that leave each piece four sizes; one more piece must be worth six units.

    ``sizes``: message sizes in bytes, at least three different ones. ``times_ns``: time of each, as a rule the median
    of repetitions. ``error_ns``: standard errors of the times: noisier points count less; without, all count the same.
    ``max_pieces``: not more lines than this. Raises UsageError if the columns do not fit together or hold something
    that is not a time. Raises MissingDataError if there are too few sizes.
    """
    size, time, error = _check(sizes, times_ns, error_ns)
    relative = np.ones(len(size)) if error is None else _relative(error, time)
    pieces = []
    starts = _best_starts(size, time, relative, max_pieces, 0.0 if error is None else float(np.median(relative)))
    for begin, end in zip(starts, [*starts[1:], len(size)], strict=True):
        line = robust_line(
            size[begin:end], time[begin:end], relative[begin:end], errors_known=error is not None, from_zero=begin == 0
        )
        pieces.append(_piece(size[begin:end], line))
    return Fit(tuple(pieces))


def bus_bytes(op: str, ranks: int, message_bytes: float) -> float:
    """Bytes that the busiest link carries: makes collectives comparable with the bandwidth of hardware.

    The factors are those of nccl-tests (doc/PERFORMANCE.md): all-reduce 2 (n - 1) / n; all-gather, reduce-scatter and
    all-to-all (n - 1) / n of the whole; broadcast and reduce 1. ``message_bytes`` is one rank's input everywhere in
    this project, so the whole of an all-gather is n times that.

    Examples
    --------
    >>> bus_bytes("all_reduce", 4, 1000), bus_bytes("all_gather", 4, 1000), bus_bytes("broadcast", 4, 1000)
    (1500.0, 3000.0, 1000.0)
    """
    if ranks < 2:
        return 0.0
    if op == "all_reduce":
        return 2 * (ranks - 1) / ranks * message_bytes
    if op in ("all_gather", "gather"):
        return (ranks - 1) * float(message_bytes)
    if op in ("reduce_scatter", "all_to_all", "scatter"):
        return (ranks - 1) / ranks * message_bytes
    return float(message_bytes)


def _check(sizes: Any, times_ns: Any, error_ns: Any) -> tuple[Floats, Floats, Floats | None]:
    size, time = np.asarray(sizes, dtype=np.float64), np.asarray(times_ns, dtype=np.float64)
    error = None if error_ns is None else np.asarray(error_ns, dtype=np.float64)
    if size.ndim != 1 or size.shape != time.shape or (error is not None and error.shape != size.shape):
        raise UsageError(f"sizes, times and errors have different lengths: {size.shape}, {time.shape}")
    if not (np.isfinite(size).all() and np.isfinite(time).all() and (size >= 0).all() and (time > 0).all()):
        raise UsageError("sizes and times must be finite, times above zero")
    if error is not None and not (np.isfinite(error).all() and (error >= 0).all()):
        raise UsageError("errors of times must be finite and not negative")
    different = len(np.unique(size))
    if different < _SMALLEST_COUNT:
        raise MissingDataError(
            f"{different} message size{'' if different == 1 else 's'} cannot carry a fit of alpha and beta",
            hint=f"measure at least {_SMALLEST_COUNT} sizes",
        )
    order = np.argsort(size, kind="stable")
    return size[order], time[order], None if error is None else error[order]


def _relative(error: Floats, time: Floats) -> Floats:
    """Relative errors; none is believed to be better than the typical one, which it may be by luck."""
    ratio = error / time
    typical = float(np.median(ratio))
    known: Floats = np.maximum(ratio, max(typical, 1e-6))
    return known


def _best_starts(size: Floats, time: Floats, relative: Floats, max_pieces: int, error_ratio: float) -> list[int]:
    """First point of each piece, by exhaustive search; equal sizes are never divided."""
    count = len(size)
    if max_pieces == 1:
        return [0]
    smallest = max(_SMALLEST_RATIO, 0.8 * error_ratio)
    begins = [0, *(at for at in range(_POINTS_A_PIECE, count) if size[at] > size[at - 1])]
    parts = [(begin, end) for begin in begins for end in range(begin + _POINTS_A_PIECE, count + 1)]
    parts = parts or [(0, count)]
    costs = dict(zip(parts, _costs(size, time, relative, parts).tolist(), strict=True))

    def criterion(total: float, pieces: int) -> float:
        typical = max(total / max(count - 2 * pieces, 1), smallest)
        return 2 * count * math.log(typical) + 3 * pieces * math.log(count)

    best, best_value = [0], criterion(costs[0, count], 1)
    # sums[end] -> cheapest way to cover the points before `end` with the pieces of this round.
    sums: dict[int, tuple[float, list[int]]] = {end: (costs[0, end], [0]) for end in range(_POINTS_A_PIECE, count + 1)}
    for pieces in range(2, max_pieces + 1):
        following: dict[int, tuple[float, list[int]]] = {}
        for end in range(pieces * _POINTS_A_PIECE, count + 1):
            options = [
                (sums[begin][0] + costs[begin, end], [*sums[begin][1], begin])
                for begin in range((pieces - 1) * _POINTS_A_PIECE, end - _POINTS_A_PIECE + 1)
                if begin in sums and size[begin] > size[begin - 1]
            ]
            if options:
                following[end] = min(options)
        if count not in following:
            break
        value = criterion(following[count][0], pieces)
        if value < best_value - _STRONG_EVIDENCE:
            best, best_value = following[count][1], value
        sums = following
    return best


def _costs(size: Floats, time: Floats, relative: Floats, parts: Sequence[tuple[int, int]]) -> Floats:
    """Sum of the absolute relative residuals of each part of the points about its line."""
    alpha, beta = least_absolute_parts(size, time, relative, parts)
    model = np.maximum(alpha[:, None] + beta[:, None] * size, 0.01 * time)
    costs: Floats = (parts_mask(len(size), parts) * np.abs(np.log(time / model))).sum(axis=1)
    return costs


def _piece(size: Floats, line: Line) -> Piece:
    alpha_error, beta_error = math.sqrt(line.alpha_variance), math.sqrt(line.beta_variance)
    product = alpha_error * beta_error
    return Piece(
        min_bytes=int(size[0]),
        max_bytes=int(size[-1]),
        alpha_ns=line.alpha_ns,
        alpha_error_ns=alpha_error,
        beta_ns_per_byte=line.beta_ns_per_byte,
        beta_error_ns_per_byte=beta_error,
        correlation_ratio=min(max(line.covariance / product, -1.0), 1.0) if product else 0.0,
        residual_ratio=line.residual_ratio,
        points_count=len(size),
        outliers_count=line.outliers_count,
    )


def bytes_factor(devices: int) -> float:
    """``2 (N - 1) / N``: how often a ring all-reduce sends each byte over a link.

    Examples
    --------
    >>> bytes_factor(2), bytes_factor(4), bytes_factor(1)
    (1.0, 1.5, 0.0)
    """
    return 2 * (devices - 1) / devices
