"""One straight line through times that spread in proportion to their size: robust, with standard errors.

Pure functions of numpy arrays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace.errors import MissingDataError, UsageError

#: From this number of degrees of freedom on, Student's distribution is taken for a normal one: 1 % wider at most.
_NEARLY_NORMAL = 200


@lru_cache(maxsize=4096)
def student(freedom: int, chance_ratio: float) -> float:
    """Return the quantile of Student's distribution that is exceeded, on either side, with a chance.

    Abramowitz and Stegun 26.7.3 and 26.7.4, solved by bisection; from 200 degrees of freedom on that of a normal one.

    Examples
    --------
    >>> round(student(4, 0.05), 3), round(student(3, 0.001), 2), round(student(500, 0.05), 2)
    (2.776, 12.92, 1.96)
    """
    if freedom >= _NEARLY_NORMAL:
        return NormalDist().inv_cdf(1 - chance_ratio / 2)
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        angle = (low + high) / 2
        low, high = (angle, high) if _within(angle, freedom) < 1 - chance_ratio else (low, angle)
    return math.tan(low) * math.sqrt(freedom)


def _within(angle: float, freedom: int) -> float:
    """Return the chance that Student's t is no farther from 0 than the tangent of an angle times sqrt(freedom)."""
    sine, cosine = math.sin(angle), math.cos(angle)
    term = total = cosine if freedom % 2 else 1.0
    for number in range(2 + freedom % 2, freedom - 1, 2):
        term *= cosine**2 * (number - 1) / number
        total += term
    if freedom % 2 == 0:
        return sine * total
    return 2 / math.pi * (angle + (sine * total if freedom > 1 else 0.0))


Floats = npt.NDArray[np.float64]

#: Tukey's bisquare: 95 % as efficient as least squares on normal errors; points beyond are left out altogether.
_BISQUARE = 4.685
#: Median absolute deviation of a normal distribution with standard deviation one.
_NORMAL_MAD = 0.6745
#: Relative differences below this are rounding, not noise.
_SMALLEST_SCALE = 1e-9
_ROUNDS = 60
_STILL = 1e-10
#: Where to begin need not be known that well, and it is asked for every range of sizes.
_ROUGH_ROUNDS = 25
_ROUGH_STILL = 1e-5


@dataclass(frozen=True, slots=True)
class Line:
    """``time = alpha + bytes * beta`` and how well it is known."""

    #: Intercept and slope.
    alpha_ns: float
    beta_ns_per_byte: float
    #: Of the two, in ns squared and per byte.
    alpha_variance: float
    beta_variance: float
    covariance: float
    #: Robust standard deviation of the points about the line, relative to it.
    residual_ratio: float
    #: Points that were given no weight.
    outliers_count: int

    def at(self, sizes: Floats) -> Floats:
        """Time on the line."""
        return self.alpha_ns + self.beta_ns_per_byte * sizes


def least_absolute(sizes: Floats, times: Floats, errors: Floats) -> tuple[float, float]:
    """Find the line of the smallest sum of absolute relative residuals; see :func:`least_absolute_parts`."""
    alpha, beta = least_absolute_parts(sizes, times, errors, [(0, len(sizes))])
    return float(alpha[0]), float(beta[0])


def least_absolute_parts(
    sizes: Floats, times: Floats, errors: Floats, parts: Sequence[tuple[int, int]]
) -> tuple[Floats, Floats]:
    """Find the lines of the smallest sum of absolute relative residuals of parts of the points: (alphas, betas).

    Iteratively reweighted least squares, of all parts at once; single wild points hardly move a line, so it is where
    :func:`robust_line` begins. ``errors`` are relative standard errors of the times. ``parts``: first point of each,
    and the one behind its last.
    """
    first, end = np.array(parts, dtype=np.int64).reshape(-1, 2).T
    inside = parts_mask(len(sizes), parts)
    alpha, beta = np.zeros(len(parts)), np.zeros(len(parts))
    moves = np.arange(len(parts))  # parts whose line still does
    weights, model = inside, np.broadcast_to(times, inside.shape)
    for _ in range(_ROUGH_ROUNDS):
        within = inside[moves] / (model * errors)
        fitted = _solve(sizes * within, within, times * within, weights)
        model = _positive(fitted[0][:, None] + fitted[1][:, None] * sizes, times)
        weights = 1 / np.maximum(np.abs(times / model - 1) / errors, 1e-6)
        moved = np.abs(fitted[0] - alpha[moves]) + np.abs(fitted[1] - beta[moves]) * sizes[end[moves] - 1]
        alpha[moves], beta[moves] = fitted
        still = moved < _ROUGH_STILL * times[first[moves]]
        if still.all():
            break
        moves, weights, model = moves[~still], weights[~still], model[~still]
    return alpha, beta


