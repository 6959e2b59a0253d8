"""Ordinary least squares of a few columns, with standard errors, R2, and what each point would have been without it.

Used by the layers study: stall time against messages and bytes. No intercept, since no message and no byte is no
stall. Pure.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stashtrace.errors import MissingDataError, UsageError

Floats = npt.NDArray[np.float64]

_SINGULAR = 1e-9


@dataclass(frozen=True, slots=True)
class LinearFit:
    """``target = sum of coefficient * column``.

    Attributes
    ----------
    names : tuple of str
        Columns.
    coefficients, errors : float array
        One per column, and their standard errors.
    covariance : float array
        Of the coefficients.
    r2_ratio : float
        Share of the targets' variance about their mean that the fit explains; below 0 if the mean does better.
    residual : float
        Standard deviation of the points about the fit.
    fitted, left_out : float array
        Target of each point by the fit, and by the fit to all other points; NaN where they cannot carry one.
    target : float array
        What was fitted.
    """

    names: tuple[str, ...]
    coefficients: Floats
    errors: Floats
    covariance: Floats
    r2_ratio: float
    residual: float
    fitted: Floats
    left_out: Floats
    target: Floats

    def predict(self, **columns: float) -> tuple[float, float]:
        """Target of a new point, and its standard error: that of the fit and of a point about it, in quadrature."""
        row = np.array([columns[name] for name in self.names])
        return float(row @ self.coefficients), float(np.sqrt(row @ self.covariance @ row + self.residual**2))

    @property
    def left_out_errors(self) -> Floats:
        """``prediction without the point / measured - 1`` of each; NaN where the target is not above zero."""
        with np.errstate(divide="ignore", invalid="ignore"):
            found: Floats = np.where(self.target > 0, self.left_out / self.target - 1, np.nan)
        return found


def fit_linear(columns: Mapping[str, Any], target: Any) -> LinearFit:
    """Fit a target to columns through the origin.

    Parameters
    ----------
    columns : mapping of str to sequence of float
        What the target is explained by.
    target : sequence of float
        One more point than there are columns, at least.

    Raises
    ------
    UsageError
        If lengths differ or something is not finite.
    MissingDataError
        If there are too few points, or columns that say the same.

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
            f"{' and '.join(columns)} grow alike in all points, so their parts cannot be told apart",
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