def parts_mask(count: int, parts: Sequence[tuple[int, int]]) -> Floats:
    """Return 1 where one of ``count`` points (columns) is in a part (row), else 0."""
    first, end = np.array(parts, dtype=np.int64).reshape(-1, 2).T
    at = np.arange(count)
    mask: Floats = ((at >= first[:, None]) & (at < end[:, None])).astype(np.float64)
    return mask


def robust_line(sizes: Floats, times: Floats, errors: Floats, *, errors_known: bool, from_zero: bool) -> Line:
    """M-estimate of a line with errors in proportion to the times.

    Tukey's bisquare with a scale from the median absolute residual. The covariance is that of an M-estimator, Huber,
    Robust Statistics (1981), section 7.6, with his correction for few points. If the errors of the points are known and
    their scatter about the line is smaller, the errors count (the factor of R. T. Birge, 1932, never below one).

    ``sizes``, ``times``: message sizes, ascending, and times. ``errors``: relative standard errors of the times, or
    ones. ``errors_known``: whether ``errors`` are measured, or only say that all points count the same. ``from_zero``:
    true if the intercept is a latency and therefore not negative.
    """
    alpha, beta, scale = _iterate(sizes, times, errors, fixed=None)
    if beta < 0:
        alpha, beta, scale = _iterate(sizes, times, errors, fixed="flat")
    elif from_zero and alpha < 0:
        alpha, beta, scale = _iterate(sizes, times, errors, fixed="origin")
    model = _positive(alpha + beta * sizes, times)
    residual = (times - model) / (model * errors)
    counted = max(scale, 1.0) if errors_known else scale
    covariance = _covariance(sizes, model * errors, residual / scale) * counted**2
    return Line(
        alpha_ns=alpha,
        beta_ns_per_byte=beta,
        alpha_variance=float(covariance[0, 0]),
        beta_variance=float(covariance[1, 1]),
        covariance=float(covariance[0, 1]),
        residual_ratio=_scale((times - model) / model, 2),
        outliers_count=int(np.count_nonzero(np.abs(residual) >= _BISQUARE * scale)),
    )


def _iterate(sizes: Floats, times: Floats, errors: Floats, *, fixed: str | None) -> tuple[float, float, float]:
    alpha, beta = least_absolute(sizes, times, errors)
    if fixed == "flat":
        alpha, beta = float(np.median(times)), 0.0
    elif fixed == "origin":
        alpha, beta = 0.0, float(np.median(times / sizes))
    scale = 1.0
    for _ in range(_ROUNDS):
        model = _positive(alpha + beta * sizes, times)
        spread = model * errors
        residual = (times - model) / spread
        scale = _scale(residual, 2 if fixed is None else 1)
        inside = residual / (_BISQUARE * scale)
        weights = np.where(np.abs(inside) < 1, (1 - inside**2) ** 2, 0.0)
        if fixed == "flat":
            fitted = (float(np.sum(weights * times / spread**2) / np.sum(weights / spread**2)), 0.0)
        elif fixed == "origin":
            fitted = (0.0, float(np.sum(weights * times * sizes / spread**2) / np.sum(weights * (sizes / spread) ** 2)))
        else:
            found = _solve(sizes / spread, 1 / spread, times / spread, weights)
            fitted = float(found[0]), float(found[1])
        moved = abs(fitted[0] - alpha) + abs(fitted[1] - beta) * sizes[-1]
        alpha, beta = fitted
        if moved < _STILL * times[0]:
            break
    return alpha, beta, scale


def _solve(slope: Floats, intercept: Floats, target: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Weighted least squares of two columns, each along the last axis: (intercepts, slopes).

    The columns are made equally large first, as bytes go over nine decades.
    """
    unit, base = np.sqrt((slope**2).sum(axis=-1)), np.sqrt((intercept**2).sum(axis=-1))
    unit, base = np.where(unit > 0, unit, 1.0), np.where(base > 0, base, 1.0)
    x, one = slope / unit[..., None], intercept / base[..., None]
    wx, w1 = weights * x, weights * one
    xx, xo, oo = (wx * x).sum(axis=-1), (wx * one).sum(axis=-1), (w1 * one).sum(axis=-1)
    xt, ot = (wx * target).sum(axis=-1), (w1 * target).sum(axis=-1)
    determinant = xx * oo - xo * xo
    flat = determinant <= 1e-12 * xx * oo  # all weight on one size: a line through it and the origin
    divisor = np.where(flat, 1.0, determinant)
    alone = np.where(xx > 0, xt / np.where(xx > 0, xx, 1.0), 0.0)
    intercepts: Floats = np.where(flat, 0.0, (ot * xx - xt * xo) / divisor / base)
    slopes: Floats = np.where(flat, alone, (xt * oo - ot * xo) / divisor) / unit
    return intercepts, slopes


def _covariance(sizes: Floats, spread: Floats, residual: Floats) -> Floats:
    """Covariance of intercept and slope for a residual scale of one."""
    inside = residual / _BISQUARE
    kept = np.abs(inside) < 1
    influence = np.where(kept, residual * (1 - inside**2) ** 2, 0.0)
    slope = np.where(kept, (1 - inside**2) * (1 - 5 * inside**2), 0.0)
    count = len(sizes)
    steepness = max(float(slope.mean()), 0.1)
    correction = 1 + 2 / count * float(slope.var()) / steepness**2
    factor = correction**2 * float(np.sum(influence**2)) / max(count - 2, 1) / steepness**2
    columns = np.stack((1 / spread, sizes / spread), axis=1)
    norm = np.sqrt(np.sum(columns**2, axis=0))
    norm = np.where(norm > 0, norm, 1.0)
    inverse = np.linalg.pinv((columns / norm).T @ (columns / norm))
    covariance: Floats = factor * inverse / np.outer(norm, norm)
    return covariance


def _scale(residual: Floats, coefficients: int) -> float:
    """Robust standard deviation: the median of the residuals that the fitted coefficients have not made zero."""
    ordered = np.sort(np.abs(residual))
    return max(float(np.median(ordered[min(coefficients, len(ordered) - 1) :])) / _NORMAL_MAD, _SMALLEST_SCALE)


def _positive(model: Floats, times: Floats) -> Floats:
    """Keep the model above zero where a negative intercept would carry it there."""
    floor: Floats = np.maximum(model, 0.01 * times)
    return floor


# Ordinary least squares of a few columns, with standard errors, R2, and each point by the fit to all others. For the
# layers study: stall time against messages and bytes. No intercept, since there is no stall without messages and bytes.

_SINGULAR = 1e-9


@dataclass(frozen=True, slots=True)
class LinearFit:
    """``target = sum of coefficient * column``."""

    #: Columns.
    names: tuple[str, ...]
    #: One per column, and their standard errors.
    coefficients: Floats
    errors: Floats
    #: Of the coefficients.
    covariance: Floats
    #: Share of the targets' variance about their mean that the fit explains; below 0 if the mean does better.
    r2_ratio: float
    #: Standard deviation of the points about the fit.
    residual: float
    #: Target of each point by the fit, and by the fit to all other points; NaN where they cannot carry one.
    fitted: Floats
    left_out: Floats
    #: What was fitted.
    target: Floats

    def predict(self, **columns: float) -> tuple[float, float]:
        """Target of a new point, and its standard error: that of the fit and of a point about it, in quadrature."""
        row = np.array([columns[name] for name in self.names])
        return float(row @ self.coefficients), float(np.sqrt(row @ self.covariance @ row + self.residual**2))

    @property
    def left_out_errors(self) -> Floats:
        """``prediction without the point / measured - 1`` of each; NaN where the target is not above zero."""
        with np.errstate(divide="ignore", invalid="ignore"):
            errors: Floats = np.where(self.target > 0, self.left_out / self.target - 1, np.nan)
        return errors


def fit_linear(columns: Mapping[str, Any], target: Any) -> LinearFit:
    """Fit a target to columns through the origin.

    ``columns``: what the target is explained by. ``target``: one more point than there are columns, at least. Raises
    UsageError if lengths differ or something is not finite. Raises MissingDataError if there are too few points, or
    columns that say the same.

    Examples
    --------
    >>> fit = fit_linear({"messages": [10, 20, 30, 20], "bytes": [100, 100, 200, 400]}, [120, 220, 340, 280])
    >>> fit.coefficients.round(6).tolist(), round(fit.r2_ratio, 6), round(fit.predict(messages=50, bytes=0)[0], 6)
    ([10.0, 0.2], 1.0, 500.0)
    """
    y = np.asarray(target, dtype=np.float64)
    table = np.array([np.asarray(values, dtype=np.float64) for values in columns.values()]).T
    if y.ndim != 1 or table.shape != (len(y), len(columns)):
        raise UsageError(f"columns and target have different lengths: {table.shape}, {y.shape}")
    if not (np.isfinite(table).all() and np.isfinite(y).all()):
        raise UsageError("columns and target must be finite")
    count, width = table.shape
    if count <= width:
        raise MissingDataError(
            f"{count} point{'' if count == 1 else 's'} cannot carry a fit of {' and '.join(columns)}",
            hint=f"measure at least {width + 1}",
        )
    # Bytes are nine decades above messages.
    unit = np.sqrt((table**2).sum(axis=0))
    if not unit.all() or _conditioning(table / np.where(unit > 0, unit, 1.0)) < _SINGULAR:
        raise MissingDataError(
            f"{' and '.join(columns)} grow in proportion in all points, so their parts cannot be separated",
            hint="add points that differ, for example another sweep into the same folder",
        )
    scaled = table / unit
    inverse = np.linalg.inv(scaled.T @ scaled)
    coefficients = inverse @ (scaled.T @ y)
    fitted = scaled @ coefficients
    residual = y - fitted
    variance = float(residual @ residual) / (count - width)
    leverage = np.einsum("ij,jk,ik->i", scaled, inverse, scaled)
    with np.errstate(divide="ignore", invalid="ignore"):
        left_out = np.where(leverage < 1 - 1e-9, y - residual / (1 - leverage), np.nan)
    covariance = inverse * variance / np.outer(unit, unit)
    return LinearFit(
        names=tuple(columns),
        coefficients=coefficients / unit,
        errors=np.sqrt(np.diag(covariance)),
        covariance=covariance,
        r2_ratio=r_squared(y, fitted),
        residual=float(np.sqrt(variance)),
        fitted=fitted,
        left_out=left_out,
        target=y,
    )


def r_squared(measured: Any, expected: Any) -> float:
    """Share of the variance of the measured values that the expected ones explain; NaN if they do not vary.

    Examples
    --------
    >>> r_squared([1, 2, 3], [1, 2, 3]), r_squared([1, 2, 3], [2, 2, 2]), r_squared([2, 2], [1, 3])
    (1.0, 0.0, nan)
    """
    y, model = np.asarray(measured, dtype=np.float64), np.asarray(expected, dtype=np.float64)
    total = float(((y - y.mean()) ** 2).sum())
    return 1.0 - float(((y - model) ** 2).sum()) / total if total > 0 else float("nan")


def likeness(one: Any, other: Any) -> float:
    """Cosine of two columns: 1 where one is a multiple of the other.

    Examples
    --------
    >>> likeness([1, 2], [10, 20]), likeness([1, 0], [0, 1])
    (1.0, 0.0)
    """
    a, b = np.asarray(one, dtype=np.float64), np.asarray(other, dtype=np.float64)
    size = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / size if size > 0 else 1.0


def _conditioning(scaled: Floats) -> float:
    values = np.linalg.svd(scaled, compute_uv=False)
    return float(values[-1] / values[0]) if len(values) else 0.0
